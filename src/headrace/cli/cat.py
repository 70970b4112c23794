"""`headrace cat`: messages as text, JSON lines or raw bytes."""

from __future__ import annotations

import base64
import json
import sys
from enum import StrEnum
from typing import Annotated

import typer

from headrace.cli.options import Directory, Key, KeyFile, Stream, parse_moment, parse_sequences, read_key
from headrace.record import Record
from headrace.units import format_time_ns

NO_BODY = "(null)"
NO_TIME = "(no time)"
"""What text shows for a message without a body, a tombstone of Kafka say: not the same as an empty one."""


class Format(StrEnum):
    """How a message is printed."""

    text = "text"
    json = "json"
    raw = "raw"


def cat(
    directory: Directory,
    stream: Stream = None,
    seq: Annotated[
        str | None,
        typer.Option("--seq", metavar="A..B", help="Sequences, both ends included: 5, 5..9, 5.. or ..9."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Stored at or after this time (RFC 3339).")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Stored before this time.")
    ] = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(
            "--subject", metavar="SUBJECT", help="Only this subject; a.* and a.> match. May be repeated."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="At most so many messages.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as new messages come, until Ctrl-C.")
    ] = False,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="text: a line each. json: a JSON object each, key and data in base64. raw: payloads only.",
        ),
    ] = Format.text,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    key: Key = None,
    key_file: KeyFile = None,
) -> int:
    """Print messages. Changes nothing; beside a running writer only what is durable is shown.

    Exit code 0: printed. 1: printed, and damage was met on the way, or the directory holds what no reader here reads (it
    is named on stderr; not with --stream). 2: could not.
    """
    from headrace.cli.screen import warn
    from headrace.layouts.report import describe_unread
    from headrace.ops.cat import Reading, Selection
    from headrace.units import plural

    first, after = parse_sequences(seq)
    select = Selection(
        first,
        after,
        parse_moment("--since", since),
        parse_moment("--until", until),
        tuple(subject or ()),
        limit,
    )
    reading = Reading(directory, stream=stream, select=select, key=read_key(key, key_file), follow=follow)
    show = {"text": text_line, "json": json_line, "raw": raw_bytes}["json" if as_json else form.value]
    out, many = sys.stdout.buffer, len(reading.streams) > 1
    for name, batch in reading:
        out.write(b"".join([show(record, name, many) for record in batch]))
        if follow:
            out.flush()
    out.flush()
    left_out = [place for place in reading.unread if place.may_hold_messages]
    for place in left_out:
        warn(describe_unread(place))
    if reading.damage:
        warn(
            f"{plural(len(reading.damage), 'finding')}: damaged messages are not printed; headrace verify lists them"
        )
    return 1 if reading.damage or left_out else 0


def text_line(record: Record, stream: str, many: bool) -> bytes:
    """Sequence, time, subject, key, headers, data; with the stream in front if there are several."""
    from headrace.cli.screen import safe

    headers = "".join(f" {name}={value}" for name, values in record.header_map.items() for value in values)
    shown = NO_BODY if record.data is None else record.data.decode("utf-8", "backslashreplace")
    key = None if record.key is None else record.key.decode("utf-8", "backslashreplace")
    parts = [
        str(record.seq),
        format_time_ns(record.time_ns) if record.time_ns else NO_TIME,
        record.subject,
        "" if key is None else f"key={key}",
        f"[{headers[1:]}]" if headers else "",
        shown,
    ]
    line = "  ".join(part for part in ([stream] if many else []) + parts if part)
    return f"{safe(line)}\n".encode("utf-8", "backslashreplace")


def json_line(record: Record, stream: str, many: bool) -> bytes:
    """One object per line; the same keys whatever was asked."""
    data, key = (
        None if part is None else base64.b64encode(part).decode() for part in (record.data, record.key)
    )
    document = {
        "stream": stream,
        "seq": record.seq,
        "time": format_time_ns(record.time_ns) if record.time_ns else None,
        "subject": record.subject,
        "key": key,
        "headers": record.header_map,
        "data": data,
    }
    return json.dumps(document, ensure_ascii=True).encode() + b"\n"


def raw_bytes(record: Record, stream: str, many: bool) -> bytes:
    """The payload, byte for byte, and nothing else."""
    return record.data or b""
