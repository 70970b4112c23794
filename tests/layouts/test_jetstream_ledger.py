"""The ledger moves as `consumer_moves` does, whose rules are the real file store's; and writes the same o.dat."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._core import AckRun, Ledger
from headrace.config.model import AckPolicy
from headrace.errors import MessageNotFound
from headrace.layouts.base import ConsumerState
from headrace.layouts.jetstream.consumers.ledger import state_of, take_over
from headrace.layouts.jetstream.consumers.moves import Rules, apply_acks, apply_delivered
from headrace.layouts.jetstream.consumers.state import encode_state, seal_state

WAIT = 1000
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("new"), st.integers(0, 30), st.integers(1, 9)),
        st.tuples(st.just("ack"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("again"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 2 * WAIT), st.just(0)),
    ),
    max_size=60,
)


class Pair:
    """Both, side by side."""

    def __init__(self, policy: AckPolicy) -> None:
        self.ledger, self.state, self.now = Ledger(policy, -1, WAIT), ConsumerState(), 10 * WAIT
        self.rules = Rules(policy)

    def send(self, seq: int) -> None:
        own, deliveries = self.ledger.sent(seq, self.now)
        apply_delivered(self.state, self.rules, own, seq, deliveries, self.now)

    def ack(self, seq: int) -> None:
        known = self.state.pending.get(seq)
        own = known.sequence if known else self.ledger.delivered.consumer
        before = dict(self.state.pending)
        if self.rules.ack_policy != "none":
            try:
                apply_acks(self.state, self.rules, own, seq)
            except MessageNotFound:
                return  # the real server acks up to a message that it does not wait for, too
        run = AckRun([("ack", 1, seq, own, b"", b"reply")])
        assert self.ledger.apply(run, 0, self.now, True) == (
            1,
            len(before) - len(self.state.pending),
            sorted(set(before) - set(self.state.pending)),
        )

    def step(self, kind: str, number: int, count: int) -> None:
        last = self.state.delivered.stream
        if kind == "new":
            first = last + 1 + (number if number > 25 else 0)
            for seq in range(first, first + count):
                self.send(seq)
        elif kind == "ack":
            self.ack(max(last + 1 - number, 1))
        elif kind == "again":
            for seq in self.ledger.due(number):
                self.send(seq)
        else:
            self.now += number
            due = {s for s, each in self.state.pending.items() if each.time_ns + WAIT <= self.now}
            queued = set(self.ledger.due(10_000))
            assert self.ledger.expire(self.now) == len(due - queued)
            assert set(self.ledger.due(10_000)) == due | queued


@settings(max_examples=200)
@given(st.sampled_from(["explicit", "explicit", "all", "none"]), STEPS)
def test_it_moves_as_the_real_store(policy: AckPolicy, steps: list[tuple[str, int, int]]) -> None:
    pair = Pair(policy)
    for step in steps:
        pair.step(*step)
        assert state_of(pair.ledger) == pair.state
    fields = pair.ledger.encode_state()
    assert seal_state(fields, "S/C", 7) == encode_state(pair.state, "S/C", 7)
    again = Ledger(policy, -1, WAIT)
    take_over(again, pair.state)
    assert again.state() == pair.ledger.state()


def test_what_needs_more_than_bookkeeping_ends_the_run() -> None:
    ledger = Ledger("explicit")
    for seq in range(1, 6):
        ledger.sent(seq, 0)
    kinds = ["ack", "progress", "other", "nak", "ack", "term", "ack"]
    run = AckRun([(kind, 1, seq, seq, b"", None) for seq, kind in enumerate(kinds, 1)])
    assert (len(run), run.has_replies, run.item(3)) == (7, False, ("nak", 1, 4, 4, b"", None))
    assert ledger.apply(run, 0, 5, True) == (3, 1, [1])
    assert ledger.apply(run, 4, 5, False) == (5, 1, None)
    assert ledger.apply(run, 6, 5, True) == (7, 0, []), "never delivered"
    pending = ledger.pending_of(2)
    assert pending is not None
    assert (pending.consumer_seq, pending.time_ns, pending.deliveries) == (2, 5, 1), (
        "progress moved its clock"
    )


def test_given_up_is_reported_once_and_is_not_acked() -> None:
    ledger = Ledger("explicit", 2, WAIT)
    ledger.sent(1, 0)
    ledger.sent(2, 0)
    assert ledger.expire(WAIT) == 2
    for seq in ledger.due(9):
        ledger.sent(seq, WAIT)
    assert (ledger.num_pending, ledger.num_redelivered, ledger.take_exceeded()) == (2, 2, [])
    assert ledger.nak(1, 0, WAIT)
    assert ledger.due(9) == []
    assert ledger.take_exceeded() == [(1, 2)]
    assert ledger.expire(3 * WAIT) == 0
    assert (ledger.take_exceeded(), ledger.take_exceeded()) == ([(2, 2)], [])
    assert (ledger.num_pending, ledger.num_redelivered) == (0, 2)
    assert (ledger.floor.consumer, ledger.floor.stream) == (0, 0)
    assert ledger.acked_among([1, 2, 3]) == []
    assert ledger.ack(1, 3) == [1]
    assert ledger.acked_among([1, 2, 3]) == [1]
