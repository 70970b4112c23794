"""One consumer of the model: what it was given, what it acked, and when it gets more.

    on_acks   a run of acknowledgements ─→ ledger; on work queues the stream removes what is acked
    on_pulls  a run of requests         ─→ waiting (pull.py)
    on_new    the stream has more       ─┐
    timers    something is due          ─┴→ engine.wake ─→ deliver: Position.choose, then push or pull sends

How messages leave is the delivery's (push.py, pull.py). What must survive a crash is in the ledger's
journal: written at the latest a quarter second later, at once where somebody waits for a double ack, and before a
message that was acked is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.engine.timers import Timer
from headrace.errors import HeadraceError
from headrace.layouts.base import ConsumerState
from headrace.layouts.stream_store import ConsumerStore
from headrace.randomness import sample_below
from headrace.streams._kernels import AckRun, Batch, Ledger, LedgerPosition, PullRun, subject_matches
from headrace.streams.api.advisories import Advisories
from headrace.streams.consumer import life as consumer_life
from headrace.streams.consumer.acks import nak_delay_ns, next_request, term_reason
from headrace.streams.consumer.next_run import Position, SkipList, Why
from headrace.streams.consumer.pending import Count, PendingCount, count
from headrace.streams.consumer.pull import PullDelivery
from headrace.streams.consumer.pull_requests import SERVER_SHUTDOWN
from headrace.streams.consumer.push import PushDelivery
from headrace.streams.consumer.replay import Replay
from headrace.streams.consumer.start import Start, front_after_purge
from headrace.units import format_time_ns

if TYPE_CHECKING:
    from headrace.streams.stream.stream import Stream

LOG = logging.getLogger("headrace.streams")
# What one consumer may send in one turn: others want their turn too.
TURN_BYTES = 1 << 20
FLUSH_EVERY_NS = 250_000_000
FLUSH_BYTES = 64 << 10
DELETED = "Unacknowledged message was deleted"


class Consumer:
    """A consumer that is served. Made by `Stream.add_consumer`."""

    def __init__(self, stream: Stream, store: ConsumerStore, start: Start | None = None) -> None:
        """`start` is where a new one begins; one that was there before goes on where it stood."""
        self.stream, self.store, self.engine = stream, store, stream.engine
        self.name, self.created_ns = store.name, store.created_ns
        self.config: ConsumerConfig = store.config
        self.shown: dict[bool, tuple[StreamConfig | ConsumerConfig, Raw]] = {}
        """Its configuration as the API shows it."""
        self.filters: tuple[str, ...] = self.config.filters
        self.ledger: Ledger = store.ledger()
        self.closed = self.stalled = False
        self.last_delivered_ns: int | None = None
        self.last_acked_ns: int | None = None
        # Pending messages carry wall times, deadlines are kept on the monotonic clock: a step of the wall clock
        # must not redeliver everything.
        self.wall_offset = self.engine.clock() - self.engine.now()
        self.acked_at = self.engine.now()
        self.pending = PendingCount(self)
        self._loading = False
        self._loaded_last: int = -1
        self._first = 0
        self._held_acks: list[AckRun] = []
        """Acknowledgements that wait until the store is free."""
        self._timer: Timer | None = None
        self._flush_at: int | None = None
        self.position = self._find_position(start)
        if start is None:
            self.recount(moves_on=False)
        self.start_seq = self.config.opt_start_seq or self.position.next_seq
        self._apply_config()
        if start is not None and start.counted is not None:
            self.pending.take_first(start.counted)
        self.id = self.engine.register_consumer(self)
        if self.config.ack_policy != "none":
            # Without acks nobody listens for them: who asks for an answer hears that there are no responders.
            self.engine.exchange.take_acks(stream.account.id, stream.name, self.name, self.id)
        self.delivery = PushDelivery(self) if self.config.deliver_subject else PullDelivery(self)
        self.delivery.start()
        self._schedule(self.engine.now())
        self.engine.wake(self)  # somebody may listen already

    def __repr__(self) -> str:
        return f"<consumer {self.stream.name}/{self.name}>"

    def _find_position(self, start: Start | None) -> Position:
        last = self.stream.store.last_seq
        self.replay = Replay(last) if self.config.replay_policy == "original" else None
        if start is None:
            return Position(self.ledger.delivered.stream + 1)
        return Position(start.first, skip_list=start.skip_list, resume=start.resume)

    def _apply_config(self) -> None:
        config = self.config
        self.filters = config.filters
        self.position.filters = list(config.filters)
        self.position.max_ack_pending = config.max_ack_pending if config.ack_policy != "none" else -1
        self.sample_percent = int(config.sample_freq.removesuffix("%") or 0)
        self.pause_until_ns = consumer_life.pause_end(config)
        self.ack_prefix = f"$JS.ACK.{self.stream.name}.{self.name}.".encode()
        self.pending.changed()

    # Delivering

    @property
    def visible(self) -> int | None:
        """Nothing at or above this sequence may leave yet; None where nobody promised that it is on disk."""
        store = self.stream.store
        if store.durability != "sync" or self.stream.in_memory:
            return None
        return store.durable_next

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
        if self.stream.is_busy:
            self.stream.when_free(partial(self.engine.wake, self))
            return
        first = self.stream.store.first_seq
        if first > self._first:
            self.removed_below(first)  # age takes messages while nobody publishes
        self.ledger.expire(now + self.wall_offset)
        self.delivery.tick(now)
        if self.pause_until_ns is not None and consumer_life.is_paused(self, now):
            self.delivery.at_end(now)
        else:
            self._send(now)
        if self.config.max_deliver > 0:
            self._report_exceeded()
        self._schedule(now)

    def _send(self, now: int) -> None:
        """The one way by which messages leave: what is wanted, what comes next, send it, record it."""
        delivery, position, ledger, store = self.delivery, self.position, self.ledger, self.stream.store
        below, left = self.visible, TURN_BYTES
        end = store.last_seq + 1 if below is None else below
        self.stalled = False
        if delivery.ready and not self.pending.known(end):
            self.pending.count_later(end)
            if not self.pending.known(end):
                return
        while wanted := delivery.wants(now):
            batch = position.choose(ledger, store, wanted, delivery.bytes_wanted, below)
            if position.gone:
                ledger.removed(list(position.gone))
            if not len(batch):
                position.passed(0)
                if self._nothing_to_send(position.why, now):
                    return
                continue
            again = position.why is Why.AGAIN
            if (
                self.replay is not None
                and not again
                and not len(batch := self._paced(self.replay, batch, now))
            ):
                return
            taken, size = delivery.send(batch, again, self.pending.below(end), now)
            position.passed(taken)
            if 0 < position.ahead <= position.next_seq:
                self._read_ahead()
            if taken:
                self._sent(batch, taken, again, now)
            left -= size
            if left <= 0:
                self.engine.wake(self)
                return

    def _nothing_to_send(self, why: Why, now: int) -> bool:
        """Whether that is all for this turn."""
        if why is Why.STALLED:
            self.stalled = True
        elif why is Why.END:
            self.delivery.at_end(now)
        elif why is Why.COLD:
            self._load()
            return self._loading
        else:
            return False
        return True

    def _load(self) -> None:
        """What comes next is to be read from disk; if that is the block behind the last one, so is the one behind it."""
        position, store = self.position, self.stream.store
        if self._loading or (place := store.block_of(position.cold)) is None:
            return
        in_order = place.number == self._loaded_last + 1 and not position.filters
        position.ahead = place.first if in_order and not position.skip_list else 0
        self._loading, self._loaded_last = True, place.number
        self.stream.engine.loads.want(store, position.cold, self._loaded, position.filters)

    def _loaded(self) -> None:
        self._loading = False
        self.wake()

    def wake(self) -> None:
        """Have messages delivered, if there are any."""
        if not self.closed:
            self.engine.wake(self)

    def _read_ahead(self) -> None:
        """A block was begun that had been read ahead: read the next one."""
        position, store = self.position, self.stream.store
        here = store.block_of(position.next_seq)
        following = store.block_of(here.last + 1) if here is not None else None
        if following is None or following.first <= position.next_seq:
            position.ahead = 0
            return
        self.engine.loads.passed(store, self._loaded_last - 1)
        position.ahead, self._loaded_last = following.first, following.number
        self.engine.loads.ahead(store, following.number)

    def _paced(self, replay: Replay, batch: Batch, now: int) -> Batch:
        """Replay `original`: the part of the messages whose time has come."""
        if batch.first_position > replay.last_seq:
            self.replay = None
            return batch
        return self.position.shorten(replay.allowed(batch.times()[: self.delivery.paced_msgs], now))

    def _sent(self, batch: Batch, taken: int, again: bool, now: int) -> None:
        self.last_delivered_ns = now + self.wall_offset
        if not again:
            self.pending.sent(taken)
        if self.config.ack_policy == "none" and self.stream.config.retention != "limits":
            self.on_acked(batch.positions()[:taken])

    def _report_exceeded(self) -> None:
        for seq, deliveries in self.ledger.take_exceeded():
            self.advisories.max_deliveries(self.stream.account, self.stream.name, self.name, seq, deliveries)

    # Acknowledgements

    def on_acks(self, run: AckRun) -> None:
        """A run of acknowledgements, in order."""
        if self.closed:
            return
        if self._held_acks or (self.stream.config.retention != "limits" and self.stream.is_busy):
            if not self._held_acks:
                self.stream.when_free(self._take_held_acks)
            self._held_acks.append(run)
            return
        self._take_acks(run)

    def _take_held_acks(self) -> None:
        held, self._held_acks = self._held_acks, []
        for run in held:
            self.on_acks(run)

    def _take_acks(self, run: AckRun) -> None:
        now = self.engine.now()
        wall, ledger, self.acked_at = now + self.wall_offset, self.ledger, now
        wanted = self.stream.config.retention != "limits"
        delivered = ledger.delivered.stream
        gone: list[int] = []
        at, count = 0, len(run)
        while at < count:
            if not self.sample_percent:
                at, done, acked = ledger.apply(run, at, wall, wanted)
                if done:
                    self.last_acked_ns = wall
                if acked:
                    gone += acked
                if at >= count:
                    break
            gone += self._one_ack(run, at, wall)
            at += 1
        if gone and wanted:
            self.on_acked(gone)
        if run.has_replies:
            self._confirm(run, delivered)
        if self.stalled or ledger.num_due:
            self.engine.wake(self)
        elif self._flush_at is None or ledger.changes_len > FLUSH_BYTES:
            self._schedule(now)

    def _one_ack(self, run: AckRun, at: int, wall: int) -> list[int]:
        """An acknowledgement that is more than bookkeeping; returns what it acked."""
        kind, deliveries, seq, consumer_seq, body, reply = run.item(at)
        where = (self.stream.account, self.stream.name, self.name, consumer_seq, seq)
        if kind in ("ack", "next", "term"):
            self.last_acked_ns = wall
        if kind in ("ack", "next"):
            if self.sample_percent:
                self._sample(seq, consumer_seq, deliveries, wall)
            acked = self.ledger.ack(seq, consumer_seq)
            if kind == "next" and reply is not None:
                self.delivery.request(reply, next_request(body))
                self.engine.wake(self)
            return acked
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
        chosen = self.sample_percent >= 100 or sample_below(100) < self.sample_percent
        if known is not None and chosen and self.config.ack_policy == "explicit":
            where = (self.stream.account, self.stream.name, self.name)
            self.advisories.ack_sampled(*where, consumer_seq, seq, wall - known.time_ns, deliveries)

    def on_acked(self, sequences: Sequence[int]) -> None:
        """The stream may let go of these: the journal says so first, for every consumer that had a say."""
        self.flush(all_consumers=self.stream.config.retention == "interest")
        self.stream.acked(self, sequences)

    def _confirm(self, run: AckRun, delivered: int) -> None:
        """Double acks of what was delivered are answered when they are on disk; nothing else of them is."""
        stream = self.stream
        answer = partial(self.engine.exchange.confirm, stream.account.id, run, delivered)
        if not self.engine.sync_needed:
            self.flush()  # mode `interval`: what was said outlives the process
        if self.config.mem_storage:  # the removal is all that stays, on streams that remove what is acked
            now = stream.in_memory or stream.config.retention == "limits"
            stream.when_unfenced(lambda: self.engine.after(stream.store, stream.mark(), answer, now=now))
        else:
            self.engine.after(self.store.journal, self.store.mark(), answer, now=stream.in_memory)

    # What the stream reports

    def removed(self, sequences: Sequence[int]) -> None:
        """Single messages are gone."""
        pending = self.ledger.removed(list(sequences))
        for seq, consumer_seq, deliveries in pending:
            where = (self.stream.account, self.stream.name, self.name, consumer_seq, seq)
            self.advisories.terminated(*where, deliveries, DELETED)
        if (sequences and max(sequences) >= self.position.next_seq) or self.position.skip_list:
            self.pending.changed()
        if pending:
            self.last_acked_ns = self.engine.clock()
            self.engine.wake(self)

    def removed_below(self, first: int) -> None:
        """Limits took everything below."""
        if first <= self._first:
            return
        self._first = first
        if first > self.position.next_seq:
            self.pending.changed()
        if self.ledger.removed_below(first, False):
            self.engine.wake(self)

    def _follow_front(self) -> None:
        """Age takes messages while nobody publishes."""
        self.removed_below(self.stream.store.first_seq)

    def recount(self, purged: str = "", *, moves_on: bool = True) -> None:
        """Many messages went (a purge, or a limit per subject): look which pending ones are still there."""
        store, ledger = self.stream.store, self.ledger
        unacked = ledger.unacked()
        if unacked:
            gone = sorted(set(unacked).difference(store.live_among(unacked)))
            ledger.removed(gone)
        front = front_after_purge(self.filters, purged, store) if moves_on else store.first_seq
        if ledger.removed_below(front, moves_on) or unacked:
            self.last_acked_ns = self.engine.clock()
            self.engine.wake(self)
        self.pending.changed()
        self.position.next_seq = max(self.position.next_seq, ledger.delivered.stream + 1)

    def done_with(self, sequences: Sequence[int], batch: Batch) -> list[int]:
        """Those that this consumer has no more use for: acked, or not for it at all. The batch has their messages."""
        if self.closed:
            return list(sequences)
        acked = self.ledger.acked_among(list(sequences))
        delivered = self.ledger.delivered.stream
        ahead = [seq for seq in sequences if seq > delivered]
        if not ahead or not self.filters:
            return acked
        wanted = batch.filter(None, None, None, None, list(self.filters)).positions()
        return sorted([*acked, *set(ahead).difference(wanted)])

    def takes(self, subject: str) -> bool:
        """Whether messages on a subject are for this consumer."""
        return not self.filters or any(subject_matches(each, subject) for each in self.filters)

    # Counts

    def num_pending(self) -> int:
        """Messages for this consumer that were never delivered."""
        return self.pending.below(self.end)

    @property
    def end(self) -> int:
        """The end of what may be seen."""
        return self.visible or self.stream.store.last_seq + 1

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

    def count_with(self, config: ConsumerConfig) -> Callable[[], Count] | None:
        """What counts what would wait for it with other filters, on whatever thread; None where that is quick."""
        if not config.filters or config.filters == self.config.filters or self.position.skip_list:
            return None
        first = max(self.ledger.delivered.stream + 1, self._first)
        return partial(count, self.stream.store, first, self.end, config.filters)

    def updated(self, config: ConsumerConfig) -> None:
        """Another configuration (it passed the rules, and is on disk). The position stays."""
        before = self.config
        self.store.apply_config(config)
        self.config = config
        self._apply_config()
        if before.filters != config.filters:
            self.position.next_seq = max(self.ledger.delivered.stream + 1, self._first)
            self.stream.filters_changed()
        self.delivery.reconfigured(before)
        self.engine.wake(self)

    def paused(self, config: ConsumerConfig) -> None:
        """The same configuration with another `pause_until`; it is on disk."""
        self.store.apply_config(config)
        self.config = config
        self.pause_until_ns = consumer_life.pause_end(config)
        self.engine.wake(self)

    def unpin(self, group: str) -> None:
        """The pinned client of a priority group makes room."""
        self.delivery.unpin(group)
        self.engine.wake(self)

    def reset(self, seq: int | None = None) -> int:
        """Deliver again from a sequence on, by default from behind the ack floor; returns it. Durable at `store.mark()`."""
        first = seq if seq is not None else self.ledger.floor.stream + 1
        self.store.reset(first - 1)
        self.position.next_seq = first
        self.pending.changed()
        self.position.skip_list = SkipList()
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

    def flush(self, *, all_consumers: bool = False) -> None:
        """What the ledger noted (or those of all consumers of the stream) into the journal."""
        self._flush_at = None
        try:
            if all_consumers:
                self.stream.store.consumers.flush()
            else:
                self.store.flush()
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
        else:
            self._flush_at = None  # somebody else wrote them: a checkpoint, another consumer's double ack
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

    def stop(self, status: str = SERVER_SHUTDOWN) -> None:
        """The server stops: waiting requests are answered, the state is kept. Without a status the consumer goes."""
        if not self.closed:
            self.delivery.stop(status)
            self._leave()

    def release(self, conn: int) -> None:
        """A client is sent away while the server goes on: its waiting requests are answered."""
        if not self.closed:
            self.delivery.release(conn)

    def gone(self) -> None:
        """The stream is deleted: waiting requests are answered."""
        self.stop("")

    def delete(self) -> Callable[[], None]:
        """The consumer is served no more, waiting requests are answered; what is returned removes its files, on whatever
        thread."""
        self.gone()
        self.stream.consumer_gone(self)
        return self.store.delete

    def _leave(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.engine.exchange.leave_acks(self.stream.account.id, self.stream.name, self.name)
        self.engine.unregister(self.id)


def _pair(reached: LedgerPosition, active_ns: int | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"consumer_seq": reached.consumer, "stream_seq": reached.stream}
    return shown if active_ns is None else {**shown, "last_active": format_time_ns(active_ns)}
