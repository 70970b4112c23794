"""`headrace/open`: up to where a channel was sound and synced when this life of it began to write.

    <root>/headrace.open               since the store was opened: the length of clients.dat, the mode
    <root>/<channel>/headrace/open     since the channel's first write: lengths of its newest slice and of subs.dat

Removed at a clean stop. If it is there at the next opening, the last writer was Headrace and it was killed, or the
power went: what is torn behind the lengths in it are writes that nobody was promised. Those are put aside and reported;
damage before them stops the opening, as damage does. In mode `interval` a channel's mark is not synced, so a life in
that mode says it for all channels.
"""

from __future__ import annotations

import msgspec

from headrace.errors import HeadraceError
from headrace.layouts.directories import make_dirs
from headrace.layouts.nats_streaming._kernels import Disk
from headrace.layouts.nats_streaming.names import SIDE

_BYTES_MAX = 4096


class ChannelMark(msgspec.Struct, frozen=True, kw_only=True):
    """Slices above `slice`, bytes of it from `data` on, and bytes of the small file from `records` on are this life's."""

    slice: int = 0
    data: int = 0
    records: int = 0
    durability: str = "sync"

    def covers(self, number: int, offset: int) -> bool:
        """Whether that place was written before the life that ended without a clean stop."""
        return number < self.slice or (number == self.slice and offset < self.data)


class MarkFile:
    """The mark of one channel, or of the root's clients."""

    def __init__(self, disk: Disk, path: str, durable: bool) -> None:
        self._disk, self.path, self._durable = disk, path, durable
        self._written = False

    @property
    def begun(self) -> bool:
        """Whether this life has its mark."""
        return self._written

    def read(self) -> ChannelMark | None:
        """What a killed writer left; None after a clean stop or if nobody of ours wrote."""
        try:
            if self._disk.entry(self.path) is None:
                return None
            return msgspec.json.decode(self._disk.read(self.path, _BYTES_MAX), type=ChannelMark)
        except (HeadraceError, msgspec.DecodeError):
            # A torn mark: the life that wrote it had written nothing else yet.
            return None

    def begin(self, mark: ChannelMark) -> None:
        """Once per life, before the first write."""
        if self._written:
            return
        make_dirs(self._disk, self.path.rsplit("/", 1)[0], durable=self._durable)
        text = msgspec.json.encode(mark)
        if self._durable:
            self._disk.replace_file(self.path, text)
        else:
            file = self._disk.open(self.path, "write")
            file.set_len(0)
            file.write_at(0, text)
        self._written = True

    def end(self) -> None:
        """A clean stop."""
        if self._written or self._disk.entry(self.path) is not None:
            self._disk.remove_file(self.path)
            self._written = False


def of_root(disk: Disk, root: str) -> MarkFile:
    """The mark of a store; always synced."""
    return MarkFile(disk, f"{root}/{SIDE}.open", True)


def of_channel(disk: Disk, directory: str, durable: bool) -> MarkFile:
    """The mark of a channel's directory."""
    return MarkFile(disk, f"{directory}/{SIDE}/open", durable)
