"""JSON as the real server writes it: a few characters are escaped so that browsers do no harm with it."""

from __future__ import annotations

from typing import Any

import msgspec

_ESCAPED = (
    (b"<", rb"\u003c"),
    (b">", rb"\u003e"),
    (b"&", rb"\u0026"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)
_ENCODER = msgspec.json.Encoder()


def to_json(value: Any) -> bytes:
    """JSON with the characters escaped that the real server escapes."""
    text = _ENCODER.encode(value)
    for plain, escaped in _ESCAPED:
        if plain in text:
            text = text.replace(plain, escaped)
    return text
