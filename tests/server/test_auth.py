"""Who may connect, as whom, and what that user may do."""

from __future__ import annotations

import base64
import time

import bcrypt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from headrace._core import Exchange
from headrace.nkeys import USER_PREFIX, decode_user_nkey, encode_nkey, is_user_nkey, signature_fits
from headrace.server.auth.permissions import Permissions
from headrace.server.auth.users import Authenticator, Identity
from headrace.server.config.load import load
from headrace.server.config.problems import ConfigPosition
from headrace.server.config.text import read_text
from headrace.server.nats.handshake import permission_lists

NONCE = b"IL8GoNM1BhY1wTo"


def auth(text: str) -> Authenticator:
    return Authenticator(load(read_text(text, environment={}), ConfigPosition("text")))


def test_open() -> None:
    found = auth("")
    assert not found.required and not found.needs_nonce and not found.is_slow
    assert (
        found.check({}, NONCE) == found.check({"user": "x", "pass": "y"}, NONCE) == Identity("", "$G", None)
    )
    assert found.check({"user": 1}, NONCE) is None


def test_token() -> None:
    found = auth("authorization { token: secret }")
    assert found.required
    assert found.check({"auth_token": "secret"}, NONCE) == Identity("[REDACTED]", "$G", None)
    for wrong in (
        {},
        {"auth_token": "secre"},
        {"user": "secret"},
        {"auth_token": None},
        {"auth_token": ["secret"]},
    ):
        assert found.check(wrong, NONCE) is None


def test_single_user() -> None:
    found = auth("authorization { user: a, password: b }")
    assert found.check({"user": "a", "pass": "b"}, NONCE) == Identity("a", "$G", None)
    for wrong in ({}, {"user": "a"}, {"pass": "b"}, {"user": "b", "pass": "a"}, {"auth_token": "b"}):
        assert found.check(wrong, NONCE) is None


def test_users_in_accounts_with_no_auth_user() -> None:
    found = auth(
        """
        accounts {
          A { users: [{user: a, password: x, permissions: {publish: "p"}}, {user: w, clients: WEBSOCKET}] }
          B { users: [{user: b, password: y}] }
        }
        no_auth_user: b
        """
    )
    assert not found.required  # INFO does not ask, as nats-server's
    assert found.check({}, NONCE) == Identity("b", "B", None)
    assert found.check({"jwt": "ignored"}, NONCE) == Identity("b", "B", None)
    assert found.check({"user": "a", "pass": "x"}, NONCE) == Identity("a", "A", Permissions(("p",)))
    assert found.check({"user": "w"}, NONCE) is None
    assert found.check({"user": "w"}, NONCE, kind="WEBSOCKET") == Identity("w", "A", None)
    for wrong in (
        {"user": "a"},
        {"user": "b", "pass": "x"},
        {"pass": "y"},
        {"auth_token": "y"},
        {"user": "nobody"},
    ):
        assert found.check(wrong, NONCE) is None


def test_bcrypt_gives_no_names_away() -> None:
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(8)).decode()
    found = auth(
        f"authorization {{ users: [{{user: a, password: {hashed}}}, {{user: plain, password: p}}] }}"
    )
    assert found.is_slow
    assert found.check({"user": "a", "pass": "right"}, NONCE) == Identity("a", "$G", None)
    assert found.check({"user": "a", "pass": hashed}, NONCE) is None
    assert found.check({"user": "a", "pass": "r" * 200}, NONCE) is None

    def cost(name: str) -> float:
        began = time.perf_counter()
        for _ in range(3):
            assert found.check({"user": name, "pass": "wrong"}, NONCE) is None
        return time.perf_counter() - began

    known = cost("a")
    assert known / 5 < cost("nobody") < known * 5
    assert known / 5 < cost("plain") < known * 5
    broken = auth("authorization { users: [{user: a, password: '$2a$11$xx'}] }")
    assert broken.check({"user": "a", "pass": "x"}, NONCE) is None


def test_nkeys() -> None:
    key = Ed25519PrivateKey.generate()
    nkey = encode_nkey(USER_PREFIX, key.public_key().public_bytes_raw())
    assert nkey.startswith("U") and len(nkey) == 56
    found = auth(f"accounts {{ A {{ users: [{{nkey: {nkey}}}] }} }}")
    assert found.required and found.needs_nonce
    signature = key.sign(NONCE)
    for text in (base64.urlsafe_b64encode(signature).rstrip(b"="), base64.b64encode(signature)):
        assert found.check({"nkey": nkey, "sig": text.decode()}, NONCE) == Identity(nkey, "A", None)
    right = base64.b64encode(signature).decode()
    other = Ed25519PrivateKey.generate()
    unknown = encode_nkey(USER_PREFIX, other.public_key().public_bytes_raw())
    for wrong, nonce in (
        ({"nkey": nkey, "sig": right}, b"another nonce.."),
        ({"nkey": nkey, "sig": ""}, NONCE),
        ({"nkey": nkey, "sig": "ü" * 40}, NONCE),
        ({"nkey": nkey, "sig": "A" * 10_000}, NONCE),
        ({"nkey": nkey, "sig": base64.b64encode(other.sign(NONCE)).decode()}, NONCE),
        ({"nkey": unknown, "sig": base64.b64encode(other.sign(NONCE)).decode()}, NONCE),
        ({"nkey": nkey}, NONCE),
        ({"user": nkey}, NONCE),
    ):
        assert found.check(wrong, nonce) is None


