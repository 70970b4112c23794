"""The system subjects: what clients and the nats CLI ask a server about itself, as pure functions of a `ServerView`.

    every account         $SYS.REQ.USER.INFO                          who am I
                          $SYS.REQ.{SERVER,ACCOUNT}.PING.CONNZ        the clients of my account
                          $SYS.REQ.ACCOUNT.PING.STATZ                 what my account moved
    the system account    $SYS.REQ.SERVER.PING[.<KIND>]               all servers (here: this one)
                          $SYS.REQ.SERVER.<id>.<KIND>                 this one
                          $SYS.REQ.ACCOUNT.<account>.<KIND>           one account

`subjects` lists what to listen to, so that anything else gets "no responders" as from the real server. Answers are
`{"server": …, "data": …}` or `{"server": …, "error": …}`. A request may name servers that it is for; if this one is
not among them there is no answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.errors import BadInput, HeadraceError
from headrace.randomness import random_hex
from headrace.server.auth.permissions import Permissions
from headrace.server.auth.users import Identity
from headrace.server.reports.accounts import account_info, account_stats, accountz, accstatz, find, subsz
from headrace.server.reports.cluster import gatewayz, leafz, routez
from headrace.server.reports.connz import connz
from headrace.server.reports.form import QueryParams, now
from headrace.server.reports.healthz import healthz
from headrace.server.reports.jsz import account_jsz, jsz
from headrace.server.reports.varz import statsz, varz
from headrace.server.view import ServerView

PREFIX = "$SYS.REQ."
OF_EVERY_ACCOUNT = (
    f"{PREFIX}USER.INFO",
    f"{PREFIX}SERVER.PING.CONNZ",
    f"{PREFIX}ACCOUNT.PING.CONNZ",
    f"{PREFIX}ACCOUNT.PING.STATZ",
)
CONNECTIONS_EVENT = "io.nats.server.advisory.v1.account_connections"
_JETSTREAM_FLAG = 1
_sequence = itertools.count(1)

Report = Callable[[ServerView, QueryParams], Any]
AccountReport = Callable[[ServerView, str, QueryParams], Any]


def answer(view: ServerView, subject: str, payload: bytes, identity: Identity) -> bytes | None:
    """The answer to one request, or None: this server has nothing to say to it."""
    words = subject.removeprefix(PREFIX).split(".")
    is_system = identity.account == view.facts().options.system_account
    try:
        params, values = _read(payload)
    except BadInput as error:
        return _encoded({"server": server_info(view), "error": {"code": 400, "description": str(error)}})
    if not _is_meant(view, values):
        return None
    if words == ["USER", "INFO"]:
        return _wrapped(view, lambda: user_info(identity))
    if not is_system:
        return _of_own_account(view, words, params, identity.account)
    if words[0] == "SERVER" and words[1:2] and words[1] in ("PING", view.facts().id):
        return _of_server(view, words, params, values)
    if words[0] == "ACCOUNT" and len(words) == 3:
        return _of_account(view, words[1], words[2], params)
    return None


def subjects(server_id: str, is_system: bool) -> list[str]:
    """What to listen to in an account."""
    if not is_system:
        return list(OF_EVERY_ACCOUNT)
    kinds = [*_SERVER, "STATSZ", "IDZ", "HEALTHZ"]
    return [
        f"{PREFIX}USER.INFO",
        f"{PREFIX}SERVER.PING",
        *(f"{PREFIX}SERVER.PING.{kind}" for kind in kinds),
        *(f"{PREFIX}SERVER.{server_id}.{kind}" for kind in [*kinds, "RELOAD", "KICK"]),
        *(f"{PREFIX}ACCOUNT.*.{kind}" for kind in [*_ACCOUNT, "CONNS"]),
    ]


def server_info(view: ServerView) -> dict[str, Any]:
    """How a server introduces itself in every answer."""
    facts = view.facts()
    options, has_jetstream = facts.options, view.jetstream() is not None
    return {
        "name": facts.name,
        "host": facts.host,
        "id": facts.id,
        **({"domain": options.jetstream.domain} if has_jetstream and options.jetstream.domain else {}),
        "ver": facts.version,
        **({"tags": list(options.server_tags)} if options.server_tags else {}),
        **({"metadata": dict(options.server_metadata)} if options.server_metadata else {}),
        "jetstream": has_jetstream,
        "flags": _JETSTREAM_FLAG if has_jetstream else 0,
        "seq": next(_sequence),
        "time": now(),
    }


def user_info(identity: Identity) -> dict[str, Any]:
    document: dict[str, Any] = {
        "user": identity.user,
        "account": identity.account,
        "account_name": identity.account,
    }
    if identity.permissions is not None:
        document["permissions"] = _permissions(identity.permissions)
    return document


def _permissions(found: Permissions) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, allow, deny in (
        ("publish", found.publish_allow, found.publish_deny),
        ("subscribe", found.subscribe_allow, found.subscribe_deny),
    ):
        lists = {"allow": list(allow or ()), "deny": list(deny)}
        if kept := {key: entries for key, entries in lists.items() if entries}:
            document[name] = kept
    if found.allow_responses is not None:
        document["responses"] = dict(zip(("max", "ttl"), found.allow_responses, strict=True))
    return document


def _nothing(view: ServerView, params: QueryParams) -> dict[str, Any]:
    return {}


_SERVER: dict[str, Report] = {
    "VARZ": lambda view, _: varz(view),
    "CONNZ": connz,
    "SUBSZ": subsz,
    "JSZ": jsz,
    "ACCOUNTZ": accountz,
    "ROUTEZ": routez,
    "LEAFZ": leafz,
    "GATEWAYZ": gatewayz,
    "RAFTZ": _nothing,
    "IPQUEUESZ": _nothing,
}
_ACCOUNT: dict[str, AccountReport] = {
    "INFO": lambda view, account, _: account_info(view, account),
    "CONNZ": lambda view, account, params: connz(view, params, account),
    "SUBSZ": lambda view, account, params: subsz(view, params, account, listed=True),
    "JSZ": account_jsz,
    "STATZ": lambda view, account, params: accstatz(view, params, [account]),
    "LEAFZ": lambda view, _, params: leafz(view, params),
}


def _of_server(
    view: ServerView, words: list[str], params: QueryParams, values: dict[str, Any]
) -> bytes | None:
    kind = words[2] if len(words) == 3 else "STATSZ" if words == ["SERVER", "PING"] else ""
    if kind == "STATSZ":
        return _encoded({"server": server_info(view), "statsz": statsz(view)})
    if kind == "IDZ":
        facts = view.facts()
        return _encoded({"name": facts.name, "host": facts.host, "id": facts.id})
    if kind == "HEALTHZ":
        code, document = healthz(view, params)
        return _encoded({"server": server_info(view), "data": {**document, "status_code": code}})
    if words[1] != "PING" and kind in ("RELOAD", "KICK"):
        return _done(view, view.reload() if kind == "RELOAD" else _kick(view, values))
    report = _SERVER.get(kind)
    return None if report is None else _wrapped(view, lambda: report(view, params))


def _of_account(view: ServerView, account: str, kind: str, params: QueryParams) -> bytes | None:
    if account == "PING" and kind == "STATZ":
        return _wrapped(view, lambda: accstatz(view, params))
    if kind == "CONNS":
        return _connections_event(view, account)
    report = _ACCOUNT.get(kind)
    return None if report is None else _wrapped(view, lambda: report(view, account, params))


def _connections_event(view: ServerView, account: str) -> bytes | None:
    """The event that a server sends of itself when connections come and go."""
    try:
        stats = account_stats(find(view, account))
    except BadInput:
        return None
    head = {"type": CONNECTIONS_EVENT, "id": random_hex(11), "timestamp": now()}
    return _encoded({**head, "server": server_info(view), **stats})


def _of_own_account(view: ServerView, words: list[str], params: QueryParams, account: str) -> bytes | None:
    """A client sees its own account, whatever its request names."""
    if words in (["SERVER", "PING", "CONNZ"], ["ACCOUNT", "PING", "CONNZ"]):
        return _wrapped(view, lambda: connz(view, params, account))
    if words == ["ACCOUNT", "PING", "STATZ"]:
        return _wrapped(view, lambda: accstatz(view, params, [account]))
    return None


def _kick(view: ServerView, values: dict[str, Any]) -> str | None:
    cid = values.get("cid")
    if not isinstance(cid, int) or isinstance(cid, bool):
        return "no cid was given"
    return None if view.kick(cid) else f"no client with cid {cid}"


def _done(view: ServerView, wrong: str | None) -> bytes:
    error = {} if wrong is None else {"error": {"code": 500, "description": wrong}}
    return _encoded({"server": server_info(view), **error})


def _wrapped(view: ServerView, make: Callable[[], Any]) -> bytes:
    try:
        return _encoded({"server": server_info(view), "data": make()})
    except HeadraceError as error:
        problem = {"code": 500, "description": str(error)}
        return _encoded({"server": server_info(view), "data": None, "error": problem})


def _encoded(document: dict[str, Any]) -> bytes:
    return msgspec.json.encode(document)


def _read(payload: bytes) -> tuple[QueryParams, dict[str, Any]]:
    if not payload.strip():
        return QueryParams(), {}
    try:
        values = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"invalid JSON: {error}") from error
    if not isinstance(values, dict):
        raise BadInput("invalid JSON: expected an object")
    kept: dict[str, Any] = {str(key): value for key, value in values.items()}  # pyright: ignore
    return QueryParams(kept), kept


def _is_meant(view: ServerView, values: dict[str, Any]) -> bool:
    """`server_name`, `host`, `cluster`, `domain` and `tags` choose among servers."""
    facts, exact = view.facts(), values.get("exact_match") is True
    own = {
        "server_name": facts.name,
        "host": facts.host,
        "cluster": "",
        "domain": facts.options.jetstream.domain or "",
    }
    for key, value in own.items():
        wanted = values.get(key)
        if isinstance(wanted, str) and wanted and not (wanted == value if exact else wanted in value):
            return False
    tags = values.get("tags")
    return not isinstance(tags, list) or all(tag in facts.options.server_tags for tag in tags)  # pyright: ignore
