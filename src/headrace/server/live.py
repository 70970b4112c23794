"""`LiveView`: the running server as monitoring sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import __version__
from headrace.server.config.options import AccountJetStream
from headrace.server.nats.handshake import API_LEVEL, SERVED_VERSION
from headrace.server.view import (
    AccountFacts,
    ConnectionFacts,
    Finding,
    JetStreamFacts,
    JsAccountFacts,
    ServerFacts,
    StreamFacts,
    SubscriptionFacts,
    SubscriptionStats,
    Totals,
    Traffic,
)

if TYPE_CHECKING:
    from headrace.server.nats.client import Client
    from headrace.server.nats.server import NatsServer
    from headrace.streams.account import JsAccount
    from headrace.streams.limits import ServerFacts as LimitFacts
    from headrace.streams.service import Service
    from headrace.streams.stream import Stream

SERIOUS = ("bad-record", "unsound-tail", "forged-inside", "metadata")


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
        self._reload = reload
        self.http_port: int | None = None
        self.websocket_port: int | None = None
        self.config_load_ns = time.time_ns()
        self._gone: dict[str, int] = {}
        server.on_describe = self._describe_gone

    def facts(self) -> ServerFacts:
        server = self._server
        return ServerFacts(
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
            auth_required=server.handshake.authenticator.required,
            http_port=self.http_port,
            websocket_port=self.websocket_port,
            store_dir=self._store_dir,
        )

    def totals(self) -> Totals:
        server = self._server
        subscriptions = sum(each[1] for each in server.exchange.statistics())
        return Totals(
            Traffic(*server.exchange.totals()),
            len(server.clients),
            server.total_connections,
            subscriptions,
            server.slow_consumers,
            server.stale_connections,
        )

    # Connections

    def connections(self) -> Iterator[ConnectionFacts]:
        return (self._describe(client) for client in self._server.clients.values())

    def closed_connections(self) -> Iterable[ConnectionFacts]:
        return list(self._server.gone)

    def _describe(self, client: Client, stop_ns: int | None = None) -> ConnectionFacts:
        traffic = self._server.exchange.traffic(client.slot)
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
            traffic=Traffic(*traffic[:4]),
            subscriptions=traffic[4],
            pending_bytes=client.waiting_bytes(),
            rtt_ns=int(client.rtt_s * 1e9) or None,
            name=client.name,
            lang=client.lang,
            version=client.version,
            tls_version=tls.version() if tls is not None else None,
            tls_cipher=tls.cipher()[0] if tls is not None else None,
            stop_ns=stop_ns,
            reason=client.reason if stop_ns is not None else None,
        )

    def _describe_gone(self, client: Client) -> ConnectionFacts:
        account = client.account or "$G"
        self._gone[account] = self._gone.get(account, 0) + 1
        return self._describe(client, time.time_ns())

    def subscriptions(
        self, account: str | None = None, cid: int | None = None
    ) -> Iterator[SubscriptionFacts]:
        for client in list(self._server.clients.values()):
            where = client.account or "$G"
            if (account is not None and where != account) or (cid is not None and client.cid != cid):
                continue
            for subject, queue, sid, msgs, most in self._server.exchange.subscriptions_of(client.slot):
                yield SubscriptionFacts(where, subject, sid, client.cid, queue, msgs, most)

    def subscription_stats(self, account: str | None = None) -> SubscriptionStats:
        rows = [row for row in self._server.exchange.statistics() if account in (None, row[0])]
        counts = [sum(column) for column in zip(*(row[1:] for row in rows), strict=True)] or [0] * 5
        count, inserts, removes, matches, hits = counts
        return SubscriptionStats(count, inserts, removes, matches, 0, hits / matches if matches else 0.0)

    # Accounts and JetStream

    def accounts(self) -> Sequence[AccountFacts]:
        server = self._server
        subscriptions = {row[0]: row[1] for row in server.exchange.statistics()}
        with_js = {each.name for each in self._js_accounts()}
        found: list[AccountFacts] = []
        for options in server.handshake.authenticator.accounts():
            own = [each for each in self.connections() if each.account == options.name]
            sums = (
                sum(getattr(each.traffic, name) for each in own)
                for name in ("in_msgs", "in_bytes", "out_msgs", "out_bytes")
            )
            found.append(
                AccountFacts(
                    options.name,
                    len(own),
                    len(own) + self._gone.get(options.name, 0),
                    subscriptions.get(options.name, 0),
                    Traffic(*sums),
                    0,
                    options.name in with_js,
                    self.config_load_ns,
                )
            )
        return found

    def _js_accounts(self) -> list[JsAccount]:
        return list(self._server.engine.accounts.values())

    def jetstream(self) -> JetStreamFacts | None:
        if self._service is None:
            return None
        accounts = [self._js_account(each) for each in self._js_accounts()]
        usages = [each.usage() for each in self._js_accounts()]
        facts = self._service.facts
        return JetStreamFacts(
            max_memory=facts.max_memory,
            max_storage=facts.max_storage,
            memory=sum(each.memory for each in usages),
            storage=sum(each.storage for each in usages),
            reserved_memory=sum(each.reserved_memory for each in usages),
            reserved_storage=sum(each.reserved_storage for each in usages),
            api_total=sum(each.api_total for each in accounts),
            api_errors=sum(each.api_errors for each in accounts),
            accounts=accounts,
        )

    def _js_account(self, account: JsAccount) -> JsAccountFacts:
        usage, limits = account.usage(), account.limits
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
            [self._stream(each) for each in account.streams.values()],
        )

    def _stream(self, stream: Stream) -> StreamFacts:
        from headrace.streams.info import stream_info

        assert self._service is not None
        return StreamFacts(
            stream.name,
            stream_info(stream, self._service.facts),
            partial(_consumer_infos, stream, self._service.facts),
            len(stream.consumers),
            sum(1 for each in stream.store.damage() if each.kind in SERIOUS),
            stream.store.poisoned,
        )

    def findings(self) -> Sequence[Finding]:
        found: list[Finding] = []
        for account in self._js_accounts():
            for name, why in account.offline.items():
                found.append(Finding("STREAM", f"stream is offline: {why}", account.name, name))
            for stream in account.streams.values():
                if stream.store.poisoned:
                    text = "a sync failed: publishes are refused until the disk works again"
                    found.append(Finding("STREAM", text, account.name, stream.name))
                damage = [each for each in stream.store.damage() if each.kind in SERIOUS]
                if damage:
                    text = f"{len(damage)} damaged places, the first: {damage[0].file} at byte {damage[0].offset}"
                    found.append(Finding("STREAM", text, account.name, stream.name, is_fatal=False))
        return found

    def reload(self) -> str | None:
        return self._reload()

    def kick(self, cid: int) -> bool:
        client = next((each for each in self._server.clients.values() if each.cid == cid), None)
        if client is not None:
            client.close("Kicked")
        return client is not None


def _consumer_infos(stream: Stream, facts: LimitFacts) -> list[dict[str, Any]]:
    from headrace.streams.info import consumer_info

    infos = [consumer_info(consumer, facts) for consumer in stream.consumers.values()]
    return [{**info, "config": msgspec.json.decode(bytes(info["config"]))} for info in infos]
