"""Snapshots over the wire: STREAM.SNAPSHOT sends a stream in chunks, STREAM.RESTORE takes one.

    snapshot   chunk → deliver subject, reply `$JS.SNAPSHOT.ACK.<S>.<id>.<size>.<number>`; the receiver answers it, and
               at most a window of bytes is under way; the last chunk has no reply; an empty message ends it
    restore    chunk → `$JS.SNAPSHOT.RESTORE.<S>.<id>`, answered empty; an empty one ends it, the answer is the stream

The bytes are made and taken in off the loop. What arrives is kept by the volume until it is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.config.model import StreamConfig
from headrace.engine.timers import Timer
from headrace.errors import HeadraceError
from headrace.streams._kernels import CALL
from headrace.streams.api.calls import Call, Outcome
from headrace.streams.api.info import config_json, stream_info, stream_state
from headrace.streams.api.json_reader import is_empty, read
from headrace.streams.api.types import StreamRestoreRequest, StreamSnapshotRequest, answer, refusal
from headrace.streams.errors import ApiError, api_error, client_text
from headrace.streams.subjects import is_literal, is_subject

if TYPE_CHECKING:
    from headrace.streams.account import JsAccount
    from headrace.streams.api.endpoints import Api
    from headrace.streams.stream.stream import Stream

HEAD_START_NS = 200_000_000  # the nats command loses chunks that come before it has read the answer
CHUNK_BYTES = 128 << 10
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 1 << 10, 1 << 20
WINDOW_BYTES = 8 << 20
WINDOW_BYTES_MIN, WINDOW_BYTES_MAX = 1 << 10, 32 << 20
SECOND_NS = 1_000_000_000
NO_ANSWER_NS = 5 * SECOND_NS
NO_CHUNK_NS = 30 * SECOND_NS
WHOLE_NS = 24 * 3600 * SECOND_NS
AT_ONCE_BYTES = 2 << 20


def snapshot(api: Api, call: Call) -> Outcome:
    """STREAM.SNAPSHOT"""
    if is_empty(call.payload):
        raise api_error("JSBadRequestErr")
    stream = call.account.stream(call.args[0])
    request = read(call.payload, StreamSnapshotRequest, strict=api.facts.strict)
    subject = request.deliver_subject
    if not subject or not is_subject(subject) or not is_literal(subject):
        raise api_error("JSSnapshotDeliverSubjectInvalidErr")
    state = stream_state(stream)
    Outgoing(api, call, stream, request, state).start()
    return {"config": config_json(stream.config, api.facts, notes=False), "state": state}


def restore(api: Api, call: Call) -> Outcome:
    """STREAM.RESTORE"""
    if is_empty(call.payload):
        raise api_error("JSBadRequestErr")
    request = read(call.payload, StreamRestoreRequest, strict=api.facts.strict)
    name = call.args[0]
    if request.config.name != name:
        raise api_error("JSStreamMismatchErr")
    if name in call.account.streams or name in call.account.offline:
        raise api_error("JSStreamNameExistRestoreFailedErr")
    config = call.account.apply_defaults(request.config)
    return {"deliver_subject": Incoming(api, call, config).start()}


class _Transfer(ABC):
    """What both have in common: a place to be answered at, a time limit, an end."""

    def __init__(self, api: Api, call: Call, name: str) -> None:
        self.api, self.call, self.name = api, call, name
        self.account: JsAccount = call.account
        self.engine = call.account.engine
        self.id = api.ids.next()
        self.started_ns = self.engine.clock()
        self.ended = False
        self._number = self._token = 0
        self._timer: Timer | None = None

    @property
    def client(self) -> Mapping[str, Any]:
        return self.call.client

    @abstractmethod
    def __call__(
        self,
        _conn: int | None,
        _subject: str,
        _reply: bytes | None,
        _headers: bytes | None,
        _data: bytes,
        _account: int = 0,
    ) -> None:
        """Something arrived for it."""

    def listen(self, subject: str) -> None:
        self._number = self.engine.register_call(self)
        self._token = self.engine.exchange.listen(self.account.id, subject, CALL, self._number)

    def expect_within(self, wait_ns: int) -> None:
        """Give up if nothing more happens in that time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.engine.timers.at(self.engine.now() + wait_ns, self.gave_up)

    @abstractmethod
    def gave_up(self) -> None:
        """Nothing came in time."""

    def end(self) -> None:
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
        self.engine.exchange.unlisten(self._token)
        self.engine.unregister(self._number)


