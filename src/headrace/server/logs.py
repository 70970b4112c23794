"""The server's log: lines as nats-server writes them, or JSON; to a file or stderr; reopened on demand.

    [4711] 2026/11/16 00:35:08.750055 [INF] Server is ready
    {"time":"2026-11-16T00:35:08.750055Z","level":"info","pid":4711,"message":"Server is ready"}

It takes over the logger `headrace`, so that what the store says comes out in the same way. A message may carry
fields (`log.info("Stream created", stream="S")`): `key=value` behind the line, members of the JSON object. Texts
from outside cannot break a line: control characters are shown as escapes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from headrace.server.config.options import LogOptions
from headrace.server.config.problems import ConfigError

TRACE = 5
_LABELS = {
    TRACE: "TRC",
    logging.DEBUG: "DBG",
    logging.INFO: "INF",
    logging.WARNING: "WRN",
    logging.ERROR: "ERR",
}
_LEVELS = {TRACE: "trace", logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warn"}
_COLOURS = {"TRC": 33, "DBG": 36, "INF": 32, "WRN": 33, "ERR": 31, "FTL": 31}


class LogOutput:
    """The log of one server. `apply` takes new options (a reload), `reopen` follows a moved file (SIGUSR1)."""

    def __init__(self, options: LogOptions, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._logger = logging.getLogger("headrace")
        self._before = (self._logger.level, self._logger.propagate)
        self._handler: _Output | None = None
        self.options = options
        self.apply(options)

    def apply(self, options: LogOptions) -> None:
        """Log as these options say from now on; if the file cannot be opened, nothing changes."""
        handler = _Output(options, self._stream)
        if self._handler is not None:
            self._logger.removeHandler(self._handler)
            self._handler.close()
        self.options, self._handler = options, handler
        self._logger.addHandler(handler)
        self._logger.propagate = False
        self._logger.setLevel(TRACE if options.trace else logging.DEBUG if options.debug else logging.INFO)

    def reopen(self) -> None:
        """Close the file and open it by name again, after somebody moved it away."""
        if self._handler is not None:
            self._handler.reopen()

    def close(self) -> None:
        if self._handler is not None:
            self._logger.removeHandler(self._handler)
            self._handler.close()
            self._handler = None
            self._logger.setLevel(self._before[0])
            self._logger.propagate = self._before[1]

    @property
    def debugs(self) -> bool:
        """Is it worth making the text of a debug line?"""
        return self.options.debug

    @property
    def traces(self) -> bool:
        return self.options.trace

    def trace(self, text: str, **fields: object) -> None:
        self._say(TRACE, text, fields)

    def debug(self, text: str, **fields: object) -> None:
        self._say(logging.DEBUG, text, fields)

    def info(self, text: str, **fields: object) -> None:
        self._say(logging.INFO, text, fields)

    def warning(self, text: str, **fields: object) -> None:
        self._say(logging.WARNING, text, fields)

    def error(self, text: str, **fields: object) -> None:
        self._say(logging.ERROR, text, fields)

    def fatal(self, text: str, **fields: object) -> None:
        self._say(logging.CRITICAL, text, fields)

    def _say(self, level: int, text: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", text, extra={"fields": fields} if fields else None)


class _Output(logging.Handler):
    """Where lines go. A failed write is not the server's end: the line is lost, the next one is tried."""

    def __init__(self, options: LogOptions, stream: TextIO | None) -> None:
        super().__init__()
        self._options = options
        self._path = Path(options.file) if options.file else None
        self._out = stream or sys.stderr
        if self._path is not None:
            self._out = self._open(self._path)
        coloured = self._path is None and self._out.isatty()
        self.setFormatter(_Json() if options.json else _Line(options, coloured))
        if not options.debug:
            self.addFilter(lambda record: record.levelno != logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._out.write(self.format(record) + "\n")
            self._out.flush()
            if self._options.size_limit and self._out.tell() > self._options.size_limit:
                self._rotate()
        except (OSError, ValueError):
            pass

    def reopen(self) -> None:
        if self._path is None:
            return
        opened = self._open(self._path)
        self.acquire()
        old, self._out = self._out, opened
        self.release()
        old.close()

    def close(self) -> None:
        self.acquire()
        if self._path is not None:
            self._out.close()
        self.release()
        super().close()

    def _rotate(self) -> None:
        """As nats-server: the full file gets the time as its ending; the oldest go when there are too many."""
        path = self._path
        if path is None:
            return
        moved = path.with_name(f"{path.name}.{datetime.now(UTC):%Y.%m.%d.%H.%M.%S.%f}")
        path.rename(moved)
        self.reopen()
        old = sorted(path.parent.glob(f"{path.name}.[0-9]*"))
        for extra in old[: -self._options.files_max] if self._options.files_max else ():
            extra.unlink(missing_ok=True)

    @staticmethod
    def _open(path: Path) -> TextIO:
        try:
            return path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigError([f"cannot write the log file {path}: {error.strerror}"]) from error


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What the line carries beside its text."""
    fields: dict[str, Any] = getattr(record, "fields", {})
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        return {**fields, "error": f"{type(error).__name__}: {error}"}
    return fields


class _Line(logging.Formatter):
    """nats-server's form."""

    def __init__(self, options: LogOptions, coloured: bool) -> None:
        super().__init__()
        self._options, self._coloured = options, coloured

    def format(self, record: logging.LogRecord) -> str:
        label = _LABELS.get(record.levelno, "FTL" if record.levelno > logging.ERROR else "INF")
        if self._coloured:
            label = f"\x1b[{_COLOURS[label]}m{label}\x1b[0m"
        when = ""
        if self._options.time:
            zone = UTC if self._options.utc else None
            when = f"{datetime.fromtimestamp(record.created, zone):%Y/%m/%d %H:%M:%S.%f} "
        more = "".join(f" {name}={value}" for name, value in _fields(record).items())
        return f"[{os.getpid()}] {when}[{label}] {_one_line(record.getMessage() + more)}"


class _Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
            "level": _LEVELS.get(record.levelno, "fatal" if record.levelno > logging.ERROR else "error"),
            "pid": os.getpid(),
            "message": record.getMessage(),
            **_fields(record),
        }
        return json.dumps(document, default=str)


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
