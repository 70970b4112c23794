"""What a user may say to the source, by name; everything else is refused with the nearest known name.

    path · key · url and what opens it (see `server_options`) · stream(s) topic(s) channel(s) queue(s) log(s): names and patterns, separated by commas
    subjects · startingFrom startingSequence startingTime · endingSequence endingTime · asOfSequence asOfTime
    view · columns · mode · pushdown · targetPartitionBytes minPartitions
    maxRowsPerTrigger maxBytesPerTrigger maxFilesPerTrigger · minRowsPerTrigger maxTriggerDelay · failOnDataLoss

Sequences are positions of the log (offsets of Kafka), both ends included; times are RFC 3339 or ns since 1970.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.client import Access
from headrace.errors import BadInput, NotFound
from headrace.layouts.base import Predicate
from headrace.layouts.log_names import is_pattern
from headrace.layouts.places import place_of
from headrace.layouts.registry import log_names_of
from headrace.spark.server_options import SERVER_OPTIONS, access_of
from headrace.units import clamp_time_ns, parse_duration_ns, parse_time_ns

LOG_NAMES = ("log", "stream", "topic", "channel", "queue")
EARLIEST, LATEST = "earliest", "latest"
TARGET_BYTES = 128 << 20
LOG_VIEW = "log"
VIEWS = (LOG_VIEW, "latest_per_subject", "verify", "consumers", "acks", "damage")
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
_KNOWN = {
    name.lower(): name
    for name in (
        "path",
        "key",
        *SERVER_OPTIONS,
        "durable",
        *LOG_NAMES,
        *(f"{name}s" for name in LOG_NAMES),
        "subjects",
        "startingFrom",
        "startingSequence",
        "startingTime",
        "endingSequence",
        "endingTime",
        "asOfSequence",
        "asOfTime",
        "view",
        "mode",
        "columns",
        "layoutColumns",
        "pushdown",
        "targetPartitionBytes",
        "minPartitions",
        "maxRowsPerTrigger",
        "maxBytesPerTrigger",
        "maxFilesPerTrigger",
        "minRowsPerTrigger",
        "maxTriggerDelay",
        "failOnDataLoss",
    )
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options, read and checked."""

    path: str = ""
    key: str | None = None
    access: Access | None = None
    durable: str | None = None
    logs: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    start: str = EARLIEST
    first: int | None = None
    since_ns: int | None = None
    next: int | None = None
    until_ns: int | None = None
    view: str = LOG_VIEW
    mode: str = MODES[0]
    columns: tuple[str, ...] = ()
    layout_columns: bool = False
    pushdown: bool = False
    target_bytes: int | None = None
    min_partitions: int = 1
    max_rows: int | None = None
    max_bytes: int | None = None
    max_files: int | None = None
    min_rows: int | None = None
    max_delay_ns: int | None = None
    fail_on_loss: bool = True

    @property
    def place(self) -> str:
        """Where it is read from, for messages."""
        return " and ".join(part for part in (self.path, self.access.place if self.access else "") if part)

    @property
    def plain_logs(self) -> bool:
        """Are all logs named in full?"""
        return bool(self.logs) and not any(is_pattern(name) for name in self.logs)

    def predicate(self) -> Predicate:
        """What the options leave of each log."""
        return Predicate(self.first, self.next, self.since_ns, self.until_ns, self.subjects)

    def chosen(self, names: list[str], layout: str) -> list[str]:
        """The logs that are asked for, by name, topic or pattern. BadInput for a plain name that is not there."""
        try:
            return log_names_of(layout).choose(names, self.logs, path=self.place)
        except NotFound as problem:
            raise BadInput(f"headrace source: {problem}") from None

    def present(self, names: list[str], layout: str) -> list[str]:
        """The same, where what is not there may be elsewhere."""
        if not self.logs:
            return self.chosen(names, layout)
        rule = log_names_of(layout)
        return [name for name in names if any(rule.matches(name, each) for each in self.logs)]


