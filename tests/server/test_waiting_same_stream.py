"""Who publishes to a stream waits little for what others do with that very stream: long work is done in steps.

The stream has many subjects. A publish and its acknowledgement take under 50 ms beside each request (`test_waiting` says
how that is measured on a busy machine).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from headrace.testing import TestServer
from tests.server.test_waiting import LONGEST_S, TRIES, Scene, make_consumer
from tests.support.bystander import Bystander
from tests.support.rawclient import RawClient

SUBJECTS = 300_000
STREAM = {"name": "BIG", "subjects": ["big.>"], "allow_direct": True}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with TestServer(tmp_path_factory.mktemp("same") / "store") as server, RawClient(server.port) as asking:
        asking.request_many("$JS.API.STREAM.CREATE.BIG", json.dumps(STREAM).encode())
        lines = (b"PUB big.%d.%d 64\r\n%b\r\n" % (n % 1000, n, b"x" * 64) for n in range(SUBJECTS))
        asking._socket.sendall(b"".join(lines))
        with Bystander(server.port, "big.own.x") as waiting:
            made = Scene(server, asking, waiting)
            while made.ask("STREAM.INFO.BIG")["state"]["messages"] < SUBJECTS:
                time.sleep(0.05)
            yield made


def purge_by_subject(scene: Scene) -> None:
    for _ in range(5):
        answer = scene.ask("STREAM.PURGE.BIG", {"filter": f"big.{scene.fresh()[5:]}.*"})
        assert answer["purged"] == SUBJECTS // 1000


def delete_messages(scene: Scene) -> None:
    for _ in range(5):
        scene.ask("STREAM.MSG.DELETE.BIG", {"seq": SUBJECTS - 500 + scene.count})
        scene.fresh()


CASES: dict[str, Callable[[Scene], object]] = {
    "a page of subjects": lambda s: s.ask("STREAM.INFO.BIG", {"subjects_filter": ">"}),
    "the newest of each subject": lambda s: make_consumer(
        s, "BIG", s.fresh(), deliver_policy="last_per_subject", filter_subject="big.>"
    ),
    "a consumer with many filters": lambda s: make_consumer(
        s, "BIG", s.fresh(), filter_subjects=[f"big.*.{number}" for number in range(2000)]
    ),
    "a consumer with wide filters": lambda s: make_consumer(
        s, "BIG", s.fresh(), filter_subjects=[f"big.{number}.*" for number in range(500)]
    ),
    "a purge by subject": purge_by_subject,
    "messages deleted": delete_messages,
    "another description": lambda s: s.ask("STREAM.UPDATE.BIG", {**STREAM, "description": s.fresh()}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_publish_takes_under_fifty_milliseconds_beside(scene: Scene, name: str) -> None:
    waits: list[float] = []
    while len(waits) < TRIES and (not waits or min(waits) >= LONGEST_S):
        waits.append(scene.longest_s(lambda: CASES[name](scene)))
    assert min(waits) < LONGEST_S, f"{name}: {', '.join(f'{wait * 1000:.0f} ms' for wait in waits)}"
