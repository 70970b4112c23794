"""The index by key: files named by the time of their making, filled one after the other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from headrace.layouts.directories import make_dirs
from headrace.layouts.rocketmq._kernels import Disk, RocketIndex, RocketIndexHeader
from headrace.layouts.rocketmq.names import INDEX
from headrace.layouts.rocketmq.options import RocketOptions

HEADER, SLOT, ENTRY = 40, 4, 20


class IndexFiles:
    """All index files of a store; those of another shape than the options say are left alone."""

    def __init__(self, disk: Disk, root: str, options: RocketOptions) -> None:
        self.disk, self.directory, self.options = disk, f"{root}/{INDEX}", options
        self.size = HEADER + options.max_hash_slot_num * SLOT + options.max_index_num * ENTRY
        self._files: dict[str, RocketIndex] = {}
        self.ignored: list[str] = []
        if disk.entry(self.directory) is not None:
            for name, is_dir, size in disk.list(self.directory):
                if is_dir or not name.isdecimal():
                    continue
                if size == self.size:
                    self._files[name] = self._open(name, "read")
                else:
                    self.ignored.append(name)
        self._newest: str | None = None

    def _open(self, name: str, mode: str, begin_ms: int = 0) -> RocketIndex:
        file = self.disk.open(f"{self.directory}/{name}", mode)
        return RocketIndex(file, self.options.max_hash_slot_num, self.options.max_index_num, begin_ms)

    def begin(self) -> None:
        """Writing goes on in the newest file."""
        self._newest = max(self._files, default=None)
        if self._newest is not None:
            self._files[self._newest] = self._open(self._newest, "write")

    @property
    def end_address(self) -> int:
        """Messages up to this address are in the index."""
        headers = [index.header() for index in self._files.values()]
        return max((header.end_address for header in headers if header.count > 1), default=-1)

    def put(self, put: Callable[[RocketIndex, int], int], first: int, total: int, now_ns: int) -> None:
        """Put keys number `first` to `total` in by `put(file, number)`, over as many files as it takes."""
        while first < total:
            index = self._files[self._newest] if self._newest is not None else None
            if index is None or index.full:
                index = self._make(now_ns)
            first += put(index, first)

    def _make(self, now_ns: int) -> RocketIndex:
        make_dirs(self.disk, self.directory)
        moment = datetime.fromtimestamp(now_ns // 1_000_000 / 1000, UTC)
        number = int(moment.strftime("%Y%m%d%H%M%S") + f"{moment.microsecond // 1000:03d}")
        while f"{number:017d}" in self._files:
            number += 1
        name = f"{number:017d}"
        file = self.disk.open(f"{self.directory}/{name}", "write")
        file.set_len(self.size)
        before = self._files[self._newest].header().end_ms if self._newest is not None else 0
        self._newest, self._files[name] = name, self._open(name, "write", before)
        return self._files[name]

    def find(self, topic: str, key: str, max_hits: int) -> list[int]:
        """Addresses that may be of that key, newest first."""
        found: list[int] = []
        for name in sorted(self._files, reverse=True):
            found += self._files[name].find(f"{topic}#{key}", max_hits - len(found))
        return found

    def names(self) -> dict[str, RocketIndexHeader]:
        """Name → header of every file."""
        return {name: index.header() for name, index in sorted(self._files.items())}

    def close(self) -> None:
        """Give the descriptors up."""
        self._files.clear()
