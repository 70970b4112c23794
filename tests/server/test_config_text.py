"""The config language: what each form means, where it stands, what is refused; and nats-server agrees."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.config.problems import ConfigError
from headrace.server.config.text import INCLUDES_MAX, NESTING_MAX, Node, read_file, read_text
from tests.support.peers import find_peer


def plain(value: Any) -> Any:
    """A tree without its places."""
    if isinstance(value, Node):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def read(text: str, **environment: str) -> Any:
    return plain(read_text(text, environment=environment))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        ("a = 1\nb 2", {"a": 1, "b": 2}),
        ("a: 1; b: 2, c: 3", {"a": 1, "b": 2, "c": 3}),
        ("a\n{ b { c: -1 } }", {"a": {"b": {"c": -1}}}),
        ("a{b:[1,2]}", {"a": {"b": [1, 2]}}),
        ('{"a": 4222, "b": {"c": [true, false], "d": 1.5}}', {"a": 4222, "b": {"c": [True, False], "d": 1.5}}),
        ("a [\n one\n 'two'\n \"three\"\n]", {"a": ["one", "two", "three"]}),
        ("a: [{x: 1}, {x: 2}]", {"a": [{"x": 1}, {"x": 2}]}),
        ("a: yes # no\nb: OFF // off\n# c: 1\n// d: 1\n", {"a": True, "b": False}),
        ("a: 2k\nb: 2kb\nc: 2KiB\nd: 1g\ne: 1GB\nf: 1Ti", {"a": 2000, "b": 2048, "c": 2048, "d": 10**9, "e": 1 << 30, "f": 1 << 40}),
        ("a: 2s\nb: 1h30m\nc: 127.0.0.1:4222\nd: :80\ne: nats://x:1/y", {"a": "2s", "b": "1h30m", "c": "127.0.0.1:4222", "d": ":80", "e": "nats://x:1/y"}),
        (r'a: "x\ty\"z\\ \x41"' + r"  b: 'x\ty'".replace("  b", "\nb"), {"a": 'x\ty"z\\ A', "b": r"x\ty"}),
        ("a: foo#bar", {"a": "foo#bar"}),
        ("a (\n  one {\n  two }\n)\nb: 1", {"a": "\n  one {\n  two }\n", "b": 1}),
        ('"a b": 1\n\'c\': 2', {"a b": 1, "c": 2}),
        ("a: 1\na: 2", {"a": 2}),
        ("", {}),
        ("a: {}\nb: []", {"a": {}, "b": []}),
    ],
)  # fmt: skip
def test_forms(text: str, value: Any) -> None:
    assert read(text) == value


def test_variables() -> None:
    text = "P: 4222\nport: $P\nm { P: 1, port: $P, n { port: $P } }\nhome: $HOME_DIR\nlist: [$P]\nmap: $m"
    tree = read_text(text, environment={"HOME_DIR": "/data"})
    assert plain(tree)["port"] == 4222
    assert plain(tree)["m"] == {"P": 1, "port": 1, "n": {"port": 1}}
    assert plain(tree)["home"] == "/data" and plain(tree)["list"] == [4222]
    assert plain(tree)["map"] == plain(tree)["m"]
    assert tree["P"].is_variable and not tree["port"].is_variable


def test_environment_values_are_read_as_values() -> None:
    read_one = lambda value, **more: read("a: $V", V=value, **more)["a"]  # noqa: E731
    assert read_one("4222") == 4222
    assert read_one("'4222'") == "4222"
    assert read_one("two words") == "two words"
    assert read_one("$W", W="true") is True
    assert read_one("[1, 2]") == [1, 2]
    with pytest.raises(ConfigError, match="leads to itself"):
        read_one("$V")


def test_bcrypt_is_not_a_variable() -> None:
    hashed = "$2a$11$PWIFAL8RsWyGI3jVZtO9Nu8.6jOxzxfZo7c/W0eLk017hjgUKWrhy"
    assert read(f"a: {hashed}\nb: '{hashed}'") == {"a": hashed, "b": hashed}


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("\n\nuser: x\n")
    file = tmp_path / "main.conf"
    file.write_text(
        '# first\nport: 1\nauthorization {\n  include "more.conf"\n  list: [\n    1\n    2 ]\n}\n'
    )
    tree = read_file(file, {})
    inner = tree["authorization"].value
    assert isinstance(inner, dict)
    assert str(tree["port"].place) == f"{file}:2"
    assert str(inner["user"].place) == f"{tmp_path / 'more.conf'}:3"
    items = inner["list"].value
    assert isinstance(items, list) and [item.place.line for item in items] == [6, 7]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: {\n b: 1\n", 1, "never closed"),
        ("a: [1,\n", 1, "never closed"),
        ("\na: 'x", 2, "never closed"),
        ("a (\n x", 1, "never closed"),
        ("a: 1 b: 2", 1, "a new line"),
        ("\n\na:", 3, "no value"),
        ("a: : 1", 1, "no value"),
        ("}", 1, "expected a key"),
        ("{a: 1} x", 1, "nothing may follow"),
        ("a: $NOPE", 1, "neither a key above nor"),
        (r'a: "\q"', 1, "no escape"),
        ("include nope.conf", 1, "cannot read"),
        ("include\n", 1, "names no file"),
        ("a {" * (NESTING_MAX + 1), 1, "nested"),
        ("a " + "[" * (NESTING_MAX + 1), 1, "nested"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_text(text, "server.conf", {})
    assert f"server.conf:{line}: " in str(caught.value) and said in str(caught.value)


def test_includes_have_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text("include b.conf")
    (tmp_path / "b.conf").write_text("\ninclude ./a.conf")
    with pytest.raises(ConfigError, match=r"b\.conf:2: .*circle: a\.conf → b\.conf → a\.conf"):
        read_file(tmp_path / "a.conf")
    for number in range(INCLUDES_MAX + 1):
        (tmp_path / f"{number}.conf").write_text(f"include {number + 1}.conf")
    with pytest.raises(ConfigError, match="deep"):
        read_file(tmp_path / "0.conf")
    (tmp_path / "big.conf").write_bytes(b"#" * (9 << 20))
    with pytest.raises(ConfigError, match="right file"):
        read_file(tmp_path / "big.conf")
    (tmp_path / "bytes.conf").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match=r"bytes\.conf:2: not UTF-8"):
        read_file(tmp_path / "bytes.conf")


@given(st.text(alphabet="ab1:={}[](),;'\"$#/\\\n \t-.km", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_text(text, environment={})
    except ConfigError as error:
        assert "text:" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "port: 4222",
        "P = 4222\nport $P",
        "port: $NO_SUCH_VARIABLE",
        "port 1;host 127.0.0.1",
        '{"port": 4222, "max_payload": 1024}',
        "max_payload: 2MB\nmax_pending: 4m",
        "authorization { user: a, password: $2a$11$xx }",
        "authorization { users = [ {user: a}, {user: b, permissions: { publish: 'x' }} ] }",
        "accounts {\n A { jetstream: enabled, users: [ {user: a, pass: b} ] }\n}",
        "port: {",
        "port: abc",
        "port: : 1",
        "no_such_key: 1",
        "jetstream { no_such_key: 1 }",
        'write_deadline: "5"',
        "authorization { token: a, user: b }",
        "accounts { $G {} }",
        "listen: localhost:4222",
        "websocket { port: 80, no_tls: true }",
        "ping_interval: 2m",
        "port: 4222 host: x",
    ],
)
def test_nats_server_takes_the_same_texts(text: str, tmp_path: Path) -> None:
    from headrace.server.config.load import load_file

    file = tmp_path / "server.conf"
    file.write_text(text)
    theirs = subprocess.run(
        [find_peer("nats-server", "2.15.2"), "-t", "-c", file], capture_output=True, text=True, timeout=30
    )
    try:
        load_file(file)
        refused = None
    except ConfigError as error:
        refused = str(error)
    assert (theirs.returncode == 0) == (refused is None), (theirs.stderr, refused)
