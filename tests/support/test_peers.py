"""The peers' own test: each pinned server starts, greets, survives kill -9 and a second start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.peers import NatsServer, PeerFailed, find_peer


@pytest.mark.parametrize("version", ["2.6.5", "2.9.10", "2.15.2"])
def test_server_starts_stops_and_starts_again(version: str, tmp_path: Path) -> None:
    with NatsServer(version, tmp_path / "store") as server:
        first_pid, port = server.pid, server.port
        assert version in server.log()
        server.kill()
        server.start()
        assert server.pid != first_pid
        assert server.port == port
        pid = server.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_failing_server_shows_its_log(tmp_path: Path) -> None:
    server = NatsServer("2.15.2", tmp_path / "store", config="no_such_option: 1")
    with pytest.raises(PeerFailed, match="no_such_option"):
        server.start()


def test_a_missing_peer_fails_with_the_remedy() -> None:
    with pytest.raises(pytest.fail.Exception, match="run make peers"):
        find_peer("nats-server", "0.0.0")


def test_command_line_client_is_there() -> None:
    done = subprocess.run(
        [find_peer("nats", "0.3.0"), "--version"], capture_output=True, text=True, timeout=30
    )
    assert "0.3.0" in done.stdout + done.stderr
