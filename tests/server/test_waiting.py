"""No request keeps another client waiting: while one asks for the most that is let in, a PING takes under 50 ms.

The machine may be busy with other things. A wait counts as long as it would have been had the server not waited for a
processor itself (the kernel says how long it did), and a case has several tries, of which one must hold. What the rule
is about takes several times as long, every time.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import TestServer
from tests.support.bystander import Bystander
from tests.support.rawclient import RawClient

SUBJECTS = 400_000
STREAMS = 500
CONSUMERS = 500
SUBSCRIPTIONS = 50_000
LONGEST_S = 0.05
TRIES = 8
PREFIX = "$JS.API."
TTL = b"NATS/1.0\r\nNats-TTL: 1s\r\n\r\n"
BIG = {"name": "BIG", "subjects": ["big.>"], "max_msgs_per_subject": 1, "allow_direct": True}


class Scene:
    """A server with much in it, a client that asks, and one that waits."""

    def __init__(self, server: TestServer, asking: RawClient, bystander: Bystander) -> None:
        self.server, self.asking, self.bystander = server, asking, bystander
        asking.timeout_s = 60.0
        self.count = 0

    def ask(self, endpoint: str, body: Any = None) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        answer = json.loads(self.asking.request_many(PREFIX + endpoint, data)[0].data)
        assert "error" not in answer, answer
        return answer

    def ask_often(self, endpoint: str, times: int) -> None:
        """The same request many times at once."""
        for _ in range(times):
            self.asking.publish(PREFIX + endpoint, b"", "_INBOX.many")
        for _ in range(times):
            assert self.asking.next(30.0) is not None

    def publish_all(self, subjects: Iterator[str], headers: bytes | None = None) -> None:
        for subject in subjects:
            self.asking.publish(subject, b"x", "", headers)

    def look(self, path: str) -> None:
        url = f"http://127.0.0.1:{self.server.http_port}{path}"
        with urllib.request.urlopen(url, timeout=60) as page:
            assert page.read()

    def longest_s(self, act: Callable[[], object]) -> float:
        """The longest wait while something happens, on a machine that has nothing else to do."""
        self.bystander.begin()
        ran, waited = self._schedule()
        act()
        longest = self.bystander.longest_s()
        ran, waited = self._schedule()[0] - ran, self._schedule()[1] - waited
        return longest * ran / (ran + waited) if ran else longest

    def _schedule(self) -> tuple[int, int]:
        """(ns on a processor, ns waiting for one) of the server's loop."""
        fields = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/schedstat").read_text().split()
        return int(fields[0]), int(fields[1])

    def fresh(self) -> str:
        self.count += 1
        return f"fresh{self.count}"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("waiting")
    with TestServer(folder / "store", flags=["-m", "-1"]) as server:
        deadline = time.monotonic() + 30.0
        while "Monitoring on http://" not in server.log() and time.monotonic() < deadline:
            time.sleep(0.02)
        line = next(each for each in server.log().splitlines() if "Monitoring on http://" in each)
        server.http_port = int(line.rpartition(":")[2])
        with (
            RawClient(server.port) as asking,
            RawClient(server.port) as other,
            Bystander(server.port) as waiting,
        ):
            made = Scene(server, asking, waiting)
            made.ask("STREAM.CREATE.BIG", BIG)
            made.publish_all(f"big.{number % 1000}.{number}" for number in range(SUBJECTS))
            for number in range(STREAMS):
                made.ask(f"STREAM.CREATE.S{number}", {"name": f"S{number}", "subjects": [f"s.{number}"]})
            for stream, options in {
                "INTEREST": {"retention": "interest"},
                "MOVED": {"subject_transform": {"src": "moved.*", "dest": "to.{{wildcard(1)}}"}},
                "TTL": {"allow_msg_ttl": True, "subject_delete_marker_ttl": 10**9, "allow_rollup_hdrs": True},
            }.items():
                subjects = [f"{stream.lower()}.>"]
                made.ask(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": subjects, **options})
            for number in range(CONSUMERS):
                make_consumer(made, "INTEREST", f"c{number}", filter_subject=f"interest.{number}.>")
            for number in range(SUBSCRIPTIONS):
                other._socket.sendall(f"SUB sub.{number} {number + 10}\r\n".encode())
            while made.ask("STREAM.INFO.BIG")["state"]["messages"] < SUBJECTS:
                pass
            yield made


def make_consumer(scene: Scene, stream: str, name: str, **options: Any) -> None:
    config = {"durable_name": name, "name": name, "ack_policy": "explicit", **options}
    scene.ask(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})


