"""One consumer of the model: what it was given, what it settled, and when it gets more.

    on_acks   a run of acknowledgements ─→ ledger; on work queues the stream lets go of what is settled
    on_pulls  a run of requests         ─→ waiting (consumer_pull.py)
    on_new    the stream has more       ─┐
    timers    something is due          ─┴→ engine.wake ─→ deliver: next_run.choose, then push or pull sends

How messages leave is the delivery's (consumer_push.py, consumer_pull.py). What must survive a crash is in the ledger's
journal: written at the latest a quarter second later, at once where somebody waits for a double ack, and before a
message that was acked is removed.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.layouts.base import ConsumerState
from headrace.layouts.jetstream.config import ConsumerConfig
from headrace.layouts.jetstream.consumer_store import FileConsumerStore
from headrace.streams import consumer_life
from headrace.streams._kernels import AckRun, Batch, Ledger, PullRun, subject_matches
from headrace.streams.acks import nak_delay_ns, next_request, term_reason
from headrace.streams.advisories import Advisories
from headrace.streams.consumer_pull import PullDelivery
from headrace.streams.consumer_push import PushDelivery
from headrace.streams.consumer_start import front_after_purge, start_of
from headrace.streams.next_run import Choice, Position, Why, choose
from headrace.streams.replay import Replay
from headrace.streams.timers import Timer
from headrace.units import format_time_ns

if TYPE_CHECKING:
    from headrace.streams.stream import Stream

LOG = logging.getLogger("headrace.streams")
# What one consumer may send in one turn: others want their turn too.
TURN_BYTES = 1 << 20
FLUSH_EVERY_NS = 250_000_000
FLUSH_BYTES = 64 << 10
DELETED = "Unacknowledged message was deleted"


class Consumer:
    """A consumer that is served. Made by `Stream.add_consumer`."""

    def __init__(self, stream: Stream, store: FileConsumerStore) -> None:
        self.stream, self.store, self.engine = stream, store, stream.engine
        self.name, self.created_ns = store.name, store.created_ns
        self.config: ConsumerConfig = store.config
        self.filters: tuple[str, ...] = self.config.filters
        self.ledger: Ledger = store.ledger()
        self.closed = self.stalled = False
        self.last_delivered_ns: int | None = None
        self.last_acked_ns: int | None = None
        # Pending messages carry wall times, deadlines are kept on the monotonic clock: a step of the wall clock
        # must not redeliver everything.
        self.wall_offset = self.engine.clock() - self.engine.now()
        self.acked_at = self.engine.now()
        self._pending, self._counted, self._recount = 0, 0, True
        self._first = 0
        self._timer: Timer | None = None
        self._flush_at: int | None = None
        recovered = not store.fresh
        self.position = self._find_position()
        if recovered:
            self.recount(moves_on=False)
        self.start_seq = self.config.opt_start_seq or self.position.next_seq
        self._apply_config()
        self.id = self.engine.register(self)
        self.engine.exchange.take_acks(stream.account.id, stream.name, self.name, self.id)
        self.delivery = PushDelivery(self) if self.config.deliver_subject else PullDelivery(self)
        self.delivery.start()
        self._schedule(self.engine.now())
        self.engine.wake(self)  # somebody may listen already

    def __repr__(self) -> str:
        return f"<consumer {self.stream.name}/{self.name}>"

    def _find_position(self) -> Position:
        last = self.stream.store.log.totals()[2]
        self.replay = Replay(last) if self.config.replay_policy == "original" else None
        if not self.store.fresh:
            return Position(self.ledger.delivered[1] + 1)
        self.store.fresh = False
        start = start_of(self.config, self.stream.store)
        if start.first > 1:
            self.store.reset(start.first - 1)
            self.store.commit()
        return Position(start.first, skip_list=start.skip_list, resume=start.resume)

    def _apply_config(self) -> None:
        config = self.config
        self.filters = config.filters
        self.position.filters = list(config.filters)
        self.position.max_ack_pending = config.max_ack_pending if config.ack_policy != "none" else -1
        self.sample_percent = int(config.sample_freq.removesuffix("%") or 0)
        self.pause_until_ns = consumer_life.pause_end(config)
        self.ack_prefix = f"$JS.ACK.{self.stream.name}.{self.name}.".encode()
        self._recount = True

    # Delivering

    @property
    def visible(self) -> int | None:
        """Nothing at or above this sequence may leave yet; None where nobody promised that it is on disk."""
        store = self.stream.store
        if store.durability != "sync" or self.stream.in_memory:
            return None
        return store.log.durable()[1] + 1

    def on_new(self) -> None:
        """The stream has more that may be seen."""
        if self.delivery.ready and not self.stalled:
            self.engine.wake(self)

    def on_interest(self, some: bool) -> None:
        """Somebody listens on the deliver subject, or nobody any more."""
        self.delivery.on_interest(some)
        self.engine.wake(self)

    def on_pulls(self, run: PullRun) -> None:
        """Requests for messages."""
        self.delivery.on_pulls(run)
        self.engine.wake(self)

    def deliver(self, now: int) -> None:
        """Send what is due and wanted. Called by the engine, at most once in a turn."""
        if self.closed:
            return
        first = self.stream.store.log.first_seq()
        if first > self._first:
            self.removed_below(first)  # age takes messages while nobody publishes
        self.ledger.expire(now + self.wall_offset)
        self.delivery.tick(now)
        if self.pause_until_ns is not None and consumer_life.is_paused(self, now):
            self.delivery.at_end(now)
        else:
            self._send(now)
        if self.config.max_deliver > 0:
            self._tell_exceeded()
        self._schedule(now)

    def _send(self, now: int) -> None:
        delivery, position, ledger = self.delivery, self.position, self.ledger
        log, below, left = self.stream.store.log, self.visible, TURN_BYTES
        self.stalled = False
        if self.replay is None and delivery.send_new(log, below, now):
            return
        while (want := delivery.wants(now)) is not None:
            choice = choose(ledger, log, position, want, below)
            if choice.gone:
                self._let_go(choice.gone)
            count = len(choice.batch)
            if not count:
                position.passed(choice, 0)
                if choice.why is Why.STALLED:
                    self.stalled = True
                elif choice.why is Why.END:
                    delivery.at_end(now)
                elif choice.why is Why.MORE:
                    self.engine.wake(self)
                else:
                    continue
                return
            if self.replay is not None and choice.why is not Why.AGAIN:
                choice = self._paced(choice, now)
                if not len(choice.batch):
                    return
            taken, size = delivery.send(choice, now)
            position.passed(choice, taken)
            if taken:
                self._sent(choice, taken, now)
            left -= size
            if want.whole and taken == want.msgs:
                return
            if left <= 0:
                self.engine.wake(self)
                return

    def _paced(self, choice: Choice, now: int) -> Choice:
        """Replay `original`: the part of the messages whose time has come."""
        assert self.replay is not None
        if choice.batch.first_position > self.replay.last_seq:
            self.replay = None
            return choice
        batch = choice.batch.slice(
            0, self.replay.allowed(choice.batch.times()[: self.delivery.paced_msgs], now)
        )
        return choice._replace(batch=batch, next_seq=batch.last_position + 1 if len(batch) else 0)

    def _sent(self, choice: Choice, taken: int, now: int) -> None:
        self.last_delivered_ns = now + self.wall_offset
        if choice.why is not Why.AGAIN:
            self._pending = max(self._pending - taken, 0)
        if self.config.ack_policy == "none" and self.stream.config.retention != "limits":
            self.settled(choice.batch.positions()[:taken])

    def _let_go(self, gone: Sequence[int]) -> None:
        self.ledger.removed(list(gone))

    def _tell_exceeded(self) -> None:
        for seq, deliveries in self.ledger.take_exceeded():
            self.advisories.max_deliveries(self.stream.account, self.stream.name, self.name, seq, deliveries)

    # Acknowledgements

    def may_wait(self, run: AckRun) -> bool:
        """Whether acks may be noted after the request behind them was served: the outcome is the same."""
        plain = not (self.closed or self.sample_percent) and self.stream.config.retention == "limits"
        return plain and self.ledger.may_wait(run, self.position.max_ack_pending)

    def on_acks(self, run: AckRun) -> None:
        """A run of acknowledgements, in order."""
        if self.closed:
            return
        now = self.engine.now()
        wall, ledger, self.acked_at = now + self.wall_offset, self.ledger, now
        wanted = self.stream.config.retention != "limits"
        gone: list[int] = []
        at, count, asks = 0, len(run), False
        while at < count:
            if not self.sample_percent:
                at, settled, acked = ledger.apply(run, at, wall, wanted)
                if settled:
                    self.last_acked_ns = wall
                if acked:
                    gone += acked
                if at >= count:
                    break
            asks = asks or run.item(at)[0] == "next"
            gone += self._one_ack(run, at, wall)
            at += 1
        if gone and wanted:
            self.settled(gone)
        if run.has_replies:
            self._confirm(run, asks)
        if self.stalled or ledger.num_due:
            self.engine.wake(self)
        elif self._flush_at is None or ledger.changes_len > FLUSH_BYTES:
            self._schedule(now)

    def _one_ack(self, run: AckRun, at: int, wall: int) -> list[int]:
        """An acknowledgement that is more than bookkeeping; returns what it settled."""
        kind, deliveries, seq, consumer_seq, body, reply = run.item(at)
        where = (self.stream.account, self.stream.name, self.name, consumer_seq, seq)
        if kind in ("ack", "next", "term"):
            self.last_acked_ns = wall
        if kind in ("ack", "next"):
            if self.sample_percent:
                self._sample(seq, consumer_seq, deliveries, wall)
            settled = self.ledger.ack(seq, consumer_seq)
            if kind == "next" and reply is not None:
                self.delivery.request(reply, next_request(body))
                self.engine.wake(self)
            return settled
        if kind == "progress":
            self.ledger.progress(seq, wall)
        elif kind == "nak" and self.ledger.nak(seq, nak_delay_ns(body), wall):
            self.advisories.naked(*where, deliveries)
        elif kind == "term" and self.config.ack_policy != "none":
            self.advisories.terminated(*where, deliveries, term_reason(body))
            return self.ledger.ack(seq, consumer_seq)
        return []

    def _sample(self, seq: int, consumer_seq: int, deliveries: int, wall: int) -> None:
        known = self.ledger.pending_of(seq)
        chosen = self.sample_percent >= 100 or random.randrange(100) < self.sample_percent
        if known is not None and chosen and self.config.ack_policy == "explicit":
            where = (self.stream.account, self.stream.name, self.name)
            self.advisories.ack_sampled(*where, consumer_seq, seq, wall - known[1], deliveries)

    def settled(self, sequences: Sequence[int]) -> None:
        """The stream may let go of these: the journal says so first."""
        self.flush()
        self.stream.acked(self, sequences)

    def _confirm(self, run: AckRun, asks: bool) -> None:
        """Double acks are answered when they are on disk; `+NXT` is answered with messages alone."""
        consumers, exchange, account = (
            self.stream.store.consumers,
            self.engine.exchange,
            self.stream.account.id,
        )

        def answer_each() -> None:
            for kind, *_, reply in map(run.item, range(len(run))):
                if reply is not None and kind != "next":
                    exchange.publish(account, reply, None, None, b"")

        if not self.engine.sync_needed:
            self.flush()  # mode `interval`: what was said outlives the process
        answer = answer_each if asks else partial(exchange.confirm, account, run)
        self.engine.after(consumers, consumers.mark(), answer, now=self.stream.in_memory)

    # What the stream tells

    def removed(self, sequences: Sequence[int]) -> None:
        """Single messages are gone."""
        pending = self.ledger.removed(list(sequences))
        for seq, consumer_seq, deliveries in pending:
            where = (self.stream.account, self.stream.name, self.name, consumer_seq, seq)
            self.advisories.terminated(*where, deliveries, DELETED)
        if (sequences and max(sequences) >= self.position.next_seq) or self.position.skip_list:
            self._recount = True
        if pending:
            self.last_acked_ns = self.engine.clock()
            self.engine.wake(self)

    def removed_below(self, first: int) -> None:
        """Limits took everything below."""
        if first <= self._first:
            return
        self._first = first
        if first > self.position.next_seq:
            self._recount = True
        if self.ledger.removed_below(first, False):
            self.engine.wake(self)

    def _follow_front(self) -> None:
        """Age takes messages while nobody publishes."""
        self.removed_below(self.stream.store.log.first_seq())

    def recount(self, purged: str = "", *, moves_on: bool = True) -> None:
        """Many messages went (a purge, or a limit per subject): look which pending ones are still there."""
        log, ledger = self.stream.store.log, self.ledger
        unsettled = ledger.unsettled()
        if unsettled:
            gone = sorted(set(unsettled).difference(log.live_among(unsettled)))
            ledger.removed(gone)
        front = front_after_purge(self.filters, purged, self.stream.store) if moves_on else log.first_seq()
        if ledger.removed_below(front, moves_on) or unsettled:
            self.last_acked_ns = self.engine.clock()
            self.engine.wake(self)
        self._recount = True
        self.position.next_seq = max(self.position.next_seq, ledger.delivered[1] + 1)

    def settled_of(self, sequences: Sequence[int]) -> list[int]:
        """Those that this consumer has no more use for: settled, or not for it at all."""
        if self.closed:
            return list(sequences)
        settled = self.ledger.settled_among(list(sequences))
        delivered = self.ledger.delivered[1]
        ahead = [seq for seq in sequences if seq > delivered]
        if not ahead or not self.filters:
            return settled
        batch = self.stream.store.load_msgs(ahead)
        wanted = batch.filter(None, None, None, None, list(self.filters)).positions()
        return sorted([*settled, *set(ahead).difference(wanted)])

    def takes(self, subject: str) -> bool:
        """Whether messages on a subject are for this consumer."""
        return not self.filters or any(subject_matches(each, subject) for each in self.filters)

    # Counts

    def sent_new(self, batch: Batch, now: int) -> None:
        """All of a batch went out for the first time."""
        self.last_delivered_ns = now + self.wall_offset
        self._pending = max(self._pending - len(batch), 0)
        if self.config.ack_policy == "none" and self.stream.config.retention != "limits":
            self.settled(batch.positions())

    def num_pending(self) -> int:
        """Messages for this consumer that were never delivered."""
        return self.pending_below(self.visible or self.stream.store.log.totals()[2] + 1)

    def pending_below(self, below: int) -> int:
        """The same, as far as the end of what may be seen, which the caller knows."""
        log, position = self.stream.store.log, self.position
        if self._recount:
            self._recount = False
            first = position.resume if position.skip_list else position.next_seq
            waiting = len(log.live_among(list(position.skip_list))) if position.skip_list else 0
            self._pending = waiting + log.count_matching(first, below, position.filters)
            self._counted = below
        elif below > self._counted:
            self._pending += log.count_matching(self._counted, below, position.filters)
            self._counted = below
        return self._pending

    def info(self) -> dict[str, Any]:
        """As the API shows it; `config` is put in by whoever does."""
        self._follow_front()
        delivered, floor = self.ledger.delivered, self.ledger.floor
        shown: dict[str, Any] = {
            "stream_name": self.stream.name,
            "name": self.name,
            "created": format_time_ns(self.created_ns),
            "config": None,
            "delivered": _pair(delivered, self.last_delivered_ns),
            "ack_floor": _pair(floor, self.last_acked_ns),
            "num_ack_pending": self.ledger.num_pending,
            "num_redelivered": self.ledger.num_redelivered,
            "num_waiting": self.delivery.num_waiting(),
            "num_pending": self.num_pending(),
        }
        if self.delivery.bound:
            shown["push_bound"] = True
        if (left := consumer_life.pause_left_ns(self)) > 0:
            shown |= {"paused": True, "pause_remaining": left}
        shown["ts"] = format_time_ns(self.engine.clock())
        if groups := self.delivery.groups_info():
            shown["priority_groups"] = groups
        return shown

    # Changes

    def update(self, config: ConsumerConfig) -> None:
        """Another configuration (it passed the rules). The position stays."""
        before = self.config
        self.store.update_config(config)
        self.config = config
        self._apply_config()
        if before.filters != config.filters:
            self.position.next_seq = max(self.ledger.delivered[1] + 1, self._first)
            self.stream.filters_changed()
        self.delivery.reconfigured(before)
        self.engine.wake(self)

    def pause(self, config: ConsumerConfig) -> None:
        """The same configuration with another `pause_until`."""
        self.store.update_config(config)
        self.config = config
        self.pause_until_ns = consumer_life.pause_end(config)
        self.engine.wake(self)

    def unpin(self, group: str) -> None:
        """The pinned client of a priority group makes room."""
        self.delivery.unpin(group)
        self.engine.wake(self)

    def reset(self, seq: int | None = None) -> int:
        """Deliver again from a sequence on, by default from behind the ack floor; returns it."""
        first = seq if seq is not None else self.ledger.floor[1] + 1
        self.store.reset(first - 1)
        self.store.commit()
        self.position.next_seq, self._recount = first, True
        self.position.skip_list.clear()
        self.last_delivered_ns = self.last_acked_ns = None
        self.engine.wake(self)
        return first

    def state(self) -> ConsumerState:
        """Where it stands."""
        return self.store.state()

    # Time, journal, end

    @cached_property
    def advisories(self) -> Advisories:
        return Advisories(self.engine, self.stream.account.facts)

    def flush(self) -> None:
        """What the ledger noted into the journal."""
        self._flush_at = None
        try:
            self.stream.store.consumers.flush()
        except (
            HeadraceError
        ) as problem:  # it stays in memory and is tried again; commits report it to their callers
            LOG.error("the journal of %r cannot be written: %s", self, problem)

    def _schedule(self, now: int) -> None:
        """Journal what has waited long enough; be woken when the next thing is due."""
        ledger = self.ledger
        if ledger.changes_len:
            if self._flush_at is None:
                self._flush_at = now + FLUSH_EVERY_NS
            if self._flush_at <= now or ledger.changes_len > FLUSH_BYTES:
                self.flush()
        due = consumer_life.next_due(self, now, self._flush_at)
        timer = self._timer
        if due is not None and (timer is None or due < timer.at_ns):
            if timer is not None:
                timer.cancel()
            self._timer = self.engine.timers.at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if not self.closed and not consumer_life.ended(self, self.engine.now()):
            self.engine.wake(self)

    def stop(self, status: str = "409 Server Shutdown") -> None:
        """The server stops: waiting requests are told, the state is kept. Without a status the consumer goes."""
        if not self.closed:
            self.delivery.stop(status)
            self._leave()

    def gone(self) -> None:
        """The stream is deleted: waiting requests are told."""
        self.stop("")

    def delete(self) -> None:
        """Remove the consumer; waiting requests are told."""
        if self.closed:
            return
        self.gone()
        self.store.delete()
        self.stream.consumer_gone(self)

    def _leave(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.engine.exchange.leave_acks(self.stream.account.id, self.stream.name, self.name)
        self.engine.unregister(self.id)


def _pair(numbers: tuple[int, int], active_ns: int | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"consumer_seq": numbers[0], "stream_seq": numbers[1]}
    return shown if active_ns is None else {**shown, "last_active": format_time_ns(active_ns)}