class Outgoing(_Transfer):
    """A snapshot on its way to one receiver."""

    def __init__(
        self, api: Api, call: Call, stream: Stream, request: StreamSnapshotRequest, state: dict[str, Any]
    ) -> None:
        super().__init__(api, call, stream.name)
        self.stream, self.state, self._request = stream, state, request
        self._subject = request.deliver_subject.encode()
        wanted = request.chunk_size if request.chunk_size > 0 else CHUNK_BYTES
        self._chunk = min(max(wanted, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
        wanted = request.window_size if request.window_size > 0 else WINDOW_BYTES
        self._window = max(min(max(wanted, WINDOW_BYTES_MIN), WINDOW_BYTES_MAX), self._chunk)
        self._pieces: Iterator[bytes] | None = None
        self._rest = b""
        self._count = self._under_way = 0
        self._making = self._exhausted = False

    def start(self) -> None:
        """Begin with the next turn; the answer goes first."""
        self.listen(f"$JS.SNAPSHOT.ACK.{self.name}.{self.id}.>")
        self.api.advisories.snapshot_created(self.account, self.name, self.state, self.client)
        self.engine.timers.at(self.engine.now() + HEAD_START_NS, self._go_on)
        self.engine.host.wake_loop()

    def __call__(
        self,
        _conn: int | None,
        subject: str,
        _reply: bytes | None,
        _headers: bytes | None,
        _data: bytes,
        _account: int = 0,
    ) -> None:
        """The receiver has a chunk: `….<size>.<number>`."""
        size = subject.split(".")[-2]
        self._under_way -= min(int(size) if size.isdigit() else 0, self._under_way)
        self.expect_within(NO_ANSWER_NS)
        self._go_on()

    def _go_on(self) -> None:
        free = self._window - self._under_way
        if self._making or self.ended or self._exhausted or free < self._chunk:
            return
        self._making = True
        self.expect_within(WHOLE_NS)
        self.engine.off_loop(lambda: self._make(min(free, AT_ONCE_BYTES)), self._made)

    def _make(self, free: int) -> list[bytes]:
        """Off the loop: full chunks up to `free` bytes; at the end what is left."""
        if self._pieces is None:
            whole = self.stream.store.snapshot(
                WHOLE_NS / SECOND_NS, not self._request.no_consumers, self._request.jsck
            )
            self._pieces = iter(whole.chunks)
        made, data = list[bytes](), bytearray(self._rest)
        while len(made) * self._chunk < free - self._chunk + 1:
            while len(data) < self._chunk and not self._exhausted:
                piece = next(self._pieces, None)
                if piece is None:
                    self._exhausted = True
                else:
                    data += piece
            if len(data) < self._chunk:
                break
            made.append(bytes(data[: self._chunk]))
            del data[: self._chunk]
        self._rest = bytes(data)
        return made

    def _made(self, made: Any) -> None:
        self._making = False
        if self.ended:
            return
        if isinstance(made, Exception):
            self._finish(f"NATS/1.0 500 {client_text(made)}\r\n\r\n".encode(), error=client_text(made))
            return
        for chunk in made:
            self._count += 1
            self._under_way += len(chunk)
            if not self._send(chunk, f"$JS.SNAPSHOT.ACK.{self.name}.{self.id}.{len(chunk)}.{self._count}"):
                self._finish(None)
                return
        if self._exhausted:
            if self._rest:
                self._send(self._rest, "")
            self._finish(b"NATS/1.0 204\r\n\r\n" if self._count else None, last=True)
            return
        self.expect_within(NO_ANSWER_NS)
        self._go_on()

    def _send(self, data: bytes, reply: str) -> int:
        said = reply.encode() if reply else None
        return self.engine.exchange.publish(self.account.id, self._subject, said, None, data)

    def gave_up(self) -> None:
        """The receiver did not answer in time."""
        self._finish(b"NATS/1.0 408 No Flow Response\r\n\r\n", error="no flow response")
        self.engine.host.wake_loop()

    def _finish(self, headers: bytes | None, *, last: bool = False, error: str = "") -> None:
        if headers is not None or last:
            self.engine.exchange.publish(self.account.id, self._subject, None, headers, b"")
        self.end()
        self.api.advisories.snapshot_completed(
            self.account, self.name, self.started_ns, self.engine.clock(), self.client, error
        )


class Incoming(_Transfer):
    """A snapshot that is being received."""

    def __init__(self, api: Api, call: Call, config: StreamConfig) -> None:
        super().__init__(api, call, config.name)
        self._config = config
        volume = self.engine.volume
        if volume is None:
            raise api_error("JSNotEnabledErr")
        self._volume = volume

    def start(self) -> str:
        """The subject that takes the chunks."""
        try:
            self._spool = self._volume.new_spool(self.id)
        except HeadraceError as problem:
            raise api_error("JSTempStorageFailedErr") from problem
        subject = f"$JS.SNAPSHOT.RESTORE.{self.name}.{self.id}"
        self.listen(subject)
        self.expect_within(NO_CHUNK_NS)
        self.api.advisories.restore_created(self.account, self.name, self.client)
        return subject

    def __call__(
        self,
        _conn: int | None,
        _subject: str,
        reply: bytes | None,
        _headers: bytes | None,
        data: bytes,
        _account: int = 0,
    ) -> None:
        """A chunk; an empty one is the end."""
        if self.ended:
            return
        try:
            if data:
                self._spool.append(data)
                self.expect_within(NO_CHUNK_NS)
                self._say(reply, b"")
                return
        except HeadraceError as problem:
            self._failed(reply, problem)
            return
        self.end()
        try:
            self.account.check_new(self._config)
        except ApiError as problem:
            self._failed(reply, f"error adding stream: {problem}")
            return
        self.engine.off_loop(self._take_in, lambda result: self._taken_in(reply, result))

    def _take_in(self) -> Any:
        """Off the loop: the stream from what was received."""
        name = self.account.log_name(self.name)
        return self._volume.restore(
            name, self._spool.chunks(), self._config, first_look=self.account.first_look
        )

    def _taken_in(self, reply: bytes | None, result: Any) -> None:
        if isinstance(result, Exception):
            self._failed(reply, result)
            return
        stream = self.account.restored(result)
        self.api.advisories.stream_action(self.account, self.name, "create")
        self._completed()
        self._say(reply, answer("stream_create", stream_info(stream, self.api.facts)))

    def _failed(self, reply: bytes | None, problem: Exception | str) -> None:
        self._completed()
        error = api_error("JSStreamRestoreErrF", err=problem)
        self._say(reply, refusal("stream_create", error))

    def gave_up(self) -> None:
        """No chunk came for a long time: forget it."""
        self._completed()

    def _completed(self) -> None:
        self.end()
        self._spool.remove()
        self.api.advisories.restore_completed(
            self.account, self.name, self.started_ns, self.engine.clock(), self._spool.size, self.client
        )

    def _say(self, reply: bytes | None, data: bytes) -> None:
        if reply:
            self.engine.exchange.publish(self.account.id, reply, None, None, data)
