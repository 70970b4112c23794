"""The log's lines about single operations (`-V`), in nats-server's words.

    127.0.0.1:51886 - cid:5 - "v1:python3:name" - <<- [PUB a 2]
    127.0.0.1:51886 - cid:5 - "v1:python3:name" - <<- MSG_PAYLOAD: ["hi"]

Bytes are followed as they come and go; a server that traces serves all its clients through the loop for that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.server.logs import TRACE

if TYPE_CHECKING:
    from headrace.server.nats.client import Client

LOG = logging.getLogger("headrace.server")
IN, OUT = "<<-", "->>"
LINE_BYTES_MAX = 64 << 10
_WITH_PAYLOAD = frozenset({b"PUB", b"HPUB", b"MSG", b"HMSG"})
_SECRET = re.compile(rb'("(?:pass|auth_token|jwt|sig)"\s*:\s*)"(?:[^"\\]|\\.)*"')


class ProtocolLog:
    """What one client says and hears."""

    def __init__(self, client: Client) -> None:
        options = client.server.options
        self._client, self._length = client, options.log.max_traced_msg_len
        self._hidden = None if options.log.trace_system else options.system_account
        self._reading, self._writing = _Lines(), _Lines()

    def received(self, data: bytes) -> None:
        self._show(IN, self._reading, data)

    def sent(self, data: bytes) -> None:
        self._show(OUT, self._writing, data)

    def _show(self, arrow: str, lines: _Lines, data: bytes) -> None:
        shown = self._client.account != self._hidden or not self._hidden
        for is_payload, text in lines.split(data):
            if not shown or text.startswith(b"INFO "):
                continue
            said = f"MSG_PAYLOAD: [{self._payload(text)}]" if is_payload else f"[{_operation(text)}]"
            LOG.log(TRACE, "%s - %s %s", self._client.described(), arrow, said)

    def _payload(self, text: bytes) -> str:
        cut = text[: self._length] if self._length > 0 else text
        shown = cut.decode(errors="backslashreplace").replace("\\", "\\\\").replace('"', '\\"')
        return f'"{shown}"' if len(cut) == len(text) else f'"{shown}..."'


class _Lines:
    """Cuts a direction into operations and payloads, however the bytes arrive."""

    def __init__(self) -> None:
        self._begun, self._owed = b"", 0

    def split(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """(whether it is a payload, the bytes without the end of the line)"""
        data = self._begun + data
        while data:
            if self._owed:
                if len(data) < self._owed:
                    break
                yield True, data[: self._owed - 2]
                data, self._owed = data[self._owed :], 0
                continue
            line, end, rest = data.partition(b"\n")
            if not end:
                break
            line, data = line.rstrip(b"\r"), rest
            yield False, line
            words = line.split()
            if words and words[0].upper() in _WITH_PAYLOAD and words[-1].isdigit():
                self._owed = int(words[-1]) + 2
        self._begun = data if self._owed or len(data) <= LINE_BYTES_MAX else b""


def _operation(line: bytes) -> str:
    """As it came; what only client and server should know is left out."""
    if line[:8].upper() == b"CONNECT ":
        line = _SECRET.sub(rb'\1"[REDACTED]"', line)
    text = line.decode(errors="backslashreplace").strip()
    if text.startswith("-ERR"):
        return text.replace("'", "")
    return text.removeprefix("+") if text == "+OK" else text
