"""Users, permissions and accounts of the configuration → AuthOptions and AccountOptions."""

from __future__ import annotations

from dataclasses import replace

from headrace.nkeys import is_user_nkey
from headrace.server.auth.permissions import Permissions, is_subject
from headrace.server.config.fields import SECOND_NS, Section
from headrace.server.config.options import (
    DEFAULT_ACCOUNT,
    AccountJetStream,
    AccountOptions,
    AuthOptions,
    UserOptions,
)
from headrace.server.config.text import Node

CONNECTION_TYPES = frozenset(
    {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"}
)
RESPONSES_MAX_DEFAULT = 1
RESPONSES_TTL_DEFAULT_NS = 120 * SECOND_NS

NOT_IN_AUTHORIZATION = {
    "auth_callout": "users are listed in the configuration",
    "auth_hook": "users are listed in the configuration",
    "proxy_required": "there is no trusted proxy",
}
NOT_IN_ACCOUNT = {
    "imports": "accounts are isolated from each other",
    "exports": "accounts are isolated from each other",
    "mappings": "subjects are not mapped",
    "maps": "subjects are not mapped",
    "nkey": "accounts have a name only",
    "msg_trace": "messages are not traced",
    "trace_dest": "messages are not traced",
}


def authorization(section: Section) -> AuthOptions:
    """`authorization { … }`."""
    token, user = section.text("token", default=None), section.text("user", "username", default=None)
    password = section.text("pass", "password", default="")
    timeout_ns = section.duration("timeout", default=None, plain_ok=True)
    default_node = section.take("default_permissions", "default_permission", "permissions")
    default = None if default_node is None else permissions(section, default_node)
    users_node = section.take("users")
    listed = () if users_node is None else users(section, users_node, DEFAULT_ACCOUNT, default)
    given = {
        "a token": token is not None,
        "a user": user is not None,
        "a users array": users_node is not None,
    }
    if sum(given.values()) > 1:
        names = " and ".join(name for name, is_given in given.items() if is_given)
        section.findings.problem(section.place, f"authorization has {names}; it may have only one of them")
    section.finish(NOT_IN_AUTHORIZATION)
    return AuthOptions(token, user, password, listed, default, timeout_ns)


def users(section: Section, node: Node, account: str, default: Permissions | None) -> tuple[UserOptions, ...]:
    """An array of users, all of one account; `default` is for those without permissions of their own."""
    if not isinstance(node.value, list):
        section.wrong(node, "users", "an array of maps")
        return ()
    maps = [section.as_section(each, "users") for each in node.value]
    found = (_user(each, account, default) for each in maps if each is not None)
    return tuple(user for user in found if user is not None)


def _user(section: Section, account: str, default: Permissions | None) -> UserOptions | None:
    name, nkey = section.text("user", "username", default=None), section.text("nkey", default=None)
    password = section.text("pass", "password", default=None)
    node = section.take("permissions", "permission", "authorization")
    own = None if node is None else permissions(section, node)
    kinds = frozenset(
        kind.upper()
        for kind in section.texts("allowed_connection_types", "connection_types", "clients") or ()
    )
    section.finish({"proxy_required": "there is no trusted proxy"})
    report = section.findings.problem
    if unknown := kinds - CONNECTION_TYPES:
        report(section.place, f"unknown connection type {', '.join(sorted(unknown))}")
    if nkey is not None:
        if name is not None or password is not None:
            report(section.place, "a user with an nkey has no name and no password")
        if not is_user_nkey(nkey):
            report(section.place, f"{nkey!r} is not the public nkey of a user (56 letters, the first is U)")
            return None
        return UserOptions(nkey, account, "", nkey, own or default, kinds)
    if name is None:
        report(section.place, "a user has neither `user` nor `nkey`")
        return None
    return UserOptions(name, account, password or "", None, own or default, kinds)


def permissions(parent: Section, node: Node) -> Permissions | None:
    """`permissions { publish …, subscribe …, allow_responses … }`."""
    section = parent.as_section(node, "permissions")
    if section is None:
        return None
    publish_allow, publish_deny = _subjects(section, ("publish", "pub", "import"), queues=False)
    subscribe_allow, subscribe_deny = _subjects(section, ("subscribe", "sub", "export"), queues=True)
    node_responses = section.take("allow_responses", "publish_allow_responses")
    responses = None if node_responses is None else _responses(section, node_responses)
    if responses is not None and publish_allow is None:
        publish_allow = ()  # as nats-server: who may answer may not publish unless it says so
    section.finish({})
    return Permissions(publish_allow, publish_deny, subscribe_allow, subscribe_deny, responses)


def _subjects(
    section: Section, names: tuple[str, ...], queues: bool
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """`"a.>"`, `["a", "b"]` or `{allow: …, deny: …}` → (allow or None, deny)."""
    node = section.take(*names)
    if node is None:
        return None, ()
    if not isinstance(node.value, dict):
        return _checked(section, node, names[0], section.as_texts(node, names[0]), queues), ()
    inner = section.as_section(node, names[0])
    assert inner is not None
    allow, deny = inner.texts("allow"), inner.texts("deny")
    inner.finish({})
    return (
        None if allow is None else _checked(section, node, names[0], allow, queues),
        _checked(section, node, names[0], deny or (), queues),
    )


def _checked(
    section: Section, node: Node, name: str, subjects: tuple[str, ...], queues: bool
) -> tuple[str, ...]:
    kept: list[str] = []
    for entry in subjects:
        words = entry.split()
        if not 1 <= len(words) <= (2 if queues else 1) or not all(map(is_subject, words)):
            section.findings.problem(
                node.place, f"{name}: {entry!r} is not a subject{' (and a queue)' if queues else ''}"
            )
        else:
            kept.append(" ".join(words))
    return tuple(kept)


def _responses(section: Section, node: Node) -> tuple[int, int] | None:
    if isinstance(node.value, bool):
        return (RESPONSES_MAX_DEFAULT, RESPONSES_TTL_DEFAULT_NS) if node.value else None
    inner = section.as_section(node, "allow_responses")
    if inner is None:
        return None
    most = inner.integer("max", "max_msgs", "max_messages", "max_responses", default=0, low=-(1 << 31))
    ttl_node = inner.take("expires", "expiration", "ttl")
    ttl_ns: int | None = None
    if ttl_node is not None:
        endless = isinstance(ttl_node.value, str) and ttl_node.value.startswith("-")
        ttl_ns = 0 if endless else (inner.as_duration(ttl_node, "expires") or None)
    inner.finish({})
    return (
        RESPONSES_MAX_DEFAULT if most == 0 else max(most, -1),
        RESPONSES_TTL_DEFAULT_NS if ttl_ns is None else ttl_ns,
    )


def accounts(section: Section, node: Node) -> tuple[tuple[AccountOptions, ...], tuple[UserOptions, ...]]:
    """`accounts { NAME { users, jetstream, limits, … } }`, or an array of names."""
    found: list[AccountOptions] = []
    people: list[UserOptions] = []
    if isinstance(node.value, list):
        found = [AccountOptions(name) for name in section.as_texts(node, "accounts")]
    elif isinstance(node.value, dict):  # not a Section: names of accounts differ by case
        for name, each in node.value.items():
            if (inner := section.as_section(each, name)) is not None:
                account, its_users = _account(inner, name)
                found.append(account)
                people += its_users
    else:
        section.wrong(node, "accounts", "a map of accounts")
    for account in found:
        if account.name == DEFAULT_ACCOUNT:
            section.findings.problem(
                node.place, f"{DEFAULT_ACCOUNT} is the default account; it cannot be configured"
            )
        elif not account.name or any(c.isspace() or c in ".*>/\\" for c in account.name):
            section.findings.problem(node.place, f"{account.name!r} cannot be the name of an account")
    return tuple(found), tuple(people)


def _account(section: Section, name: str) -> tuple[AccountOptions, tuple[UserOptions, ...]]:
    default_node = section.take("default_permissions")
    default = None if default_node is None else permissions(section, default_node)
    users_node = section.take("users")
    people = () if users_node is None else users(section, users_node, name, default)
    account = AccountOptions(name, _account_jetstream(section))
    if (limits := section.section("limits")) is not None:
        account = replace(
            account,
            max_connections=limits.integer("max_connections", "max_conn", default=-1, low=-1),
            max_subscriptions=limits.integer("max_subscriptions", "max_subs", default=-1, low=-1),
            max_payload=limits.size("max_payload", "max_pay", default=-1, low=-1),
        )
        limits.finish(dict.fromkeys(("max_leafnodes", "max_leafs"), "there are no leaf nodes"))
    section.finish(NOT_IN_ACCOUNT)
    return account, people


def _account_jetstream(parent: Section) -> AccountJetStream | None:
    node = parent.take("jetstream")
    if node is None:
        return None
    if isinstance(node.value, bool):
        return AccountJetStream() if node.value else None
    if isinstance(node.value, str):
        word = node.value.lower()
        if word not in ("enabled", "enable", "disabled", "disable"):
            parent.wrong(node, "jetstream", "enabled, disabled or a map")
        return AccountJetStream() if word.startswith("enable") else None
    section = parent.as_section(node, "jetstream")
    if section is None:
        return None
    found = AccountJetStream(
        max_memory=section.size("max_memory", "max_mem", "mem", "memory", default=-1, low=-1),
        max_storage=section.size("max_store", "max_file", "max_disk", "store", "disk", default=-1, low=-1),
        max_streams=section.integer("max_streams", "streams", default=-1, low=-1),
        max_consumers=section.integer("max_consumers", "consumers", default=-1, low=-1),
        max_ack_pending=section.integer("max_ack_pending", default=-1, low=-1),
        memory_max_stream_bytes=section.size(
            "mem_max_stream_bytes", "memory_max_stream_bytes", default=0, low=-1
        ),
        storage_max_stream_bytes=section.size(
            "disk_max_stream_bytes", "store_max_stream_bytes", default=0, low=-1
        ),
        max_bytes_required=section.flag("max_bytes_required", "max_stream_bytes", "max_bytes"),
    )
    section.finish({"cluster_traffic": "one process is the whole server"})
    return found
