"""The fixed part of a message in the commit log, by name: one definition for reading and writing.

 0     4      8     12     16    20            28       36    40        48         56        64          72
┌─────┬──────┬─────┬──────┬─────┬─────────────┬────────┬─────┬─────────┬──────────┬─────────┬───────────┬───
│ size│ magic│ crc │ queue│ flag│ queue offset│ address│ kind│ born ms │ born host│ store ms│ store host│ …
└─────┴──────┴─────┴──────┴─────┴─────────────┴────────┴─────┴─────────┴──────────┴─────────┴───────────┴───
 … 72 reconsumed, 76 prepared at, 84 body size; then the body, the topic behind a byte, properties behind two
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC, MAGIC_BLANK = 0xDAA320A7, 0xCBD43194
BLANK = struct.Struct(">II")
"""What fills the end of a file: its size, MAGIC_BLANK."""
TOPIC_LENGTH_BYTES, PROPERTIES_LENGTH_BYTES = 1, 2
_HEAD = struct.Struct(">IIIiiqqiq8sq8siqi")


class MessageHead(NamedTuple):
    """Everything before the body."""

    size: int
    magic: int = MAGIC
    body_crc: int = 0
    queue: int = 0
    flag: int = 0
    queue_offset: int = 0
    address: int = 0
    kind: int = 0
    born_ms: int = 0
    born_host: bytes = bytes(8)
    store_ms: int = 0
    store_host: bytes = bytes(8)
    reconsumed: int = 0
    prepared_at: int = 0
    body_size: int = 0

    def pack(self) -> bytes:
        return _HEAD.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> MessageHead | None:
        """None where there are too few bytes."""
        return cls(*_HEAD.unpack_from(data)) if len(data) >= HEAD_BYTES else None

    def is_message(self) -> bool:
        """The last byte of the magic number is the version."""
        return self.magic >> 8 == MAGIC >> 8


HEAD_BYTES = _HEAD.size
FIXED_BYTES = HEAD_BYTES + TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH_BYTES
