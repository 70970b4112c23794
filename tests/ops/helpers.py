"""Stores for the operators' tests, and a fingerprint that shows whether a directory was touched."""

from __future__ import annotations

import hashlib
from pathlib import Path

import headrace
from tests.support.vectors import Vector

STREAMS = "jetstream/$G/streams"


def fingerprint(path: Path) -> str:
    """Names, kinds, sizes and content of everything below a directory (or of a file)."""
    digest = hashlib.sha256()
    for each in sorted([path, *path.rglob("*")]):
        digest.update(f"{each.relative_to(path)}|{each.is_symlink()}|{each.is_dir()}|".encode())
        if each.is_file():
            digest.update(each.read_bytes())
    return digest.hexdigest()


def small_store(path: Path, messages: int = 300, block_bytes: int = 4096) -> Path:
    """A store of ours: one stream, several blocks, a few removed messages, a consumer."""
    from headrace.config.model import ConsumerConfig

    with headrace.open(str(path), mode="rw", create=True, block_bytes=block_bytes) as volume:
        orders = volume.create("ORDERS", subjects=["orders.>"])
        for start in range(1, messages + 1, 50):
            seqs = range(start, start + 50)
            headers = [b"NATS/1.0\r\nN: %d\r\n\r\n" % seq if seq % 3 == 0 else None for seq in seqs]
            payloads = [f"order {seq}".encode() for seq in seqs]
            ticket = orders.append(headrace.batch([f"orders.{seq % 4}" for seq in seqs], payloads, headers))
            volume.commit([ticket])
        orders.remove([7, 8, 20])
        consumer = orders.consumer_store("C", ConsumerConfig(durable_name="C", ack_policy="explicit"))
        consumer.update_delivered(1, 1, 1, 1_700_000_000_000_000_000)
        consumer.update_acks(1, 1)
        volume.commit([ticket])
    return path


def expected_messages(
    vector: Vector, encrypted: bool = False
) -> dict[tuple[str, int], tuple[str, int, bytes, str]]:
    """(stream, seq) → (subject, time, headers, hash of the data), as the product's own API gave them."""
    return {
        (name, message.seq): (message.subject, message.time_ns, message.headers, message.data_sha256)
        for name in vector.streams(encrypted)
        for message in vector.messages(name, encrypted)
    }
