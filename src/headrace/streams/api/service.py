"""Where the exchange and the API meet: who listens on which subjects, and what becomes of an answer.

    service = Service(engine, facts, client_info)
    service.add(account)          the account's API, its direct gets; recovery is the account's own

`$JS.API.CONSUMER.MSG.NEXT` and `$JS.API.DIRECT.GET` are not part of what is listened to here as a whole, so that a
request for a consumer or stream that does not exist meets nobody and is answered 503, as with nats-server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace.streams._kernels import CALL
from headrace.streams.account import JsAccount
from headrace.streams.api.advisories import Advisories
from headrace.streams.api.call_queue import Key
from headrace.streams.api.calls import Durable, Later, is_durable
from headrace.streams.api.endpoints import Api, key_of, stream_of
from headrace.streams.engine import StreamEngine
from headrace.streams.limits import ServerFacts
from headrace.streams.stream import direct
from headrace.streams.stream.direct_sender import DirectSender
from headrace.streams.stream.stream import Stream

LOG = logging.getLogger("headrace.streams")
OWN_API = "$HEADRACE.API.PRODUCER.>"
# Those that nobody knows are among them: nats-server says nothing to these.
LISTENED = (
    "*",
    "INFO.>",
    "STREAM.>",
    "CONSUMER.*",
    *(
        f"CONSUMER.{each}.>"
        for each in (
            *("CREATE", "DURABLE", "NAMES", "LIST", "INFO", "DELETE"),
            *("PAUSE", "UNPIN", "RESET", "LEADER", "PEER"),
        )
    ),
    "META.>",
    "SERVER.>",
    "ACCOUNT.>",
)


class Service:
    """The API of all accounts of one server."""

    def __init__(
        self, engine: StreamEngine, facts: ServerFacts, client_info: Callable[[int | None], Mapping[str, Any]]
    ) -> None:
        self.engine, self.facts = engine, facts
        self.client_info = client_info
        """What audits say of a connection."""
        self.advisories = Advisories(engine, facts)
        self.api = Api(facts, self.advisories)
        if engine.volume is not None:
            engine.volume.clear_spools()
        self._direct: dict[tuple[str, str], tuple[int, list[int]]] = {}

    def add(self, account: JsAccount) -> None:
        """Serve an account: listen for its API and for direct gets of its streams."""
        account.on_change = partial(self._stream_changed, account)
        number = self.engine.register_call(partial(self._on_call, account))
        for prefix in self._prefixes("$JS.API."):
            for each in LISTENED:
                self.engine.exchange.listen(account.id, prefix + each, CALL, number)
        self.engine.exchange.listen(account.id, OWN_API, CALL, number)
        for name in list(account.streams):
            self._stream_changed(account, name)

    def add_without_jetstream(self, name: str) -> None:
        """An account that has no JetStream: its clients get that as an answer."""
        where = self.engine.exchange.account(name)
        number = self.engine.register_call(partial(self._on_call_without, where))
        for each in LISTENED:
            self.engine.exchange.listen(where, "$JS.API." + each, CALL, number)

    def _prefixes(self, prefix: str) -> list[str]:
        domain = self.facts.domain
        return [prefix, prefix.replace("$JS.", f"$JS.{domain}.", 1)] if domain else [prefix]

    # Calls

    def _on_call(
        self,
        account: JsAccount,
        conn: int | None,
        subject: str,
        reply: bytes | None,
        headers: bytes | None,
        data: bytes,
        _account: int = 0,
    ) -> None:
        if not reply:
            return
        info, stream = self.client_info(conn), stream_of(account, subject)
        # What the client publishes behind its purge is not purged, however long that waits.
        fenced = stream if ".PURGE." in subject else None

        def serve(key: Key | None) -> None:
            self._answer(account, reply, self.api.handle(account, subject, data, headers, info), key)
            if fenced is not None:
                fenced.unfence()

        def run() -> None:
            if stream is not None and not stream.closed and stream.is_busy:
                stream.when_free(run)
            elif (key := key_of(account, subject)) is None:
                serve(None)
            else:
                account.calls.submit(key, partial(serve, key))

        if fenced is not None:
            fenced.fence()
        self.engine.in_turn(conn, run)

    def _on_call_without(
        self,
        where: int,
        _conn: int | None,
        subject: str,
        reply: bytes | None,
        headers: bytes | None,
        data: bytes,
        _account: int = 0,
    ) -> None:
        said = self.api.handle(None, subject, data, headers, {})
        if reply and isinstance(said, bytes):
            self.engine.exchange.publish(where, reply, None, None, said)

    def _answer(
        self, account: JsAccount, reply: bytes, said: bytes | Durable | Later | None, key: Key | None
    ) -> None:
        if said is None:
            return
        if isinstance(said, bytes):
            self._say(account, reply, said)
        elif isinstance(said, Durable):
            self._when_durable(account, reply, said)
        else:
            self._off_loop(account, reply, said, key)

    def _say(self, account: JsAccount, reply: bytes, said: bytes) -> None:
        self.engine.exchange.publish(account.id, reply, None, None, said)

    def _when_durable(self, account: JsAccount, reply: bytes, said: Durable) -> None:
        def refused(error: Exception) -> None:
            if said.refused is not None:
                self._say(account, reply, said.refused(error))

        say = partial(self._say, account, reply, said.answer)
        self.engine.after(said.target, said.mark, say, refused, now=said.in_memory)

    def _off_loop(self, account: JsAccount, reply: bytes, later: Later, key: Key | None) -> None:
        if key is not None:
            account.calls.begin(key)
        if later.fenced is not None:
            later.fenced.fence()

        def done(result: Any) -> None:
            try:
                self._say(account, reply, later.finish(result))
            finally:
                if later.fenced is not None:
                    later.fenced.unfence()
                if key is not None:
                    account.calls.end(key)

        self.engine.off_loop(later.work, done)

    # Direct get

    def _stream_changed(self, account: JsAccount, name: str) -> None:
        """Direct gets are listened for while the stream is there and allows them."""
        key, stream = (account.name, name), account.streams.get(name)
        wanted = stream is not None and (stream.config.allow_direct or stream.config.mirror_direct)
        if wanted and stream is not None and key not in self._direct:
            number = self.engine.register_call(partial(self._on_direct, account, stream))
            tokens = [
                self.engine.exchange.listen(account.id, f"{prefix}{name}{tail}", CALL, number)
                for prefix in self._prefixes("$JS.API.DIRECT.GET.")
                for tail in ("", ".>")
            ]
            self._direct[key] = number, tokens
        elif not wanted and key in self._direct:
            number, tokens = self._direct.pop(key)
            for token in tokens:
                self.engine.exchange.unlisten(token)
            self.engine.unregister(number)

    def _on_direct(
        self,
        account: JsAccount,
        stream: Stream,
        conn: int | None,
        subject: str,
        reply: bytes | None,
        headers: bytes | None,
        data: bytes,
        _account: int = 0,
    ) -> None:
        if not reply:
            return
        tail = subject.partition(f".DIRECT.GET.{stream.name}")[2].removeprefix(".")

        def answer() -> None:
            found = direct.answers(stream, tail, data, headers, self.facts)
            DirectSender(self.engine, account.id, conn, reply, found).start()

        def serve() -> None:
            if stream.is_busy:
                stream.when_free(serve)
            # What is written and not yet on disk may be the answer: it is not shown before it is safe.
            elif self.engine.sync_needed and not is_durable(stream):
                self.engine.after(stream.store, stream.mark(), answer)
            else:
                answer()

        self.engine.in_turn(conn, serve)
