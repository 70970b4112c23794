"""What happens to a file that is not sound, when it is opened for writing and when it is only read.

    reading              go on; what is sound is served, the rest is reported
    writing              stop at the first bad record that may have been acknowledged, and print it
      torn by our crash  behind the mark of the life that ended (marks.py): put aside, reported, opened
      truncate_bad_eof   the file ends inside the record: its bytes go to a side file, then the file is cut there
      file_crc=false     a record whose CRC does not fit is taken if its payload can be read

The side file is synced before a byte is cut. Nothing else here ever makes a file shorter.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from headrace.errors import Damaged, DiskFault, HeadraceError
from headrace.layouts.base import Damage
from headrace.layouts.directories import make_dirs
from headrace.layouts.nats_streaming import advice
from headrace.layouts.nats_streaming._kernels import Disk, stan_frame, stan_frames
from headrace.layouts.nats_streaming.marks import ChannelMark
from headrace.layouts.nats_streaming.names import HEAD, SIDE, WITNESS
from headrace.layouts.places import may_pass
from headrace.layouts.shortcuts import is_there, unreadable

LOG = logging.getLogger("headrace")
SMALL_FILE_BYTES_MAX = 1 << 30
_ZEROS_MAX = 64 << 20
REFUSED = "file store should not be opened consecutively with the TruncateUnexpectedEOF option set to true"

Problem = tuple[int, int, str, bool]
"""(offset, end, detail, whether the file ends inside the record)"""


@dataclass(slots=True)
class ChannelRecovery:
    """How one opening treats what it finds, and what it found."""

    disk: Disk
    root: str
    poly: int
    strict: bool = True
    writing: bool = False
    truncate: bool = False
    live_writer: bool = False
    """Somebody else writes just now: what is not in the index yet is left alone."""
    damage: list[Damage] = field(default_factory=lambda: [])

    def note(
        self,
        path: str,
        offset: int,
        length: int,
        kind: str,
        detail: str,
        seqs: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Report a finding."""
        self.damage.append(Damage(path, offset, length, kind, detail, *seqs))

    def stop(self, path: str, offset: int, seen: str, *, typed: bool) -> Damaged:
        """The error for a bad record, after it was printed."""
        lines = advice.dump(self.disk, path, offset, typed=typed, flag=self.truncate, root=self.root)
        for line in lines:
            LOG.error("%s", line)
        return advice.damaged(path, offset, seen, lines)

    def put_aside(self, path: str, offset: int, length: int | None = None) -> str:
        """Copy bytes of a file to a side file and sync it; returns its path."""
        directory, name = path.rsplit("/", 1)
        place = f"{directory}/{SIDE}.{name}" if directory == self.root else f"{directory}/{SIDE}/{name}"
        make_dirs(self.disk, place.rsplit("/", 1)[0])
        target, turn = f"{place}.cut-{offset}", 1
        while self.disk.entry(target) is not None:
            turn += 1
            target = f"{place}.cut-{offset}-{turn}"
        source = self.disk.open(path)
        end = len(source) if length is None else offset + length
        copy, at = self.disk.open(target, "create_new"), offset
        while at < end:
            piece = source.read_at(at, min(1 << 20, end - at))
            if not piece:
                break
            copy.write_at(at - offset, piece)
            at += len(piece)
        copy.sync_data()
        self.disk.sync_dir(target.rsplit("/", 1)[0])
        return target

    def cut(self, path: str, offset: int) -> None:
        """`file_truncate_bad_eof`: the bytes go to a side file first."""
        for line in advice.dump(
            self.disk,
            path,
            offset,
            typed=not path.rsplit("/", 1)[-1].startswith("msgs."),
            flag=True,
            root=self.root,
        ):
            LOG.error("%s", line)
        side = self.put_aside(path, offset)
        file = self.disk.open(path, "write")
        length = len(file) - offset
        file.set_len(offset)
        file.sync_data()
        LOG.warning('File "%s" has been truncated to offset: %d; the bytes are in %s', path, offset, side)
        LOG.warning("Recovery resumes...")
        self.note(path, offset, length, "truncated", f"cut by file_truncate_bad_eof; the bytes are in {side}")

    def check_head(self, path: str, size: int) -> bool:
        """Whether a file begins as it should. Writing: an empty file gets its head, anything else stops."""
        head = self.disk.open(path).read_at(0, 4)
        if head == HEAD:
            return True
        if len(head) < 4 or not any(self.disk.open(path).read_at(0, _ZEROS_MAX)):
            # A name that was there before its content: cut short, or a length without bytes.
            problem = f"unable to verify file version: {'unexpected EOF' if head else 'EOF'}"
            if self.writing:
                file = self.disk.open(path, "write")
                file.write_at(0, HEAD)
                file.sync_data()
            self.note(path, 0, size, "metadata", f"{problem}; the file was just being made, nothing is in it")
            return False
        version = int.from_bytes(head, "little")
        problem = f"unsupported file version: {version} (supports [1..1])"
        if self.writing:
            raise Damaged(
                path,
                0,
                problem,
                "version 1",
                f"{advice.may_be_lost(path)}. Write a sound copy: headrace salvage",
            )
        self.note(path, 0, 4, "metadata", f"{problem}; read as version 1 all the same")
        return True

    # clients.dat and subs.dat

    def read_records(self, path: str, types: int, mark: ChannelMark | None) -> bytes:
        """The sound content of a typed file, cut or healed before if that is what was asked."""
        if not is_there(self.disk, path):
            if self.writing:
                self.disk.replace_file(path, HEAD)
            return HEAD
        try:
            data = self.disk.read(path, SMALL_FILE_BYTES_MAX)
        except DiskFault as problem:
            if self.writing or may_pass(problem, path):
                raise
            self.damage.append(unreadable(path, problem, "metadata"))
            return HEAD
        if not self.check_head(path, len(data)):
            return HEAD
        _, problems, sound_end = stan_frames(data, types, self.poly, self.strict, not self.writing)
        for offset, end, detail, _ in problems:
            self.note(path, offset, end - offset, "bad-record", f"{detail}: {advice.may_be_lost(path)}")
        if not self.writing or not problems:
            return data
        offset, _, detail, cut_short = problems[0]
        self.damage.pop()
        if cut_short and self.truncate:
            self.cut(path, offset)
            return data[:offset]
        lone_head = cut_short and len(data) - offset == 8
        if lone_head or (mark is not None and offset >= mark.records):
            return self._heal(path, data, types, sound_end)
        raise self.stop(path, offset, "unexpected EOF" if cut_short else detail, typed=True)

    def _heal(self, path: str, data: bytes, types: int, sound_end: int) -> bytes:
        """Keep every sound record, the old bytes aside; nothing is appended behind a torn one."""
        frames, problems, _ = stan_frames(data, types, self.poly, self.strict, True)
        side = self.put_aside(path, sound_end)
        whole = HEAD + b"".join(stan_frame(kind, payload, self.poly) for _, kind, payload in frames)
        self.disk.replace_file(path, whole)
        detail = f"{problems[0][2]}: an unfinished write; its bytes are in {side}"
        self.note(path, problems[0][0], len(data) - problems[0][0], "unsound-tail", detail)
        return whole


def take_witness(disk: Disk, root: str, truncate: bool) -> None:
    """`.truncate.lck`: the flag may not be given twice in a row; an opening without it removes the file."""
    path = f"{root}/{WITNESS}"
    if not truncate:
        if disk.entry(path) is not None:
            disk.remove_file(path)
            disk.sync_dir(root)
        return
    if disk.entry(path) is not None:
        raise HeadraceError(
            f"{REFUSED}; open once without the flag (see what it reports), then decide again: {path}"
        )
    disk.open(path, "create_new")
    disk.sync_dir(root)
