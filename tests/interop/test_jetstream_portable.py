"""The portable form with nats-server 2.6.5, 2.9.10 and 2.15.2, and the way back from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace._core import Disk
from headrace.config.meta_json import Era
from headrace.errors import AlreadyExists, BadInput
from headrace.layouts.jetstream.snapshots.portable import write_portable, write_portable_volume
from headrace.layouts.jetstream.volume import JetStreamVolume
from tests.support.jsapi import Api
from tests.support.peers import NatsServer
from tests.support.stores import build, check_there, look, publish_on, unexpected

NatsServers = Callable[..., NatsServer]


@pytest.mark.parametrize(
    ("era", "version"),
    [
        ("2.6", "2.6.5"),
        ("2.6", "2.9.10"),
        ("2.6", "2.15.2"),
        ("2.9", "2.9.10"),
        ("2.9", "2.6.5"),
        ("2.15", "2.15.2"),
    ],
)
def test_a_portable_copy_opens_with_everything(
    nats_server: NatsServers, tmp_path: Path, era: Era, version: str
) -> None:
    with build(tmp_path / "ours") as volume:
        expected = look(volume)
        reports = {
            report.stream: report for report in write_portable_volume(volume, str(tmp_path / "js"), era)
        }
        assert look(volume).keys() == expected.keys()
    assert reports["PACKED"].lost == ([] if era == "2.15" else ["compression"])
    assert reports["TTL"].lost == ([] if era == "2.15" else ["allow_msg_ttl"])
    refused = {"ALL": ["ack_policy"], "NONE": ["ack_policy"]}
    assert reports["PACKED"].lost_by_consumer == (refused if era == "2.6" else {})
    assert reports["FAR"].blocks == 2
    names = {path.name for path in (tmp_path / "js").rglob("*")}
    assert not {"index.db", "headrace"} & names
    server = nats_server(version, tmp_path / "js")
    with Api(server.url) as api:
        check_there(api, expected, version)
        assert unexpected(server, "consumer in pull mode requires explicit ack policy") == []
        publish_on(api, expected)
    server.stop()
    back_here(tmp_path / "js", expected)


def back_here(path: Path, expected: dict[str, Any]) -> None:
    """What an old server made of it is read here, read-only and for writing, with the one message more."""
    for mode in ("r", "rw"):
        with JetStreamVolume(str(path), mode=mode) as volume:
            assert [d for d in volume.damage() if d.kind != "index"] == []
            for name, seen in look(volume).items():
                before = expected[name]
                assert seen.state.last_seq == before.state.last_seq + 1, name
                assert seen.state.messages == before.state.messages + (name not in ("LIMITS", "BYTES")), name
                kept = {seq: message for seq, message in before.messages.items() if seq in seen.messages}
                assert len(kept) >= len(before.messages) - 1 * (name in ("LIMITS", "BYTES")), name
                assert {seq: seen.messages[seq] for seq in kept} == kept, name


def test_portable_of_portable_is_the_same(tmp_path: Path) -> None:
    with build(tmp_path / "ours") as volume:
        write_portable_volume(volume, str(tmp_path / "one"))
    with JetStreamVolume(str(tmp_path / "one")) as volume:
        write_portable_volume(volume, str(tmp_path / "two"))
    one, two = (
        {
            str(p.relative_to(tmp_path / side)): p.read_bytes()
            for p in (tmp_path / side).rglob("*")
            if p.is_file()
        }
        for side in ("one", "two")
    )
    assert one.keys() == two.keys()
    assert {name for name in one if one[name] != two[name]} == set()


def test_portable_refuses_what_it_would_overwrite(tmp_path: Path) -> None:
    volume = JetStreamVolume(str(tmp_path / "ours"), mode="rw", create=True)
    store = volume.create("S", subjects=["s"])
    with pytest.raises(AlreadyExists):
        write_portable_volume(volume, str(tmp_path / "ours"))
    with pytest.raises(BadInput, match="era"):
        write_portable_volume(volume, str(tmp_path / "other"), "2.7")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="its name"):
        write_portable(store, "/somewhere/T", disk=Disk.memory())
    volume.close()
