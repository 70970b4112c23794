"""Opening a queue for writing: journal and segments as a crash, or RabbitMQ, left them.

1. A segment with unsound bytes is replaced by one without (RabbitMQ hangs in its start on a torn segment); a copy of the
   original goes to `headrace.damaged/` first.
2. The journal is laid over the segments. What both know counts once; an ack counts wherever it stands.
3. The next sequence is above all evidence: segments, journal, `headrace.next`, what `recovery.dets` said. If there was a
   journal, some of it may be missing: then it is the first of the next segment, as RabbitMQ does it.
4. The journal is flushed, so everything lies in synced segments before the first new write.
"""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.rabbitmq import files
from headrace.layouts.rabbitmq._kernels import rabbit_rewritten_segment
from headrace.layouts.rabbitmq.log import RabbitLog


def recover(log: RabbitLog) -> None:
    """Load, put right, flush. References into the store are counted on the way."""
    disk, vhost = log.disk, log.vhost
    kernel = log.fresh_kernel()
    unsure = False
    journal = _journal(log)
    for number in files.numbered(disk, log.directory, "idx"):
        path = f"{log.directory}/{number}.idx"
        data = disk.read(path)
        found = files.damage_of(path, log.fresh_kernel().load_segment(number, data))
        sound, contradicted = rabbit_rewritten_segment(data, number, vhost.entry_count, journal)
        if contradicted and not found:
            detail = "a flush was interrupted; the journal's records are used"
            found = [Damage(path, 0, len(data), "unsound-tail", detail)]
        if found:
            replace(log, path, data, sound, found)
            data, unsure = sound, True
        kernel.load_segment(number, data)
    found = files.damage_of(log.journal_path, kernel.load_journal(journal))
    if found:
        copy = files.keep_copy(disk, vhost.path, log.journal_path, journal)
        log.found += [_with(damage, f"a copy is kept in {copy}") for damage in found]
    keep_unreferenced(log)
    log.note_missing(kernel.reference(vhost.store.kernel, True))
    following = max(kernel.totals().next, files.saved_next(disk, log.directory))
    known = log.note_lost(following)
    if known > following:
        # Pinned: from now on nothing else may know it.
        disk.replace_file(f"{log.directory}/{files.NEXT}", f"{known}\n".encode())
        following, unsure = known, True
    if journal or unsure:
        count = vhost.entry_count
        following = -(-following // count) * count
    log.adopt(kernel, following, len(journal))
    if journal:
        # A flush may have been cut short by the end of its process: what it wrote is readable, not yet on disk.
        for number in files.numbered(disk, log.directory, "idx"):
            disk.open(f"{log.directory}/{number}.idx", "write").sync_data()
        disk.sync_dir(log.directory)
        log.flush()


def _journal(log: RabbitLog) -> bytes:
    for name in files.FRESH_JOURNALS:
        files.try_remove(
            log.disk, f"{log.directory}/{name}"
        )  # of a flush that was cut short: all in the segments
    if log.disk.entry(log.journal_path) is None:
        log.disk.open(log.journal_path, "write").sync_data()
        log.disk.sync_dir(log.directory)
        return b""
    return log.disk.read(log.journal_path, files.JOURNAL_BYTES_MAX)


def keep_unreferenced(log: RabbitLog) -> None:
    """With a bad record in an index, what looks unreferenced in the store may be all that is left of a message."""
    if any(damage.kind == "bad-record" for damage in log.found):
        log.vhost.store.may_collect = False


def mend(log: RabbitLog, number: int, path: str, data: bytes, found: list[Damage]) -> bytes:
    """A segment that turned out unsound when it was first used: replaced as in recovery; returns its sound bytes."""
    sound, _ = rabbit_rewritten_segment(data, number, log.vhost.entry_count, b"")
    replace(log, path, data, sound, found)
    keep_unreferenced(log)
    return sound


def replace(log: RabbitLog, path: str, data: bytes, sound: bytes, found: list[Damage]) -> None:
    """The sound bytes take the file's name; a copy of the original is kept first."""
    copy = files.keep_copy(log.disk, log.vhost.path, path, data)
    log.disk.replace_file(path, sound)
    log.found += [_with(damage, f"a copy is kept in {copy}") for damage in found]


def _with(damage: Damage, more: str) -> Damage:
    return Damage(
        damage.file,
        damage.offset,
        damage.length,
        damage.kind,
        f"{damage.detail}; {more}",
        damage.first_seq,
        damage.next_seq,
    )


def recover_quietly(log: RabbitLog) -> str | None:
    """`recover`; what stands in the way is returned, so that one queue cannot stop all others."""
    try:
        recover(log)
    except HeadraceError as problem:
        return f"{log.name}: {problem}"
    return None