def known_options(options: Mapping[str, str], known: Mapping[str, str], whose: str) -> dict[str, str]:
    """Under their right names; BadInput for one that is unknown, with the nearest that is not."""
    given: dict[str, str] = {}
    for name, value in options.items():
        right = known.get(name.lower())
        if right is None:
            near = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"; did you mean {known[near[0]]!r}?" if near else f"; known: {', '.join(known.values())}"
            raise BadInput(f"headrace {whose}: no option {name!r}{hint}")
        given[right] = value
    return given


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """BadInput names the option that is unknown, twice there, or wrong."""
    given = known_options(options, _KNOWN, "source")
    reading = _Reading(given)
    first, next_ = reading.number("startingSequence"), reading.end("endingSequence", "asOfSequence")
    since, until = reading.moment("startingTime"), reading.end_time("endingTime", "asOfTime")
    if "durable" in given and "url" not in given:
        raise BadInput("headrace source: durable is a consumer of a server; give its url")
    start = given.get("startingFrom", EARLIEST).lower()
    if start not in (EARLIEST, LATEST):
        raise reading.wrong("startingFrom", "earliest or latest")
    if start == LATEST and (first is not None or since is not None):
        raise BadInput("headrace source: startingFrom=latest, and a sequence or time to start from: give one")
    return ReadOptions(
        path=_place(given.get("path", "")),
        key=given.get("key"),
        access=access_of(given),
        durable=given.get("durable"),
        logs=reading.logs(),
        subjects=reading.listed("subjects"),
        start=start,
        first=first,
        since_ns=since,
        next=next_,
        until_ns=until,
        view=reading.word("view", VIEWS, str.lower),
        mode=reading.word("mode", MODES, str.upper),
        columns=reading.listed("columns"),
        layout_columns=reading.switch("layoutColumns", False),
        pushdown=reading.switch("pushdown", False),
        target_bytes=reading.number("targetPartitionBytes", 1),
        min_partitions=reading.number("minPartitions", 1) or 1,
        max_rows=reading.number("maxRowsPerTrigger", 1),
        max_bytes=reading.number("maxBytesPerTrigger", 1),
        max_files=reading.number("maxFilesPerTrigger", 1),
        min_rows=reading.number("minRowsPerTrigger", 1),
        max_delay_ns=reading.duration("maxTriggerDelay"),
        fail_on_loss=reading.switch("failOnDataLoss", True),
    )


def _place(path: str) -> str:
    try:
        return place_of(path)
    except BadInput as problem:
        raise BadInput(f"headrace source: {problem}") from None


class _Reading:
    """Values out of texts; each error names its option."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def wrong(self, name: str, expected: str) -> BadInput:
        return BadInput(f"headrace source: {name}={self._given[name]!r}; expected {expected}")

    def number(self, name: str, least: int = 0) -> int | None:
        text = self._given.get(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            raise self.wrong(name, "a whole number") from None
        if value < least:
            raise self.wrong(name, f"at least {least}")
        return value

    def switch(self, name: str, default: bool) -> bool:
        text = self._given.get(name, "").lower()
        if text not in ("", "true", "false"):
            raise self.wrong(name, "true or false")
        return default if not text else text == "true"

    def word(self, name: str, words: tuple[str, ...], folded: Callable[[str], str]) -> str:
        """One of the words; the first one if nothing is said."""
        said = folded(self._given.get(name, words[0]))
        if said not in words:
            raise self.wrong(name, f"one of {', '.join(words)}")
        return said

    def moment(self, name: str) -> int | None:
        text = self._given.get(name)
        if text is None:
            return None
        try:
            return int(text) if text.lstrip("-").isdecimal() else clamp_time_ns(parse_time_ns(text))
        except ValueError:
            raise self.wrong(name, "a time like 2026-11-16T08:00:00Z, or ns since 1970") from None

    def duration(self, name: str) -> int | None:
        text = self._given.get(name)
        if text is None:
            return None
        try:
            return parse_duration_ns(text)
        except ValueError:
            raise self.wrong(name, "a duration like 30s or 5m") from None

    def listed(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self._given.get(name, "").split(",") if part.strip())

    def logs(self) -> tuple[str, ...]:
        said = [name for name in self._given if name.removesuffix("s") in LOG_NAMES]
        if len(said) > 1:
            raise BadInput(f"headrace source: {' and '.join(said)} mean the same; give one")
        return self.listed(said[0]) if said else ()

    def end(self, name: str, other: str) -> int | None:
        """An inclusive end, under either name, as a half-open one."""
        ends = [value + 1 for value in (self.number(name), self.number(other)) if value is not None]
        return min(ends, default=None)

    def end_time(self, name: str, other: str) -> int | None:
        ends = [value + 1 for value in (self.moment(name), self.moment(other)) if value is not None]
        return min(ends, default=None)