def in_bursts(scene: Scene, subject: Callable[[int], str], headers: bytes | None = None) -> None:
    scene.publish_all((subject(number) for number in range(20_000)), headers)
    scene.ask("INFO")


def update_while_others_look(scene: Scene) -> None:
    """Clients of the stream that is worked on wait for it; the server does not."""
    done = threading.Event()

    def look() -> None:
        with RawClient(scene.server.port) as client:
            while not done.is_set():
                client.request_many(f"{PREFIX}STREAM.INFO.BIG")

    looking = threading.Thread(target=look)
    looking.start()
    scene.ask("STREAM.UPDATE.BIG", {**BIG, "description": scene.fresh(), "max_msgs": SUBJECTS - scene.count})
    done.set()
    looking.join()


CASES: dict[str, Callable[[Scene], object]] = {
    "a page of many subjects": lambda s: s.ask("STREAM.INFO.BIG", {"subjects_filter": ">"}),
    "the last page of many subjects": lambda s: s.ask(
        "STREAM.INFO.BIG", {"subjects_filter": "big.>", "offset": SUBJECTS - 1000}
    ),
    "the last message of many subjects": lambda s: s.ask("STREAM.MSG.GET.BIG", {"last_by_subj": "big.>"}),
    "the newest of each of many subjects": lambda s: make_consumer(
        s, "BIG", s.fresh(), deliver_policy="last_per_subject", filter_subject="big.>"
    ),
    "a change of a stream that others look at": update_while_others_look,
    "a purge by subject": lambda s: s.ask("STREAM.PURGE.BIG", {"filter": f"big.{s.fresh()[5:]}.*"}),
    "many lists of streams": lambda s: s.ask_often("STREAM.LIST", 30),
    "many lists of consumers": lambda s: s.ask_often("CONSUMER.LIST.INTEREST", 30),
    "many account infos": lambda s: s.ask_often("INFO", 1000),
    "a consumer that goes from an interest stream": lambda s: s.ask(
        f"CONSUMER.DELETE.INTEREST.c{int(s.fresh()[5:])}"
    ),
    "publishes that some consumers want": lambda s: in_bursts(s, lambda n: f"interest.{n % 1000}.x"),
    "publishes to other subjects": lambda s: in_bursts(s, lambda n: f"moved.{n}"),
    "publishes with TTLs": lambda s: in_bursts(s, lambda n: f"ttl.{n}", TTL),
    "messages that expire": lambda s: expire(s),
    "the page of streams and consumers": lambda s: s.look("/jsz?consumers=true&config=true"),
    "the page of metrics": lambda s: s.look("/metrics"),
    "the page of subscriptions": lambda s: s.look("/connz?subs=detail"),
}


def expire(scene: Scene) -> None:
    def left() -> int:
        return scene.ask("STREAM.INFO.TTL")["state"]["messages"]

    before = left()
    deadline = time.monotonic() + 20.0
    while before and left() == before and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)  # a part of many


@pytest.mark.parametrize("name", CASES)
def test_a_ping_takes_under_fifty_milliseconds_beside(scene: Scene, name: str) -> None:
    waits: list[float] = []
    while len(waits) < TRIES and (not waits or min(waits) >= LONGEST_S):
        waits.append(scene.longest_s(lambda: CASES[name](scene)))
    assert min(waits) < LONGEST_S, f"{name}: {', '.join(f'{wait * 1000:.0f} ms' for wait in waits)}"
