"""How long a client waits that asks a server for next to nothing: PING, every two milliseconds, from a process of its own.
With a subject it publishes there instead and waits for the acknowledgement.

    with Bystander(port) as bystander:
        bystander.begin()
        …                        what others do meanwhile
        bystander.longest_s()

Run as a program it is the other end: `begin` and `end` on its standard input, the longest wait on its output.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

PAUSE_S = 0.002
ANSWER_S = 30.0


class Bystander:
    """The process that waits."""

    def __init__(self, port: int, subject: str = "") -> None:
        command = [sys.executable, "-m", "tests.support.bystander", str(port), subject]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._said() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=ANSWER_S)

    def begin(self) -> None:
        """Forget what was measured so far."""
        self._write("begin")
        assert self._said() == "begun"

    def longest_s(self) -> float:
        """The longest wait since `begin`, one that is not over included."""
        self._write("end")
        return float(self._said())

    def _write(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def watch(port: int, subject: str) -> None:
    request = f"PUB {subject} bystander 1\r\nx\r\n".encode() if subject else b"PING\r\n"
    answer = b"MSG bystander 1 " if subject else b"PONG\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = server.makefile("rb")
        lines.readline()
        server.sendall(b'CONNECT {"verbose":false}\r\nSUB bystander 1\r\n')
        longest = 0.0
        print("ready", flush=True)
        while True:
            if select.select([sys.stdin], [], [], PAUSE_S)[0]:
                word = sys.stdin.readline().strip()
                if not word:
                    return
                print("begun" if word == "begin" else longest, flush=True)
                longest = 0.0
            began = time.perf_counter()
            server.sendall(request)
            while not (line := lines.readline()).startswith(answer):
                if line == b"PING\r\n":
                    server.sendall(b"PONG\r\n")
            longest = max(longest, time.perf_counter() - began)
            if subject and b'"seq"' not in (acknowledged := lines.readline()):
                raise SystemExit(f"not acknowledged: {acknowledged!r}")


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
