"""A consumer against a model of a few lines: random publishes, fetches, acks of all kinds, time, deletes, restarts.

The model keeps what was delivered and not acked, and when each message is due again. After every step the numbers
that the API shows are those of the model; what is delivered is what the model says, in its order.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.streams.consuming import SECOND, World, ack_numbers
from tests.support.model import Msg

WAIT_S, MAX_DELIVER, MAX_PENDING = 5, 3, 6
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 4)),
        st.tuples(st.just("fetch"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["ack", "ack", "nak", "later", "term", "progress"]), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(1, 4)),
        st.tuples(st.just("purge"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class Sent:
    """A message that is out."""

    first: int
    due: int
    deliveries: int
    msg: Msg


@dataclass
class Plain:
    """What a consumer must know, with nothing clever."""

    wanted: list[int] = field(default_factory=list[int])
    out: dict[int, Sent] = field(default_factory=dict[int, Sent])
    given_up: set[int] = field(default_factory=set[int])
    queue: list[int] = field(default_factory=list[int])
    last = number = stored = 0

    def finish(self, seq: int) -> None:
        self.out.pop(seq, None)
        self.given_up.discard(seq)
        self.queue = [each for each in self.queue if each != seq]

    def expire(self, now: int) -> None:
        for seq in sorted(self.out):
            if self.out[seq].due <= now and seq not in self.queue:
                if self.out[seq].deliveries >= MAX_DELIVER:
                    self.give_up(seq)
                else:
                    self.queue.append(seq)

    def give_up(self, seq: int) -> None:
        self.finish(seq)
        self.given_up.add(seq)

    def next(self, count: int) -> list[int]:
        """The sequences that a fetch gets."""
        for seq in list(self.queue):
            if self.out[seq].deliveries >= MAX_DELIVER:
                self.give_up(seq)
        again = self.queue[:count]
        free = min(count - len(again), MAX_PENDING - len(self.out))
        return again + [seq for seq in self.wanted if seq > self.last][: max(free, 0)]

    def sent(self, msg: Msg, now: int) -> None:
        deliveries, seq, number, _ = ack_numbers(msg)
        self.number += 1
        assert number == self.number
        before = self.out.get(seq)
        if before is None:
            assert (deliveries, seq > self.last) == (1, True)
            self.last = seq
        else:
            assert deliveries == before.deliveries + 1
            self.queue.remove(seq)
        first = before.first if before is not None else number
        self.out[seq] = Sent(first, now + WAIT_S * SECOND, deliveries, msg)


class Pair:
    """The consumer and its model."""

    def __init__(self, place: Path) -> None:
        self.world, self.plain = World(place), Plain()
        self.world.stream()
        self.world.consumer(
            filter_subject="s.1",
            ack_wait=WAIT_S * SECOND,
            max_deliver=MAX_DELIVER,
            max_ack_pending=MAX_PENDING,
        )

    def step(self, kind: str, number: int) -> None:
        world, plain = self.world, self.plain
        if kind == "put":
            for at in range(number):
                plain.stored += 1
                world.put("s.1" if (plain.stored + at) % 3 else "s.2")
                if (plain.stored + at) % 3:
                    plain.wanted.append(plain.stored)
        elif kind == "fetch":
            expected = plain.next(number)
            got = [msg for msg in world.pull(batch=number, no_wait=True) if msg.reply]
            world.pass_time(0)
            assert [ack_numbers(msg)[1] for msg in got] == expected
            for msg in got:
                plain.sent(msg, world.time)
            self.drop_requests()
        elif kind == "wait":
            world.pass_time(number)
            plain.expire(world.time)
        elif kind == "delete" and plain.wanted:
            self.delete(plain.wanted[-1 - number % len(plain.wanted)])
        elif kind == "purge":
            world.client.api("STREAM.PURGE.S")
            plain.wanted, plain.out, plain.given_up, plain.queue = [], {}, set(), []
            plain.last = plain.stored
        elif kind == "restart":
            self.restart()
        elif plain.out:
            seq = sorted(plain.out)[number % len(plain.out)]
            self.answer(kind, seq)
        self.check()

    def drop_requests(self) -> None:
        """A request that waits for room must not take what comes later."""
        self.world.client.unsubscribe_all()
        self.world.client.subscribe("_INBOX.>")
        inbox = self.world.model.account().streams["S"].consumers["c"].delivery
        for each in inbox.queues.all():  # type: ignore[union-attr]  # pyright: ignore
            each.take_all()  # pyright: ignore

    def delete(self, seq: int) -> None:
        self.world.client.api("STREAM.MSG.DELETE.S", {"seq": seq})
        self.plain.wanted.remove(seq)
        self.plain.finish(seq)

    def answer(self, kind: str, seq: int) -> None:
        world, plain, sent = self.world, self.plain, self.plain.out[seq]
        bodies = {"ack": b"", "nak": b"-NAK", "later": b"-NAK 2s", "term": b"+TERM", "progress": b"+WPI"}
        world.ack(sent.msg, bodies[kind])
        if kind in ("ack", "term"):
            plain.finish(seq)
        elif kind == "nak" and seq not in plain.queue:
            plain.queue.append(seq)
        elif kind == "later":
            plain.queue = [each for each in plain.queue if each != seq]
            sent.due = world.time + 2 * SECOND
        elif kind == "progress":
            sent.due = world.time + WAIT_S * SECOND

    def restart(self) -> None:
        """Deadlines survive with whole seconds; what was queued comes when it is due."""
        self.world.restart()
        for sent in self.plain.out.values():
            delivered = (sent.due - WAIT_S * SECOND) // SECOND * SECOND
            sent.due = delivered + WAIT_S * SECOND
        self.plain.queue = []
        self.world.pass_time(0.04)
        self.plain.expire(self.world.time)

    def check(self) -> None:
        plain = self.plain
        again = sum(1 for sent in plain.out.values() if sent.deliveries > 1)
        numbers = self.world.numbers()
        assert numbers[:2] == (plain.number, plain.last)
        waiting = sum(1 for seq in plain.wanted if seq > plain.last)
        assert numbers[4:] == (len(plain.out), again + len(plain.given_up), waiting)
        if not plain.out and not plain.given_up:
            assert numbers[2:4] == numbers[:2]
        elif plain.out:
            lowest = min(plain.out)
            assert numbers[3] < lowest
            assert numbers[2] < plain.out[lowest].first


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_the_consumer_does_what_the_model_says(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        pair = Pair(Path(place))
        for step in steps:
            pair.step(*step)
        pair.world.model.__exit__(None, None, None)
