"""What damage means and what to do, per file: the list of the product's own document, with our steps.

The dump of a bad record follows the server's log lines, so that people find what they know.
"""

from __future__ import annotations

from headrace.errors import Damaged
from headrace.layouts.nats_streaming._kernels import Disk

_PER_LINE = 20
_SHOWN_MAX = 4096

LOSS = {
    "server.dat": (
        "it holds the cluster id and the subjects that clients use; no message is in it",
        "stop all clients, remove server.dat, open again (it is made anew and the channels are kept), start the clients",
    ),
    "clients.dat": (
        "it holds the registered clients; without some of its records clients may be unknown to the server (it neither "
        "delivers to them nor takes their messages until they connect again), or gone ones may be known",
        "open once with file_truncate_bad_eof if it ends inside a record, else with file_crc=false, or remove it: "
        "clients then have to connect again",
    ),
    "subs.dat": (
        "it holds the channel's subscriptions; without some of its records subscribers may be unknown and get "
        "nothing, and acknowledged messages may be delivered again",
        "open once with file_truncate_bad_eof if it ends inside a record, else with file_crc=false; "
        "`headrace salvage` writes a copy with everything that is sound",
    ),
    "msgs.dat": (
        "it holds messages: those in the damaged bytes are lost, in the middle of a channel they leave a gap in the "
        "sequences",
        "read what is sound (`headrace cat`), or write a sound copy (`headrace salvage`); to go on here, open once with "
        "file_truncate_bad_eof if the file ends inside a record, or with file_crc=false: it takes the damaged message as "
        "it is, if it can still be read as one",
    ),
    "msgs.idx": (
        "it says which records of the data file are live; it is made again from them",
        "nothing has to be done: opening for writing rebuilds it",
    ),
}


def kind_of(path: str) -> str:
    """Which row of `LOSS` a file belongs to."""
    name = path.rsplit("/", 1)[-1]
    return f"msgs.{name.rsplit('.', 1)[-1]}" if name.startswith("msgs.") else name


def may_be_lost(path: str) -> str:
    """What damage in a file may cost."""
    return LOSS.get(kind_of(path), ("", ""))[0]


def step(path: str) -> str:
    """What to do about it."""
    return LOSS.get(kind_of(path), ("", ""))[1]


def damaged(path: str, offset: int, seen: str, dump: list[str] | None = None) -> Damaged:
    """The error that stops an opening for writing; the dump of the record is among its notes."""
    error = Damaged(path, offset, seen, "a sound record", f"{may_be_lost(path)}. {step(path)}")
    for line in dump or []:
        error.add_note(line)
    return error


def dump(disk: Disk, path: str, offset: int, *, typed: bool, flag: bool, root: str) -> list[str]:
    """The first bad record for people."""
    file = disk.open(path)
    left = max(len(file) - offset, 0)
    data = file.read_at(offset, min(left, _SHOWN_MAX))
    head, payload = data[:8], data[8:]
    word = int.from_bytes(head[:4], "little")
    size = word & 0xFF_FFFF if typed else word
    short = len(head) < 8 or size > left - 8
    lines = [f"{path}: {'ends inside a record' if short else 'a record that is not sound'}, at byte {offset}"]
    if not flag:
        lines += [
            f"first copy all of {root} to a safe place; whatever is done next may lose messages",
            f"file_truncate_bad_eof would cut this file at byte {offset}"
            if short
            else "file_crc=false would take the record as it is",
        ]
    lines.append(f"the record's head: {head.hex(' ')}")
    if len(head) == 8:
        kind = f"type {word >> 24}, " if typed else ""
        lines.append(f"{kind}size {size}, CRC 0x{int.from_bytes(head[4:], 'little'):08x}; its payload:")
        lines += _hex_lines(payload[:size])
    if len(head) < 8:
        lines.append(f"the head is {len(head)} bytes long, of 8")
    elif short:
        lines.append(f"the payload is {left - 8} bytes long, of {size}")
    return lines


def _hex_lines(data: bytes) -> list[str]:
    lines: list[str] = []
    for start in range(0, len(data), _PER_LINE):
        piece = data[start : start + _PER_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{piece.hex(' '):<{_PER_LINE * 3 - 1}} - {text}")
    return lines
