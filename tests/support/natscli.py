"""The real `nats` command for tests, against whichever server."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.peers import find_peer

LIMIT_S = 60


class Cli:
    """`Cli(url, home)("stream", "ls")`: its output; fails with it if the exit code is not the expected one."""

    def __init__(self, url: str, home: Path, *options: str) -> None:
        self._url, self._options = url, options
        self._program = find_peer("nats", "0.3.0")
        self._environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "NO_COLOR": "1"}

    def command(self, *words: str) -> list[str]:
        """What is run."""
        return [str(self._program), "-s", self._url, *self._options, *words]

    def __call__(self, *words: str, code: int | None = 0, stdin: str = "") -> str:
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            input=stdin,
            timeout=LIMIT_S,
            env=self._environment,
            check=False,
        )
        output = done.stdout + done.stderr
        assert code is None or done.returncode == code, (
            f"nats {' '.join(words)}: exit {done.returncode}\n{output}"
        )
        return output

    def json(self, *words: str) -> Any:
        """The same with its JSON decoded."""
        done = subprocess.run(
            self.command(*words, "--json"),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=self._environment,
            check=False,
        )
        assert done.returncode == 0, f"nats {' '.join(words)}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Runs beside the test; the caller ends it."""
        return subprocess.Popen(
            self.command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
        )

    def beside(self, *words: str) -> Beside:
        """The same for commands that go on: what they print is waited for."""
        return Beside(self.start(*words))


class Beside:
    """A command that runs beside the test, and what it has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._lines = process, list[str]()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def until(self, text: str, again: Callable[[], object] = lambda: None) -> str:
        """Wait until it has printed the text; `again` is done before each look. Returns all it has printed."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            again()
            wait_until = time.monotonic() + 1
            while time.monotonic() < wait_until:
                if text in self.output:
                    return self.output
                time.sleep(0.02)
            assert time.monotonic() < deadline, f"no {text!r} in {self.output!r}"

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
