"""A server that is not there: a `ServerView` with an account of everything, for monitoring and system subjects."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.server.config.load import load
from headrace.server.config.options import AccountJetStream, ServerOptions
from headrace.server.config.problems import ConfigPosition
from headrace.server.config.text import read_text
from headrace.server.view import (
    AccountFacts,
    ConnectionFacts,
    HealthFinding,
    JetStreamFacts,
    JsAccountFacts,
    ServerDescription,
    StreamFacts,
    SubscriptionFacts,
    SubscriptionStats,
    Totals,
    Traffic,
)

S = 1_000_000_000
ID = "NFAKE"
CONFIG = """
server_name: fake
server_tags: [blue]
jetstream { domain: hub, max_mem: 100MB, max_file: 1GB }
accounts { A { jetstream: enabled }, B { jetstream { max_mem: 10MB, max_file: 20MB } }, $SYS {} }
"""
STATE = {
    "messages": 10, "bytes": 380, "first_seq": 1, "first_ts": "2026-11-16T00:35:09.9Z", "last_seq": 10,
    "last_ts": "2026-11-16T00:35:09.9Z", "num_subjects": 1, "consumer_count": 3,
}  # fmt: skip


def consumer(name: str, durable: bool, pending: int) -> dict[str, Any]:
    position = {"consumer_seq": 1, "stream_seq": 7, "last_active": "2026-11-16T00:35:10Z"}
    return {
        "stream_name": "S", "name": name, "created": "2026-11-16T00:35:09Z",
        "config": {"name": name, **({"durable_name": name} if durable else {}), "ack_policy": "explicit"},
        "delivered": position, "ack_floor": {**position, "stream_seq": 5}, "num_ack_pending": 2,
        "num_redelivered": 1, "num_waiting": 3, "num_pending": pending, "ts": "2026-11-16T00:35:19Z",
    }  # fmt: skip


CONSUMERS = [consumer("C", True, 9), consumer("e1", False, 4), consumer("e2", False, 5)]


def _options() -> ServerOptions:
    options = load(read_text(CONFIG, environment={}), ConfigPosition("fake"))
    return replace(options, config_file="fake.conf", config_digest="sha256:00")


def stream(name: str, consumers: Sequence[Mapping[str, Any]] = ()) -> StreamFacts:
    info = {"config": {"name": name}, "created": "2026-11-16T00:35:09.8Z", "state": STATE, "ts": "x"}
    return StreamFacts(name, info, lambda: consumers, len(consumers))


@dataclass
class FakeView:
    """Change the fields to change the server."""

    options: ServerOptions = field(default_factory=_options)
    now_ns: int = field(default_factory=time.time_ns)
    has_jetstream: bool = True
    trouble: list[HealthFinding] = field(default_factory=list[HealthFinding])
    kicked: list[int] = field(default_factory=list[int])
    reload_says: str | None = None

    def facts(self) -> ServerDescription:
        return ServerDescription(
            ID, "fake", "2.15.2", "0.1.0", "127.0.0.1", 4222, self.now_ns - 10 * S, self.now_ns - 5 * S, 5,
            self.options, auth_required=True, http_port=8222, store_dir="/data/jetstream",
        )  # fmt: skip

    def totals(self) -> Totals:
        return Totals(Traffic(18, 688, 7, 3522), 3, 6, 3, 1, 2)

    def connections(self) -> Iterable[ConnectionFacts]:
        base = ConnectionFacts(
            5, "127.0.0.1", 5001, self.now_ns - 9 * S, self.now_ns - S, "A", "ann", name="cli", lang="go",
            version="1.45.0", rtt_ns=473_000, traffic=Traffic(1, 10, 2, 20), subscriptions=2,
        )  # fmt: skip
        yield base
        yield replace(
            base,
            cid=9,
            account="B",
            user="bob",
            pending_bytes=50,
            traffic=Traffic(9, 90, 0, 0),
            subscriptions=0,
        )
        yield replace(base, cid=7, account="$SYS", user="sys", is_websocket=True, subscriptions=1)

    def closed_connections(self) -> Iterable[ConnectionFacts]:
        first = next(iter(self.connections()))
        yield replace(first, cid=2, stop_ns=self.now_ns, reason="Client Closed")

    def subscriptions(
        self, account: str | None = None, cid: int | None = None
    ) -> Iterable[SubscriptionFacts]:
        for each in (
            SubscriptionFacts("A", "foo.>", "1", 5, "q"),
            SubscriptionFacts("A", "bar", "2", 5, msgs=3),
            SubscriptionFacts("$SYS", "x.>", "1", 7),
        ):
            if account in (None, each.account) and cid in (None, each.cid):
                yield each

    def subscription_stats(self, account: str | None = None) -> SubscriptionStats:
        return SubscriptionStats(len(list(self.subscriptions(account))), 5, 2, 70)

    def accounts(self) -> Sequence[AccountFacts]:
        return [
            AccountFacts("$G"),
            AccountFacts("A", 1, 2, Traffic(1, 10, 2, 20), has_jetstream=True),
            AccountFacts("B", 1, 0, Traffic(9, 90, 0, 0), has_jetstream=True),
            AccountFacts("$SYS", 1, 1),
        ]

    def jetstream(self, *, with_streams: bool = False) -> JetStreamFacts | None:
        if not self.has_jetstream:
            return None
        a = JsAccountFacts("A", AccountJetStream(), 0, 380, 6, 1, [stream("S", CONSUMERS), stream("T")])
        b = JsAccountFacts("B", AccountJetStream(10 << 20, 20 << 20))
        return JetStreamFacts(100 << 20, 1 << 30, 0, 380, 0, 1000, 6, 1, accounts=[a, b])

    def findings(self) -> Sequence[HealthFinding]:
        return self.trouble

    def reload(self) -> str | None:
        return self.reload_says

    def kick(self, cid: int) -> bool:
        self.kicked.append(cid)
        return cid == 5
