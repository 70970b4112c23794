"""What a user may say to the sink, by name.

url and what opens it (see `server_options`) · stream: takes the rows, and no other one does
path · layout · log: a directory that the real product opens
subject: for rows without a column of that name · application: who writes, for the ids
ids=auto|source|rows|column|none · window: publishes under way
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.client import Access
from headrace.errors import BadInput
from headrace.layouts.places import only_read, place_of
from headrace.layouts.registry import LAYOUTS
from headrace.spark.options import known_options
from headrace.spark.server_options import SERVER_OPTIONS, access_of

IDS = ("auto", "source", "rows", "column", "none")
WINDOW = 16_384
_KNOWN = {
    name.lower(): name
    for name in (
        *SERVER_OPTIONS,
        "path",
        "layout",
        "log",
        "stream",
        "subject",
        "application",
        "ids",
        "window",
        "checkpointLocation",
        "queryName",
    )
}
COLUMNS = ("subject", "data", "headers", "key", "msg_id", "log", "seq", "time", "time_ns")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a writer, read and checked against the columns."""

    access: Access | None
    path: str
    layout: str
    log: str | None
    stream: str | None
    subject: str | None
    application: str | None
    ids: str
    window: int


def read_sink_options(options: Mapping[str, str], columns: Sequence[str]) -> SinkOptions:
    """BadInput names the option or the column that is wrong."""
    given = known_options(options, _KNOWN, "sink")
    access, path = access_of(given), given.get("path", "")
    if (access is None) == (not path):
        raise BadInput("headrace sink: give url=nats://… (a server) or a path and its layout, one of the two")
    if path:
        path = place_of(only_read(path, "headrace sink: path="))
    if path and given.get("layout") not in LAYOUTS:
        raise BadInput(f"headrace sink: layout={given.get('layout')!r}; expected one of {', '.join(LAYOUTS)}")
    for column in columns:
        if column not in COLUMNS:
            raise BadInput(
                f"headrace sink: no place for a column {column!r}; there are: {', '.join(COLUMNS)} (select before writing)"
            )
    if "data" not in columns:
        raise BadInput("headrace sink: no column data (string or binary): the body of the messages")
    if ("subject" in columns) == ("subject" in given):
        raise BadInput("headrace sink: give the column subject or the option subject, one of the two")
    window = given.get("window", str(WINDOW))
    if not window.isdecimal() or not 1 <= int(window) <= 1_000_000:
        raise BadInput(f"headrace sink: window={window!r}; expected 1 to 1000000")
    return SinkOptions(
        access=access,
        path=path,
        layout=given.get("layout", ""),
        log=given.get("log"),
        stream=given.get("stream"),
        subject=given.get("subject"),
        application=_application(given.get("application")),
        ids=_ids(given.get("ids", "auto").lower(), columns),
        window=int(window),
    )


def _application(name: str | None) -> str | None:
    if name is not None and (not name or len(name) > 100 or any(ord(each) < 33 for each in name)):
        raise BadInput(f"headrace sink: application={name!r}; expected 1 to 100 characters, no blanks")
    return name


def _ids(kind: str, columns: Sequence[str]) -> str:
    """What makes a row the same row when it is written again."""
    if kind not in IDS:
        raise BadInput(f"headrace sink: ids={kind!r}; expected one of {', '.join(IDS)}")
    source = "log" in columns and "seq" in columns
    if kind == "auto":
        return "column" if "msg_id" in columns else "source" if source else "rows"
    if kind == "column" and "msg_id" not in columns:
        raise BadInput("headrace sink: ids=column, and no column msg_id")
    if kind == "source" and not source:
        raise BadInput("headrace sink: ids=source, and no columns log and seq")
    return kind
