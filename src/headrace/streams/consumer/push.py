"""A push consumer: everything goes to its deliver subject while somebody listens there.

flow control   a request after half a window of unanswered bytes, nothing after a whole one; each answer doubles
               the window, from 2 to 32 MiB
rate limit     a bucket of bytes that fills at the rate asked for; what goes out may overdraw it once
heartbeat      when nothing was sent for so long
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config.model import ConsumerConfig
from headrace.randomness import random_text
from headrace.streams._kernels import CALL, PULLS, Batch, PullRun
from headrace.streams.consumer.next_run import BYTES_MAX, MSGS_MAX
from headrace.streams.consumer.pull_requests import PUSH_BASED, heartbeat

if TYPE_CHECKING:
    from headrace.streams.consumer.consumer import Consumer

WINDOW_BYTES_MIN, WINDOW_BYTES_MAX = 2 << 20, 32 << 20
FLOW_REQUEST = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
# A client that has this much unread gets nothing more until it has read.
BACKLOG_BYTES_MAX = 2 << 20
BURST_BYTES = 1 << 20
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class FlowControl:
    """How much may be under way without an answer."""

    def __init__(self) -> None:
        self.window, self.under_way = WINDOW_BYTES_MIN, 0
        self.awaited = ""
        """The request that waits for its answer."""
        self._covered = 0

    def free_bytes(self) -> int:
        """Bytes that may go now; up to where the next request is due, if none is under way."""
        limit = self.window if self.awaited else self.window // 2
        return max(limit - self.under_way + 1, 0)

    @property
    def full(self) -> bool:
        return self.under_way > self.window

    def sent(self, size: int) -> bool:
        """Bytes went out; whether a request is due."""
        self.under_way += size
        return not self.awaited and self.under_way > self.window // 2

    def ask(self, subject: str) -> None:
        self.awaited, self._covered = subject, self.under_way

    def answered(self, subject: str) -> bool:
        """An answer; old ones do not count."""
        if not self.awaited or subject != self.awaited:
            return False
        self.window = min(self.window * 2, WINDOW_BYTES_MAX)
        self.under_way = max(self.under_way - self._covered, 0)
        self.awaited, self._covered = "", 0
        return True


class RateLimit:
    """A bucket of bytes."""

    def __init__(self, bits_per_second: int, burst: int, now: int) -> None:
        self.rate, self.burst = max(bits_per_second // 8, 1), burst
        self._bytes, self._at = float(burst), now

    def free_bytes(self, now: int) -> int:
        self._bytes = min(self._bytes + (now - self._at) * self.rate / 1e9, self.burst)
        self._at = now
        return max(int(self._bytes), 0)

    def sent(self, size: int) -> None:
        self._bytes -= size

    def due(self, now: int) -> int:
        """When the next byte may go."""
        return now + int(max(1 - self._bytes, 0) * 1e9 / self.rate) + 1


class PushDelivery:
    """The push side of a consumer."""

    paced_msgs = 64
    bytes_wanted = BYTES_MAX

    def __init__(self, consumer: Consumer) -> None:
        self.consumer, self.engine = consumer, consumer.engine
        self.exchange, self.account = consumer.engine.exchange, consumer.stream.account.id
        self.bound = False
        self._lost_at = self.engine.now()
        self._sent_at = self.engine.now()
        self._tokens: list[int] = []
        self._watch: int | None = None
        self._flow_id: int | None = None
        self._throttled = False
        self._apply()

    def _apply(self) -> None:
        config, now = self.consumer.config, self.engine.now()
        self.subject = config.deliver_subject.encode()
        self.group = config.deliver_group.encode() or None
        self.flow = FlowControl() if config.flow_control else None
        burst = self.consumer.stream.config.max_msg_size
        limited = config.rate_limit_bps > 0
        self.rate = (
            RateLimit(config.rate_limit_bps, burst if burst > 0 else BURST_BYTES, now) if limited else None
        )

    def start(self) -> None:
        """Watch for listeners; listen for answers to flow control, and for pulls, which are refused."""
        consumer, exchange = self.consumer, self.exchange
        stream, name = consumer.stream.name, consumer.name
        self._tokens.append(
            exchange.listen(self.account, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", PULLS, consumer.id)
        )
        if self.flow is not None:
            self._flow_id = self.engine.register_call(self._on_flow)
            self._tokens.append(
                exchange.listen(self.account, f"$JS.FC.{stream}.{name}.*", CALL, self._flow_id)
            )
        self._watch_interest()

    def _watch_interest(self) -> None:
        config = self.consumer.config
        group = config.deliver_group or None
        self._watch = self.exchange.watch(self.account, config.deliver_subject, group, self.consumer.id)
        self._bind(self.exchange.interest(self.account, config.deliver_subject, group) > 0)

    def stop(self, status: str) -> None:
        """Nothing more is sent."""
        for token in self._tokens:
            self.exchange.unlisten(token)
        if self._watch is not None:
            self.exchange.unwatch(self._watch)
        if self._flow_id is not None:
            self.engine.unregister(self._flow_id)
        self.bound = False

    def release(self, conn: int) -> None:
        """There are no requests."""

    # Interest

    @property
    def ready(self) -> bool:
        """Whether a message could go somewhere."""
        return self.bound

    def on_interest(self, some: bool) -> None:
        """The first listener came, or the last one went."""
        self._bind(some)

    def _bind(self, some: bool) -> None:
        now = self.engine.now()
        if some and not self.bound and self.flow is not None:
            self.flow = FlowControl()  # who answers now was not asked before
        if self.bound and not some:
            self._lost_at = now
        self.bound = some
        self._sent_at = now

    def used_at(self, now: int) -> int | None:
        """When somebody last listened; None while somebody does."""
        return None if self.bound else self._lost_at

    def reconfigured(self, before: ConsumerConfig) -> None:
        """Another configuration: on another subject what is pending comes again at once."""
        config = self.consumer.config
        moved = (before.deliver_subject, before.deliver_group) != (
            config.deliver_subject,
            config.deliver_group,
        )
        if before.rate_limit_bps != config.rate_limit_bps or moved:
            self._apply()
        if moved:
            if self._watch is not None:
                self.exchange.unwatch(self._watch)
            self.consumer.ledger.queue_all()
            self._watch_interest()

    # Sending

    def wants(self, now: int) -> int:
        """How many messages may go now; `bytes_wanted` says how many bytes."""
        self._throttled = False
        if not self.bound:
            return 0
        size = BYTES_MAX
        if self.flow is not None:
            if self.flow.full:
                return 0
            size = min(size, max(self.flow.free_bytes(), 1))
        if self._is_behind():
            return 0
        if self.rate is not None:
            free_bytes = self.rate.free_bytes(now)
            if free_bytes <= 0:
                self._throttled = True
                return 0
            size = min(size, free_bytes)
        self.bytes_wanted = size
        return MSGS_MAX

    def _is_behind(self) -> bool:
        """Whether a client that would get the messages does not read what it has."""
        backlog = self.engine.connections.backlog
        conns = self.exchange.listeners_of(self.account, self.subject)
        if not any(backlog(conn) > BACKLOG_BYTES_MAX for conn in conns):
            return False
        self.engine.stalled[self.consumer] = None
        return True

    def send(self, batch: Batch, again: bool, pending: int, now: int) -> tuple[int, int]:
        """A batch to the deliver subject: (how many went, bytes). `pending` counts what was never delivered."""
        consumer = self.consumer
        taken, size = self.exchange.deliver_push(
            self.account,
            consumer.ledger,
            self.subject,
            self.group,
            batch,
            consumer.ack_prefix,
            pending,
            now + consumer.wall_offset,
            now,
            again,
            consumer.config.headers_only,
        )
        if taken < len(batch):
            self.bound = False  # the exchange says when somebody is there again
            self._lost_at = now
        if taken:
            self._sent_at = now
        if self.rate is not None:
            self.rate.sent(size)
        if self.flow is not None and self.flow.sent(size):
            self._ask(self.flow)
        return taken, size

    def at_end(self, now: int) -> None:
        """Nothing more for now."""

    # Flow control

    def _ask(self, flow: FlowControl) -> None:
        name = random_text(_LETTERS, 4)
        subject = f"$JS.FC.{self.consumer.stream.name}.{self.consumer.name}.{name}"
        flow.ask(subject)
        self.exchange.publish(self.account, self.subject, subject.encode(), FLOW_REQUEST, b"")

    def _on_flow(self, _conn: int | None, subject: str, *_rest: object) -> None:
        if self.flow is not None and self.flow.answered(subject):
            self.engine.wake(self.consumer)

    # Time

    def tick(self, now: int) -> None:
        """A heartbeat, if nothing was sent for so long."""
        every = self.consumer.config.idle_heartbeat
        if every and self.bound and now - self._sent_at >= every:
            self._sent_at = now
            awaited = self.flow.awaited if self.flow is not None else ""
            text = heartbeat(self.consumer.ledger.delivered, awaited)
            self.exchange.publish(self.account, self.subject, None, text, b"")

    def next_due(self, now: int) -> int | None:
        """When the next heartbeat is due, or the rate allows more, or replay goes on."""
        every, replay = self.consumer.config.idle_heartbeat, self.consumer.replay
        due: list[int] = []
        if every and self.bound:
            due.append(self._sent_at + every)
        if not self.bound or self.consumer.pause_until_ns is not None:
            return min(
                due, default=None
            )  # nothing can go: its time comes with a listener, or the end of the pause
        if self._throttled and self.rate is not None:
            due.append(self.rate.due(now))
        if replay is not None and replay.due_ns is not None:
            due.append(replay.due_ns)
        return min(due, default=None)

    # What only pull consumers have

    def on_pulls(self, run: PullRun) -> None:
        """Pull requests to a push consumer are refused."""
        for index in range(len(run.groups())):
            for reply in run.replies(index):
                self.exchange.publish(self.account, reply, None, PUSH_BASED, b"")

    def request(self, reply: bytes, payload: bytes) -> None:
        """… those in acknowledgements too."""
        self.exchange.publish(self.account, reply, None, PUSH_BASED, b"")

    def num_waiting(self) -> int:
        """None ever wait."""
        return 0

    def unpin(self, group: str) -> None:
        """There are no groups."""

    def groups_info(self) -> list[dict[str, Any]]:
        """There are no groups."""
        return []
