"""One consumer's durable state. Made by `Consumers`, which owns the journal.

    plain          update_delivered, update_acks: each change is one journal record, made in Python
    with a ledger  `ledger()` hands out the state as the core keeps it; whoever has it delivers and acks there, and
                   `flush` puts everything that it noted into the journal as one record

A ledger changes while o.dat is written elsewhere: `checkpoint` takes its changes and its fields at one moment.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace.config.model import ConsumerConfig
from headrace.errors import BadInput, StoreClosed
from headrace.layouts.base import ConsumerState, SequencePair
from headrace.layouts.jetstream._kernels import Ledger
from headrace.layouts.jetstream.consumers.ledger import ledger_of, state_of, take_over
from headrace.layouts.jetstream.consumers.log import (
    Kind,
    acked_payload,
    changes_payload,
    delivered_payload,
    state_payload,
)
from headrace.layouts.jetstream.consumers.moves import (
    Rules,
    apply_acks,
    apply_delivered,
    apply_update,
    copy_state,
    replace_state,
)
from headrace.layouts.jetstream.consumers.state import encode_state, seal_state
from headrace.layouts.stream_store import Committable, ConsumerStore

if TYPE_CHECKING:
    from headrace.layouts.jetstream.consumers.consumers import Consumers
    from headrace.layouts.jetstream.consumers.recovery import FoundConsumer


class FileConsumerStore(ConsumerStore):
    """One consumer of a stream."""

    def __init__(self, owner: Consumers, found: FoundConsumer) -> None:
        self.name, self.config, self.created_ns = found.name, found.config, found.created_ns
        self.doubtful, self.dirty = found.doubtful, not found.current
        self.saving = threading.Lock()
        self.saved_ns: int | None = None
        self.saved_bytes = 0
        self._owner, self._state, self._rules = owner, found.state, Rules.of(found.config)
        self._ledger: Ledger | None = None
        self._closed = False

    # What it is

    @property
    def journal(self) -> Committable:
        """What has its changes, and those of the other consumers of the stream."""
        return self._owner

    @property
    def delivered(self) -> SequencePair:
        if self._ledger is None:
            return self._state.delivered
        reached = self._ledger.delivered
        return SequencePair(reached.consumer, reached.stream)

    @property
    def unsaved(self) -> bool:
        """Whether o.dat is behind."""
        return self.dirty or (self._ledger is not None and self._ledger.changes_len > 0)

    def state(self) -> ConsumerState:
        """A copy of the present state."""
        with self._owner.lock:
            return copy_state(self._state) if self._ledger is None else state_of(self._ledger)

    def ledger(self) -> Ledger:
        """The state as the core keeps it; from now on changes are made there. Always the same object."""
        with self._owner.lock:
            self._check()
            if self._ledger is None:
                self._ledger = ledger_of(self.config, self._state)
                self._ledger.record()
            return self._ledger

    # Changes

    def update_delivered(self, consumer_seq: int, stream_seq: int, count: int, time_ns: int) -> None:
        """A delivery; `count` is 1 for the first one. At or below the floor it changes nothing."""
        with self._owner.lock:
            self._check(plain=True)
            if apply_delivered(self._state, self._rules, consumer_seq, stream_seq, count, time_ns):
                payload = delivered_payload(self.name, consumer_seq, stream_seq, count, time_ns)
                self._note(Kind.DELIVERED, payload)

    def update_acks(self, consumer_seq: int, stream_seq: int) -> None:
        """An ack. At or below the floor it changes nothing; MessageNotFound if not pending."""
        with self._owner.lock:
            self._check(plain=True)
            if apply_acks(self._state, self._rules, consumer_seq, stream_seq):
                self._note(Kind.ACKED, acked_payload(self.name, consumer_seq, stream_seq))

    def update(self, state: ConsumerState) -> None:
        """Replace the whole state; BadInput when it contradicts itself or goes backwards."""
        with self._owner.lock:
            self._check()
            present = self.state()
            apply_update(present, state)
            self._replace(present)

    def reset(self, stream_seq: int) -> None:
        """Begin anew behind `stream_seq`: nothing delivered, nothing pending."""
        with self._owner.lock:
            self._check()
            start = SequencePair(0, stream_seq)
            self._replace(ConsumerState(start, start))

    def _replace(self, state: ConsumerState) -> None:
        if self._ledger is None:
            replace_state(self._state, state)
        else:
            take_over(self._ledger, state)
            self._ledger.record()
        self._note(Kind.STATE, state_payload(self.name, state))

    def update_config(self, config: Any) -> None:
        """Save another configuration, and follow it; it is on disk when this returns."""
        self.save_config(config)
        self.apply_config(config)

    def save_config(self, config: Any) -> None:
        """Another configuration goes to disk; on whatever thread. `apply_config` follows."""
        if not isinstance(config, ConsumerConfig):
            raise BadInput(f"a ConsumerConfig is needed, not {type(config).__name__}")
        config.validate()
        with self._owner.lock:
            self._check()
        with self.saving:
            self._owner.save_config(self, config)

    def apply_config(self, config: ConsumerConfig) -> None:
        """Do as a saved configuration says, on the thread that has the ledger."""
        with self._owner.lock:
            self.config = config
            self._rules = Rules.of(config)
            if self._ledger is not None:
                self._ledger.configure(
                    config.ack_policy, config.max_deliver, config.ack_wait, list(config.backoff)
                )

    # Durability

    def flush(self) -> None:
        """What the ledger noted into the journal, and that to the operating system; not yet on disk."""
        self._owner.flush(self)

    def note_changes(self) -> None:
        """What the ledger noted into the journal, in memory."""
        if self._ledger is None or self._closed or not self._ledger.changes_len:
            return
        with self._owner.lock:
            self._check()
            self._note_run(self._ledger.take_changes())

    def mark(self) -> int:
        """A mark for `commit`: everything up to now."""
        with self._owner.lock:
            self.note_changes()
            return self._owner.position

    def commit(self, mark: int | None = None) -> None:
        """Return once everything up to the mark (default: all so far) is on disk."""
        self._owner.commit(self.mark() if mark is None else mark)

    def checkpoint(self, key_text: str) -> bytes:
        """The bytes of o.dat; what they hold is in the journal too. Under the owner's lock."""
        if self._ledger is None:
            data = encode_state(self._state, key_text, self._owner.position)
        else:
            run, fields = self._ledger.checkpoint()
            self._note_run(run)
            data = seal_state(fields, key_text, self._owner.position)
        self.dirty = False
        return data

    def stop(self) -> None:
        """Write o.dat and take no more changes."""
        if not self._closed and self.unsaved:
            self._owner.save_state(self)
        self._closed = True

    def delete(self) -> None:
        """Remove the consumer with its files."""
        self._owner.delete(self.name)

    def close(self) -> None:
        """Take no more changes."""
        self._closed = True

    def _note(self, kind: Kind, payload: bytes) -> None:
        self.dirty = True
        self._owner.note(kind, payload)

    def _note_run(self, run: bytes | None) -> None:
        if run is not None:
            self._owner.prepare()
            self._note(Kind.CHANGES, changes_payload(self.name, run))

    def _check(self, *, plain: bool = False) -> None:
        if self._closed:
            raise StoreClosed(f"consumer {self.name!r} is closed")
        if plain and self._ledger is not None:
            raise BadInput(f"consumer {self.name!r} has a ledger: deliver and ack there")
        self._owner.prepare()
