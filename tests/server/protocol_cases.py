"""Conversations of clients with a server: what they send, and for the ones with a rule what must be heard.

A step is (client, bytes); clients connect when they are first named. `says` is heard by somebody, `closes` says
whether the client of the last step is closed. Everything else is what nats-server says to the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = '"verbose":false,"pedantic":false,"lang":"test"'
HELLO = f"CONNECT {{{PLAIN}}}\r\n".encode()
HEADERS = f'CONNECT {{{PLAIN},"headers":true,"no_responders":true}}\r\n'.encode()
PEDANTIC = b'CONNECT {"verbose":false,"pedantic":true}\r\n'
VERBOSE = b'CONNECT {"verbose":true,"pedantic":false}\r\n'
NO_ECHO = f'CONNECT {{{PLAIN},"echo":false,"headers":true,"no_responders":true}}\r\n'.encode()
STATUS = b"HPUB h.a 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\n"
LONG = b"x" * 600

USERS = """
    max_payload: 1024
    authorization { timeout: 0.4, users: [
      { user: ann, password: secret }
      { user: bob, password: secret, permissions: {
          publish: { allow: ["p.>", "_INBOX.>"], deny: ["p.no.>"] }
          subscribe: { allow: ["s.>", "_INBOX.>", "both.*"], deny: ["s.no", "both.q dev"] } } }
      { user: sam, password: secret, permissions: {
          publish: "own", subscribe: ["own", "q grp", "serve"], allow_responses: { max: 2, expires: "5m" } } }
    ] }
"""
CONFIGS = {
    "open": "max_payload: 1024\nmax_control_line: 512\nmax_subscriptions: 6\n",
    "users": USERS,
    "few": "max_connections: 2\n",
    "pings": 'ping_interval: "150ms"\nping_max: 1\n',
    "bcrypt": 'authorization { token: "$2a$04$xErkOJdJ3uXsGR.3KEPrLefcKxGBBva07e1CSAU7BVwbuXNSYedlq", timeout: 0.4 }\n',
}


def user(name: str, password: str = "secret", more: str = "") -> bytes:
    return f'CONNECT {{{PLAIN},"user":"{name}","pass":"{password}","headers":true{more}}}\r\n'.encode()


@dataclass(frozen=True)
class Case:
    """One conversation."""

    name: str
    steps: tuple[tuple[str, bytes], ...]
    says: bytes = b""
    closes: bool = False
    config: str = "open"
    sorted: bool = False
    """The order in which several subscriptions get a message is nobody's promise."""
    chosen: bool = False
    """Which member of a group gets a message is chance: only how many came counts."""


def one(
    name: str, sent: bytes, says: str = "", closes: bool = False, hello: bytes = HELLO, config: str = "open"
) -> Case:
    """A single client that says hello and then that."""
    text = f"-ERR '{says}'\r\n".encode() if says else b""
    return Case(name, (("a", hello), ("a", sent)), text, closes, config)


