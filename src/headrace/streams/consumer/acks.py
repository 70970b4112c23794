"""What clients write into acknowledgements beside the word itself.

-NAK {"delay": 5000000000}   -NAK 5s        later, not now; a delay that cannot be read counts as none
+TERM the reason
+NXT   +NXT 5   +NXT {"batch": 5, …}        an acknowledgement and a pull request in one
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from headrace.errors import BadInput
from headrace.units import parse_duration_ns

NAK, TERM, NEXT = b"-NAK", b"+TERM", b"+NXT"
DELAY_NS_MAX = 1 << 62
_SHORT_BYTES = 128


class _Delay(msgspec.Struct):
    delay: int = 0


def nak_delay_ns(body: bytes) -> int:
    """How long to wait before the next attempt; 0 for at once."""
    return _remembered(body) if len(body) <= _SHORT_BYTES else _delay_ns(body)


def _delay_ns(body: bytes) -> int:
    text = body.removeprefix(NAK).strip()
    if not text:
        return 0
    try:
        if text.startswith(b"{"):
            delay = msgspec.json.decode(text, type=_Delay).delay
        else:
            delay = parse_duration_ns(text.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, BadInput):
        return 0
    return min(max(delay, 0), DELAY_NS_MAX)


_remembered = lru_cache(maxsize=1024)(_delay_ns)


def term_reason(body: bytes) -> str:
    """Why a message is not to come again, in the client's words."""
    return body.removeprefix(TERM).strip().decode("utf-8", "replace")


def next_request(body: bytes) -> bytes:
    """The pull request in `+NXT …`."""
    return body.removeprefix(NEXT)
