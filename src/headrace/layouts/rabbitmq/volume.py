"""`RabbitVolume`: the queue storage of a RabbitMQ node, opened for reading or for writing.

`path` may be the node's data directory (with `msg_stores/vhosts`), the `vhosts` directory, or one vhost's directory.
RabbitMQ itself knows queues from its metadata database: at its start it deletes the directory of every queue that it
does not know. Declare the queues there first (`definitions()` gives them in the form it imports).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from headrace.errors import BadInput, HeadraceError, NotFound, ReadOnly, StoreClosed, StoreLocked
from headrace.layouts.base import Damage, Durability, Ticket, Volume
from headrace.layouts.places import disk_given
from headrace.layouts.processes import has_open
from headrace.layouts.rabbitmq import files
from headrace.layouts.rabbitmq._kernels import Batch, Disk, DiskLock
from headrace.layouts.rabbitmq.cursors import RabbitCursors
from headrace.layouts.rabbitmq.log import RabbitLog
from headrace.layouts.rabbitmq.names import is_directory_name, new_queue, vhost_directory
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.vhost import LOG, Vhost
from headrace.layouts.volume_parts import SoonCommitter, check_words, highest_marks

VHOSTS = "msg_stores/vhosts"
TICK_S = 0.02


def looks_like_vhost(disk: Disk, path: str) -> bool:
    """Whether it is a vhost's directory."""
    entry = disk.entry(path)
    if entry is None or not entry[0] or not is_directory_name(path.rsplit("/", 1)[-1]):
        return False
    return any(disk.entry(f"{path}/{name}") is not None for name in (files.QUEUES, files.PERSISTENT))


def vhost_paths(disk: Disk, path: str) -> tuple[str, list[str]] | None:
    """(where the lock goes, the vhosts' directories); None if there is nothing of RabbitMQ's."""
    if looks_like_vhost(disk, path):
        return path, [path]
    for root in (f"{path}/{VHOSTS}", f"{path}/vhosts", path):
        entry = disk.entry(root)
        if entry is None or not entry[0]:
            continue
        found = [f"{root}/{name}" for name, is_dir, _ in disk.list(root) if is_dir]
        found = [vhost for vhost in found if looks_like_vhost(disk, vhost)]
        if found:
            return root, found
    return None


