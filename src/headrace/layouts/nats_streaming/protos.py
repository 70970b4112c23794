"""The small protobufs of server.dat, clients.dat and subs.dat, as the product writes them: fields in ascending
order, empty ones left out, negative numbers as ten bytes, unknown fields skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from headrace.layouts.varint import MASK64, get_uvarint, put_uvarint


def split_fields(data: bytes) -> dict[int, int | bytes]:
    """Field number → value, the last one of each. ValueError when it is no protobuf."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(data):
        tag, at = get_uvarint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0 or wire not in (0, 1, 2, 5):
            raise ValueError(f"illegal wireType {wire}")
        if wire == 0:
            found[number], at = get_uvarint(data, at)
            continue
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = get_uvarint(data, at)
        if at + size > len(data):
            raise ValueError("a field is cut short")
        if wire == 2:
            found[number] = data[at : at + size]
        at += size
    return found


@dataclass(frozen=True, slots=True)
class Proto:
    """A message whose dataclass fields are its fields; `numbers` says which number each has."""

    numbers: ClassVar[dict[str, int]] = {}

    def encode(self) -> bytes:
        """The bytes, as the real server writes them."""
        out = bytearray()
        for name, number in self.numbers.items():
            value = getattr(self, name)
            if not value:
                continue
            if isinstance(value, (bool, int)):
                put_uvarint(out, number << 3)
                put_uvarint(out, int(value) & MASK64)
            else:
                raw: bytes = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
                put_uvarint(out, number << 3 | 2)
                put_uvarint(out, len(raw))
                out += raw
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes; ValueError when they are none."""
        found = split_fields(data)
        values: dict[str, Any] = {}
        kinds = {field.name: field.default for field in fields(cls)}
        for name, number in cls.numbers.items():
            raw = found.get(number)
            if raw is None:
                continue
            kind = kinds[name]
            if isinstance(kind, bool):
                values[name] = bool(raw)
            elif isinstance(kind, int):
                if not isinstance(raw, int):
                    raise ValueError(f"field {number} is no number")
                values[name] = raw
            elif not isinstance(raw, bytes):
                raise ValueError(f"field {number} is no text")
            else:
                values[name] = raw if isinstance(kind, bytes) else raw.decode("utf-8", "surrogateescape")
        return cls(**values)

    def with_(self, **changes: Any) -> Self:
        """A copy with other values."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class ServerInfo(Proto):
    """The one record of server.dat: the cluster and the subjects that are served."""

    cluster_id: str = ""
    discovery: str = ""
    publish: str = ""
    subscribe: str = ""
    unsubscribe: str = ""
    close: str = ""
    sub_close: str = ""
    acks_subs: str = ""
    node_id: str = ""

    numbers: ClassVar[dict[str, int]] = {
        name: number
        for number, name in enumerate(
            [
                "cluster_id",
                "discovery",
                "publish",
                "subscribe",
                "unsubscribe",
                "close",
                "sub_close",
                "acks_subs",
                "node_id",
            ],
            1,
        )
    }

    @classmethod
    def of_cluster(cls, cluster_id: str) -> ServerInfo:
        """What a new server of that cluster id writes."""
        subject = {
            name: f"_STAN.{word}.{cluster_id}"
            for name, word in {
                "discovery": "discover",
                "publish": "pub",
                "subscribe": "sub",
                "unsubscribe": "unsub",
                "close": "close",
                "sub_close": "subclose",
                "acks_subs": "ack",
            }.items()
        }
        return cls(cluster_id=cluster_id, **subject)


@dataclass(frozen=True, slots=True)
class ClientInfo(Proto):
    """A registered client."""

    id: str = ""
    heartbeat_inbox: str = ""
    conn_id: bytes = b""
    protocol: int = 0
    ping_interval_s: int = 0
    ping_max_out: int = 0

    numbers: ClassVar[dict[str, int]] = {
        "id": 1,
        "heartbeat_inbox": 2,
        "conn_id": 3,
        "protocol": 4,
        "ping_interval_s": 5,
        "ping_max_out": 6,
    }


@dataclass(frozen=True, slots=True)
class SubState(Proto):
    """A subscription. A durable queue has no `durable_name`: its group is called `<durable>:<group>`."""

    id: int = 0
    client_id: str = ""
    queue_group: str = ""
    inbox: str = ""
    ack_inbox: str = ""
    max_in_flight: int = 0
    ack_wait_s: int = 0
    durable_name: str = ""
    last_sent: int = 0
    is_durable: bool = False
    is_closed: bool = False

    numbers: ClassVar[dict[str, int]] = {
        "id": 1,
        "client_id": 2,
        "queue_group": 3,
        "inbox": 4,
        "ack_inbox": 5,
        "max_in_flight": 6,
        "ack_wait_s": 7,
        "durable_name": 8,
        "last_sent": 9,
        "is_durable": 10,
        "is_closed": 11,
    }


@dataclass(frozen=True, slots=True)
class Deletion(Proto):
    """`SubStateDelete`; an empty one (ID 0) is normal: the server writes it when it refuses a subscription."""

    id: int = 0

    numbers: ClassVar[dict[str, int]] = {"id": 1}


@dataclass(frozen=True, slots=True)
class ClientDelete(Proto):
    """A client that is gone."""

    id: str = ""

    numbers: ClassVar[dict[str, int]] = {"id": 1}
