"""Ordinary clients in Go, Rust and JavaScript against Headrace: publish, consume, key-value, a restart in between.

Each program is built from its registry's packages (pinned beside it) into the peers' cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.testing import TestServer
from tests.support.peers import cache_dir

HERE = Path(__file__).parent / "clients"
BUILD_S = 900
STEP_S = 60


def build(language: str) -> list[str]:
    """The command that runs the client; built once per version of its sources."""
    target = cache_dir() / f"client-{language}"
    shutil.copytree(
        HERE / language, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target", "node_modules")
    )
    steps = {
        "go": (["go", "mod", "tidy"], ["go", "build", "-o", "client", "."]),
        "rust": (["cargo", "build", "--quiet"],),
        "js": (["npm", "install", "--no-audit", "--no-fund", "--silent"],),
    }
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GONOSUMDB": "github.com/nats-io/*"}
    environment.pop("CARGO_TARGET_DIR", None)
    for step in steps[language]:
        done = subprocess.run(
            step, cwd=target, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(step)}: {done.stdout}{done.stderr}"
    programs = {
        "go": [str(target / "client")],
        "rust": [str(target / "target" / "debug" / "headrace-test-client")],
        "js": ["node", str(target / "main.js")],
    }
    return programs[language]


@pytest.mark.slow
@pytest.mark.parametrize("language", ["go", "rust", "js"])
def test_client(language: str, tmp_path: Path) -> None:
    program = build(language)
    with TestServer(tmp_path / "store") as server:
        client = subprocess.Popen(
            [*program, server.url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            assert client.stdout is not None
            assert client.stdout.readline().split() == ["ready", "1"], client.stdout.read()
            server.kill()
            server.start()
            output, _ = client.communicate(timeout=STEP_S)
            assert output.split() == ["done", "101", "after", "101"], output
        finally:
            client.kill()
