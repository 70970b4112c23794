"""The whole model against a plain one: a state machine publishes, fetches, acknowledges, waits, removes and restarts.

Bytes go in through connections of the exchange and come out of them; nothing else is touched. After every step the
stream's state and every consumer's numbers are what tests/support/plain_model.py says.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace._core import Disk
from tests.support.memory_model import SECOND, Got, MemoryModel, StillClock, headers_of, line_of
from tests.support.plain_model import Expect, PlainStream, PubAck

# Odd parts of a second: whole seconds pass in a test, so that nothing is due at the very moment.
ACK_WAIT = 10 * SECOND + 250_000_000
MAX_AGE = 45 * SECOND + 250_000_000
WINDOW = 20 * SECOND + 500_000_000

SUBJECTS = ["s.a", "s.b", "s.c"]
CONSUMERS = {
    "limits": [{"all": "", "a": "s.a"}, {"all": ""}],
    "workqueue": [{"all": ""}, {"a": "s.a", "b": "s.b"}],
    "interest": [{"all": "", "a": "s.a"}, {"a": "s.a", "b": "s.b"}, {}],
}
expectations = st.sampled_from(
    ["none", "none", "none", "right", "wrong", "subject right", "subject wrong", "id", "id"]
)
publishes = st.tuples(st.sampled_from(SUBJECTS), expectations, st.sampled_from("xyz"), st.binary(max_size=40))


class ModelMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk, self.clock = Disk.memory(), StillClock()
        self.model: MemoryModel | None = None

    def _open(self) -> None:
        self.model = MemoryModel(self.disk, self.clock)
        self.wire = self.model.wire()

    @initialize(
        data=st.data(),
        retention=st.sampled_from(["limits", "workqueue", "interest"]),
        max_msgs=st.sampled_from([-1, -1, 4, 9]),
        per_subject=st.sampled_from([-1, -1, 2]),
        discard=st.sampled_from(["old", "new"]),
        max_age=st.sampled_from([0, 0, MAX_AGE]),
        max_deliver=st.sampled_from([-1, -1, 2]),
        max_ack_pending=st.sampled_from([1000, 3]),
    )
    def start(
        self,
        data: st.DataObject,
        retention: str,
        max_msgs: int,
        per_subject: int,
        discard: str,
        max_age: int,
        max_deliver: int,
        max_ack_pending: int,
    ) -> None:
        self._open()
        config: dict[str, Any] = {
            "name": "S",
            "subjects": ["s.*"],
            "retention": retention,
            "max_msgs": max_msgs,
            "max_msgs_per_subject": per_subject,
            "discard": discard,
            "max_age": max_age,
            "duplicate_window": WINDOW,
        }
        assert "error" not in self.wire.api("STREAM.CREATE.S", config)
        self.plain = PlainStream(
            retention,
            max_msgs=max_msgs,
            per_subject=per_subject,
            discard=discard,
            max_age=max_age,
            window=WINDOW,
        )
        self.limits = (ACK_WAIT, max_deliver, max_ack_pending)
        self.possible = data.draw(st.sampled_from(CONSUMERS[retention]))
        self.seen: dict[str, list[Got]] = {name: [] for name in self.possible}
        for name in self.possible:
            self._add_consumer(name)

    def _add_consumer(self, name: str) -> None:
        wait, max_deliver, max_ack_pending = self.limits
        config: dict[str, Any] = {
            "durable_name": name,
            "ack_policy": "explicit",
            "ack_wait": wait,
            "max_deliver": max_deliver,
            "max_ack_pending": max_ack_pending,
        }
        if self.possible[name]:
            config["filter_subject"] = self.possible[name]
        body = {"stream_name": "S", "config": config}
        answer = self.wire.api(f"CONSUMER.DURABLE.CREATE.S.{name}", body)
        assert "error" not in answer, answer
        self.plain.add_consumer(name, self.possible[name], *self.limits)

    # Publishing

    @rule(wanted=st.lists(publishes, min_size=1, max_size=6))
    def publish(self, wanted: list[tuple[str, str, str, bytes]]) -> None:
        """All in one buffer. What is expected of them is worked out one by one, each seeing those before it."""
        sent: list[tuple[str, bytes | None, bytes]] = []
        answers: list[PubAck] = []
        for subject, kind, msg_id, data in wanted:
            there = self.plain.on_subject(subject)
            last_here = there[-1] if there else 0
            expect = {
                "right": Expect(last=self.plain.last),
                "wrong": Expect(last=self.plain.last + 1),
                "subject right": Expect(last_on_subject=last_here),
                "subject wrong": Expect(last_on_subject=last_here + 1),
                "id": Expect(msg_id=msg_id),
            }.get(kind, Expect())
            headers = headers_of(
                Nats_Msg_Id=expect.msg_id,
                Nats_Expected_Last_Sequence=expect.last,
                Nats_Expected_Last_Subject_Sequence=expect.last_on_subject,
            )
            sent.append((subject, headers, data))
            answers.append(self.plain.publish(subject, headers, data, expect, self.clock()))
        for msg, answer in zip(self.wire.ask(sent), answers, strict=True):
            assert msg is not None, f"no answer, wanted {answer}"
            assert parse_ack(msg.json()) == answer, f"{msg.data!r}, not {answer}"

    # Consuming

    @precondition(lambda self: self.plain.consumers)
    @rule(data=st.data(), batch=st.integers(1, 6))
    def fetch(self, data: st.DataObject, batch: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.plain.consumers)))
        messages = dict(self.plain.live)
        wanted, ended = self.plain.fetch(name, batch, self.clock())
        got, statuses = self.wire.fetch("S", name, batch)
        assert [each.numbers for each in got] == wanted, f"{[each.numbers for each in got]}, not {wanted}"
        assert statuses == (["NATS/1.0 404 No Messages"] if ended else []), f"{statuses} after {wanted}"
        for each in got:
            message = messages[each.seq]
            assert (each.msg.subject, each.msg.headers, each.msg.data) == message[:3]
        self.seen[name] += got

    @precondition(lambda self: any(self.seen.values()))
    @rule(
        data=st.data(),
        kinds=st.lists(
            st.sampled_from(
                [b"", b"+ACK", b"", b"-NAK", b'-NAK {"delay": 3250000000}', b"+TERM", b"+WPI", b"+TERM why"]
            ),
            min_size=1,
            max_size=5,
        ),
        double=st.booleans(),
    )
    def acknowledge(self, data: st.DataObject, kinds: list[bytes], double: bool) -> None:
        """Several acknowledgements in one buffer, of messages pending, acked long ago, or delivered twice."""
        name = data.draw(st.sampled_from(sorted(each for each, seen in self.seen.items() if seen)))
        chosen = [data.draw(st.sampled_from(self.seen[name][-12:])) for _ in kinds]
        pairs = list(zip(chosen, kinds, strict=True))
        if double:
            answers = self.wire.ask([(got.msg.reply, None, kind) for got, kind in pairs])
            assert all(msg is not None and msg[2:] == (None, b"") for msg in map(plain_tuple, answers))
        else:
            self.wire.send(b"".join(line_of(got.msg.reply, "", None, kind) for got, kind in pairs))
        now = self.clock()
        for got, kind in pairs:
            if name not in self.plain.consumers:
                continue
            if kind.startswith(b"-NAK"):
                self.plain.nak(name, got.seq, 3_250_000_000 if b"delay" in kind else 0, now)
            elif kind == b"+WPI":
                self.plain.progress(name, got.seq, now)
            else:
                self.plain.ack(name, got.seq)

    @precondition(lambda self: self.plain.retention != "workqueue")
    @rule(data=st.data())
    def consumer_comes_or_goes(self, data: st.DataObject) -> None:
        if "a" not in self.possible:
            return
        if "a" in self.plain.consumers:
            assert self.wire.api("CONSUMER.DELETE.S.a")["success"]
            self.plain.remove_consumer("a")
            self.seen["a"].clear()
        else:
            self._add_consumer("a")

    # What time and people remove

    @rule(seconds=st.sampled_from([1, 4, 11, 21, 50]))
    def time_passes(self, seconds: int) -> None:
        assert self.model is not None
        self.model.pass_time(seconds * SECOND)
        self.plain.pass_time(self.clock())

    @precondition(lambda self: self.plain.live)
    @rule(data=st.data(), erase=st.booleans())
    def delete_message(self, data: st.DataObject, erase: bool) -> None:
        seq = data.draw(st.sampled_from(sorted(self.plain.live)))
        assert self.wire.api("STREAM.MSG.DELETE.S", {"seq": seq, "no_erase": not erase})["success"]
        self.plain.remove([seq])

    @rule(data=st.data(), kind=st.sampled_from(["all", "subject", "below", "keep", "subject keep"]))
    def purge(self, data: st.DataObject, kind: str) -> None:
        request: dict[str, Any] = {}
        if "subject" in kind:
            request["filter"] = data.draw(st.sampled_from(SUBJECTS))
        if kind == "below":
            request["seq"] = data.draw(st.integers(1, self.plain.last + 1))
        if "keep" in kind:
            request["keep"] = data.draw(st.integers(1, 3))
        purged = self.wire.api("STREAM.PURGE.S", request or None)["purged"]
        assert purged == self.plain.purge(
            request.get("filter", ""), request.get("seq", 0), request.get("keep", 0)
        )

    @rule()
    def restart(self) -> None:
        assert self.model is not None
        self.model.close()
        self._open()
        assert self.model is not None
        self.model.run()
        self.plain.restart(self.clock())

    # Always

    @invariant()
    def the_numbers_agree(self) -> None:
        if self.model is None:
            return
        info = self.wire.api("STREAM.INFO.S")["state"]
        wanted = self.plain.state()
        assert {key: info.get(key, 0) for key in wanted} == wanted, f"{info}, not {wanted}"
        for name, consumer in self.plain.consumers.items():
            info = self.wire.api(f"CONSUMER.INFO.S.{name}")
            shown = {
                "delivered": (info["delivered"]["consumer_seq"], info["delivered"]["stream_seq"]),
                "ack pending": info["num_ack_pending"],
                "redelivered": info["num_redelivered"],
                "pending": info["num_pending"],
                "floor": (info["ack_floor"]["consumer_seq"], info["ack_floor"]["stream_seq"]),
            }
            expected = {
                "delivered": consumer.delivered,
                "ack pending": len(consumer.pending),
                "redelivered": consumer.redelivered,
                "pending": len(self.plain.waiting_for(consumer)),
                "floor": shown["floor"] if consumer.gave_up_once else consumer.floor,
            }
            assert shown == expected, f"{name}: {shown}, not {expected}"
        assert self.wire.take() == []

    def teardown(self) -> None:
        if self.model is not None:
            self.model.close()


def parse_ack(body: dict[str, Any]) -> PubAck:
    assert body["stream"] == "S"
    error = body.get("error")
    problem = None if error is None else (error["code"], error["err_code"], error["description"])
    return PubAck(body["seq"], body.get("duplicate", False), problem)


def plain_tuple(msg: Any) -> Any:
    return None if msg is None else (msg.subject, msg.reply, msg.headers, msg.data)


def test_the_server_does_what_the_plain_model_does() -> None:
    run_state_machine_as_test(
        ModelMachine,
        settings=settings(
            max_examples=120,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
