"""`clients.dat`: clients that are registered (on connect) and cleared (on close), and its compaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.errors import BadInput
from headrace.layouts.descriptors import Descriptors
from headrace.layouts.nats_streaming._kernels import Disk, stan_frame, stan_frames
from headrace.layouts.nats_streaming.names import CLIENTS, HEAD
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.protos import ClientDelete, ClientInfo
from headrace.layouts.nats_streaming.recovery import ChannelRecovery

ADD, REMOVE = 1, 2
TYPES = 2


class Clients:
    """The registered clients. A connect or close is one record; `commit` syncs. Thread-safe."""

    def __init__(
        self,
        root: str,
        data: bytes,
        how: ChannelRecovery,
        *,
        disk: Disk,
        files: Descriptors | None = None,
        options: StreamingOptions | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = f"{root}/{CLIENTS}"
        self._disk, self._files, self._options = disk, files, options or StreamingOptions()
        self._now_s = now_s
        self._clients: dict[str, ClientInfo] = {}
        self._removed, self._size = 0, len(data)
        self._compacted_at: float | None = None
        self._mutex = threading.RLock()
        frames, _, _ = stan_frames(data, TYPES, how.poly, how.strict, True)
        for offset, kind, payload in frames:
            try:
                self._apply(kind, payload)
            except ValueError as problem:
                how.note(self.path, offset, 8 + len(payload), "bad-record", f"the payload is none: {problem}")

    def _apply(self, kind: int, payload: bytes) -> None:
        if kind == ADD:
            client = ClientInfo.decode(payload)
            self._clients[client.id] = client
        else:
            self._clients.pop(ClientDelete.decode(payload).id, None)
            self._removed += 1

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, id: object) -> bool:
        return id in self._clients

    def all(self) -> list[ClientInfo]:
        """Every registered client, by its id."""
        return [self._clients[id] for id in sorted(self._clients)]

    def add(self, client: ClientInfo) -> None:
        """A client connected (or connected anew)."""
        with self._mutex:
            self._write(ADD, client.encode())
            self._clients[client.id] = client

    def remove(self, id: str) -> None:
        """A client closed its connection, or was given up."""
        with self._mutex:
            self._write(REMOVE, ClientDelete(id=id).encode())
            self._clients.pop(id, None)
            self._removed += 1
            self._maybe_compact()

    def commit(self) -> None:
        """Everything said so far is on disk when this returns."""
        if self._files is not None:
            self._files.sync(self.path)

    def _write(self, kind: int, payload: bytes) -> None:
        if self._files is None:
            raise BadInput(f"{self.path} was opened for reading; open the store with mode='rw'")
        record = stan_frame(kind, payload, self._options.file_crc_poly)
        with self._files.use(self.path, "write") as file:
            file.write_at(self._size, record)
        self._files.wrote(self.path)
        self._size += len(record)

    def _maybe_compact(self) -> None:
        options, total = self._options, self._removed + len(self._clients)
        soon = (
            self._compacted_at is not None
            and self._now_s() - self._compacted_at < options.file_compact_interval
        )
        if not options.file_compact_enabled or soon or not total:
            return
        worn = self._removed * 100 // total
        if self._size - len(HEAD) >= options.file_compact_min_size and worn >= options.file_compact_frag:
            self.compact()

    def compact(self) -> None:
        """Write the file anew with the clients that are there."""
        with self._mutex:
            if self._files is None:
                raise BadInput(f"{self.path} was opened for reading")
            poly = self._options.file_crc_poly
            content = HEAD + b"".join(stan_frame(ADD, client.encode(), poly) for client in self.all())
            self._files.forget(self.path)
            self._disk.replace_file(self.path, content)
            self._size, self._removed = len(content), 0
            self._compacted_at = self._now_s()
