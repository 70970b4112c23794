"""Real servers for tests: found in the cache that `make peers` fills, started on the loopback interface.

    with NatsServer("2.15.2", tmp_path / "js") as server:
        server.url, server.port, server.pid, server.log()
        server.kill()          # kill -9
        server.start()         # the same directory again, on the same port

Each server has its own port (chosen by binding port 0), directory and log, and is ended by its PID.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

START_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
START_TRIES = 3


def cache_dir() -> Path:
    """Where `scripts/peers.py` puts peers."""
    own = os.environ.get("HEADRACE_PEERS")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "headrace" / "peers"


def find_peer(name: str, version: str) -> Path:
    """The program of a pinned peer. A missing one fails the test: it is never skipped in silence."""
    program = cache_dir() / f"{name}-{version}" / name
    if not os.access(program, os.X_OK):
        pytest.fail(f"{name} {version} is not in {cache_dir()}: run make peers", pytrace=False)
    return program


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PeerFailed(Exception):
    """The peer did not do what was asked; the text ends with its log."""


class NatsServer:
    """A nats-server over `store_dir`, JetStream on. Extra configuration lines may be given."""

    def __init__(self, version: str, store_dir: Path, config: str = "", jetstream: str = "") -> None:
        self.version = version
        self.store_dir = store_dir
        self.port = 0
        self._program = find_peer("nats-server", version)
        self._config_lines = config
        self._jetstream_lines = jetstream
        self._process: subprocess.Popen[bytes] | None = None
        # Beside the store, not in it: some tests compare the whole directory.
        self._log_path = store_dir.parent / f"{store_dir.name}.nats-server-{version}.log"
        self._config_path = self._log_path.with_suffix(".conf")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PeerFailed(f"nats-server {self.version} is not running")
        return self._process.pid

    def log(self, lines: int = 40) -> str:
        """The tail of the server's log."""
        try:
            text = self._log_path.read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def start(self) -> Self:
        """Start and wait until clients can connect. A port that was taken meanwhile is chosen anew."""
        if self._process is not None:
            raise PeerFailed(f"nats-server {self.version} is running already")
        self.store_dir.mkdir(parents=True, exist_ok=True)
        for turn in range(1, START_TRIES + 1):
            if self.port == 0 or turn > 1:
                self.port = free_port()
            self._write_config()
            with self._log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [self._program, "-c", self._config_path],
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
        raise PeerFailed(f"nats-server {self.version} did not start on {self.url}:\n{self.log()}")

    def stop(self) -> None:
        """A clean stop: SIGTERM, then wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """No goodbye: kill -9."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and isinstance(error, Exception):
            error.add_note(f"nats-server {self.version}, tail of its log:\n{self.log()}")
        self.stop()

    def _write_config(self) -> None:
        self._config_path.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{\n  store_dir: "{self.store_dir}"\n{self._jetstream_lines}\n}}\n'
            f"{self._config_lines}\n"
        )

    def _wait_for_port(self) -> bool:
        """Ready when the greeting comes: the port alone may be open before JetStream has recovered."""
        process = self._process
        deadline = time.monotonic() + START_LIMIT_S
        while process is not None and process.poll() is None and time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                    client.settimeout(5)
                    if client.recv(5) == b"INFO ":
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
            raise PeerFailed(
                f"nats-server {self.version} did not stop within {STOP_LIMIT_S:.0f} s and was killed:\n{self.log()}"
            ) from None
