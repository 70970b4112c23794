"""The small text files of a log directory and of a partition.

recovery-point-offset-checkpoint, replication-offset-checkpoint, log-start-offset-checkpoint, cleaner-offset-checkpoint
    0 \\n count \\n (topic partition offset \\n)*
leader-epoch-checkpoint       0 \\n count \\n (epoch start-offset \\n)*
partition.metadata            version: 0 \\n topic_id: <22 characters of base64url>
meta.properties               name=value
.kafka_cleanshutdown          its existence counts
"""

from __future__ import annotations

import base64
import binascii

from headrace.errors import BadInput, Damaged
from headrace.layouts.kafka._kernels import Disk
from headrace.layouts.kafka.names import OFFSET_MAX, is_log_name, split_name
from headrace.layouts.shortcuts import read_or_damaged
from headrace.randomness import random_uuid

RECOVERY_POINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
EPOCHS = "leader-epoch-checkpoint"
METADATA = "partition.metadata"
PROPERTIES = "meta.properties"
CLEAN = ".kafka_cleanshutdown"
CLEAN_TEXT = b'{"version":0,"brokerEpoch":-1}'
CHECKPOINTS = (RECOVERY_POINT, HIGH_WATERMARK, LOG_START, CLEANER)
FILE_BYTES_MAX = 64 << 20
_REMEDY = "delete the file: the broker and Headrace do without it, and recover more"


def read_text(disk: Disk, path: str) -> str | None:
    """The text of a small file; None when it is not there."""
    data = read_or_damaged(disk, path, FILE_BYTES_MAX, _REMEDY)
    return None if data is None else data.decode("utf-8", "replace")


def _lines(path: str, text: str, width: int) -> list[list[str]]:
    if not text.strip():
        return []
    lines = text.splitlines()
    if lines[0].strip() != "0":
        raise Damaged(path, 0, f"version {lines[0][:20]!r}", "version 0", _REMEDY)
    count = lines[1].strip() if len(lines) > 1 else ""
    rows = [line.split() for line in lines[2:] if line.strip()]
    if not count.isdecimal() or int(count) != len(rows):
        raise Damaged(path, 2, f"{len(rows)} entries", f"{count[:20]!r} as the second line says", _REMEDY)
    wrong = next((row for row in rows if len(row) != width), None)
    if wrong is not None:
        raise Damaged(path, 0, f"line {' '.join(wrong)[:80]!r}", f"{width} words", _REMEDY)
    return rows


def _number(path: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not digits.isdecimal() or int(digits) > OFFSET_MAX:
        raise Damaged(path, 0, repr(text[:30]), "a number of 63 bits", _REMEDY)
    return int(text)


def read_offsets(disk: Disk, path: str) -> dict[str, int]:
    """Log name → offset. Damaged when the file is not what it should be."""
    rows = _lines(path, read_text(disk, path) or "", 3)
    return {f"{topic}-{partition}": _number(path, offset) for topic, partition, offset in rows}


def write_offsets(disk: Disk, path: str, offsets: dict[str, int]) -> None:
    """Replace a checkpoint: the old one or the new one is there after a crash."""
    disk.replace_file(path, offsets_text(offsets))


def offsets_text(offsets: dict[str, int]) -> bytes:
    """As the file has them."""
    rows = [(*split_name(name), offset) for name, offset in sorted(offsets.items()) if is_log_name(name)]
    text = f"0\n{len(rows)}\n" + "".join(f"{topic} {part} {offset}\n" for topic, part, offset in rows)
    return text.encode()


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """[(leader epoch, its first offset)]."""
    rows = _lines(path, read_text(disk, path) or "", 2)
    return [(_number(path, epoch), _number(path, start)) for epoch, start in rows]


def write_epochs(disk: Disk, path: str, epochs: list[tuple[int, int]]) -> None:
    """Replace the leader epochs of a partition."""
    disk.replace_file(path, epochs_text(epochs))


def epochs_text(epochs: list[tuple[int, int]]) -> bytes:
    """As the file has them."""
    text = f"0\n{len(epochs)}\n" + "".join(f"{epoch} {start}\n" for epoch, start in epochs)
    return text.encode()


def new_topic_id() -> str:
    """A random one, as the broker spells it."""
    return base64.urlsafe_b64encode(random_uuid().bytes).rstrip(b"=").decode()


def check_topic_id(text: str) -> str:
    """Itself; BadInput unless it is 16 bytes in base64url."""
    try:
        raw = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 16 or len(text) != 22:
        raise BadInput(
            f"topic id {text!r}: 22 characters of base64url, as `kafka-topics --describe` prints it"
        )
    return text


def read_topic_id(disk: Disk, directory: str) -> str | None:
    """The topic id of a partition directory; None without (or without a readable) partition.metadata."""
    try:
        text = read_text(disk, f"{directory}/{METADATA}") or ""
    except Damaged:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return fields.get("topic_id")


def write_topic_id(disk: Disk, directory: str, topic_id: str) -> None:
    """Write partition.metadata."""
    disk.replace_file(f"{directory}/{METADATA}", f"version: 0\ntopic_id: {topic_id}".encode())


def read_properties(disk: Disk, path: str) -> dict[str, str]:
    """meta.properties as a mapping; empty when it is not there."""
    text = read_text(disk, path) or ""
    rows = [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {name.strip(): value.strip() for name, value in rows}
