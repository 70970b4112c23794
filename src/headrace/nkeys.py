"""nkeys: Ed25519 keys in letters. Public ones check a client's signature, secret ones make it.

    public = base32( 1 byte prefix (user 20 << 3) | 32 bytes public key | CRC-16/XMODEM of the 33, little endian )
    seed   = base32( prefix of a seed (18 << 3) | kind of key, over 2 bytes | 32 bytes seed | CRC-16 of the 34 )

56 letters that begin with `U`, 58 that begin with `SU`, without padding. A client signs the bytes of the nonce that INFO gave
it. A credentials file holds a JWT and a seed between marked lines.
"""

from __future__ import annotations

import base64
import binascii
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from headrace.errors import BadInput

USER_PREFIX = 20 << 3
SERVER_PREFIX = 13 << 3
SEED_PREFIX = 18 << 3
NKEY_LETTERS = 56
SEED_LETTERS = 58
KEY_BYTES = 32
SIGNATURE_BYTES = 64
_SECTION = re.compile(r"-+BEGIN ([A-Z ]+)-+\s*(\S+)\s*-+END \1-+")


def encode_nkey(prefix: int, key: bytes) -> str:
    """The letters of a public key."""
    body = bytes([prefix]) + key
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode()


def sign(seed: str, nonce: bytes) -> tuple[str, str]:
    """(public nkey, signature as base64 for URLs) of the owner of a seed. The seed never shows in an error."""
    wrong = BadInput("the nkey is not a seed: 58 letters that begin with S, with a check at the end")
    text = seed.strip()
    if len(text) != SEED_LETTERS or not text.isascii():
        raise wrong
    try:
        raw = base64.b32decode(text)
    except binascii.Error:
        raise wrong from None
    body, check = raw[:-2], raw[-2:]
    if body[0] & 0xF8 != SEED_PREFIX or binascii.crc_hqx(body, 0) != int.from_bytes(check, "little"):
        raise wrong
    kind = (body[0] & 0x07) << 5 | body[1] >> 3
    key = Ed25519PrivateKey.from_private_bytes(body[2:])
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return encode_nkey(kind, public), base64.urlsafe_b64encode(key.sign(nonce)).decode().rstrip("=")


def read_creds(text: str, name: str) -> tuple[str, str]:
    """(JWT, seed) of a credentials file."""
    found = {match[1]: match[2] for match in _SECTION.finditer(text)}
    jwt, seed = found.get("NATS USER JWT"), found.get("USER NKEY SEED")
    if not jwt or not seed:
        raise BadInput(f"{name}: not a credentials file: a NATS USER JWT and a USER NKEY SEED are expected")
    return jwt, seed


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
