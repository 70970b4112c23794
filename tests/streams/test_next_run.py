"""The choice of the next messages, branch by branch, over a real store in memory."""

from __future__ import annotations

from array import array

import pytest

from headrace._core import Batch, Disk, Ledger
from headrace.config.model import StreamConfig
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.streams.consumer.next_run import Position, Why

WAIT = 1_000


@pytest.fixture
def store() -> FileStreamStore:
    """Thirty messages on a, b, c in turn."""
    volume = JetStreamVolume("/js", disk=Disk.memory(), mode="rw", create=True, maintenance=False)
    made = volume.create("S", config=StreamConfig(name="S", subjects=("*",)))
    made.append(Batch.build([["a", "b", "c"][n % 3] for n in range(30)], [b"%d" % n for n in range(1, 31)]))
    made.commit()
    return made


def packed(*sequences: int) -> bytes:
    return array("Q", sequences).tobytes()


class Consumer:
    """A ledger and a position, moved as a consumer moves them."""

    def __init__(self, store: FileStreamStore, max_deliver: int = -1, **position: object) -> None:
        self.store, self.now = store, 0
        self.ledger = Ledger("explicit", max_deliver, WAIT)
        self.position = Position(**{"next_seq": 1, **position})  # pyright: ignore[reportArgumentType]

    def choose(self, msgs: int = 100, size: int = 1 << 20, below: int | None = None) -> Batch:
        return self.position.choose(self.ledger, self.store, msgs, size, below)

    def get(
        self, msgs: int = 100, taken: int | None = None, below: int | None = None
    ) -> tuple[Why, list[int]]:
        """Choose, and send what was chosen (or the first `taken` of it)."""
        seqs = self.choose(msgs, below=below).positions()[:taken]
        for seq in seqs:
            self.ledger.sent(seq, self.now)
        self.ledger.removed(list(self.position.gone))
        self.position.passed(len(seqs))
        return self.position.why, seqs

    def wait(self) -> None:
        self.now += WAIT
        self.ledger.expire(self.now)


def test_new_messages_in_order_then_the_end(store: FileStreamStore) -> None:
    consumer = Consumer(store)
    assert consumer.get(20) == (Why.NEW, list(range(1, 21)))
    assert consumer.get(20) == (Why.NEW, list(range(21, 31)))
    assert consumer.get(20) == (Why.END, [])
    store.append(Batch.build("a", [b"31"]))
    assert consumer.get(20) == (Why.NEW, [31])


def test_what_nobody_took_comes_again(store: FileStreamStore) -> None:
    consumer = Consumer(store)
    assert consumer.get(20, taken=3) == (Why.NEW, [1, 2, 3])
    assert consumer.get(20, taken=0) == (Why.NEW, [])
    assert consumer.get(2) == (Why.NEW, [4, 5])


def test_bytes_bound_the_batch_but_never_to_nothing(store: FileStreamStore) -> None:
    consumer = Consumer(store)
    assert 1 < len(consumer.choose(size=100)) < 10
    assert consumer.choose(size=1).positions() == [1]


def test_filters_pass_over_the_rest(store: FileStreamStore) -> None:
    assert Consumer(store, filters=["b"]).get(4) == (Why.NEW, [2, 5, 8, 11])
    both = Consumer(store, filters=["b", "c"])
    assert both.get(4) == (Why.NEW, [2, 3, 5, 6])
    assert both.position.next_seq == 7
    nothing = Consumer(store, filters=["x.*"])
    assert nothing.get() == (Why.END, [])
    assert nothing.position.next_seq == 31, "it does not look at them again"


def test_removed_messages_are_passed_over(store: FileStreamStore) -> None:
    consumer = Consumer(store)
    store.remove([1, 2, 5])
    assert consumer.get(4) == (Why.NEW, [3, 4, 6, 7])
    store.compact(20)
    assert consumer.get(2) == (Why.NEW, [20, 21])


def test_expired_messages_are_passed_over() -> None:
    now = [10**18]
    volume = JetStreamVolume(
        "/js", disk=Disk.memory(), mode="rw", create=True, maintenance=False, clock=lambda: now[0]
    )
    store = volume.create("S", config=StreamConfig(name="S", subjects=("*",), max_age=10**9))
    store.append(Batch.build("a", [b"old", b"older"]))
    now[0] += 2 * 10**9
    store.append(Batch.build("a", [b"new"]))
    store.tick(now[0])
    assert Consumer(store).get() == (Why.NEW, [3])


def test_nothing_above_the_durable_mark(store: FileStreamStore) -> None:
    consumer = Consumer(store)
    assert consumer.get(below=4) == (Why.NEW, [1, 2, 3])
    assert consumer.get(below=4) == (Why.END, [])
    assert consumer.get(2, below=6) == (Why.NEW, [4, 5])


