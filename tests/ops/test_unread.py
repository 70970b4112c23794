"""What a directory holds and no reader here reads is named with its size by every command, and never passed over in silence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import run
from headrace.errors import AlreadyExists
from headrace.layouts.registry import layout_at, layout_named
from tests.support import vectors
from tests.support.rabbit import RabbitServer, string_table

STORES = {
    "jetstream": "jetstream/2.15.2/store",
    "nats_streaming": "nats_streaming/0.25.6/clean",
    "kafka": "kafka/4.3.1/store",
    "rocketmq": "rocketmq/5.3.3/store",
    "rabbitmq": "rabbitmq/3.10.8/clean_mixed",
}
BYTES = b"x" * 1234
VHOST = "msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L"
# Layout, the file that is put there, what its folder is called.
PLACES = [
    ("jetstream", "jetstream/$G/elsewhere/1.blk", "a folder that no reader"),
    ("jetstream", "jetstream/$G/streams/{log}/more/1.blk", "a folder that no reader"),
    ("nats_streaming", "strange/file", "a folder that no reader"),
    ("nats_streaming", "{log}/inside/file", "a folder that no reader"),
    ("kafka", "remote-log-index-cache/1.index", "remote (tiered) storage"),
    ("kafka", "orders-0.0123456789abcdef0123456789abcdef-stray/1.log", "set aside as stray"),
    ("kafka", "something/file", "a folder that no reader"),
    ("rocketmq", "dledger-n0/data/0", "the log of DLedger"),
    ("rocketmq", "consumequeue_rocksdb/1.sst", "queues in RocksDB"),
    ("rocketmq", "consumequeue/CURRENT", "queues in RocksDB"),
    ("rocketmq", "timerlog/00000000000000000000", "which messages are due when"),
    ("rocketmq", "tieredstore/0", "tiered storage"),
    ("rocketmq", "something/file", "a folder that no reader"),
    ("rabbitmq", "quorum/rabbit@a/1.wal", "quorum queues"),
    ("rabbitmq", "stream/__s_1/0.segment", "streams"),
    ("rabbitmq", "mqtt_retained_5e1d.dets", "retained messages of MQTT"),
    ("rabbitmq", "something/file", "a folder that no reader"),
    ("rabbitmq", f"{VHOST}/queues/0QUEUE/0.qs", "a classic queue of version 2"),
]


def copy(layout: str, target: Path) -> tuple[Path, str]:
    """A real directory, and one of its logs."""
    inner = target / "msg_stores" / "vhosts" if layout == "rabbitmq" else target
    shutil.copytree(vectors.ROOT / STORES[layout], inner)
    with headrace.open(str(target)) as volume:
        return target, volume.logs()[0]


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("layout", "file", "what"), PLACES, ids=[f"{a}-{b}" for a, b, _ in PLACES])
def test_it_is_named(
    layout: str, file: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, log = copy(layout, tmp_path / "store")
    before = layout_at(str(path)).unread_at(str(path))
    assert not [place for place in before if place.may_hold_messages], "the product's own directory is read"
    put = path / file.format(log=log)
    put.parent.mkdir(parents=True, exist_ok=True)
    put.write_bytes(BYTES)
    found = [place for place in layout_at(str(path)).unread_at(str(path)) if place not in before]
    assert len(found) == 1 and what in found[0].what and found[0].file_bytes >= len(BYTES)
    assert str(put).startswith(found[0].path)
    for command in ("inspect", "verify"):
        code, seen = run_json(capsys, command, str(path))
        assert code in (1, 2) and seen["sound"] is False
        assert [place["path"] for place in seen["unread"] if place["may_hold_messages"]] == [found[0].path]
        assert run([command, str(path)]) == code
        assert f"{found[0].path}: not read ({found[0].file_bytes:,} bytes" in capsys.readouterr().out
    assert run(["cat", str(path), "--limit", "1"]) == 1 and found[0].path in capsys.readouterr().err
    rows = [
        row
        for task in layout_at(str(path)).check_tasks(str(path))
        for row in task.rows()
        if row.kind == "not read"
    ]
    assert [(row.file, row.bytes, row.ok) for row in rows] == [(found[0].path, found[0].file_bytes, False)]


@pytest.mark.parametrize("layout", STORES)
def test_a_conversion_stops_without_the_option(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, log = copy(layout, tmp_path / "store")
    file = next(file for own, file, _ in PLACES if own == layout)
    put = path / file.format(log=log)
    put.parent.mkdir(parents=True, exist_ok=True)
    put.write_bytes(BYTES)
    to = "kafka" if layout == "rocketmq" else "rocketmq"
    command = ["convert", str(path), str(tmp_path / "out"), "--to", to]
    for more in ((), ("--dry-run",)):
        assert run([*command, *more]) == 1
        out = capsys.readouterr().out
        assert "not read (1,234 bytes" in out and "nothing was written" in out and "--unread-ok" in out
        assert not (tmp_path / "out").exists() and not list(tmp_path.glob("out.*"))
    code, seen = run_json(capsys, *command, "--unread-ok")
    assert code == (1 if any(each["damage"] for each in seen["logs"]) else 0) and seen["unread"]
    assert (tmp_path / "out").exists()
    assert run(["convert", str(path), str(tmp_path / "one"), "--to", to, "--log", log]) in (0, 1)
    assert (tmp_path / "one").exists(), "one log was asked for: the rest does not matter"


def test_salvage_and_archive_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = copy("rabbitmq", tmp_path / "store")
    (path / "quorum").mkdir()
    (path / "quorum" / "1.wal").write_bytes(BYTES)
    for words in (
        ("salvage", str(path), str(tmp_path / "saved")),
        ("pipeline", "archive", str(path), str(tmp_path / "lake"), "--newest", "--engine", "local"),
    ):
        assert run(list(words)) == 1
        assert f"{path}/quorum: not read (1,234 bytes in 1 files): quorum queues" in capsys.readouterr().out


def test_offsets_that_were_moved_to_remote_storage(tmp_path: Path) -> None:
    """A log that starts before its first segment: what lies between is elsewhere."""
    path = tmp_path / "logs"
    with headrace.open(str(path), "rw", create=True, layout="kafka", **{"segment.bytes": 1 << 14}) as volume:
        log = volume.create("orders-0")
        for _ in range(40):
            volume.commit([log.append(headrace.batch("orders", [b"x" * 1000] * 10))])
    assert layout_at(str(path)).unread_at(str(path)) == []
    first, *later = sorted((path / "orders-0").glob("*.log"))
    for file in (path / "orders-0").glob(f"{first.stem}.*"):
        file.unlink()
    (path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 0\n")
    (place,) = layout_at(str(path)).unread_at(str(path))
    assert place.what == f"offsets 0..{int(later[0].stem) - 1} of orders-0 are in remote (tiered) storage"


def test_a_queue_of_rocketmq_that_lost_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its messages are in the commit log still: not sound, and named. A store of DLedger is known as RocketMQ's."""
    path, _ = copy("rocketmq", tmp_path / "store")
    shutil.rmtree(path / "consumequeue" / "TopicA" / "1")
    code, seen = run_json(capsys, "verify", str(path))
    assert code == 1
    (finding,) = [each for each in seen["damage"] if each["kind"] == "missing"]
    assert "holds 10 messages of TopicA-1" in finding["detail"] and (
        finding["first_seq"],
        finding["next_seq"],
    ) == (0, 10)
    (path / "commitlog").rename(path / "dledger-n0")
    assert headrace.detect(str(path)) == "rocketmq"
    assert run(["verify", str(path)]) == 2 and "DLedger's is not read here" in capsys.readouterr().err


