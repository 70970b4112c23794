"""`RabbitVolume`: the queue storage of a RabbitMQ node, opened for reading or for writing.

`path` may be the node's data directory (with `msg_stores/vhosts`), the `vhosts` directory, or one vhost's directory.
RabbitMQ itself knows queues from its metadata database: at its start it deletes the directory of every queue that it
does not know. Declare the queues there first (`definitions()` gives them in the form it imports).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from headrace.errors import BadInput, HeadraceError, NotFound, StoreLocked
from headrace.layouts.base import Damage, Durability, Ticket
from headrace.layouts.descriptors import Descriptors
from headrace.layouts.directories import make_dirs
from headrace.layouts.directory_volume import DirectoryVolume
from headrace.layouts.places import disk_given
from headrace.layouts.processes import has_open
from headrace.layouts.rabbitmq import files
from headrace.layouts.rabbitmq._kernels import Batch, Disk
from headrace.layouts.rabbitmq.cursors import RabbitCursors
from headrace.layouts.rabbitmq.log import RabbitLog
from headrace.layouts.rabbitmq.names import is_directory_name, new_queue, vhost_directory
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.vhost import Vhost

VHOSTS = "msg_stores/vhosts"
TICK_S = 0.02


def looks_like_vhost(disk: Disk, path: str) -> bool:
    """Whether it is a vhost's directory."""
    entry = disk.entry(path)
    if entry is None or not entry.is_dir or not is_directory_name(path.rsplit("/", 1)[-1]):
        return False
    return any(disk.entry(f"{path}/{name}") is not None for name in (files.QUEUES, files.PERSISTENT))


def vhost_paths(disk: Disk, path: str) -> tuple[str, list[str]] | None:
    """(where the lock goes, the vhosts' directories); None if there is nothing of RabbitMQ's."""
    if looks_like_vhost(disk, path):
        return path, [path]
    for root in (f"{path}/{VHOSTS}", f"{path}/vhosts", path):
        entry = disk.entry(root)
        if entry is None or not entry.is_dir:
            continue
        found = [f"{root}/{name}" for name, is_dir, _ in disk.list(root) if is_dir]
        found = [vhost for vhost in found if looks_like_vhost(disk, vhost)]
        if found:
            return root, found
    return None


class RabbitVolume(DirectoryVolume):
    """Use `headrace.open`. `read_all`: do not believe the checkpoint of the last stop."""

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
        super().__init__(mode, durability, clock)
        disk = disk_given(path, disk)
        self.path = str(Path(path).resolve()) if disk is None else path.rstrip("/")
        self._disk, self._real = disk or Disk.real(self.path), disk is None
        self.options = options or RabbitOptions()
        self._handles = Descriptors(self._disk, self.options.open_files_max, sync_before_close=False)
        self._busy = threading.Event()
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
            self._start_upkeep()

    def _take(self, *, real: bool) -> None:
        make_dirs(self._disk, self.root)
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
            clock=self.clock,
            handles=self._handles,
            on_touch=self._busy.set,
            lone=self.read_only and not self._served,
        )

    @cached_property
    def _served(self) -> bool:
        """Whether somebody was writing when it was opened."""
        if self._disk.lock_holder(f"{self.root}/{files.LOCK}") is not None:
            return True
        try:
            if self._real:
                refuse_if_served(self.root)
        except StoreLocked:
            return True
        return False

    # Logs

    def _logs(self) -> dict[str, RabbitLog]:
        found: dict[str, RabbitLog] = {}
        for vhost in self.vhosts.values():
            for label, log in vhost.logs.items():
                found[label if label not in found else f"{label}@{log.directory.rsplit('/', 1)[-1]}"] = log
        return found

    def logs(self) -> list[str]:
        """The names of all queues, sorted."""
        self._check_open()
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
        make_dirs(self._disk, path)
        self._disk.replace_file(
            f"{path}/{files.CONFIG}", files.config_text(self.options.queue_index_segment_entry_count)
        )
        self._disk.replace_file(f"{path}/{files.VHOST_NAME}", name.encode("utf-8", "surrogateescape"))
        for directory in (files.QUEUES, files.PERSISTENT):
            make_dirs(self._disk, f"{path}/{directory}")
        vhost = self._open_vhost(path)
        vhost.take_over()
        return vhost

    def delete(self, name: str) -> None:
        """Remove a queue with all its files."""
        with self._mutex:
            log = self.open(name)
            self._check_writable()
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

    # Life

    @property
    def disk(self) -> Disk:
        """Where the files are."""
        return self._disk

    def damage(self) -> list[Damage]:
        """Findings of the volume and of every queue."""
        self._check_open()
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

    @property
    def _upkeep_every_s(self) -> float:
        return TICK_S

    def _upkeep(self) -> None:
        self.tick()

    def _keep(self) -> None:
        """Runs only while some queue is awake: idle queues cost no CPU."""
        while True:
            self._busy.wait()
            if self._stop.wait(self._upkeep_every_s):
                return
            self._busy.clear()
            self._attempt(self._upkeep, self.path)
            if self.awake:
                self._busy.set()

    def _end_upkeep(self) -> None:
        super()._end_upkeep()
        self._busy.set()

    def _stop_logs(self) -> None:
        problems: list[HeadraceError] = []
        for vhost in self.vhosts.values():
            try:
                vhost.close()
            except HeadraceError as problem:
                problems.append(problem)
        if problems:
            raise problems[0]


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