def test_redeliveries_come_first_in_the_order_they_became_due(store: FileStreamStore) -> None:
    consumer = Consumer(store)
    consumer.get(5)
    for seq in (4, 2):
        consumer.ledger.nak(seq, 0, 0)
    assert consumer.get(1) == (Why.AGAIN, [4])
    assert consumer.get(9) == (Why.AGAIN, [2])
    assert consumer.get(2) == (Why.NEW, [6, 7])
    consumer.wait()
    assert consumer.get(9) == (Why.AGAIN, [1, 2, 3, 4, 5, 6, 7])


def test_a_redelivery_of_what_is_gone_is_named_and_not_sent(store: FileStreamStore) -> None:
    consumer = Consumer(store)
    consumer.get(4)
    consumer.wait()
    store.remove([1, 3])
    consumer.choose()
    assert list(consumer.position.gone) == [1, 3]
    assert consumer.get() == (Why.AGAIN, [2, 4])
    consumer.wait()
    store.remove([2, 4])
    assert consumer.get() == (Why.AGAIN, [])
    assert (consumer.ledger.num_pending, consumer.ledger.num_due) == (0, 0)
    assert consumer.get(1) == (Why.NEW, [5])


def test_max_deliver_gives_up_once_and_is_gone_from_pending(store: FileStreamStore) -> None:
    consumer = Consumer(store, max_deliver=2)
    consumer.get(2)
    consumer.wait()
    assert consumer.get() == (Why.AGAIN, [1, 2])
    consumer.ledger.nak(1, 0, consumer.now)
    assert consumer.get(1) == (Why.NEW, [3]), "no third delivery"
    assert consumer.ledger.take_exceeded() == [(1, 2)]
    assert (consumer.ledger.pending_of(1), consumer.ledger.num_pending) == (None, 2)
    consumer.wait()
    assert consumer.ledger.take_exceeded() == [(2, 2)]
    assert consumer.get(5) == (Why.AGAIN, [3])


def test_stalled_at_max_ack_pending_but_not_for_redeliveries(store: FileStreamStore) -> None:
    consumer = Consumer(store, max_ack_pending=3)
    assert consumer.get(10) == (Why.NEW, [1, 2, 3])
    assert consumer.get(10) == (Why.STALLED, [])
    consumer.ledger.nak(2, 0, 0)
    assert consumer.get(10) == (Why.AGAIN, [2])
    assert consumer.get(10) == (Why.STALLED, [])
    consumer.ledger.ack(1, 1)
    assert consumer.get(10) == (Why.NEW, [4])


def test_the_skip_list_then_everything_from_the_resume_point(store: FileStreamStore) -> None:
    consumer = Consumer(store, skip_list=packed(3, 8, 28), resume=31, max_ack_pending=2)
    store.append(Batch.build("a", [b"31"]))
    assert consumer.get(1) == (Why.SKIP_LIST, [3])
    assert consumer.get(5, taken=0) == (Why.SKIP_LIST, [])
    assert consumer.get(5) == (Why.SKIP_LIST, [8])
    assert consumer.get(5) == (Why.STALLED, []), "the limit holds here too"
    consumer.ledger.nak(3, 0, 0)
    assert consumer.get(5) == (Why.AGAIN, [3]), "redeliveries first"
    for seq in (3, 8):
        consumer.ledger.ack(seq, seq)
    assert consumer.get(5) == (Why.SKIP_LIST, [28])
    assert consumer.get(5) == (Why.NEW, [31])


def test_the_skip_list_passes_over_what_was_removed(store: FileStreamStore) -> None:
    consumer = Consumer(store, skip_list=packed(3, 8, 28, 29), resume=31)
    assert consumer.get(below=3) == (Why.END, []), "not durable yet"
    store.remove([8, 29])
    assert consumer.get() == (Why.SKIP_LIST, [3, 28])
    assert consumer.position.skip_list.first(9) == [29]
    assert consumer.get() == (Why.SKIP_LIST, [])
    assert consumer.get() == (Why.END, [])
    assert consumer.position.next_seq == 31


def test_what_is_not_in_memory_is_held_block_by_block() -> None:
    disk = Disk.memory()
    options = {"disk": disk, "mode": "rw", "maintenance": False, "block_bytes": 4000, "cache_bytes": 5000}
    with JetStreamVolume("/js", create=True, **options) as volume:  # pyright: ignore[reportArgumentType]
        made = volume.create("S", config=StreamConfig(name="S", subjects=("*",)))
        for subject in ("rare", *["much"] * 40, "rare"):
            made.append(Batch.build(subject, [b"x" * 1000]))
    with JetStreamVolume("/js", **options) as volume:  # pyright: ignore[reportArgumentType]
        store = volume.open("S")
        assert isinstance(store, FileStreamStore)
        for pass_over in (False, True):
            consumer = Consumer(store, filters=["rare"])
            seen = [consumer.get()]
            held = []
            while seen[-1][0] is not Why.END:
                if seen[-1][0] is Why.COLD:
                    place = store.block_of(consumer.position.cold)
                    assert place is not None
                    held.append(store.hold(place.number, ["rare"]))
                seen.append(consumer.get())
            assert [seq for _, seqs in seen for seq in seqs] == [1, 42]
            assert len(held) <= 1 if pass_over else len(held) > 5, "the second time it knows where to look"
