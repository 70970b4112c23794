"""The native client and a cluster of three: a leader that dies, servers that only the cluster knew of, a replica that lags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.client import Connection, Publisher, ServerVolume, pulling, read_access
from headrace.client.pulling import pull_range
from headrace.errors import ServerRefused
from headrace.testing.server import TestServer
from tests.support.nats_cluster import NatsCluster
from tests.support.peers import NatsServer

COUNT = 10_000


def publish(publisher: Publisher, first: int) -> None:
    numbers = range(first, first + COUNT)
    batch = headrace.batch(["in.a"] * COUNT, [b"%d" % n for n in numbers], positions=list(numbers))
    publisher.publish(batch, id_prefix="test:")


def test_a_leader_dies_while_messages_come(tmp_path: Path) -> None:
    with NatsCluster(tmp_path, "2.15.2") as cluster:
        cluster.create("IN", subjects=["in.>"])
        leader = cluster.leader("IN")
        assert leader is not None
        # The address of the node that will die, alone: the others are known from its INFO.
        access = read_access(cluster.nodes[leader].url)
        with Connection(access) as connection:
            publisher = Publisher(connection)
            publish(publisher, 0)
            cluster.nodes[leader].kill()
            publish(publisher, COUNT)
            done = publisher.flush()
            assert done.stored + done.duplicates == 2 * COUNT
            assert connection.ask("STREAM.INFO.IN")["cluster"]["leader"] != f"node-{leader}"
            rows = [each.data for batch in pull_range(connection, "IN", 1, 2 * COUNT + 1) for each in batch]
        assert sorted(int(row or b"") for row in rows) == list(range(2 * COUNT))
        assert ServerVolume(cluster.access).open("IN").state().messages == 2 * COUNT


def test_a_replica_that_lags_gets_the_request_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nats_server: Any
) -> None:
    """A consumer that ends early, as on a replica that does not have everything yet, is not the end of the range."""
    server: NatsServer = nats_server("2.15.2")
    whole, ends = pulling._Pull.__iter__, []

    def early(self: Any) -> Iterator[Any]:
        for batch in whole(self):
            if not ends:
                ends.append(len(batch))
                yield batch.slice(0, 100)
                return
            yield batch

    monkeypatch.setattr(pulling._Pull, "__iter__", early)
    ServerVolume(read_access(server.url)).create("IN", subjects=["in.>", "other"])
    with Connection(read_access(server.url)) as connection:
        publisher = Publisher(connection)
        publish(publisher, 0)
        publisher.publish(headrace.batch("other", [b"last"]))
        publisher.flush()
        # The last message is on another subject: nothing more of ours, and that is the end.
        found = list(pull_range(connection, "IN", 1, COUNT + 2, subjects=["in.*"]))
    assert ends
    assert [int(each.data or b"") for batch in found for each in batch] == list(range(COUNT))


def test_a_consumer_that_vanishes_is_made_again(nats_server: Any) -> None:
    """Deleted under a reader, as with the node that held it: requests are answered with 503, and reading goes on."""
    server: NatsServer = nats_server("2.15.2")
    access = read_access(server.url)
    ServerVolume(access).create("IN", subjects=["in.>"])
    with Connection(access) as connection, Connection(access) as other:
        publisher = Publisher(connection)
        for first in range(0, 8 * COUNT, COUNT):
            publish(publisher, first)
        publisher.flush()
        found, deleted = [], 0
        for batch in pull_range(connection, "IN", 1, 8 * COUNT + 1):
            found += [int(each.data or b"") for each in batch]
            if not deleted:
                for name in other.api("CONSUMER.NAMES.IN")["consumers"]:
                    other.api(f"CONSUMER.DELETE.IN.{name}")
                    deleted += 1
    assert deleted == 1
    assert found == list(range(8 * COUNT))


def test_no_jetstream_is_said_at_once(tmp_path: Path) -> None:
    with (
        TestServer(tmp_path / "js", jetstream=False) as server,
        Connection(read_access(server.url)) as connection,
        pytest.raises(ServerRefused, match="is JetStream on"),
    ):
        connection.ask("STREAM.INFO.IN")
