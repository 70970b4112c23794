"""The two forms of a snapshot, as codecs over iterators of bytes. Both travel S2-compressed.

    tar      (2.6 to 2.14)  PAX tar: meta.inf, meta.sum, msgs/N.*, obs/<consumer>/{meta.inf,meta.sum,o.dat}
    archive  (2.15)         "NATSARC1", then entries
        entry     uvarint name length | varint time ns | uvarint sequence | uvarint header length
                  | uvarint payload length | name | headers | payload
        order     state.json · consumers/<name> · one entry per live message (name = subject) · empty name

    S2 stream: chunks of  u8 type | u24 length | bytes.  ff identifier, 00 compressed, 01 plain,
    80..fe skippable. Each chunk stands for itself, so streams may be joined, and read piece by piece.

Everything a stranger may send is limited here: sizes before they are allocated, names before they are used.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.errors import Damaged
from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream._kernels import Batch
from headrace.layouts.jetstream.snapshots.snapshot_json import decode_log_state
from headrace.layouts.varint import (
    Overlong,
    Truncated,
    get_uvarint,
    get_varint,
    put_uvarint,
    put_varint,
)

MAGIC = b"NATSARC1"
STATE_ENTRY = "state.json"
CONSUMER_PREFIX = "consumers/"
S2_IDENTIFIER = b"\xff\x06\x00\x00S2sTwO"
_SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_CHUNK_HEAD_BYTES = 4
_CHUNK_OUTPUT_MAX = 4 << 20  # S2 has no larger blocks
_PIECE_BYTES = 1 << 20
_NAME_BYTES_MAX = 4096
_JSON_BYTES_MAX = 64 << 20
_MESSAGES_AT_ONCE = 65_536
_TAR_BLOCK = 512
TAR_MEMBERS_MAX = 1_000_000
TAR_MEMBER_BYTES_MAX = 1 << 30
_REMEDY = "take the snapshot again"


def compress(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces as S2, about a megabyte at a time."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        if len(waiting) >= _PIECE_BYTES:
            yield _kernels.s2_compress(bytes(waiting))
            waiting.clear()
    yield _kernels.s2_compress(bytes(waiting))


def decompress(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The plain bytes of an S2 stream that arrives in pieces of any size. Damaged if it is none."""
    waiting, place = bytearray(), 0
    for piece in pieces:
        waiting += piece
        whole, used = _whole_chunks(waiting, place)
        del waiting[:used]
        place += used
        if whole:
            plain_max = len(whole) * _CHUNK_OUTPUT_MAX
            yield _kernels.s2_decompress(S2_IDENTIFIER + b"".join(whole), plain_max)
    if waiting:
        raise _damaged(place, f"{len(waiting)} bytes of a chunk", "a whole chunk")


def _whole_chunks(data: bytearray, place: int) -> tuple[list[bytes], int]:
    """The chunks with content that are complete, and the bytes they and the skipped ones take."""
    found: list[bytes] = []
    at = 0
    while at + _CHUNK_HEAD_BYTES <= len(data):
        kind, size = data[at], int.from_bytes(data[at + 1 : at + _CHUNK_HEAD_BYTES], "little")
        if place + at == 0 and kind != S2_IDENTIFIER[0]:
            raise _damaged(0, bytes(data[:10]).hex(), "an S2 stream")
        if 1 < kind < 0x80:
            raise _damaged(place + at, f"chunk type {kind:#x}", "00, 01 or a skippable one")
        end = at + _CHUNK_HEAD_BYTES + size
        if end > len(data):
            break
        chunk = bytes(data[at:end])
        if kind == S2_IDENTIFIER[0] and chunk not in (S2_IDENTIFIER, _SNAPPY_IDENTIFIER):
            raise _damaged(place + at, chunk[:10].hex(), "the identifier S2sTwO")
        if kind <= 1:
            found.append(chunk)
        at = end
    return found, at


def write_tar(files: Iterable[tuple[str, bytes]], time_ns: int) -> Iterator[bytes]:
    """A PAX tar of the files, in their order (meta.inf and meta.sum first, then msgs, then obs)."""
    for name, data in files:
        member = tarfile.TarInfo(_checked_name(name))
        member.size, member.mode, member.mtime = len(data), 0o600, time_ns / 1e9
        member.uname = member.gname = "nats"
        yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        yield data
        yield bytes(-len(data) % _TAR_BLOCK)
    yield bytes(2 * _TAR_BLOCK)


def read_tar(
    pieces: Iterable[bytes],
    *,
    members_max: int = TAR_MEMBERS_MAX,
    member_bytes_max: int = TAR_MEMBER_BYTES_MAX,
) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every file. Damaged for anything but plain files with harmless names."""
    source = _PieceReader(pieces)
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=_TAR_BLOCK) as tar:
            for count, member in enumerate(tar):
                if count >= members_max:
                    raise _damaged(member.offset, f"more than {members_max} files", "fewer")
                if not member.isreg() or not 0 <= member.size <= member_bytes_max:
                    seen = f"{member.name!r} of type {member.type!r} with {member.size} bytes"
                    raise _damaged(member.offset, seen, f"plain files up to {member_bytes_max} bytes")
                name, file = _checked_name(member.name), tar.extractfile(member)
                data = file.read() if file is not None else b""
                if len(data) != member.size:
                    raise _damaged(member.offset, f"{len(data)} bytes of {name!r}", f"{member.size}")
                yield name, data
    except (tarfile.TarError, ValueError, OverflowError, EOFError, KeyError, IndexError) as error:
        raise _damaged(source.taken, str(error), "a tar archive") from error


class _PieceReader(io.RawIOBase):
    """The pieces as a file that tarfile can read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest, self.taken = iter(pieces), b"", 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        parts, wanted = [self._rest], size
        have = len(self._rest)
        while size < 0 or have < wanted:
            piece = next(self._pieces, None)
            if piece is None:
                break
            parts.append(piece)
            have += len(piece)
        data = b"".join(parts)
        result = data if size < 0 else data[:wanted]
        self._rest = data[len(result) :]
        self.taken += len(result)
        return result


