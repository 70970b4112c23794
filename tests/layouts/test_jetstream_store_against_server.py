"""Random calls on our store and on a real nats-server through its API: both must say the same after each few.

    store_msg = publish · remove_msg, erase_msg = MSG.DELETE · purge_ex = PURGE · update_config = STREAM.UPDATE
    and a restart of both now and then
`compact`, `truncate` and `skip_msg` have no API: see test_jetstream_store_model.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.config.model import StreamConfig
from headrace.errors import BadInput, NotFound, StoreFull
from headrace.layouts.base import LogState
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume
from tests.support.jsapi import Api, Refused
from tests.support.peers import NatsServer

NatsServers = Callable[..., NatsServer]
STEPS = 500
COMPARE_EVERY = 5
SUBJECTS = ["s.a", "s.b", "s.c", "s.a.x", "s.b.x", "t"]
FILTERS = ["s.a", "s.*", "s.>", "s.*.x", ">", "none", "t"]
STORE_IS_FULL = 10077


class Pair:
    """The two stores, and the calls on both."""

    def __init__(self, server: NatsServer, path: Path, config: StreamConfig, rng: random.Random) -> None:
        self.server, self.path, self.config, self.rng = server, str(path), config, rng
        self.api = Api(server.url)
        self.api.create(config)
        self.volume = JetStreamVolume(self.path, mode="rw", create=True, block_bytes=2000)
        self.store: FileStreamStore = self.volume.create(config.name, config=config)
        self.log: list[str] = []

    def close(self) -> None:
        self.api.__exit__(None, None, None)
        self.volume.close()

    def publish(self) -> None:
        subject, data = self.rng.choice(SUBJECTS), self.rng.randbytes(self.rng.randrange(0, 90))
        headers = {"A": str(self.rng.randrange(1000))} if self.rng.random() < 0.3 else None
        # As the client writes them.
        block = f"NATS/1.0\r\nA: {headers['A']}\r\n\r\n".encode() if headers else None
        theirs: int | str
        ours: int | str
        try:
            theirs = self.api.publish(subject, data, headers)
        except Refused as refused:
            assert refused.code == STORE_IS_FULL, refused
            theirs = str(refused)
        try:
            ours = self.store.store_msg(subject, block, data)[0]
        except StoreFull as full:
            ours = str(full)
        self.log.append(f"publish {subject} {len(data)} bytes -> {theirs} | {ours}")
        if isinstance(ours, str) and isinstance(theirs, str):
            assert ours in theirs
        else:
            assert ours == theirs

    def some_seq(self) -> int:
        state = self.store.fast_state()
        return self.rng.randint(max(state.first_seq - 1, 1), state.last_seq + 1)

    def remove(self, erase: bool) -> None:
        seq = self.some_seq()
        try:
            self.api.remove("S", seq, erase)
            theirs = True
        except Refused:
            theirs = False
        try:
            ours = self.store.erase_msg(seq) if erase else self.store.remove_msg(seq)
        except NotFound:
            ours = False
        self.log.append(f"remove {seq} erase={erase} -> {theirs} | {ours}")
        assert ours == theirs

    def purge(self) -> None:
        options: dict[str, Any] = {}
        if self.rng.random() < 0.7:
            options["filter"] = self.rng.choice(FILTERS)
        state = self.store.fast_state()
        match self.rng.randrange(3):
            case 0:
                options["seq"] = self.rng.randint(1, state.last_seq + 4)
            case 1:
                options["keep"] = self.rng.randint(1, 12)
            case _ if self.rng.random() < 0.7:
                options["filter"] = self.rng.choice(["s.a.x", "s.b.x"])
        try:
            theirs = self.api.purge("S", **options)
        except Refused as refused:
            theirs = -refused.code
        try:
            ours = self.store.purge_ex(
                options.get("filter", ""), options.get("seq", 0), options.get("keep", 0)
            )
        except BadInput:
            ours = -10003
        self.log.append(f"purge {options} -> {theirs} | {ours}")
        assert ours == theirs

    def update(self) -> None:
        rng = self.rng
        self.config = replace(
            self.config,
            max_msgs=rng.choice([-1, -1, 10, 60]),
            max_bytes=rng.choice([-1, -1, 900, 5000]),
            max_msgs_per_subject=rng.choice([-1, -1, 2, 9]),
            discard=rng.choice(["old", "old", "new"]),
        )
        limits = {
            key: getattr(self.config, key)
            for key in ("max_msgs", "max_bytes", "max_msgs_per_subject", "discard")
        }
        self.log.append(f"update {limits}")
        self.api.update(self.config)
        self.store.update_config(self.config)

    def restart(self) -> None:
        self.log.append("restart")
        self.api.__exit__(None, None, None)
        self.server.stop()
        self.server.start()
        self.api = Api(self.server.url)
        self.volume.close()
        self.volume = JetStreamVolume(self.path, mode="rw", block_bytes=2000)
        self.store = self.volume.open("S")

    def step(self) -> None:
        choice = self.rng.random()
        if choice < 0.70:
            self.publish()
        elif choice < 0.82:
            self.remove(erase=self.rng.random() < 0.4)
        elif choice < 0.90:
            self.purge()
        elif choice < 0.97:
            self.update()
        else:
            self.restart()

    def compare(self) -> None:
        real, state = self.api.state("S", ">"), self.store.state()
        assert ours(state) == theirs(real)
        assert {s: c.msgs for s, c in self.store.subjects_state(">").items()} == (real.get("subjects") or {})
        wanted = self.rng.choice(FILTERS[:-2])
        counted = self.api.state("S", wanted).get("subjects") or {}
        assert {s: c.msgs for s, c in self.store.subjects_state(wanted).items()} == counted
        assert self.store.filtered_state(0, wanted).msgs == sum(counted.values())
        self.compare_last(wanted)
        if state.messages:
            self.compare_some(state)

    def compare_last(self, subject: str) -> None:
        try:
            expected = self.api.get("S", {"last_by_subj": subject})
        except Refused:
            state = self.store.fast_state()
            if subject == ">" and state.messages:
                # The server looks at last_seq alone and finds nothing when that one was removed; here ">" is a
                # filter like the others.
                assert self.store.load_last_msg(subject).seq < state.last_seq
                return
            with pytest.raises(NotFound):
                self.store.load_last_msg(subject)
            return
        found = self.store.load_last_msg(subject)
        assert (found.seq, found.subject, found.headers, found.data) == (
            expected.seq,
            expected.subject,
            expected.headers,
            expected.data,
        )

    def compare_some(self, state: LogState) -> None:
        span = range(state.first_seq, state.last_seq + 1)
        wanted = self.rng.sample(span, min(len(span), 6))
        for seq, expected in self.api.get_many("S", wanted).items():
            found = next(iter(self.store.load_msgs([seq])), None)
            assert (found is None) == (expected is None), seq
            if found and expected:
                assert (found.subject, found.headers, found.data) == (
                    expected.subject,
                    expected.headers,
                    expected.data,
                )


def ours(state: LogState) -> dict[str, Any]:
    return {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "num_deleted": state.num_deleted,
        "deleted": list(state.deleted),
        "num_subjects": state.num_subjects,
    }


def theirs(state: dict[str, Any]) -> dict[str, Any]:
    if state["last_seq"] == 0:
        # Of a stream that never had a message the server counts sequence 0 as deleted, and after a purge it
        # says that 1 is the first; here nothing is deleted and the first is 0.
        state = state | {"num_deleted": 0, "deleted": [], "first_seq": 0}
    return {
        "messages": state["messages"],
        "bytes": state["bytes"],
        "first_seq": state["first_seq"],
        "last_seq": state["last_seq"],
        "num_deleted": state.get("num_deleted", 0),
        "deleted": sorted(state.get("deleted") or []),
        "num_subjects": state.get("num_subjects", 0),
    }


@pytest.mark.parametrize("turn", range(4))
def test_random_calls_agree_with_the_real_server(
    nats_server: NatsServers, tmp_path: Path, turn: int, headrace_seed: int
) -> None:
    config = StreamConfig(
        name="S", subjects=("s.>", "t"), compression="s2" if turn % 2 else "none", max_msg_size=1 << 20
    ).filled()
    pair = Pair(nats_server("2.15.2"), tmp_path / "ours", config, random.Random(headrace_seed))
    try:
        for number in range(1, STEPS + 1):
            pair.step()
            if number % COMPARE_EVERY == 0 or not pair.log[-1].startswith(("publish", "remove")):
                pair.compare()
        pair.compare()
    except (Exception, pytest.fail.Exception) as error:
        error.add_note("the last calls (theirs | ours):\n" + "\n".join(pair.log[-15:]))
        raise
    finally:
        pair.close()
