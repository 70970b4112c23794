"""`LiveView`: the running server as monitoring sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import __version__
from headrace.server.config.options import AccountJetStream
from headrace.server.nats.handshake import API_LEVEL, SERVED_VERSION
from headrace.server.on_loop import LoopVisits
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

if TYPE_CHECKING:
    from headrace.server._kernels import Traffic as ServedTraffic
    from headrace.server.nats.client import Client
    from headrace.server.nats.server import NatsServer
    from headrace.streams.account import JsAccount
    from headrace.streams.api.service import Service
    from headrace.streams.consumer.consumer import Consumer
    from headrace.streams.limits import ServerFacts as LimitFacts
    from headrace.streams.stream.stream import Stream

SUBSCRIPTIONS_AT_ONCE = 1000
SERIOUS = ("bad-record", "unsound-tail", "forged-inside", "metadata")


@dataclass
class Gone:
    """What connections that are closed did in an account: its counters never fall."""

    slow_consumers: int = 0
    traffic: Traffic = field(default_factory=Traffic)


class LiveView:
    """Implements `ServerView` over a `NatsServer` and its JetStream service (None when JetStream is off)."""

    def __init__(
        self,
        server: NatsServer,
        service: Service | None,
        store_dir: str | None,
        reload: Callable[[], str | None],
    ) -> None:
        self._server, self._service, self._store_dir = server, service, store_dir
        self._reload, self._loop = reload, LoopVisits(server.loop)
        self.http_port: int | None = None
        self.websocket_port: int | None = None
        self.config_load_ns = time.time_ns()
        self._gone: dict[str, Gone] = {}
        server.on_describe = self._describe_gone

    def facts(self) -> ServerDescription:
        server = self._server
        return ServerDescription(
            id=server.id,
            name=server.name,
            version=SERVED_VERSION,
            product_version=__version__,
            host=server.options.host,
            port=server.port,
            start_ns=server.started_ns,
            config_load_ns=self.config_load_ns,
            api_level=API_LEVEL,
            options=server.options,
            auth_required=not server.handshake.authenticator.is_open,
            http_port=self.http_port,
            websocket_port=self.websocket_port,
            store_dir=f"{self._store_dir}/jetstream" if self._store_dir else None,
        )

    def totals(self) -> Totals:
        return self._loop.call(self._totals)

    def _totals(self) -> Totals:
        server = self._server
        subscriptions = sum(each.subscriptions for each in server.exchange.statistics())
        return Totals(
            _traffic(server.exchange.totals()),
            len(server.clients),
            server.total_connections,
            subscriptions,
            server.slow_consumers,
            server.stale_connections,
        )

    # Connections

    def connections(self) -> Sequence[ConnectionFacts]:
        clients = self._loop.call(lambda: list(self._server.clients.values()))
        found = self._loop.each(clients, lambda client: None if client.closing else self._describe(client))
        return [each for each in found if each is not None]

    def closed_connections(self) -> Sequence[ConnectionFacts]:
        return self._loop.call(lambda: list(self._server.gone))

    def _describe(self, client: Client, stop_ns: int | None = None) -> ConnectionFacts:
        tls = client.tls
        return ConnectionFacts(
            cid=client.cid,
            ip=client.host,
            port=client.port,
            start_ns=client.started_ns,
            last_activity_ns=client.last_active_ns(),
            account=client.account or "$G",
            user=client.user,
            is_websocket=client.kind == "websocket",
            traffic=_traffic(self._server.exchange.traffic(client.slot)),
            subscriptions=self._server.exchange.subscription_count(client.slot),
            pending_bytes=client.waiting_bytes(),
            rtt_ns=self._server.exchange.rtt_ns(client.slot) or None,
            name=client.name,
            lang=client.lang,
            version=client.version,
            tls_version=tls.version() if tls is not None else None,
            tls_cipher=tls.cipher()[0] if tls is not None else None,
            stop_ns=stop_ns,
            reason=client.reason if stop_ns is not None else None,
        )

    def _describe_gone(self, client: Client) -> ConnectionFacts:
        described = self._describe(client, time.time_ns())
        gone = self._gone.setdefault(described.account, Gone())
        gone.slow_consumers += client.reason.startswith("Slow Consumer")
        gone.traffic = gone.traffic + described.traffic
        return described

    def subscriptions(
        self, account: str | None = None, cid: int | None = None
    ) -> Iterator[SubscriptionFacts]:
        for client in self._loop.call(lambda: list(self._server.clients.values())):
            where = client.account or "$G"
            if (account is not None and where != account) or (cid is not None and client.cid != cid):
                continue
            for subject, queue, sid, msgs, most in self._rows_of(client):
                yield SubscriptionFacts(where, subject, sid, client.cid, queue, msgs, most)

    def _rows_of(self, client: Client) -> Iterator[tuple[str, str | None, str, int, int]]:
        """Its subscriptions, a part per visit; those that come or go meanwhile may be missed or seen twice."""
        skip = 0
        while not client.closing:
            part = partial(self._server.exchange.subscriptions_of, client.slot, skip, SUBSCRIPTIONS_AT_ONCE)
            rows = self._loop.call(part)
            yield from rows
            skip += len(rows)
            if len(rows) < SUBSCRIPTIONS_AT_ONCE:
                return

    def subscription_stats(self, account: str | None = None) -> SubscriptionStats:
        rows = [
            row for row in self._loop.call(self._server.exchange.statistics) if account in (None, row.account)
        ]
        matches, hits = sum(row.matches for row in rows), sum(row.hits for row in rows)
        return SubscriptionStats(
            sum(row.subscriptions for row in rows),
            sum(row.inserts for row in rows),
            sum(row.removes for row in rows),
            matches,
            0,
            hits / matches if matches else 0.0,
        )

    # Accounts and JetStream

    def accounts(self) -> Sequence[AccountFacts]:
        return self._loop.call(self._accounts)

    def _accounts(self) -> Sequence[AccountFacts]:
        server = self._server
        subscriptions = {row.account: row.subscriptions for row in server.exchange.statistics()}
        with_js = {each.name for each in self._js_accounts()}
        found: list[AccountFacts] = []
        connected: dict[str, list[Client]] = {}
        for client in server.clients.values():
            connected.setdefault(client.account or "$G", []).append(client)
        for options in server.handshake.authenticator.accounts():
            own = connected.get(options.name, [])
            gone = self._gone.get(options.name) or Gone()
            traffic = gone.traffic
            for client in own:
                traffic = traffic + _traffic(server.exchange.traffic(client.slot))
            found.append(
                AccountFacts(
                    options.name,
                    len(own),
                    subscriptions.get(options.name, 0),
                    traffic,
                    gone.slow_consumers,
                    options.name in with_js,
                    self.config_load_ns,
                )
            )
        return found

    def _js_accounts(self) -> list[JsAccount]:
        return list(self._server.engine.accounts.values())

    def jetstream(self, *, with_streams: bool = False) -> JetStreamFacts | None:
        if self._service is None:
            return None
        accounts = self._loop.call(self._js_accounts)
        shown = [self._js_account(each, with_streams) for each in accounts]
        usages = self._loop.each(accounts, lambda account: account.usage())
        facts = self._service.facts
        return JetStreamFacts(
            max_memory=facts.max_memory,
            max_storage=facts.max_storage,
            memory=sum(each.memory for each in usages),
            storage=sum(each.storage for each in usages),
            reserved_memory=sum(each.reserved_memory for each in usages),
            reserved_storage=sum(each.reserved_storage for each in usages),
            api_total=sum(each.api_total for each in shown),
            api_errors=sum(each.api_errors for each in shown),
            accounts=shown,
        )

    def _js_account(self, account: JsAccount, with_streams: bool) -> JsAccountFacts:
        usage, limits = self._loop.call(account.usage), account.limits
        streams = self._loop.call(lambda: list(account.streams.values())) if with_streams else []
        found = self._loop.each(streams, self._stream, _is_busy)
        return JsAccountFacts(
            account.name,
            AccountJetStream(
                limits.max_memory,
                limits.max_storage,
                limits.max_streams,
                limits.max_consumers,
                limits.max_ack_pending,
                limits.memory_max_stream_bytes,
                limits.storage_max_stream_bytes,
                limits.max_bytes_required,
            ),
            usage.memory,
            usage.storage,
            account.api_total,
            account.api_errors,
            [each for each in found if each is not None],
        )

    def _stream(self, stream: Stream) -> StreamFacts | None:
        from headrace.streams.api.info import stream_info

        assert self._service is not None
        if stream.closed:
            return None
        return StreamFacts(
            stream.name,
            stream_info(stream, self._service.facts),
            partial(self._consumer_infos, stream, self._service.facts),
            len(stream.consumers),
            sum(1 for each in stream.store.damage() if each.kind in SERIOUS),
            stream.store.poisoned,
        )

    def _consumer_infos(self, stream: Stream, facts: LimitFacts) -> list[dict[str, Any]]:
        from headrace.streams.api.info import consumer_info

        def show(consumer: Consumer) -> dict[str, Any] | None:
            return None if consumer.closed else consumer_info(consumer, facts)

        consumers = self._loop.call(lambda: list(stream.consumers.values()))
        infos = self._loop.each(consumers, show, lambda consumer: _is_busy(consumer.stream))
        return [
            {**info, "config": msgspec.json.decode(bytes(info["config"]))}
            for info in infos
            if info is not None
        ]

    def findings(self) -> Sequence[HealthFinding]:
        found: list[HealthFinding] = []
        for account in self._loop.call(self._js_accounts):
            for name, why in list(account.offline.items()):
                found.append(HealthFinding("STREAM", f"stream is offline: {why}", account.name, name))
            streams = self._loop.call(lambda account=account: list(account.streams.values()))
            for each in self._loop.each(streams, partial(_stream_findings, account.name), _is_busy):
                found += each
        return found

    def reload(self) -> str | None:
        return self._loop.call(self._reload)

    def kick(self, cid: int) -> bool:
        return self._loop.call(lambda: self._kick(cid))

    def _kick(self, cid: int) -> bool:
        client = next((each for each in self._server.clients.values() if each.cid == cid), None)
        if client is not None:
            client.close("Kicked")
        return client is not None


def _is_busy(stream: Stream) -> bool:
    return not stream.closed and stream.is_busy


def _stream_findings(account: str, stream: Stream) -> list[HealthFinding]:
    found: list[HealthFinding] = []
    if stream.store.poisoned:
        text = "a sync failed: publishes are refused until the disk works again"
        found.append(HealthFinding("STREAM", text, account, stream.name))
    damage = [each for each in stream.store.damage() if each.kind in SERIOUS]
    if damage:
        text = f"{len(damage)} damaged places, the first: {damage[0].file} at byte {damage[0].offset}"
        found.append(HealthFinding("STREAM", text, account, stream.name, is_fatal=False))
    return found


def _traffic(seen: ServedTraffic) -> Traffic:
    return Traffic(seen.in_msgs, seen.in_bytes, seen.out_msgs, seen.out_bytes)
