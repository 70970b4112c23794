"""What programs around a server see, side by side with nats-server: files, pages, log lines, traces, sizes, silence."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.server import TestServer
from tests.support.peers import NatsServer, free_port
from tests.support.rawclient import RawClient

LIMIT_S = 20.0
SILENCE_S = 0.5
Server = NatsServer | TestServer
UNKNOWN = (
    *("FOO", "STREAM.FOO", "STREAM.FOO.S", "INFO.X", "CONSUMER.CREATE", "STREAM.CREATE", "META.FOO"),
    *("CONSUMER.FOO.X", "CONSUMER.FOO.X.Y.Z", "CONSUMER.MSG.NEXT", "CONSUMER.MSG.FOO.S.C"),
)
KNOWN_TO_NOBODY = ("DIRECT.GET.NO", "CONSUMER.MSG.NEXT.M.no")
IDLE_BLOCKS = "cluster {}\ngateway {}\nleafnodes {}\nmqtt {}\n"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, TestServer]]:
    folder = tmp_path_factory.mktemp("around")
    with NatsServer("2.15.2", folder / "theirs") as theirs, TestServer(folder / "ours") as ours:
        yield theirs, ours


def on_both(both: tuple[NatsServer, TestServer], act: Any) -> None:
    """The same from both."""
    found: list[Any] = []
    for server in both:
        with RawClient(server.port) as client:
            found.append(act(client))
    assert found[1] == found[0]


def test_calls_that_nobody_knows_stay_without_an_answer(both: tuple[NatsServer, TestServer]) -> None:
    def ask(client: RawClient) -> dict[str, Any]:
        client.timeout_s = SILENCE_S
        return {name: client.request_many(f"$JS.API.{name}") for name in (*UNKNOWN, *KNOWN_TO_NOBODY)}

    on_both(both, ask)


def test_sizes_in_memory_and_the_first_sequence_after_a_purge(both: tuple[NatsServer, TestServer]) -> None:
    def states(client: RawClient) -> list[Any]:
        found: list[Any] = []

        def look(stream: str) -> None:
            state = json.loads(client.request_many(f"$JS.API.STREAM.INFO.{stream}")[0].data)["state"]
            found.append([state[name] for name in ("messages", "bytes", "first_seq", "last_seq")])

        for storage in ("memory", "file"):
            stream, body = f"AROUND{storage}", {"subjects": [f"around.{storage}.>"], "storage": storage}
            body |= {"max_msgs_per_subject": 2, "max_bytes": 1000, "discard": "old"}
            client.request_many(
                f"$JS.API.STREAM.CREATE.{stream}", json.dumps({"name": stream, **body}).encode()
            )
            look(stream)
            client.request_many(f"$JS.API.STREAM.PURGE.{stream}")
            look(stream)
            for number in range(40):
                headers = b"NATS/1.0\r\nA: b\r\n\r\n" if number % 3 else None
                client.request_many(f"around.{storage}.{number % 30}", b"hello", headers)
                look(stream)
            client.request_many(f"$JS.API.STREAM.MSG.DELETE.{stream}", json.dumps({"seq": 38}).encode())
            look(stream)
        return found

    on_both(both, states)


def test_an_ack_that_nobody_takes_meets_no_responders(both: tuple[NatsServer, TestServer]) -> None:
    def ask(client: RawClient) -> Any:
        client.request_many("$JS.API.STREAM.CREATE.NOACK", b'{"name":"NOACK","subjects":["noack"]}')
        config = {"name": "c", "durable_name": "c", "ack_policy": "none"}
        body = json.dumps({"stream_name": "NOACK", "config": config}).encode()
        client.request_many("$JS.API.CONSUMER.CREATE.NOACK.c", body)
        client.request_many("noack", b"x")
        return client.request_many("$JS.ACK.NOACK.c.1.1.1.1700000000000000000.0")

    on_both(both, ask)


def test_traces(both: tuple[NatsServer, TestServer]) -> None:
    """Events of traced messages; with trace-only nobody gets them and nothing is stored."""

    def traced(client: RawClient) -> list[Any]:
        client.request_many("$JS.API.STREAM.CREATE.TRACED", b'{"name":"TRACED","subjects":["traced.>"]}')
        for subject in ("trace.dest", "traced.a", "plain"):
            client.subscribe(subject)
        found: list[Any] = []
        for only in ("Nats-Trace-Only: true\r\n", "Nats-Trace-Only: ON\r\n", "Nats-Trace-Only: no\r\n", ""):
            for subject in ("traced.a", "plain", "nobody"):
                headers = f"NATS/1.0\r\nNats-Trace-Dest: trace.dest\r\n{only}\r\n".encode()
                client.publish(subject, b"hi", "_INBOX.reply", headers)
                msgs = []
                while (msg := client.next(SILENCE_S)) is not None:
                    msgs.append((msg.subject, _event(msg.data)))
                found.append((subject, only, sorted(msgs, key=repr)))
        info = json.loads(client.request_many("$JS.API.STREAM.INFO.TRACED")[0].data)
        # What a stream keeps is not traced again when it is delivered or sent on.
        stored = json.loads(client.request_many("$JS.API.STREAM.MSG.GET.TRACED", b'{"seq":1}')[0].data)
        return [*found, info["state"]["messages"], stored["message"]["hdrs"]]

    on_both(both, traced)


def _event(data: bytes) -> Any:
    """A trace without what differs between servers; every other answer by its kind."""
    if not data.startswith(b"{"):
        return data
    document = json.loads(data)
    if "events" not in document:
        return sorted(document)
    document.pop("server")
    for event in document["events"]:
        event.pop("ts")
        event.pop("cid", None)
    return document


def test_files_and_pages_around_a_server(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []
    for name in ("theirs", "ours"):
        folder, http, websocket = tmp_path / name, free_port(), free_port()
        folder.mkdir()
        config = (
            f'pid_file: "{folder}/pid"\nports_file_dir: "{folder}"\nhttp: 127.0.0.1:{http}\n{IDLE_BLOCKS}'
            f"websocket {{ host: 127.0.0.1, port: {websocket}, no_tls: true }}\n"
            "debug: true\ntrace: true\nauthorization { users: [{user: a, password: b}] }\nno_auth_user: a\n"
        )
        server: Server = (
            NatsServer("2.15.2", folder / "store", config=config)
            if name == "theirs"
            else TestServer(folder / "store", config=config)
        )
        with server:
            shown.append(_around(server, folder, http))
            hidden = {server.port: "CLIENTS", http: "PAGES", websocket: "WEBSOCKET", server.pid: "PID"}
        text = json.dumps(shown[-1])
        for number, word in hidden.items():
            text = re.sub(rf"(?<!\d){number}(?!\d)", word, text)
        shown[-1] = json.loads(text.replace(str(folder), "FOLDER"))
    assert shown[1] == shown[0]


def _around(server: Server, folder: Path, http: int) -> dict[str, Any]:
    def page(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{http}{path}", timeout=LIMIT_S) as answer:
            return json.loads(answer.read())

    deadline = time.monotonic() + LIMIT_S
    with RawClient(server.port) as client:
        client.publish("a.b", b"seen")
        client.subscribe("c")
        while True:
            while client.next(0.05) is not None:
                pass
            connections = page("/connz")["connections"]
            if any("rtt" in each for each in connections) or time.monotonic() > deadline:
                break
    lines = server.log(500).splitlines()
    wanted = re.compile(r"<<- \[?(PUB|MSG_PAYLOAD)|Listening for|connection created")
    said = [line.partition("] ")[2][27:] for line in lines if wanted.search(line)]
    client_lines = [re.sub(r"127\.0\.0\.1:\d+ - cid:\d+ - ", "", line) for line in said]
    return {
        "pid": (folder / "pid").read_text(),
        "ports": {each.name: json.loads(each.read_text()) for each in folder.glob("*.ports")},
        "log": sorted(set(client_lines)),
        "rtt": any("rtt" in each for each in connections),
        "auth_required": page("/varz")["auth_required"],
        "store_dir": page("/varz")["jetstream"]["config"]["store_dir"],
        "ipqueuesz": page("/ipqueuesz"),
    }
