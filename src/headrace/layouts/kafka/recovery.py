"""What recovery does to files. The broker cuts at the first bad batch and deletes all later segments; here a bad batch
is taken out alone.

    before   | sound | BAD | sound | sound | torn      headrace/damaged/<base>.log.<from>-<to>   the bytes, first
    after    | sound | sound | sound |                  offsets keep their hole

Each step can be interrupted: the bad bytes are safe before the log changes, the new file is whole before it takes the
old one's name, and indexes (which describe the old bytes) are gone before that.
"""

from __future__ import annotations

from headrace.layouts.base import Damage
from headrace.layouts.directories import make_dirs
from headrace.layouts.kafka._kernels import Disk, KafkaSurvey
from headrace.layouts.kafka.names import (
    CLEANED,
    DAMAGED,
    DELETED,
    INDEX,
    LOG,
    SEGMENT_ENDINGS,
    SNAPSHOT,
    SWAP,
    TIMES,
    TXN,
    parse_file,
)
from headrace.layouts.kafka.segments import Segment, list_segments

PIECE_BYTES = 4 << 20


def finish_cleaning(disk: Disk, directory: str) -> None:
    """Finish or undo what a cleaner or a deletion had begun, as the broker does when it loads a log."""
    files = [(name, parse_file(name)) for name, is_dir, _ in disk.list(directory) if not is_dir]
    known = [(name, parsed) for name, parsed in files if parsed is not None]
    cleaned = [base for _, (base, _, suffix) in known if suffix == CLEANED]
    changed = False
    for name, (base, _, suffix) in known:
        unfinished = suffix == SWAP and cleaned and base >= min(cleaned)
        if suffix in (DELETED, CLEANED) or unfinished:
            disk.remove_file(f"{directory}/{name}")
            changed = True
    swaps = {base for _, (base, ending, suffix) in known if suffix == SWAP and ending == LOG}
    swaps = {base for base in swaps if disk.entry(f"{directory}/{base:020d}{LOG}{SWAP}") is not None}
    if swaps:
        _swap_in(disk, directory, swaps)
        changed = True
    logs = {base for _, (base, ending, suffix) in known if ending == LOG and not suffix} | swaps
    for name, (base, ending, suffix) in known:
        orphan = ending in SEGMENT_ENDINGS and ending != LOG and not suffix and base not in logs
        if orphan and disk.entry(f"{directory}/{name}") is not None:
            disk.remove_file(f"{directory}/{name}")
            changed = True
    if changed:
        disk.sync_dir(directory)


def _swap_in(disk: Disk, directory: str, bases: set[int]) -> None:
    """A cleaner's results are complete: what they replace goes, then they take its names."""
    all_bases = sorted(segment.base for segment in list_segments(disk, directory))
    for base in sorted(bases):
        swap = Segment(base, directory, 0, SWAP)
        last = swap.survey(disk, None, 4096).last
        for old in (other for other in all_bases if base <= other <= last and other not in bases):
            for ending in (*SEGMENT_ENDINGS, SNAPSHOT):
                path = f"{directory}/{old:020d}{ending}"
                if disk.entry(path) is not None:
                    disk.remove_file(path)
        # Indexes first: the log's new name must never stand beside the old ones.
        for ending in (INDEX, TIMES, TXN, LOG):
            path = f"{directory}/{base:020d}{ending}"
            if disk.entry(f"{path}{SWAP}") is not None:
                disk.rename(f"{path}{SWAP}", path)


def mend(disk: Disk, segment: Segment, found: KafkaSurvey) -> list[Damage]:
    """Take the bad batches of a segment out, put single bits right; returns what happened."""
    damage: list[Damage] = []
    bad = found.bad()
    for at, to, why, first, following, tail, zeros in bad:
        if zeros:
            continue
        kept = _keep(disk, segment, at, to)
        kind = "unsound-tail" if tail else "bad-record"
        damage.append(
            Damage(segment.log_path, at, to - at, kind, f"{why}; its bytes are in {kept}", first, following)
        )
    for at, data, what in found.repairs():
        damage.append(Damage(segment.log_path, at, len(data), "repaired", what))
    drop_indexes(disk, segment)
    if all(tail for *_, tail, _ in bad):
        _patch(disk, segment, found)
    else:
        _rewrite(disk, segment, found)
    return damage


def _keep(disk: Disk, segment: Segment, at: int, to: int) -> str:
    """Copy bytes to a side file, durably."""
    folder = f"{segment.directory}/{DAMAGED}"
    make_dirs(disk, folder)
    path = f"{folder}/{segment.base:020d}{LOG}.{at}-{to}"
    out = disk.open(path, "write")
    out.set_len(0)
    _copy(disk, segment.log_path, at, to, path)
    out.sync_data()
    disk.sync_dir(folder)
    return path


def _copy(disk: Disk, source: str, at: int, to: int, target: str, target_at: int = 0) -> int:
    """Bytes `[at, to)` of one file to a place in another; returns where the next piece goes."""
    file, out = disk.open(source), disk.open(target, "write")
    while at < to:
        piece = file.read_at(at, min(PIECE_BYTES, to - at))
        if not piece:
            break
        out.write_at(target_at, piece)
        at, target_at = at + len(piece), target_at + len(piece)
    return target_at


def drop_indexes(disk: Disk, segment: Segment) -> None:
    """Indexes that describe bytes which will change."""
    segment.reader = None
    for ending in (INDEX, TIMES, TXN):
        if disk.entry(segment.path(ending)) is not None:
            disk.remove_file(segment.path(ending))
    disk.sync_dir(segment.directory)


def _patch(disk: Disk, segment: Segment, found: KafkaSurvey) -> None:
    """Single bits in place, and an unsound end cut off."""
    file = disk.open(segment.log_path, "write")
    for at, data, _ in found.repairs():
        file.write_at(at, data)
    ends = [at for at, *_ in found.bad()]
    if ends:
        file.set_len(min(ends))
    file.sync_data()


def _rewrite(disk: Disk, segment: Segment, found: KafkaSurvey) -> None:
    """The sound parts into a new file, which takes the old one's place."""
    fresh = f"{segment.log_path}{CLEANED}"
    out = disk.open(fresh, "write")
    out.set_len(0)
    repairs = found.repairs()
    at = target = 0
    gaps = [(begin, end) for begin, end, *_ in found.bad()]
    for begin, end in [*gaps, (found.file_bytes, found.file_bytes)]:
        start = target
        target = _copy(disk, segment.log_path, at, begin, fresh, target)
        for patch_at, data, _ in repairs:
            if at <= patch_at < begin:
                out.write_at(start + patch_at - at, data)
        at = end
    out.sync_data()
    disk.rename(fresh, segment.log_path)
    disk.sync_dir(segment.directory)
