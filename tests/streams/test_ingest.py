"""The everyday way of a publish: taken in with one step of the core, and answered before its state is updated."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.commits import Group
from headrace.engine.ports import InlineHost
from tests.streams.test_in_batch import Server, pub
from tests.support.memory_model import line_of

NEXT = "$JS.API.CONSUMER.MSG.NEXT.S.c"


def test_runs_of_any_length_fill_block_after_block() -> None:
    """What does not fit into the newest block goes the long way; nobody sees a difference."""
    server = Server({}, ())
    try:
        store = server.model.account().streams["S"].store
        store.block_bytes = 600
        sent = 0
        for length in (1, 2, 7, 1, 1, 30, 3, 1, 12):
            run = [pub("s.a", b"%d" % (sent + n) * (1 + (sent + n) % 9 * 9)) for n in range(length)]
            assert [sequence for sequence, _ in server.ask(run)] == list(range(sent + 1, sent + length + 1))
            sent += length
        held = [record.data for record in store.read(1, 1000)]
        assert held == [b"%d" % n * (1 + n % 9 * 9) for n in range(sent)]
        blocks = store.log.blocks()
        assert len(blocks) > 8 and store.complete == sent
        assert server.wire.api("STREAM.INFO.S")["state"]["messages"] == sent
    finally:
        server.model.close()


def test_one_refused_message_does_not_take_the_others_with_it() -> None:
    server = Server({"max_msg_size": 10}, ())
    try:
        long, short = pub("s.a", b"x" * 11), pub("s.a", b"x" * 10)
        answers = server.ask([short, long, short, short, long])
        assert [sequence for sequence, _ in answers] == [1, 0, 2, 3, 0]
        assert server.ask([long])[0][1] == "message size exceeds maximum allowed"
        assert server.ask([short]) == [(4, "")]
    finally:
        server.model.close()


def test_a_lone_answer_leaves_before_the_rest_of_the_turn() -> None:
    """The client can go on while we note what we have done. Where several wait, one send per client is for all."""
    server = Server({}, ("",))
    try:
        engine, consumer = server.model.engine, server.model.account().streams["S"].consumers["c0"]
        early: list[tuple[int, int]] = []
        engine.host = EarlyHost(
            lambda: early.append((len(engine.exchange.take_output()), consumer.num_pending()))
        )
        next_message = pub("$JS.API.CONSUMER.MSG.NEXT.S.c0", b"")
        assert server.wire.ask([pub("s.a")]) == [None]  # it went early, and here that is nowhere
        server.wire.ask([pub("s.a"), pub("s.a"), pub("s.b")])  # one run of one stream
        assert [clients for clients, _ in early] == [1, 1]
        server.wire.ask([next_message])
        assert early[2] == (1, 4), "the message was on its way before it was counted"
        assert consumer.num_pending() == 3
        server.wire.ask([pub("$JS.ACK.S.c0.1.1.1.0.0", b"+ACK"), next_message])
        assert early[3] == (1, 3) and consumer.ledger.num_pending == 1
        assert server.wire.ask([pub("s.a"), next_message])[0] is not None
        assert len(early) == 4
    finally:
        server.model.close()


def test_answers_that_waited_for_one_sync_leave_together() -> None:
    """Three runs of one client share a sync: one send tells of all of them."""
    server = Server({}, (), durability="sync")
    try:
        engine = server.model.engine
        groups: list[Group] = []
        engine.committer = Collector(groups)
        sends = 0

        def send() -> None:
            nonlocal sends
            sends += 1

        engine.host = EarlyHost(send)
        for _ in range(4):
            server.wire.send(line_of("s.a", "_INBOX.x", None, b"x"))
        assert len(groups) == 1 and len(groups[0].releases) == 1  # the first went alone, the others gather
        for expected in (1, 3):
            groups[-1].commit()
            assert len(groups[-1].releases) == expected
            engine.released(groups[-1])
        assert sends == 1
    finally:
        server.model.close()


class EarlyHost(InlineHost):
    """A host whose early sends the test sees."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send

    def send_early(self) -> None:
        self._send()


class Collector:
    """A committer that leaves the syncing to the test."""

    def __init__(self, groups: list[Group]) -> None:
        self.submit = groups.append


WORDS = (b"+ACK", b"+ACK", b"+ACK", b"-NAK", b"+TERM", b"+WPI", b"")
ROUNDS = st.lists(
    st.tuples(st.sampled_from(WORDS), st.integers(0, 3), st.booleans()), min_size=1, max_size=14
)


class Fetcher:
    """Acks and asks for the next message, in one packet or in two."""

    def __init__(self, config: dict[str, object], together: bool) -> None:
        self.server = Server({"retention": config.pop("retention", "limits")}, ())
        self.together, self.seen = together, list[str]()
        fields = {"durable_name": "c", **config}
        body = {"stream_name": "S", "config": fields}
        answer = self.server.wire.api("CONSUMER.DURABLE.CREATE.S.c", body)
        assert "error" not in answer, answer
        self.server.ask([pub("s.a", b"%d" % n) for n in range(12)])

    def round(self, word: bytes, which: int, double: bool) -> None:
        """An ack of the message before (or of another, perhaps one that did not come yet), and the next request."""
        wire = self.server.wire
        at = max(len(self.seen) - which, 1)
        reply = self.seen[at - 1] if which and self.seen else f"$JS.ACK.S.c.1.{at + 1}.{at + 1}.0.0"
        inbox = f"_INBOX.{len(self.seen)}.ack" if double else ""
        lines = [line_of(reply, inbox, None, word), line_of(NEXT, f"_INBOX.next.{which}", None, b"")]
        for piece in [b"".join(lines)] if self.together else lines:
            wire.send(piece)
        self.seen += [msg.reply for msg in wire.take() if msg.reply.startswith("$JS.ACK.")]

    def state(self) -> tuple[object, ...]:
        info = self.server.wire.api("CONSUMER.INFO.S.c")
        for moment in ("delivered", "ack_floor"):
            info[moment].pop("last_active", None)
        counts = [info[name] for name in ("num_ack_pending", "num_redelivered", "num_waiting", "num_pending")]
        return self.seen, info["delivered"], info["ack_floor"], counts, self.server.content()[0]


@settings(max_examples=120, deadline=None)
@given(
    ROUNDS,
    st.sampled_from([1, 2, 1000]),
    st.sampled_from(
        [("explicit", "limits"), ("explicit", "interest"), ("explicit", "workqueue"), ("all", "limits")]
    ),
)
def test_an_ack_and_a_request_in_one_packet(
    rounds: list[tuple[bytes, int, bool]], pending_max: int, kind: tuple[str, str]
) -> None:
    """The request may be served before the ack is noted; nobody can tell."""
    config = {"ack_policy": kind[0], "max_ack_pending": pending_max, "retention": kind[1]}
    both = [Fetcher(dict[str, object](config), together) for together in (True, False)]
    try:
        for each in rounds:
            for fetcher in both:
                fetcher.round(*each)
            assert both[0].state() == both[1].state()
    finally:
        for fetcher in both:
            fetcher.server.model.close()
