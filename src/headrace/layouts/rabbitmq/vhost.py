"""`Vhost`: the queues of one vhost, the message store they share, and who of them is awake."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headrace.errors import AlreadyExists, DiskFault, HeadraceError
from headrace.layouts.base import Damage, Durability
from headrace.layouts.descriptors import Descriptors
from headrace.layouts.directories import make_dirs
from headrace.layouts.marks import Mark, Marks, MarksBefore
from headrace.layouts.rabbitmq import checkpoint, dets, files, recovery
from headrace.layouts.rabbitmq._kernels import Disk
from headrace.layouts.rabbitmq.log import RabbitLog
from headrace.layouts.rabbitmq.names import QueueName, is_directory_name, vhost_directory
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.shared_store import SharedStore
from headrace.layouts.shortcuts import read_shortcut

LOG = logging.getLogger("headrace")
MS = 1_000_000
STAMP_SLOT = "\0vhost"
"""The slot with the stamp of `.vhost` as it was when the marks were begun."""

_RECOVERY_BYTES_MAX = 64 << 20


class Vhost:
    """A vhost's directory."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        options: RabbitOptions,
        *,
        read_only: bool,
        durability: Durability,
        clock: Callable[[], int],
        handles: Descriptors,
        on_touch: Callable[[], None],
        lone: bool = False,
    ) -> None:
        self.disk, self.path, self.options = disk, path, options
        self.read_only, self.durability, self.clock, self.handles = read_only, durability, clock, handles
        self.lone = lone
        """A reader, and nobody writes: what the last writer left can be compared with what is there."""
        self.damage: list[Damage] = []
        self.problems: list[str] = []
        self.entry_count = files.entry_count(disk, path, self.damage)
        self.name = self._name()
        self.store = SharedStore(disk, path, options)
        self.marks: Marks | None = None
        """How far each queue is on disk: (next sequence, index files). None for readers."""
        self.before = self._marks_before()
        self.stopped = self._stopped()
        self.logs: dict[str, RabbitLog] = {}
        self._on_touch = on_touch
        self._awake: dict[str, RabbitLog] = {}
        self._mutex = threading.Lock()
        self._store_synced_ns = 0
        for queue, directory in self._queues():
            self._add(queue, directory)

    # Names

    def _name(self) -> str:
        hashed = self.path.rsplit("/", 1)[-1]
        data = files.read_small(self.disk, f"{self.path}/{files.VHOST_NAME}", self.damage)
        for name in ([] if data is None else [data.decode("utf-8", "surrogateescape")]) + ["/"]:
            if vhost_directory(name) == hashed:
                return name
        if data is not None:
            detail = f".vhost says {data[:60]!r}, which does not belong to this directory"
            self.damage.append(Damage(f"{self.path}/{files.VHOST_NAME}", 0, len(data), "metadata", detail))
        return hashed

    def _marks_before(self) -> MarksBefore:
        """What a writer of ours left, unless RabbitMQ has run since: it writes `.vhost` at each start."""
        found = MarksBefore.read(self.disk, self.path)
        return found if found.of(STAMP_SLOT) == self._stamp() else MarksBefore()

    def _stamp(self) -> Mark:
        path = f"{self.path}/{files.VHOST_NAME}"
        try:
            return (self.disk.stamp(path) if self.disk.entry(path) is not None else 0, 0, 1)
        except DiskFault:
            return (0, 0, 1)

    def _begin_marks(self) -> None:
        """Those that the last writer left stand until their queues are used."""
        self.marks = Marks(self.disk, self.path)
        self.marks.begin(self.before)
        self.marks.publish(STAMP_SLOT, self._stamp())

    def _stopped(self) -> dict[str, dets.Stopped]:
        path = f"{self.path}/{files.RECOVERY}"
        data = read_shortcut(self.disk, path, _RECOVERY_BYTES_MAX, self.damage)
        return {} if data is None else dets.rows(data)

    def _queues(self) -> list[tuple[QueueName, str]]:
        root = f"{self.path}/{files.QUEUES}"
        if self.disk.entry(root) is None:
            return []
        return [
            (self._queue_name(root, name), f"{root}/{name}")
            for name, is_dir, _ in self.disk.list(root)
            if is_dir and is_directory_name(name) and not files.is_version_2(self.disk, f"{root}/{name}")
        ]

    def _queue_name(self, root: str, hashed: str) -> QueueName:
        path = f"{root}/{hashed}/{files.QUEUE_NAME}"
        data = files.read_small(self.disk, path, self.damage)
        queue = None if data is None else QueueName.from_file(data)
        if queue is not None and queue.directory == hashed:
            return queue
        if data is not None:
            detail = f".queue_name says {data[:80]!r}, which does not belong to this directory"
            self.damage.append(Damage(path, 0, len(data), "metadata", detail))
        return self._guessed(f"{root}/{hashed}", hashed)

    def _guessed(self, directory: str, hashed: str) -> QueueName:
        """Without the file: messages sent to the queue by its name carry it as routing key; the hash shows which."""
        log = RabbitLog(self, hashed, QueueName(self.name, hashed.encode()), directory)
        try:
            if self.name_reading:
                batch = log.read(0, 1)
                if len(batch):
                    queue = QueueName(self.name, batch[0].subject.encode("utf-8", "surrogateescape"))
                    if queue.directory == hashed:
                        return queue
        except HeadraceError:
            pass
        return QueueName(self.name, hashed.encode())

    name_reading = True

    def _add(self, queue: QueueName, directory: str) -> RabbitLog:
        label = queue.label
        if label in self.logs:
            label = f"{label}@{directory.rsplit('/', 1)[-1]}"
        log = self.logs[label] = RabbitLog(self, label, queue, directory)
        return log

    # Life

    def take_over(self) -> None:
        """Open for writing: what a clean stop of RabbitMQ left would be wrong from now on, so it goes first."""
        found = checkpoint.take(self)
        self._begin_marks()
        if found is not None and self._resume(found):
            return
        for log in self.logs.values():
            stopped = self.stopped.get(log.directory.rsplit("/", 1)[-1])
            if stopped is not None and stopped.next_seq > files.saved_next(self.disk, log.directory):
                self.disk.replace_file(f"{log.directory}/{files.NEXT}", f"{stopped.next_seq}\n".encode())
        stale = [f"{self.path}/{files.RECOVERY}"]
        for store in (files.PERSISTENT, files.TRANSIENT):
            stale += [f"{self.path}/{store}/{name}" for name in files.STOPPED_CLEAN]
        for directory in {path.rsplit("/", 1)[0] for path in stale if files.try_remove(self.disk, path)}:
            self.disk.sync_dir(directory)
        self.store.scan()
        for log in self.logs.values():
            problem = recovery.recover_quietly(log)
            if problem is not None:
                self.problems.append(problem)
                self.store.may_collect = False
                self.warn(problem)
            log.sleep()
        self.store.start_writing()

    def look(self) -> None:
        """Open for reading: after a clean stop of ours nothing needs to be read yet."""
        found = checkpoint.peek(self)
        if found is not None:
            self._resume(found)

    def _resume(self, found: checkpoint.Checkpoint) -> bool:
        try:
            for log in self.logs.values():
                log.rest(found.queues[log.directory.rsplit("/", 1)[-1]])
            self.store.resume(found.store, writing=not self.read_only)
        except HeadraceError as problem:
            self.warn(f"{self.path}: the checkpoint of the last stop is not used: {problem}")
            for log in self.logs.values():
                log.forget()
            self.store = SharedStore(self.disk, self.path, self.options)
            return False
        return True

    def create(self, queue: QueueName) -> RabbitLog:
        """A new queue's directory, on disk when this returns."""
        directory = f"{self.path}/{files.QUEUES}/{queue.directory}"
        if self.disk.entry(directory) is not None and files.is_version_2(self.disk, directory):
            raise AlreadyExists(
                f"{directory}: {queue.label} is a classic queue of version 2, which is not written here; use another name"
            )
        make_dirs(self.disk, directory)
        self.disk.replace_file(f"{directory}/{files.QUEUE_NAME}", queue.file())
        self.disk.open(f"{directory}/{files.JOURNAL}", "write").sync_data()
        self.disk.sync_dir(directory)
        log = self._add(queue, directory)
        recovery.recover(log)
        return log

    def delete(self, label: str) -> None:
        """Remove a queue with its files; messages that no other queue holds become garbage."""
        log = self.logs[label]
        log.drop_front(log.next_seq)
        log.close()
        if self.marks is not None:
            self.marks.retract(log.mark_name)
        with self._mutex:
            self._awake.pop(label, None)
        del self.logs[label]
        self.disk.remove_dir_all(log.directory)
        self.disk.sync_dir(f"{self.path}/{files.QUEUES}")

    def touched(self, log: RabbitLog) -> None:
        """The queue is in use: it is looked after until it has gone to sleep."""
        log.used_ns = time.monotonic_ns()
        if log.name not in self._awake and not self.read_only:
            with self._mutex:
                self._awake[log.name] = log
            log.dirty_ns = log.used_ns
            self._on_touch()

    @property
    def awake(self) -> int:
        return len(self._awake)

    def tick(self, now_ns: int) -> None:
        """Sync what is due, put idle queues to sleep, collect garbage. Sleeping queues cost nothing here."""
        with self._mutex:
            awake = list(self._awake.values())
        for log in awake:
            due = now_ns - log.dirty_ns >= self.options.queue_sync_interval * MS
            if self.durability == "interval" and log.unsynced and due:
                log.sync()
                log.dirty_ns = now_ns
            if now_ns - log.used_ns >= self.options.queue_hibernate_after * MS:
                log.sleep()
                with self._mutex:
                    if now_ns - log.used_ns >= self.options.queue_hibernate_after * MS:
                        self._awake.pop(log.name, None)
        due = now_ns - self._store_synced_ns >= self.options.msg_store_sync_interval * MS
        if self.durability == "interval" and self.store.dirty and due:
            self.store.sync()
            self._store_synced_ns = now_ns
        self.collect()

    def collect(self) -> int:
        """Give back the room of acked messages in the store; returns how many files went."""
        return self.store.collect(self.sync_queues)

    def sync_queues(self) -> None:
        """Every ack given so far, on disk."""
        with self._mutex:
            awake = list(self._awake.values())
        for log in awake:
            if log.unsynced:
                log.sync()

    def warn(self, text: str) -> None:
        LOG.warning("%s", text)

    def close(self) -> None:
        """Every queue flushed; the store's mark of a clean stop."""
        problems: list[HeadraceError] = []
        for log in self.logs.values():
            try:
                log.close()
            except HeadraceError as problem:  # the others are to be stopped all the same
                problems.append(problem)
        self.store.kernel.close_files()
        if not self.read_only and not problems:
            checkpoint.write(self)
        if problems:
            raise problems[0]
