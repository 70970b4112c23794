"""What becomes of everything a message has, said before anything is written.

kept      the target has a place for it
changed   kept in another form: the table says how
carried   travels in a header of ours, and is put back when the message is converted again
lost      the target has no place for it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from headrace.layouts.capabilities import Capabilities
from headrace.ops.conversion.plan import ConvertedLog

Fate = Literal["kept", "changed", "carried", "lost"]


@dataclass(frozen=True, slots=True)
class Loss:
    """One row of the table."""

    what: str
    fate: Fate
    how: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What the plan does with logs: which targets take several, and whether one is divided by subject."""

    joined: tuple[str, ...] = ()
    divided: bool = False
    all_joined: bool = False
    order: str = "time"
    work_queue: bool = False

    @classmethod
    def of(cls, items: Sequence[ConvertedLog], order: str, *, work_queue: bool) -> Self:
        """From the plan."""
        joined = tuple(dict.fromkeys(item.target for item in items if item.joined > 1))
        return cls(
            joined,
            divided=any(item.subjects for item in items),
            all_joined=all(item.joined > 1 for item in items) and bool(items),
            order=order,
            work_queue=work_queue,
        )

    @property
    def names(self) -> str:
        """The joined logs, for people."""
        more = f" and {len(self.joined) - 5} more" if len(self.joined) > 5 else ""
        return f"{', '.join(self.joined[:5])}{more}"


def losses(source: Capabilities, target: Capabilities, carry: str, shape: Shape) -> list[Loss]:
    """The rows that hold for the whole conversion; what depends on one log stands in its plan."""
    rows = [Loss("body", "kept", "byte for byte")]
    if source.nulls and not target.nulls:
        fate: Fate = "carried" if target.headers else "lost"
        how = (
            "an empty body with the header Headrace-Null"
            if target.headers
            else "null bodies become empty ones"
        )
        rows.append(Loss("null bodies", fate, how))
    rows += _positions(source, target, shape)
    if shape.joined:
        how = (
            "merged by time; each log keeps its own order"
            if shape.order == "time"
            else "one log after the other: times go back where the next one begins"
        )
        rows.append(Loss(f"order in {shape.names}", "changed", how))
    rows.append(_times(source, target))
    rows += _subjects(source, target, carry)
    if source.keys:
        if target.keys:
            rows.append(
                Loss("keys", "kept", "as RocketMQ's KEYS" if target.layout == "rocketmq" else "as keys")
            )
        elif target.headers:
            rows.append(Loss("keys", "carried", "in the header Headrace-Key"))
        else:
            rows.append(Loss("keys", "lost", "NATS Streaming's messages have no key"))
    rows += _headers(source, target)
    rows += _all_readers(source, target, shape)
    if source.layout == "kafka" and target.layout != "kafka":
        rows.append(
            Loss("transactions", "changed", "committed messages only; control records are no messages")
        )
        rows.append(Loss("producer ids, leader epochs", "lost", "they belong to a Kafka cluster"))
    if source.layout == "jetstream" and target.layout != "jetstream":
        rows.append(
            Loss("stream configuration", "lost", "limits, retention and the like are not set in the target")
        )
        rows.append(Loss("deleted sequences", "changed" if target.holes else "lost", _holes(target)))
    if source.layout == "rabbitmq" and target.layout != "rabbitmq":
        rows.append(Loss("acked messages", "lost", "only what is still in the queue is converted"))
    return rows


def _positions(source: Capabilities, target: Capabilities, shape: Shape) -> list[Loss]:
    name = f"{source.position}s"
    if not target.holes:
        return [Loss(name, "changed", f"{target.position}s are numbered anew from 0 without gaps")]
    rows: list[Loss] = []
    if shape.joined:
        anew = f"{target.position}s are numbered anew from {target.origin} without gaps"
        rows.append(Loss(f"{name} in {shape.names}", "changed", anew))
    if shape.all_joined:
        return rows
    shift = target.origin - source.origin
    if shift:
        how = f"{target.position} = {source.position} {'+' if shift > 0 else '-'} 1"
        return [Loss(name, "changed", how), *rows]
    return [Loss(name, "kept", f"the same {target.position}, gaps included"), *rows]


