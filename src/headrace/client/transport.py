"""A socket and its intake: plain ones are moved by the core, TLS ones by Python's ssl."""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import Protocol

from headrace.client._kernels import Intake
from headrace.errors import ConnectionLost

READ_BYTES = 256 << 10


class Transport(Protocol):
    """Bytes out; in, until something is there."""

    def send(self, data: bytes, timeout: float) -> None: ...
    def receive(self, messages: int, size: int, floor: int, timeout: float) -> bool: ...
    def close(self) -> None: ...


class PlainTransport:
    """The core reads and writes; the interpreter's lock is free meanwhile."""

    def __init__(self, sock: socket.socket, intake: Intake) -> None:
        self._sock, self._intake = sock, intake
        sock.setblocking(False)

    def send(self, data: bytes, timeout: float) -> None:
        self._intake.send(self._sock.fileno(), data, timeout)

    def receive(self, messages: int, size: int, floor: int, timeout: float) -> bool:
        return self._intake.receive(self._sock.fileno(), messages, size, floor, timeout)

    def close(self) -> None:
        self._sock.close()


class TlsTransport:
    """The same over TLS. Sending takes what comes meanwhile too: a server that cannot write stops reading."""

    def __init__(self, sock: ssl.SSLSocket, intake: Intake) -> None:
        self._sock, self._intake = sock, intake
        sock.setblocking(False)

    def send(self, data: bytes, timeout: float) -> None:
        view, until = memoryview(data), time.monotonic() + timeout
        while view:
            try:
                view = view[self._sock.send(view[:READ_BYTES]) :]
                until = time.monotonic() + timeout
            except ssl.SSLWantWriteError:
                self._wait(write=True, until=until)
            except ssl.SSLWantReadError:
                self._wait(write=False, until=until)
            except OSError as problem:
                raise ConnectionLost(f"the connection broke: {problem}") from None
            self._take()
        self._take()

    def receive(self, messages: int, size: int, floor: int, timeout: float) -> bool:
        until = time.monotonic() + timeout
        while True:
            got = self._take()
            if self._intake.ready(messages, size, floor):
                return True
            if not got and not self._wait(write=False, until=until, soft=True):
                return False

    def _take(self) -> bool:
        try:
            data = self._sock.recv(READ_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as problem:
            raise ConnectionLost(f"the connection broke: {problem}") from None
        if not data:
            raise ConnectionLost("the server closed the connection")
        self._intake.feed(data)
        return True

    def _wait(self, *, write: bool, until: float, soft: bool = False) -> bool:
        left = max(until - time.monotonic(), 0)
        ready = select.select([self._sock], [self._sock] if write else [], [], left)
        if ready[0] or ready[1]:
            return True
        if soft:
            return False
        raise ConnectionLost("nothing was sent or received for too long")

    def close(self) -> None:
        self._sock.close()
