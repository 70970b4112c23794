"""The sink's ids=rows without Spark: a task that runs again in another order stores every row once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace.client import Connection, Publisher, ServerVolume, read_access
from headrace.spark import publishing
from headrace.spark.producer_floors import CLOSED, raise_floor
from headrace.spark.publishing import ROW_BITS, Task, TaskResult, publish_rows
from headrace.spark.sink_options import read_sink_options
from headrace.spark.write import ServerWriter
from headrace.testing.server import TestServer

ROWS, PIECE = 6_000, 500
Row = tuple[str, str, list[tuple[str, list[str]]] | None]


class Killed(Exception):
    pass


class Mortal(Publisher):
    """Half of the rows are acknowledged, then the task is gone."""

    sent = 0

    def publish(self, batch: Any, **more: Any) -> None:
        if self.sent >= ROWS // 2:
            self.flush()
            raise Killed
        super().publish(batch, **more)
        self.sent += len(batch)


def rows_of_a_task() -> list[Row]:
    """Some are equal in everything, some differ in their headers only, some in what is null."""
    rows: list[Row] = []
    for number in range(ROWS):
        headers = [("N", [str(number % 4)])] if number % 3 else None
        rows.append((f"rows.{number % 5}", str(number % 700), headers))
    return rows


def as_batches(rows: list[Row]) -> Iterator[pa.RecordBatch]:
    kind: Any = pa.schema(
        [
            ("subject", pa.string()),
            ("data", pa.string()),
            ("headers", pa.map_(pa.string(), pa.list_(pa.string()))),
        ]
    )
    for start in range(0, len(rows), PIECE):
        columns = zip(*rows[start : start + PIECE], strict=True)
        arrays: list[Any] = [
            pa.array(list(column), field.type) for column, field in zip(columns, kind, strict=True)
        ]
        made: Any = pa.RecordBatch
        yield made.from_arrays(arrays, schema=kind)


def stored(access: Any) -> Counter[tuple[str, str, str | None]]:
    found: Counter[tuple[str, str, str | None]] = Counter()
    for record in ServerVolume(access).open("ROWS").read(1, ROWS * 2):
        lines = (record.headers or b"").decode().split("\r\n")
        own = next((line for line in lines if line.startswith("N: ")), None)
        found[record.subject, (record.data or b"").decode(), own] += 1
    return found


def wanted(rows: list[Row]) -> Counter[tuple[str, str, str | None]]:
    return Counter(
        (subject, data, f"N: {headers[0][1][0]}" if headers else None) for subject, data, headers in rows
    )


@pytest.mark.parametrize("batch", [0, 7])
def test_the_same_rows_in_another_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    rows = rows_of_a_task()
    with TestServer(tmp_path / "js") as server:
        access = read_access(server.url)
        # Only the marks can know it: the window is over at once.
        ServerVolume(access).create("ROWS", subjects=["rows.>"], duplicate_window=100_000_000)
        target = read_sink_options({"url": server.url}, ["subject", "data", "headers"])
        assert target.ids == "rows"
        task = Task("app", 3, batch, "q")
        with monkeypatch.context() as patched:
            patched.setattr(publishing, "Publisher", Mortal)
            with pytest.raises(Killed):
                publish_rows(target, task, as_batches(rows))
        first = stored(access)
        assert first.total() == ROWS // 2 and first != wanted(rows)
        random.Random(5).shuffle(rows)
        done = publish_rows(target, task, as_batches(rows))
        assert (done.rows, done.stored, done.duplicates) == (ROWS, ROWS // 2, ROWS // 2)
        assert stored(access) == wanted(rows)
        check_floor(access, done, (batch + 1) << ROW_BITS)
        another = publish_rows(target, Task("app", 3, batch + 1, "q"), as_batches(rows[:10]))
        assert another.stored == 10, "the same rows in the next batch are others"


def check_floor(access: Any, done: TaskResult, below: int) -> None:
    """The stream is found by the subject; afterwards there is a floor and no list."""
    assert done.producer == "app/q/3" and done.subject.startswith("rows.")
    with Connection(access) as connection:
        raise_floor(connection, None, [done], below)
        answer = connection.request("$HEADRACE.API.PRODUCER.INFO.ROWS")
    shown = msgspec.json.decode(answer.payload)["producers"]
    assert [(each["producer"], each["floor"], each["numbers"]) for each in shown] == [("app/q/3", below, 0)]


@pytest.mark.parametrize(
    "columns", [["subject", "data", "headers"], ["subject", "data", "log", "seq"]], ids=["rows", "source"]
)
@pytest.mark.parametrize("application", [None, "nightly"])
def test_a_write_that_is_never_repeated_is_closed(
    tmp_path: Path, columns: list[str], application: str | None
) -> None:
    """One with a name may be: what it has done is kept. To a closed producer nothing more can be sent."""
    rows = [
        {"subject": "rows.x", "data": b"%d" % n, "log": "L", "seq": n, "headers": None} for n in range(20)
    ]
    batch = pa.RecordBatch.from_pylist(rows).select(columns)
    with TestServer(tmp_path / "js") as server:
        access = read_access(server.url)
        log = ServerVolume(access).create("ROWS", subjects=["rows.>"], duplicate_window=100_000_000)
        named = {} if application is None else {"application": application}
        target = read_sink_options({"url": server.url, **named}, columns)
        done = publish_rows(target, Task("app", 0, 0), iter([batch]))
        ServerWriter(target).commit([done, None])
        with Connection(access) as connection:
            info = msgspec.json.decode(connection.request("$HEADRACE.API.PRODUCER.INFO.ROWS").payload)
        closed = [each["floor"] == CLOSED for each in info["producers"]]
        assert closed == [application is None] and len(done.producers) == 1
        again = publish_rows(target, Task("app", 0, 0), iter([batch]))
        assert (again.stored, again.duplicates, log.state().messages) == (0, 20, 20)


def test_other_rows_under_the_same_application_are_others(tmp_path: Path) -> None:
    """A single write again is one; other rows, and the first batch of another checkpoint, are never taken for it."""
    rows = rows_of_a_task()
    with TestServer(tmp_path / "js") as server:
        access = read_access(server.url)
        ServerVolume(access).create("ROWS", subjects=["rows.>"], duplicate_window=100_000_000)
        target = read_sink_options({"url": server.url}, ["subject", "data", "headers"])
        counts = [
            publish_rows(target, task, as_batches(part)).stored
            for task, part in (
                (Task("daily", 0, 0), rows[:50]),
                (Task("daily", 0, 0), rows[:50][::-1]),
                (Task("daily", 0, 0), rows[50:90]),
                (Task("daily", 0, 0, "one"), rows[:30]),
                (Task("daily", 0, 0, "two"), rows[:30]),
            )
        ]
        assert counts == [50, 0, 40, 30, 30]
