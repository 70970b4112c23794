"""One slice of a channel: `msgs.N.dat` with its index, opened, and what became of what was not sound.

The index is believed where its sums hold. If it is whole and the last message it names is sound, nothing else is
read. Otherwise the data file is read from end to end and the index made anew: on disk when the channel is opened
for writing, in memory when it is only read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import DiskFault
from headrace.layouts.base import Damage
from headrace.layouts.nats_streaming import advice
from headrace.layouts.nats_streaming._kernels import (
    Disk,
    DiskFile,
    StanEntry,
    StanIndexSummary,
    stan_index,
    stan_mend,
    stan_read,
)
from headrace.layouts.nats_streaming.marks import ChannelMark
from headrace.layouts.nats_streaming.names import HEAD, data_path, index_path
from headrace.layouts.nats_streaming.recovery import ChannelRecovery
from headrace.layouts.places import may_pass
from headrace.layouts.shortcuts import is_there, unreadable

SIZE_BYTES = 4
"""The first field of a record in the data file: the size of what follows the frame."""
FRAME_BYTES = SIZE_BYTES + 4
"""And its checksum."""
ENTRY_BYTES = 32
_AHEAD_MAX = 1 << 20
_PIECE = 1 << 20
Finding = tuple[bool, str, int, int, int | None, int | None, str]


@dataclass(slots=True)
class Slice:
    """What is known of a slice. `indexed` entries are in the index; the rest of `count` waits to be written there."""

    number: int
    directory: str
    count: int = 0
    indexed: int = 0
    first: int = 0
    last: int = 0
    counted: int = 0
    data_end: int = len(HEAD)
    first_time_ns: int = 0
    last_time_ns: int = 0
    index: DiskFile | None = None
    """An index in memory, when the file's cannot be used and must not be written."""
    ended: bool = False
    """Nothing may be appended: there are bytes behind the last record."""
    waiting: list[bytes] = field(default_factory=lambda: [])

    @property
    def data_path(self) -> str:
        """The messages."""
        return data_path(self.directory, self.number)

    @property
    def index_path(self) -> str:
        """Their index."""
        return index_path(self.directory, self.number)

    @property
    def index_end(self) -> int:
        """Where the next entry goes in the index file."""
        return len(HEAD) + ENTRY_BYTES * self.indexed


def findings_to_damage(slice_data: str, slice_index: str, findings: list[Finding]) -> list[Damage]:
    """The core's findings, with the file's name and what it means."""
    found: list[Damage] = []
    for in_index, kind, offset, length, first, following, detail in findings:
        path = slice_index if in_index else slice_data
        more = f": {advice.may_be_lost(path)}" if kind == "bad-record" else ""
        found.append(Damage(path, offset, length, kind, detail + more, first, following))
    return found


def open_slice(
    how: ChannelRecovery,
    directory: str,
    number: int,
    channel: str,
    mark: ChannelMark | None,
    below: int | None,
) -> tuple[Slice, int]:
    """(the slice, the highest sequence that anything in it shows). Damaged when writing must stop. `below` is the first
    sequence of the next slice."""
    made = Slice(number, directory)
    entry = how.disk.entry(made.data_path)
    data_size = entry.size if entry is not None else 0
    index = _index_file(how, made, data_size)
    summary = stan_index(index, how.poly, how.strict) if index is not None else None
    if data_size < len(HEAD):
        # Nobody could have been promised anything in it, unless the index says so.
        if how.writing and summary is not None and summary.count:
            raise how.stop(made.data_path, 0, "unable to verify file version: EOF", typed=False)
        how.check_head(made.data_path, data_size)
        if summary is None or not summary.count:
            if how.writing and index is None:
                how.disk.replace_file(made.index_path, HEAD)
            return made, 0
    else:
        how.check_head(made.data_path, data_size)
    growing = how.live_writer and summary is not None and summary.problem == "unexpected EOF"
    if summary is not None and index is not None and summary.count and (growing or not summary.problem):
        end = _end(summary.last)
        if (data_size == end or (how.live_writer and data_size > end)) and _last_is_sound(
            how, made, index, summary
        ):
            made.count = made.indexed = summary.count
            _set_bounds(made, summary.first, summary.last)
            made.counted, made.data_end = summary.counted_bytes, end
            return made, summary.last.sequence
    elif data_size == len(HEAD) and (summary is None or not (summary.count or summary.problem)):
        if how.writing and index is None:
            how.disk.replace_file(made.index_path, HEAD)
        return made, 0
    return _mend(how, made, index, channel, mark, summary, below)


