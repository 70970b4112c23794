"""The lock that Java programs take on a file: a POSIX lock. Whoever writes to a directory of Kafka or RocketMQ holds
it, so a broker and Headrace exclude each other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

from headrace.errors import DiskFault, StoreLocked

_FLOCK = "@hhqqi"
# A POSIX lock goes when its process closes any descriptor of the file: what is held here is not opened again.
_held: set[str] = set()


class PosixLock:
    """The lock on one file, held until `release`. `who` names in an error what else takes it."""

    def __init__(self, path: str, who: str) -> None:
        self._path = os.path.realpath(path)
        if self._path in _held:
            raise StoreLocked(f"{path}: this process has the directory open for writing already")
        self._file = _opened(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            pid = holder(path) or 0
            raise StoreLocked(
                f"{path}: a {who} (process {pid}) has this directory open; stop it first, "
                "or open for reading only"
            ) from None
        _held.add(self._path)

    def release(self) -> None:
        """Give it up; the file stays, as the broker leaves it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            _held.discard(self._path)


def _opened(path: str, flags: int) -> int:
    """No link is followed, and nothing but a regular file is locked: a FIFO would hang, a link lead out of the store."""
    try:
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DiskFault(
                f"{path} is a symbolic link, and none is followed inside a store; remove it"
            ) from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise DiskFault(f"{path} is no regular file; move it out of the store")
    return file


def holder(path: str) -> int | None:
    """The process that holds the lock; asks only, so a broker that starts now is not disturbed."""
    if os.path.realpath(path) in _held:
        return os.getpid()
    try:
        file = _opened(path, os.O_RDONLY)
    except (OSError, DiskFault):
        return None
    try:
        lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(file, fcntl.F_GETLK, lock)
        kind, _, _, _, pid = struct.unpack(_FLOCK, answer[: struct.calcsize(_FLOCK)])
        return pid if kind != fcntl.F_UNLCK else None
    except OSError:
        return None
    finally:
        os.close(file)
