"""Where consumer groups stand: the compacted topic `__consumer_offsets`, in which the last value of a key counts.

    key     i16 kind (0 or 1: an offset; 2 and more: members of groups, not read) · group · topic · partition i32
    value   i16 version · offset i64 · [3+: leader epoch i32] · metadata · commit time i64 ms · [1: expiry i64]
            text: i16 length and UTF-8; in version 4 an unsigned varint of length + 1, and tagged fields at the end
    null    the offset was deleted

A group's records lie in partition |Java's hash of its name| mod partitions. Commits of a transaction count once it is
committed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import BadInput, NotFound
from headrace.layouts.base import ConsumerState, Cursors, Damage, SequencePair
from headrace.layouts.kafka._kernels import Batch
from headrace.layouts.kafka.names import OFFSET_MAX, is_log_name, partition_dirs, split_name
from headrace.layouts.varint import get_uvarint

if TYPE_CHECKING:
    from headrace.layouts.kafka.volume import KafkaVolume

TOPIC = "__consumer_offsets"
PARTITIONS = 50
OFFSET_KINDS = (0, 1)
VERSION_WRITTEN = 3
VERSION_FLEXIBLE = 4
TEXT_BYTES_MAX = 2**15 - 1
METADATA_BYTES_MAX = 4096
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Committed:
    """What a group committed for one log: the next offset it wants."""

    group: str
    log: str
    next: int
    leader_epoch: int
    metadata: str
    commit_time_ms: int


class _Fields:
    """One after the other; ValueError when there are too few bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        if self.at + size > len(self.data):
            raise ValueError(f"{len(self.data)} bytes are too few")
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += size
        return value

    def text(self, *, compact: bool = False) -> str:
        if compact:
            length, self.at = get_uvarint(self.data, self.at)
            length -= 1
        else:
            length = self.number(">h")
        if length < 0 or self.at + length > len(self.data):
            raise ValueError(f"a text of {length} bytes at byte {self.at} of {len(self.data)}")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "replace")


def decode_key(key: bytes) -> tuple[str, str] | None:
    """(group, log) of an offset's key; None for keys of another kind. ValueError for what cannot be one."""
    fields = _Fields(key)
    if fields.number(">h") not in OFFSET_KINDS:
        return None
    group, topic, partition = fields.text(), fields.text(), fields.number(">i")
    name = f"{topic}-{partition}"
    if partition < 0 or not is_log_name(name):
        raise ValueError(f"topic {topic[:40]!r}, partition {partition}")
    return group, name


def decode_value(group: str, log: str, value: bytes) -> Committed:
    """ValueError for what is not one."""
    fields = _Fields(value)
    version = fields.number(">h")
    if not 0 <= version <= VERSION_FLEXIBLE:
        raise ValueError(f"version {version}; known are 0 to {VERSION_FLEXIBLE}")
    offset = fields.number(">q")
    epoch = fields.number(">i") if version >= 3 else -1
    metadata = fields.text(compact=version >= VERSION_FLEXIBLE)
    return Committed(group, log, offset, epoch, metadata, fields.number(">q"))


def encode(group: str, log: str, following: int, metadata: str, time_ms: int) -> tuple[bytes, bytes]:
    """Key and value as brokers since 2.1 write and read them."""
    topic, partition = split_name(log)
    key = struct.pack(">h", 1) + _text(group) + _text(topic) + struct.pack(">i", partition)
    value = struct.pack(">hqi", VERSION_WRITTEN, following, -1) + _text(metadata) + struct.pack(">q", time_ms)
    return key, value


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def partition_of(group: str, partitions: int) -> int:
    """Which partition of the topic holds a group's offsets."""
    value = 0
    units = group.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", units):
        value = (value * 31 + unit) & 0xFFFF_FFFF
    signed = value - 2**32 if value >= 2**31 else value
    return 0 if signed == -(2**31) else abs(signed) % partitions


