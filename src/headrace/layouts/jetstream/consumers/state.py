"""`o.dat`: where a consumer stands. Read in versions 1 and 2, written in version 2 with a trailer.

    22 | version
    uvarint ack floor, consumer     uvarint ack floor, stream
    uvarint delivered, consumer     uvarint delivered, stream       (v1: relative to the floor - 1)
    uvarint p     p > 0: varint base time in seconds, then p times
                      uvarint stream seq - floor | (v2) uvarint consumer seq - floor | varint seconds
                      time = base - seconds in v2, base + seconds in v1
    uvarint r     r times: uvarint stream seq - floor | uvarint redeliveries (1 = delivered twice)
    -- ours, behind the fields; every nats-server stops reading before it --
    ff x 10 | u64 journal position | u64 HighwayHash-64 of all before, key SHA-256(`<stream>/<consumer>`)

The format itself has no checksum: on an interest stream one flipped bit in the floor makes nats-server
delete live messages. The ten ff bytes are no valid number, so a damaged count that runs past the fields
cannot swallow the hash and pass for a file that never had one.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import Damaged
from headrace.layouts.base import ConsumerState, Pending, SequencePair
from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream.meta import hash_key
from headrace.layouts.varint import (
    MASK64,
    Overlong,
    Truncated,
    get_uvarint,
    get_varint,
    put_uvarint,
    put_varint,
)

STATE_FILE = "o.dat"
MAGIC = 22
VERSION = 2
HEAD_BYTES = 2
MARK = b"\xff" * 10
POSITION_BYTES = 8
HASH_BYTES = 8
TRAILER_BYTES = len(MARK) + POSITION_BYTES + HASH_BYTES
SECOND_NS = 1_000_000_000
_SEQUENCE_LIMIT = 1 << 63
_TIME_LIMIT_S = (1 << 63) // SECOND_NS
_REMEDY = "the consumer starts again; restore o.dat from a backup to keep its position"


class DecodedState(NamedTuple):
    """A consumer's state; whether our trailer is there and its hash agrees.

    Without a hash (`has_hash` False) the file is a real server's. With one that disagrees nothing in
    `state` may be relied on. `journal_position` counts only when `hash_ok`.
    """

    state: ConsumerState
    has_hash: bool
    hash_ok: bool
    journal_position: int = 0


def encode_state(state: ConsumerState, key_text: str, journal_position: int = 0) -> bytes:
    """The bytes of o.dat. Delivery times keep whole seconds only: the format has no more."""
    out = bytearray((MAGIC, VERSION))
    floor = state.ack_floor
    for value in (floor.consumer, floor.stream, state.delivered.consumer, state.delivered.stream):
        put_uvarint(out, value)
    put_uvarint(out, len(state.pending))
    if state.pending:
        base = max(entry.time_ns for entry in state.pending.values()) // SECOND_NS
        put_varint(out, base)
        for seq, entry in sorted(state.pending.items()):
            # Modulo 2^64, as the real one: a version 1 file leaves consumer sequence 0 behind.
            put_uvarint(out, (seq - floor.stream) & MASK64)
            put_uvarint(out, (entry.sequence - floor.consumer) & MASK64)
            put_varint(out, base - entry.time_ns // SECOND_NS)
    put_uvarint(out, len(state.redelivered))
    for seq, count in sorted(state.redelivered.items()):
        put_uvarint(out, (seq - floor.stream) & MASK64)
        put_uvarint(out, count)
    return seal_state(bytes(out), key_text, journal_position)


def seal_state(fields: bytes, key_text: str, journal_position: int) -> bytes:
    """The fields with our trailer behind them."""
    data = fields + MARK + journal_position.to_bytes(POSITION_BYTES, "little")
    return data + _kernels.highway_hash(hash_key(key_text), data)


def trailer_agrees(data: bytes, key_text: str) -> bool:
    """Whether the bytes end with our trailer and its hash is that of what stands before it."""
    mark = len(data) - TRAILER_BYTES
    if mark < HEAD_BYTES or data[mark : mark + len(MARK)] != MARK:
        return False
    return _kernels.highway_hash(hash_key(key_text), data[:-HASH_BYTES]) == data[-HASH_BYTES:]


def decode_state(data: bytes, key_text: str, file: str = STATE_FILE) -> DecodedState:
    """Read o.dat (decrypted). Damaged when the fields make no sense."""
    if len(data) < HEAD_BYTES or data[0] != MAGIC or data[1] not in (1, VERSION):
        raise Damaged(file, 0, data[:HEAD_BYTES].hex() or "nothing", "16 01 or 16 02", _REMEDY)
    fields = _Fields(data, file)
    state = fields.state(version=data[1])
    if fields.offset == len(data):
        return DecodedState(state, has_hash=False, hash_ok=False)
    if not trailer_agrees(data, key_text):
        return DecodedState(state, has_hash=True, hash_ok=False)
    position = data[-HASH_BYTES - POSITION_BYTES : -HASH_BYTES]
    return DecodedState(state, True, True, int.from_bytes(position, "little"))


def implausible(state: ConsumerState) -> str | None:
    """Why a state that carries no hash cannot be true, or None."""
    floor, delivered = state.ack_floor, state.delivered
    if floor.stream > delivered.stream or floor.consumer > delivered.consumer:
        return f"ack floor {floor.consumer}/{floor.stream} above delivered {delivered.consumer}/{delivered.stream}"
    outside = next((s for s in state.pending if not floor.stream < s <= delivered.stream), None)
    if outside is not None:
        return f"pending message {outside} outside {floor.stream + 1}..{delivered.stream}"
    return None


class _Fields:
    """A cursor over the fields; every read is checked against the end."""

    def __init__(self, data: bytes, file: str) -> None:
        self.data, self.file, self.offset = data, file, HEAD_BYTES

    def state(self, version: int) -> ConsumerState:
        floor = SequencePair(self.unsigned("ack floor"), self.sequence("ack floor", 0))
        consumer, stream = self.unsigned("delivered"), self.unsigned("delivered")
        if version == 1:  # which stored the next one to deliver, relative to the floor
            consumer += max(floor.consumer - 1, 0)
            stream += max(floor.stream - 1, 0)
        if stream >= _SEQUENCE_LIMIT or consumer > MASK64:
            raise self.damaged(str(stream), "a delivered sequence below 2^63")
        state = ConsumerState(SequencePair(consumer, stream), floor)
        entry_bytes = 3 if version == VERSION else 2
        count = self.count("pending", entry_bytes)
        base = self.signed("base time") if count else 0
        for _ in range(count):
            seq = self.sequence("pending sequence", floor.stream)
            own = (self.unsigned("consumer sequence") + floor.consumer) & MASK64 if version == VERSION else 0
            shift = self.signed("delivery time")
            seconds = base - shift if version == VERSION else base + shift
            if abs(seconds) >= _TIME_LIMIT_S:
                raise self.damaged(f"{seconds} s", "a delivery time in 64-bit nanoseconds")
            state.pending[seq] = Pending(own, seconds * SECOND_NS)
        for _ in range(self.count("redelivered", 2)):
            seq = self.sequence("redelivered sequence", floor.stream)
            state.redelivered[seq] = self.unsigned("redeliveries")
        return state

    def count(self, what: str, bytes_each: int) -> int:
        """A count; what it promises must fit in the bytes that are left, before anything is made."""
        count, left = self.unsigned(f"number of {what}"), len(self.data) - self.offset
        if count * bytes_each > left:
            raise self.damaged(f"{count} {what} entries", f"at most {left // bytes_each} in {left} bytes")
        return count

    def sequence(self, what: str, base: int) -> int:
        value = (self.unsigned(what) + base) & MASK64
        if value >= _SEQUENCE_LIMIT:
            raise self.damaged(f"{what} {value}", "a stream sequence below 2^63")
        return value

    def unsigned(self, what: str) -> int:
        try:
            value, self.offset = get_uvarint(self.data, self.offset)
        except (Truncated, Overlong) as error:
            raise self.damaged(f"{len(self.data) - self.offset} bytes", f"the number for {what}") from error
        return value

    def signed(self, what: str) -> int:
        raw = self.offset
        self.unsigned(what)
        return get_varint(self.data, raw)[0]

    def damaged(self, seen: str, expected: str) -> Damaged:
        return Damaged(self.file, self.offset, seen, expected, _REMEDY)
