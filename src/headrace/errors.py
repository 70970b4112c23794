"""The exception tree. Every Rust error maps to exactly one class here.

HeadraceError
├── BadInput                 a value the caller gave: name, subject, option, range   (also ValueError)
├── NotFound                 no such store, stream, consumer                          (also LookupError)
│   ├── MessageNotFound      the sequence was removed, expired or never existed
│   └── EndOfStream          the sequence lies beyond the last one
├── AlreadyExists            create of something that is there with another configuration
├── ReadOnly                 a write on a store that was opened for reading
├── StoreFull                a limit with discard=new refuses the message
├── StoreClosed              used after stop/close
├── StoreLocked              another process (or this one) has the directory open for writing
├── StorePoisoned            a sync failed: nothing more is accepted until the store is opened again
├── NotInMemory              a block would have to be read, on a thread that must not wait for that
├── ConnectionLost           a server cannot be reached, or the connection broke
├── ServerRefused            a server answered with an error: its code and text
├── DiskFault                an I/O operation failed
│   └── DiskFull             the disk refused a write; deletes and purge still work
└── Damaged                  bytes on disk are not what they should be: file, offset, seen, expected, remedy
    ├── UnknownFormat        not a directory of a product and era we know
    └── KeyNeeded            the store is encrypted and no (or a wrong) key was given
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Everything this package raises on purpose."""


class BadInput(HeadraceError, ValueError):
    """A value that the caller gave cannot be used; the message says which and why."""


class NotFound(HeadraceError, LookupError):
    """No such store, stream or consumer."""


class MessageNotFound(NotFound):
    """The sequence was removed, has expired, or never existed."""


class EndOfStream(NotFound):
    """The sequence lies beyond the last one of the stream."""


class AlreadyExists(HeadraceError):
    """The name is taken by something with another configuration."""


class ReadOnly(HeadraceError):
    """The store was opened for reading; open it with mode="rw" to change it."""


class StoreFull(HeadraceError):
    """A limit of the stream (discard=new) refuses the message; the text is the real server's."""


class StoreClosed(HeadraceError):
    """The store was stopped; open it again."""


class StoreLocked(HeadraceError):
    """Somebody has the directory open for writing; the message says who."""


class StorePoisoned(HeadraceError):
    """A sync failed, so what reached the disk is unknown. Open the store again to go on."""


class NotInMemory(HeadraceError):
    """A block would have to be read from disk, on a thread that must not wait for it: hold the block, then ask again."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"block {number} is not in memory")


class ConnectionLost(HeadraceError):
    """A server cannot be reached, or the connection to it broke; what was not answered may be tried again."""


class ServerRefused(HeadraceError):
    """A server answered with an error."""

    def __init__(self, text: str, code: int = 0) -> None:
        self.code = code
        super().__init__(text)


class DiskFault(HeadraceError):
    """An I/O operation failed; the message names the file and the operation."""


class DiskFull(DiskFault):
    """The disk refused a write for lack of space. Nothing was stored; remove or purge messages."""


class Damaged(HeadraceError):
    """Bytes on disk are not what they should be."""

    def __init__(self, file: str, offset: int, seen: str, expected: str, remedy: str) -> None:
        self.file, self.offset, self.seen, self.expected, self.remedy = (
            file,
            offset,
            seen,
            expected,
            remedy,
        )
        super().__init__(f"{self._place()}: found {seen}, expected {expected}; {remedy}")

    def _place(self) -> str:
        return f"{self.file}: at byte {self.offset}"


class UnknownFormat(Damaged):
    """Not a directory or file of a product and era that Headrace knows."""

    def _place(self) -> str:
        return super()._place() if self.offset else self.file


class KeyNeeded(Damaged):
    """The store is encrypted; give the server's key (and the right one)."""
