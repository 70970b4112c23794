"""`/metrics`: the server for Prometheus. The names and meanings are the tables below; only here is its client library imported.

Streams and durable consumers are labels. Ephemeral consumers come and go with names nobody chose, so they are summed
per stream under the consumer `*`, which no consumer can be called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.server.reports.process import cpu_seconds, memory_bytes
from headrace.server.view import AccountFacts, JetStreamFacts, ServerView, StreamFacts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EPHEMERAL = "*"

# name → what it says. Names that end in _total only grow.
SERVER = {
    "start_time_seconds": "When the server started, in seconds since 1970.",
    "memory_bytes": "Resident memory of the process.",
    "cpu_seconds_total": "CPU time of the process, all threads.",
    "healthy": "1 if /healthz says ok, else 0.",
    "connections": "Clients that are connected.",
    "connections_opened_total": "Clients that ever connected.",
    "subscriptions": "Subscriptions of clients.",
    "slow_consumers_total": "Clients that were closed because they did not read.",
    "stale_connections_total": "Clients that were closed because they did not answer.",
    "in_messages_total": "Messages from clients.",
    "in_bytes_total": "Their payloads.",
    "out_messages_total": "Messages to clients.",
    "out_bytes_total": "Their payloads.",
}
ACCOUNT = {
    "connections": "Clients of the account.",
    "subscriptions": "Their subscriptions.",
    "in_messages_total": "Messages from them.",
    "in_bytes_total": "Their payloads.",
    "out_messages_total": "Messages to them.",
    "out_bytes_total": "Their payloads.",
}
JETSTREAM = {
    "memory_bytes": "Taken by memory streams.",
    "storage_bytes": "Taken by file streams.",
    "max_memory_bytes": "What memory streams may take.",
    "max_storage_bytes": "What file streams may take.",
    "api_requests_total": "Requests to the API.",
    "api_errors_total": "Those that were refused.",
}
STREAM = {
    "messages": "Messages in the stream.",
    "bytes": "Their size as stored.",
    "first_seq": "The first sequence.",
    "last_seq": "The last sequence.",
    "subjects": "Different subjects.",
    "deleted": "Sequences between first and last that are gone.",
    "consumers": "Consumers, ephemeral ones too.",
    "damage": "Findings of damage since the stream was opened.",
    "poisoned": "1 if a sync failed and nothing more is accepted, else 0.",
}
CONSUMER = {
    "pending": "Messages that match and were not delivered yet.",
    "ack_pending": "Messages that were delivered and not acknowledged.",
    "redelivered": "Of those, delivered more than once.",
    "waiting": "Pull requests that wait.",
}
DURABLE = {
    "delivered_seq": "The last delivered sequence of the stream.",
    "ack_floor_seq": "The sequence of the stream below which everything is acknowledged.",
}
_CONSUMER_KEYS = {
    "pending": "num_pending",
    "ack_pending": "num_ack_pending",
    "redelivered": "num_redelivered",
    "waiting": "num_waiting",
}


class Telemetry:
    """One per server; `render` reads the view anew each time."""

    def __init__(self, view: ServerView) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Reader(view))

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Reader(Collector):
    def __init__(self, view: ServerView) -> None:
        self._view = view

    def collect(self) -> Iterable[Metric]:
        view = self._view
        facts, jetstream = view.facts(), view.jetstream(with_streams=True)
        info = GaugeMetricFamily(
            "headrace_info", "Who this is.", labels=["version", "nats_version", "server_id", "server_name"]
        )
        info.add_metric([facts.product_version, facts.version, facts.id, facts.name], 1)
        yield info
        yield from _Table("headrace", SERVER, []).filled([((), _server(view))])
        accounts = [((account.name,), _account(account)) for account in view.accounts()]
        yield from _Table("headrace_account", ACCOUNT, ["account"]).filled(accounts)
        if jetstream is None:
            return
        yield from _Table("headrace_jetstream", JETSTREAM, []).filled([((), _jetstream(jetstream))])
        streams = [(account.name, stream) for account in jetstream.accounts for stream in account.streams]
        rows = [((name, stream.name), _stream(stream)) for name, stream in streams]
        yield from _Table("headrace_stream", STREAM, ["account", "stream"]).filled(rows)
        consumers, durables = _consumers(streams)
        labels = ["account", "stream", "consumer"]
        yield from _Table("headrace_consumer", CONSUMER, labels).filled(consumers)
        yield from _Table("headrace_consumer", DURABLE, labels).filled(durables)


Row = tuple[tuple[str, ...], Mapping[str, float]]


class _Table:
    """The metrics of one table, with a value of each for every row."""

    def __init__(self, prefix: str, names: Mapping[str, str], labels: list[str]) -> None:
        self._prefix, self._names, self._labels = prefix, names, labels

    def filled(self, rows: Iterable[Row]) -> Iterable[Metric]:
        rows = list(rows)
        for name, meaning in self._names.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(f"{self._prefix}_{name}", meaning, labels=self._labels)
            for labels, values in rows:
                metric.add_metric(list(labels), values[name])
            yield metric


def _server(view: ServerView) -> dict[str, float]:
    totals = view.totals()
    traffic = totals.traffic
    return {
        "start_time_seconds": view.facts().start_ns / 1e9,
        "memory_bytes": memory_bytes(),
        "cpu_seconds_total": cpu_seconds(),
        "healthy": 0 if any(finding.is_fatal for finding in view.findings()) else 1,
        "connections": totals.connections,
        "connections_opened_total": totals.total_connections,
        "subscriptions": totals.subscriptions,
        "slow_consumers_total": totals.slow_consumers,
        "stale_connections_total": totals.stale_connections,
        "in_messages_total": traffic.in_msgs,
        "in_bytes_total": traffic.in_bytes,
        "out_messages_total": traffic.out_msgs,
        "out_bytes_total": traffic.out_bytes,
    }


def _account(account: AccountFacts) -> dict[str, float]:
    traffic = account.traffic
    return {
        "connections": account.connections,
        "subscriptions": account.subscriptions,
        "in_messages_total": traffic.in_msgs,
        "in_bytes_total": traffic.in_bytes,
        "out_messages_total": traffic.out_msgs,
        "out_bytes_total": traffic.out_bytes,
    }


def _jetstream(jetstream: JetStreamFacts) -> dict[str, float]:
    return {
        "memory_bytes": jetstream.memory,
        "storage_bytes": jetstream.storage,
        "max_memory_bytes": jetstream.max_memory,
        "max_storage_bytes": jetstream.max_storage,
        "api_requests_total": jetstream.api_total,
        "api_errors_total": jetstream.api_errors,
    }


def _stream(stream: StreamFacts) -> dict[str, float]:
    state = stream.info["state"]
    return {
        "messages": state["messages"],
        "bytes": state["bytes"],
        "first_seq": state["first_seq"],
        "last_seq": state["last_seq"],
        "subjects": state.get("num_subjects", 0),
        "deleted": state.get("num_deleted", 0),
        "consumers": stream.consumer_count,
        "damage": stream.damage,
        "poisoned": int(stream.poisoned),
    }


def _consumers(streams: list[tuple[str, StreamFacts]]) -> tuple[list[Row], list[Row]]:
    """(a row for every durable and one for the ephemeral ones of a stream, positions of durables)"""
    rows: list[Row] = []
    durables: list[Row] = []
    for account, stream in streams:
        summed: dict[str, float] | None = None
        for info in stream.consumers():
            values: dict[str, Any] = {name: info.get(key, 0) for name, key in _CONSUMER_KEYS.items()}
            if info.get("config", {}).get("durable_name"):
                labels = (account, stream.name, info["name"])
                rows.append((labels, values))
                delivered, floor = info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"]
                durables.append((labels, {"delivered_seq": delivered, "ack_floor_seq": floor}))
            else:
                summed = summed or dict.fromkeys(values, 0)
                summed = {name: summed[name] + value for name, value in values.items()}
        if summed is not None:
            rows.append(((account, stream.name, EPHEMERAL), summed))
    return rows, durables
