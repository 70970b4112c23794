"""`/connz`: the clients, connected or gone, sorted and in pages."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.errors import BadInput
from headrace.server._kernels import subject_matches
from headrace.server.reports.form import QueryParams, now, short_duration, uptime
from headrace.server.view import ConnectionFacts, ServerView, SubscriptionFacts
from headrace.units import format_time_ns

OPEN, CLOSED, ALL = 0, 1, 2
_STATES = {"": OPEN, "open": OPEN, "0": OPEN, "closed": CLOSED, "1": CLOSED, "any": ALL, "all": ALL, "2": ALL}
# (key, largest first)
_SORTS: dict[str, tuple[Callable[[ConnectionFacts], Any], bool]] = {
    "cid": (lambda c: c.cid, False),
    "start": (lambda c: (c.start_ns, c.cid), False),
    "subs": (lambda c: c.subscriptions, True),
    "pending": (lambda c: c.pending_bytes, True),
    "msgs_to": (lambda c: c.traffic.out_msgs, True),
    "msgs_from": (lambda c: c.traffic.in_msgs, True),
    "bytes_to": (lambda c: c.traffic.out_bytes, True),
    "bytes_from": (lambda c: c.traffic.in_bytes, True),
    "last": (lambda c: c.last_activity_ns, True),
    "idle": (lambda c: c.last_activity_ns, False),
    "uptime": (lambda c: c.start_ns, False),
    "stop": (lambda c: c.stop_ns or 0, True),
    "reason": (lambda c: c.reason or "", False),
    "rtt": (lambda c: c.rtt_ns or 0, True),
}


@dataclass(frozen=True)
class _Wanted:
    state: int
    cid: int
    user: str
    account: str
    subject: str

    def __call__(self, connection: ConnectionFacts) -> bool:
        return (
            (not self.cid or connection.cid == self.cid)
            and (not self.user or connection.user == self.user)
            and (not self.account or connection.account == self.account)
        )


def connz(view: ServerView, params: QueryParams, account: str | None = None) -> dict[str, Any]:
    """`account` confines the answer to one account, whatever was asked for."""
    sort = params.text("sort") or "cid"
    state = _STATES.get(params.text("state").lower())
    if state is None:
        raise BadInput(f"invalid state: {params.text('state')}")
    if sort not in _SORTS:
        raise BadInput(f"invalid sorting option: {sort}")
    if sort in ("stop", "reason") and state == OPEN:
        raise BadInput(f"sort by {sort} only valid on closed connections")
    wanted = _Wanted(
        state, params.number("cid", 0, 1 << 62), params.text("user"), account or params.text("acc"),
        params.text("filter_subject"),
    )  # fmt: skip
    found = [connection for connection in _of_state(view, wanted) if wanted(connection)]
    if wanted.subject:
        found = [
            c
            for c in found
            if any(subject_matches(wanted.subject, s.subject) for s in view.subscriptions(cid=c.cid))
        ]
    key, is_descending = _SORTS[sort]
    found.sort(key=key, reverse=is_descending)
    offset, limit = (0, 1) if wanted.cid else params.page()
    page, at = found[offset : offset + limit], time.time_ns()
    detail = params.flag("subscriptions_detail") or params.text("subs") == "detail"
    names = params.flag("subs", "subscriptions")
    return {
        "server_id": view.facts().id,
        "now": now(),
        "num_connections": len(page),
        "total": len(found),
        "offset": offset,
        "limit": limit,
        "connections": [_connection(view, each, at, params.flag("auth"), names, detail) for each in page],
    }


def _of_state(view: ServerView, wanted: _Wanted) -> list[ConnectionFacts]:
    found: list[ConnectionFacts] = []
    if wanted.state in (OPEN, ALL):
        found += view.connections()
    if wanted.state in (CLOSED, ALL):
        found += view.closed_connections()
    return found


def _connection(
    view: ServerView, connection: ConnectionFacts, at: int, auth: bool, names: bool, detail: bool
) -> dict[str, Any]:
    traffic, stop = connection.traffic, connection.stop_ns
    document: dict[str, Any] = {
        "cid": connection.cid,
        "kind": "Client",
        "type": "websocket" if connection.is_websocket else "nats",
        "ip": connection.ip,
        "port": connection.port,
        "start": format_time_ns(connection.start_ns),
        "last_activity": format_time_ns(connection.last_activity_ns),
        **({"stop": format_time_ns(stop), "reason": connection.reason or ""} if stop is not None else {}),
        **({"rtt": short_duration(connection.rtt_ns)} if connection.rtt_ns else {}),
        "uptime": uptime(connection.start_ns, stop or at),
        "idle": uptime(connection.last_activity_ns, stop or at),
        "pending_bytes": connection.pending_bytes,
        "in_msgs": traffic.in_msgs,
        "out_msgs": traffic.out_msgs,
        "in_bytes": traffic.in_bytes,
        "out_bytes": traffic.out_bytes,
        "subscriptions": connection.subscriptions,
    }
    named = {"name": connection.name, "lang": connection.lang, "version": connection.version}
    tls = {"tls_version": connection.tls_version, "tls_cipher_suite": connection.tls_cipher}
    document |= {key: value for key, value in (named | tls).items() if value}
    if auth:
        document |= {"authorized_user": connection.user} if connection.user else {}
        document |= {"account": connection.account, "name_tag": connection.account}
    if (names or detail) and stop is None and (subs := list(view.subscriptions(cid=connection.cid))):
        if detail:
            document["subscriptions_list_detail"] = [subscription(each) for each in subs]
        else:
            document["subscriptions_list"] = [each.subject for each in subs]
    return document


def subscription(facts: SubscriptionFacts, with_account: bool = False) -> dict[str, Any]:
    """One subscription as a page shows it."""
    return {
        **({"account": facts.account, "account_tag": facts.account} if with_account else {}),
        "subject": facts.subject,
        **({"qgroup": facts.queue} if facts.queue else {}),
        "sid": facts.sid,
        "msgs": facts.msgs,
        **({"max": facts.max_msgs} if facts.max_msgs else {}),
        "cid": facts.cid,
    }
