"""Names of vhosts, queues and directories.

    <VHOSTHASH> = base36(MD5(vhost))                 "/"        → 628WB79CIFDYO9LJI6DKMI09L
    <QUEUEHASH> = base36(MD5("queue" vhost queue))   "/", "q1"  → 6GR38JRPIL3M68J7JM8E1SMBO

A priority queue has one directory per priority p, made from `queue NUL byte(p)`; here it is called `queue~pN`.
A log is called by its queue, or `vhost/queue` where the vhost is not "/".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import md5

from headrace.errors import BadInput

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NAME_BYTES_MAX = 255
_DIRECTORY = re.compile(r"^[0-9A-Z]{1,25}$")
_WILD = re.compile(r"[*#>?]")


def _base36(text: bytes) -> str:
    value, digits = int.from_bytes(md5(text, usedforsecurity=False).digest()), ""
    while value:
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def vhost_directory(vhost: str) -> str:
    """The directory name of a vhost."""
    return _base36(vhost.encode("utf-8", "surrogateescape"))


def is_directory_name(name: str) -> bool:
    """Whether it could be such a hash."""
    return _DIRECTORY.match(name) is not None


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue of a vhost; `raw` is what the hash is made of (it ends in NUL and the priority, if there is one)."""

    vhost: str
    raw: bytes

    @property
    def directory(self) -> str:
        return _base36(b"queue" + self.vhost.encode("utf-8", "surrogateescape") + self.raw)

    @property
    def priority(self) -> int | None:
        return self.raw[-1] if len(self.raw) >= 2 and self.raw[-2] == 0 else None

    @property
    def queue(self) -> str:
        """The name without the priority."""
        raw = self.raw if self.priority is None else self.raw[:-2]
        return raw.decode("utf-8", "surrogateescape")

    @property
    def label(self) -> str:
        """What the log is called."""
        name = self.queue if self.priority is None else f"{self.queue}~p{self.priority}"
        return name if self.vhost == "/" else f"{self.vhost}/{name}"

    def file(self) -> bytes:
        """The content of `.queue_name`."""
        return b"VHOST: " + self.vhost.encode("utf-8", "surrogateescape") + b"\nQUEUE: " + self.raw + b"\n"

    @staticmethod
    def from_file(data: bytes) -> QueueName | None:
        """From `.queue_name`; a name may itself hold line ends, so the whole file is one pattern. A third line, of RabbitMQ
        3.10 and later, names the queue's version."""
        match = re.fullmatch(rb"VHOST: (.*?)\nQUEUE: (.*?)\n(?:INDEX: v[0-9]\n)?", data, re.DOTALL)
        return None if match is None else QueueName(match[1].decode("utf-8", "surrogateescape"), match[2])


def new_queue(name: str, priority: int | None = None) -> QueueName:
    """The queue that a log name stands for. BadInput for what could be taken for a path or a pattern."""
    vhost, slash, queue = name.partition("/")
    if not slash:
        vhost, queue = "/", name
    for what, text in (("vhost", vhost if slash else "x"), ("queue", queue)):
        if not text or "/" in text or "\0" in text or text in (".", "..") or _WILD.search(text):
            raise BadInput(
                f"{what} name {text!r}: not empty, no '/', no NUL, no wildcard, not '.' or '..'; "
                "a log is called 'queue', or 'vhost/queue' in another vhost than '/'"
            )
        if len(text.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
            raise BadInput(f"{what} name {text[:40]!r}…: at most {NAME_BYTES_MAX} bytes")
    if priority is not None and not 0 <= priority <= 255:
        raise BadInput(f"priority {priority}: 0 to 255")
    raw = queue.encode("utf-8", "surrogateescape")
    return QueueName(vhost, raw if priority is None else raw + bytes((0, priority)))
