"""Options from files and flags: every key that we have, the refusal of those that we have not, flags over files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.server.auth.permissions import Permissions
from headrace.server.config.flags import Flags, parse
from headrace.server.config.load import load
from headrace.server.config.options import (
    AccountJetStream,
    AccountOptions,
    ServerOptions,
    TlsOptions,
    UserOptions,
    WebsocketOptions,
)
from headrace.server.config.places import claim, store_dirs
from headrace.server.config.problems import ConfigError, ConfigPosition
from headrace.server.config.reload import check_reload
from headrace.server.config.resolve import resolve
from headrace.server.config.text import read_text

NKEY = "UCK5N7N66OBOINFXAYC2ACJQYFSOD4VYNU6APEJTAVFZB2SVHLKGEW7L"
S = 1_000_000_000


def options(text: str, ignore_unsupported: bool = False) -> ServerOptions:
    entries = read_text(text, "server.conf", {})
    return load(entries, ConfigPosition("server.conf"), ignore_unsupported=ignore_unsupported)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        options(text)
    return str(caught.value)


def test_nothing_said_means_nats_servers_defaults() -> None:
    found = options("")
    assert found == ServerOptions()
    assert (found.port, found.max_payload, found.max_control_line) == (4222, 1 << 20, 4096)
    assert (found.max_pending, found.max_connections, found.ping_max) == (64 << 20, 65_536, 2)
    assert (found.ping_interval_ns, found.write_deadline_ns, found.auth_timeout_ns) == (
        120 * S,
        10 * S,
        2 * S,
    )
    assert not found.jetstream.enabled and found.jetstream.sync == "sync"
    assert found.monitor.port is None and found.monitor.host == "127.0.0.1"


def test_server_keys() -> None:
    found = options(
        """
        listen: "[::1]:4333"; server_name: one; client_advertise: "example:4222"
        max_payload: 2MB, max_control_line: 8KB, max_connections: 10, max_subs: 7, max_pending: 4MB
        write_deadline: "3s", ping_interval: "100ms", ping_max: 5, max_sub_tokens: 16
        lame_duck_duration: "30s", lame_duck_grace_period: "1s", no_header_support: true
        pid_file: p.pid, ports_file_dir: d, server_tags: [a, b], server_metadata { k: v }
        http: 8222, http_base_path: /nats
        log_file: x.log, logtime: false, logtime_utc: true, debug: true, trace: true, json_logs: true
        log_size_limit: 1MB, max_traced_msg_len: 100
        """
    )
    assert (found.host, found.port, found.server_name) == ("::1", 4333, "one")
    assert (found.max_payload, found.max_control_line, found.max_pending) == (2 << 20, 8 << 10, 4 << 20)
    assert (found.max_connections, found.max_subscriptions, found.max_subscription_tokens) == (10, 7, 16)
    assert (found.write_deadline_ns, found.ping_interval_ns, found.ping_max) == (3 * S, S // 10, 5)
    assert (found.lame_duck_duration_ns, found.lame_duck_grace_ns, found.header_support) == (30 * S, S, False)
    assert (found.pid_file, found.ports_file_dir, found.server_tags) == ("p.pid", "d", ("a", "b"))
    assert found.server_metadata == (("k", "v"),) and found.client_advertise == "example:4222"
    assert (found.monitor.host, found.monitor.port, found.monitor.base_path) == ("127.0.0.1", 8222, "/nats")
    log = found.log
    assert (log.file, log.time, log.utc, log.debug, log.trace, log.json) == (
        "x.log",
        False,
        True,
        True,
        True,
        True,
    )
    assert (log.size_limit, log.max_traced_msg_len) == (1 << 20, 100)


def test_a_monitor_leaves_loopback_only_with_the_option() -> None:
    assert options("host: 0.0.0.0, http_port: 8222").monitor.host == "127.0.0.1"
    assert options('http: ":8222"').monitor.host == "127.0.0.1"
    assert options('http: "0.0.0.0:8222"').monitor.host == "0.0.0.0"
    assert options("http_port: 8222, http_host: 10.0.0.1").monitor.host == "10.0.0.1"


@pytest.mark.parametrize(
    ("text", "mode", "interval_ns"),
    [
        ("jetstream: enabled", "sync", 120 * S),
        ("jetstream { sync_interval: always }", "sync", 120 * S),
        ("jetstream { sync_interval: '5s' }", "interval", 5 * S),
        ("jetstream { sync: 250ms }", "interval", S // 4),
        ("jetstream { sync_interval: 120 }", "interval", 120 * S),
    ],
)
def test_sync_modes(text: str, mode: str, interval_ns: int) -> None:
    found = options(text).jetstream
    assert (found.enabled, found.sync, found.sync_interval_ns) == (True, mode, interval_ns)


def test_jetstream_keys() -> None:
    found = options(
        "jetstream { store_dir: d, max_mem: 64MB, max_file_store: '10G', domain: hub, max_buffered_msgs: 9,"
        " limits { max_ack_pending: 5, max_request_batch: 6, duplicate_window: '1m' } }"
    ).jetstream
    assert (found.store_dir, found.max_memory, found.max_storage) == ("d", 64 << 20, 10 << 30)
    assert (found.domain, found.max_buffered_msgs) == ("hub", 9)
    limits = found.limits
    assert (limits.max_ack_pending, limits.max_request_batch, limits.duplicate_window_ns) == (5, 6, 60 * S)
    assert not options("jetstream { enabled: false }").jetstream.enabled
    assert options("store_dir: d\njetstream: true").jetstream.store_dir == "d"


def test_authorization() -> None:
    assert options("authorization { token: 1234, timeout: 0.5 }").auth.token == "1234"
    assert options("authorization { token: x, timeout: 0.5 }").auth_timeout_ns == S // 2
    single = options("authorization { user: a, password: yes }").auth
    assert (single.user, single.password) == ("a", "yes")
    found = options(
        f"""
        authorization {{
          default_permissions {{ publish: "d.>" }}
          users: [
            {{user: a, password: b}}
            {{nkey: {NKEY}, permissions {{ subscribe {{ allow: ["x", "y q.*"], deny: "x.z" }}, allow_responses: true }} }}
            {{user: c, permissions {{ pub: [m, n], sub: {{deny: o}}, allow_responses {{ max: -1, expires: "5s" }} }},
              allowed_connection_types: [websocket]}}
          ]
        }}
        no_auth_user: a
        """
    ).auth
    default = Permissions(publish_allow=("d.>",))
    assert found.users == (
        UserOptions("a", "$G", "b", permissions=default),
        UserOptions(
            NKEY, "$G", "", NKEY, Permissions((), (), ("x", "y q.*"), ("x.z",), (1, 120 * S))
        ),
        UserOptions(
            "c", permissions=Permissions(("m", "n"), (), None, ("o",), (-1, 5 * S)),
            connection_types=frozenset({"WEBSOCKET"}),
        ),
    )  # fmt: skip
    assert found.no_auth_user == "a"


def test_accounts() -> None:
    found = options(
        """
        accounts {
          SYS { users: [{user: s, password: s}] }
          A { users: [{user: a, password: a}], limits { max_conn: 5, max_payload: 1KB }, jetstream: enabled }
          a { jetstream { max_mem: 64MB, max_file: 32MB, max_streams: 10, max_consumers: 20, max_ack_pending: 100,
                          memory_max_stream_bytes: 2048, store_max_stream_bytes: 4096, max_stream_bytes: true } }
        }
        system_account: SYS
        """
    )
    assert found.accounts == (
        AccountOptions("SYS"),
        AccountOptions("A", AccountJetStream(), 5, -1, 1024),
        AccountOptions("a", AccountJetStream(64 << 20, 32 << 20, 10, 20, 100, 2048, 4096, True)),
    )
    assert [(user.name, user.account) for user in found.auth.users] == [("s", "SYS"), ("a", "A")]
    assert found.system_account == "SYS"


def test_tls_and_websocket() -> None:
    found = options(
        """
        tls { cert_file: c, key_file: k, ca_file: a, verify: true, timeout: 3, handshake_first: true }
        websocket { port: 8080, no_tls: true, origins: "http://x", compression: true, headers { A: b } }
        """
    )
    assert found.tls == TlsOptions("c", "k", "a", verify=True, timeout_ns=3 * S, handshake_first=True)
    assert found.auth_timeout_ns == 4 * S
    assert found.websocket == WebsocketOptions(8080, origins=("http://x",), headers=(("A", "b"),))
    auto = options("tls { cert_file: c, key_file: k, handshake_first: auto }").tls
    assert auto is not None and auto.handshake_first and auto.handshake_first_fallback_ns == 50_000_000


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("\nfoo: 1", 2, "unknown key 'foo'"),
        ("\n\ncluster { port: 1 }", 3, "'cluster' is not supported: one process"),
        ("jetstream {\n key: x\n}", 2, "'jetstream.key' is not supported"),
        ("authorization {\n users: [\n {user: a, foo: 1} ] }", 3, "unknown key 'authorization.users.foo'"),
        ("accounts {\n A { exports: [] } }", 2, "'A.exports' is not supported"),
        ("port: x", 1, "port must be a number, found 'x'"),
        ("port: 70000", 1, "-1 to 65535"),
        ("debug: 1", 1, "debug must be true or false"),
        ("max_payload: 1GB", 1, "max_payload is 1073741824 bytes"),
        ("ping_interval: 2m", 1, 'write "2m"'),
        ("write_deadline: soon", 1, "must be a duration"),
        ("listen: a:b:c", 1, 'a port or "host:port"'),
        ("authorization { users: {} }", 1, "an array of maps"),
        (
            "authorization { users: [{user: a, permissions: {publish: 'a..b'}}] }",
            1,
            "'a..b' is not a subject",
        ),
        ("authorization { users: [{nkey: UABC}] }", 1, "not the public nkey"),
        ("authorization { users: [{password: x}] }", 1, "neither `user` nor `nkey`"),
        ("tls { cert_file: x }", 1, "needs cert_file and key_file"),
        ("websocket { port: 80 }", 1, "no_tls: true"),
    ],
)
def test_refused_with_file_and_line(text: str, line: int, said: str) -> None:
    found = refusal(text)
    assert f"server.conf:{line}: " in found and said in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("authorization { token: a, users: [] }", "only one of them"),
        ("authorization { token: a }\naccounts { A { users: [{user: a}] } }", "cannot be given beside"),
        ("accounts { A { users: [{user: a}] }, B { users: [{user: a}] } }", "user 'a' is configured twice"),
        ("no_auth_user: x", "not one of the users"),
        ("system_account: X", "not one of the accounts"),
        ("max_payload: 2MB, max_pending: 1MB", "above max_pending"),
        ("jetstream { domain: a.b }", "domain"),
        ("server_name: 'a b'", "blanks"),
    ],
)
def test_what_does_not_fit_together(text: str, said: str) -> None:
    assert said in refusal(text)


def test_all_problems_at_once() -> None:
    assert refusal("foo: 1\nport: x\ncluster { port: 6222 }").count("server.conf:") == 3


def test_unsupported_keys_can_be_skipped_and_are_listed() -> None:
    text = "port: 1\ncluster { name: x, port: 6222 }\nfoo: 1\njetstream {\n key: x\n}"
    found = options(text, ignore_unsupported=True)
    assert found.port == 1 and found.jetstream.enabled
    assert [line.split(": ")[0] for line in found.skipped] == [f"server.conf:{n}" for n in (5, 2, 3)]


def test_blocks_that_would_start_nothing_are_a_warning() -> None:
    found = options("cluster {}\nleafnodes { authorization { user: a } }\nmqtt {}\ngateway { name: x }")
    assert [line.split(": ")[0] for line in found.warnings] == [f"server.conf:{n}" for n in (1, 4, 2, 3)]
    for block in ("cluster { port: 1 }", "leafnodes { remotes: [] }", "mqtt { listen: 1 }", "gateway: x"):
        assert "is not supported" in refusal(block)


def test_a_variable_is_not_an_unknown_key() -> None:
    assert options("MY_PORT: 5000\nport: $MY_PORT").port == 5000
    assert "MY_PORT" in refusal("MY_PORT: 5000\nport: 1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-js -sd /d", Flags(jetstream=True, store_dir="/d")),
        ("-js -sd=/d", Flags(jetstream=True, store_dir="/d")),
        ("--jetstream=false", Flags(jetstream=False)),
        ("--no-jetstream --no-tls", Flags(jetstream=False, tls=False)),
        *(
            (f"{spelled} h", Flags(addr="h"))
            for spelled in ("-a", "-addr", "--addr", "--net", "-net", "--host")
        ),
        *((spelled, Flags(port=4)) for spelled in ("-p 4", "-port 4", "--port=4", "-p=4", "-p 1 -p 4")),
        ("-m 8222 --http-host h", Flags(http_port=8222, http_host="h")),
        ("-http_port 8222 --http_host h", Flags(http_port=8222, http_host="h")),
        ("-D -V", Flags(debug=True, trace=True)),
        ("-DV", Flags(debug=True, trace=True)),
        ("-DVV", Flags(debug=True, trace_system=True)),
        ("-VV", Flags(trace_system=True)),
        ("-n x --server_name y -T=false", Flags(name="y", logtime=False)),
        ("-user a -pass b -auth c", Flags(user="a", password="b", auth="c")),
        (
            "-tls -tlscert a -tlskey b -tlsverify -tlscacert c",
            Flags(tls=True, tlscert="a", tlskey="b", tlsverify=True, tlscacert="c"),
        ),
        ("-sl reload=12 -t -v -h", Flags(signal="reload=12", test=True, version=True, help=True)),
        ("-p -1", Flags(port=-1)),
        ("--sync always --json_logs", Flags(sync="always", json_logs=True)),
        (
            "--ignore-unsupported -routes nats://x -s -p 1",
            Flags(
                ignore_unsupported=True,
                port=1,
                skipped=(
                    "-routes is not supported: one process is the whole server",
                    "-s is not supported: log to a file, or to stderr",
                ),
            ),
        ),
    ],
)
def test_flags_in_all_their_spellings(arguments: str, said: Flags) -> None:
    assert parse(arguments.split()) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--cluster nats://x", "--cluster is not supported: one process"),
        ("-p", "-p needs a value"),
        ("-p x", "--port is 'x'; it takes a whole number"),
        ("--log_size_limit=-1", "--log_size_limit is -1; the least is 0"),
        ("--prt 1", "no such option: --prt, did you mean --port?"),
        ("-js extra", "unexpected argument 'extra'"),
        ("--no-port", "no such option: --no-port"),
    ],
)
def test_flags_that_are_refused(arguments: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse(arguments.split())


def test_flags_lie_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "s.conf"
    file.write_text(
        "port: 1\nhost: a\ndebug: true\njetstream { store_dir: x, domain: d, sync: '1s' }\nhttp: 1\n"
    )
    found = resolve(
        Flags(
            config=str(file), port=2, store_dir="y", http_port=8222, http_host="0.0.0.0", user="u", password="p",
            debug=False, trace_system=True, sync="always", tls=True, tlscert="c", tlskey="k",
        )
    )  # fmt: skip
    assert (found.host, found.port) == ("a", 2)
    js = found.jetstream
    assert (js.enabled, js.store_dir, js.domain, js.sync) == (True, "y", "d", "sync")
    assert (found.monitor.port, found.monitor.host) == (8222, "0.0.0.0")
    assert (found.auth.user, found.auth.password) == ("u", "p")
    assert (found.log.debug, found.log.trace, found.log.trace_system) == (False, True, True)
    assert found.tls == TlsOptions("c", "k")
    assert found.config_file == str(file)
    assert found.config_digest is not None and found.config_digest.startswith("sha256:")
    assert resolve(Flags(sync="2m")).jetstream.sync_interval_ns == 120 * S
    assert resolve(Flags(port=0)).port == 4222
    for wrong in (Flags(sync="soon"), Flags(port=70_000), Flags(tls=True), Flags(user="a", auth="b")):
        with pytest.raises(ConfigError):
            resolve(wrong)


def test_streams_never_live_in_a_temporary_folder(tmp_path: Path) -> None:
    here = {"XDG_DATA_HOME": str(tmp_path)}
    assert store_dirs(ServerOptions(), here)[0] == tmp_path / "headrace" / "default"
    assert store_dirs(ServerOptions(server_name="a/../b"), here) == [tmp_path / "headrace" / "a_.._b"]
    assert store_dirs(ServerOptions(server_name=".."), here) == [tmp_path / "headrace" / "default"]
    assert store_dirs(ServerOptions(), {"HOME": "/people/x"})[0] == Path(
        "/people/x/.local/share/headrace/default"
    )
    assert store_dirs(resolve(Flags(store_dir="here")), {}) == [Path("here")]
    with pytest.raises(ConfigError, match="--store_dir"):
        store_dirs(ServerOptions(), {"HOME": "/"})


def test_each_port_has_its_folder_and_keeps_it(tmp_path: Path) -> None:
    base, here = tmp_path / "headrace", {"XDG_DATA_HOME": str(tmp_path)}

    def folders(port: int) -> list[str]:
        return [path.name for path in store_dirs(ServerOptions(port=port), here)]

    assert folders(4222) == ["default", "port-4222"] and folders(4224) == ["port-4224"]
    (base / "default").mkdir(
        parents=True
    )  # one that a server of a version before left: whoever comes takes it
    assert folders(4224) == ["default", "port-4224"]
    claim(base / "default", ServerOptions(port=4224))
    assert folders(4224) == ["default"] and folders(4222) == ["port-4222"]
    claim(base / "default", ServerOptions())
    assert folders(4224) == ["default"], "the first owner stays"
    assert folders(-1)[:2] == ["any-port", "any-port-2"]


def test_a_reload_changes_users_limits_and_certificates_only() -> None:
    old = options("port: 1, max_payload: 1MB\njetstream { store_dir: a }\ntls { cert_file: a, key_file: a }")
    check_reload(
        old,
        options(
            "port: 1, max_payload: 2MB, max_connections: 5, debug: true, authorization { users: [{user: a}] }\n"
            "accounts { A {} }\njetstream { store_dir: a, max_mem: 5MB }\ntls { cert_file: b, key_file: b, verify: true }"
        ),
    )
    text = "port: 2\njetstream { store_dir: b, sync: '1s' }\nwebsocket { port: 5, no_tls: true }"
    with pytest.raises(ConfigError) as caught:
        check_reload(old, options(text))
    for name in ("port", "jetstream.store_dir", "jetstream.sync_interval", "tls", "websocket"):
        assert f" {name}" in str(caught.value)
