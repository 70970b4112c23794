"""Promises 4 and 5 in the other layouts when the files that were written last are gone: reported, positions not reused.

The writer is killed (everything written is there) or stops cleanly; then files go. `tests/crash/test_lost_blocks.py` has
the same for JetStream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace._core import Batch, Disk
from headrace.layouts.base import Log, Volume
from headrace.layouts.layout import LayoutOptions, OpenRequest
from headrace.layouts.registry import layout_named

PATH = "/store/logs"
MESSAGES = 200
EACH = 10


@dataclass
class Case:
    """A layout, small enough that the messages fill several files, and a way to lose some of them."""

    layout: str
    log: str
    lose: Callable[[Disk], None]
    options: dict[str, Any] = field(default_factory=dict)
    headers: str = "nats"
    reported_again: bool = False
    """The loss shows in what is there, as long as nobody records it."""

    def open(self, disk: Disk, mode: str = "r", *, create: bool = False) -> Volume:
        where = layout_named(self.layout)
        options: LayoutOptions = where.options.of(self.options)
        return where.open(PATH, OpenRequest(mode=mode, create=create, options=options, disk=disk))

    def write(self, *, clean: bool) -> Disk:
        disk = Disk.memory()
        volume = self.open(disk, "rw", create=True)
        log = volume.create(self.log)
        for first in range(0, MESSAGES, EACH):
            data = [b"%05d" % n + b"x" * 90 for n in range(first, first + EACH)]
            volume.commit([log.append(Batch.build(self.subject, data, header_codec=self.headers))])
        if clean:
            volume.close()
        return disk.crash(0, "all")

    @property
    def subject(self) -> str:
        return "" if self.layout == "nats_streaming" else "t"


def _files(disk: Disk, directory: str, ending: str) -> list[str]:
    return sorted(f"{directory}/{name}" for name, _, _ in disk.list(directory) if name.endswith(ending))


def _remove(*paths: str) -> Callable[[Disk], None]:
    """The last file of each directory with that ending."""

    def lose(disk: Disk) -> None:
        for path in paths:
            directory, _, ending = path.rpartition("/*")
            found = _files(disk, directory, ending)
            numbers = {
                file: int("".join(c for c in file.rsplit("/", 1)[-1] if c.isdigit()) or 0) for file in found
            }
            disk.remove_file(max(found, key=lambda file: numbers[file]))

    return lose


def _empty(path: str) -> Callable[[Disk], None]:
    def lose(disk: Disk) -> None:
        directory, _, ending = path.rpartition("/*")
        disk.open(_files(disk, directory, ending)[-1], "write").set_len(0)

    return lose


def _remove_all(directory: str, *endings: str) -> Callable[[Disk], None]:
    def lose(disk: Disk) -> None:
        for ending in endings:
            for file in _files(disk, directory, ending):
                disk.remove_file(file)

    return lose


KAFKA = f"{PATH}/t-0"
KAFKA_SMALL = {"segment_bytes": 3000, "batch_size": 300, "index_interval_bytes": 200}
STREAMING = f"{PATH}/t"
STREAMING_SMALL = {"file_slice_max_msgs": 30}
ROCKET = f"{PATH}/commitlog"
ROCKET_SMALL = {"mapped_file_size_commit_log": 8192, "mapped_file_size_consume_queue": 400}
VHOST = f"{PATH}/msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L"


def _rabbit_queue(disk: Disk) -> str:
    (name,) = [name for name, _, _ in disk.list(f"{VHOST}/queues")]
    return f"{VHOST}/queues/{name}"


def _rabbit(*endings: str) -> Callable[[Disk], None]:
    def lose(disk: Disk) -> None:
        for ending in endings:
            for file in _files(disk, _rabbit_queue(disk), ending):
                disk.remove_file(file)

    return lose


def _rabbit_first_index(disk: Disk) -> None:
    disk.remove_file(_files(disk, _rabbit_queue(disk), ".idx")[0])


CASES = {
    "kafka, segment removed": Case("kafka", "t-0", _remove(f"{KAFKA}/*.log"), KAFKA_SMALL, "kafka"),
    "kafka, segment emptied": Case("kafka", "t-0", _empty(f"{KAFKA}/*.log"), KAFKA_SMALL, "kafka"),
    "kafka, all segments removed": Case("kafka", "t-0", _remove_all(KAFKA, ".log"), KAFKA_SMALL, "kafka"),
    "nats streaming, slice removed": Case(
        "nats_streaming", "t", _remove(f"{STREAMING}/*.dat", f"{STREAMING}/*.idx"), STREAMING_SMALL
    ),
    "nats streaming, all slices removed": Case(
        "nats_streaming", "t", _remove_all(STREAMING, ".dat", ".idx"), STREAMING_SMALL
    ),
    "rocketmq, file removed": Case("rocketmq", "t-0", _remove(f"{ROCKET}/*"), ROCKET_SMALL),
    "rocketmq, file emptied": Case("rocketmq", "t-0", _empty(f"{ROCKET}/*"), ROCKET_SMALL),
    "rocketmq, all files removed": Case("rocketmq", "t-0", _remove_all(ROCKET, ""), ROCKET_SMALL),
    "rabbitmq, index removed": Case("rabbitmq", "t", _rabbit(".idx", ".jif")),
    "rabbitmq, store file removed": Case(
        "rabbitmq",
        "t",
        _remove(f"{VHOST}/msg_store_persistent/*.rdq"),
        {"queue_index_embed_msgs_below": 0, "msg_store_file_size_limit": 4000},
        reported_again=True,
    ),
    "rabbitmq, first index removed": Case(
        "rabbitmq",
        "t",
        _rabbit_first_index,
        {"queue_index_segment_entry_count": 64, "queue_index_max_journal_entries": 50},
    ),
}


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("name", CASES)
def test_the_files_written_last_are_gone(name: str, clean: bool) -> None:
    case = CASES[name]
    disk = case.write(clean=clean)
    assert layout_named(case.layout).verify(PATH, disk=disk).sound
    acknowledged = _last(case.open(disk.crash(0, "all")).open(case.log))
    case.lose(disk)

    reader = case.open(disk.crash(0, "all"))
    survivors = [record.data for record in reader.open(case.log)]
    assert 0 <= len(survivors) < MESSAGES
    assert [each for each in reader.damage() if each.kind == "missing"], "the reader says nothing"
    for view in (
        layout_named(case.layout).verify(PATH, disk=disk),
        layout_named(case.layout).inspect(PATH, disk=disk),
    ):
        assert not view.sound
        assert [each for each in view.damage if each.kind == "missing"]

    volume = case.open(disk, "rw")
    log = volume.open(case.log)
    assert [each for each in volume.damage() if each.kind == "missing"], "the writer says nothing"
    assert [record.data for record in log] == survivors
    ticket = log.append(Batch.build(case.subject, [b"after"], header_codec=case.headers))
    volume.commit([ticket])
    assert ticket.first > acknowledged, "a position that was acknowledged is given out again"
    volume.close()
    after = disk.crash(0, "all")
    found = [record.data for record in case.open(after).open(case.log)]
    assert found == [*survivors, b"after"]
    again = [each for each in case.open(after, "rw").damage() if each.kind == "missing"]
    assert bool(again) == case.reported_again


def _last(log: Log) -> int:
    return [record.position for record in log][-1]
