"""The real `nats` command for tests, against whichever server."""

from __future__ import annotations

import json
import os
import subprocess
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
        told = done.stdout + done.stderr
        assert code is None or done.returncode == code, (
            f"nats {' '.join(words)}: exit {done.returncode}\n{told}"
        )
        return told

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
