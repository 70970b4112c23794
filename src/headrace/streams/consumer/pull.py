"""A pull consumer's requests: taken in, served in rotation, timed out, answered.

Requests with equal text come as one group and are added at once. A request ends when it has its messages (silence), when
its time is over (408), when the next message does not fit its bytes (409), when nobody listens for it (silence), or, if
it does not want to wait, when there is nothing more (404).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config.model import ConsumerConfig
from headrace.streams._kernels import PULLS, Batch, PullRun
from headrace.streams.consumer.next_run import BYTES_MAX
from headrace.streams.consumer.pull_queues import Queues, queues_for
from headrace.streams.consumer.pull_requests import (
    CONSUMER_DELETED,
    EXCEEDED_WAITING,
    NO_MESSAGES,
    REQUESTS_PENDING,
    SERVER_SHUTDOWN,
    Pull,
    bad_request,
    exceeded,
    heartbeat,
    parse_pull,
    with_pending,
)
from headrace.streams.limits import go_duration

if TYPE_CHECKING:
    from headrace.streams.consumer.consumer import Consumer


class PullDelivery:
    """The pull side of a consumer."""

    bound = False
    paced_msgs = 64
    bytes_wanted = BYTES_MAX

    def __init__(self, consumer: Consumer) -> None:
        self.consumer, self.engine = consumer, consumer.engine
        self.exchange, self.account = consumer.engine.exchange, consumer.stream.account.id
        self.queues: Queues = queues_for(consumer)
        self.requested_at = self.engine.now()
        self._listening: list[int] = []
        self._send_nothing = False
        self._deadline: int | None = None
        """No request is over or due a heartbeat before this."""

    def start(self) -> None:
        """Listen for requests."""
        consumer = self.consumer
        name = f"API.CONSUMER.MSG.NEXT.{consumer.stream.name}.{consumer.name}"
        domain = consumer.stream.account.domain
        for prefix in ("$JS.", f"$JS.{domain}.") if domain else ("$JS.",):
            token = self.exchange.listen(self.account, prefix + name, PULLS, consumer.id)
            self._listening.append(token)

    def stop(self, status: str) -> None:
        """No more requests; those that wait are answered with the reason: the status, or that the consumer is deleted."""
        for token in self._listening:
            self.exchange.unlisten(token)
        for pull in self.queues.take_all():
            self.send_status(
                pull.reply,
                with_pending(status, pull.msgs_left, pull.bytes_left) if status else CONSUMER_DELETED,
            )

    def release(self, conn: int) -> None:
        """A client is sent away: its requests are answered."""
        for pull in self.queues.take_of(conn) if len(self.queues) else ():
            self.send_status(pull.reply, with_pending(SERVER_SHUTDOWN, pull.msgs_left, pull.bytes_left))

    # Requests

    @property
    def ready(self) -> bool:
        """Whether a message could go somewhere."""
        return len(self.queues) > 0

    def num_waiting(self) -> int:
        """Requests that wait, and somebody with them."""
        self.queues.drop_deserted(self.exchange, self.account)
        return len(self.queues)

    def on_pulls(self, run: PullRun) -> None:
        """Requests, equal ones as one."""
        now = self.requested_at = self.engine.now()
        for index, (payload, count) in enumerate(run.groups()):
            pull = parse_pull(payload)
            refusal = self._refusal(pull)
            free = self._free_slots(count) if refusal is None else 0
            if pull.expires or pull.heartbeat:
                self._note_deadline(pull, now)
            if refusal is None and free >= count and self.queues.add_group(run, index, pull, now):
                continue
            for number, reply in enumerate(run.replies(index)):
                if refusal is None and number < free:
                    self.queues.add(reply, pull, now)
                elif refusal is not None or not pull.heartbeat:
                    self.send_status(reply, refusal or EXCEEDED_WAITING)

    def request(self, reply: bytes, payload: bytes) -> None:
        """One request, as it comes with an acknowledgement."""
        now = self.requested_at = self.engine.now()
        pull = parse_pull(payload)
        refusal = self._refusal(pull)
        self._note_deadline(pull, now)
        if refusal is None and self._free_slots(1):
            self.queues.add(reply, pull, now)
        elif refusal is not None or not pull.heartbeat:
            self.send_status(reply, refusal or EXCEEDED_WAITING)

    def _refusal(self, pull: Pull) -> bytes | None:
        """Why a request cannot even wait."""
        config = self.consumer.config
        if pull.problem:
            return bad_request(pull.problem)
        if 0 < config.max_batch < pull.msgs:
            return exceeded("MaxRequestBatch", config.max_batch)
        if 0 < config.max_expires < pull.expires:
            return exceeded("MaxRequestExpires", go_duration(config.max_expires))
        if 0 < config.max_bytes < pull.bytes:
            return exceeded("MaxRequestMaxBytes", config.max_bytes)
        if (problem := self.queues.refusal(pull)) is not None:
            return problem
        if not pull.no_wait:
            return None
        consumer = self.consumer
        if not consumer.pending.known(consumer.end):
            return None  # it is reported when the messages were counted and looked for
        pending = consumer.num_pending() + consumer.ledger.num_due
        if not pending and not pull.expires:
            return NO_MESSAGES
        return REQUESTS_PENDING if 0 < pending < self.queues.wanted() else None

    def _free_slots(self, count: int) -> int:
        """How many of so many more requests may wait."""
        free = self.consumer.config.max_waiting - len(self.queues)
        if free < count:
            self.queues.drop_deserted(self.exchange, self.account)
            free = max(self.consumer.config.max_waiting - len(self.queues), 0)
        return free

    def _note_deadline(self, pull: Pull, now: int) -> None:
        wait = pull.heartbeat or pull.expires
        if wait and (self._deadline is None or now + wait < self._deadline):
            self._deadline = now + wait

    # Sending

    def wants(self, now: int) -> int:
        """How many messages may go; 0 when nobody waits for any."""
        if self._send_nothing:
            self._send_nothing = False
            return 0
        return self.queues.servable()

    def send(self, batch: Batch, again: bool, pending: int, now: int) -> tuple[int, int]:
        """Messages to waiting requests in rotation: (how many went, bytes). `pending` counts what was never delivered."""
        consumer, queues = self.consumer, self.queues
        before = len(queues)
        waiting, batch = queues.serve(batch)
        taken, over = self.exchange.deliver_pull(
            self.account,
            consumer.ledger,
            waiting,
            batch,
            consumer.ack_prefix,
            pending,
            now + consumer.wall_offset,
            now,
            again,
            consumer.config.headers_only,
        )
        if over:
            self._report_ended(over)
        if self.engine.alone:
            # The client has its message while the turn ends: fetching one by one takes 51 us instead of 57.
            self.engine.host.send_early()
        if taken == len(batch):
            return taken, batch.payload_bytes
        self._send_nothing = not taken and len(queues) == before
        self.engine.stalled[consumer] = None  # perhaps because clients do not read: woken when they do
        return taken, batch.slice(0, taken).payload_bytes

    def _report_ended(self, over: list[tuple[bytes, str, int, int]]) -> None:
        for reply, how, msgs, size in over:
            if how == "too large":
                self.send_status(reply, with_pending("409 Message Size Exceeds MaxBytes", msgs, size))
            elif how in ("bytes", "filled"):
                self.send_status(reply, with_pending("409 Batch Completed", msgs, size))

    def at_end(self, now: int) -> None:
        """Nothing more for now: who does not want to wait is answered."""
        for reply in self.queues.take_unwilling():
            self.send_status(reply, NO_MESSAGES)

    # Time

    def tick(self, now: int) -> None:
        """Requests whose time is over, and those that want to hear that all is well."""
        if not self.queues.grouped and (self._deadline is None or now < self._deadline):
            return
        for pull in self.queues.expire(now):
            self.send_status(pull.reply, with_pending("408 Request Timeout", pull.msgs_left, pull.bytes_left))
        due = self.queues.next_deadline()
        if due is not None and due <= now:
            # Also while the consumer is stalled: who took what was there does not wait for more.
            self.at_end(now)
        beats = self.queues.heartbeats(now)
        if beats:
            text = heartbeat(self.consumer.ledger.delivered)
            for reply in beats:
                self.send_status(reply, text)
        self._deadline = self.queues.next_deadline()

    def next_due(self, now: int) -> int | None:
        """When to look at the requests again, or replay goes on."""
        if self.queues.grouped:
            self._deadline = self.queues.next_deadline()
        replay = self.consumer.replay
        if (
            replay is None
            or replay.due_ns is None
            or not self.ready
            or self.consumer.pause_until_ns is not None
        ):
            return self._deadline
        return replay.due_ns if self._deadline is None else min(self._deadline, replay.due_ns)

    def used_at(self, now: int) -> int | None:
        """When it was last asked for something; now, while requests wait."""
        return now if len(self.queues) else self.requested_at

    # The rest

    def on_interest(self, some: bool) -> None:
        """Requests have their own inboxes."""

    def reconfigured(self, before: ConsumerConfig) -> None:
        """Another configuration; under another priority policy requests must be made anew."""
        if before.priority_policy != self.consumer.config.priority_policy:
            for pull in self.queues.take_all():
                self.send_status(
                    pull.reply, with_pending("408 Request Timeout", pull.msgs_left, pull.bytes_left)
                )
            self.queues = queues_for(self.consumer)
        self.queues.reconfigured()

    def unpin(self, group: str) -> None:
        """Let another client have its turn."""
        self.queues.unpin("admin")

    def groups_info(self) -> list[dict[str, Any]]:
        """Priority groups as the API shows them."""
        return self.queues.info()

    def send_status(self, reply: bytes, status: bytes) -> None:
        """A status message."""
        self.exchange.publish(self.account, reply, None, status, b"")
