"""A configuration file → `ServerOptions`. What we do not have is refused with file and line, or skipped and listed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headrace.server.config import load_auth
from headrace.server.config.fields import ConfigFindings, Section
from headrace.server.config.options import (
    MIB,
    PAYLOAD_BYTES_MAX,
    PORT_DEFAULT,
    SECOND_NS,
    SYSTEM_ACCOUNT,
    AuthOptions,
    JetStreamLimits,
    JetStreamOptions,
    LogOptions,
    MonitorOptions,
    ServerOptions,
    TlsOptions,
    WebsocketOptions,
)
from headrace.server.config.problems import ConfigError, ConfigPosition
from headrace.server.config.text import Entries, Node, read_file

_ONE_PROCESS = "one process is the whole server; for a cluster use nats-server, it opens the same directory"
_NO_JWT = "users and accounts are listed in the configuration"
_NO_SYSLOG = "log to a file, or to stderr and let the service manager keep it"

# What makes a block listen or connect.
_STARTS = {"port", "listen", "routes", "remotes", "remote", "gateways"}
NOT_AT_TOP = {
    **dict.fromkeys(("cluster", "gateway", "leaf", "leafnodes"), _ONE_PROCESS),
    **dict.fromkeys(("connect_error_reports", "reconnect_error_reports"), _ONE_PROCESS),
    **dict.fromkeys(("operator", "operators", "roots", "root", "root_operators", "root_operator"), _NO_JWT),
    **dict.fromkeys(("resolver", "account_resolver", "accounts_resolver", "resolver_preload"), _NO_JWT),
    **dict.fromkeys(("resolver_tls", "resolver_pinned_accounts", "trusted", "trusted_keys"), _NO_JWT),
    "default_sentinel": _NO_JWT,
    **dict.fromkeys(("syslog", "remote_syslog"), _NO_SYSLOG),
    **dict.fromkeys(("https", "https_port"), "monitoring is plain HTTP; put a TLS proxy in front of it"),
    **dict.fromkeys(("mappings", "maps"), "subjects are not mapped"),
    **dict.fromkeys(("no_system_account", "no_system", "no_sys_acc"), "there is always a system account"),
    **dict.fromkeys(("prof_port", "prof_block_rate"), "use py-spy on the process"),
    **dict.fromkeys(("ocsp", "ocsp_cache"), "certificates are not stapled"),
    **dict.fromkeys(("disable_sublist_cache", "no_sublist_cache"), "there is no such cache"),
    "mqtt": "NATS clients and WebSocket only",
    "proxy_protocol": "clients connect directly",
    "write_timeout": "a client that does not read in write_deadline is closed",
    "trace_headers": "traces show whole messages",
    "default_js_domain": "accounts have the server's domain",
    "feature_flags": "features are not switched one by one",
}
NOT_IN_TLS = {
    **dict.fromkeys(("cipher_suites", "curve_preferences"), "the defaults of OpenSSL are used"),
    "allow_insecure_cipher_suites": "the defaults of OpenSSL are used",
    **dict.fromkeys(("cert_store", "cert_match", "cert_match_by", "ca_certs_match"), "files only"),
    **dict.fromkeys(("certs", "certificates"), "one certificate a listener"),
    "insecure": "it is for connections to other servers",
    "verify_cert_and_check_known_urls": "it is for connections to other servers",
    "connection_rate_limit": "connections are not counted by time",
    "pinned_certs": "use a CA of your own",
    "ocsp_peer": "revocation is not asked for",
}
NOT_IN_WEBSOCKET = {
    **dict.fromkeys(
        ("jwt_cookie", "user_cookie", "pass_cookie", "token_cookie"), "credentials come in CONNECT"
    ),
    **dict.fromkeys(("authorization", "authentication"), "users are the same on all ports"),
    "ping_interval": "it is the same on all ports",
}
NOT_IN_JETSTREAM = {
    **dict.fromkeys(("key", "ek", "encryption_key", "cipher", "tpm"), "stores are written in clear"),
    **dict.fromkeys(("prev_key", "prev_ek", "prev_encryption_key"), "stores are written in clear"),
    **dict.fromkeys(("unique_tag", "max_outstanding_catchup", "extension_hint"), _ONE_PROCESS),
    **dict.fromkeys(("meta_compact", "meta_compact_size", "meta_compact_sync"), _ONE_PROCESS),
    "max_concurrent_io": "the number of writing threads is fixed",
    "info_queue_limit": "request_queue_limit counts all requests",
}


def load_file(
    path: str | Path, *, ignore_unsupported: bool = False, environment: Mapping[str, str] = os.environ
) -> ServerOptions:
    """Read a configuration file. ConfigError names everything that is wrong with it, with file and line."""
    path = Path(path)
    options = load(
        read_file(path, environment),
        ConfigPosition(str(path)),
        ignore_unsupported=ignore_unsupported,
        check=False,
    )
    digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" if path.is_file() else None
    return replace(options, config_file=str(path), config_digest=digest)


def load(
    entries: Entries, place: ConfigPosition, *, ignore_unsupported: bool = False, check: bool = True
) -> ServerOptions:
    """Options from a tree. `check` looks at how they fit together; flags may still change that."""
    findings = ConfigFindings(ignore_unsupported)
    options = _top(Section(findings, entries, place))
    options = replace(options, skipped=tuple(findings.skipped), warnings=tuple(findings.warnings))
    if check:
        findings.problems += [f"{place}: {text}" for text in contradictions(options)]
    if findings.problems:
        raise ConfigError(findings.problems)
    return options


def _top(section: Section) -> ServerOptions:
    listen = section.listen("listen")
    host, port = (listen[0], listen[1]) if listen else (None, PORT_DEFAULT)
    auth_section, accounts_node = section.section("authorization"), section.take("accounts")
    auth = AuthOptions() if auth_section is None else load_auth.authorization(auth_section)
    accounts, people = ((), ()) if accounts_node is None else load_auth.accounts(section, accounts_node)
    tls, websocket = section.section("tls"), section.section("websocket", "ws")
    options = ServerOptions(
        host=section.text("host", "net", default=host or "0.0.0.0"),
        port=section.port("port", default=port) or PORT_DEFAULT,
        server_name=section.text("server_name", default=None),
        client_advertise=section.text("client_advertise", default=None),
        max_payload=section.size("max_payload", default=MIB, low=1, high=PAYLOAD_BYTES_MAX),
        max_control_line=section.size("max_control_line", default=4096, low=64, high=MIB),
        max_connections=section.integer("max_connections", "max_conn", default=65_536, low=-1),
        max_subscriptions=section.integer("max_subscriptions", "max_subs", default=0, low=-1),
        max_subscription_tokens=section.integer(
            "max_subscription_tokens", "max_sub_tokens", default=0, high=255
        ),
        max_pending=section.size("max_pending", default=64 * MIB, low=1),
        write_deadline_ns=section.duration("write_deadline", default=10 * SECOND_NS),
        ping_interval_ns=section.duration("ping_interval", default=120 * SECOND_NS),
        ping_max=section.integer("ping_max", default=2, low=1),
        header_support=not section.flag("no_header_support"),
        lame_duck_duration_ns=section.duration("lame_duck_duration", default=120 * SECOND_NS),
        lame_duck_grace_ns=section.duration("lame_duck_grace_period", default=10 * SECOND_NS),
        pid_file=section.text("pid_file", "pidfile", default=None),
        ports_file_dir=section.text("ports_file_dir", default=None),
        server_tags=section.texts("server_tags") or (),
        server_metadata=section.pairs("server_metadata"),
        system_account=section.text("system_account", "system", default=SYSTEM_ACCOUNT),
        auth=replace(
            auth, users=auth.users + people, no_auth_user=section.text("no_auth_user", default=None)
        ),
        accounts=accounts,
        tls=None if tls is None else _tls(tls),
        allow_non_tls=section.flag("allow_non_tls"),
        websocket=None if websocket is None else _websocket(websocket),
        jetstream=_jetstream(section),
        monitor=_monitor(section),
        log=_log(section),
    )
    _skip_idle_blocks(section)
    section.finish(NOT_AT_TOP)
    return options


def _skip_idle_blocks(section: Section) -> None:
    """Blocks that many files carry along and that would start nothing: nothing is different without them."""
    for name in ("cluster", "gateway", "leaf", "leafnodes", "mqtt"):
        node = section.peek(name)
        if node is None or not isinstance(node.value, dict):
            continue
        if _STARTS.isdisjoint(key.lower() for key in node.value):
            section.take(name)
            section.findings.warning(node.place, f"{name!r} is not supported; this one would start nothing")


def _log(section: Section) -> LogOptions:
    trace_system = section.flag("trace_verbose")
    return LogOptions(
        file=section.text("log_file", "logfile", default=None),
        time=section.flag("logtime", default=True),
        utc=section.flag("logtime_utc"),
        debug=section.flag("debug"),
        trace=section.flag("trace") or trace_system,
        trace_system=trace_system,
        size_limit=section.size("logfile_size_limit", "log_size_limit", default=0),
        files_max=section.integer("logfile_max_num", "log_max_num", default=0),
        max_traced_msg_len=section.size("max_traced_msg_len", default=0),
        json=section.flag("json_logs"),
    )


def _monitor(section: Section) -> MonitorOptions:
    listen = section.listen("http")
    host, port = listen or (None, None)
    port = section.port("http_port", "monitor_port", default=port)
    own_host = section.text("http_host", "monitor_host", default=host)
    path = section.text("http_base_path", default="").strip("/")
    return MonitorOptions(port or None, own_host or MonitorOptions.host, f"/{path}" if path else "")


def _tls(section: Section) -> TlsOptions | None:
    cert, key = section.text("cert_file", default=None), section.text("key_file", default=None)
    verify_and_map = section.flag("verify_and_map")
    first, fallback_ns = False, None
    if (node := section.take("handshake_first", "first", "immediate")) is not None:
        first, fallback_ns = _handshake_first(section, node)
    options = TlsOptions(
        cert or "",
        key or "",
        section.text("ca_file", default=None),
        section.flag("verify") or verify_and_map,
        verify_and_map,
        section.duration("timeout", default=2 * SECOND_NS, plain_ok=True),
        first,
        fallback_ns,
    )
    section.finish(NOT_IN_TLS)
    if cert is None or key is None:
        section.findings.problem(section.place, f"{section.name} needs cert_file and key_file")
        return None
    return options


def _handshake_first(section: Section, node: Node) -> tuple[bool, int | None]:
    if isinstance(node.value, bool):
        return node.value, None
    if isinstance(node.value, str) and node.value.lower() in ("auto", "auto_fallback"):
        return True, 50_000_000
    wait_ns = section.as_duration(node, "handshake_first")
    return wait_ns is not None, wait_ns


def _websocket(section: Section) -> WebsocketOptions | None:
    listen = section.listen("listen")
    host, port = listen or (None, 0)
    tls_section, no_tls = section.section("tls"), section.flag("no_tls")
    section.take("compression", "compress")  # an offer that need not be taken
    options = WebsocketOptions(
        port=section.port("port", default=port),
        host=section.text("host", "net", default=host or "0.0.0.0"),
        tls=None if tls_section is None else _tls(tls_section),
        advertise=section.text("advertise", default=None),
        same_origin=section.flag("same_origin"),
        origins=section.texts(
            "allowed_origins", "allowed_origin", "allow_origins", "allow_origin", "origins", "origin"
        )
        or (),
        handshake_timeout_ns=section.duration("handshake_timeout", default=2 * SECOND_NS),
        headers=section.pairs("headers"),
        no_auth_user=section.text("no_auth_user", default=None),
    )
    section.finish(NOT_IN_WEBSOCKET)
    if tls_section is None and not no_tls:
        section.findings.problem(section.place, "websocket needs a tls map, or `no_tls: true` to go without")
    return options if options.port else None


def _jetstream(top: Section) -> JetStreamOptions:
    store_dir = top.text("store_dir", "storedir", default=None)
    node = top.take("jetstream")
    if node is None:
        return JetStreamOptions(store_dir=store_dir)
    if isinstance(node.value, bool):
        return JetStreamOptions(node.value, store_dir)
    if isinstance(node.value, str):
        word = node.value.lower()
        if word not in ("enabled", "enable", "disabled", "disable"):
            top.wrong(node, "jetstream", "enabled, disabled or a map")
        return JetStreamOptions(word.startswith("enable"), store_dir)
    section = top.as_section(node, "jetstream")
    if section is None:
        return JetStreamOptions(store_dir=store_dir)
    own_dir = section.text("store_dir", "store", "storedir", default=None)
    if own_dir is not None and store_dir is not None:
        section.findings.problem(section.place, "store_dir is given twice, outside and inside of jetstream")
    if not section.flag("strict", default=True):
        section.findings.unsupported(
            section.place, "jetstream.strict: false", "unknown fields are always refused"
        )
    sync_node = section.take("sync_interval", "sync")
    always = sync_node is None or (isinstance(sync_node.value, str) and sync_node.value.lower() == "always")
    interval_ns = None if always or sync_node is None else section.as_duration(sync_node, "sync_interval")
    limits = section.section("limits")
    memory, storage = (
        section.size(*names, default=-1, low=-1)
        for names in (("max_memory_store", "max_mem_store", "max_mem"), ("max_file_store", "max_file"))
    )
    options = JetStreamOptions(
        enabled=section.flag("enabled", "enable", default=True),
        store_dir=own_dir or store_dir,
        max_memory=None if memory < 0 else memory,
        max_storage=None if storage < 0 else storage,
        sync="sync" if always or interval_ns == 0 else "interval",
        sync_interval_ns=interval_ns or JetStreamOptions.sync_interval_ns,
        domain=section.text("domain", default=None),
        limits=JetStreamLimits() if limits is None else _jetstream_limits(limits),
        max_buffered_msgs=section.integer("max_buffered_msgs", default=100_000, low=1),
        max_buffered_bytes=section.size("max_buffered_size", default=128 * MIB, low=1),
        request_queue_limit=section.integer("request_queue_limit", default=10_000, low=1),
    )
    section.finish(NOT_IN_JETSTREAM)
    return options


def _jetstream_limits(section: Section) -> JetStreamLimits:
    limits = JetStreamLimits(
        max_ack_pending=section.integer("max_ack_pending", default=-1, low=-1),
        max_request_batch=section.integer("max_request_batch", default=-1, low=-1),
        duplicate_window_ns=section.duration("duplicate_window", default=None),
    )
    section.finish({"max_ha_assets": _ONE_PROCESS, "batch": "the limits of batches are fixed"})
    return limits


def contradictions(options: ServerOptions) -> list[str]:
    """What does not fit together: reported at the end, when file and flags are one."""
    names = [account.name for account in options.accounts]
    people = [user.name for user in options.auth.users]
    found = [f"account {name!r} is configured twice" for name in _repeated(names)]
    found += [f"user {name!r} is configured twice" for name in _repeated(people)]
    found += _auth_contradictions(options, people)
    if options.system_account not in (SYSTEM_ACCOUNT, *names):
        found.append(f"system_account is {options.system_account!r}, which is not one of the accounts")
    if any(account.name == options.system_account and account.jetstream for account in options.accounts):
        found.append("JetStream cannot be enabled for the system account")
    if options.max_payload > options.max_pending:
        found.append(f"max_payload ({options.max_payload}) is above max_pending ({options.max_pending})")
    if options.jetstream.domain is not None and any(
        c.isspace() or c in ".*>" for c in options.jetstream.domain
    ):
        found.append(f"the domain {options.jetstream.domain!r} may not contain blanks, `.`, `*` or `>`")
    if any(c.isspace() for c in options.server_name or ""):
        found.append(f"server_name {options.server_name!r} may not contain blanks")
    if options.tls is not None and options.tls.verify_and_map and not options.auth.users:
        found.append("tls.verify_and_map needs users to map to")
    return found


def _repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _auth_contradictions(options: ServerOptions, people: list[str]) -> list[str]:
    """Users, a single user, a token: only one of these can be meant."""
    found: list[str] = []
    auth = options.auth
    if auth.users and (auth.token is not None or auth.user is not None):
        found.append("there is a list of users, so a single user or a token cannot be given beside it")
    if auth.token is not None and auth.user is not None:
        found.append("a token and a user are given; clients would not know which")
    for where, wanted in (("no_auth_user", auth.no_auth_user), ("websocket.no_auth_user", _ws_user(options))):
        if wanted is not None and wanted not in people:
            found.append(f"{where} is {wanted!r}, which is not one of the users")
    return found


def _ws_user(options: ServerOptions) -> str | None:
    return options.websocket.no_auth_user if options.websocket is not None else None
