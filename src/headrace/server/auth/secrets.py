"""Comparing secrets: in a time that does not depend on where they differ, plain or bcrypt."""

from __future__ import annotations

import hashlib
import hmac
import re

import bcrypt

_BCRYPT = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")
_BCRYPT_BEGINS = re.compile(r"\$2[abxy]\$")
_BCRYPT_BYTES_MAX = 72  # what the algorithm looks at; the rest never counted
_NOBODY = b"nobody knows this one"


def is_bcrypt(secret: str) -> bool:
    return _BCRYPT_BEGINS.match(secret) is not None


def bcrypt_cost(secret: str) -> int:
    """The exponent of its rounds; 0 for a plain secret or a hash that no password fits."""
    match = _BCRYPT.fullmatch(secret)
    return int(match[1]) if match else 0


def fits(secret: str, given: str) -> bool:
    """Is this the password (or token)? `secret` may be a bcrypt hash."""
    if not is_bcrypt(secret):
        return hmac.compare_digest(_digest(secret), _digest(given))
    try:
        return bcrypt.checkpw(given.encode("utf-8", "surrogatepass")[:_BCRYPT_BYTES_MAX], secret.encode())
    except ValueError:  # not a whole hash
        return False


def decoy(cost: int) -> str:
    """A hash that nothing fits, which takes as long to refuse as a real one of this cost."""
    return bcrypt.hashpw(_NOBODY, bcrypt.gensalt(max(cost, 4))).decode()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
