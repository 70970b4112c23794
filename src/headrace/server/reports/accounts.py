"""`/accountz`, `/accstatz`, `/subsz`: accounts, what they moved, and who listens to what."""

from __future__ import annotations

from typing import Any

from headrace.errors import BadInput
from headrace.server._kernels import subject_matches
from headrace.server.auth.permissions import is_subject
from headrace.server.reports.connz import subscription
from headrace.server.reports.form import QueryParams, now
from headrace.server.reports.varz import sent_and_received
from headrace.server.view import AccountFacts, ServerView, SubscriptionStats
from headrace.units import format_time_ns

_NO_ONE_ELSE = {key: {"msgs": 0, "bytes": 0} for key in ("gateways", "routes", "leafs")}


def accountz(view: ServerView, params: QueryParams) -> dict[str, Any]:
    facts, wanted = view.facts(), params.text("acc", "account")
    head = {"server_id": facts.id, "now": now(), "system_account": facts.options.system_account}
    if not wanted:
        return head | {"accounts": [account.name for account in view.accounts()]}
    return head | {"account_detail": account_info(view, wanted)}


def account_info(view: ServerView, name: str) -> dict[str, Any]:
    """One account; BadInput in nats-server's words if there is none of that name."""
    account = find(view, name)
    is_system = name == view.facts().options.system_account
    return {
        "account_name": account.name,
        "update_time": format_time_ns(account.update_ns),
        **({"is_system": True} if is_system else {}),
        "expired": False,
        "complete": True,
        "jetstream_enabled": account.has_jetstream,
        "leafnode_connections": 0,
        "client_connections": account.connections,
        "subscriptions": account.subscriptions,
        "name_tag": account.name,
        "sublist_stats": stats_document(view.subscription_stats(name)),
    }


def find(view: ServerView, name: str) -> AccountFacts:
    for account in view.accounts():
        if account.name == name:
            return account
    raise BadInput(f"Account {name} does not exist")


def accstatz(view: ServerView, params: QueryParams, names: list[str] | None = None) -> dict[str, Any]:
    """Accounts with connections; with `unused` (or by name) the others too."""
    wanted = names if names is not None else params.text("accounts").split()
    every = params.flag("unused", "include_unused") or names is not None
    found = [
        account_stats(account)
        for account in view.accounts()
        if (account.name in wanted if wanted else True) and (every or account.connections)
    ]
    return {"server_id": view.facts().id, "now": now(), "account_statz": found}


def account_stats(account: AccountFacts) -> dict[str, Any]:
    sent, received = sent_and_received(account.traffic)
    return {
        "acc": account.name,
        "name": account.name,
        "conns": account.connections,
        "leafnodes": 0,
        "total_conns": account.connections,  # of all servers of a cluster
        "num_subscriptions": account.subscriptions,
        "sent": {**sent, **_NO_ONE_ELSE},
        "received": {**received, **_NO_ONE_ELSE},
        "slow_consumers": account.slow_consumers,
    }


def subsz(
    view: ServerView, params: QueryParams, account: str | None = None, listed: bool = False
) -> dict[str, Any]:
    """The subject index; `subs` lists subscriptions, `test` those that match a subject."""
    account = account or params.text("acc", "account") or None
    test = params.text("test")
    if test and not is_subject(test):
        raise BadInput("Invalid test subject, must be literal")
    offset, limit = params.page()
    document = {
        "server_id": view.facts().id,
        "now": now(),
        **stats_document(view.subscription_stats(account)),
        "total": 0,
        "offset": offset,
        "limit": limit,
    }
    if listed or params.flag("subs", "subscriptions") or test:
        found = [
            each for each in view.subscriptions(account) if not test or subject_matches(each.subject, test)
        ]
        page = found[offset : offset + limit]
        document["total"] = len(found)
        if page:
            document["subscriptions_list"] = [subscription(each, with_account=True) for each in page]
    return document


def stats_document(stats: SubscriptionStats) -> dict[str, Any]:
    return {
        "num_subscriptions": stats.subscriptions,
        "num_cache": stats.cached,
        "num_inserts": stats.inserts,
        "num_removes": stats.removes,
        "num_matches": stats.matches,
        "cache_hit_rate": stats.cache_hit_rate,
        "max_fanout": stats.max_fanout,
        "avg_fanout": stats.avg_fanout,
    }
