"""The everyday way of a publish: taken in with one step of the core, and answered before the books are closed."""

from __future__ import annotations

from tests.model.test_in_batch import Server, pub


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
        told = server.ask([short, long, short, short, long])
        assert [sequence for sequence, _ in told] == [1, 0, 2, 3, 0]
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
        engine.send_early = lambda: early.append((len(engine.exchange.take_output()), consumer.num_pending()))
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
