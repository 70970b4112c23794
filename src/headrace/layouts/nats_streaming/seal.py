"""Keys of encrypted stores. The ciphers are the core's; only the keys are made here.

    store key     SHA-256(the key's text); the environment variable of the server wins over the option
    channel key   SHA-256((33 + len(channel)) zero bytes | store key | "." | channel)

The zero bytes are an accident of the real server (it hashes into a buffer that it had made too long) and part of the format.
"""

from __future__ import annotations

import os
from hashlib import sha256

from headrace.errors import BadInput
from headrace.randomness import random_bytes

ENVIRONMENT = "NATS_STREAMING_ENCRYPTION_KEY"
CODES = {"AES": 1, "CHACHA": 2}
SEALED_OVERHEAD = 29


def key_text(given: str | None) -> str | None:
    """The key to use: the environment's, or the given one."""
    return os.environ.get(ENVIRONMENT) or given or None


def channel_key(text: str, channel: str) -> bytes:
    """The 32 bytes that seal the payloads of one channel."""
    name = channel.encode("utf-8", "surrogateescape")
    return sha256(bytes(33 + len(name)) + sha256(text.encode()).digest() + b"." + name).digest()


class Sealing:
    """What an append needs to seal: key, cipher, and a nonce that goes on from batch to batch."""

    def __init__(self, text: str | None, channel: str, cipher: str, next_sequence: int) -> None:
        if text is None:
            raise BadInput("encryption key required")
        self.key, self.code = channel_key(text, channel), CODES[cipher.upper()]
        self.nonce = random_bytes(4) + next_sequence.to_bytes(8, "big")

    def parts(self) -> tuple[bytes, int, bytes]:
        """(key, cipher code, nonce) for the encoder."""
        return self.key, self.code, self.nonce
