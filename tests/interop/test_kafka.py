"""Kafka 4.3.1 both ways: its dump tool and its broker take what we write, we take what it writes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace._core import Batch, Disk
from headrace.errors import StoreLocked
from headrace.layouts.kafka import checkpoints
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.volume import KafkaVolume
from headrace.record import format_kafka_headers
from tests.support.kafka import TOOLS, Broker, Dumped, dump, rows, run_tool

TOPIC = "orders"
LOG = f"{TOPIC}-0"
SMALL = {"segment_bytes": 6000, "batch_size": 900, "index_interval_bytes": 400}


def numbered(first: int, count: int, header_block: bytes | None = None) -> Batch:
    data = [b"value-%05d" % n for n in range(first, first + count)]
    times = [1_700_000_000_000_000_000 + n * 1_000_000_000 for n in range(first, first + count)]
    blocks = [header_block] * count if header_block else None
    return Batch.build(
        "t", data, blocks, times, keys=[b"k%d" % (n % 9) for n in range(count)], header_codec="kafka"
    )


def test_dump_log_segments(tmp_path: Path) -> None:
    """Every format and codec in one volume; records counted, indexes checked by the broker's own tool."""
    wanted: dict[str, int] = {}
    block = format_kafka_headers([("h", b"x"), ("h", None)])
    with KafkaVolume(str(tmp_path / "logs"), mode="rw", create=True, options=KafkaOptions(**SMALL)) as volume:
        for version, codecs in (
            ("0.9.0", ("producer", "gzip", "snappy", "lz4")),
            ("0.10.1", ("producer", "gzip", "snappy", "lz4")),
            ("3.0", ("producer", "gzip", "snappy", "lz4", "zstd")),
        ):
            for codec in codecs:
                name = f"f{version}-{codec}-0"
                log = volume.create(name, message_format_version=version, compression_type=codec)
                for first in range(0, 600, 60):
                    log.append(numbered(first, 60, block if version == "3.0" else None))
                wanted[name] = 600
    # One run of the tool for all: starting a JVM is what takes time.
    everything = tmp_path / "everything"
    everything.mkdir()
    for at, name in enumerate(sorted(wanted)):
        for path in (tmp_path / "logs" / name).iterdir():
            if path.suffix in (".log", ".index", ".timeindex"):
                (everything / str(at)).mkdir(exist_ok=True)
                shutil.copy(path, everything / str(at) / path.name)
    found = dump_many(sorted(everything.iterdir()))
    assert found.complaints == []
    assert sorted(found.records) == sorted(list(range(600)) * len(wanted))


def dump_many(folders: list[Path]) -> Dumped:
    files = [str(path) for folder in folders for path in sorted(folder.iterdir())]
    args = ("--deep-iteration", "--verify-index-only", "--files", ",".join(files))
    return Dumped(run_tool(f"{TOOLS}.DumpLogSegments", *args))


@pytest.fixture(scope="module")
def made_by_the_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A log directory of a real broker with one topic and 200 records, cleanly stopped."""
    folder = tmp_path_factory.mktemp("kafka") / "logs"
    with Broker(folder) as broker:
        broker.create_topic(TOPIC, internal_segment_bytes=3000, index_interval_bytes=400)
        broker.produce(TOPIC, [f"broker-{n:05d}" for n in range(200)])
    return folder


def test_both_ways(made_by_the_broker: Path, tmp_path: Path) -> None:
    """The broker writes, we read and append, the broker serves all of it and appends, we read that."""
    folder = tmp_path / "logs"
    shutil.copytree(made_by_the_broker, folder)
    with KafkaVolume(str(folder)) as volume:
        assert volume.clean
        first = [r.data for r in volume.open(LOG)]
        assert first == [b"broker-%05d" % n for n in range(200)]
        assert volume.open(LOG).damage() == []
    with KafkaVolume(str(folder), mode="rw", options=KafkaOptions(**SMALL)) as volume:
        log = volume.open(LOG)
        for at in range(200, 800, 75):
            volume.commit([log.append(numbered(at, 75))])
        log.roll(900)  # a hole, as recovery would leave one
        volume.commit([log.append(numbered(900, 10))])
        ours = rows(log)
    assert dump(folder / LOG).complaints == []
    with Broker(folder) as broker:
        served = broker.consume(TOPIC, len(ours))
        assert [(offset, value.encode()) for offset, value in served] == [(r[0], r[3]) for r in ours]
        broker.produce(TOPIC, ["after"] * 5)
        with pytest.raises(StoreLocked, match="broker"):
            KafkaVolume(str(folder), mode="rw")
        with KafkaVolume(str(folder)) as beside:
            assert rows(beside.open(LOG))[: len(ours)] == ours
            assert beside.open(LOG).damage() == []
    with KafkaVolume(str(folder)) as volume:
        again = rows(volume.open(LOG))
        assert again[: len(ours)] == ours
        assert [(r[0], r[3]) for r in again[len(ours) :]] == [(910 + n, b"after") for n in range(5)]


def test_what_recovery_leaves_is_served(made_by_the_broker: Path, tmp_path: Path) -> None:
    """A bad batch in the first segment: we take it out, the broker serves everything else, a folder of ours beside."""
    folder = tmp_path / "logs"
    shutil.copytree(made_by_the_broker, folder)
    (folder / checkpoints.CLEAN).unlink()
    (folder / checkpoints.RECOVERY_POINT).unlink()
    log_file = min((folder / LOG).glob("*.log"))
    Disk.real().flip_bit(str(log_file), 100, 2)
    with KafkaVolume(str(folder), mode="rw", options=KafkaOptions(**SMALL), maintenance=False) as volume:
        log = volume.open(LOG)
        kept = rows(log)
        [finding] = log.damage()
        assert 0 < 200 - len(kept) == (finding.next_seq or 0) - (finding.first_seq or 0)
        for name in volume.logs():
            volume.open(name)
        volume.commit([log.append(headrace.batch("t", [b"next"]))])
        kept = rows(log)
    assert (folder / LOG / "headrace" / "damaged").is_dir() and (folder / checkpoints.CLEAN).exists()
    assert dump(folder / LOG).complaints == []
    with Broker(folder) as broker:
        served = broker.consume(TOPIC, len(kept))
        assert [(offset, value.encode()) for offset, value in served] == [(r[0], r[3]) for r in kept]
