"""One stream of the model: what it listens to, who consumes it, what its retention removes.

The store keeps the messages and their limits; the stream decides about publishes (`ingest`), interest and work-queue
removal, rollups, TTLs, republishing, and notifies its consumers of what became visible and what is gone.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw

from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.engine.timers import RETRY_NS, Timer
from headrace.errors import HeadraceError, NotInMemory
from headrace.layouts.base import Ticket
from headrace.layouts.stream_store import ConsumerStore, StreamStore
from headrace.streams._kernels import INGEST, Batch, PublishRun
from headrace.streams.consumer.start import Start, start_of
from headrace.streams.sourcing.origins import Origins
from headrace.streams.stream import ingest, republish
from headrace.streams.stream.expiry import Expiry
from headrace.streams.stream.interest import Interest
from headrace.streams.stream.loads import memory_only
from headrace.streams.stream.plan import compile_plan
from headrace.streams.subject_map import SubjectMap, compile_map

if TYPE_CHECKING:
    from headrace.streams.account import JsAccount
    from headrace.streams.consumer.consumer import Consumer
    from headrace.streams.engine import StreamEngine

LOG = logging.getLogger("headrace.streams")
_MAPPED_AT_ONCE = 64
FENCED_NS = 50_000_000
"""How long expired messages wait for a stream that is worked on."""
RECORD_BYTES = 30
"""What a record takes beside its payload."""
LOOK_NS = 1_000_000
"""How often to look whether a store is free again."""
_ROLLED_UP_AT_ONCE = 100
_ROLLED_UP_BYTES = 1 << 20


class Stream:
    """A stream that is served. Made by `JsAccount`."""

    def __init__(self, engine: StreamEngine, account: JsAccount, store: StreamStore) -> None:
        self.engine, self.account, self.store = engine, account, store
        self.name, self.created_ns = store.name, store.created_ns
        self.config: StreamConfig = store.config
        self.shown: dict[bool, tuple[StreamConfig | ConsumerConfig, Raw]] = {}
        """Its configuration as the API shows it."""
        self.in_memory = store.type() == "memory"
        self.consumers: dict[str, Consumer] = {}
        self.id = engine.register_stream(self)
        self._memory = account.dedup_state_of(store)
        self.window, self.marks = self._memory.window, self._memory.marks
        self.producers = self.marks.producers
        self.expiry = Expiry(self)
        self._interest = Interest(self)
        store.expires_itself = not self.config.allow_msg_ttl
        self._listening: list[int] = []
        self._fences = 0
        self._roll_refused = self._removal_prepared = self._front_wanted = False
        self._fenced_runs: list[PublishRun] = []
        self._when_unfenced: list[Callable[[], None]] = []
        self._when_free: deque[Callable[[], object]] = deque()
        self._expiry_timer: Timer | None = None
        self._trimmed = 0
        self.followers: dict[Origins, None] = {}
        """Mirrors of this stream, and streams that have it as a source."""
        self.origins: Origins | None = None
        self.closed = False
        store.before_unlink = self._save_beside
        self._apply_config()
        if self.config.allow_msg_ttl:
            self.expiry.begin()
            self.expiry.read_all()
        self._set_expiry_timer()

    def __repr__(self) -> str:
        return f"<stream {self.name}>"

    # Configuration

    def _apply_config(self) -> None:
        config = self.config
        self.plan = compile_plan(config)
        self._evicts = config.max_msgs > 0 or config.max_bytes > 0
        self.window.set_span(config.duplicate_window)
        domain = self.account.domain
        self._head = b'{"stream":"' + self.name.encode() + b'"'
        self._tail = b',"domain":"' + domain.encode() + b'"}' if domain else b"}"
        self._republish = republish.Republisher.of(config)
        moved = config.subject_transform
        self._transform = compile_map(moved.src, moved.dest) if moved is not None else None
        self.origins = Origins.of(self, self.origins)
        self._listen()
        self._note_interest()

    def _listen(self) -> None:
        exchange, before = self.engine.exchange, self._listening
        self._listening = [
            exchange.listen(self.account.id, subject, INGEST, self.id) for subject in self.config.subjects
        ]
        for token in before:
            exchange.unlisten(token)

    def save_config(self, config: StreamConfig) -> None:
        """A configuration that the rules let pass goes to disk, and the store applies its limits; on whatever thread,
        with publishes fenced. `reconfigured` follows on the loop."""
        self.store.expires_itself = not config.allow_msg_ttl
        self.store.update_config(config)

    def reconfigured(self) -> None:
        """The store has another configuration: do as it says."""
        was_mirror, had_ttls = self.config.mirror is not None, self.config.allow_msg_ttl
        self.config = self.store.config
        if was_mirror and self.config.mirror is None:
            self.marks.promote()
        self._apply_config()
        if self.config.allow_msg_ttl:
            if had_ttls:
                self.expiry.reconfigured()
            else:
                self.expiry.begin()
        self._set_expiry_timer()
        self.recount(moves_on=False)

    # Publishing

    def ingest(self, run: PublishRun) -> None:
        """A run of publishes, in order; while the stream is fenced it waits."""
        if self._fences:
            self._fenced_runs.append(run)
        elif self.is_busy:
            self.fence()
            self._fenced_runs.append(run)
            self.when_free(self.unfence)
        elif (
            not self._roll_refused
            and (free := self.store.free_block_bytes()) is not None
            and free < run.payload_bytes + len(run) * RECORD_BYTES
        ):
            self.fence()
            self._fenced_runs.append(run)
            self.engine.off_loop(self.store.roll_ahead, self._rolled)
        elif (
            self._evicts
            and not self._front_wanted
            and (cold := self.store.cold_front(len(run), run.payload_bytes + len(run) * RECORD_BYTES))
            is not None
        ):
            self.fence()
            self._fenced_runs.append(run)
            self._front_wanted = True  # once for a run: a block that cannot be read is the store's to report
            self.engine.loads.want_block(self.store, cold, self.unfence)
        else:
            self._roll_refused = self._front_wanted = False
            self._ingest(run)

    def _ingest(self, run: PublishRun) -> None:
        if self._transform is None:
            ingest.ingest(self, run)
        elif len(run) <= _MAPPED_AT_ONCE:
            for _ in self._mapped(run, self._transform):
                pass
            ingest.ingest(self, run)
        else:
            self.fence()
            self.engine.do_in_steps(self, self._map_and_ingest(run, self._transform))

    def _rolled(self, result: object) -> None:
        """There is a new block; or the disk refused, and the run that waits gets that answer when it is stored."""
        self._roll_refused = isinstance(result, Exception)
        self.unfence()

    def _map_and_ingest(self, run: PublishRun, transform: SubjectMap) -> Iterator[None]:
        yield from self._mapped(run, transform)
        if not self.closed:
            ingest.ingest(self, run)
        self.unfence()

    def _mapped(self, run: PublishRun, transform: SubjectMap) -> Iterator[None]:
        """Other subjects for the messages of a run, in steps."""
        batch, subjects = run.batch, list[str]()
        for at in range(0, len(batch), _MAPPED_AT_ONCE):
            for record in batch.slice(at, at + _MAPPED_AT_ONCE):
                subjects.append(transform.apply(record.subject) or record.subject)
            yield
        run.resubject(subjects)

    def write(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """Append. Interest retention: what no consumer's filter takes uses up its sequence and nothing else, so that
        it pushes nothing out that somebody wants."""
        store = self.store
        if not self.filters_on_write:
            return store.append_copy(batch, keep_positions=keep_positions)
        first, numbered = store.last_seq + 1, batch
        if not keep_positions:
            numbered = batch.renumbered(array("Q", range(first, first + len(batch))).tobytes())
        wanted = numbered.filter(None, None, None, None, self._filters)
        if len(wanted) == len(batch):
            return store.append_copy(batch, keep_positions=keep_positions)
        if len(wanted):
            store.append_copy(wanted, keep_positions=True)
        if not len(wanted) or wanted.last_position < numbered.last_position:
            store.skip_msg(numbered.last_position)
        return Ticket(store.name, first, numbered.last_position + 1, store.mark)

    def appended(self, ticket: Ticket, batch: Batch) -> None:
        """Messages were written (not durable yet): what the model does with them at once."""
        if self.store.trimmed != self._trimmed:
            self._trimmed = self.store.trimmed
            self.recount(moves_on=False)
        if self._republish is not None:
            self._republish.note(self, ticket.first, batch)

    def stored(self, run: PublishRun | None) -> None:
        """The messages of a run are durable: answer, and let consumers see them."""
        engine = self.engine
        if run is not None:
            engine.exchange.answer(run, self._head, self._tail)
            if engine.alone:
                # Before consumers are served. Without any it neither pays nor costs (44 us a publish, 43 without).
                engine.host.send_early()
        if self._republish is not None:
            self._republish.send(self)
        if self.consumers:
            if self.is_busy:
                self.when_free(self._show_new)
            else:
                self._show_new()
        for follower in self.followers:
            follower.wake()
        if self.config.allow_msg_ttl:
            self.expiry.stored(engine.clock())
            self._set_expiry_timer()

    def _show_new(self) -> None:
        first = self.store.first_seq
        for consumer in self.consumers.values():
            consumer.removed_below(first)  # limits may have taken the oldest messages
            consumer.on_new()

    def answer(self, run: PublishRun) -> None:
        """Say what the verdicts of a run are."""
        self.engine.exchange.answer(run, self._head, self._tail)

    @property
    def visible(self) -> int | None:
        """Nothing at or above this sequence may leave yet; None where nobody promised that it is on disk."""
        if self.store.durability != "sync" or self.in_memory:
            return None
        return self.store.durable_next

    @property
    def republishes(self) -> bool:
        """Whether stored messages go out again."""
        return self._republish is not None

    def mark(self) -> int:
        """Everything written so far, for `Engine.after`."""
        return self.store.mark

    def rolled_up(self, subject: str, sequence: int) -> None:
        """A rollup was stored: what is older (on the subject, or at all) goes. A few messages go at once and are durable
        with the rollup; many go off the loop, and publishes wait for that."""
        if subject and not self.store.removal_needs_sync:
            older = self.store.read(1, _ROLLED_UP_AT_ONCE + 1, _ROLLED_UP_BYTES, subject).positions()
            older = [each for each in older if each < sequence]
            if (
                len(older) <= _ROLLED_UP_AT_ONCE
                and self.store.filtered_state(0, subject).msgs <= len(older) + 1
            ):
                if older:
                    self.store.remove(older)
                    self.removed(older)
                return

        def work() -> None:
            if subject:
                self.store.purge_ex(subject, sequence, 0)
            else:
                self.store.compact(sequence)

        def done(result: object) -> None:
            if isinstance(result, Exception):
                LOG.warning("messages of %r below a rollup are still there: %s", self, result)
            self.recount(subject)
            self.unfence()

        self.fence()
        self.engine.off_loop(work, done)

    # Consumers and interest

    def make_consumer(self, name: str, config: ConsumerConfig) -> tuple[ConsumerStore, Start]:
        """The files of a new consumer (its configuration passed the rules); on whatever thread."""
        start = start_of(config, self.store)
        after = max(start.first - 1, 0)
        made = self.store.consumers.create(name, config, self.engine.clock(), start_after=after)
        return made, start

    def add_consumer(self, store: ConsumerStore, start: Start | None = None) -> Consumer:
        """Serve a consumer that was there (`start` is None), or was made just now."""
        from headrace.streams.consumer.consumer import Consumer

        consumer = Consumer(self, store, start)
        self.consumers[store.name] = consumer
        self._note_interest()
        return consumer

    def consumer_gone(self, consumer: Consumer) -> None:
        """A consumer was deleted: what only it still wanted is freed."""
        if self.consumers.pop(consumer.name, None) is not None:
            self._note_interest()
            if self.config.retention == "interest" and not self.closed:
                self._interest.consumer_gone(consumer)

    def filters_changed(self) -> None:
        """A consumer takes other subjects now."""
        self._note_interest()

    def _note_interest(self) -> None:
        wanted: list[Sequence[str]] = []
        if self.config.retention == "interest":
            wanted = [consumer.filters for consumer in self.consumers.values()]
        self.filters_on_write = bool(wanted) and all(wanted)
        self._filters = [each for some in wanted for each in some] if self.filters_on_write else []
        self._interest.changed()
        self.nobody_interested = self.config.retention == "interest" and not self.consumers
        self.stores_all = not (self.filters_on_write or self.nobody_interested or self.republishes)
        """Every message is stored, and that is all that happens to it."""

    def acked(self, consumer: Consumer, sequences: Sequence[int]) -> None:
        """Messages that a consumer is done with: on work-queue and interest streams they may go."""
        if self.config.retention == "limits" or not sequences:
            return
        if self.config.retention != "interest" or not self._interest.beside(consumer):
            self.remove_acked(sequences)
            return
        try:
            with memory_only():
                batch = self.store.load_msgs(sequences)
        except NotInMemory:
            self.engine.off_loop(
                partial(self.store.load_msgs, sequences), partial(self._remove_unwanted, consumer, sequences)
            )
        else:
            self._remove_unwanted(consumer, sequences, batch)

    def _remove_unwanted(self, consumer: Consumer, sequences: Sequence[int], batch: object) -> None:
        """Of messages that a consumer is done with, those that no other one wants go."""
        if self.closed:
            return
        if not isinstance(batch, Batch):
            LOG.warning("acknowledged messages of %r are still there: %s", self, batch)
            return
        gone = sequences
        for other in self._interest.beside(consumer):
            gone = other.done_with(gone, batch)
        if gone:
            self.remove_acked(gone)

    def remove_acked(self, gone: Sequence[int]) -> None:
        """Messages go; off the loop where that takes a sync first, or a block that is not in memory."""
        if not self.store.removal_needs_sync:
            try:
                with memory_only():
                    self.store.remove(gone)
                return
            except NotInMemory:
                pass  # nothing was changed

        def done(result: object) -> None:
            if isinstance(result, Exception):
                LOG.warning("acked messages of %r are still there: %s", self, result)
            self.unfence()

        self.fence()
        self.engine.off_loop(partial(self.store.remove, gone), done)

    def remove_acked_at_start(self) -> None:
        """Remove what every consumer is done with, at start: after a crash it may still be there."""
        self._interest.free_at_start()

    # What goes

    def purge(self, subject: str = "", seq: int = 0, keep: int = 0) -> int:
        """Remove by filter, below a sequence, or all but the newest."""
        if subject or seq or keep:
            purged = self.store.purge_ex(subject, seq, keep)
        else:
            purged = self.store.purge()
        self.recount(subject)
        return purged

    def removed(self, sequences: Sequence[int]) -> None:
        """Single messages are gone: pending and floors follow."""
        for consumer in self.consumers.values():
            consumer.removed(sequences)

    def recount(self, purged: str = "", *, moves_on: bool = True) -> None:
        """Many messages went: consumers look at the store again; after a purge (of a subject) they go on behind it."""
        for consumer in self.consumers.values():
            consumer.recount(purged, moves_on=moves_on)

    # Time

    def _set_expiry_timer(self) -> None:
        due = self.expiry.next_ns() if self.config.allow_msg_ttl else None
        if due is None:
            return
        at_ns = self.engine.now() + max(due - self.engine.clock(), 0)
        if self._expiry_timer is not None:
            if self._expiry_timer.at_ns <= at_ns:
                return
            self._expiry_timer.cancel()
        self._expiry_timer = self.engine.timers.at(at_ns, self._expire)

    def _expire(self) -> None:
        self._expiry_timer = None
        if self.closed or not self.config.allow_msg_ttl:
            return
        self.engine.do_in_steps(("expiry", self), self._expire_some())

    def _expire_some(self) -> Iterator[None]:
        """Remove what is due, a bit per step."""
        while not self.closed and self.config.allow_msg_ttl:
            due = self.expiry.next_ns()
            if due is None or due > self.engine.clock():
                self._set_expiry_timer()
                return
            if self.fenced or self.is_busy:
                self._expiry_timer = self.engine.timers.at(self.engine.now() + FENCED_NS, self._expire)
                return
            if self.store.removal_needs_sync and not self._removal_prepared:
                self._removal_prepared = True  # a full disk refuses it, and messages expire all the same
                self.fence()
                self.engine.off_loop(self.store.prepare_removal, lambda _: self.unfence())
                continue
            self._removal_prepared = False
            try:
                self.expiry.run(self.engine.clock())
            except HeadraceError as problem:
                LOG.warning("messages of %r stay longer than they should: %s", self, problem)
                self._expiry_timer = self.engine.timers.at(self.engine.now() + RETRY_NS, self._expire)
                return
            yield

    # Life

    @property
    def is_busy(self) -> bool:
        """Somebody works on the store off the loop: who touched it now would wait for that."""
        return self.store.is_busy

    def when_free(self, act: Callable[[], object]) -> None:
        """Call `act` soon, when nobody works on the store off the loop."""
        if not self._when_free:
            self.engine.timers.at(self.engine.now() + LOOK_NS, self._look_if_free)
        self._when_free.append(act)

    def _look_if_free(self) -> None:
        waiting, self._when_free = self._when_free, deque()
        while waiting:
            if not self.closed and self.is_busy:
                self._when_free.extendleft(reversed(waiting))
                self.engine.timers.at(self.engine.now() + LOOK_NS, self._look_if_free)
                return
            waiting.popleft()()

    def fence(self) -> None:
        """Publishes wait until `unfence`, called as often: something slow works on the stream off the loop."""
        self._fences += 1

    @property
    def fenced(self) -> bool:
        """Nothing may be stored now."""
        return self._fences > 0

    def when_unfenced(self, act: Callable[[], None]) -> None:
        """Call `act` when nothing works on the stream off the loop: now, or later."""
        if self._fences:
            self._when_unfenced.append(act)
        else:
            act()

    def unfence(self) -> None:
        """Take what waited, unless somebody else is still at work."""
        self._fences -= 1
        if self._fences or self.closed:
            return
        answers, self._when_unfenced = self._when_unfenced, []
        for answer in answers:
            answer()
        waiting, self._fenced_runs = self._fenced_runs, []
        if self.origins is not None:
            self.origins.wake()
        for at, run in enumerate(waiting):
            if self._fences:  # one of them needed a fence of its own: the others come behind it
                self._fenced_runs += waiting[at:]
                return
            self.ingest(run)

    def _save_beside(self) -> None:
        self._memory.save()
        if self.origins is not None:
            self.origins.save()

    def stop(self) -> None:
        """Listen no more, and save what is not in the messages; the volume closes the store."""
        if not self.closed:
            self.leave()
            self.save()

    def leave(self, *, deleted: bool = False) -> None:
        """Listen no more; waiting pulls are answered with the reason."""
        self.closed = True
        for consumer in list(self.consumers.values()):
            consumer.gone() if deleted else consumer.stop()
        if deleted:
            self.consumers.clear()
        for token in self._listening:
            self.engine.exchange.unlisten(token)
        self.engine.unregister(self.id)
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        if self.origins is not None:
            self.origins.stop()

    def save(self) -> None:
        """What is not in the messages, for the next start; on whatever thread, after `leave`."""
        self._memory.save_all()
        if self.origins is not None:
            self.origins.save()
