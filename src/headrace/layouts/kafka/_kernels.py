"""The one module of this package that calls the Rust core."""

from __future__ import annotations

from headrace._core import (
    Batch,
    Disk,
    DiskLock,
    KafkaEncoded,
    KafkaProducers,
    KafkaReader,
    KafkaSurvey,
    KafkaWriter,
    kafka_crc32c,
    kafka_encode,
    kafka_frames,
    kafka_survey,
)

__all__ = [
    "Batch",
    "Disk",
    "DiskLock",
    "KafkaEncoded",
    "KafkaProducers",
    "KafkaReader",
    "KafkaSurvey",
    "KafkaWriter",
    "kafka_crc32c",
    "kafka_encode",
    "kafka_frames",
    "kafka_survey",
]
