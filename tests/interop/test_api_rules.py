"""The same requests to nats-server 2.15.2 and to Headrace's API: whole answers are compared, texts included.

One text is not compared: of a request that cannot be read (10025) only the two codes and the rest of the answer are, because
Headrace words that error itself.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from headrace.streams.limits import ServerFacts
from tests.interop import api_cases_consumers as consumers
from tests.interop import api_cases_requests as requests
from tests.interop import api_cases_streams as streams
from tests.support.model import Client, Model, Msg
from tests.support.peers import NatsServer
from tests.support.rawclient import RawClient

NAME = "compared"
PREFIX = "$JS.API."
_TIME = re.compile(rb"20\d\d-\d\d-\d\dT[\d:.]+Z")
_EPHEMERAL = re.compile(r'"name":"[0-9A-Za-z]{8}"')
_CALLS = re.compile(r'"total":\d+,"errors":\d+')
_CONTACT = re.compile(r'"lag":\d+,"active":-?\d+')
_STATE = re.compile(r'"state":\{[^{}]*\}')
_REMAINING = re.compile(r'"pause_remaining":\d+')
_IDENTITY = re.compile(r"NATS/1.0\r\nNats-Stream-Identity: \w+\r\n\r\n")
_SOURCES = re.compile(r',"sources":\[\{((?:(?!"state").)*?)\}\],"ts"')
_UNREADABLE = re.compile(
    r'("err_code":10025,"description":)"(?!consumer group not specified")(?:[^"\\]|\\.)*"'
)
SHOWN = 200
EVENT_LIMIT_S = 30.0
LOST_S, DELETIONS = 5.0, 6
QUIET_S = 1.0
SECOND = 10**9


class Asks(Protocol):
    """One side of the comparison."""

    def request_many(self, subject: str, data: bytes = b"", headers: bytes | None = None) -> list[Msg]: ...


class Both:
    """A real server and ours, asked the same."""

    def __init__(self, real: RawClient, ours: Client) -> None:
        self.real, self.ours, self.differences = real, ours, list[str]()
        self.count = 0

    def ask(self, endpoint: str, body: Any = b"", *, subject: str = "", headers: bytes | None = None) -> bool:
        """One request to both; notes a difference. True if the answer is not an error."""
        data = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else dumps(body)
        where = subject or PREFIX + endpoint
        answers = [
            [_plain(each) for each in side.request_many(where, data, headers)]
            for side in (self.real, self.ours)
        ]
        if (
            b"$JS.EVENT." in data or b'"$JS.>"' in data
        ):  # such a stream may have its own advisory already, or not yet
            answers = [[_STATE.sub("STATE", each) for each in side] for side in answers]
        self.count += 1
        if answers[0] != answers[1]:
            shown = data[:300].decode(errors="replace")
            real, ours = _where_they_differ(*(" | ".join(each) or "nothing" for each in answers))
            self.differences.append(f"{endpoint} {shown}\n    real {real}\n    ours {ours}")
        return not any("error" in each for each in answers[0])

    def check(self) -> None:
        shown = "\n".join(self.differences[:40])
        assert not self.differences, f"{len(self.differences)} of {self.count} answers differ:\n{shown}"

    def clear(self) -> None:
        """Remove all streams on both sides."""
        for side in (self.real, self.ours):
            names = json.loads(side.request_many(PREFIX + "STREAM.NAMES")[0].data)["streams"] or []
            for name in names:
                side.request_many(f"{PREFIX}STREAM.DELETE.{name}")

    def create_all(self, configs: list[dict[str, Any]]) -> None:
        for config in configs:
            assert self.ask(f"STREAM.CREATE.{config['name']}", config), config


def dumps(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def _plain(msg: Msg) -> str:
    """An answer without what no two servers say alike: times and random names."""
    text = _TIME.sub(b"T", msg.data).decode()
    headers = _TIME.sub(b"T", msg.headers).decode() if msg.headers is not None else None
    if headers is not None and _IDENTITY.fullmatch(headers):
        headers = None  # what a real server adds for consumers of its own mirrors and sources
    text = _CONTACT.sub("CONTACT", _CALLS.sub("CALLS", text))
    text = _REMAINING.sub("REMAINING", _EPHEMERAL.sub("NAME", text))
    text = _UNREADABLE.sub(r"\1TEXT", _SOURCES.sub(_sorted_sources, text))
    return f"{headers!r} {text}"


def _sorted_sources(found: re.Match[str]) -> str:
    """The real server shows the sources of a stream in the order of a map: another one each time."""
    return ',"sources":[{' + "},{".join(sorted(found[1].split("},{"))) + '}],"ts"'


def _where_they_differ(one: str, other: str) -> tuple[str, str]:
    """Both texts around the first difference."""
    same = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    begin = max(same - SHOWN // 2, 0)
    return one[begin : begin + SHOWN], other[begin : begin + SHOWN]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    place = tmp_path_factory.mktemp("real") / "js"
    with NatsServer("2.15.2", place, config=f"server_name: {NAME}") as server:
        yield server


@pytest.fixture
def both(server: NatsServer, tmp_path: Path) -> Iterator[Both]:
    with (
        Model(tmp_path / "ours", facts=ServerFacts(name=NAME, origins=True, far_origins=True)) as model,
        RawClient(server.port) as real,
    ):
        pair = Both(real, model.client())
        pair.clear()
        yield pair
        pair.check()


def _create(both: Both, config: dict[str, Any], *, pedantic: bool = False) -> None:
    name = config.get("name", "S")
    body = {"name": name, **config, **({"pedantic": True} if pedantic else {})}
    sound = name and not set(name) & set(" .\t\r\n")
    if both.ask(f"STREAM.CREATE.{name if sound else 'S'}", body):
        both.ask(f"STREAM.DELETE.{name}")


def test_stream_configurations(both: Both) -> None:
    both.create_all(streams.STANDING)
    for config in (*streams.NAMES, *streams.CREATED):
        _create(both, config)


def test_pedantic_stream_configurations(both: Both) -> None:
    both.create_all(streams.STANDING)
    for config in streams.PEDANTIC:
        _create(both, config, pedantic=True)


def test_stream_updates(both: Both) -> None:
    both.create_all(streams.STANDING[:3])
    for verb, pairs in (("UPDATE", streams.UPDATED), ("CREATE", streams.CREATED_AGAIN)):
        for before, after in pairs:
            assert both.ask("STREAM.CREATE.S", {"name": "S", **before}), before
            both.ask(f"STREAM.{verb}.S", {"name": "S", **after})
            both.ask("STREAM.INFO.S")
            both.ask("STREAM.DELETE.S")


def _consume(both: Both, endpoint: str, config: dict[str, Any], **more: Any) -> None:
    tokens = endpoint.split(".")
    stream, name = (
        tokens[2 if tokens[0] == "DURABLE" else 1],
        tokens[3 if tokens[0] == "DURABLE" else 2 :][:1],
    )
    fine = both.ask(f"CONSUMER.{endpoint}", {"stream_name": stream, "config": config, **more})
    if fine:
        for each in name or [config.get("name")]:
            if each:
                both.ask(f"CONSUMER.DELETE.{stream}.{each}")


def test_consumer_endpoints(both: Both) -> None:
    both.create_all(consumers.STANDING)
    for endpoint, config in consumers.ENDPOINTS:
        _consume(both, endpoint, config)
    for body in (
        {"stream_name": "X"},
        {"stream_name": ""},
        {"stream_name": "S"},
        {"stream_name": "S", "config": None},
    ):
        both.ask("CONSUMER.CREATE.S.c", body)
        both.ask("CONSUMER.DELETE.S.c")
    for action in ("", "create", "update", "CREATE", None, 5):
        _consume(both, "CREATE.S.c", {}, action=action)


@pytest.mark.parametrize("pedantic", [False, True], ids=["lenient", "pedantic"])
def test_consumer_configurations(both: Both, pedantic: bool) -> None:
    both.create_all(consumers.STANDING)
    for config in (*consumers.EVERY, *consumers.PUSHED):
        _consume(both, "CREATE.S.c", config, pedantic=pedantic)
    for config in consumers.EVERY:
        _consume(both, "CREATE.S.c", {"deliver_subject": "dd", **config}, pedantic=pedantic)
    for stream in ("I", "L", "M"):
        for config in (*consumers.ACKS, {"durable_name": "c"}, {"inactive_threshold": 2 * consumers.SECOND}):
            _consume(both, f"CREATE.{stream}.c", config, pedantic=pedantic)
        _consume(
            both, f"CREATE.{stream}.c", {"max_ack_pending": 11, "ack_policy": "explicit"}, pedantic=pedantic
        )


def test_consumers_of_a_work_queue_do_not_overlap(both: Both) -> None:
    both.create_all(consumers.STANDING)
    for configs in consumers.QUEUED:
        names = [f"c{number}" for number in range(len(configs))]
        for name, config in zip(names, configs, strict=True):
            both.ask(
                f"CONSUMER.CREATE.W.{name}", {"stream_name": "W", "config": {"durable_name": name, **config}}
            )
        for name in names:
            both.ask(f"CONSUMER.DELETE.W.{name}")


def test_consumer_updates(both: Both) -> None:
    both.create_all(consumers.STANDING)
    for action in ("", "create", "update"):
        for before, after in consumers.UPDATED:
            assert both.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": before}), before
            both.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": after, "action": action})
            both.ask("CONSUMER.INFO.S.c")
            both.ask("CONSUMER.DELETE.S.c")


def test_a_bound_consumer_keeps_its_deliver_subject(both: Both) -> None:
    both.create_all(consumers.STANDING)
    for side in (both.real, both.ours):
        side.subscribe("dd")
    both.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": consumers.PUSH})
    for change in ({"deliver_subject": "ee"}, {}, {"description": "x"}):
        both.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {**consumers.PUSH, **change}})


def test_limits_on_consumers_of_a_stream(both: Both) -> None:
    both.create_all(consumers.STANDING)
    durable = {"durable_name": "a", "ack_policy": "explicit"}
    both.ask("CONSUMER.CREATE.F.a", {"stream_name": "F", "config": durable})
    both.ask("CONSUMER.CREATE.F.b", {"stream_name": "F", "config": {"durable_name": "b"}})
    both.ask("CONSUMER.CREATE.F", {"stream_name": "F", "config": {}})
    both.ask("STREAM.UPDATE.F", {"name": "F", "subjects": ["f.>"], "max_consumers": 5})
    both.ask("CONSUMER.CREATE.F.b", {"stream_name": "F", "config": {"durable_name": "b"}})
    for limits in ({"max_ack_pending": 5}, {"inactive_threshold": 5}):
        both.ask("STREAM.UPDATE.F", {"name": "F", "subjects": ["f.>"], "consumer_limits": limits})


def _fill(both: Both) -> None:
    for name, more in (("S", {"subjects": ["s.>"], "allow_direct": True}), ("T", {}), ("U", {})):
        assert both.ask(f"STREAM.CREATE.{name}", {"name": name, **more})
    for number in range(1, 8):
        headers = b"NATS/1.0\r\nH: %d\r\n\r\n" % number if number % 2 else None
        both.ask("", b"data%d" % number, subject=f"s.{number % 3}", headers=headers)
    both.ask("STREAM.MSG.DELETE.S", '{"seq":4}')
    both.ask(
        "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    )


def test_requests(both: Both) -> None:
    _fill(both)
    for endpoint in requests.EACH:
        for body in requests.ODD:
            both.ask(endpoint, body)
    for endpoint in (*requests.CLUSTER, *requests.NOBODY):
        both.ask(endpoint)
    both.real.timeout_s = 0.1
    for endpoint in requests.SILENT:
        both.ask(endpoint)


def test_pages_messages_and_changes(both: Both) -> None:
    _fill(both)
    for endpoint, body in (*requests.PAGES, *requests.MESSAGES, *requests.CHANGES):
        both.ask(endpoint, body)


def test_required_api_level(both: Both) -> None:
    _fill(both)
    for level in requests.LEVELS:
        headers = f"NATS/1.0\r\nNats-Required-Api-Level: {level}\r\n\r\n".encode()
        for endpoint in ("INFO", "STREAM.NAMES", "STREAM.INFO.S", "STREAM.INFO.Z", "CONSUMER.CREATE.S.c"):
            both.ask(endpoint, headers=headers)
        both.ask("DIRECT.GET.S", '{"seq":1}', headers=headers)
        both.ask("DIRECT.GET.S.s.1", headers=headers)


def _events(msgs: list[Msg]) -> list[str]:
    """What a listener heard, without identifiers and what is known of a client."""
    events = [
        (each.subject, json.loads(_TIME.sub(b"T", each.data)))
        for each in msgs
        if "$JS.EVENT." in each.subject
    ]
    for _, event in events:
        assert len(event.pop("id")) == 22
        if "client" in event:
            event["client"] = {}
    return sorted(f"{subject} {json.dumps(event)}" for subject, event in events)


def test_events(both: Both, server: NatsServer) -> None:
    with RawClient(server.port) as real:
        ours = both.ours.model.client()
        for listener in (real, ours):
            listener.subscribe("$JS.EVENT.ADVISORY.STREAM.>")
            listener.subscribe("$JS.EVENT.ADVISORY.CONSUMER.>")
        both.ask("STREAM.CREATE.S", {"name": "S"})
        both.ask("STREAM.CREATE.S", {"name": "S"})
        both.ask("STREAM.UPDATE.S", {"name": "S", "max_msgs": 5})
        durable = {"durable_name": "c", "priority_policy": "pinned_client", "priority_groups": ["g"]}
        both.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": durable})
        both.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {**durable, "description": "x"}})
        for until in ("2020-01-01T00:00:00Z", "2040-01-01T00:00:00Z", None):
            both.ask("CONSUMER.PAUSE.S.c", {"pause_until": until})
        both.ask("CONSUMER.UNPIN.S.c", {"group": "g"})
        both.ask("STREAM.SNAPSHOT.S", {"deliver_subject": "nobody", "no_consumers": True})
        both.ours.model.advance(SECOND)
        both.ask("CONSUMER.CREATE.S.d", {"stream_name": "S", "config": {"durable_name": "d"}})
        both.ask("CONSUMER.DELETE.S.d")
        said = ours.take()
        heard = _hear(real, len(said))
        _same_events(said, heard)
        # The real server sends this one while it closes the stream's own queue: on a busy machine it may lose it.
        for _ in range(DELETIONS):
            both.ask("STREAM.CREATE.S", {"name": "S"})
            both.ask("STREAM.DELETE.S")
            said = ours.take()
            heard = _hear(real, len(said), LOST_S)
            if len(heard) == len(said):
                break
        _same_events(said, heard)


def _same_events(said: list[Msg], heard: list[Msg]) -> None:
    ours, theirs = Counter(_events(said)), Counter(_events(heard))
    assert (ours - theirs, theirs - ours) == (Counter(), Counter())


def _hear(listener: RawClient, count: int, limit_s: float = EVENT_LIMIT_S) -> list[Msg]:
    """As many messages as are expected, however long they take, and what comes right behind them."""
    heard: list[Msg] = []
    while (msg := listener.next(limit_s if len(heard) < count else QUIET_S)) is not None:
        heard.append(msg)
    return heard


def test_direct_get(both: Both) -> None:
    _fill(both)
    for endpoint, body in requests.DIRECT:
        both.ask(endpoint, body)
