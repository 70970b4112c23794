"""A channel's directory, recovered: slices in order, subscriptions, the next sequence.

The next sequence is above everything that any evidence shows: messages, index entries, sequences in unsound bytes,
what subscribers were sent, what a writer of ours had synced. A sequence that may have been acknowledged is never given
out again. What was synced and is not there is reported; so is a slice that is missing between others, for slices go
from the front only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from headrace.errors import Damaged, HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.directories import make_dirs
from headrace.layouts.nats_streaming._kernels import StanSubs
from headrace.layouts.nats_streaming.home import Home
from headrace.layouts.nats_streaming.marks import ChannelMark, MarkFile, of_channel
from headrace.layouts.nats_streaming.names import SIDE, SUBS, data_path, misplaced, slice_numbers
from headrace.layouts.nats_streaming.recovery import ChannelRecovery
from headrace.layouts.nats_streaming.slices import Slice, open_slice
from headrace.layouts.nats_streaming.subscriptions import TYPES, Subscriptions
from headrace.layouts.places import may_pass

SEQUENCE_MAX = 1 << 62
LOST_LISTED_MAX = 1000
FRONT = f"{SIDE}/front"
"""The first sequence after `drop_front`."""
USED = f"{SIDE}/used"
"""A sequence that was given out, though no message shows it any more."""


@dataclass(slots=True)
class OpenedChannel:
    """What a channel was found to hold."""

    slices: list[Slice]
    table: StanSubs
    subs_size: int
    next_number: int
    next_sequence: int
    front: int
    mark_file: MarkFile
    damage: list[Damage]


def open_channel(
    home: Home, name: str, torn: ChannelMark | None = None, *, live_writer: bool = False
) -> OpenedChannel:
    """Recover one channel. Damaged when it is opened for writing and something may have been lost. `torn` is the mark
    of a channel that has none of its own."""
    directory = home.directory(name)
    how = ChannelRecovery(
        home.disk,
        home.root,
        home.poly,
        home.options.file_crc,
        writing=not home.read_only,
        truncate=home.options.file_truncate_bad_eof and not home.read_only,
        live_writer=live_writer,
    )
    mark_file = of_channel(home.disk, directory, home.syncs)
    mark = None if home.read_only else mark_file.read() or torn
    numbers, wrong = slice_numbers(home.disk, directory)
    for file in wrong:
        if how.writing:
            raise Damaged(
                f"{directory}/{file}", 0, f"message log has an invalid name: {file}", "msgs.<number>.dat",
                "move the file out of the channel's directory",
            )  # fmt: skip
        how.note(f"{directory}/{file}", 0, 0, "metadata", f"message log has an invalid name: {file}")
    for file in misplaced(home.disk, directory):
        detail = "a directory stands where a slice should be; its messages are not there"
        how.note(f"{directory}/{file}", 0, 0, "missing", detail)
    slices, highest = _slices(how, home, name, numbers, mark)
    data = how.read_records(f"{directory}/{SUBS}", TYPES, mark)
    table = Subscriptions.load(how, f"{directory}/{SUBS}", data)
    last = max((found.last for found in slices), default=0)
    evidence = max((v for v in (highest, table.highest_seq) if v < SEQUENCE_MAX), default=0)
    given = _number(home, directory, USED)
    if not live_writer:
        evidence = max(evidence, _note_lost(how, home, name, numbers, max(last, highest, given)))
    used = max(evidence, given)
    if evidence > last and used == evidence and how.writing:
        # What shows it may be cut or compacted away later.
        make_dirs(home.disk, f"{directory}/{SIDE}")
        home.disk.replace_file(f"{directory}/{USED}", str(used).encode())
    last = max(last, used)
    return OpenedChannel(
        slices=slices,
        table=table,
        subs_size=len(data),
        next_number=max(numbers, default=0) + 1,
        next_sequence=last + 1,
        front=_number(home, directory, FRONT),
        mark_file=mark_file,
        damage=how.damage,
    )


def _note_lost(how: ChannelRecovery, home: Home, name: str, numbers: list[int], last: int) -> int:
    """Report slices that should be there; returns the last sequence that is known to have been synced."""
    directory = home.directory(name)
    for before, after in pairwise(numbers):
        for number in range(before + 1, min(after, before + 1 + LOST_LISTED_MAX)):
            detail = f"the slice is not there, though older ones than {number} are"
            how.note(data_path(directory, number), 0, 0, "missing", detail)
    mark = home.before.of(name)
    # A channel that another server has made anew has nothing of ours in its directory.
    if mark is None or home.disk.entry(f"{directory}/{SIDE}") is None:
        return 0
    number, size, synced = mark
    if synced > last:
        path = data_path(directory, number)
        there = "cut short" if number in numbers else "the slice is not there"
        detail = f"{there}; {size} bytes of it were synced, up to sequence {synced}"
        how.note(path, 0, 0, "missing", detail, (last + 1, synced + 1))
    return synced


def _slices(
    how: ChannelRecovery, home: Home, name: str, numbers: list[int], mark: ChannelMark | None
) -> tuple[list[Slice], int]:
    directory, highest = home.directory(name), 0
    slices: list[Slice] = []
    below: int | None = None
    # From the newest to the oldest: what a slice may take in ends where the next one begins.
    for number in reversed(numbers):
        try:
            found, seen = open_slice(how, directory, number, name, mark, below)
        except HeadraceError as problem:
            if how.writing or may_pass(problem, directory):
                raise
            how.note(data_path(directory, number), 0, 0, "bad-record", f"cannot be read: {problem}")
            continue
        highest = max(highest, seen if seen < SEQUENCE_MAX else 0)
        if found.count or (number == numbers[-1] and not found.ended):
            slices.insert(0, found)
        below = found.first if found.count else below
    return slices, highest


def _number(home: Home, directory: str, name: str) -> int:
    """A number that the product has no place for; 0 when there is none."""
    path = f"{directory}/{name}"
    try:
        text = home.disk.read(path, 32).decode("ascii", "replace") if home.disk.entry(path) else "0"
        return min(max(int(text), 0), SEQUENCE_MAX)
    except (HeadraceError, ValueError):
        return 0
