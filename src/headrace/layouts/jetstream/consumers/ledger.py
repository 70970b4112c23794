"""A consumer's state in a ledger, and back: the ledger is the core's, fast and with every change noted."""

from __future__ import annotations

from headrace.config.model import ConsumerConfig
from headrace.layouts.base import ConsumerState, Pending, SequencePair
from headrace.layouts.jetstream._kernels import Ledger


def ledger_of(config: ConsumerConfig, state: ConsumerState) -> Ledger:
    """A ledger that goes on from `state`. It notes nothing until `record` is called."""
    ledger = Ledger(config.ack_policy, config.max_deliver, config.ack_wait, list(config.backoff))
    take_over(ledger, state)
    return ledger


def take_over(ledger: Ledger, state: ConsumerState) -> None:
    """Replace the whole content of a ledger."""
    ledger.set_state(
        (state.delivered.consumer, state.delivered.stream),
        (state.ack_floor.consumer, state.ack_floor.stream),
        [(seq, entry.sequence, entry.time_ns) for seq, entry in sorted(state.pending.items())],
        sorted(state.redelivered.items()),
    )


def state_of(ledger: Ledger) -> ConsumerState:
    """The state that a ledger holds."""
    delivered, floor, pending, redelivered = ledger.state()
    return ConsumerState(
        SequencePair(*delivered),
        SequencePair(*floor),
        {seq: Pending(own, time_ns) for seq, own, time_ns in pending},
        dict(redelivered),
    )
