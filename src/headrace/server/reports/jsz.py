"""`/jsz`: JetStream as a whole, its accounts, their streams and consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import NotFound
from headrace.server.reports.form import UNLIMITED_U64, QueryParams, now
from headrace.server.view import JetStreamFacts, JsAccountFacts, ServerDescription, ServerView, StreamFacts

CONSUMERS_MAX_DEFAULT = 1000  # what nats-server allows a stream when nobody says otherwise


def jsz(view: ServerView, params: QueryParams) -> dict[str, Any]:
    """`accounts`, `streams` and `consumers` ask for ever more; each of them brings those before it."""
    facts, jetstream = view.facts(), view.jetstream(with_streams=True)
    head = {"server_id": facts.id, "now": now()}
    if jetstream is None:
        nothing = JetStreamFacts(0, 0)
        stats = jetstream_stats(facts, nothing) | {"api": {"level": 0, "total": 0, "errors": 0}}
        config = {"max_memory": 0, "max_storage": 0}
        return {**stats, **head, "disabled": True, "config": config, **_sums([]), "total": 0}
    with_consumers = params.flag("consumers", "consumer")
    with_streams = params.flag("streams") or with_consumers
    wanted = params.text("acc", "account")
    document = {
        **jetstream_stats(facts, jetstream),
        **head,
        "config": jetstream_config(facts, jetstream),
        "limits": jetstream_limits(facts),
        **_sums([stream for account in jetstream.accounts for stream in account.streams]),
    }
    offset, limit = params.page()
    accounts = sorted(jetstream.accounts, key=lambda account: account.name)
    if wanted:
        accounts = [account for account in accounts if account.name == wanted]
    elif params.flag("accounts") or with_streams:
        accounts = accounts[offset : offset + limit]
    else:
        accounts = []
    if accounts:
        document["account_details"] = [
            account_detail(facts, account, with_streams, with_consumers, params.flag("config"))
            for account in accounts
        ]
    return document | {"total": len(jetstream.accounts)}


def account_jsz(view: ServerView, name: str, params: QueryParams) -> dict[str, Any]:
    """One account, for the system account."""
    jetstream = view.jetstream(with_streams=True)
    for account in jetstream.accounts if jetstream else ():
        if account.name == name:
            with_consumers = params.flag("consumers", "consumer")
            with_streams = params.flag("streams") or with_consumers
            return account_detail(view.facts(), account, with_streams, with_consumers, params.flag("config"))
    raise NotFound(f"account {name!r} has no JetStream")


def jetstream_config(facts: ServerDescription, jetstream: JetStreamFacts) -> dict[str, Any]:
    options = facts.options.jetstream
    return {
        "max_memory": jetstream.max_memory,
        "max_storage": jetstream.max_storage,
        **({"store_dir": facts.store_dir} if facts.store_dir else {}),
        "sync_interval": options.sync_interval_ns,
        **({"sync_always": True} if options.sync == "sync" else {}),
        **({"domain": options.domain} if options.domain else {}),
        "compress_ok": True,
        "strict": True,
    }


def jetstream_stats(facts: ServerDescription, jetstream: JetStreamFacts) -> dict[str, Any]:
    return {
        "memory": jetstream.memory,
        "storage": jetstream.storage,
        "reserved_memory": jetstream.reserved_memory,
        "reserved_storage": jetstream.reserved_storage,
        "accounts": len(jetstream.accounts),
        "ha_assets": 0,
        "api": {
            "level": facts.api_level,
            "total": jetstream.api_total,
            "errors": jetstream.api_errors,
            **({"inflight": jetstream.api_inflight} if jetstream.api_inflight else {}),
        },
    }


def jetstream_limits(facts: ServerDescription) -> dict[str, Any]:
    limits = facts.options.jetstream.limits
    return {
        **({"max_ack_pending": limits.max_ack_pending} if limits.max_ack_pending > 0 else {}),
        **({"max_request_batch": limits.max_request_batch} if limits.max_request_batch > 0 else {}),
        **({"duplicate_window": limits.duplicate_window_ns} if limits.duplicate_window_ns else {}),
        "default_max_consumers": CONSUMERS_MAX_DEFAULT,
    }


def account_detail(
    facts: ServerDescription,
    account: JsAccountFacts,
    with_streams: bool,
    with_consumers: bool,
    with_config: bool,
) -> dict[str, Any]:
    limits = account.limits
    document: dict[str, Any] = {
        "name": account.name,
        "id": account.name,
        "memory": account.memory,
        "storage": account.storage,
        "reserved_memory": UNLIMITED_U64 if limits.max_memory < 0 else limits.max_memory,
        "reserved_storage": UNLIMITED_U64 if limits.max_storage < 0 else limits.max_storage,
        "accounts": 0,
        "ha_assets": 0,
        "api": {"level": 0, "total": account.api_total, "errors": account.api_errors},
    }
    if with_streams and account.streams:
        document["stream_detail"] = [
            _stream_detail(facts, stream, with_consumers, with_config) for stream in account.streams
        ]
    return document


def _stream_detail(
    facts: ServerDescription, stream: StreamFacts, with_consumers: bool, with_config: bool
) -> dict[str, Any]:
    info = stream.info
    document: dict[str, Any] = {
        "name": stream.name,
        "created": info["created"],
        "cluster": {"leader": facts.name},
        **({"config": info["config"]} if with_config else {}),
        "state": info["state"],
        **{key: info[key] for key in ("mirror", "sources") if info.get(key)},
    }
    if with_consumers and (consumers := stream.consumers()):
        document["consumer_detail"] = [_consumer_detail(each, with_config) for each in consumers]
    return document


def _consumer_detail(info: Mapping[str, Any], with_config: bool) -> dict[str, Any]:
    hidden = ("type",) if with_config else ("type", "config")
    return {key: value for key, value in info.items() if key not in hidden}


def _sums(streams: list[StreamFacts]) -> dict[str, int]:
    return {
        "streams": len(streams),
        "consumers": sum(stream.consumer_count for stream in streams),
        "messages": sum(stream.info["state"]["messages"] for stream in streams),
        "bytes": sum(stream.info["state"]["bytes"] for stream in streams),
    }
