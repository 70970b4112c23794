"""`KafkaVolume`: a log directory (one entry of `log.dirs`), opened for reading or for writing.

    <path>/.lock  headrace.lock                 who writes: the broker's lock and ours
    <path>/<topic>-<partition>/                 the logs
    <path>/*-checkpoint  .kafka_cleanshutdown   how far each log was synced; that the last stop was clean

`path` may also name one partition's directory: then the volume shows that log only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from headrace.errors import AlreadyExists, BadInput, Damaged, NotFound
from headrace.layouts import posix_lock
from headrace.layouts.base import Damage, Durability, Ticket
from headrace.layouts.directories import make_dirs
from headrace.layouts.directory_volume import DirectoryVolume
from headrace.layouts.kafka import checkpoints, creating, offsets
from headrace.layouts.kafka._kernels import Disk
from headrace.layouts.kafka.creating import OWN_OPTIONS
from headrace.layouts.kafka.evidence import (
    CHECKPOINT_SLOT,
    KnownPartition,
    checkpoint_sum,
    marks_before,
    read_sum,
)
from headrace.layouts.kafka.log import KafkaLog
from headrace.layouts.kafka.names import has_segments, is_log_name, partition_dirs, split_name
from headrace.layouts.kafka.opening import open_for_reading, open_for_writing
from headrace.layouts.kafka.options import KafkaOptions
from headrace.layouts.kafka.readers import GroupReaders
from headrace.layouts.marks import Mark, Marks, MarksBefore, MarksBeside
from headrace.layouts.open_files import OpenFiles, SideBySide
from headrace.layouts.places import disk_given
from headrace.layouts.volume_parts import highest_marks
from headrace.randomness import random_hex

OUR_LOCK = "headrace.lock"
BROKER_LOCK = ".lock"
TICK_S = 0.25
MARKS_AGE_S = 1.0
NS_PER_MS = 1_000_000
LOG = logging.getLogger("headrace")


class KafkaVolume(DirectoryVolume):
    """An opened log directory. Use `headrace.open`."""

    layout = "kafka"

    def __init__(
        self,
        path: str,
        *,
        mode: str = "r",
        create: bool = False,
        durability: Durability = "sync",
        options: KafkaOptions | None = None,
        sync_interval_s: float = 1.0,
        disk: Disk | None = None,
        clock: Callable[[], int] = time.time_ns,
        maintenance: bool = True,
    ) -> None:
        super().__init__(mode, durability, clock)
        disk = disk_given(path, disk)
        self.path, self._only = _root(disk or Disk.real(), path)
        self.disk, self._real = disk or Disk.real(self.path), disk is None
        self.options = (options or KafkaOptions()).checked()
        self._sync_every_ns = int(sync_interval_s * 1e9)
        self._logs: dict[str, KafkaLog] = {}
        self._side_by_side = SideBySide(parallel=self._real)
        self.files = OpenFiles(self.options.open_logs_max, self._side_by_side)
        self._committed: dict[tuple[str, str], offsets.Committed] | None = None
        self._known: tuple[float, list[dict[str, int]]] | None = None
        self.clean = False
        if not create and self.disk.entry(self.path) is None:
            raise NotFound(f"{self.path}: no such directory; create one with create=True")
        self._durable: MarksBeside | Marks = MarksBeside(self.disk, self.path)
        self._before: MarksBefore | None = None
        if self.read_only:
            self.clean = self.disk.entry(f"{self.path}/{checkpoints.CLEAN}") is not None
            return
        self._take(create)
        self._checkpointed_ns = self._retained_ns = clock()
        if maintenance:
            self._start_upkeep()

    def _take(self, create: bool) -> None:
        """Lock; the marker of the last clean stop goes before anything is changed."""
        if create:
            make_dirs(self.disk, self.path)
        self._lock = self.disk.lock(f"{self.path}/{OUR_LOCK}", "headrace")
        try:
            if self._real:
                self._broker_lock = posix_lock.PosixLock(f"{self.path}/{BROKER_LOCK}", "Kafka broker")
            marker = f"{self.path}/{checkpoints.CLEAN}"
            # A new directory has nothing that a stop could have left unclean.
            self.clean = not partition_dirs(self.disk, self.path)
            if self.disk.entry(marker) is not None:
                self.clean = True
                self.disk.remove_file(marker)
                self.disk.sync_dir(self.path)
            self._before = marks_before(self.disk, self.path)
            self._durable = Marks(self.disk, self.path)
            self._durable.begin(self._before)
            self._durable.publish(CHECKPOINT_SLOT, (read_sum(self.disk, self.path), 0, 1))
        except BaseException:
            self._release()
            raise

    # Logs

    def logs(self) -> list[str]:
        """`<topic>-<partition>` of every partition, sorted by topic and number."""
        self._check_open()
        found = [self._only] if self._only else list(partition_dirs(self.disk, self.path))
        return sorted(found, key=split_name)

    def open(self, name: str) -> KafkaLog:
        """One partition; opened (and, for writing, recovered) once, shared afterwards."""
        with self._mutex:
            self._check_open()
            if name not in self._logs:
                if not is_log_name(name) or not self._exists(name):
                    known = ", ".join(self.logs()[:20]) or "none"
                    raise NotFound(f"{self.path}: no log {name!r}; there are: {known}")
                self._logs[name] = self._open(name, self.known(name), self.clean)
            return self._logs[name]

    def _open(self, name: str, known: KnownPartition, clean: bool, fresh: bool = False) -> KafkaLog:
        directory = f"{self.path}/{name}"
        options = self._options_of(directory)
        if self.read_only:
            live = self.writer_pid() is not None
            durable = self.durable_mark(name)
            opened = open_for_reading(self.disk, directory, options, known, live=live, durable=durable)
        else:
            opened = open_for_writing(self.disk, directory, options, known, clean=clean, fresh=fresh)
        log = KafkaLog(
            self.disk,
            directory,
            name,
            opened,
            options=options,
            read_only=self.read_only,
            durability=self.durability,
            clock=self.clock,
            files=self.files,
            marks=self._durable,
            groups=partial(GroupReaders, self),
        )
        for finding in log.damage():
            LOG.warning("%s: %s at byte %d: %s", finding.file, finding.kind, finding.offset, finding.detail)
        if not self.read_only and not fresh:
            log.mark = 1
            log.commit()  # names of new files, and whatever recovery left
        elif fresh:
            log.publish(0, 0, 0)
        return log

    def durable_mark(self, name: str) -> Mark | None:
        """For readers: what a writer of ours that is at work says of a log; None when there is none."""
        held = isinstance(self._durable, MarksBeside) and self.disk.lock_holder(f"{self.path}/{OUR_LOCK}")
        return self._durable.of(name) if held and isinstance(self._durable, MarksBeside) else None

    def _options_of(self, directory: str) -> KafkaOptions:
        """The volume's options under those that the log was created with."""
        path = f"{directory}/{OWN_OPTIONS}"
        if self.disk.entry(path) is None:
            return self.options
        try:
            own: dict[str, Any] = msgspec.json.decode(self.disk.read(path, 1 << 20), type=dict[str, Any])
            return KafkaOptions.of(self._given() | own).checked()
        except (msgspec.DecodeError, BadInput) as problem:
            self._damage.append(
                Damage(path, 0, 0, "metadata", f"options of this log are not used: {problem}")
            )
            return self.options

    def _given(self) -> dict[str, Any]:
        return {name: getattr(self.options, name) for name in KafkaOptions.__struct_fields__}

    def create(self, name: str, *, topic_id: str | None = None, **options: Any) -> KafkaLog:
        """A new partition (or the existing one, if its options are equal). `topic_id` as a cluster has it."""
        return self.create_many([name], topic_id=topic_id, **options)[0]

    def create_many(
        self, names: Sequence[str], *, topic_id: str | None = None, **options: Any
    ) -> list[KafkaLog]:
        """The same for many, which costs less than one by one: their syncs run side by side."""
        with self._mutex:
            self._check_open()
            self._check_writable()
            own = _ours(options)
            merged = KafkaOptions.of(self._given() | own).checked()
            absent = [name for name in dict.fromkeys(names) if not self._exists(name)]
            if absent:
                ids = creating.topic_ids(self, absent, topic_id)
                self._forget(absent)
                problems = self._side_by_side.each(
                    lambda n: creating.lay(self.disk, f"{self.path}/{n}", ids[split_name(n)[0]], own), absent
                )
                if problems:
                    raise problems[0]
                self.disk.sync_dir(self.path)
                for name in absent:
                    self._logs[name] = self._open(name, KnownPartition(), clean=True, fresh=True)
            logs = [self.open(name) for name in names]
            differing = [log.name for log in logs if log.options != merged]
            if differing:
                raise AlreadyExists(f"log {differing[0]} exists with other options")
            return logs

    def _exists(self, name: str) -> bool:
        split_name(name)
        if self._only is not None and name != self._only:
            return False
        entry = self.disk.entry(f"{self.path}/{name}")
        return entry is not None and entry.is_dir and is_log_name(name)

    def delete(self, name: str) -> None:
        """Rename the directory as the broker does (a crash leaves no half of it), then remove it."""
        with self._mutex:
            log = self.open(name)
            log.check_writable()
            del self._logs[name]
            log.close()
            if isinstance(self._durable, Marks):
                self._durable.retract(name)
            leaving = f"{self.path}/{name[:200]}.{random_hex()}-delete"
            self.disk.rename(f"{self.path}/{name}", leaving)
            self.disk.sync_dir(self.path)
            self.disk.remove_dir_all(leaving)
            self._forget([name])

    # Consumer groups

    def beside(self, options: KafkaOptions) -> KafkaVolume:
        """A reader of the same directory with other options."""
        return KafkaVolume(self.path, options=options, disk=None if self._real else self.disk)

    def committed(self) -> dict[tuple[str, str], offsets.Committed]:
        """(group, log) → the offset it committed last. What cannot be read is left out and logged."""
        found, damage = offsets.read_committed(self)
        for finding in damage:
            LOG.warning("%s: %s", finding.file, finding.detail)
        return found

    def committed_when_opened(self) -> dict[tuple[str, str], offsets.Committed]:
        """The same; read once where the volume is only read."""
        if self._committed is None or not self.read_only:
            self._committed = self.committed()
        return self._committed

    def cursors(self, name: str) -> offsets.KafkaCursors:
        """Where the groups stand that read a log, by the offsets they committed."""
        return offsets.KafkaCursors(name, self.committed())

    def write_offsets(self, group: str, positions: Mapping[str, int], *, metadata: str = "") -> None:
        """Commit for a group: log → the next offset it is to be given. Durable when it returns."""
        with self._mutex:
            self._check_open()
            self._check_writable()
            offsets.write_offsets(self, group, positions, metadata)

    # Checkpoints

    def _offsets(self, file: str) -> dict[str, int]:
        path = f"{self.path}/{file}"
        try:
            return checkpoints.read_offsets(self.disk, path)
        except Damaged as problem:
            finding = Damage(path, problem.offset, 0, "metadata", str(problem))
            if finding not in self._damage:
                self._damage.append(finding)
            return {}

    def known(self, name: str) -> KnownPartition:
        """What is said of a log. Read once for all: nobody else writes while we do, and for a reader a second ago is as
        good as now."""
        now = time.monotonic()
        if self._known is None or (self.read_only and now - self._known[0] > MARKS_AGE_S):
            self._known = (now, [self._offsets(file) for file in checkpoints.CHECKPOINTS[:3]])
            if self.read_only:
                self._before = marks_before(self.disk, self.path)
        synced = None if self._before is None else self._before.of(name)
        point, watermark, start = (max(file.get(name, 0), 0) for file in self._known[1])
        return KnownPartition(point, watermark, start, synced)

    def _forget(self, names: Sequence[str]) -> None:
        """Logs of these names begin anew: no checkpoint may say otherwise."""
        self._known, gone = None, set(names)
        for file in checkpoints.CHECKPOINTS:
            before = self._offsets(file)
            kept = {name: offset for name, offset in before.items() if name not in gone}
            if len(kept) < len(before):
                self._write_offsets(file, kept)

    def _write_offsets(self, file: str, offsets: dict[str, int]) -> None:
        """Our marks belong to the recovery points that are there now, and to those that come."""
        if file == checkpoints.RECOVERY_POINT and isinstance(self._durable, Marks):
            following = checkpoint_sum(checkpoints.offsets_text(offsets))
            self._durable.publish(CHECKPOINT_SLOT, (read_sum(self.disk, self.path), following, 1))
        checkpoints.write_offsets(self.disk, f"{self.path}/{file}", offsets)

    def write_checkpoints(self) -> None:
        """Recovery points and high watermarks of the open logs; the others' lines stay."""
        with self._mutex:
            points = {name: log.recovery_point for name, log in self._logs.items()}
        for file in (checkpoints.RECOVERY_POINT, checkpoints.HIGH_WATERMARK):
            before = self._offsets(file)
            if before | points != before or self.disk.entry(f"{self.path}/{file}") is None:
                self._write_offsets(file, before | points)

    # Durability

    def commit(self, tickets: Iterable[Ticket]) -> None:
        """Return when all tickets are acknowledged: on disk in mode `sync`, written in mode `interval`."""
        self._check_open()
        waiting = [(self.open(name), mark) for name, mark in highest_marks(tickets).items()]
        if self.durability == "interval":
            for log, mark in waiting:
                log.acknowledge(mark)
            return
        problems = self._side_by_side.each(lambda pair: pair[0].acknowledge(pair[1]), waiting)
        if problems:
            raise problems[0]

    # Life

    def writer_pid(self) -> int | None:
        """The process that has the directory open for writing."""
        held = self.disk.lock_holder(f"{self.path}/{OUR_LOCK}")
        if held is not None:
            return held.pid
        return posix_lock.holder(f"{self.path}/{BROKER_LOCK}") if self._real else None

    def damage(self) -> list[Damage]:
        """Findings in every log, and checkpoint files that could not be read."""
        found = [finding for name in self.logs() for finding in self.open(name).damage()]
        return [*self._damage, *found]

    def tick(self, now_ns: int) -> None:
        """What time brings: interval syncs, retention, checkpoints."""
        with self._mutex:
            logs = list(self._logs.values())
        for log in logs:
            log.tick(now_ns, self._sync_every_ns)
        if now_ns - self._retained_ns >= self.options.log_retention_check_interval_ms * NS_PER_MS:
            self._retained_ns = now_ns
            for log in logs:
                log.apply_retention()
        every = self.options.log_flush_offset_checkpoint_interval_ms
        if now_ns - self._checkpointed_ns >= every * NS_PER_MS:
            self._checkpointed_ns = now_ns
            self.write_checkpoints()

    @property
    def _upkeep_every_s(self) -> float:
        return TICK_S

    def _upkeep(self) -> None:
        self.tick(self.clock())

    def _stop_logs(self) -> None:
        # All are to be closed, whatever becomes of one.
        problems = self._side_by_side.each(KafkaLog.close, self._logs.values())
        self._side_by_side.close()
        if problems:
            raise problems[0]
        if self.read_only:
            return
        self.write_checkpoints()
        # Logs that nobody opened are as they were: whole if the last stop was clean.
        if self.clean or set(self._logs) >= set(partition_dirs(self.disk, self.path)):
            self.disk.replace_file(f"{self.path}/{checkpoints.CLEAN}", checkpoints.CLEAN_TEXT)


def _ours(options: dict[str, Any]) -> dict[str, Any]:
    """Options under their Python names."""
    spelled = {theirs: ours for ours, theirs in KafkaOptions.names.items()}
    return {spelled.get(name, name): value for name, value in options.items()}


def _root(disk: Disk, path: str) -> tuple[str, str | None]:
    """(log directory, the one log to show or None). A log has its directory's name, also behind a link."""
    path = path.rstrip("/") or "/"
    parent, _, name = path.rpartition("/")
    if is_log_name(name) and disk.entry(path) is not None and has_segments(disk, path):
        return parent or ".", name
    return path, None
