"""What becomes of everything a message has, said before anything is written.

kept      the target has a place for it
changed   kept in another form: the table says how
carried   travels in a header of ours, and is put back when the message is converted again
lost      the target has no place for it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.ops.conversion.sides import Side

Fate = Literal["kept", "changed", "carried", "lost"]


@dataclass(frozen=True, slots=True)
class Loss:
    """One row of the table."""

    what: str
    fate: Fate
    how: str


def losses(source: Side, target: Side, carry: str) -> list[Loss]:
    """The rows that hold for every log; what depends on one log stands in its plan."""
    rows = [Loss("body", "kept", "byte for byte")]
    if source.nulls and not target.nulls:
        fate: Fate = "carried" if target.headers else "lost"
        how = (
            "an empty body with the header Headrace-Null"
            if target.headers
            else "null bodies become empty ones"
        )
        rows.append(Loss("null bodies", fate, how))
    rows.append(_positions(source, target))
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
    rows.append(_readers(source, target))
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


def _positions(source: Side, target: Side) -> Loss:
    name = f"{source.position}s"
    if not target.holes:
        return Loss(name, "changed", f"{target.position}s are numbered anew from 0 without gaps")
    shift = target.origin - source.origin
    if shift:
        return Loss(name, "changed", f"{target.position} = {source.position} {'+' if shift > 0 else '-'} 1")
    return Loss(name, "kept", f"the same {target.position}, gaps included")


def _times(source: Side, target: Side) -> Loss:
    if not target.tick_ns:
        return Loss(
            "times", "changed", "kept as born time, in milliseconds; the store time is the conversion's"
        )
    if target.tick_ns > source.tick_ns > 0:
        return Loss("times", "changed", "milliseconds; finer parts are cut off")
    if target.layout == "rabbitmq":
        return Loss("times", "kept", "as timestamp, and exactly in the header timestamp_in_ns")
    return Loss("times", "kept", "messages without one get the time of the conversion")


def _subjects(source: Side, target: Side, carry: str) -> list[Loss]:
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


def _headers(source: Side, target: Side) -> list[Loss]:
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


def _readers(source: Side, target: Side) -> Loss:
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
    if target.layout == "kafka":
        return Loss("readers", "changed", "groups that go on at the first message that was not settled")
    return Loss("readers", "kept", "groups as durable readers at their committed offset")


def _holes(target: Side) -> str:
    return "they stay holes" if target.holes else "the holes are closed"
