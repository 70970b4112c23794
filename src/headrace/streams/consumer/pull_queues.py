"""The waiting requests of a pull consumer, kept apart where its priority policy does.

none            one queue, served in rotation
overflow        a queue for each (min_pending, min_ack_pending); one is served while both are reached
prioritized     a queue for each priority; a lower number is served first
pinned_client   the pinned client's requests, and those of others, which wait for the pin
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.randomness import random_text
from headrace.streams._kernels import Batch, EndedPull, Exchange, PullRun, Waiting
from headrace.streams.consumer.pull_requests import PIN_MISMATCH, Pull, bad_request, with_pending
from headrace.units import format_time_ns

if TYPE_CHECKING:
    from headrace.streams.consumer.consumer import Consumer

PRIORITY_MAX = 9
PINNED_TTL_NS = 120_000_000_000
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PIN_LETTERS = 22


class Queues:
    """One queue for all."""

    grouped = False

    def __init__(self, consumer: Consumer) -> None:
        self.consumer, self.exchange = consumer, consumer.engine.exchange
        self.only = Waiting()

    def all(self) -> Iterable[Waiting]:
        """Every queue."""
        return (self.only,)

    def queue_for(self, pull: Pull) -> Waiting:
        """Where a request waits."""
        return self.only

    def serving(self) -> Waiting:
        """The queue whose turn it is."""
        return self.only

    # Taking in

    def refusal(self, pull: Pull) -> bytes | None:
        """Why a request cannot be taken."""
        policy = self.consumer.config.priority_policy
        if (pull.min_pending or pull.min_ack_pending) and policy != "overflow":
            return bad_request("Not a Overflow Priority consumer")
        if pull.pin_id and policy != "pinned_client":
            return bad_request("Not a Pinned Client Priority consumer")
        if not 0 <= pull.priority <= PRIORITY_MAX:
            return bad_request("Priority must be between 0 and 9")
        return None

    def add_group(self, run: PullRun, index: int, pull: Pull, now: int) -> bool:
        """All requests of a group at once; False if they must be added one by one."""
        expires = now + pull.expires if pull.expires else 0
        self.exchange.add_pulls(
            self.queue_for(pull) if self.grouped else self.only,
            run,
            index,
            now,
            pull.msgs,
            pull.bytes,
            expires,
            pull.heartbeat,
            pull.no_wait,
        )
        return True

    def add(self, reply: bytes, pull: Pull, now: int) -> None:
        """One request."""
        expires = now + pull.expires if pull.expires else 0
        queue = self.queue_for(pull)
        queue.add(reply, now, pull.msgs, pull.bytes, expires, pull.heartbeat, pull.no_wait)

    # Serving

    def __len__(self) -> int:
        return len(self.only)

    def wanted(self) -> int:
        """Messages that all of them ask for."""
        return self.only.wanted()

    def servable(self) -> int:
        """Messages that those ask for whose turn it is."""
        return self.only.wanted()

    def serve(self, batch: Batch) -> tuple[Waiting, Batch]:
        """Who gets a batch, and as what."""
        return self.serving(), batch

    # Ending

    def take_all(self) -> list[EndedPull]:
        """Everything, out of the queues."""
        return [pull for each in self.all() for pull in each.take_all()]

    def take_of(self, conn: int) -> list[EndedPull]:
        """Those of one client, out of the queues."""
        account = self.consumer.stream.account.id
        return [pull for each in self.all() for pull in each.take_of(self.exchange, account, conn)]

    def take_unwilling(self) -> list[bytes]:
        """Those that do not wait when there is nothing."""
        return [pull.reply for each in self.all() for pull in each.take_no_wait()]

    def expire(self, now: int) -> list[EndedPull]:
        """Those whose time is over."""
        return [pull for each in self.all() for pull in each.expire(now)]

    def heartbeats(self, now: int) -> list[bytes]:
        """Those that are due a sign of life."""
        return [reply for each in self.all() for reply in each.heartbeats(now)]

    def next_deadline(self) -> int | None:
        """When one of them is over or due a heartbeat."""
        due = [deadline for each in self.all() if (deadline := each.next_deadline()) is not None]
        return min(due, default=None)

    def drop_deserted(self, exchange: Exchange, account: int) -> None:
        """Forget those that nobody listens for any more."""
        for each in self.all():
            if len(each):
                each.drop_deserted(exchange, account)

    # Groups

    def reconfigured(self) -> None:
        """The consumer has another configuration."""

    def unpin(self, reason: str) -> None:
        """Nobody is pinned."""

    def info(self) -> list[dict[str, Any]]:
        """Priority groups, as the API shows them."""
        return []


class _Grouped(Queues):
    """A consumer with priority groups: requests must name one."""

    grouped = True

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(consumer)
        self._queues: dict[Any, Waiting] = {}

    def all(self) -> Iterable[Waiting]:
        return self._queues.values()

    def __len__(self) -> int:
        return sum(len(each) for each in self.all())

    def wanted(self) -> int:
        return sum(each.wanted() for each in self.all())

    def servable(self) -> int:
        return self.serving().wanted()

    def refusal(self, pull: Pull) -> bytes | None:
        if (problem := super().refusal(pull)) is not None:
            return problem
        if not pull.group:
            return bad_request("Priority Group missing")
        if pull.group not in self.consumer.config.priority_groups:
            return bad_request("Invalid Priority Group")
        return None

    def info(self) -> list[dict[str, Any]]:
        return [
            {"group": each, "pinned_ts": format_time_ns(None)}
            for each in self.consumer.config.priority_groups[:1]
        ]


class Overflow(_Grouped):
    """Requests that are served only while there is much to do."""

    def queue_for(self, pull: Pull) -> Waiting:
        return self._queues.setdefault((pull.min_pending, pull.min_ack_pending), Waiting())

    def serving(self) -> Waiting:
        pending, unacked = self.consumer.num_pending(), self.consumer.ledger.num_pending
        for (min_pending, min_unacked), queue in sorted(self._queues.items(), key=lambda item: item[0]):
            unlimited = not min_pending and not min_unacked
            reached = 0 < min_pending <= pending or 0 < min_unacked <= unacked
            if len(queue) and (unlimited or reached):
                return queue
        return self.only

    def servable(self) -> int:
        # One at a time: each delivery may change who is served next.
        return min(self.serving().wanted(), 1)


class Prioritized(_Grouped):
    """Lower numbers first."""

    def queue_for(self, pull: Pull) -> Waiting:
        return self._queues.setdefault(pull.priority, Waiting())

    def serving(self) -> Waiting:
        served = (queue for _, queue in sorted(self._queues.items(), key=lambda item: item[0]) if len(queue))
        return next(served, self.only)


class Pinned(_Grouped):
    """One client gets everything until it goes away or is unpinned."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(consumer)
        self.pin_id, self._pinned_ns, self._heard_at = "", 0, 0
        self._others: deque[Waiting] = deque()
        self._queues = {"": Waiting()}

    def all(self) -> Iterable[Waiting]:
        return (self._queues[""], *self._others)

    def refusal(self, pull: Pull) -> bytes | None:
        problem = super().refusal(pull)
        if problem is None and pull.pin_id and pull.pin_id != self.pin_id:
            return PIN_MISMATCH
        return problem

    def add_group(self, run: PullRun, index: int, pull: Pull, now: int) -> bool:
        return False

    def queue_for(self, pull: Pull) -> Waiting:
        if pull.pin_id:
            self._heard_at = self.consumer.engine.now()
            return self._queues[""]
        self._others.append(Waiting())
        return self._others[-1]

    def serving(self) -> Waiting:
        self._others = deque(each for each in self._others if len(each))
        if not self.pin_id:
            self._pin_next()
        return self._queues[""]

    def _pin_next(self) -> None:
        """The first of those that wait is the one; its requests know the pin from the messages."""
        engine, account = self.consumer.engine, self.consumer.stream.account
        while self._others:
            first = self._others.popleft()
            first.drop_deserted(self.exchange, account.id)
            if len(first):
                self._queues[""] = first
                self.pin_id = random_text(_LETTERS, _PIN_LETTERS)
                self._pinned_ns, self._heard_at = engine.clock(), engine.now()
                where = (account, self.consumer.stream.name, self.consumer.name)
                self.consumer.advisories.pinned(*where, self.consumer.config.priority_groups[0], self.pin_id)
                return

    def serve(self, batch: Batch) -> tuple[Waiting, Batch]:
        return self.serving(), with_pin(batch, self.pin_id)

    def expire(self, now: int) -> list[EndedPull]:
        if self.pin_id and now - self._heard_at >= self._timeout and not len(self._queues[""]):
            self.unpin("timeout")
            where = (self.consumer.stream.account, self.consumer.stream.name, self.consumer.name)
            self.consumer.advisories.unpinned(*where, self.consumer.config.priority_groups[0], "timeout")
        elif len(self._queues[""]):
            self._heard_at = now
        return super().expire(now)

    @property
    def _timeout(self) -> int:
        return self.consumer.config.priority_timeout or PINNED_TTL_NS

    def next_deadline(self) -> int | None:
        due = super().next_deadline()
        if not self.pin_id or not self._others:
            return due
        lost = self._heard_at + self._timeout
        return lost if due is None else min(due, lost)

    def unpin(self, reason: str) -> None:
        self.pin_id, self._pinned_ns = "", 0
        for pull in self._queues[""].take_all():
            status = with_pending("423 Nats-Wrong-Pin-Id", pull.msgs_left, pull.bytes_left)
            self.exchange.publish(self.consumer.stream.account.id, pull.reply, None, status, b"")

    def info(self) -> list[dict[str, Any]]:
        shown: dict[str, Any] = {"group": self.consumer.config.priority_groups[0]}
        if self.pin_id:
            shown["pinned_client_id"] = self.pin_id
        return [{**shown, "pinned_ts": format_time_ns(self._pinned_ns or None)}]


def with_pin(batch: Batch, pin_id: str) -> Batch:
    """The messages with the header by which a client knows that it is pinned."""
    records = list(batch)
    line = f"Nats-Pin-Id: {pin_id}\r\n\r\n".encode()
    return Batch.build(
        [each.subject for each in records],
        [each.data for each in records],
        [(each.headers or b"NATS/1.0\r\n\r\n").removesuffix(b"\r\n") + line for each in records],
        [each.time_ns for each in records],
        [each.position for each in records],
    )


_BY_POLICY = {"overflow": Overflow, "prioritized": Prioritized, "pinned_client": Pinned}


def queues_for(consumer: Consumer) -> Queues:
    """The queues that a consumer's priority policy asks for."""
    return _BY_POLICY.get(consumer.config.priority_policy, Queues)(consumer)
