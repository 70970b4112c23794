"""Rows into directories of the five products: each batch once, whatever is killed; the products' readers see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.errors import BadInput
from headrace.ops import filing
from headrace.ops.filing import Filing, file_batch, stage

LOGS = {
    "jetstream": "ORDERS",
    "nats_streaming": "orders",
    "kafka": "orders-0",
    "rocketmq": "orders-0",
    "rabbitmq": "orders",
}
WITH_HEADERS = {"jetstream", "kafka", "rocketmq", "rabbitmq"}


def read(path: Path, log: str) -> list[bytes]:
    with headrace.open(str(path)) as volume:
        return [each.data or b"" for each in volume.open(log)]


def rows(first: int, count: int, subject: str = "orders") -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict({"subject": [subject] * count, "data": [b"%d" % n for n in numbers]})


@pytest.mark.parametrize("layout", LOGS)
def test_a_frame_becomes_a_directory(spark: Any, layout: str, tmp_path: Path) -> None:
    log = LOGS[layout]
    frame = spark.range(0, 3_000, 1, 3).selectExpr("'orders' subject", "cast(id as string) data")
    if layout in WITH_HEADERS:
        frame = frame.selectExpr("*", "map('N', array(data, 'x')) headers")
    target = tmp_path / "out"
    for _ in range(2):
        frame.write.format("headrace").mode("append").options(layout=layout, log=log).save(str(target))
    assert read(target, log) == [b"%d" % n for _ in range(2) for n in range(3_000)]
    assert not Path(f"{target}.staging").exists()
    with headrace.open(str(target)) as volume:
        first = next(iter(volume.open(log)))
        assert layout not in WITH_HEADERS or first.header_map["N"] == ["0", "x"]
        assert not volume.damage()


def test_a_query_files_each_batch_once(spark: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    with headrace.open(str(source), mode="rw", create=True) as volume:
        made = volume.create("S", subjects=["s.>"])
        made.append(headrace.batch("s.x", [b"%d" % n for n in range(2_000)]))
        made.commit()
    for _ in range(2):
        stream = spark.readStream.format("headrace").option("maxRowsPerTrigger", "700").load(str(source))
        query = (
            stream.selectExpr("concat('topic-', seq % 2) log", "subject", "data", "time_ns")
            .writeStream.format("headrace")
            .options(layout="kafka", checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start(str(target))
        )
        query.awaitTermination()
    assert read(target, "topic-1") == [b"%d" % n for n in range(0, 2_000, 2)]
    assert read(target, "topic-0") == [b"%d" % n for n in range(1, 2_000, 2)]


@pytest.mark.parametrize("dies", ["before anything", "in the middle", "before the note"])
def test_a_batch_that_was_begun_is_finished(
    dies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends at each step; the batch comes again with other files, as Spark writes it again."""
    target = Filing(str(tmp_path / "out"), "kafka", "t-0", None, "run")
    assert file_batch(target, 0, [stage(target, 0, 0, "a", [rows(0, 100)])[0]]) == 100
    files = [stage(target, 1, part, "a", [rows(100 + part * 50, 50)])[0] for part in range(4)]

    class Killed(Exception):
        pass

    log_class = type(_opened(tmp_path / "out"))
    real, calls = log_class.append, []

    def append(self: Any, batch: Any, **more: Any) -> Any:
        calls.append(len(batch))
        if dies == "before anything" or (dies == "in the middle" and len(calls) == 3):
            raise Killed
        return real(self, batch, **more)

    saved = filing._save

    def save(disk: Any, to: Filing, progress: Any) -> Any:
        if dies == "before the note" and progress.begun is None:
            raise Killed
        return saved(disk, to, progress)

    with monkeypatch.context() as patch:
        patch.setattr(log_class, "append", append)
        patch.setattr(filing, "_save", save)
        with pytest.raises(Killed):
            file_batch(target, 1, files)
    again = [stage(target, 1, part, "b", [rows(100 + part * 50, 50)])[0] for part in range(4)]
    file_batch(target, 1, again)
    assert file_batch(target, 1, []) == 0, "done is done"
    file_batch(target, 2, [stage(target, 2, 0, "a", [rows(300, 10)])[0]])
    assert read(tmp_path / "out", "t-0") == [b"%d" % n for n in range(310)]


def _opened(path: Path) -> Any:
    with headrace.open(str(path)) as volume:
        return volume.open("t-0")


def test_a_row_needs_a_log(tmp_path: Path) -> None:
    target = Filing(str(tmp_path / "out"), "kafka", None, None, "run")
    with pytest.raises(BadInput, match="which log"):
        file_batch(target, 0, [stage(target, 0, 0, "a", [rows(0, 1)])[0]])
