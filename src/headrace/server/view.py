"""What monitoring sees of a running server: a small protocol of plain values, so that it can be tested without one.

The server implements `ServerView`; HTTP pages, the system subjects and the metrics read nothing else. Pages are made on a
thread; the view visits the loop for what belongs to it, so what it shows of two streams may be some milliseconds apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from headrace.server.config.options import AccountJetStream, ServerOptions

FindingKind = Literal["CONNECTION", "JETSTREAM", "ACCOUNT", "STREAM", "CONSUMER"]


@dataclass(frozen=True)
class ServerDescription:
    """What stays the same until the next reload."""

    id: str
    name: str
    version: str  # of the nats-server whose features are served
    product_version: str  # our own
    host: str
    port: int
    start_ns: int
    config_load_ns: int
    api_level: int
    options: ServerOptions
    runtime: str = "python"  # stands where nats-server shows its Go version
    auth_required: bool = False
    http_port: int | None = None
    websocket_port: int | None = None
    store_dir: str | None = None


@dataclass(frozen=True)
class Traffic:
    """Messages and bytes of their payloads, in from clients and out to them."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.in_msgs + other.in_msgs,
            self.in_bytes + other.in_bytes,
            self.out_msgs + other.out_msgs,
            self.out_bytes + other.out_bytes,
        )


@dataclass(frozen=True)
class Totals:
    """The server's counters now."""

    traffic: Traffic = field(default_factory=Traffic)
    connections: int = 0
    total_connections: int = 0
    subscriptions: int = 0
    slow_consumers: int = 0
    stale_connections: int = 0


@dataclass(frozen=True)
class ConnectionFacts:
    """One client, connected or gone (`stop_ns`, `reason`)."""

    cid: int
    ip: str
    port: int
    start_ns: int
    last_activity_ns: int
    account: str
    user: str = ""
    is_websocket: bool = False
    traffic: Traffic = field(default_factory=Traffic)
    subscriptions: int = 0
    pending_bytes: int = 0
    rtt_ns: int | None = None
    name: str = ""
    lang: str = ""
    version: str = ""
    tls_version: str | None = None
    tls_cipher: str | None = None
    stop_ns: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class SubscriptionFacts:
    """One subscription of a client."""

    account: str
    subject: str
    sid: str
    cid: int
    queue: str | None = None
    msgs: int = 0
    max_msgs: int = 0  # 0: no end


@dataclass(frozen=True)
class SubscriptionStats:
    """The subject index; numbers that it does not keep are 0."""

    subscriptions: int = 0
    inserts: int = 0
    removes: int = 0
    matches: int = 0
    cached: int = 0
    cache_hit_rate: float = 0.0
    max_fanout: int = 0
    avg_fanout: float = 0.0


@dataclass(frozen=True)
class AccountFacts:
    """One account and what its clients moved."""

    name: str
    connections: int = 0
    subscriptions: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    slow_consumers: int = 0
    has_jetstream: bool = False
    update_ns: int = 0


@dataclass(frozen=True)
class StreamFacts:
    """A stream: `info` is the API's stream info; `consumers` makes the API's consumer infos when asked."""

    name: str
    info: Mapping[str, Any]
    consumers: Callable[[], Sequence[Mapping[str, Any]]]
    consumer_count: int = 0
    damage: int = 0  # findings since it was opened
    poisoned: bool = False


@dataclass(frozen=True)
class JsAccountFacts:
    """An account's JetStream."""

    name: str
    limits: AccountJetStream
    memory: int = 0
    storage: int = 0
    api_total: int = 0
    api_errors: int = 0
    streams: Sequence[StreamFacts] = ()


@dataclass(frozen=True)
class JetStreamFacts:
    """The server's JetStream."""

    max_memory: int
    max_storage: int
    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    api_total: int = 0
    api_errors: int = 0
    api_inflight: int = 0
    accounts: Sequence[JsAccountFacts] = ()


@dataclass(frozen=True)
class HealthFinding:
    """Something that `/healthz` must show. `is_fatal`: the server cannot do its work there; else it is a remark."""

    kind: FindingKind
    text: str
    account: str = ""
    stream: str = ""
    consumer: str = ""
    is_fatal: bool = True


class ServerView(Protocol):
    """A running server, read only but for `reload` and `kick`."""

    def facts(self) -> ServerDescription: ...
    def totals(self) -> Totals: ...
    def connections(self) -> Iterable[ConnectionFacts]: ...
    def closed_connections(self) -> Iterable[ConnectionFacts]:
        """The last ones that went, as many as the server remembers."""
        ...

    def subscriptions(
        self, account: str | None = None, cid: int | None = None
    ) -> Iterable[SubscriptionFacts]:
        """Of all, of one account, or of one client."""
        ...

    def subscription_stats(self, account: str | None = None) -> SubscriptionStats: ...
    def accounts(self) -> Sequence[AccountFacts]: ...
    def jetstream(self, *, with_streams: bool = False) -> JetStreamFacts | None:
        """None when JetStream is off. Streams are shown where they are asked for: there may be thousands."""
        ...

    def findings(self) -> Sequence[HealthFinding]: ...
    def reload(self) -> str | None:
        """Read the configuration again; the text of what went wrong, or None."""
        ...

    def kick(self, cid: int) -> bool:
        """Close this client's connection; False if there is none."""
        ...
