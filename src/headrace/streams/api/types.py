"""Requests and answers of the JetStream API.

Requests are structs, read by `json_reader.read`. An answer is one JSON object: `type`, then `error` or not, then the fields in the real server's order; an answer that says no still holds the
fields that its kind always has, at their zero values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.streams.api.json_writer import to_json
from headrace.streams.errors import ApiError

TYPE_PREFIX = "io.nats.jetstream.api.v1."
OWN_TYPE_PREFIX = "io.headrace.api.v1."
NAMES_PAGE = 1024
DETAILS_PAGE = 256
SUBJECTS_PAGE = 100_000
NO_TIME = "0001-01-01T00:00:00Z"


class StreamConfigRequest(StreamConfig, frozen=True, kw_only=True):
    """STREAM.CREATE and STREAM.UPDATE: a configuration, and whether silent adjustments are refused."""

    pedantic: bool = False


class StreamNamesRequest(msgspec.Struct, frozen=True):
    offset: int = 0
    subject: str = ""


class StreamListRequest(msgspec.Struct, frozen=True):
    offset: int = 0
    subject: str = ""


class StreamInfoRequest(msgspec.Struct, frozen=True):
    offset: int = 0
    deleted_details: bool = False
    subjects_filter: str = ""


class StreamPurgeRequest(msgspec.Struct, frozen=True):
    """Below `seq` or all but the newest `keep`, among what matches `filter`."""

    seq: int = 0
    keep: int = 0
    filter: str = ""


class MsgGetRequest(msgspec.Struct, frozen=True):
    """STREAM.MSG.GET and DIRECT.GET; the fields from `batch` on are for the latter."""

    seq: int = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    start_time: str | None = None
    batch: int = 0
    max_bytes: int = 0
    multi_last: tuple[str, ...] = ()
    up_to_seq: int = 0
    up_to_time: str | None = None
    no_hdr: bool = False


class MsgDeleteRequest(msgspec.Struct, frozen=True):
    seq: int = 0
    no_erase: bool = False


class StreamSnapshotRequest(msgspec.Struct, frozen=True):
    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: int = 0
    window_size: int = 0
    jsck: bool = False


class StreamRestoreRequest(msgspec.Struct, frozen=True):
    config: StreamConfig = StreamConfig(name="")
    state: msgspec.Raw = msgspec.Raw(b"{}")


class CreateConsumerRequest(msgspec.Struct, frozen=True):
    stream_name: str = ""
    config: ConsumerConfig = ConsumerConfig()
    action: Literal["", "create", "update"] = ""
    pedantic: bool = False


class ConsumersRequest(msgspec.Struct, frozen=True):
    """CONSUMER.NAMES and CONSUMER.LIST."""

    offset: int = 0


class ConsumerPauseRequest(msgspec.Struct, frozen=True):
    pause_until: str | None = None


class ConsumerUnpinRequest(msgspec.Struct, frozen=True):
    group: str = ""


class ConsumerResetRequest(msgspec.Struct, frozen=True):
    seq: int = 0


class ProducerInfoRequest(msgspec.Struct, frozen=True):
    producer: str = ""
    offset: int = 0


class ProducerSettleRequest(msgspec.Struct, frozen=True):
    producer: str = ""
    below: int = 0


class ProducerDeleteRequest(msgspec.Struct, frozen=True):
    producer: str = ""


_NO_PAGE: dict[str, Any] = {"total": 0, "offset": 0, "limit": 0}
# What an answer holds beside `error`, by kind.
_WHEN_REFUSED: Mapping[str, dict[str, Any]] = {
    "stream_names": {**_NO_PAGE, "streams": None},
    "stream_list": {**_NO_PAGE, "streams": []},
    "stream_info": _NO_PAGE,
    "stream_purge": {"purged": 0},
    "stream_restore": {"deliver_subject": ""},
    "consumer_names": {**_NO_PAGE, "consumers": []},
    "consumer_list": {**_NO_PAGE, "consumers": []},
    "consumer_pause": {"paused": False, "pause_until": NO_TIME},
    "consumer_reset": {"reset_seq": 0},
}


def answer(kind: str, fields: Mapping[str, Any]) -> bytes:
    """An answer that says yes."""
    return to_json({"type": _type(kind), **fields})


def _type(kind: str) -> str:
    prefix = OWN_TYPE_PREFIX if kind.startswith("producer_") else TYPE_PREFIX
    return f"{prefix}{kind}_response"


def refusal(kind: str, error: ApiError) -> bytes:
    """An answer that says no."""
    rest = _WHEN_REFUSED.get(kind, {})
    return to_json({"type": _type(kind), "error": error.as_json(), **rest})


def paged(items: list[Any], offset: int, limit: int) -> tuple[dict[str, int], list[Any]]:
    """(`total`, `offset` and `limit` of the answer, the items of that page)."""
    first = min(max(offset, 0), len(items))
    return {"total": len(items), "offset": first, "limit": limit}, items[first : first + limit]
