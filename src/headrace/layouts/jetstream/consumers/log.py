"""What the consumers of one stream write into their journal.

    kind 1 delivered   name | uvarint consumer seq | uvarint stream seq | uvarint count | varint time ns
    kind 2 acked       name | uvarint consumer seq | uvarint stream seq
    kind 3 state       name | uvarint x 4: delivered, floor (consumer, stream each)
                            | uvarint p, p x (uvarint seq, uvarint consumer seq, varint time ns)
                            | uvarint r, r x (uvarint seq, uvarint redeliveries)
    kind 4 created     name | uvarint start | meta.inf    what an earlier consumer of that name wrote is void; `start` is the
                            stream sequence up to which nothing is to be delivered. (Older journals: the name alone.)
    kind 5 changes     name | what a ledger gives: many deliveries and acks as runs (rust/core ledger/changes.rs)
    kind 6 deleted     name             its directory is gone for good: kind 4 does not bring it back
    kind 7 filed       name             its directory is on disk: from here on a missing one was removed by somebody else
    name = uvarint length | UTF-8

Times keep their nanoseconds here; the checkpoint in o.dat has whole seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from headrace.errors import BadInput, Damaged, MessageNotFound
from headrace.layouts.base import ConsumerState, Pending, SequencePair
from headrace.layouts.jetstream._kernels import Ledger
from headrace.layouts.jetstream.consumers.moves import (
    Rules,
    apply_acks,
    apply_delivered,
    replace_state,
)
from headrace.layouts.varint import (
    Overlong,
    Truncated,
    get_uvarint,
    get_varint,
    put_uvarint,
    put_varint,
)


class Kind(IntEnum):
    DELIVERED = 1
    ACKED = 2
    STATE = 3
    CREATED = 4
    CHANGES = 5
    DELETED = 6
    FILED = 7


@dataclass(frozen=True, slots=True)
class Change:
    """One decoded record. `numbers` are the fields behind the name, for kinds 1 and 2; `run` is a ledger's, `meta` a new
    consumer's meta.inf (empty in older journals)."""

    kind: Kind
    name: str
    numbers: tuple[int, ...] = ()
    state: ConsumerState | None = None
    run: bytes = b""
    meta: bytes = b""

    @property
    def stream_seq(self) -> int:
        """The highest stream sequence that this record proves to have existed."""
        if self.state is not None:
            # One that was given nothing yet has seen nothing: its start may lie beyond the end.
            return self.state.delivered.stream if self.state.delivered.consumer else 0
        if self.run:
            return Ledger.highest_sent(self.run)
        return self.numbers[1] if self.numbers else 0

    def replay(self, state: ConsumerState, rules: Rules) -> None:
        """Apply to a state as it was done before; what is refused now was old news then. Kind 5 is a ledger's."""
        try:
            if self.kind is Kind.DELIVERED:
                apply_delivered(state, rules, *self.numbers)
            elif self.kind is Kind.ACKED:
                apply_acks(state, rules, *self.numbers)
            else:
                replace_state(state, self.state or ConsumerState())
        except (BadInput, MessageNotFound):
            pass


def delivered_payload(name: str, consumer_seq: int, stream_seq: int, count: int, time_ns: int) -> bytes:
    out = _named(name)
    for value in (consumer_seq, stream_seq, count):
        put_uvarint(out, value)
    put_varint(out, time_ns)
    return bytes(out)


def acked_payload(name: str, consumer_seq: int, stream_seq: int) -> bytes:
    out = _named(name)
    put_uvarint(out, consumer_seq)
    put_uvarint(out, stream_seq)
    return bytes(out)


def changes_payload(name: str, run: bytes) -> bytes:
    return bytes(_named(name)) + run


def created_payload(name: str, start_after: int, meta: bytes) -> bytes:
    out = _named(name)
    put_uvarint(out, start_after)
    return bytes(out) + meta


def name_payload(name: str) -> bytes:
    """For the kinds that need no more: deleted, filed."""
    return bytes(_named(name))


def state_payload(name: str, state: ConsumerState) -> bytes:
    out = _named(name)
    for pair in (state.delivered, state.ack_floor):
        put_uvarint(out, pair.consumer)
        put_uvarint(out, pair.stream)
    put_uvarint(out, len(state.pending))
    for seq, entry in state.pending.items():
        put_uvarint(out, seq)
        put_uvarint(out, entry.sequence)
        put_varint(out, entry.time_ns)
    put_uvarint(out, len(state.redelivered))
    for seq, count in state.redelivered.items():
        put_uvarint(out, seq)
        put_uvarint(out, count)
    return bytes(out)


def decode_change(kind: int, payload: bytes, file: str) -> Change:
    """A record of the journal. Damaged if it is none of ours (its CRC was sound: another version)."""
    try:
        return _decode_change(Kind(kind), payload)
    except (Truncated, Overlong, ValueError) as error:
        remedy = "the record was skipped; was it written by another version?"
        raise Damaged(file, 0, f"kind {kind}, {payload[:16].hex()}", "a consumer record", remedy) from error


def _decode_change(kind: Kind, payload: bytes) -> Change:
    size, offset = get_uvarint(payload, 0)
    name, offset = payload[offset : offset + size].decode(), offset + size
    if kind in (Kind.DELETED, Kind.FILED):
        return Change(kind, name)
    if kind is Kind.CREATED:
        if offset == len(payload):
            return Change(kind, name)
        start_after, offset = get_uvarint(payload, offset)
        start = SequencePair(0, start_after)
        return Change(kind, name, state=ConsumerState(start, start), meta=payload[offset:])
    if kind is Kind.STATE:
        return Change(kind, name, state=_decode_state(payload, offset))
    if kind is Kind.CHANGES:
        return Change(kind, name, run=payload[offset:])
    numbers: list[int] = []
    for _ in range(3 if kind is Kind.DELIVERED else 2):
        value, offset = get_uvarint(payload, offset)
        numbers.append(value)
    if kind is Kind.DELIVERED:
        numbers.append(get_varint(payload, offset)[0])
    return Change(kind, name, tuple(numbers))


def _decode_state(payload: bytes, offset: int) -> ConsumerState:
    values: list[int] = []
    for _ in range(4):
        value, offset = get_uvarint(payload, offset)
        values.append(value)
    state = ConsumerState(SequencePair(*values[:2]), SequencePair(*values[2:]))
    count, offset = get_uvarint(payload, offset)
    for _ in range(count):
        seq, offset = get_uvarint(payload, offset)
        own, offset = get_uvarint(payload, offset)
        time_ns, offset = get_varint(payload, offset)
        state.pending[seq] = Pending(own, time_ns)
    count, offset = get_uvarint(payload, offset)
    for _ in range(count):
        seq, offset = get_uvarint(payload, offset)
        state.redelivered[seq], offset = get_uvarint(payload, offset)
    return state


def _named(name: str) -> bytearray:
    out, text = bytearray(), name.encode()
    put_uvarint(out, len(text))
    out += text
    return out
