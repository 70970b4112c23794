"""Directories of nats-server 2.6.5 and 2.9.10, fresh and killed, opened here; upgraded here, then opened by 2.15.2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.config.meta_json import Era
from headrace.layouts.jetstream.volume import JetStreamVolume
from tests.support.jsapi import Api, Message
from tests.support.peers import NatsServer
from tests.support.stores import (
    Seen,
    check_there,
    create_there,
    in_their_terms,
    look,
    publish_on,
    stream_state,
    unexpected,
)

NatsServers = Callable[..., NatsServer]
ERA_OF: dict[str, Era] = {"2.6.5": "2.6", "2.9.10": "2.9"}


def compare(found: dict[str, Seen], states: dict[str, Any], messages: dict[str, dict[int, Message]]) -> None:
    """After a clean stop everything is equal."""
    for name, seen in found.items():
        theirs = {s: (m.subject, m.headers, m.data, m.time_ns) for s, m in messages[name].items()}
        assert seen.messages == theirs, name
        assert in_their_terms(seen.state) == states[name], name


def compare_killed(
    found: dict[str, Seen], states: dict[str, Any], messages: dict[str, dict[int, Message]]
) -> None:
    """Only the index knows of removals in these eras, and a killed server has not written it: messages that were
    removed may be back (the server itself shows them again too), but none is missing."""
    for name, seen in found.items():
        theirs = {s: (m.subject, m.headers, m.data, m.time_ns) for s, m in messages[name].items()}
        kept = {seq: message for seq, message in seen.messages.items() if seq in theirs}
        assert kept == theirs, name
        if name != "EMPTY":
            assert seen.state.last_seq == states[name]["last_seq"], name


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("version", ["2.6.5", "2.9.10"])
def test_directories_of_old_servers(nats_server: NatsServers, tmp_path: Path, version: str, end: str) -> None:
    path = tmp_path / "js"
    server = nats_server(version, path)
    with Api(server.url) as api:
        positions = create_there(api, ERA_OF[version])
    if end == "stop":
        # They show a higher ack floor than they store: what counts is what they know after a restart.
        server.stop()
        server.start()
    with Api(server.url) as api:
        positions = {(stream, name): api.consumer_position(stream, name) for stream, name in positions}
        names = api.names()
        states = {name: stream_state(api, name, version) for name in names}
        messages = {name: api.messages(name) for name in names}
    server.stop() if end == "stop" else server.kill()
    before = snapshot_of(path)
    for mode in ("r", "rw"):
        with JetStreamVolume(str(path), mode=mode) as volume:
            assert [d for d in volume.damage() if d.kind != "index"] == []
            found = look(volume)
            assert sorted(found) == sorted(names)
            if version == "2.6.5":
                for name, seen in found.items():
                    states[name]["num_subjects"] = seen.state.num_subjects  # it does not tell
                    states[name]["num_deleted"] = len(states[name]["deleted"])
            (compare if end == "stop" else compare_killed)(found, states, messages)
            if end == "stop":
                for (stream, consumer), position in positions.items():
                    assert found[stream].consumers[consumer] == position, (stream, consumer)
            if mode == "r":
                assert snapshot_of(path) == before
            else:
                assert any(f"nats-server {ERA_OF[version]}" in notice for notice in volume.notices)
    server = nats_server("2.15.2", path)
    with Api(server.url) as api:
        if end == "kill":
            # Acknowledged messages that are back go again there at once: what acks mean is not the store's part.
            found = {name: seen for name, seen in found.items() if name not in ("INTEREST", "QUEUE")}
        check_there(api, found)
        assert unexpected(server) == []
        publish_on(api, found)


def snapshot_of(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}