UNKNOWN = "Unknown Protocol Operation"
ERRORS = [
    one("unknown verb", b"FOO bar\r\n", UNKNOWN, True),
    one("no verb at all", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", UNKNOWN, True),
    one("empty line", b"\r\n", UNKNOWN, True),
    one("bare line feed", b"\n", UNKNOWN, True),
    one("UNSUB without argument", b"UNSUB\r\n", UNKNOWN, True),
    one("SUB without argument", b"SUB\r\n", UNKNOWN, True),
    one("PUB without argument", b"PUB\r\n", UNKNOWN, True),
    one("HPUB without argument", b"hpub\r\n", UNKNOWN, True, HEADERS),
    one("MSG from a client", b"MSG a 1 0\r\n\r\n", UNKNOWN, True),
    one("payload without its end", b"PUB a 2\r\nabXXPING\r\n", UNKNOWN, True),
    one("payload longer than said", b"PUB a 2\r\nabc\r\n", UNKNOWN, True),
    one("bytes that are no text", b"\xff\xfe\x00\x01\r\n", UNKNOWN, True),
    one("payload too large", b"PUB a 1025\r\n", "Maximum Payload Violation", True),
    one("payload just fits", b"SUB a 1\r\nPUB a 1024\r\n" + b"x" * 1024 + b"\r\n"),
    one("headers and payload too large", b"HPUB a 12 1025\r\n", "Maximum Payload Violation", True, HEADERS),
    one("SUB line too long", b"SUB " + LONG + b" 1\r\n", "maximum control line exceeded", True),
    one("PUB line too long", b"PUB " + LONG + b" 0\r\n\r\n", "maximum control line exceeded", True),
    one("line too long without end", b"SUB " + LONG, "maximum control line exceeded", True),
    one(
        "lines that just fit",
        b"SUB " + b"x" * 510 + b" 1\r\nUNSUB 1" + b" " * 505 + b"\r\nPUB " + b"x" * 510 + b" 0\r\n\r\n",
    ),
    one("SUB line one too long", b"SUB " + b"x" * 511 + b" 1\r\n", "maximum control line exceeded", True),
    one("invalid subject", b"SUB a..b 1\r\n", "Invalid Subject"),
    one("invalid subject, empty end", b"SUB a. 1\r\n", "Invalid Subject"),
    one("invalid subject, empty start", b"SUB .a 1\r\n", "Invalid Subject"),
    one("invalid subject, rest inside", b"SUB a.>.b 1\r\n", "Invalid Subject"),
    one("invalid subject, pedantic", b"SUB a..b 1\r\n", "Invalid Subject", False, PEDANTIC),
    one("invalid subject, verbose", b"SUB a..b 1\r\n", "Invalid Subject", False, VERBOSE),
    one(
        "publish to a wildcard", b"SUB > 1\r\nPUB a.* 2\r\nhi\r\n", "Invalid Publish Subject", False, PEDANTIC
    ),
    one(
        "publish to no subject",
        b"SUB > 1\r\nPUB a..b 2\r\nhi\r\n",
        "Invalid Publish Subject",
        False,
        PEDANTIC,
    ),
    one(
        "too many subscriptions",
        b"".join(b"SUB a %d\r\n" % n for n in range(8)),
        "maximum subscriptions exceeded",
    ),
    one(
        "room again",
        b"".join(b"SUB a.%d %d\r\n" % (n, n) for n in range(6))
        + b"UNSUB 3\r\nSUB a.9 9\r\nPUB a.9 0\r\n\r\n",
    ),
    Case(
        "no responders without headers",
        (("a", b'CONNECT {"no_responders":true}\r\n'),),
        b"-ERR 'no responders requires headers support'\r\n",
        True,
    ),
]

# These close the connection without a word.
SILENT = [
    *(
        one(f"malformed: {sent!r}", sent, closes=True)
        for sent in (
            b"PUB a xx\r\n",
            b"PUB a\r\n",
            b"PUB a -1\r\n",
            b"PUB a b c 1\r\nx\r\n",
            b"PUB a 9999999999\r\n",
            b"PUB  \r\n",
            b"SUB a\r\n",
            b"SUB a q 1 2\r\n",
            b"UNSUB 1 2 3\r\n",
            b"UNSUB \r\n",
            b"-ERR 'x'\r\n",
            b"PUB a 0x5\r\n",
        )
    ),
    *(
        one(f"malformed: {sent!r}", sent, closes=True, hello=HEADERS)
        for sent in (
            b"HPUB a 10 5\r\n",
            b"HPUB a 5\r\n",
            b"HPUB a -1 5\r\n",
            b"HPUB a xx 5\r\n",
            b"HPUB a b c 1 2\r\n",
        )
    ),
    one("HPUB without having said headers", STATUS, closes=True),
    *(
        Case(f"bad CONNECT: {sent!r}", (("a", sent),), closes=True)
        for sent in (
            b"CONNECT {\r\n",
            b"CONNECT xx\r\n",
            b"CONNECT [1]\r\n",
            b"CONNECT 5\r\n",
            b'CONNECT {"verbose":"yes"}\r\n',
            b"CONNECT\r\n",
            b'CONNECT {"name":5}\r\n',
            b'CONNECT {"user":{}}\r\n',
            b'CONNECT {"verbose":1}\r\n',
            b'CONNECT {"verbose":false} {}\r\n',
            b'CONNECT {"a":' + b"[" * 400 + b"\r\n",
        )
    ),
]

BEHAVIOUR = [
    Case("before CONNECT", (("a", b"SUB a 1\r\nPUB a 2\r\nhi\r\n"),), b"+OK\r\nMSG a 1 2\r\nhi\r\n"),
    Case(
        "verbose",
        (("a", VERBOSE), ("a", b"SUB a 1\r\nPUB a 2\r\nhi\r\nUNSUB 1\r\nPING\r\n")),
        b"+OK\r\n+OK\r\nMSG a 1 2\r\nhi\r\n+OK\r\n",
    ),
    Case(
        "defaults are verbose and pedantic",
        (("a", b"CONNECT {}\r\nPUB a..b 0\r\n\r\n"),),
        b"'Invalid Publish Subject'",
    ),
    Case(
        "nulls are defaults",
        (("a", b'CONNECT {"verbose":null,"echo":null,"name":null}\r\nSUB a 1\r\nPUB a 0\r\n\r\n'),),
    ),
    Case("a second CONNECT", (("a", HELLO), ("a", VERBOSE), ("a", b"SUB a 1\r\n")), b"+OK\r\n"),
    one(
        "any case, tabs, runs of blanks, bare line feeds",
        b"sub\ta.b \t 1\r\npub  a.b\t\t2\nhi\r\nPub a.b  r   2  \r\nho\r\npInG\r\nunSUB  1\nPUB a.b 1\r\nx\r\n",
    ),
    one("what is ignored", b"+OK\r\nINFO {}\r\nPONG\r\nPONG\r\nSUB a 1\r\nPUB a 0\r\n\r\n"),
    one(
        "wildcards",
        b"SUB *.b 1\r\nSUB c.> 2\r\nPUB a.b 1\r\nx\r\nPUB a.b.c 0\r\n\r\nPUB c 0\r\n\r\nPUB c.d.e 1\r\ny\r\n",
    ),
    one(
        "wildcards are tokens of their own",
        b"SUB a* 1\r\nSUB a.*b 2\r\nSUB a.>b 3\r\nPUB ax 0\r\n\r\nPUB a* 1\r\nx\r\nPUB a.*b 1\r\ny\r\n",
    ),
    one(
        "literal wildcards in publishes",
        b"SUB a.> 1\r\nPUB a.* 1\r\nx\r\nPUB a.> 1\r\ny\r\nPUB a..b 1\r\nz\r\n",
    ),
    Case(
        "two subscriptions, two copies",
        (("a", HELLO), ("a", b"SUB a.b 1\r\nSUB a.* 2\r\nSUB > 3\r\nPUB a.b 2\r\nhi\r\n")),
        sorted=True,
    ),
    one("an sid in use", b"SUB a 1\r\nSUB b 1\r\nPUB a 1\r\nx\r\nPUB b 1\r\ny\r\n"),
    one("an sid is any word", b"SUB a x-Y.z\r\nPUB a 1\r\nx\r\nUNSUB x-Y.z\r\nPUB a 1\r\nx\r\n"),
    one(
        "UNSUB max counts from the start",
        b"SUB a 1\r\n" + b"PUB a 1\r\nx\r\n" * 2 + b"UNSUB 1 3\r\n" + b"PUB a 1\r\ny\r\n" * 3,
    ),
    one(
        "UNSUB max that was reached",
        b"SUB a 1\r\n" + b"PUB a 1\r\nx\r\n" * 3 + b"UNSUB 1 2\r\nPUB a 1\r\ny\r\n",
    ),
    one("UNSUB max given again", b"SUB a 1\r\nUNSUB 1 5\r\nUNSUB 1 1\r\n" + b"PUB a 1\r\nx\r\n" * 3),
    one(
        "UNSUB with max 0 and junk",
        b"SUB a 1\r\nUNSUB 1 0\r\nPUB a 1\r\nx\r\nSUB b 2\r\nUNSUB 2 abc\r\nPUB b 1\r\ny\r\nSUB c 3\r\nUNSUB 3 -1\r\nPUB c 1\r\nz\r\n",
    ),
    one("UNSUB of nothing", b"UNSUB 99\r\nUNSUB 98 5\r\n"),
    one("the same sid after UNSUB", b"SUB a 1\r\nUNSUB 1\r\nSUB b 1\r\nPUB a 0\r\n\r\nPUB b 1\r\nx\r\n"),
    Case(
        "no echo",
        (
            ("a", NO_ECHO),
            ("b", HELLO),
            ("a", b"SUB x 1\r\n"),
            ("b", b"SUB x 1\r\n"),
            ("a", b"PUB x 1\r\na\r\n"),
            ("b", b"PUB x 1\r\nb\r\n"),
        ),
    ),
    Case(
        "replies",
        (
            ("a", HELLO),
            ("b", HELLO),
            ("a", b"SUB q 1\r\n"),
            ("b", b"SUB _INBOX.1 7\r\nPUB q _INBOX.1 1\r\n?\r\n"),
            ("a", b"PUB _INBOX.1 1\r\n!\r\n"),
        ),
        b"MSG q 1 _INBOX.1 1\r\n?\r\n",
    ),
    one("no responders", b"SUB _INBOX.1 7\r\nPUB nobody _INBOX.1 1\r\n?\r\n", hello=HEADERS),
    one("no responders, nobody waits", b"PUB nobody _INBOX.1 1\r\n?\r\nPUB nobody 0\r\n\r\n", hello=HEADERS),
    one("no responders, not asked for", b"SUB _INBOX.1 7\r\nPUB nobody _INBOX.1 1\r\n?\r\n"),
    one("no responders, oneself does not count", b"SUB r 7\r\nSUB x 1\r\nPUB x r 1\r\n?\r\n", hello=NO_ECHO),
    Case(
        "headers",
        (
            ("a", HEADERS),
            ("b", HELLO),
            ("a", b"SUB h.> 1\r\n"),
            ("b", b"SUB h.> 1\r\n"),
            ("a", STATUS),
            ("a", b"HPUB h.b r 4 4\r\nabcd\r\n"),
            ("b", b"PUB h.c 2\r\nhi\r\n"),
        ),
        b"HMSG h.a 1 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\n",
    ),
    one("an empty header block", b"SUB h 1\r\nHPUB h 0 2\r\nhi\r\n", hello=HEADERS),
    one(
        "subjects of any bytes",
        b"SUB \xff\xfe.> 1\r\nPUB \xff\xfe.\x01\x7f 2\r\nhi\r\nSUB \xe2\x82\xac 2\r\nPUB \xe2\x82\xac 1\r\nx\r\n",
    ),
    one("payloads of any bytes", b"SUB a 1\r\nPUB a 12\r\n\r\nPING\r\n\x00\xff\r\n\r\n"),
    one("system subjects are quiet", b"SUB $SYS.> 1\r\nPUB $SYS.REQ 0\r\n\r\n"),
    Case(
        "one of a group",
        (
            ("a", HELLO),
            ("b", HELLO),
            ("a", b"SUB w g 1\r\nSUB w g 2\r\nSUB w 3\r\n"),
            ("b", b"SUB w g 1\r\nSUB w other 2\r\nSUB w.> g 4\r\n"),
            ("b", b"PUB w 1\r\nx\r\n"),
            ("a", b"PUB w 1\r\ny\r\nPUB w 1\r\nz\r\n"),
        ),
        chosen=True,
    ),
    Case(
        "a client goes, a member less",
        (
            ("a", HELLO),
            ("b", HELLO),
            ("a", b"SUB w g 1\r\nSUB w g 2\r\n"),
            ("b", b"SUB w g 1\r\n"),
            ("b", b"\r\n"),
            ("a", b"PUB w 1\r\nx\r\n" * 3),
        ),
        chosen=True,
    ),
    Case(
        "in pieces",
        (("a", HELLO), ("a", b"SUB a 1\r\nPU"), ("a", b"B a 7\r\nhel"), ("a", b"lo w\r"), ("a", b"\n")),
    ),
]

AUTH = [
    Case(
        "wrong password", (("a", user("ann", "guess")),), b"-ERR 'Authorization Violation'\r\n", True, "users"
    ),
    Case("no such user", (("a", user("eve")),), b"-ERR 'Authorization Violation'\r\n", True, "users"),
    Case("no credentials", (("a", HELLO),), b"-ERR 'Authorization Violation'\r\n", True, "users"),
    *(
        Case(
            f"before credentials: {sent!r}",
            (("a", sent),),
            b"-ERR 'Authorization Violation'\r\n",
            True,
            "users",
        )
        for sent in (
            b"PUB a 0\r\n\r\n",
            b"SUB a 1\r\n",
            b"UNSUB 1\r\n",
            b"PUB a 2000\r\n",
            b"SUB a\r\n",
            b"PING\r\n",
            b"PONG\r\n",
            b"+OK\r\n",
            b"INFO {}\r\n",
            b"FOO\r\n",
            b"\r\n",
        )
    ),
    Case(
        "nonsense before credentials",
        (("a", b"CXX\r\n"),),
        b"-ERR 'Unknown Protocol Operation'\r\n",
        True,
        "users",
    ),
    Case(
        "publish",
        (
            ("a", user("ann")),
            ("a", b"SUB p.> 1\r\n"),
            ("b", user("bob")),
            ("b", b"PUB p.x 2\r\nhi\r\nPUB p.no.x 2\r\nhi\r\nPUB no 0\r\n\r\nPUB p.y 0\r\n\r\n"),
        ),
        b"-ERR 'Permissions Violation for Publish to \"no\"'\r\n",
        config="users",
    ),
    Case(
        "publish, verbose",
        (
            ("b", user("bob", more=',"verbose":true').replace(b'"verbose":false,', b"")),
            ("b", b"PUB no 0\r\n\r\nPUB p.x 0\r\n\r\n"),
        ),
        config="users",
    ),
    Case(
        "subscribe",
        (
            ("b", user("bob")),
            ("b", b"SUB no 1\r\nSUB no qq 2\r\nSUB > 3\r\nSUB s.no 4\r\nSUB s.> 5\r\nSUB s.* 6\r\n"),
        ),
        b'-ERR \'Permissions Violation for Subscription to "no" using queue "qq"\'\r\n',
        config="users",
    ),
    Case(
        "denied at delivery",
        (
            ("b", user("bob")),
            ("b", b"SUB s.> 5\r\nSUB s.* q 6\r\n"),
            ("a", user("ann")),
            ("a", b"PUB s.yes 1\r\nx\r\nPUB s.no 1\r\nx\r\nPUB s.no.more 1\r\ny\r\n"),
        ),
        config="users",
        sorted=True,
    ),
    Case(
        "groups that are denied",
        (("b", user("bob")), ("b", b"SUB both.q 1\r\nSUB both.q dev 2\r\nSUB both.q ops 3\r\n")),
        config="users",
    ),
    Case(
        "groups that are allowed",
        (("a", user("sam")), ("a", b"SUB q 1\r\nSUB q grp 2\r\nSUB q other 3\r\n")),
        config="users",
    ),
    Case(
        "answers to what was asked",
        (
            ("a", user("sam")),
            ("a", b"SUB serve 1\r\nPUB _INBOX.1 1\r\n!\r\n"),
            ("b", user("ann")),
            ("b", b"SUB _INBOX.1 1\r\nPUB serve _INBOX.1 1\r\n?\r\n"),
            ("a", b"PUB _INBOX.1 1\r\n!\r\n" * 3),
        ),
        config="users",
    ),
    Case(
        "a wrong token",
        (("a", b'CONNECT {"auth_token":"guess"}\r\nSUB a 1\r\nPUB a 0\r\n\r\n'),),
        b"-ERR 'Authorization Violation'\r\n",
        True,
        "bcrypt",
    ),
]

CASES = ERRORS + SILENT + BEHAVIOUR + AUTH
