"""Public nkeys of users, and signatures made with them.

    base32( 1 byte prefix (user 20 << 3) | 32 bytes Ed25519 public key | CRC-16/XMODEM of the 33, little endian )

56 letters without padding, the first one is `U`. A client signs the bytes of the nonce that INFO gave it.
"""

from __future__ import annotations

import base64
import binascii

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

USER_PREFIX = 20 << 3
SERVER_PREFIX = 13 << 3
NKEY_LETTERS = 56
KEY_BYTES = 32
SIGNATURE_BYTES = 64


def decode_user_nkey(text: str) -> bytes | None:
    """The public key inside, or None if this is not a user's public nkey."""
    if len(text) != NKEY_LETTERS or not text.isascii():
        return None
    try:
        raw = base64.b32decode(text)
    except binascii.Error:
        return None
    body, check = raw[:-2], raw[-2:]
    if body[0] != USER_PREFIX or binascii.crc_hqx(body, 0) != int.from_bytes(check, "little"):
        return None
    return body[1:]


def is_user_nkey(text: str) -> bool:
    return decode_user_nkey(text) is not None


def encode_nkey(prefix: int, key: bytes) -> str:
    """The letters of a public key; servers show one as their id."""
    body = bytes([prefix]) + key
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode()


def signature_fits(nkey: str, nonce: bytes, signature: str) -> bool:
    """Did the owner of this nkey sign these bytes? Base64 in the URL's or the standard alphabet, padded or not."""
    key = decode_user_nkey(nkey)
    if key is None or len(signature) > 2 * SIGNATURE_BYTES:
        return False
    try:
        letters = signature.rstrip("=").replace("+", "-").replace("/", "_")
        raw = base64.urlsafe_b64decode(letters + "=" * (-len(letters) % 4))
        Ed25519PublicKey.from_public_bytes(key).verify(raw, nonce)
    except (InvalidSignature, ValueError):
        return False
    return True