class RabbitVolume(Volume):
    """Use `headrace.open`, or `ROOM.open`. `read_all`: do not believe the checkpoint of the last stop."""

    layout = "rabbitmq"

    def __init__(
        self,
        path: str,
        *,
        mode: str = "r",
        create: bool = False,
        durability: Durability = "sync",
        options: RabbitOptions | None = None,
        disk: Disk | None = None,
        clock: Callable[[], int] = time.time_ns,
        maintenance: bool = True,
        read_all: bool = False,
    ) -> None:
        check_words(mode, durability)
        disk = disk_given(path, disk)
        self._disk = disk or Disk.real()
        self.path = str(Path(path).resolve()) if disk is None else path.rstrip("/")
        self.options = options or RabbitOptions()
        self.durability: Durability = durability
        self.read_only, self._clock = mode == "r", clock
        self._handles = files.Handles(self._disk, self.options.open_files_max)
        self._mutex, self._closed = threading.RLock(), False
        self._lock: DiskLock | None = None
        self._committer = SoonCommitter()
        self._stop, self._busy = threading.Event(), threading.Event()
        self._keeper: threading.Thread | None = None
        self.last_upkeep_error: Exception | None = None
        self.vhosts: dict[str, Vhost] = {}
        found = vhost_paths(self._disk, self.path)
        if found is None and not create:
            raise NotFound(
                f"{self.path}: no queue storage of RabbitMQ there (no {VHOSTS}); create one with create=True"
            )
        self.root, paths = found or (f"{self.path}/{VHOSTS}", [])
        if not self.read_only:
            self._take(real=disk is None)
        try:
            for vhost_path in paths:
                vhost = self._open_vhost(vhost_path)
                self.vhosts[vhost.name] = vhost
                if not self.read_only:
                    vhost.take_over()
                elif not read_all:
                    vhost.look()
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        if not self.read_only and maintenance:
            self._keeper = threading.Thread(target=self._keep, name="headrace-upkeep", daemon=True)
            self._keeper.start()

    def _take(self, *, real: bool) -> None:
        files.make_dirs(self._disk, self.root)
        self._lock = self._disk.lock(f"{self.root}/{files.LOCK}", "headrace")
        if real:
            try:
                refuse_if_served(self.root)
            except BaseException:
                self._lock.release()
                raise

    def _open_vhost(self, path: str) -> Vhost:
        return Vhost(
            self._disk,
            path,
            self.options,
            read_only=self.read_only,
            durability=self.durability,
            clock=self._clock,
            handles=self._handles,
            on_touch=self._busy.set,
        )

    # Logs

    def _logs(self) -> dict[str, RabbitLog]:
        found: dict[str, RabbitLog] = {}
        for vhost in self.vhosts.values():
            for label, log in vhost.logs.items():
                found[label if label not in found else f"{label}@{log.directory.rsplit('/', 1)[-1]}"] = log
        return found

    def logs(self) -> list[str]:
        """The names of all queues, sorted."""
        return sorted(self._logs())

    def open(self, name: str) -> RabbitLog:
        """One queue; shared by all who open it."""
        with self._mutex:
            self._check_open()
            found = self._logs().get(name)
            if found is None:
                known = ", ".join(self.logs()[:20]) or "none"
                raise NotFound(f"{self.path}: no queue {name!r}; there are: {known}")
            return found

    def create(self, name: str, **options: Any) -> RabbitLog:
        """A new queue, or the existing one. `priority=p`: the part of a priority queue for p."""
        with self._mutex:
            self._check_open()
            self._check_writable()
            unknown = sorted(set(options) - {"priority"})
            if unknown:
                raise BadInput(f"unknown option {unknown[0]!r} of a queue; known is: priority")
            queue = new_queue(name, options.get("priority"))
            known = self._logs().get(queue.label)
            if known is not None:
                return known
            vhost = self.vhosts.get(queue.vhost)
            if vhost is None:
                vhost = self.vhosts[queue.vhost] = self._create_vhost(queue.vhost)
            return vhost.create(queue)

    def _create_vhost(self, name: str) -> Vhost:
        path = f"{self.root}/{vhost_directory(name)}"
        files.make_dirs(self._disk, path)
        self._disk.replace_file(
            f"{path}/{files.CONFIG}", files.config_text(self.options.queue_index_segment_entry_count)
        )
        self._disk.replace_file(f"{path}/{files.VHOST_NAME}", name.encode("utf-8", "surrogateescape"))
        for directory in (files.QUEUES, files.PERSISTENT):
            files.make_dirs(self._disk, f"{path}/{directory}")
        vhost = self._open_vhost(path)
        vhost.take_over()
        return vhost

    def delete(self, name: str) -> None:
        """Remove a queue with all its files."""
        with self._mutex:
            self._check_writable()
            log = self.open(name)
            log.vhost.delete(log.name)

    def cursors(self, name: str) -> RabbitCursors:
        """Deliveries and acks of a queue."""
        return RabbitCursors(self.open(name))

    def publish(self, batch: Batch, queues: Sequence[str]) -> list[Ticket]:
        """The same messages into several queues of one vhost: large bodies are stored once, counted per queue."""
        logs = [self.open(name) for name in queues]
        if len({log.vhost.path for log in logs}) > 1:
            raise BadInput("the queues belong to different vhosts, which share no store")
        tickets: list[Ticket] = []
        ids = b""
        for log in logs:
            with log.lock:
                log.check_writable()
                ticket, ids = log.publish(batch, False, ids)
            tickets.append(ticket)
        return tickets

    def definitions(self) -> dict[str, Any]:
        """Vhosts and durable queues in the form that `rabbitmqctl import_definitions` reads."""
        queues: dict[tuple[str, str], dict[str, Any]] = {}
        for log in self._logs().values():
            queue = log.queue
            row = queues.setdefault(
                (queue.vhost, queue.queue),
                {
                    "vhost": queue.vhost,
                    "name": queue.queue,
                    "durable": True,
                    "auto_delete": False,
                    "arguments": {},
                },
            )
            if queue.priority is not None:
                highest = row["arguments"].get("x-max-priority", 0)
                row["arguments"]["x-max-priority"] = max(highest, queue.priority, 1)
        return {"vhosts": [{"name": name} for name in self.vhosts], "queues": list(queues.values())}

    # Durability

    def commit(self, tickets: Iterable[Ticket]) -> None:
        """Return when all tickets are confirmed: on disk in mode `sync`, written in mode `interval`."""
        for name, mark in highest_marks(tickets).items():
            self.open(name).acknowledge(mark)

    def commit_soon(self, tickets: Iterable[Ticket]) -> Future[None]:
        """The same off the caller's thread."""
        with self._mutex:
            self._check_open()
            return self._committer.submit(self.commit, tickets)

    # Life

    @property
    def disk(self) -> Disk:
        """Where the files are."""
        return self._disk

    def damage(self) -> list[Damage]:
        """Findings of the volume and of every queue."""
        found: list[Damage] = []
        for vhost in self.vhosts.values():
            found += vhost.damage
            found += [Damage(vhost.path, 0, 0, "metadata", problem) for problem in vhost.problems]
            for log in vhost.logs.values():
                try:
                    found += log.damage()
                except HeadraceError as problem:
                    found.append(Damage(log.directory, 0, 0, "metadata", str(problem)))
            vhost.store.scan()
            found += vhost.store.damage
        return found

    def tick(self) -> None:
        """What the upkeep thread does; for those who run without it."""
        with self._mutex:
            vhosts = list(self.vhosts.values())
        for vhost in vhosts:
            vhost.tick(time.monotonic_ns())

    def collect(self) -> int:
        """Give back the room of acked messages now; returns how many store files went."""
        return sum(vhost.collect() for vhost in list(self.vhosts.values()))

    @property
    def awake(self) -> int:
        """How many queues have their map in memory."""
        return sum(vhost.awake for vhost in self.vhosts.values())

    def _keep(self) -> None:
        """Runs only while some queue is awake: idle queues cost no CPU."""
        while True:
            self._busy.wait()
            if self._stop.wait(TICK_S):
                return
            self._busy.clear()
            try:
                self.tick()
            except Exception as error:  # the next turn tries again; commits report it to their callers
                if str(error) != str(self.last_upkeep_error):
                    LOG.warning("upkeep of %s: %s", self.path, error)
                self.last_upkeep_error = error
            if self.awake:
                self._busy.set()

    def close(self) -> None:
        """Clean stop of every queue, then the lock goes."""
        with self._mutex:
            if self._closed:
                return
            self._stop.set()
            self._busy.set()
        if self._keeper is not None:
            self._keeper.join()
        self._committer.close()
        with self._mutex:
            self._closed = True
            problems: list[HeadraceError] = []
            try:
                for vhost in self.vhosts.values():
                    try:
                        vhost.close()
                    except HeadraceError as problem:
                        problems.append(problem)
            finally:
                if self._lock is not None:
                    self._lock.release()
            if problems:
                raise problems[0]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} was closed; open it again")

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnly(f"{self.path} was opened for reading; open it with mode='rw'")


def refuse_if_served(root: str) -> None:
    """StoreLocked when a running Erlang machine has files under `root` open."""
    real = Path(root).resolve()
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            if not (process / "comm").read_text().startswith(("beam", "erl")):
                continue
        except OSError:
            continue
        if has_open(int(process.name), real):
            raise StoreLocked(
                f"{root}: a RabbitMQ node (process {process.name}) has this directory open; stop it first, "
                "or open for reading only"
            )