def index_bytes_max(data_size: int) -> int:
    """What a slice's index can have at most; a writer may be ahead with the messages of a moment."""
    return len(HEAD) + ENTRY_BYTES * (data_size // FRAME_BYTES + _AHEAD_MAX)


def _index_file(how: ChannelRecovery, made: Slice, data_size: int) -> DiskFile | None:
    """The index, if it is there and begins as an index; any other one is made anew."""
    if not is_there(how.disk, made.index_path):
        return None
    try:
        file = how.disk.open(made.index_path)
    except DiskFault as problem:
        if may_pass(problem, made.index_path):
            raise
        how.damage.append(unreadable(made.index_path, problem))
        return None
    if len(file) > index_bytes_max(data_size):
        detail = (
            f"{len(file)} bytes are more than {data_size} bytes of messages can have entries; it is made anew"
        )
        how.note(made.index_path, 0, len(file), "index", detail)
        return None
    head = file.read_at(0, len(HEAD))
    if head == HEAD:
        return file
    how.note(
        made.index_path, 0, len(file), "index", "the file does not begin as an index does; it is made anew"
    )
    return None


def _last_is_sound(how: ChannelRecovery, made: Slice, index: DiskFile, summary: StanIndexSummary) -> bool:
    count, sequence = summary.count, summary.last.sequence
    data = how.disk.open(made.data_path)
    batch, _, findings, _ = stan_read(
        data, index, count, sequence - count + 1, sequence, sequence + 1, 1, 1, how.poly, how.strict, None
    )
    return len(batch) == 1 and not findings


def _mend(
    how: ChannelRecovery,
    made: Slice,
    index: DiskFile | None,
    channel: str,
    mark: ChannelMark | None,
    summary: StanIndexSummary | None,
    below: int | None,
    cut_at: int | None = None,
) -> tuple[Slice, int]:
    data = how.disk.open(made.data_path)
    mended = stan_mend(data, index, channel, how.poly, how.strict, cut_at, below)
    findings, sound_end, highest = mended.findings, mended.sound_end, mended.highest_seq
    if index is None and not is_there(how.disk, made.index_path):
        how.note(made.index_path, 0, 0, "index", "the index is missing; it is made from the data file")
    for in_index, kind, offset, _, _, _, detail in findings if how.writing else []:
        torn = mark is not None and not mark.covers(made.number, offset)
        lone_head = len(data) - offset == FRAME_BYTES
        if in_index or kind != "bad-record" or torn or lone_head:
            continue
        if how.truncate and _ends_inside(data, offset):
            how.cut(made.data_path, offset)
            made, again = _mend(how, made, index, channel, mark, summary, below, offset)
            return made, max(highest, again)
        raise how.stop(made.data_path, offset, detail, typed=False)
    how.damage += findings_to_damage(made.data_path, made.index_path, findings)
    if mended.differs and how.writing:
        if mended.taken_in:
            vouched = _end(summary.last) if summary is not None and summary.count else len(HEAD)
            _write_again(how.disk, made.data_path, min(vouched, sound_end), sound_end)
        how.disk.replace_file(made.index_path, mended.index)
    elif mended.differs:
        made.index = memory_file(mended.index)
    made.ended = any(not in_index and offset >= sound_end for in_index, _, offset, *_ in findings)
    if mended.first is None or mended.last is None:
        return made, highest
    made.count = made.indexed = mended.count
    _set_bounds(made, mended.first, mended.last)
    made.counted, made.data_end = mended.counted_bytes, sound_end
    return made, max(highest, mended.last.sequence)


def _set_bounds(made: Slice, first: StanEntry, last: StanEntry) -> None:
    made.first, made.last = first.sequence, last.sequence
    made.first_time_ns, made.last_time_ns = first.time_ns, last.time_ns


def _end(entry: StanEntry) -> int:
    return entry.offset + FRAME_BYTES + entry.size


def _ends_inside(data: DiskFile, offset: int) -> bool:
    """Whether the file ends inside the record that begins there."""
    head, size = data.read_at(offset, FRAME_BYTES), len(data)
    return (
        len(head) < FRAME_BYTES or offset + FRAME_BYTES + int.from_bytes(head[:SIZE_BYTES], "little") > size
    )


def _write_again(disk: Disk, path: str, start: int, end: int) -> None:
    """Records that no sync was seen for are written again where they stand: what a failed sync left in memory only
    is then on disk before the index names it."""
    file = disk.open(path, "write")
    for at in range(start, end, _PIECE):
        file.write_at(at, file.read_at(at, min(_PIECE, end - at)))
    file.sync_data()


def memory_file(content: bytes) -> DiskFile:
    """Bytes as a file that is nowhere."""
    file = Disk.memory().open("/index", "write")
    file.write_at(0, content)
    return file
