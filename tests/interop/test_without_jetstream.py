"""Clients that ask for JetStream where there is none: the same bytes as from nats-server."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.server import TestServer
from tests.support.model import Msg
from tests.support.peers import NatsServer
from tests.support.rawclient import RawClient

REQUESTS = [
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.INFO.S",
    "$JS.API.CONSUMER.INFO.S.c",
    "$JS.API.CONSUMER.MSG.NEXT.S.c",
    "$JS.API.DIRECT.GET.S",
]
NO_SERVER = "jetstream: disabled\n"
NO_ACCOUNT = """
accounts { WITH { jetstream: enabled, users: [{user: a, password: a}] }, WITHOUT { users: [{user: b, password: b}] } }
no_auth_user: b
"""


def answers(port: int) -> dict[str, list[Msg]]:
    with RawClient(port) as client:
        return {subject: client.request_many(subject) for subject in REQUESTS}


@pytest.mark.parametrize("config", [NO_SERVER, NO_ACCOUNT], ids=["server", "account"])
def test_the_answers_are_nats_servers(tmp_path: Path, config: str) -> None:
    jetstream = config is NO_ACCOUNT
    with (
        NatsServer("2.15.2", tmp_path / "theirs", config=config) as theirs,
        TestServer(tmp_path / "ours", config=config, jetstream=jetstream) as ours,
    ):
        expected = answers(theirs.port)
        assert answers(ours.port) == expected
        assert all(expected.values())
