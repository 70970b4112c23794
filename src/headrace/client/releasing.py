"""Letting go of what is safe elsewhere: a work queue drained into a lake without loss."""

from __future__ import annotations

from typing import Any

from headrace.client.access import Access
from headrace.client.connection import Connection


def release(access: Access, stream: str, following: int) -> int:
    """Remove what lies below `following`, but nothing that a consumer has not acknowledged; how many went.

    To be called after the commit: killed in between, the messages stay, and the next call takes them.
    """
    with Connection(access, "headrace-release") as connection:
        floors = [int(each["ack_floor"]["stream_seq"]) for each in _consumers(connection, stream)]
        below = min([following, *(floor + 1 for floor in floors)])
        if below <= 1:
            return 0
        return int(connection.api(f"STREAM.PURGE.{stream}", {"seq": below}).get("purged", 0))


def _consumers(connection: Connection, stream: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = connection.api(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
        more: list[dict[str, Any]] = page.get("consumers") or []
        found += more
        if not more or len(found) >= int(page.get("total", 0)):
            return found
