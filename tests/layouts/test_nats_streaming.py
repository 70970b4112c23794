"""NATS Streaming's room on the real server's directories: what is read, what opening for writing does, options."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from headrace._core import Batch, Disk
from headrace.errors import (
    AlreadyExists,
    BadInput,
    Damaged,
    HeadraceError,
    KeyNeeded,
    NotFound,
    ReadOnly,
    StoreFull,
    StoreLocked,
)
from headrace.layouts.base import Predicate
from headrace.layouts.nats_streaming.advice import may_be_lost, step
from headrace.layouts.nats_streaming.layout import LAYOUT
from headrace.layouts.nats_streaming.limits import ChannelLimits, LimitTable, SliceLimits, slice_limits
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.protos import ClientInfo, SubState
from headrace.layouts.nats_streaming.volume import StreamingVolume
from headrace.testing import FakeClock
from tests.support.streaming import CASES, FOLDER, content, copy, open_rw, snapshot

SECOND = 1_000_000_000
# What can be read of each damaged case; where the real server serves less (or nothing), it stands beside.
SURVIVORS = {
    "clean": {"foo": [1, 2, 3, 4, 5], "bar.baz": [1, 2, 3], "only.sub": []},
    "slices": {"orders": [*range(4, 14)]},
    "killed": {"foo": [1, 2, 3, 4]},
    "orphan-record": {"foo": [1, 2, 3, 4]},  # the server drops 4 and gives its sequence out again
    "encrypted-aes": {"foo": [1, 2, 3, 4]},
    "encrypted-chacha": {"foo": [1, 2, 3]},
    "castagnoli": {"foo": [1, 2]},
    "clustered": {"orders": [1, 2, 3, 4, 5]},
    "truncated-tail": {"orders": [*range(4, 13)]},  # the server does not start
    "truncated-tail-middle-slice": {"orders": [4, 5, 6, 7, 8, 10, 11, 12, 13]},  # the server does not start
    "truncated-subs": {"foo": [1, 2, 3, 4, 5], "bar.baz": [1, 2, 3], "only.sub": []},  # does not start
    "truncated-clients": {"foo": [1, 2, 3, 4, 5], "bar.baz": [1, 2, 3], "only.sub": []},  # does not start
    "server-dat-truncated": {"foo": [1, 2, 3, 4, 5], "bar.baz": [1, 2, 3], "only.sub": []},  # does not start
    "server-dat-missing": {"foo": [1, 2, 3, 4, 5], "bar.baz": [1, 2, 3], "only.sub": []},
    "bad-crc-last-record": {"orders": [*range(4, 13)]},  # the server does not start
    "bad-crc-middle-record": {"orders": [4, 5, 6, 7, 8, 9, 10, 12, 13]},  # the server stops at 10 for ever
    "bad-crc-index": {"orders": [*range(4, 14)]},
    "zero-padded": {"orders": [*range(4, 14)]},
    "index-missing": {"orders": [*range(4, 14)]},
    "handmade": {"orders": [1, 2, 3, 4, 5, 6]},
}  # fmt: skip
SOUND = {
    "clean",
    "slices",
    "killed",
    "encrypted-aes",
    "encrypted-chacha",
    "castagnoli",
    "clustered",
    "zero-padded",
    "handmade",
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_reading_never_stops_and_never_writes(case: str) -> None:
    path = str(FOLDER / case)
    before = snapshot(path)
    with StreamingVolume(path, key="s3cret" if "encrypted" in case else None) as volume:
        assert {name: list(content(volume, name)) for name in volume.logs()} == SURVIVORS[case]
        for name, records in CASES[case].get("sound_records", {}).items():
            known = {(one["seq"], one["time_ns"], one["data_hex"]) for one in records}
            for record in volume.open(name) if "encrypted" not in case else []:
                assert (record.seq, record.time_ns, (record.data or b"").hex()) in known
                assert record.subject == name
        damage = [one for one in volume.damage() if one.kind != "superseded"]
        assert bool(damage) == (case not in SOUND | {"server-dat-missing"}), damage
    view = LAYOUT.verify(path, key="s3cret" if "encrypted" in case else None, threads=2)
    assert {one.name for one in view.logs} == set(SURVIVORS[case])
    found = [d for one in view.logs for d in one.damage] + view.damage
    assert {(d.file, d.offset, d.kind) for d in damage} <= {(d.file, d.offset, d.kind) for d in found}
    assert bool(view.notes) or not damage, "verify says what may be lost and the step to take"
    assert snapshot(path) == before


def test_times_replies_arrow_and_tasks() -> None:
    with StreamingVolume(str(FOLDER / "clean")) as volume:
        log = volume.open("bar.baz")
        table = log.to_arrow()
        assert table["headers"].to_pylist()[0] == [
            ("Nats-Streaming-Reply", [table["headers"][0].as_py()[0][1][0]])
        ]
        _, second, third = log
        assert second.data == b"" and second.headers is None
        assert log.seq_from_time(second.time_ns) == 2 and log.seq_from_time(third.time_ns + 1) == 4
    with StreamingVolume(str(FOLDER / "slices")) as volume:
        log = volume.open("orders")
        tasks = pickle.loads(pickle.dumps(log.scan_tasks(Predicate(first=6, next=12))))
        found = [
            record.seq
            for task in tasks
            for batch in task.batches(Predicate(first=6, next=12))
            for record in batch
        ]
        assert found == [6, 7, 8, 9, 10, 11] and len(tasks) == 3
        assert [record.seq for record in log.read(5, max_msgs=2)] == [5, 6]
        assert log.state().first_seq == 4 and log.state().last_seq == 13


def test_readers_have_what_a_conversion_needs() -> None:
    with StreamingVolume(str(FOLDER / "clean")) as volume:
        cursors = volume.open("foo").subscriptions
        assert cursors.names() == ["cli-open/dur-closed", "cli-open/dur-open", "qdur:grp"]
        queue = cursors.reader("qdur:grp")
        assert (queue.kind, queue.durable_name, queue.queue_group) == ("durable queue", "qdur", "grp")
        assert (queue.last_sent, queue.pending, queue.is_closed) == (5, (3, 4), True)
        state = cursors.state_of("cli-open/dur-open")
        assert state.delivered.stream == 5 and sorted(state.pending) == [4, 5] and state.ack_floor.stream == 3
        assert [client.id for client in volume.clients.all()] == ["cli-open"]
        with pytest.raises(NotFound, match="dur-open"):
            cursors.state_of("nobody")


def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(FOLDER / "encrypted-aes")
    with (
        StreamingVolume(path, key="wrong") as volume,
        pytest.raises(KeyNeeded, match="authentication failed"),
    ):
        content(volume, "foo")
    assert any("authentication" in p for p in LAYOUT.verify(path, key="wrong").logs[0].problems)
    assert any("encrypted" in note for note in LAYOUT.inspect(path).logs[0].notes)
    monkeypatch.setenv("NATS_STREAMING_ENCRYPTION_KEY", "s3cret")
    with StreamingVolume(path, key="wrong") as volume:
        assert content(volume, "foo")[1] == b"secret-1"


@pytest.mark.parametrize("case", sorted(set(CASES) - {"clustered", "castagnoli"}))
def test_opening_for_writing_stops_where_something_may_be_lost(case: str, tmp_path: Path) -> None:
    """By default at the first bad record, which is printed; a loss-free case opens and goes on behind its last."""
    path = copy(case, tmp_path)
    stops = {"truncated-tail", "truncated-tail-middle-slice", "truncated-subs", "truncated-clients"}
    stops |= {"server-dat-truncated", "bad-crc-last-record"}
    before = snapshot(path)
    if case in stops:
        with pytest.raises(Damaged) as caught:
            open_rw(path)
        error = caught.value
        assert (
            error.file.startswith(path) and error.remedy == f"{may_be_lost(error.file)}. {step(error.file)}"
        )
        if case != "server-dat-truncated":
            assert any("CRC 0x" in line for line in error.__notes__)
        after = snapshot(path)
        assert {name: after[name] for name in before} == before, "a refused opening changes no file"
        return
    with open_rw(path) as volume:
        assert {name: list(content(volume, name)) for name in volume.logs()} == SURVIVORS[case]
        name = next(name for name, seqs in SURVIVORS[case].items() if seqs)
        log = volume.open(name)
        ticket = log.append(Batch.build(name, [b"next"]))
        assert ticket.first == SURVIVORS[case][name][-1] + 1
        volume.commit([ticket])
    with open_rw(path) as volume:
        assert list(content(volume, name)) == [*SURVIVORS[case][name], ticket.first]
        kinds = {d.kind for d in volume.damage()}
        assert kinds <= {"bad-record", "superseded"}, "an index that was made anew stays so"


@pytest.mark.parametrize(
    ("case", "file", "offset", "next_sequence"),
    [
        ("truncated-tail", "orders/msgs.5.dat", 4, 14),
        ("truncated-tail-middle-slice", "orders/msgs.3.dat", 80, 14),
        ("truncated-subs", "foo/subs.dat", 786, 6),
        ("truncated-clients", "clients.dat", 152, 6),
    ],
)
def test_truncate_bad_eof(case: str, file: str, offset: int, next_sequence: int, tmp_path: Path) -> None:
    """Cut at the bad record, the bytes kept aside; the lost sequence is not given out again; not twice in a row."""
    path = copy(case, tmp_path)
    before = snapshot(path)
    name = "orders" if "tail" in case else "foo"
    with open_rw(path, file_truncate_bad_eof=True) as volume:
        assert {name: list(content(volume, name)) for name in volume.logs()} == SURVIVORS[case]
        assert [d.kind for d in volume.damage()] == ["truncated"]
    after = snapshot(path)
    side = [name for name in after if ".cut-" in name]
    assert len(side) == 1 and after[side[0]] == before[file][offset:]
    assert after[file][:offset] == before[file][:offset]
    with pytest.raises(HeadraceError, match="should not be opened consecutively"):
        open_rw(path, file_truncate_bad_eof=True)
    with open_rw(path) as volume:
        assert volume.open(name).append(Batch.build(name, [b"x"])).first == next_sequence
    open_rw(path, file_truncate_bad_eof=True).close()


def test_truncate_bad_eof_does_not_help_with_a_bad_crc(tmp_path: Path) -> None:
    path = copy("bad-crc-last-record", tmp_path)
    with pytest.raises(Damaged, match="corrupted data, expected crc to be 0x"):
        open_rw(path, file_truncate_bad_eof=True)
    with pytest.raises(BadInput, match="configuration file"):
        StreamingOptions.from_config({"file": {"truncate_bad_eof": True}})
    with open_rw(path, file_crc=False) as volume:
        assert list(content(volume, "orders")) == [*range(4, 14)]


def test_names_are_refused_before_the_disk_is_touched(tmp_path: Path) -> None:
    with open_rw(str(tmp_path / "ds")) as volume:
        for name in ("", "..", "a/b", "../x", ".a", "a.", "a..b", "a.*", ">", "a\0b", "x" * 256, "\udc80"):
            with pytest.raises(BadInput):
                volume.create(name)
        volume.create("with space")
        volume.create("foo")
        with pytest.raises(AlreadyExists, match="alreay exists"):
            volume.create("FOO")
        assert volume.logs() == ["foo", "with space"]
        with pytest.raises(NotFound, match="foo"):
            volume.open("nothing")
        with pytest.raises(StoreLocked):
            open_rw(str(tmp_path / "ds"))
    with pytest.raises(ReadOnly, match="node 'a'"):
        open_rw(copy("clustered", tmp_path))
    with pytest.raises(BadInput, match="does not match recovered value"):
        open_rw(copy("clean", tmp_path), cluster_id="other")


def test_what_has_no_place_is_refused() -> None:
    with open_rw("/s", Disk.memory()) as volume:
        log = volume.create("a")
        for batch in (
            Batch.build("b", [b"x"]),
            Batch.build("a", [b"x"], keys=[b"k"]),
            Batch.build("a", [b"x"], headers=[b"NATS/1.0\r\nA: b\r\n\r\n"]),
        ):
            with pytest.raises(BadInput, match="lossy"):
                log.append(batch)
            assert len(log.read(0)) == 0
            log.append(batch, lossy=True)
        log.commit()
        reply = b"NATS/1.0\r\nNats-Streaming-Reply: r.s\r\n\r\n"
        volume.commit([log.append(Batch.build("", [b"", b"y"], headers=[reply, None], times=[5, 0]))])
        last = [*log][-2:]
        assert [(r.subject, r.data, r.headers) for r in last] == [("a", b"", reply), ("a", b"y", None)]
        assert last[0].time_ns >= last[0].time_ns and log.state().messages == 5
        with pytest.raises(BadInput, match="single messages"):
            log.remove([1])
        with pytest.raises(BadInput, match="not above"):
            log.append(Batch.build("a", [b"x"], positions=[3]), keep_positions=True)


def test_slices_roll_before_a_message_that_finds_them_full() -> None:
    disk, clock = Disk.memory(), FakeClock()
    with open_rw("/s", disk, slice_max_msgs=3, clock=clock) as volume:
        log = volume.create("a")
        log.append(Batch.build("a", [b"%d" % n for n in range(7)]))
        log.commit()
        assert [(s.number, s.count) for s in log.slices] == [(1, 3), (2, 3), (3, 1)]
    with open_rw("/s", disk, file_slice_max_bytes="100", clock=clock) as volume:
        log = volume.open("a")
        log.append(Batch.build("a", [b"x" * 100, b"y", b"z"]))  # 60 counted bytes, so one more fits
        assert [(s.number, s.count) for s in log.slices] == [(1, 3), (2, 3), (3, 2), (4, 2)]
    with open_rw("/s", disk, slice_max_age="10s", clock=clock) as volume:
        log = volume.open("a")
        clock.advance(11)
        log.append(Batch.build("a", [b"x"]))
        assert log.slices[-1].number == 5
        log.commit()
        assert [r.seq for r in log] == [*range(1, 12)]


def test_limits_drop_the_oldest_without_an_error(tmp_path: Path) -> None:
    disk, clock = Disk.memory(), FakeClock()
    with open_rw("/s", disk, slice_max_msgs=3, max_msgs=5, clock=clock) as volume:
        log = volume.create("a")
        for n in range(1, 10):
            volume.commit([log.append(Batch.build("a", [b"%d" % n]))])
        assert [r.seq for r in log] == [5, 6, 7, 8, 9]
        assert [s.number for s in log.slices] == [2, 3]
        assert log.state().messages == 5
    with open_rw("/s", disk, slice_max_msgs=3, clock=clock) as volume:  # higher limits bring 4 back
        log = volume.open("a")
        assert [r.seq for r in log] == [4, 5, 6, 7, 8, 9]
        assert log.drop_front(8) == 4
        assert [r.seq for r in log] == [8, 9]
    with open_rw("/s", disk, clock=clock) as volume:
        assert [r.seq for r in volume.open("a")] == [8, 9]
    with open_rw("/s", disk, max_age="60s", clock=clock) as volume:
        log = volume.open("a")
        clock.advance(61)
        volume.tick()
        assert log.state().messages == 0 and log.state().first_seq == 10
    with open_rw("/s", disk, max_bytes=1, clock=clock) as volume:  # the last one stays, whatever its size
        log = volume.open("a")
        volume.commit([log.append(Batch.build("a", [b"x" * 500]))])
        assert [r.seq for r in log] == [10]


def test_channels_and_subscriptions_are_refused_with_the_servers_texts() -> None:
    clock = FakeClock()
    with open_rw("/s", Disk.memory(), max_channels=2, max_subs=1, max_inactivity="5s", clock=clock) as volume:
        log = volume.create("a")
        volume.create("b")
        with pytest.raises(StoreFull, match=r"^too many channels$"):
            volume.create("c")
        log.subscriptions.create(SubState(client_id="x", inbox="i"))
        with pytest.raises(StoreFull, match=r"^too many subscriptions per channel$"):
            log.subscriptions.create(SubState(client_id="y", inbox="i"))
        volume.commit([log.append(Batch.build("a", [b"1"]))])
        clock.advance(6)
        volume.tick()  # b is idle and has no subscriber, a has one
        assert volume.logs() == ["a"]
        volume.create("c")


def test_wildcard_limits_inherit_from_their_own_match_list() -> None:
    table = LimitTable(
        StreamingOptions.of(
            {
                "max_msgs": 1000,
                "channels": {
                    ">": {"max_msgs": 900, "max_bytes": 9},
                    "*.bar": {"max_subs": 7, "max_age": "1h"},
                    "foo.>": {"max_msgs": 0},
                    "foo.bar": {"mb": "1KB"},
                },
            }
        )
    )
    assert table.of("foo.bar") == ChannelLimits(1000, 0, 1024, 0, 0)
    assert table.of("x.bar") == ChannelLimits(7, 900, 9, 3600 * SECOND, 0)
    assert table.of("y") == ChannelLimits(1000, 900, 9, 0, 0)
    with pytest.raises(BadInput, match="invalid channel name"):
        LimitTable(StreamingOptions.of({"channels": {"a/b": {}}}))
    with pytest.raises(BadInput, match=r"too many channels defined \(2\)"):
        LimitTable(StreamingOptions.of({"mc": 1, "channels": {"a": {}, "b": {}, "c.*": {}}}))


def test_automatic_slice_limits_need_all_three_to_be_zero() -> None:
    limits = ChannelLimits(max_msgs=10, max_bytes=3, max_age=2 * SECOND)
    assert slice_limits(StreamingOptions(), limits) == SliceLimits(0, 64 << 20, 0)
    automatic = StreamingOptions.of({"file_slice_max_bytes": 0})
    assert slice_limits(automatic, limits) == SliceLimits(2, 1, SECOND)
    assert slice_limits(automatic, ChannelLimits()) == SliceLimits(0, 0, 0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"compact_frag": 0}, "compact fragmentation value must at least be 1"),
        ({"file_compact_interval": 0}, "compact interval value must at least be 1 seconds"),
        ({"file_crc_poly": 0}, "crc polynomial should be between 1 and 4294967295"),
        ({"file_slice_max_msgs": -1}, "slice max values must be positive numbers"),
        ({"fds_limit": -1}, "file descriptor limit must be a positive number"),
        ({"parallel_recovery": 0}, "parallel recovery value must be at least 1"),
        ({"max_msgs": -1}, r"max messages limit cannot be negative \(-1\)"),
        ({"nothing": 1}, "unknown option 'nothing'"),
        ({"file_sync": "perhaps"}, "neither true nor false"),
        ({"slice_max_bytes": "many"}, "is not a size"),
    ],
)
def test_wrong_options(given: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        StreamingOptions.of(given)


def test_options_in_every_spelling() -> None:
    made = StreamingOptions.of(
        {"file": {"slice_size": "2k", "sync": "false"}, "limits": {"mb": "2KB", "max_age": "1m"}, "crc": "no"}
    )
    assert made.file_slice_max_bytes == 2000 and made.max_bytes == 2048 and made.max_age == 60 * SECOND
    assert not made.file_sync and not made.file_crc
    with open_rw("/s", Disk.memory(), file_sync=False) as volume:
        assert volume.durability == "interval"


def test_encrypted_writing() -> None:
    disk = Disk.memory()
    for cipher in ("AES", "CHACHA"):
        with open_rw("/s", disk, encrypt=True, encryption_cipher=cipher, encryption_key="k") as volume:
            log = volume.create("a")
            volume.commit([log.append(Batch.build("a", [b"one", b"", b"three"]))])
    with StreamingVolume("/s", disk=disk, key="k") as volume:
        assert [r.data for r in volume.open("a")] == [b"one", b"", b"three"] * 2
    with StreamingVolume("/s", disk=disk) as volume:
        assert [r.data[:1] for r in volume.open("a") if r.data] == [b"\1", b"\1", b"\2", b"\2"]
    with (
        pytest.raises(BadInput, match="encryption key required"),
        open_rw("/s", disk, encrypt=True) as volume,
    ):
        volume.open("a").append(Batch.build("a", [b"x"]))


def test_clients_and_subscriptions_survive_and_are_compacted() -> None:
    disk = Disk.memory()
    small = {"compact_min_size": 0, "compact_interval": 1}
    with open_rw("/s", disk, **small) as volume:
        for n in range(20):
            volume.clients.add(ClientInfo(id=f"c{n}", heartbeat_inbox="h", conn_id=b"x", protocol=1))
        for n in range(19):
            volume.clients.remove(f"c{n}")
        log = volume.create("a")
        volume.commit([log.append(Batch.build("a", [b"m"] * 100))])
        subs = log.subscriptions
        one = subs.create(
            SubState(client_id="c19", inbox="i", durable_name="d", is_durable=True, ack_wait_s=3)
        )
        two = subs.create(SubState(client_id="c19", inbox="j", queue_group="d:g", is_durable=True))
        subs.sent(one, range(1, 101))
        subs.sent(two, [7])
        subs.acked(one, [*range(1, 99), 500])
        subs.update(subs.get(two).state.with_(client_id="", last_sent=7))
        subs.commit()
        subs_file = disk.entry("/s/a/subs.dat")
        assert subs_file is not None and subs_file.size < 2000, "acks were compacted away"
    clients = disk.entry("/s/clients.dat")
    assert clients is not None and clients.size < 400
    with open_rw("/s", disk, **small) as volume:
        assert [client.id for client in volume.clients.all()] == ["c19"]
        readers = {reader.name: reader for reader in volume.open("a").subscriptions.readers()}
        assert readers["c19/d"].pending == (99, 100) and readers["c19/d"].last_sent == 100
        assert readers["d:g"].pending == (7,) and readers["d:g"].is_closed
        volume.open("a").subscriptions.delete(one)
    with StreamingVolume("/s", disk=disk) as volume:
        assert volume.open("a").subscriptions.names() == ["d:g"]


def test_archive_script(tmp_path: Path) -> None:
    """The real argv: channel, data and index of the same number, in the directory as it was given."""
    script = tmp_path / "archive.sh"
    script.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/calls"\n')
    script.chmod(0o755)
    path = str(tmp_path / "ds")
    options: dict[str, Any] = {"slice_max_msgs": 2, "max_msgs": 3, "slice_archive_script": str(script)}
    with open_rw(path, **options) as volume:
        log = volume.create("foo")
        volume.commit([log.append(Batch.build("foo", [b"%d" % n for n in range(8)]))])
    calls = (tmp_path / "calls").read_text().splitlines()
    wanted = [f"foo {path}/foo/msgs.{n}.dat.bak {path}/foo/msgs.{n}.idx.bak" for n in (1, 2)]
    assert sorted(calls) == wanted
    assert sorted(p.name for p in Path(path, "foo").glob("*.bak")) == [
        *("msgs.1.dat.bak", "msgs.1.idx.bak", "msgs.2.dat.bak", "msgs.2.idx.bak"),
    ]
    with StreamingVolume(path) as volume:
        assert list(content(volume, "foo")) == [5, 6, 7, 8]
    assert any("archived" in note for note in LAYOUT.inspect(path).logs[0].notes)


def test_a_live_writer_is_seen_and_its_tail_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "ds")
    with open_rw(path) as volume:
        log = volume.create("a")
        volume.commit([log.append(Batch.build("a", [b"1", b"2"]))])
        log.append(Batch.build("a", [b"not yet"]))
        assert [r.seq for r in log] == [1, 2], "only what is on disk is visible"
        with StreamingVolume(path) as reader:
            assert [r.seq for r in reader.open("a")] == [1, 2] and not reader.damage()
        assert "headrace" in (LAYOUT.inspect(path).writer or "")
    with StreamingVolume(path) as reader:
        assert [r.seq for r in reader.open("a")] == [1, 2, 3]


def test_quick_inspect_and_recognition(tmp_path: Path) -> None:
    disk = Disk.real()
    assert LAYOUT.recognise(str(FOLDER / "clean"), disk) and LAYOUT.recognise(
        str(FOLDER / "server-dat-missing"), disk
    )
    assert not LAYOUT.recognise(str(tmp_path), disk) and not LAYOUT.recognise(str(tmp_path / "none"), disk)
    quick = LAYOUT.inspect(str(FOLDER / "slices"), quick=True)
    assert [row.messages for row in quick.logs[0].files] == [3, 3, 3, 1] and quick.logs[0].state is None
    seen: list[tuple[int, int]] = []
    view = LAYOUT.verify(
        str(FOLDER / "clustered"), log="orders", progress=lambda done, total: seen.append((done, total))
    )
    assert view.details["cluster node"] == "a" and any("Raft" in note for note in view.notes)
    assert seen[-1][0] == seen[-1][1] > 0
    with pytest.raises(NotFound):
        LAYOUT.inspect(str(tmp_path))


def test_a_copy_has_every_place(tmp_path: Path) -> None:
    """What salvage and conversions need: sequences, times, subscriptions with what is pending, clients."""
    with StreamingVolume(str(FOLDER / "clean")) as source, open_rw(str(tmp_path / "copy")) as target:
        for name in source.logs():
            log = target.create(name)
            for batch in source.open(name).batches():
                target.commit([log.append(batch, keep_positions=True)])
            log.subscriptions.take_from(source.open(name).subscriptions)
        for client in source.clients.all():
            target.clients.add(client)
    with StreamingVolume(str(FOLDER / "clean")) as source, StreamingVolume(str(tmp_path / "copy")) as copied:
        for name in source.logs():
            assert [*copied.open(name)] == [*source.open(name)]
            readers = [
                (r.name, r.last_sent, r.pending, r.is_closed)
                for r in source.open(name).subscriptions.readers()
            ]
            again = [
                (r.name, r.last_sent, r.pending, r.is_closed)
                for r in copied.open(name).subscriptions.readers()
            ]
            assert again == readers
        assert copied.clients.all() == source.clients.all()


def test_a_copy_keeps_times_in_any_order() -> None:
    disk = Disk.memory()
    times = [50, 10, 90, 20, 70]
    with open_rw("/s", disk, slice_max_msgs=2) as volume:
        log = volume.create("a")
        batch = Batch.build("a", [b"x"] * 5, times=times, positions=[2, 4, 6, 8, 10])
        volume.commit([log.append(batch, keep_positions=True)])
        assert [r.time_ns for r in log] == times
        wanted = Predicate(since_ns=20, until_ns=71)
        assert [r.seq for b in log.batches(wanted) for r in b] == [2, 8, 10]
        volume.commit([log.append(Batch.build("a", [b"y"], times=[1]))])
        assert log.read(11)[0].time_ns == 90, "its own messages do not go back in time"
    with StreamingVolume("/s", disk=disk) as volume:
        log = volume.open("a")
        assert [r.seq for b in log.batches(wanted) for r in b] == [2, 8, 10]
        assert [(t.first, t.next) for t in log.scan_tasks(wanted)] == [(2, 5), (6, 9), (10, 12)]


def test_torn_new_files_and_a_lone_header_are_no_reason_to_stop() -> None:
    disk = Disk.memory()
    with open_rw("/s", disk) as volume:
        log = volume.create("a")
        volume.commit([log.append(Batch.build("a", [b"1", b"2"]))])
        log.subscriptions.create(SubState(client_id="c", inbox="i", is_durable=True, durable_name="d"))
    for name, data in {"msgs.2.dat": b"", "msgs.2.idx": b"\1", "msgs.3.dat": b"\1\0\0\0"}.items():
        disk.open(f"/s/a/{name}", "write").write_at(0, data)
    subs = disk.open("/s/a/subs.dat", "write")
    size = len(subs)
    subs.write_at(size, b"\x20\0\0\5abcd")
    with open_rw("/s", disk) as volume:
        assert volume.open("a").subscriptions.names() == ["c/d"]
        volume.commit([volume.open("a").append(Batch.build("a", [b"3"]))])
        volume.open("a").subscriptions.sent(1, [1])
        assert {d.kind for d in volume.damage()} == {"metadata", "index", "unsound-tail"}
    assert disk.read(f"/s/a/headrace/subs.dat.cut-{size}") == b"\x20\0\0\5abcd"
    with open_rw("/s", disk) as volume:
        assert list(content(volume, "a")) == [1, 2, 3] and not volume.damage()
        assert volume.open("a").subscriptions.reader("c/d").pending == (1,)


def test_an_orphan_whose_sequence_is_in_the_next_slice_stays_dead() -> None:
    """The server was killed between its two writes with a full slice: the sequence was given out again in the next."""
    disk = Disk.memory()
    with open_rw("/s", disk, slice_max_msgs=3) as volume:
        log = volume.create("a")
        volume.commit([log.append(Batch.build("a", [b"1", b"2", b"3", b"4"]))])
    with open_rw("/orphan", disk) as volume:
        log = volume.create("a")
        volume.commit([log.append(Batch.build("a", [b"never promised"], positions=[4]), keep_positions=True)])
    data = disk.open("/s/a/msgs.1.dat", "write")
    data.write_at(len(data), disk.read("/orphan/a/msgs.1.dat")[4:])
    index = disk.read("/s/a/msgs.1.idx")
    with StreamingVolume("/s", disk=disk) as volume:
        assert content(volume, "a") == {1: b"1", 2: b"2", 3: b"3", 4: b"4"}
    with open_rw("/s", disk, slice_max_msgs=3) as volume:
        assert content(volume, "a") == {1: b"1", 2: b"2", 3: b"3", 4: b"4"}
        assert [d.kind for d in volume.damage()] == ["superseded"] and volume.open("a").state().messages == 4
    assert disk.read("/s/a/msgs.1.idx") == index