@dataclass(frozen=True, slots=True)
class Document:
    """`state.json` or a consumer of an archive."""

    kind: Literal["state", "consumer"]
    name: str
    data: bytes


def write_archive(
    state: bytes, consumers: Iterable[tuple[str, bytes]], batches: Iterable[Batch], time_ns: int
) -> Iterator[bytes]:
    """A NATSARC1 archive: the JSON of the stream's state, (name, JSON) of consumers, all live messages."""
    yield MAGIC + _entry(STATE_ENTRY, state, time_ns)
    for name, document in consumers:
        yield _entry(CONSUMER_PREFIX + name, document, time_ns)
    for batch in batches:
        yield _kernels.natsarc_encode(batch)
    yield _entry("", b"", 0)


def read_archive(pieces: Iterable[bytes]) -> Iterator[Document | Batch]:
    """The documents, then the messages, of a NATSARC1 archive. Damaged if it does not end as it should.

    How many consumers there are is said by state.json: a message may have a subject like
    `consumers/x`, so the name alone does not say.
    """
    source = _Entries(pieces)
    source.magic()
    name, state = source.document()
    if name != STATE_ENTRY:
        raise _damaged(source.place, repr(name), STATE_ENTRY)
    yield Document("state", name, state)
    for _ in range(decode_log_state(state).consumers):
        name, data = source.document()
        if not name.startswith(CONSUMER_PREFIX):
            raise _damaged(source.place, repr(name), f"an entry {CONSUMER_PREFIX}<name>")
        yield Document("consumer", name.removeprefix(CONSUMER_PREFIX), data)
    yield from source.messages()


class _Entries:
    """The entries of an archive, over bytes that arrive in pieces of any size."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._data, self._at, self._before = iter(pieces), b"", 0, 0

    @property
    def place(self) -> int:
        return self._before + self._at

    def magic(self) -> None:
        while len(self._data) < len(MAGIC) and self._more():
            pass
        if not self._data.startswith(MAGIC):
            raise _damaged(0, self._data[: len(MAGIC)].hex() or "nothing", MAGIC.decode())
        self._at = len(MAGIC)

    def document(self) -> tuple[str, bytes]:
        """An entry that is not a message."""
        while True:
            try:
                name_size, at = get_uvarint(self._data, self._at)
                _, at = get_varint(self._data, at)
                _, at = get_uvarint(self._data, at)
                header_size, at = get_uvarint(self._data, at)
                size, at = get_uvarint(self._data, at)
            except Overlong as error:
                raise _damaged(self.place, "a number above 64 bits", "an entry") from error
            except Truncated:
                self._need()
                continue
            if name_size > _NAME_BYTES_MAX or header_size or size > _JSON_BYTES_MAX:
                raise _damaged(self.place, f"{name_size} + {header_size} + {size} bytes", "a document")
            if at + name_size + size > len(self._data):
                self._need()
                continue
            name = self._data[at : at + name_size].decode("utf-8", "replace")
            self._at = at + name_size + size
            return name, self._data[at + name_size : self._at]

    def messages(self) -> Iterator[Batch]:
        while True:
            batch, next_at, ended, problem = _kernels.natsarc_decode(self._data, self._at, _MESSAGES_AT_ONCE)
            stuck, self._at = next_at == self._at, next_at
            if len(batch):
                yield batch
            if ended:
                if self._at < len(self._data) or self._more():
                    raise _damaged(self.place, "bytes behind the last entry", "the end")
                return
            if problem is not None:
                raise _damaged(self.place, problem, "a message")
            if stuck:
                self._need()

    def _need(self) -> None:
        if not self._more():
            raise _damaged(self.place, "the end of the snapshot", "its last entry")

    def _more(self) -> bool:
        """Take the next piece that is not empty; what was read before goes."""
        piece = next((each for each in self._pieces if each), None)
        if piece is None:
            return False
        self._data, self._before, self._at = self._data[self._at :] + piece, self._before + self._at, 0
        return True


def _entry(name: str, data: bytes, time_ns: int) -> bytes:
    text, out = name.encode(), bytearray()
    put_uvarint(out, len(text))
    put_varint(out, time_ns)
    for value in (0, 0, len(data)):
        put_uvarint(out, value)
    return bytes(out) + text + data


def _checked_name(name: str) -> str:
    """A relative path of plain parts; anything else could leave the directory it is unpacked in."""
    parts = name.split("/")
    if len(name.encode("utf-8", "replace")) > _NAME_BYTES_MAX or "\0" in name or "\\" in name:
        raise _damaged(0, repr(name[:60]), "a short plain path")
    if any(part in ("", ".", "..") for part in parts):
        raise _damaged(0, repr(name), "a relative path without . and ..")
    return name


def _damaged(offset: int, seen: str, expected: str) -> Damaged:
    return Damaged("snapshot", offset, seen, expected, _REMEDY)
