"""One stream of the model: what it listens to, who consumes it, what its retention removes.

The store keeps the messages and their limits; the stream decides about publishes (`ingest`), interest and work-queue
removal, rollups, TTLs, republishing, and tells its consumers what became visible and what is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from headrace.layouts.base import Ticket
from headrace.layouts.jetstream.config import ConsumerConfig, StreamConfig
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.streams import ingest, republish
from headrace.streams._kernels import INGEST, Batch, PublishRun, subject_matches
from headrace.streams.origins import Origins
from headrace.streams.plan import compile_plan
from headrace.streams.subject_map import compile_map
from headrace.streams.timers import Timer
from headrace.streams.ttl import Ttls

if TYPE_CHECKING:
    from headrace.streams.account import JsAccount
    from headrace.streams.consumer import Consumer
    from headrace.streams.engine import Engine

_REMOVE_AT_ONCE = 65_536


class Stream:
    """A stream that is served. Made by `JsAccount`."""

    def __init__(self, engine: Engine, account: JsAccount, store: FileStreamStore) -> None:
        self.engine, self.account, self.store = engine, account, store
        self.name, self.created_ns = store.name, store.created_ns
        self.config: StreamConfig = store.config
        self.in_memory = store.type() == "memory"
        self.consumers: dict[str, Consumer] = {}
        self.id = engine.register(self)
        self._memory = account.memory_of(store)
        self.window, self.marks = self._memory.window, self._memory.marks
        self.producers = self.marks.producers
        self.ttls = Ttls()
        if self.config.allow_msg_ttl:
            self.ttls.load(store)
        self._listening: list[int] = []
        self._fence: list[PublishRun] | None = None
        self._ttl_timer: Timer | None = None
        self._trimmed = 0
        self.followers: dict[Origins, None] = {}
        """Mirrors of this stream, and streams that have it as a source."""
        self.origins: Origins | None = None
        self.closed = False
        store.before_unlink = self._save_beside
        self._apply_config()
        self._set_ttl_timer()

    def __repr__(self) -> str:
        return f"<stream {self.name}>"

    # Configuration

    def _apply_config(self) -> None:
        config = self.config
        self.plan = compile_plan(config)
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

    def reconfigure(self, config: StreamConfig) -> None:
        """Take a configuration that the rules let pass; limits apply at once."""
        was_mirror = self.config.mirror is not None
        self.store.update_config(config)
        self.config = self.store.config
        if was_mirror and self.config.mirror is None:
            self.marks.promote()
        if self.config.allow_msg_ttl and not len(self.ttls):
            self.ttls.load(self.store)
        self._apply_config()
        self._set_ttl_timer()
        self.recount(moves_on=False)

    # Publishing

    def ingest(self, run: PublishRun) -> None:
        """A run of publishes, in order; while the stream is fenced it waits."""
        if self._fence is not None:
            self._fence.append(run)
            return
        if self._transform is not None:
            subjects = [record.subject for record in run.batch]
            run.resubject([self._transform.apply(each) or each for each in subjects])
        ingest.ingest(self, run)

    def write(self, batch: Batch, *, keep_positions: bool = False) -> Ticket:
        """Append. Interest retention: what no consumer's filter takes uses up its sequence and nothing else, so that
        it pushes nothing out that somebody wants."""
        store = self.store
        if not self.picky or len(batch.filter(None, None, None, None, self._filters)) == len(batch):
            return store.append(batch, keep_positions=keep_positions)
        first = store.log.totals()[2] + 1
        wanted = [self._is_wanted(record.subject) for record in batch]
        for keep, group in groupby(range(len(batch)), wanted.__getitem__):
            part = list(group)
            if keep:
                store.append(batch.slice(part[0], part[-1] + 1), keep_positions=keep_positions)
            else:
                last = store.log.totals()[2] + len(part)
                store.skip_msg(batch[part[-1]].position if keep_positions else last)
        return Ticket(store.name, first, first + len(batch), store.log.totals()[3])

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
                engine.send_early()
        if self._republish is not None:
            self._republish.send(self)
        if self.consumers:
            first = self.store.log.first_seq()
            for consumer in self.consumers.values():
                consumer.removed_below(first)  # limits may have taken the oldest messages
                consumer.on_new()
        for follower in self.followers:
            follower.wake()
        if self.ttls:
            self._set_ttl_timer()

    def answer(self, run: PublishRun) -> None:
        """Say what the verdicts of a run are."""
        self.engine.exchange.answer(run, self._head, self._tail)

    def ack_body(self, sequence: int, *, duplicate: bool = False) -> bytes:
        """One answer to a publish."""
        middle = b',"duplicate": true' if duplicate else b""
        return self._head + b',"seq":' + str(sequence).encode() + middle + self._tail

    @property
    def visible(self) -> int | None:
        """Nothing at or above this sequence may leave yet; None where nobody promised that it is on disk."""
        if self.store.durability != "sync" or self.in_memory:
            return None
        return self.store.log.durable()[1] + 1

    @property
    def republishes(self) -> bool:
        """Whether stored messages go out again."""
        return self._republish is not None

    def mark(self) -> int:
        """Everything written so far, for `Engine.after`."""
        return self.store.log.totals()[3]

    def rolled_up(self, subject: str, sequence: int) -> None:
        """A rollup was stored: what is older (on the subject, or at all) goes."""
        if subject:
            self.store.purge_ex(subject, sequence, 0)
        else:
            self.store.compact(sequence)
        self.recount(subject)

    # Consumers and interest

    def add_consumer(self, name: str, config: ConsumerConfig) -> Consumer:
        """A new consumer (its configuration passed the rules)."""
        from headrace.streams.consumer import Consumer

        store = self.store.consumers.open(name, config, self.engine.clock())
        consumer = Consumer(self, store)
        self.consumers[name] = consumer
        self._note_interest()
        return consumer

    def consumer_gone(self, consumer: Consumer) -> None:
        """A consumer was deleted: what only it still wanted is freed."""
        if self.consumers.pop(consumer.name, None) is not None:
            self._note_interest()
            if self.config.retention == "interest" and not self.closed:
                self.free_settled()

    def filters_changed(self) -> None:
        """A consumer takes other subjects now."""
        self._note_interest()

    def _note_interest(self) -> None:
        filters = [consumer.filters for consumer in self.consumers.values()]
        self.picky = self.config.retention == "interest" and bool(filters) and all(filters)
        self._filters = [each for some in filters for each in some]
        self.nobody_interested = self.config.retention == "interest" and not self.consumers
        self.unselective = not (self.picky or self.nobody_interested or self.republishes)
        """Every message is stored, and that is all that happens to it."""

    def _is_wanted(self, subject: str) -> bool:
        return any(subject_matches(each, subject) for each in self._filters)

    def acked(self, consumer: Consumer, sequences: Sequence[int]) -> None:
        """Messages that a consumer is done with: on work-queue and interest streams they may go."""
        if self.config.retention == "limits" or not sequences:
            return
        gone: Sequence[int] = sequences
        if self.config.retention == "interest":
            for other in self.consumers.values():
                if other is not consumer:
                    gone = other.settled_of(gone)
        if gone:
            self.store.remove(gone)

    def free_settled(self) -> None:
        """Remove what every consumer is done with (after a crash, or when a consumer went)."""
        if self.config.retention == "limits":
            return
        if not self.consumers:
            if self.config.retention == "interest" and self.store.log.totals()[0]:
                self.store.purge()
            return
        position = 1
        while len(batch := self.store.read(position, _REMOVE_AT_ONCE)):
            position = batch.last_position + 1
            gone: Sequence[int] = batch.positions()
            for consumer in self.consumers.values():
                gone = consumer.settled_of(gone)
            if self.config.retention == "workqueue" and gone:
                gone = [seq for seq in gone if self._was_delivered(seq)]
            if gone:
                self.store.remove(gone)

    def _was_delivered(self, sequence: int) -> bool:
        """Work queue: a message that no consumer's filter takes waits for one that does."""
        record = self.store.load_msg(sequence)
        return any(consumer.takes(record.subject) for consumer in self.consumers.values())

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

    def _set_ttl_timer(self) -> None:
        due = self.ttls.next_ns()
        if due is None or self._ttl_timer is not None:
            return
        wait = max(due - self.engine.clock(), 0)
        self._ttl_timer = self.engine.timers.at(self.engine.now() + wait, self._expire_ttls)

    def _expire_ttls(self) -> None:
        self._ttl_timer = None
        if self.closed:
            return
        due = self.ttls.take_due(self.engine.clock())
        live = [seq for seq in due if self.store.log.has(seq)]
        if live:
            markers = self._markers_for(live)
            self.store.remove(live)
            self.removed(live)
            for subject in markers:
                self._store_marker(subject, "MaxAge")
        self._set_ttl_timer()

    def _markers_for(self, sequences: list[int]) -> list[str]:
        """Subjects whose last message goes, where the stream keeps markers of that."""
        if not self.config.subject_delete_marker_ttl:
            return []
        going = set(sequences)
        found: list[str] = []
        for seq in sequences:
            record = self.store.load_msg(seq)
            is_marker = record.headers is not None and b"Nats-Marker-Reason" in record.headers
            if not is_marker and self.store.load_last_msg(record.subject).seq in going:
                found.append(record.subject)
        return list(dict.fromkeys(found))

    def _store_marker(self, subject: str, reason: str) -> None:
        ttl_ns = self.config.subject_delete_marker_ttl
        seconds = f"{ttl_ns // 10**9}s"
        text = f"NATS/1.0\r\nNats-Marker-Reason: {reason}\r\nNats-TTL: {seconds}\r\nNats-Rollup: sub\r\n\r\n"
        batch = Batch.build(subject, [b""], [text.encode()])
        ticket = self.store.append(batch)
        self.ttls.add(ticket.first, self.engine.clock() + ttl_ns)
        self.engine.after(self.store, ticket.mark, partial(self.stored, None), now=self.in_memory)

    # Life

    def fence(self) -> None:
        """Publishes wait until `unfence`: something slow works on the stream off the loop."""
        if self._fence is None:
            self._fence = []

    @property
    def fenced(self) -> bool:
        """Nothing may be stored now."""
        return self._fence is not None

    def unfence(self) -> None:
        """Take what waited."""
        waiting, self._fence = self._fence, None
        if self.origins is not None:
            self.origins.wake()
        for run in waiting or ():
            self.ingest(run)

    def _save_beside(self) -> None:
        self._memory.save()
        if self.origins is not None:
            self.origins.save()

    def stop(self) -> None:
        """Listen no more; the volume closes the store."""
        if self.closed:
            return
        self.closed = True
        for token in self._listening:
            self.engine.exchange.unlisten(token)
        self.engine.unregister(self.id)
        if self._ttl_timer is not None:
            self._ttl_timer.cancel()
        if self.origins is not None:
            self.origins.stop()
        for consumer in list(self.consumers.values()):
            consumer.stop()
        self._memory.save_all()
        if self.origins is not None:
            self.origins.save()

    def delete(self) -> None:
        """Stop, and remove everything; waiting pulls are told."""
        self.closed = True
        for consumer in list(self.consumers.values()):
            consumer.gone()
        self.consumers.clear()
        for token in self._listening:
            self.engine.exchange.unlisten(token)
        self.engine.unregister(self.id)
        if self._ttl_timer is not None:
            self._ttl_timer.cancel()
        if self.origins is not None:
            self.origins.stop()
        volume: Any = self.engine.volume
        volume.delete(self.account.log_name(self.name))
