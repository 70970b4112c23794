"""A real JetStream cluster: three nats-servers on the loopback interface, joined by routes.

with NatsCluster(tmp_path, "2.15.2") as cluster:
    cluster.url                  all three
    cluster.leader("ORDERS")     the number of the node that leads a stream
    cluster.nodes[1].kill()      kill -9 of one
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.client import Access, Connection, read_access
from headrace.errors import ConnectionLost, ServerRefused
from tests.support.peers import NatsServer, PeerFailed, free_port

READY_LIMIT_S = 60.0
NODES = 3


class NatsCluster:
    """Three nodes, or as many as are asked for."""

    def __init__(self, place: Path, version: str, count: int = NODES) -> None:
        routes = [free_port() for _ in range(count)]
        known = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routes)
        self.nodes = [
            NatsServer(
                version,
                place / f"node-{number}",
                config=(
                    f"server_name: node-{number}\n"
                    f'cluster {{ name: proof, listen: "127.0.0.1:{port}", routes: [{known}] }}'
                ),
            )
            for number, port in enumerate(routes)
        ]
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """Of all nodes."""
        return ",".join(node.url for node in self.nodes)

    @property
    def access(self) -> Access:
        return read_access(self.url)

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self._stack.enter_context(node)
            self._await(lambda: bool(self._api("INFO").get("api")), "answers")
            self._await(self._has_a_leader, "has a leader with all nodes")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def create(self, name: str, **config: Any) -> None:
        """A stream on all three; waits until it is there."""
        body = {"name": name, "num_replicas": len(self.nodes), **config}
        self._await(lambda: bool(self._api(f"STREAM.CREATE.{name}", body)), f"makes {name}")
        self._await(lambda: self.leader(name) is not None, f"has a leader for {name}")

    def leader(self, stream: str) -> int | None:
        """The number of the node that leads it; None while there is an election."""
        name = (self._api(f"STREAM.INFO.{stream}").get("cluster") or {}).get("leader")
        return int(name.rpartition("-")[2]) if name else None

    def _has_a_leader(self) -> bool:
        # A stream with as many replicas as nodes can be placed only when all of them are known.
        body = {"name": "READY", "subjects": ["ready"], "num_replicas": len(self.nodes)}
        made = bool(self._api("STREAM.CREATE.READY", body))
        return made and bool(self._api("STREAM.DELETE.READY"))

    def _api(self, name: str, body: Any = None) -> dict[str, Any]:
        with Connection(self.access) as connection:
            return connection.api(name, body, 3.0)

    def _await(self, ready: Any, what: str) -> None:
        until, problem = time.monotonic() + READY_LIMIT_S, ""
        while time.monotonic() < until:
            try:
                if ready():
                    return
            except (ConnectionLost, ServerRefused) as error:
                problem = str(error)
            time.sleep(0.1)
        raise PeerFailed(f"the cluster never {what} ({problem}):\n{self.nodes[0].log()}")