def _times(source: Capabilities, target: Capabilities) -> Loss:
    if not target.tick_ns:
        return Loss(
            "times", "changed", "kept as born time, in milliseconds; the store time is the conversion's"
        )
    if target.tick_ns > source.tick_ns > 0:
        return Loss("times", "changed", "milliseconds; finer parts are cut off")
    if target.layout == "rabbitmq":
        return Loss("times", "kept", "as timestamp, and exactly in the header timestamp_in_ns")
    return Loss("times", "kept", "messages without one get the time of the conversion")


def _subjects(source: Capabilities, target: Capabilities, carry: str) -> list[Loss]:
    if source.layout == target.layout:
        return [Loss("subjects", "kept", "as they are")]
    if not target.subjects:
        if not source.subjects:
            return []
        if not target.headers:
            return [Loss("subjects", "lost", "every message of a channel has the channel's name")]
        if carry == "key":
            return [Loss("subjects", "changed", "they become the key of messages that have none")]
        if carry == "no":
            return [Loss("subjects", "lost", "as asked for")]
        return [Loss("subjects", "carried", "in the header Headrace-Subject")]
    if source.subjects and target.layout == "rabbitmq":
        return [
            Loss("subjects", "kept", "as routing keys; those above 255 bytes in the header Headrace-Subject")
        ]
    if source.subjects:
        return [
            Loss(
                "routing keys",
                "carried",
                "in the header Headrace-Subject, where they differ from the queue's name",
            )
        ]
    return [Loss("subjects", "kept", "one per log, made of its name")]


def _headers(source: Capabilities, target: Capabilities) -> list[Loss]:
    if source.layout == "nats_streaming":
        if target.layout == source.layout:
            return []
        return [Loss("reply subjects", "kept", "in the header Nats-Streaming-Reply")]
    if not target.headers:
        return [Loss("headers", "lost", "all but Nats-Streaming-Reply")]
    rows: list[Loss] = []
    if source.layout == target.layout or target.layout == "kafka":
        rows.append(Loss("headers", "kept", "in order, with repetitions"))
    else:
        rows.append(
            Loss(
                "headers", "kept", "what the target cannot spell (null, binary) in the header Headrace-Header"
            )
        )
    if source.layout == "rabbitmq" and target.layout != "rabbitmq":
        rows.append(Loss("types of header values", "lost", "numbers, booleans and tables become texts"))
    if target.layout == "rocketmq" and source.layout != "rocketmq":
        rows.append(
            Loss("repeated headers", "changed", "all are stored; RocketMQ's own clients show the last")
        )
    return rows


def _all_readers(source: Capabilities, target: Capabilities, shape: Shape) -> list[Loss]:
    usual = _readers(source, target)
    if usual.fate == "lost":
        return [usual]
    if shape.work_queue:
        return [Loss("readers", "lost", "a work queue has none yet: every message is given out once more")]
    rows = [] if shape.all_joined else [usual]
    if shape.joined:
        how = {
            "jetstream": "one consumer for each name: what it has not acked is pending, the rest is done",
            "nats_streaming": "one durable for each name: what it has not acked is pending, the rest is done",
            "kafka": "groups that go on at the first message that was not acked in one of the logs",
        }[target.layout]
        rows.append(Loss(f"readers of {shape.names}", "changed", how))
    if shape.divided:
        rows.append(Loss("readers of streams that are divided", "lost", "no part has all of their messages"))
    return rows


def _readers(source: Capabilities, target: Capabilities) -> Loss:
    durable = {"jetstream", "nats_streaming"}
    if source.layout in durable and target.layout in durable:
        if source.layout == target.layout:
            return Loss("readers", "kept", "with positions and pending messages")
        if target.layout == "jetstream":
            return Loss(
                "readers",
                "kept",
                "durables and durable queue groups as pull consumers: position, pending, limits",
            )
        return Loss(
            "readers", "changed", "durable consumers as durables of a client of that name; filters are lost"
        )
    if "rabbitmq" in (source.layout, target.layout):
        return Loss("readers", "lost", "RabbitMQ's queues keep none")
    if "rocketmq" in (source.layout, target.layout):
        return Loss("readers", "lost", "RocketMQ keeps them outside its store")
    if source.layout == target.layout:
        return Loss("readers", "kept", "__consumer_offsets is copied")
    if target.layout == "kafka":
        return Loss("readers", "changed", "groups that go on at the first message that was not acked")
    return Loss("readers", "kept", "groups as durable readers at their committed offset")


def _holes(target: Capabilities) -> str:
    return "they stay holes" if target.holes else "the holes are closed"