def test_a_cluster_s_own_files_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = copy("jetstream", tmp_path / "store")
    raft = path / "jetstream" / "$SYS" / "_js_" / "S-R3F-abc" / "msgs"
    raft.mkdir(parents=True)
    (raft / "1.blk").write_bytes(BYTES)
    assert run(["verify", str(path)]) == 0
    assert "_js_: not read (1,234 bytes" in capsys.readouterr().out


def test_a_real_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RabbitMQ 3.10.8 with one queue of every kind."""
    kinds = {
        "quorum": string_table({"x-queue-type": "quorum"}),
        "stream": string_table({"x-queue-type": "stream"}),
        "second": string_table({"x-queue-version": 2}),
    }
    with RabbitServer(tmp_path / "node") as server:
        client = server.client()
        client.declare("plain")
        client.publish("plain", [b"read"])
        for queue, arguments in kinds.items():
            client.declare(queue, arguments)
            client.publish(queue, [b"not read" * 50] * 20)
        client.close()
        server.stop()
        path = server.data_dir
    code, seen = run_json(capsys, "verify", str(path))
    assert code == 1 and [log["name"] for log in seen["logs"]] == ["plain"] and not seen["damage"]
    left_out = {place["what"]: place["file_bytes"] for place in seen["unread"] if place["may_hold_messages"]}
    assert list(left_out) == ["quorum queues", "streams", "a classic queue of version 2: second"]
    assert all(size > 8000 for size in left_out.values())
    assert run(["convert", str(path), str(tmp_path / "out"), "--to", "jetstream"]) == 1
    with (
        headrace.open(str(path), "rw") as volume,
        pytest.raises(AlreadyExists, match="second is a classic queue of version 2"),
    ):
        volume.create("second")
    assert layout_named("rabbitmq").product == "RabbitMQ"
