"""`/varz`: the server as a whole; and `statsz`, the same for the system account."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from headrace.server.reports.form import now, uptime
from headrace.server.reports.jsz import jetstream_config, jetstream_limits, jetstream_stats
from headrace.server.reports.process import CPU, memory_bytes
from headrace.server.view import ServerDescription, ServerView, Traffic
from headrace.units import format_time_ns

SECOND_NS = 1_000_000_000


def varz(view: ServerView, requests: Mapping[str, int] | None = None) -> dict[str, Any]:
    """`requests`: how often each page was asked for over HTTP."""
    facts, totals = view.facts(), view.totals()
    options, traffic = facts.options, totals.traffic
    tls, slow = options.tls, totals.slow_consumers
    jetstream = view.jetstream()
    return {
        "server_id": facts.id,
        "server_name": facts.name,
        "version": facts.version,
        "headrace": facts.product_version,
        "proto": 1,
        "go": facts.runtime,
        "host": facts.host,
        "port": facts.port,
        **({"auth_required": True} if facts.auth_required else {}),
        **({"tls_required": not options.allow_non_tls, "tls_verify": tls.verify} if tls else {}),
        "max_connections": options.max_connections,
        **({"max_subscriptions": options.max_subscriptions} if options.max_subscriptions > 0 else {}),
        "ping_interval": options.ping_interval_ns,
        "ping_max": options.ping_max,
        "http_host": options.monitor.host,
        "http_port": facts.http_port or 0,
        "http_base_path": options.monitor.base_path,
        "https_port": 0,
        "auth_timeout": options.auth_timeout_ns / SECOND_NS,
        "max_control_line": options.max_control_line,
        "max_payload": options.max_payload,
        "max_pending": options.max_pending,
        "cluster": {},
        "gateway": {},
        "leaf": {},
        "mqtt": {},
        "websocket": _websocket(facts),
        "jetstream": {}
        if jetstream is None
        else {
            "config": jetstream_config(facts, jetstream),
            "stats": jetstream_stats(facts, jetstream),
            "limits": jetstream_limits(facts),
        },
        "tls_timeout": (tls.timeout_ns if tls else 2 * SECOND_NS) / SECOND_NS,
        "write_deadline": options.write_deadline_ns,
        "start": format_time_ns(facts.start_ns),
        "now": now(),
        "uptime": uptime(facts.start_ns, time.time_ns()),
        "mem": memory_bytes(),
        "cores": os.cpu_count() or 1,
        "gomaxprocs": 1,
        "cpu": CPU.percent(),
        "connections": totals.connections,
        "total_connections": totals.total_connections,
        "routes": 0,
        "remotes": 0,
        "leafnodes": 0,
        "in_msgs": traffic.in_msgs,
        "in_bytes": traffic.in_bytes,
        "in_client_msgs": traffic.in_msgs,
        "in_client_bytes": traffic.in_bytes,
        "out_msgs": traffic.out_msgs,
        "out_bytes": traffic.out_bytes,
        "out_client_msgs": traffic.out_msgs,
        "out_client_bytes": traffic.out_bytes,
        "slow_consumers": slow,
        "stale_connections": totals.stale_connections,
        "stalled_clients": 0,
        "subscriptions": totals.subscriptions,
        "http_req_stats": dict(requests or {}),
        "config_load_time": format_time_ns(facts.config_load_ns),
        **({"config_digest": options.config_digest} if options.config_digest else {}),
        **({"tags": list(options.server_tags)} if options.server_tags else {}),
        **({"metadata": dict(options.server_metadata)} if options.server_metadata else {}),
        "system_account": options.system_account,
        "slow_consumer_stats": {"clients": slow, "routes": 0, "gateways": 0, "leafs": 0},
        "stale_connection_stats": {
            "clients": totals.stale_connections, "routes": 0, "gateways": 0, "leafs": 0,
        },
    }  # fmt: skip


def statsz(view: ServerView) -> dict[str, Any]:
    """What a server answers to a ping of the system account."""
    facts, totals = view.facts(), view.totals()
    jetstream = view.jetstream()
    sent, received = sent_and_received(totals.traffic)
    document: dict[str, Any] = {
        "start": format_time_ns(facts.start_ns),
        "mem": memory_bytes(),
        "cores": os.cpu_count() or 1,
        "cpu": CPU.percent(),
        "connections": totals.connections,
        "total_connections": totals.total_connections,
        "active_accounts": sum(1 for account in view.accounts() if account.connections),
        "subscriptions": totals.subscriptions,
        "sent": sent,
        "sent_to_clients": sent,
        "received": received,
        "received_from_clients": received,
        "slow_consumers": totals.slow_consumers,
        "active_servers": 1,
    }
    if jetstream is not None:
        config = jetstream_config(facts, jetstream)
        config.pop("store_dir", None)
        document["jetstream"] = {
            "config": config,
            "stats": jetstream_stats(facts, jetstream),
            "limits": jetstream_limits(facts),
        }
    return document | {"gomaxprocs": 1}


def sent_and_received(traffic: Traffic) -> tuple[dict[str, int], dict[str, int]]:
    """From the server's side: what went out to clients, what came in from them."""
    sent = {"msgs": traffic.out_msgs, "bytes": traffic.out_bytes}
    return sent, {"msgs": traffic.in_msgs, "bytes": traffic.in_bytes}


def _websocket(facts: ServerDescription) -> dict[str, Any]:
    websocket = facts.options.websocket
    if websocket is None:
        return {}
    return {
        "host": websocket.host,
        "port": facts.websocket_port or websocket.port,
        **({} if websocket.tls else {"no_tls": True}),
        "handshake_timeout": websocket.handshake_timeout_ns,
    }
