"""Settings of RocketMQ's MessageStoreConfig that have to do with its files, under their own names.

Different from the broker's on purpose: files are kept until `fileReservedTime` is given (its default is 72 hours), and
`enabledAppendPropCRC` is on, because without it only bodies have a checksum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from headrace.layouts.layout import LayoutOptions


def _meta(text: str, least: int | None = None, most: int | None = None) -> msgspec.Meta:
    return msgspec.Meta(description=text, ge=least, le=most)


class RocketOptions(LayoutOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a RocketMQ store. Sizes of files that are there already are taken from those files."""

    mapped_file_size_commit_log: Annotated[int, _meta("bytes of a commit-log file", 1024, 2**31 - 1)] = (
        1 << 30
    )
    mapped_file_size_consume_queue: Annotated[
        int, _meta("bytes of a queue file: 20 per message", 20, 2**31 - 1)
    ] = 300_000 * 20
    max_message_size: Annotated[int, _meta("largest body", 0, 64 << 20)] = 4 << 20
    message_index_enable: Annotated[bool, _meta("keep the index by key")] = True
    max_hash_slot_num: Annotated[int, _meta("slots of an index file", 1, 2**30)] = 5_000_000
    max_index_num: Annotated[int, _meta("entries of an index file", 2, 2**30)] = 20_000_000
    file_reserved_time: Annotated[
        int, _meta("hours after which whole commit-log files go; −1: never", -1)
    ] = -1
    flush_disk_type: Annotated[
        Literal["SYNC_FLUSH", "ASYNC_FLUSH"], _meta("ASYNC_FLUSH is what mode interval does")
    ] = "SYNC_FLUSH"
    flush_interval_commit_log: Annotated[int, _meta("mode interval: ms between two syncs", 1)] = 500
    enabled_append_prop_crc: Annotated[
        bool, _meta("a checksum over the whole message, as its last property")
    ] = True
    store_host: Annotated[str, _meta("address that messages say they were stored at")] = "127.0.0.1:10911"
    decompressed_bytes_max: Annotated[int, _meta("ours: what one body may unpack to", 1, 1 << 30)] = 64 << 20
    open_queues_max: Annotated[
        int, _meta("ours: queues whose files stay open; 0: a sixth of what the process may open", 0)
    ] = 0

    names: ClassVar[Mapping[str, str]] = {
        "mapped_file_size_commit_log": "mappedFileSizeCommitLog",
        "mapped_file_size_consume_queue": "mappedFileSizeConsumeQueue",
        "max_message_size": "maxMessageSize",
        "message_index_enable": "messageIndexEnable",
        "max_hash_slot_num": "maxHashSlotNum",
        "max_index_num": "maxIndexNum",
        "file_reserved_time": "fileReservedTime",
        "flush_disk_type": "flushDiskType",
        "flush_interval_commit_log": "flushIntervalCommitLog",
        "enabled_append_prop_crc": "enabledAppendPropCRC",
        "store_host": "storeHost",
    }