def read_committed(volume: KafkaVolume) -> tuple[dict[tuple[str, str], Committed], list[Damage]]:
    """(group, log) → what it committed last, over all partitions of the topic; and what could not be read."""
    found: dict[tuple[str, str], Committed] = {}
    damage: list[Damage] = []
    settings = msgspec.structs.replace(volume.options, isolation_level="read_committed")
    with volume.beside(settings) as reader:
        for name in reader.logs():
            if split_name(name)[0] != TOPIC:
                continue
            # The last value wins: what was overwritten is not even decoded.
            for key, value in _last_values(reader, name).items():
                try:
                    who = decode_key(key)
                    if who is not None and value is not None:
                        found[who] = decode_value(*who, value)
                except ValueError as problem:
                    detail = f"an offset that cannot be read: {problem}"
                    damage.append(Damage(f"{reader.path}/{name}", 0, 0, "metadata", detail))
            damage += reader.open(name).damage()
    return found, damage


def _last_values(reader: KafkaVolume, name: str) -> dict[bytes, bytes | None]:
    last: dict[bytes | None, bytes | None] = {}
    # The stubs of pyarrow leave the element type open.
    scanned: Iterator[Any] = reader.open(name).scan(["key", "data"])
    for rows in scanned:
        keys, values = (column.to_pylist() for column in rows.columns)
        last.update(zip(keys, values, strict=True))
    # A message without a key is nobody's offset.
    return {key: value for key, value in last.items() if key is not None}


class KafkaCursors(Cursors):
    """The groups that committed offsets for one log, as they stood when it was made."""

    def __init__(self, log: str, committed: Mapping[tuple[str, str], Committed]) -> None:
        self.log = log
        self._groups = {group: what for (group, name), what in committed.items() if name == log}

    def names(self) -> list[str]:
        """Every group."""
        return sorted(self._groups)

    def committed(self, name: str) -> Committed:
        """What the group committed, with its metadata."""
        if name not in self._groups:
            known = ", ".join(self.names()[:20]) or "none"
            raise NotFound(f"log {self.log}: group {name!r} committed no offset; there are: {known}")
        return self._groups[name]

    def state_of(self, name: str) -> ConsumerState:
        """A group that wants offset n next has acked everything below."""
        last = self.committed(name).next - 1
        return ConsumerState(SequencePair(last, last), SequencePair(last, last))


def write_offsets(volume: KafkaVolume, group: str, offsets: Mapping[str, int], metadata: str = "") -> None:
    """Append commits, durably. The topic is made (50 partitions, compacted) when it is not there."""
    if not group or len(group.encode()) > TEXT_BYTES_MAX:
        raise BadInput(f"group {group[:40]!r}: 1 to {TEXT_BYTES_MAX} bytes")
    if len(metadata.encode()) > METADATA_BYTES_MAX:
        raise BadInput(
            f"metadata of {len(metadata.encode())} bytes; {METADATA_BYTES_MAX} is the broker's limit"
        )
    for name, following in offsets.items():
        split_name(name)
        if not 0 <= following <= OFFSET_MAX:
            raise BadInput(f"log {name}: offset {following} is not one")
    there = [name for name in partition_dirs(volume.disk, volume.path) if split_name(name)[0] == TOPIC]
    if not there:
        there = [f"{TOPIC}-{number}" for number in range(PARTITIONS)]
        volume.create_many(there, cleanup_policy="compact")
    log = volume.open(f"{TOPIC}-{partition_of(group, len(there))}")
    now_ms = volume.clock() // NS_PER_MS
    pairs = [encode(group, name, following, metadata, now_ms) for name, following in offsets.items()]
    if pairs:
        keys, values = zip(*pairs, strict=True)
        ticket = log.append(
            Batch.build(TOPIC, list(values), keys=list(keys), header_codec="kafka"),
        )
        log.commits.commit(ticket.mark)
