"""Arguments and options that several commands share, and the reading of ranges, times and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.errors import BadInput
from headrace.units import clamp_time_ns, parse_time_ns

KEY_BYTES_MAX = 4096
SEQUENCE_MAX = (1 << 63) - 1

Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="A directory of NATS JetStream (a store, its `jetstream` folder, one stream), NATS Streaming, Kafka, RocketMQ or RabbitMQ, or an archive.",
        show_default=False,
    ),
]
Stream = Annotated[
    str | None,
    typer.Option(
        "--stream",
        "-s",
        metavar="NAME",
        help="Only this stream (ACCOUNT/NAME for other accounts), channel, queue, partition or topic (all its "
        "partitions), or a pattern: 'orders-*'. Topics that a broker keeps for itself only when named.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="The answer as JSON on stdout.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="TEXT",
        envvar="HEADRACE_KEY",
        show_envvar=False,
        help="The key of the server that encrypted the store (or HEADRACE_KEY). Others may see it: prefer --key-file.",
    ),
]
KeyFile = Annotated[
    str | None,
    typer.Option(
        "--key-file", metavar="FILE", help="A file that holds the key; a line break at its end is ignored."
    ),
]


def read_key(key: str | None, key_file: str | None) -> str | None:
    """The key from wherever it was given."""
    if key is not None and key_file is not None:
        raise BadInput("give --key or --key-file, not both")
    if key_file is None:
        return key
    try:
        with Path(key_file).open("rb") as file:
            raw = file.read(KEY_BYTES_MAX + 1)
        text = raw.decode().rstrip("\r\n")
    except OSError as error:
        raise BadInput(f"--key-file {key_file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"--key-file {key_file}: not a text file; the key is UTF-8 text") from error
    if not text or len(raw) > KEY_BYTES_MAX:
        raise BadInput(f"--key-file {key_file}: {len(raw)} bytes; a key has 1 to {KEY_BYTES_MAX}")
    return text


def parse_sequences(text: str | None) -> tuple[int | None, int | None]:
    """`5`, `5..9`, `5..`, `..9` (both ends included) → half-open (first, next)."""
    if text is None:
        return None, None
    first, dots, last = (part.strip() for part in text.partition(".."))
    if not dots:
        last = first
    if not (first or last) or any(
        part and not (part.isascii() and part.isdecimal()) for part in (first, last)
    ):
        raise BadInput(f"--seq {text!r}: write 5, 5..9, 5.. or ..9; both ends are included")
    low, high = (int(part) if part else None for part in (first, last))
    if any(bound is not None and bound > SEQUENCE_MAX for bound in (low, high)):
        raise BadInput(f"--seq {text!r}: a sequence is at most {SEQUENCE_MAX}")
    if low is not None and high is not None and low > high:
        raise BadInput(f"--seq {text!r}: the first sequence is above the last")
    return low, None if high is None else high + 1


def parse_moment(option: str, text: str | None) -> int | None:
    """An RFC 3339 time → ns since 1970."""
    if text is None:
        return None
    try:
        return clamp_time_ns(parse_time_ns(text))
    except ValueError as error:
        raise BadInput(
            f"{option} {text!r}: not a time; write 2026-11-15, 2026-11-15T18:23:36Z or with a zone"
        ) from error
