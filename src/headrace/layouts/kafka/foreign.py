"""The broker's lock: a POSIX lock on `.lock`. Whoever writes holds it, so a broker and Headrace exclude each other."""

from __future__ import annotations

import fcntl
import os
import struct

from headrace.errors import StoreLocked

LOCK = ".lock"
_FLOCK = "@hhqqi"
# A POSIX lock goes when its process closes any descriptor of the file: what is held here is not opened again.
_held: set[str] = set()


class BrokerLock:
    """The lock of one log directory, held until `release`."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        if self._path in _held:
            raise StoreLocked(f"{path}: this process has the log directory open for writing already")
        self._file = os.open(f"{path}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            pid = holder(path) or 0
            raise StoreLocked(
                f"{path}: a Kafka broker (process {pid}) has this log directory open; stop it first, "
                "or open for reading only"
            ) from None
        _held.add(self._path)

    def release(self) -> None:
        """Give it up; the file stays, as the broker leaves it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            _held.discard(self._path)


def holder(path: str) -> int | None:
    """The process that holds the broker's lock; asks only, so a broker that starts now is not disturbed."""
    if os.path.realpath(path) in _held:
        return os.getpid()
    try:
        file = os.open(f"{path}/{LOCK}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
        kind, _, _, _, pid = struct.unpack(_FLOCK, answer[: struct.calcsize(_FLOCK)])
        return pid if kind != fcntl.F_UNLCK else None
    except OSError:
        return None
    finally:
        os.close(file)
