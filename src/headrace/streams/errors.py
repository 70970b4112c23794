"""The errors of the JetStream API, as data: `errors.json` holds code, number and text of each by its name.

    raise api_error("JSStreamNotFoundErr")
    raise api_error("JSStreamInvalidConfigF", err="maximum replicas is 5")

`code` resembles HTTP, `err_code` is the stable key that clients compare, the text is nats-server 2.15.2's. Those
whose name begins with HR are ours; their numbers begin at 30001, outside of nats-server's.

An exception that is filled in is for the log; a client gets `client_text` of it: what is wrong, without the paths of the
store, and nothing of a mistake of ours but that there was one.
"""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.streams.api.json_writer import to_json

LOG = logging.getLogger("headrace.streams")
LOG_EVERY_S = 1.0
# A path, as errors name one: at the beginning up to the colon behind it (it may hold blanks), or a word of its own.
_PATH_FIRST = re.compile(r"^/(?:[^:]*/)?([^:/]+): ")
_PATH = re.compile(r"(?<![\w/])/(?:[^\s'\":;,]+/)+([^\s'\":;,/]+)")
MISTAKE = "internal error, the log of the server has details"


class KnownError(msgspec.Struct, frozen=True):
    """One row of the table. `{…}` in the text is filled in when the error is made."""

    code: int
    err_code: int
    description: str


def _load() -> dict[str, KnownError]:
    raw = Path(__file__).with_name("errors.json").read_bytes()
    return msgspec.json.decode(raw, type=dict[str, KnownError])


ERRORS = _load()


class ApiError(HeadraceError):
    """An answer of the API that says no."""

    def __init__(self, name: str, known: KnownError, description: str) -> None:
        self.name, self.code, self.err_code, self.description = name, known.code, known.err_code, description
        super().__init__(f"{description} ({known.err_code})")

    def as_json(self) -> dict[str, int | str]:
        """The member `error` of an answer."""
        return {"code": self.code, "err_code": self.err_code, "description": self.description}


def api_error(name: str, **texts: object) -> ApiError:
    """The error of that name with its placeholders filled in; a wrong placeholder is a mistake of ours."""
    known = ERRORS[name]
    if not texts:
        return ApiError(name, known, known.description)
    for value in texts.values():
        if isinstance(value, Exception) and not isinstance(value, ApiError):
            _log_details(known, value)
    shown = {
        key: client_text(value) if isinstance(value, Exception) else value for key, value in texts.items()
    }
    return ApiError(name, known, known.description.format_map(shown))


def client_text(problem: Exception | str) -> str:
    """What a client may know of a problem: files by their name alone, and no inside of the program."""
    if isinstance(problem, Exception) and not isinstance(problem, HeadraceError):
        return MISTAKE
    text = str(problem).replace("\r", " ").replace("\n", " ")
    return _PATH.sub(r"\1", _PATH_FIRST.sub(r"\1: ", text))


_logged: dict[str, float] = {}


def _log_details(known: KnownError, problem: Exception) -> None:
    """The whole text, if it is more than clients get; the same one at most once a second."""
    text, now = str(problem), time.monotonic()
    if client_text(problem) == text or now - _logged.get(text, -LOG_EVERY_S) < LOG_EVERY_S:
        return
    if len(_logged) > 100:
        _logged.clear()
    _logged[text] = now
    LOG.error("error %d for a client: %s", known.err_code, text)


def bad_stream(text: str) -> ApiError:
    """500/10052: most of what can be wrong with a stream's configuration, distinguished by its text alone."""
    return api_error("JSStreamInvalidConfigF", err=text)


def encode_refusal(stream: str, error: ApiError) -> bytes:
    """The answer to a publish that is refused."""
    return to_json({"error": error.as_json(), "stream": stream, "seq": 0})
