"""Writing: every format and codec, rolls, lookups, frames, retention, checkpoints, options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace._core import Batch, Disk
from headrace.errors import AlreadyExists, BadInput, StoreLocked
from headrace.layouts.base import Frames
from headrace.layouts.kafka import checkpoints
from headrace.layouts.kafka.log import KafkaLog
from headrace.layouts.kafka.options import KafkaOptions, format_of
from headrace.layouts.kafka.retention import explain
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.record import format_kafka_headers
from headrace.testing import FakeClock
from tests.support.kafka import rows

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def make(first: int, count: int, *, headers: bool = True, size: int = 40, step_ms: int = 1000) -> Batch:
    """Messages with keys, nulls, empties, headers; times a second apart."""
    data = [
        None if n % 11 == 3 else b"" if n % 11 == 4 else b"%06d|" % n + b"v" * (n % size)
        for n in range(first, first + count)
    ]
    keys = [
        None if n % 5 == 0 else b"" if n % 5 == 1 else b"key-%d" % (n % 7)
        for n in range(first, first + count)
    ]
    blocks = [
        format_kafka_headers([("a", b"1"), ("n", None), ("a", b"\xff")]) if headers and n % 3 == 0 else None
        for n in range(first, first + count)
    ]
    times = [START_NS + n * step_ms * MS for n in range(first, first + count)]
    return Batch.build("t", data, blocks, times, keys=keys, header_codec="kafka")


def opened(path: Path, disk: Disk | None = None, **options: Any) -> KafkaVolume:
    return KafkaVolume(
        str(path), mode="rw", create=True, options=KafkaOptions(**options), disk=disk, maintenance=False
    )


def content(batches: list[Batch]) -> list[tuple[Any, ...]]:
    return [(r.time_ns, r.key, r.data, r.headers) for batch in batches for r in batch]


def held(log: KafkaLog) -> list[tuple[Any, ...]]:
    return [(r.time_ns, r.key, r.data, r.headers) for r in log]


@pytest.mark.parametrize("codec", ["producer", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("version", ["0.9.0", "0.10.1", "3.0-IV1"])
def test_formats_and_codecs(version: str, codec: str, tmp_path: Path) -> None:
    fmt = format_of(version)
    if fmt < 2 and codec == "zstd":
        with pytest.raises(BadInput, match="zstd needs"):
            opened(tmp_path, message_format_version=version, compression_type=codec)
        return
    batches = [make(n, 50, headers=fmt == 2) for n in range(0, 400, 50)]
    with opened(
        tmp_path, message_format_version=version, compression_type=codec, segment_bytes=4000, batch_size=1000
    ) as volume:
        log = volume.create("orders-0")
        for n, batch in enumerate(batches):
            ticket = log.append(batch)
            assert (ticket.first, ticket.next) == (n * 50, n * 50 + 50)
            volume.commit([ticket])
        assert len(log.segments) > 1
        assert [r.position for r in log] == list(range(400))
    with KafkaVolume(str(tmp_path)) as volume:
        wanted = content(batches)
        if fmt == 0:
            wanted = [(0, *rest) for _, *rest in wanted]
        assert held(volume.open("orders-0")) == wanted
        assert volume.open("orders-0").damage() == []


def test_headers_of_nats_become_kafkas(tmp_path: Path) -> None:
    block = b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n"
    with opened(tmp_path) as volume:
        log = volume.create("o-0")
        log.append(headrace.batch("s", [b"x"], [block]))
        [record] = log
        assert record.header_map == {"A": ["1", "3"], "B": ["2"]}
        with pytest.raises(BadInput, match="header block"):
            log.append(Batch.build("s", [b"x"], [b"\x05\xff"], header_codec="kafka"))
        with pytest.raises(BadInput, match="no place for headers"):
            volume.create("old-0", message_format_version="0.10").append(headrace.batch("s", [b"x"], [block]))


def test_the_documents_example(tmp_path: Path) -> None:
    """Segments from 0, 368770 and 737338 (named by their first offset); the message 368776 by two searches and a scan."""
    with opened(tmp_path, index_interval_bytes=0, batch_size=0) as volume:
        log = volume.create("report-0")
        for base in (0, 368_770, 737_338):
            count = 8
            batch = Batch.build(
                "r",
                [b"m%d" % (base + n) for n in range(count)],
                positions=[base + n for n in range(count)],
                header_codec="kafka",
            )
            if base:
                log.roll(base)
            log.append(batch, keep_positions=True)
        names = sorted(path.name for path in (tmp_path / "report-0").glob("*.log"))
        assert names == [f"{base:020d}.log" for base in (0, 368_770, 737_338)]
        base, position, scanned = log.lookup(368_776)
        assert base == 368_770 and position > 0 and scanned == 0
        assert log.read(368_776, max_msgs=1)[0].data == b"m368776"
        # Relative offsets count from 0; the first batch has no entry, each later one its last offset and position.
        index = (tmp_path / "report-0" / f"{368_770:020d}.index").read_bytes()
        entries = [(index[at : at + 4], index[at + 4 : at + 8]) for at in range(0, len(index), 8)]
        assert [int.from_bytes(offset, "big") for offset, _ in entries] == list(range(1, 8))
        assert position == int.from_bytes(entries[5][1], "big")


def test_lookup_agrees_with_a_linear_scan(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=20_000, batch_size=700, index_interval_bytes=1500) as volume:
        log = volume.create("o-0")
        for n in range(0, 2000, 100):
            log.append(make(n, 100))
        for writer in (True, False):
            if not writer:
                volume.close()
            with KafkaVolume(str(tmp_path)) as reading:
                source = log if writer else reading.open("o-0")
                for offset in range(0, 2000, 37):
                    assert source.read(offset, max_msgs=1)[0].position == offset
                    base, _position, scanned = source.lookup(offset)
                    assert base <= offset and scanned <= 4


def test_rolls(tmp_path: Path) -> None:
    """By time (that of messages), by full index, by offsets beyond 32 bits; each with a snapshot at its base."""
    with opened(tmp_path, segment_ms=60_000) as volume:
        log = volume.create("time-0")
        for n in range(30):
            log.append(make(n, 1, step_ms=7000))
        assert [s.base for s in log.segments] == [0, 9, 18, 27], "63 s after the first, as the broker"
        index = volume.create("index-0", segment_index_bytes=40, index_interval_bytes=0, batch_size=0)
        for n in range(30):
            index.append(make(n, 1))
        assert len(index.segments) > 5
        far = volume.create("far-0")
        far.append(make(0, 1))
        far.append(Batch.build("f", [b"x"], positions=[2**31 + 5], header_codec="kafka"), keep_positions=True)
        assert [s.base for s in far.segments] == [0, 2**31 + 5]
        assert [r.position for r in far] == [0, 2**31 + 5]
        bases = {int(p.name[:20]) for p in (tmp_path / "time-0").glob("*.snapshot")}
        assert bases == {9, 18, 27}


def test_frames_pass_through(tmp_path: Path) -> None:
    with opened(tmp_path, compression_type="zstd", batch_size=500) as volume:
        source, target = volume.create("a-0"), volume.create("b-0", segment_bytes=2000)
        source.append(make(0, 300))
        position, copied = 0, b""
        while (frames := source.read_frames(position, max_bytes=1500)).data:
            target.append_frames(frames)
            position, copied = frames.next, copied + frames.data
        assert copied == (tmp_path / "a-0" / f"{0:020d}.log").read_bytes()
        assert rows(target) == rows(source) and len(target.segments) > 1
        kept = volume.create("c-0")
        kept.append_frames(source.read_frames(120), keep_positions=True)
        assert kept.state().first_seq <= 120 and [r.position for r in kept][-1] == 299
        bent = bytearray(frames.data or source.read_frames(0).data)
        bent[70] ^= 1
        with pytest.raises(BadInput, match="checksum"):
            target.append_frames(Frames("kafka", bytes(bent), 0, 1, 1))
        with pytest.raises(BadInput, match="encoding"):
            target.append_frames(Frames("amqp", b"", 0, 1, 1))


def test_retention_and_log_start(tmp_path: Path) -> None:
    clock = FakeClock(START_NS + 2000 * 1000 * MS)
    with KafkaVolume(
        str(tmp_path), mode="rw", create=True, clock=clock, maintenance=False,
        options=KafkaOptions(segment_bytes=3000, retention_bytes=7000, batch_size=800, file_delete_delay_ms=1000),
    ) as volume:  # fmt: skip
        log = volume.create("o-0")
        for n in range(0, 600, 30):
            log.append(make(n, 30))
        before, sizes = len(log.segments), [segment.size for segment in log.segments]
        assert log.apply_retention() > 0
        kept = sum(segment.size for segment in log.segments)
        assert 7000 <= kept <= 7000 + max(sizes), "at least retention.bytes stay"
        gone = list((tmp_path / "o-0").glob("*.deleted"))
        assert gone and len(log.segments) < before
        clock.advance(2)
        log.tick(clock(), 10**9)
        assert not list((tmp_path / "o-0").glob("*.deleted"))
        first = log.state().first_seq
        assert next(r.position for r in log) == first == log.segments[0].base
        assert log.drop_front(first + 7) == 7
        assert log.read(0, 1)[0].position == first + 7
        assert checkpoints.read_offsets(Disk.real(), f"{tmp_path}/{checkpoints.LOG_START}") == {
            "o-0": first + 7
        }
        assert len(explain(log)) == len(log.segments)
        aged = volume.create("old-0", retention_ms=100_000, segment_bytes=2000)
        for n in range(1500, 2000, 20):
            aged.append(make(n, 20))
        assert aged.apply_retention() > 0
        newest = [aged.summary(at, aged.segments).max_time_ms for at in range(len(aged.segments))]
        assert all(clock() // MS - ms <= 100_000 for ms in newest)
        end = aged.next
        clock.advance(10_000)
        aged.apply_retention()
        assert aged.state().messages == 0 and aged.next == end, "the active segment goes too; offsets go on"
        aged.append(make(0, 1))
        assert [r.position for r in aged] == [end]
    with KafkaVolume(str(tmp_path)) as volume:
        assert volume.open("o-0").state().first_seq == first + 7


def test_life_of_a_volume(tmp_path: Path) -> None:
    with opened(tmp_path) as volume:
        log = volume.create("o-0", segment_bytes=2000)
        assert volume.create("o-0", segment_bytes=2000) is log
        with pytest.raises(AlreadyExists):
            volume.create("o-0", segment_bytes=3000)
        with pytest.raises(BadInput, match="unknown option"):
            volume.create("p-0", segment_byte=1)
        other = volume.create("o-1")
        topic = {checkpoints.read_topic_id(Disk.real(), f"{tmp_path}/o-{n}") for n in (0, 1)}
        assert len(topic) == 1, "partitions of a topic share its id"
        log.append(make(0, 100))
        other.append(make(0, 3))
        with pytest.raises(StoreLocked):
            opened(tmp_path)
        assert not (tmp_path / checkpoints.CLEAN).exists()
    assert (tmp_path / checkpoints.CLEAN).exists()
    assert checkpoints.read_offsets(Disk.real(), f"{tmp_path}/{checkpoints.RECOVERY_POINT}") == {
        "o-0": 100,
        "o-1": 3,
    }
    with opened(tmp_path) as volume:
        assert volume.open("o-0").options.segment_bytes == 2000
        assert volume.open("o-0").append(make(100, 1)).first == 100
        volume.delete("o-1")
        assert volume.logs() == ["o-0"]
        assert checkpoints.read_offsets(Disk.real(), f"{tmp_path}/{checkpoints.RECOVERY_POINT}") == {
            "o-0": 100
        }
        assert volume.create("o-1").append(make(0, 1)).first == 0
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["o-0", "o-1"]


def test_options_by_either_name() -> None:
    both = KafkaOptions.of({"segment.bytes": "1000", "retention_ms": 5})
    assert (both.segment_bytes, both.retention_ms) == (1000, 5)
    for bad in ({"segment.bytes": "x"}, {"nothing": 1}, {"compression.type": "brotli"}):
        with pytest.raises(BadInput):
            KafkaOptions.of(bad)
    with pytest.raises(BadInput):
        KafkaOptions(cleanup_policy="keep").checked()


def test_a_message_too_large(tmp_path: Path) -> None:
    with opened(tmp_path, max_message_bytes=1000) as volume:
        log = volume.create("o-0")
        with pytest.raises(BadInput, match=r"max\.message\.bytes"):
            log.append(headrace.batch("s", [os.urandom(2000)]))
        log.append(headrace.batch("s", [b"x" * 400] * 5))
        assert log.state().messages == 5
