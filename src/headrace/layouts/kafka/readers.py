"""Consumer groups as every layout's readers: a committed offset, and nothing of what is open behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.layouts.base import Log
from headrace.layouts.kafka import offsets
from headrace.layouts.readers import (
    CarriedReaders,
    DurableReader,
    Readers,
    ReaderState,
    left_behind,
    plain_state,
)

if TYPE_CHECKING:
    from headrace.layouts.kafka.volume import KafkaVolume

OFFSETS_LOGS = f"{offsets.TOPIC}-"


class GroupReaders(Readers):
    """The groups that have committed an offset of one partition."""

    whole_topics = True

    def __init__(self, volume: KafkaVolume, log: Log) -> None:
        self._volume, self._log = volume, log

    def states(self) -> list[ReaderState]:
        cursors, end = self._volume.cursors(self._log.name), self._log.state().last_seq
        return [
            plain_state(self._log, group, "group", cursors.state_of(group), end) for group in cursors.names()
        ]

    def durable(self) -> list[DurableReader]:
        return [
            DurableReader(group, it.next - 1, it.next - 1, (), 0, 0, f"group {group} of Kafka log {log}")
            for (group, log), it in sorted(self._volume.committed_when_opened().items())
            if log == self._log.name
        ]

    def put(self, readers: Sequence[DurableReader]) -> CarriedReaders:
        """What a group is given next is the first message that it has not acked: some may come twice, none is missed."""
        done = CarriedReaders()
        if not readers:
            return done
        if not any(name.startswith(OFFSETS_LOGS) for name in self._volume.logs()):
            why = " (no __consumer_offsets in the directory: a broker makes it when the first group commits)"
            done.notes.append(left_behind([reader.name for reader in readers], why))
            return done
        for reader in readers:
            self._volume.write_offsets(reader.name, {self._log.name: reader.floor + 1})
            done.names.append(reader.name)
            again = reader.delivered - reader.floor - len(reader.pending)
            if again:
                done.notes.append(
                    f"{reader.origin}: {again} acked message(s) behind its first open one come again"
                )
        return done
