"""Everything that can be configured, as frozen dataclasses with nats-server's defaults.

Times are nanoseconds, sizes bytes; None means "not given" unless the comment says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headrace.server.auth.permissions import Permissions

SECOND_NS = 1_000_000_000
MIB = 1 << 20

DEFAULT_ACCOUNT = "$G"
SYSTEM_ACCOUNT = "$SYS"
PORT_DEFAULT = 4222
RANDOM_PORT = -1
PAYLOAD_BYTES_MAX = 64 * MIB  # nats-server refuses more as well

SyncMode = Literal["sync", "interval"]


@dataclass(frozen=True)
class TlsOptions:
    """Certificates of one listener; `verify` asks clients for theirs."""

    cert_file: str
    key_file: str
    ca_file: str | None = None
    verify: bool = False
    verify_and_map: bool = False  # the client's certificate names the user
    timeout_ns: int = 2 * SECOND_NS
    handshake_first: bool = False  # TLS before INFO
    handshake_first_fallback_ns: int | None = None  # `auto`: INFO in clear if no handshake came in this time


@dataclass(frozen=True)
class WebsocketOptions:
    """The WebSocket listener."""

    port: int
    host: str = "0.0.0.0"
    tls: TlsOptions | None = None
    advertise: str | None = None
    same_origin: bool = False
    origins: tuple[str, ...] = ()
    handshake_timeout_ns: int = 2 * SECOND_NS
    headers: tuple[tuple[str, str], ...] = ()  # added to the answer of the upgrade
    no_auth_user: str | None = None


@dataclass(frozen=True)
class AccountJetStream:
    """An account's share of JetStream; -1: no limit of its own."""

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = 0
    storage_max_stream_bytes: int = 0
    max_bytes_required: bool = False


@dataclass(frozen=True)
class UserOptions:
    """One user: a name with a password (plain or bcrypt; "" is a password), or an nkey."""

    name: str
    account: str = DEFAULT_ACCOUNT
    password: str = ""
    nkey: str | None = None
    permissions: Permissions | None = None
    connection_types: frozenset[str] = frozenset()  # empty: all; else STANDARD, WEBSOCKET


@dataclass(frozen=True)
class AccountOptions:
    """An account: its users are in `AuthOptions.users`. `jetstream` None: JetStream is off for it."""

    name: str
    jetstream: AccountJetStream | None = None
    max_connections: int = -1
    max_subscriptions: int = -1
    max_payload: int = -1


@dataclass(frozen=True)
class AuthOptions:
    """Who may connect. Nothing given: everybody, as the account `$G`."""

    token: str | None = None
    user: str | None = None  # the single user of `authorization { user, password }`
    password: str = ""
    users: tuple[UserOptions, ...] = ()
    default_permissions: Permissions | None = None
    timeout_ns: int | None = None  # None: 2 s, with TLS one second more than its own
    no_auth_user: str | None = None


@dataclass(frozen=True)
class JetStreamLimits:
    """`jetstream { limits { … } }`: what clients may ask for; -1 and None: no limit."""

    max_ack_pending: int = -1
    max_request_batch: int = -1
    duplicate_window_ns: int | None = None


@dataclass(frozen=True)
class JetStreamOptions:
    """JetStream: where streams live, how much they may take, and what an acknowledgement means."""

    enabled: bool = False
    store_dir: str | None = None  # None: a folder of the user's data directory, see `places`
    max_memory: int | None = None  # None: three quarters of the machine's memory
    max_storage: int | None = None  # None: three quarters of what is free on the disk
    sync: SyncMode = "sync"
    sync_interval_ns: int = 120 * SECOND_NS  # for `interval`
    domain: str | None = None
    limits: JetStreamLimits = field(default_factory=JetStreamLimits)
    max_buffered_msgs: int = 100_000  # waiting to be stored, per stream
    max_buffered_bytes: int = 128 * MIB
    request_queue_limit: int = 10_000


@dataclass(frozen=True)
class LogOptions:
    """Where the log goes and how its lines look."""

    file: str | None = None
    time: bool = True
    utc: bool = False
    debug: bool = False
    trace: bool = False
    trace_system: bool = False  # -VV: also what the system account does
    size_limit: int = 0  # 0: the file is never rotated by the server
    files_max: int = 0  # 0: all rotated files stay
    max_traced_msg_len: int = 0  # 0: whole messages
    json: bool = False


@dataclass(frozen=True)
class MonitorOptions:
    """The HTTP port; None: no monitoring. On loopback unless a host is named."""

    port: int | None = None
    host: str = "127.0.0.1"
    base_path: str = ""


@dataclass(frozen=True)
class ServerOptions:
    """One server."""

    host: str = "0.0.0.0"
    port: int = PORT_DEFAULT
    server_name: str | None = None
    client_advertise: str | None = None
    max_payload: int = MIB
    max_control_line: int = 4096
    max_connections: int = 65_536
    max_subscriptions: int = 0  # 0: no limit
    max_subscription_tokens: int = 0
    max_pending: int = 64 * MIB
    write_deadline_ns: int = 10 * SECOND_NS
    ping_interval_ns: int = 120 * SECOND_NS
    ping_max: int = 2
    header_support: bool = True
    lame_duck_duration_ns: int = 120 * SECOND_NS
    lame_duck_grace_ns: int = 10 * SECOND_NS
    pid_file: str | None = None
    ports_file_dir: str | None = None
    server_tags: tuple[str, ...] = ()
    server_metadata: tuple[tuple[str, str], ...] = ()
    system_account: str = SYSTEM_ACCOUNT
    auth: AuthOptions = field(default_factory=AuthOptions)
    accounts: tuple[AccountOptions, ...] = ()  # as configured; `Authenticator.accounts` adds the implied ones
    tls: TlsOptions | None = None
    allow_non_tls: bool = False
    websocket: WebsocketOptions | None = None
    jetstream: JetStreamOptions = field(default_factory=JetStreamOptions)
    monitor: MonitorOptions = field(default_factory=MonitorOptions)
    log: LogOptions = field(default_factory=LogOptions)
    config_file: str | None = None
    config_digest: str | None = None  # sha256:… of the file's bytes
    skipped: tuple[str, ...] = ()  # `file:line: key` that --ignore-unsupported passed over
    warnings: tuple[str, ...] = ()

    @property
    def auth_timeout_ns(self) -> int:
        """How long a client may take to say who it is."""
        if self.auth.timeout_ns is not None:
            return self.auth.timeout_ns
        return 2 * SECOND_NS if self.tls is None else self.tls.timeout_ns + SECOND_NS
