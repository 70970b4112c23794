"""Who reads a stream that is not in memory keeps nobody waiting: blocks are read off the loop.

Several consumers go through a stream at different places, so that hardly anything of it is in memory when it is needed.
Beside them a PING takes under 50 ms, and so does a publish to another stream (`test_waiting` says how that is measured
on a busy machine).
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.testing import TestServer
from tests.server.test_waiting import LONGEST_S, PREFIX, TRIES, Scene
from tests.support.bystander import Bystander
from tests.support.rawclient import RawClient

MESSAGES = 700_000
READERS = 4
SIZE = 128


@pytest.fixture(scope="module", params=["none", "s2"])
def scene(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("cold")
    with TestServer(folder / "store") as server, RawClient(server.port) as asking:
        asking.timeout_s = 60.0
        config = {"name": "COLD", "subjects": ["cold.>"], "compression": request.param}
        for each in ({**config, "allow_direct": True}, {"name": "OTHER", "subjects": ["other"]}):
            body = json.dumps(each).encode()
            assert (
                b'"error"' not in asking.request_many(f"{PREFIX}STREAM.CREATE.{each['name']}", body)[0].data
            )
        lines = (b"PUB cold.%d %d\r\n%b\r\n" % (n % 100, SIZE, b"x" * SIZE) for n in range(MESSAGES))
        asking._socket.sendall(b"".join(lines))
        while count(asking) < MESSAGES:
            time.sleep(0.1)
    with (
        TestServer(folder / "store") as server,
        RawClient(server.port) as asking,
        Bystander(server.port) as waiting,
    ):
        yield Scene(server, asking, waiting)


def count(client: RawClient) -> int:
    return json.loads(client.request_many(f"{PREFIX}STREAM.INFO.COLD")[0].data)["state"]["messages"]


def read_all(scene: Scene) -> None:
    """Readers that begin at different places and go to the end."""
    readers = [
        threading.Thread(target=read, args=(scene, 1 + MESSAGES * number // READERS, scene.fresh()))
        for number in range(READERS)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


def read(scene: Scene, first: int, name: str) -> None:
    with socket.create_connection(("127.0.0.1", scene.server.port), timeout=60) as server:
        config = {
            "ack_policy": "none",
            "deliver_subject": f"deliver.{name}",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": first,
        }
        body = json.dumps({"stream_name": "COLD", "config": config}).encode()
        server.sendall(
            b'CONNECT {"verbose":false}\r\nSUB deliver.%b 1\r\nPUB %bCONSUMER.CREATE.COLD none %d\r\n%b\r\n'
            % (name.encode(), PREFIX.encode(), len(body), body)
        )
        wanted, got = (MESSAGES - first + 1) * (SIZE + 40), 0
        while got < wanted:
            got += len(server.recv(1 << 20))


def single_gets(scene: Scene) -> None:
    for number in range(1, MESSAGES, MESSAGES // 40):
        scene.ask("STREAM.MSG.GET.COLD", {"seq": number})
        scene.asking.request_many(f"{PREFIX}DIRECT.GET.COLD", json.dumps({"seq": number + 9000}).encode())


def direct_batch(scene: Scene) -> None:
    body = {"seq": 1, "next_by_subj": "cold.7", "batch": 5000}
    scene.asking.request_many(f"{PREFIX}DIRECT.GET.COLD", json.dumps(body).encode())


def sparse_consumer(scene: Scene) -> None:
    name = scene.fresh()
    config: dict[str, Any] = {"durable_name": name, "ack_policy": "explicit", "filter_subject": "cold.1*"}
    config["filter_subjects"] = [f"cold.{number}" for number in range(1, 100, 2)]
    del config["filter_subject"]
    scene.ask(f"CONSUMER.CREATE.COLD.{name}", {"stream_name": "COLD", "config": {**config, "name": name}})
    scene.ask(f"CONSUMER.INFO.COLD.{name}")


CASES: dict[str, Callable[[Scene], object]] = {
    "consumers at different places": read_all,
    "messages one by one": single_gets,
    "many messages of a subject": direct_batch,
    "a consumer whose messages have to be counted": sparse_consumer,
}


@pytest.mark.parametrize("name", CASES)
def test_a_ping_takes_under_fifty_milliseconds_beside(scene: Scene, name: str) -> None:
    waits: list[float] = []
    while len(waits) < TRIES and (not waits or min(waits) >= LONGEST_S):
        waits.append(scene.longest_s(lambda: CASES[name](scene)))
    assert min(waits) < LONGEST_S, f"{name}: {', '.join(f'{wait * 1000:.0f} ms' for wait in waits)}"
