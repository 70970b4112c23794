"""Waiting for what happens, not for time to pass. The limit is generous: on a busy machine a second is nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT_S = 60.0
LOOK_S = 0.02


def wait_until(look: Callable[[], T], what: object = "", limit_s: float = LIMIT_S) -> T:
    """The first true answer of `look`; fails with `what` (called, if it can be) when the time is over."""
    deadline = time.monotonic() + limit_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit_s:.0f} s for {what() if callable(what) else what or look}")
        time.sleep(LOOK_S)
    return found


def wait_for_log(server: Any, text: str) -> None:
    """Until the server's log has the text."""
    wait_until(lambda: text in server.log(1000), lambda: f"{text!r} in the log:\n{server.log(1000)}")
