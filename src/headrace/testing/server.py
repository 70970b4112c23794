"""A Headrace server for tests: a process of its own, on the loopback interface, ended by its PID.

    with TestServer(tmp_path / "store") as server:
        nats.connect(server.url)
        server.kill()          # kill -9
        server.start()         # the same directory and port again

In pytest: the fixture `headrace_server` is one that runs.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

START_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
START_TRIES = 3
GREETING_S = 0.3
READY = b"Server is ready"


class ServerFailed(Exception):
    """The server did not do what was asked; the text ends with its log."""


class TestServer:
    """`headrace serve` over a directory. More flags may be given: `flags=["--sync", "2m"]`."""

    __test__ = False  # the name begins as pytest expects of tests

    def __init__(
        self, store_dir: Path, flags: Sequence[str] = (), *, jetstream: bool = True, config: str = ""
    ) -> None:
        self.store_dir, self.flags, self.port = store_dir, list(flags), 0
        self.http_port: int | None = None
        self._jetstream, self._config = jetstream, config
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begins = 0
        self._log_path = store_dir.parent / f"{store_dir.name}.headrace.log"

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process, while it runs."""
        if self._process is None:
            raise ServerFailed("the server is not running")
        return self._process.pid

    def log(self, lines: int = 40) -> str:
        """The tail of its log."""
        try:
            return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"

    def start(self) -> Self:
        """Start and wait until clients can connect. A port that was taken meanwhile is chosen anew."""
        if self._process is not None:
            raise ServerFailed("the server is running already")
        self.store_dir.parent.mkdir(parents=True, exist_ok=True)
        for turn in range(START_TRIES):
            if self.port == 0 or turn:
                self.port = _free_port()
            with self._log_path.open("ab") as log:
                self._log_begins = log.tell()
                self._process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            if self._wait_for_port():
                return self
            taken = "address already in use" in self.log()
            self.kill()
            if not taken:
                break
        raise ServerFailed(f"the server did not start on {self.url}:\n{self.log()}")

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "headrace.cli", "serve", "-a", "127.0.0.1", "-p", str(self.port)]
        command += ["-js", "-sd", str(self.store_dir)] if self._jetstream else ["--no-jetstream"]
        if self._config:
            path = self._log_path.with_suffix(".conf")
            path.write_text(self._config)
            command += ["-c", str(path)]
        return command + self.flags

    def stop(self) -> None:
        """A clean stop (SIGINT), then wait."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """No goodbye: kill -9."""
        self._end(signal.SIGKILL)

    def signal(self, which: signal.Signals) -> None:
        """Send it a signal and go on."""
        if self._process is not None:
            self._process.send_signal(which)

    def wait(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Until it ends by itself; its exit code."""
        process, self._process = self._process, None
        if process is None:
            raise ServerFailed("the server is not running")
        return process.wait(limit_s)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(f"tail of the server's log:\n{self.log()}")
        self.stop()

    def _wait_for_port(self) -> bool:
        """Ready when the greeting comes, or, where TLS comes first and nothing is said in clear, when the log says so."""
        process, deadline = self._process, time.monotonic() + START_LIMIT_S
        while process is not None and process.poll() is None and time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                    client.settimeout(GREETING_S)
                    if client.recv(1):
                        return True
            except TimeoutError:
                with self._log_path.open("rb") as log:
                    log.seek(self._log_begins)
                    if READY in log.read():
                        return True
            except OSError:
                time.sleep(0.02)
        return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerFailed(f"the server did not stop and was killed:\n{self.log()}") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
