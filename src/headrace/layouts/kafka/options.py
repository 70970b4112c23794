"""Every setting of a topic that has to do with its files, under Kafka's own name, and a few of clients.

Differences from the broker's defaults, on purpose: `retention.ms` is off (a library does not delete unasked; the
broker's is 7 days), and in mode `sync` every commit is on disk whatever `flush.messages` and `flush.ms` say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from headrace.errors import BadInput
from headrace.layouts.layout import LayoutOptions

NEVER = 2**63 - 1
INT_MAX = 2**31 - 1
Codec = Literal["producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"]


def _meta(text: str, least: int | None = None, most: int | None = None) -> msgspec.Meta:
    return msgspec.Meta(description=text, ge=least, le=most)


class KafkaOptions(LayoutOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a Kafka log directory; each may also be given for one log when it is created."""

    segment_bytes: Annotated[int, _meta("a segment ends before it would be larger", 1, INT_MAX)] = 1 << 30
    segment_ms: Annotated[int, _meta("… or when messages are this much newer than its first batch", 1)] = (
        7 * 86_400_000
    )
    segment_jitter_ms: Annotated[int, _meta("taken off segment.ms at random, per segment", 0)] = 0
    segment_index_bytes: Annotated[int, _meta("a full index ends the segment too", 4, INT_MAX)] = 10 << 20
    index_interval_bytes: Annotated[int, _meta("bytes of log between two index entries", 0, INT_MAX)] = 4096
    retention_bytes: Annotated[int, _meta("keep at least this much; −1: no limit", -1)] = -1
    retention_ms: Annotated[int, _meta("delete segments whose newest message is older; −1: never", -1)] = -1
    cleanup_policy: Annotated[str, _meta("delete, compact, or both with a comma")] = "delete"
    delete_retention_ms: Annotated[int, _meta("how long tombstones outlive compaction", 0)] = 86_400_000
    file_delete_delay_ms: Annotated[int, _meta("renamed to .deleted first, unlinked later", 0)] = 60_000
    max_message_bytes: Annotated[int, _meta("largest batch", 0, INT_MAX)] = 1_048_588
    message_timestamp_type: Annotated[
        Literal["CreateTime", "LogAppendTime"], _meta("whose clock messages carry")
    ] = "CreateTime"
    message_format_version: Annotated[
        str, _meta("0.9 writes format 0, 0.10 format 1, later versions format 2")
    ] = "3.0-IV1"
    compression_type: Annotated[Codec, _meta("producer: appended batches stay as they are")] = "producer"
    compression_gzip_level: Annotated[int, _meta("1 to 9; −1: usual", -1, 9)] = -1
    compression_lz4_level: Annotated[int, _meta("accepted; this codec has one level here", 1, 17)] = 9
    compression_zstd_level: Annotated[int, _meta("−131072 to 22", -131_072, 22)] = 3
    flush_messages: Annotated[int, _meta("mode interval: sync after so many messages", 1)] = NEVER
    flush_ms: Annotated[int, _meta("mode interval: sync when data is so old", 0)] = NEVER
    log_retention_check_interval_ms: Annotated[int, _meta("how often retention is looked at", 1)] = 300_000
    log_flush_offset_checkpoint_interval_ms: Annotated[int, _meta("how often checkpoints are written", 0)] = (
        60_000
    )
    producer_id_expiration_ms: Annotated[int, _meta("producers silent for longer are forgotten", 1)] = (
        86_400_000
    )
    batch_size: Annotated[int, _meta("producer: messages of one append go into batches of this size", 0)] = (
        16_384
    )
    isolation_level: Annotated[
        Literal["read_uncommitted", "read_committed"], _meta("consumer: leave out what was aborted")
    ] = "read_uncommitted"
    decompressed_bytes_max: Annotated[int, _meta("ours: what one batch may unpack to", 1, 1 << 30)] = (
        128 << 20
    )
    open_logs_max: Annotated[
        int, _meta("ours: logs whose files stay open; 0: a sixth of what the process may open", 0)
    ] = 0

    names: ClassVar[Mapping[str, str]] = {
        "segment_bytes": "segment.bytes",
        "segment_ms": "segment.ms",
        "segment_jitter_ms": "segment.jitter.ms",
        "segment_index_bytes": "segment.index.bytes",
        "index_interval_bytes": "index.interval.bytes",
        "retention_bytes": "retention.bytes",
        "retention_ms": "retention.ms",
        "cleanup_policy": "cleanup.policy",
        "delete_retention_ms": "delete.retention.ms",
        "file_delete_delay_ms": "file.delete.delay.ms",
        "max_message_bytes": "max.message.bytes",
        "message_timestamp_type": "message.timestamp.type",
        "message_format_version": "message.format.version",
        "compression_type": "compression.type",
        "compression_gzip_level": "compression.gzip.level",
        "compression_lz4_level": "compression.lz4.level",
        "compression_zstd_level": "compression.zstd.level",
        "flush_messages": "flush.messages",
        "flush_ms": "flush.ms",
        "log_retention_check_interval_ms": "log.retention.check.interval.ms",
        "log_flush_offset_checkpoint_interval_ms": "log.flush.offset.checkpoint.interval.ms",
        "producer_id_expiration_ms": "producer.id.expiration.ms",
        "batch_size": "batch.size",
        "isolation_level": "isolation.level",
    }

    @property
    def codec(self) -> str:
        """What messages are compressed with when they are appended."""
        return "none" if self.compression_type in ("producer", "uncompressed") else self.compression_type

    @property
    def level(self) -> int | None:
        """The level of that codec; None is its usual one."""
        if self.compression_type == "gzip" and self.compression_gzip_level >= 1:
            return self.compression_gzip_level
        return self.compression_zstd_level if self.compression_type == "zstd" else None

    @property
    def message_format(self) -> int:
        """0, 1 or 2."""
        return format_of(self.message_format_version)

    @property
    def deletes(self) -> bool:
        """Whether retention applies."""
        return "delete" in self.cleanup_policy.split(",")

    @property
    def index_entries_max(self) -> int:
        """Entries of `.index` at which it is full."""
        return max(self.segment_index_bytes // 8, 1)

    @property
    def time_entries_max(self) -> int:
        """Entries of `.timeindex` at which it is full: one place is kept for the closing one."""
        return max(self.segment_index_bytes // 12 - 1, 1)

    def checked(self) -> KafkaOptions:
        """Itself; BadInput when values do not go together."""
        unknown = set(self.cleanup_policy.split(",")) - {"delete", "compact"}
        if unknown:
            raise BadInput(f"cleanup.policy {self.cleanup_policy!r}: delete, compact, or delete,compact")
        if self.message_format < 2 and self.codec == "zstd":
            raise BadInput("zstd needs message format 2: message.format.version 0.11 or later")
        return self


def format_of(version: str) -> int:
    """The message format that brokers of a version write."""
    numbers = version.split("-")[0].split(".")
    if not numbers or not all(part.isdecimal() for part in numbers):
        raise BadInput(f"message.format.version {version!r}: a version such as 0.9.0, 0.10.2 or 3.0-IV1")
    major, minor = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
    if major > 0 or minor >= 11:
        return 2
    return 1 if minor == 10 else 0
