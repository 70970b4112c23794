"""A stream's consumers as every layout's readers: where they stand, and those that come from or go to another layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.config.model import ConsumerConfig
from headrace.errors import HeadraceError
from headrace.layouts.base import ConsumerState, Log, Pending, SequencePair
from headrace.layouts.readers import (
    SECOND_NS,
    CarriedReaders,
    DurableReader,
    Readers,
    ReaderState,
    safe_name,
)

if TYPE_CHECKING:
    from headrace.layouts.jetstream.store.store import FileStreamStore

ACK_WAIT_NS = 30 * SECOND_NS
"""What a consumer without one has."""
DAY_NS = 86_400 * SECOND_NS


class StreamReaders(Readers):
    """The consumers of one stream."""

    def __init__(self, store: FileStreamStore) -> None:
        self._store = store

    def states(self) -> list[ReaderState]:
        store, found = self._store, list[ReaderState]()
        for name in store.consumers.names():
            config, state = store.consumers.get(name).config, store.consumers.state_of(name)
            waiting = sum(
                store.filtered_state(state.delivered.stream + 1, each).msgs
                for each in config.filters or (">",)
            )
            found.append(
                ReaderState(
                    log=store.name,
                    consumer=name,
                    kind="push" if config.deliver_subject else "pull",
                    durable=bool(config.durable_name),
                    filter=",".join(config.filters),
                    delivered=state.delivered.stream,
                    ack_floor=state.ack_floor.stream,
                    pending=len(state.pending),
                    redelivered=len(state.redelivered),
                    lag=waiting,
                    oldest_pending=min(state.pending, default=None),
                )
            )
        return found

    def durable(self) -> list[DurableReader]:
        consumers, found = self._store.consumers, list[DurableReader]()
        for name in consumers.names():
            config, state = consumers.get(name).config, consumers.state_of(name)
            if not config.durable_name:
                continue
            notes = (f"its filter {', '.join(config.filters)} has no place there",) if config.filters else ()
            found.append(
                DurableReader(
                    name,
                    state.delivered.stream,
                    state.ack_floor.stream,
                    tuple(sorted(state.pending)),
                    config.ack_wait or ACK_WAIT_NS,
                    config.max_ack_pending,
                    f"consumer {name}",
                    notes,
                    config.filters,
                )
            )
        return found

    def put(self, readers: Sequence[DurableReader]) -> CarriedReaders:
        store, done = self._store, CarriedReaders()
        if not readers:
            return done
        now, first = store.clock(), store.fast_state().first_seq
        for reader in readers:
            name = safe_name(reader.name)
            # A delivery a day ago: whoever has the message in hand is gone, so it is due again at once.
            pending = {seq: Pending(seq, now - DAY_NS) for seq in reader.pending if seq >= first}
            floor = min(pending, default=reader.delivered + 1) - 1
            try:
                known = name in store.consumers.names()  # an interrupted conversion made it
                made = (
                    store.consumers.get(name)
                    if known
                    else store.consumers.create(name, _config(name, reader), now)
                )
                made.update(
                    ConsumerState(
                        delivered=SequencePair(reader.delivered, reader.delivered),
                        ack_floor=SequencePair(floor, floor),
                        pending=pending,
                    )
                )
            except HeadraceError as problem:
                done.notes.append(f"{reader.origin}: {problem}")
                continue
            done.names.append(name)
            done.notes += [f"{reader.origin}: {note}" for note in reader.notes]
        store.consumers.commit()
        return done

    def carry(self, source: Log, shift: int) -> CarriedReaders:
        """Between streams whole: configuration, position, what is pending."""
        if not isinstance(source.readers, StreamReaders):
            return super().carry(source, shift)
        from headrace.layouts.jetstream.recovery.rebuild import copy_consumers

        theirs, ours = source.readers._store, self._store
        there = ours.consumers.names()  # an interrupted conversion may have made some
        failed = copy_consumers(theirs, ours)
        for name in there:
            if name in failed:
                ours.consumers.get(name).update(theirs.consumers.state_of(name))
                del failed[name]
        ours.consumers.commit()
        return CarriedReaders(
            [name for name in theirs.consumers.names() if name not in failed],
            [f"consumer {name}: {why}" for name, why in failed.items()],
        )


def _config(name: str, reader: DurableReader) -> ConsumerConfig:
    return ConsumerConfig(
        durable_name=name,
        name=name,
        description=f"converted from {reader.origin}"[:4096],
        ack_policy="explicit",
        ack_wait=reader.ack_wait_ns,
        max_ack_pending=max(reader.max_pending, 0),
        filter_subject=reader.filters[0] if len(reader.filters) == 1 else "",
        filter_subjects=reader.filters if len(reader.filters) > 1 else (),
    ).filled()