def test_nkey_letters_are_checked() -> None:
    known = "UCK5N7N66OBOINFXAYC2ACJQYFSOD4VYNU6APEJTAVFZB2SVHLKGEW7L"
    key = decode_user_nkey(known)
    assert key is not None and encode_nkey(USER_PREFIX, key) == known
    for wrong in (
        known[:-1],
        known[:-1] + "A",
        "A" + known[1:],
        known.lower(),
        known + "A",
        "ü" * 56,
        "1" * 56,
        "",
    ):
        assert not is_user_nkey(wrong)


@given(st.text(max_size=80), st.text(max_size=120))
def test_any_nkey_and_signature_is_refused(nkey: str, signature: str) -> None:
    assert not signature_fits(nkey, NONCE, signature)


def test_certificates_name_users() -> None:
    found = auth(
        "authorization { users: [{user: 'CN=x,O=y'}, {user: mail@x}] }\n"
        "tls { cert_file: c, key_file: k, verify_and_map: true }"
    )
    assert found.check({}, NONCE, "CN=x,O=y") == Identity("CN=x,O=y", "$G", None)
    assert found.check({}, NONCE, ("host.x", "mail@x", "CN=x,O=y")) == Identity("mail@x", "$G", None)
    assert found.check({"user": "mail@x"}, NONCE, None) is None
    assert found.check({"user": "mail@x"}, NONCE, "CN=z") is None


def test_accounts_and_who_has_jetstream() -> None:
    def names(text: str) -> dict[str, bool]:
        return {account.name: account.jetstream is not None for account in auth(text).accounts()}

    assert names("") == {"$G": False, "$SYS": False}
    assert names("jetstream: true") == {"$G": True, "$SYS": False}
    assert names("jetstream: true\naccounts { S {} }\nsystem_account: S") == {"$G": True, "S": False}
    assert names("jetstream: true\naccounts { A {}, B { jetstream: true }, $SYS {} }") == {
        "$G": False, "A": False, "B": True, "$SYS": False,
    }  # fmt: skip
    assert names("accounts { B { jetstream: true } }")["B"] is False


def test_a_reload_shows_whose_entry_changed() -> None:
    old = auth("authorization { users: [{user: a, password: 1}, {user: b, password: 2}] }")
    new = auth("authorization { users: [{user: a, password: 1}, {user: b, password: 3}] }")
    a, b = old.check({"user": "a", "pass": "1"}, NONCE), old.check({"user": "b", "pass": "2"}, NONCE)
    assert a is not None and b is not None
    assert old.entry(a) == new.entry(a)
    assert old.entry(b) != new.entry(b)
    assert auth("").entry(a) != old.entry(a)


# What nats-server 2.15.2 answered to the same users (but `SUB foo.>`, which it lets pass).
LISTS = Permissions(
    subscribe_allow=("foo.*", "bar", "bar q1", "baz q*", "qq v.>"), subscribe_deny=("foo.secret", "bar.z")
)
DENIES = Permissions(subscribe_deny=("foo", "foo q1", "zip.*", "que dev.*"))


@pytest.mark.parametrize(
    ("permissions", "may", "may_not"),
    [
        (
            LISTS,
            ["foo.*", "foo.a", "bar", "bar q1", "baz q*", "qq v.1", "qq v.1.2", "foo.* foo"],
            ["foo.>", "foo.secret", "foo.*.*", "bar q2", "baz", "baz q5", "baz q", "qq w", "*", ">", "bar.z"],
        ),
        (
            DENIES,
            ["foo.>", ">", "que prod", "que", "zip.*.a"],
            ["foo", "foo q1", "foo q2", "zip.*", "zip.>", "zip.a", "que dev.1"],
        ),
    ],
)
def test_subscribe_permissions(permissions: Permissions, may: list[str], may_not: list[str]) -> None:
    def refused(entry: str) -> bool:
        return b"Permissions Violation" in Permitted(permissions).send(f"SUB {entry} 1")

    assert [entry for entry in may if refused(entry)] == []
    assert [entry for entry in may_not if not refused(entry)] == []


def test_publish_permissions_and_delivery() -> None:
    client = Permitted(Permissions(publish_allow=("x.>",), publish_deny=("x.y.*",)))
    for subject, refused in (("x.y", False), ("x.a.b.c", False), ("x.y.z", True), ("inb", True)):
        answer = client.send(f"PUB {subject} 0\r\n")
        assert (b"Permissions Violation" in answer) == refused, subject
    assert b"Permissions Violation" in Permitted(Permissions(publish_allow=())).send("PUB x 0\r\n")
    listener = Permitted(LISTS)
    listener.send("SUB foo.* 1")
    listener.publish("foo.secret")
    assert listener.received() == b"", (
        "a subscription that is wider than a deny entry gets what is not denied"
    )
    listener.publish("foo.a")
    assert listener.received() == b"MSG foo.a 1 0\r\n\r\n"


class Permitted:
    """A client with permissions on an exchange, the kernel that runs in the server."""

    def __init__(self, permissions: Permissions) -> None:
        self._exchange = Exchange(1 << 20, 4096, 0, 7)
        self._account = self._exchange.account("$G")
        self._conn = self._exchange.open(self._account, False)
        lists = permission_lists(permissions)
        self._exchange.accept(self._conn, self._account, False, False, True, True, False, lists)

    def send(self, line: str) -> bytes:
        """What came back."""
        assert self._exchange.feed(self._conn, f"{line}\r\n".encode()) == 0
        return self.received()

    def publish(self, subject: str) -> None:
        """By somebody else."""
        self._exchange.publish(self._account, subject.encode())

    def received(self) -> bytes:
        return b"".join(data for _, data in self._exchange.take_output())
