"""Following a stream that somebody else writes: what is new since the last look, from the newest blocks only.

Beside a Headrace writer nothing above its durable mark is shown, so that nothing seen can vanish. The mark is
read before the blocks: whatever it covers is in them. Beside a nats-server, which publishes no mark, every sound
record is shown. Each look reads only blocks that may hold something new; it takes no lock and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import NotFound
from headrace.layouts.jetstream._kernels import Batch, BlockScan, Disk
from headrace.layouts.jetstream.checks.inspector import BlockFile, scan_file, survey
from headrace.layouts.jetstream.paths import block_numbers
from headrace.layouts.jetstream.recovery.recovery import disk_is_live, messages_dir
from headrace.layouts.jetstream.store.sidecar import Sidecar


class Tail:
    """Messages of one stream behind `after`. Make it before the stream is read, so that no block is passed over."""

    def __init__(self, disk: Disk, name: str, directory: str, key: str | None) -> None:
        self._disk, self._name, self._directory, self._key = disk, name, directory, key
        self.after = 0
        """The last sequence that was shown; set it when the stream has been read up to somewhere."""
        self._from = max(self._sizes(), default=0)
        self._seen: tuple[int, int, int | None] | None = None

    def look(self) -> Iterator[Batch]:
        """What has come since the last look, in order; nothing when nothing has."""
        durable = self._durable()
        sizes = self._sizes()
        newest = max(sizes, default=0)
        seen = (newest, sizes.get(newest, 0), durable)
        if seen == self._seen or not newest:
            return
        waiting: int | None = None
        for block in survey(self._disk, self._name, self._directory, self._key, real=False).blocks:
            scan = self._scan(block) if block.number >= self._from else None
            if scan is None:
                continue
            new = self._new_in(scan, durable)
            if len(new):
                self.after = new.last_position
                yield new
            if waiting is None and len(scan.batch) and scan.batch.last_position > self.after:
                waiting = block.number
        self._from = waiting or max(newest, self._from)
        self._seen = seen

    def _durable(self) -> int | None:
        """The last sequence that may be shown; None when nobody of ours is writing."""
        if not disk_is_live(self._disk, self._directory):
            return None
        mark = Sidecar(self._disk, self._directory).read_mark()
        return mark[2] if mark is not None else 0

    def _sizes(self) -> dict[int, int]:
        return block_numbers(self._disk, messages_dir(self._disk, self._directory))

    def _scan(self, block: BlockFile) -> BlockScan | None:
        try:
            return scan_file(self._disk, block)
        except NotFound:
            return None  # emptied and removed since the directory was listed

    def _new_in(self, scan: BlockScan, durable: int | None) -> Batch:
        until = None if durable is None else durable + 1
        new = scan.batch.filter(self.after + 1, until, None, None, [])
        removed = {seq for seq, _ in scan.tombstones if seq > self.after}
        if removed:
            new = new.select(bytes(seq not in removed for seq in new.positions()))
        return new
