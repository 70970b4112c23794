"""The errors of the JetStream API, as data: `errors.json` holds code, number and text of each by its name.

    raise api_error("JSStreamNotFoundErr")
    raise api_error("JSStreamInvalidConfigF", err="maximum replicas is 5")

`code` resembles HTTP, `err_code` is the stable key that clients compare, the text is nats-server 2.15.2's. Those
whose name begins with HR are ours; their numbers begin at 30001, outside of nats-server's.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.streams.json_writer import to_json


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
    return ApiError(name, known, known.description.format_map(texts) if texts else known.description)


def bad_stream(text: str) -> ApiError:
    """500/10052: most of what can be wrong with a stream's configuration, told by its text alone."""
    return api_error("JSStreamInvalidConfigF", err=text)


def encode_refusal(stream: str, error: ApiError) -> bytes:
    """The answer to a publish that is refused."""
    return to_json({"error": error.as_json(), "stream": stream, "seq": 0})
