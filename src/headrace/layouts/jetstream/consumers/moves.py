"""How a consumer's state moves: delivered, acked, replaced. Pure functions on `ConsumerState`.

    stream     … 4 5 6 7 8 9 …        floor: everything at or below is acked
    floor 4 ──────┘ │   │ └─ delivered 8: nothing above was handed out yet
    pending         6   7             unacked; 5 and 8 were acked (or filtered out)

The rules are the real file store's, replay of old news included: what lies at or below the floor changes
nothing. `pending` is kept in stream order, so its first key is the lowest.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.config.model import AckPolicy, ConsumerConfig
from headrace.errors import BadInput, MessageNotFound
from headrace.layouts.base import ConsumerState, Pending, SequencePair


class Rules(NamedTuple):
    """What of a consumer's configuration decides how its state moves."""

    ack_policy: AckPolicy
    max_deliver: int = -1

    @classmethod
    def of(cls, config: ConsumerConfig) -> Rules:
        return cls(config.ack_policy, config.max_deliver)


def apply_delivered(
    state: ConsumerState, rules: Rules, consumer_seq: int, stream_seq: int, count: int, time_ns: int
) -> bool:
    """A delivery; False if it is old news. BadInput for a redelivery without acks."""
    if rules.ack_policy == "none" and count != 1:
        raise BadInput("a consumer with ack policy none delivers each message once")
    if consumer_seq <= state.ack_floor.consumer:
        return False
    if rules.ack_policy != "none":
        _note_pending(state, rules, consumer_seq, stream_seq, count, time_ns)
    delivered = SequencePair(
        max(state.delivered.consumer, consumer_seq), max(state.delivered.stream, stream_seq)
    )
    if rules.ack_policy == "none":
        state.ack_floor = delivered
    state.delivered = delivered
    return True


def _note_pending(
    state: ConsumerState, rules: Rules, consumer_seq: int, stream_seq: int, count: int, time_ns: int
) -> None:
    if stream_seq > state.delivered.stream:
        state.pending[stream_seq] = Pending(consumer_seq, time_ns)
    elif (known := state.pending.get(stream_seq)) is not None:
        # The consumer sequence of the first delivery stays: the floor is counted by it.
        state.pending[stream_seq] = Pending(known.sequence, time_ns)
    if count > 1:
        if 0 < rules.max_deliver < count:
            state.pending.pop(stream_seq, None)  # given up, though not acked: the floor waits
        state.redelivered[stream_seq] = max(state.redelivered.get(stream_seq, 0), count - 1)


def apply_acks(state: ConsumerState, rules: Rules, consumer_seq: int, stream_seq: int) -> bool:
    """An ack; False if nothing changed. MessageNotFound if the message is not pending."""
    if rules.ack_policy == "none":
        raise BadInput("a consumer with ack policy none takes no acks")
    forgotten = state.redelivered.pop(stream_seq, None) is not None
    if consumer_seq <= state.ack_floor.consumer:
        return forgotten
    known = state.pending.get(stream_seq)
    if known is None:
        raise MessageNotFound(f"message {stream_seq} is not waiting for an ack of this consumer")
    if rules.ack_policy != "explicit":
        _ack_up_to(state, consumer_seq, stream_seq)
        return True
    del state.pending[stream_seq]
    original = min(consumer_seq, known.sequence or consumer_seq)
    if not state.pending:
        state.ack_floor = state.delivered
    elif original == state.ack_floor.consumer + 1:
        lowest, entry = next(iter(state.pending.items()))
        if lowest > stream_seq:  # else something below still waits, and the floor with it
            floor = SequencePair(entry.sequence - 1, lowest - 1)
            state.ack_floor = floor if entry.sequence else SequencePair(original, stream_seq)
    return True


def _ack_up_to(state: ConsumerState, consumer_seq: int, stream_seq: int) -> None:
    state.ack_floor = SequencePair(consumer_seq, stream_seq)
    for table in (state.pending, state.redelivered):
        for seq in [seq for seq in table if seq <= stream_seq]:
            del table[seq]


def apply_update(state: ConsumerState, new: ConsumerState) -> None:
    """Replace `state`'s content. BadInput when `new` contradicts itself or goes backwards."""
    check_state(new)
    behind = new.delivered.consumer < state.delivered.consumer
    if behind or new.ack_floor.stream < state.ack_floor.stream:
        raise BadInput(
            f"old update ignored: delivered {new.delivered.consumer}, floor {new.ack_floor.stream}; "
            f"the store has {state.delivered.consumer}, {state.ack_floor.stream}"
        )
    replace_state(state, new)


def replace_state(state: ConsumerState, new: ConsumerState) -> None:
    """Replace without asking (a reset, a replayed journal)."""
    state.delivered, state.ack_floor = new.delivered, new.ack_floor
    state.pending = dict(sorted(new.pending.items()))
    state.redelivered = dict(new.redelivered)


def check_state(state: ConsumerState) -> None:
    """BadInput when a state contradicts itself."""
    floor, delivered = state.ack_floor, state.delivered
    if floor.consumer > delivered.consumer or floor.stream > delivered.stream:
        raise BadInput(
            f"bad ack floor {floor.consumer}/{floor.stream} for a consumer "
            f"that delivered {delivered.consumer}/{delivered.stream}"
        )
    for seq in state.pending:
        if not floor.stream < seq <= delivered.stream:
            raise BadInput(
                f"bad pending entry, sequence {seq} outside {floor.stream + 1}..{delivered.stream}"
            )


def copy_state(state: ConsumerState) -> ConsumerState:
    """A state of its own, for those who are handed one."""
    return ConsumerState(state.delivered, state.ack_floor, dict(state.pending), dict(state.redelivered))
