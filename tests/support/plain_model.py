"""What a stream and its consumers must do, in plain Python: a dictionary of messages, a list of what is due again.

No batches, no blocks, no files: one message at a time, in the order of nats-server 2.15.2. The state machine in
tests/streams/test_model_machine.py holds the server against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

FULL = (503, 10077, "maximum messages exceeded")


class Message(NamedTuple):
    subject: str
    headers: bytes | None
    data: bytes
    time_ns: int

    @property
    def size(self) -> int:
        return 30 + len(self.subject) + len(self.data) + (4 + len(self.headers) if self.headers else 0)


class Expect(NamedTuple):
    """What a publish asks for beside being stored."""

    msg_id: str | None = None
    last: int | None = None
    last_on_subject: int | None = None


class PubAck(NamedTuple):
    """The answer to a publish: a sequence, or an error (code, err_code, description)."""

    seq: int
    duplicate: bool = False
    error: tuple[int, int, str] | None = None


@dataclass
class Pending:
    consumer_seq: int
    deadline: int
    deliveries: int = 1


@dataclass
class PlainConsumer:
    """Explicit acks, deliver policy `all`."""

    filter: str
    ack_wait: int
    max_deliver: int
    max_ack_pending: int
    delivered: tuple[int, int]
    floor: tuple[int, int]
    pending: dict[int, Pending] = field(default_factory=dict[int, Pending])
    queue: list[int] = field(default_factory=list[int])
    given_up: dict[int, int] = field(default_factory=dict[int, int])
    gave_up_once: bool = False

    def takes(self, subject: str) -> bool:
        return self.filter in ("", subject)

    def finish(self, seq: int) -> bool:
        """Acked, terminated or gone from the stream."""
        known = self.pending.pop(seq, None)
        if known is None:
            return self.given_up.pop(seq, None) is not None
        if seq in self.queue:
            self.queue.remove(seq)
        if not self.pending:
            self.floor = self.delivered
        elif known.consumer_seq == self.floor[0] + 1:
            oldest = min(self.pending)
            self.floor = (self.pending[oldest].consumer_seq - 1, oldest - 1)
        return True

    def expire(self, now: int) -> None:
        """What is due is queued in sequence order; what was delivered often enough is given up."""
        for seq, known in sorted(self.pending.items()):
            if known.deadline > now or seq in self.queue:
                continue
            if self.spent(seq):
                self.give_up(seq)
            else:
                self.queue.append(seq)

    def spent(self, seq: int) -> bool:
        return 0 < self.max_deliver <= self.pending[seq].deliveries

    def give_up(self, seq: int) -> None:
        self.given_up[seq] = self.pending.pop(seq).deliveries
        self.gave_up_once = True
        if seq in self.queue:
            self.queue.remove(seq)

    @property
    def redelivered(self) -> int:
        return sum(known.deliveries > 1 for known in self.pending.values()) + len(self.given_up)

    def done_with(self, seq: int) -> bool:
        return seq <= self.delivered[1] and seq not in self.pending and seq not in self.given_up


class PlainStream:
    """One stream and its consumers."""

    def __init__(
        self, retention: str, *, max_msgs: int, per_subject: int, discard: str, max_age: int, window: int
    ) -> None:
        self.retention, self.max_msgs, self.per_subject = retention, max_msgs, per_subject
        self.discard, self.max_age, self.window = discard, max_age, window
        self.live: dict[int, Message] = {}
        self.last = 0
        self.was_purged = False
        self.ids: dict[str, tuple[int, int]] = {}
        self.consumers: dict[str, PlainConsumer] = {}

    # The stream's own numbers

    @property
    def first(self) -> int:
        return min(self.live, default=self.last + 1)

    def state(self) -> dict[str, int]:
        first = self.first if self.last or self.was_purged else 0
        holes = self.last - first + 1 - len(self.live) if self.live else 0
        size = sum(message.size for message in self.live.values())
        return {
            "messages": len(self.live),
            "bytes": size,
            "first_seq": first,
            "last_seq": self.last,
            "num_deleted": holes,
            "consumer_count": len(self.consumers),
        }

    def on_subject(self, subject: str) -> list[int]:
        return sorted(seq for seq, message in self.live.items() if message.subject == subject)

    # Publishing

    def publish(self, subject: str, headers: bytes | None, data: bytes, expect: Expect, now: int) -> PubAck:
        there = self.on_subject(subject)
        last_here = there[-1] if there else 0
        if expect.last_on_subject is not None and expect.last_on_subject != last_here:
            return PubAck(0, error=(400, 10071, f"wrong last sequence: {last_here}"))
        if expect.last is not None and expect.last != self.last:
            return PubAck(0, error=(400, 10071, f"wrong last sequence: {self.last}"))
        if expect.msg_id is not None:
            known = self.ids.get(expect.msg_id)
            if known is not None and now - known[1] < self.window:
                return PubAck(known[0], duplicate=True)
        takers = [consumer for consumer in self.consumers.values() if consumer.takes(subject)]
        wanted = self.retention != "interest" or bool(takers)
        drops_oldest = not wanted or 0 < self.per_subject <= len(there)
        if self.discard == "new" and 0 < self.max_msgs <= len(self.live) and not drops_oldest:
            return PubAck(0, error=FULL)
        self.last += 1
        if expect.msg_id is not None:
            self.ids[expect.msg_id] = (self.last, now)
        if wanted:
            self.live[self.last] = Message(subject, headers, data, now)
            self._apply_limits(subject)
        return PubAck(self.last)

    def _apply_limits(self, subject: str) -> None:
        there = self.on_subject(subject)
        if 0 < self.per_subject < len(there):
            self.remove(there[: len(there) - self.per_subject])
        if 0 < self.max_msgs < len(self.live):
            self.remove(sorted(self.live)[: len(self.live) - self.max_msgs])

    # What goes

    def remove(self, sequences: list[int]) -> None:
        for seq in sequences:
            del self.live[seq]
            for consumer in self.consumers.values():
                consumer.finish(seq)

    def pass_time(self, now: int) -> None:
        if self.max_age:
            self.remove(
                [seq for seq, message in sorted(self.live.items()) if message.time_ns + self.max_age <= now]
            )
        for consumer in self.consumers.values():
            consumer.expire(now)

    def purge(self, subject: str, below: int, keep: int) -> int:
        self.was_purged = self.was_purged or not (subject or below or keep)
        matching = self.on_subject(subject) if subject else sorted(self.live)
        gone = [seq for seq in matching if not below or seq < below]
        gone = gone[: max(len(gone) - keep, 0)]
        self.remove(gone)
        for consumer in self.consumers.values():
            front = self.first
            if subject and consumer.filter == subject:
                front = min(self.on_subject(subject), default=self.last + 1)
            elif subject and consumer.filter:
                continue
            if front > consumer.delivered[1] + 1:
                consumer.delivered = (consumer.delivered[0], front - 1)
                if not consumer.pending:
                    consumer.floor = consumer.delivered
        return len(gone)

    # Consumers

    def add_consumer(
        self, name: str, filter: str, ack_wait: int, max_deliver: int, max_ack_pending: int
    ) -> None:
        start = (0, max(self.first - 1, 0))
        self.consumers[name] = PlainConsumer(filter, ack_wait, max_deliver, max_ack_pending, start, start)

    def remove_consumer(self, name: str) -> None:
        del self.consumers[name]
        if self.retention == "interest":
            self._free(sorted(self.live))

    def waiting_for(self, consumer: PlainConsumer) -> list[int]:
        """Never delivered to it, in order."""
        found = (seq for seq, message in self.live.items() if consumer.takes(message.subject))
        return sorted(seq for seq in found if seq > consumer.delivered[1])

    def fetch(self, name: str, batch: int, now: int) -> tuple[list[tuple[int, int, int, int]], bool]:
        """(deliveries, sequence, consumer sequence, pending) of each message; whether the end was reached."""
        consumer = self.consumers[name]
        consumer.expire(now)
        got: list[tuple[int, int, int, int]] = []
        if not consumer.queue and not self.waiting_for(consumer):
            return got, True
        while len(got) < batch:
            if consumer.queue:
                seq = consumer.queue[0]
                if consumer.spent(seq):
                    consumer.give_up(seq)
                    continue
                consumer.queue.pop(0)
                known = consumer.pending[seq]
                known.deliveries, known.deadline = known.deliveries + 1, now + consumer.ack_wait
            elif 0 < consumer.max_ack_pending <= len(consumer.pending):
                return got, False
            elif waiting := self.waiting_for(consumer):
                seq = waiting[0]
                known = consumer.pending[seq] = Pending(consumer.delivered[0] + 1, now + consumer.ack_wait)
                consumer.delivered = (consumer.delivered[0], seq)
            else:
                return got, True
            consumer.delivered = (consumer.delivered[0] + 1, consumer.delivered[1])
            left = len(self.waiting_for(consumer))
            got.append((known.deliveries, seq, consumer.delivered[0], left))
        return got, False

    def ack(self, name: str, seq: int) -> None:
        """`+ACK` and `+TERM`."""
        if self.consumers[name].finish(seq) and self.retention != "limits":
            self._free([seq])

    def nak(self, name: str, seq: int, delay: int, now: int) -> None:
        consumer = self.consumers[name]
        if seq not in consumer.pending:
            return
        if delay:
            if seq in consumer.queue:
                consumer.queue.remove(seq)
            consumer.pending[seq].deadline = now + delay
        elif seq not in consumer.queue:
            consumer.queue.append(seq)

    def progress(self, name: str, seq: int, now: int) -> None:
        consumer = self.consumers[name]
        if seq in consumer.pending:
            consumer.pending[seq].deadline = now + consumer.ack_wait

    def _free(self, sequences: list[int]) -> None:
        """Work queue: an ack frees; interest: the ack of the last one who wants it does."""
        for seq in sequences:
            if seq not in self.live:
                continue
            subject = self.live[seq].subject
            wanted = any(
                consumer.takes(subject) and not consumer.done_with(seq)
                for consumer in self.consumers.values()
            )
            if self.retention == "workqueue" or not wanted:
                self.remove([seq])

    def restart(self, now: int) -> None:
        """Naks without a delay are forgotten; deadlines are not."""
        for consumer in self.consumers.values():
            consumer.queue.clear()
            consumer.expire(now)
