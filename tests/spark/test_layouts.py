"""The batch source on the golden directories of every layout: the same rows as the library reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.support import vectors

STORES = {
    "nats_streaming": "nats_streaming/0.25.6/clean",
    "kafka": "kafka/4.3.1/store",
    "rocketmq": "rocketmq/5.3.3/store",
    "rabbitmq": "rabbitmq/3.10.8/clean_mixed",
}


@pytest.mark.parametrize("layout", STORES)
def test_rows_equal_the_library(spark: Any, layout: str) -> None:
    path = str(vectors.ROOT / STORES[layout])
    rows = spark.read.format("headrace").load(path).collect()
    seen = {
        (row.log, row.seq, row.time_ns or 0, row.subject, row.key and bytes(row.key), row.data)
        for row in rows
    }
    expected = set()
    with headrace.open(path) as volume:
        assert volume.layout == layout
        for name in volume.logs():
            for each in volume.open(name):
                expected.add((name, each.seq, each.time_ns, each.subject, each.key, each.data))
    assert len(rows) == len(expected) > 5
    assert seen == expected
    one = sorted(row.log for row in rows)[0]
    some = spark.read.format("headrace").option("stream", one).option("columns", "seq").load(path)
    assert some.count() == sum(row.log == one for row in rows) and some.columns == ["seq"]


def test_a_topic_means_its_partitions_and_the_brokers_own_are_left_out(spark: Any, tmp_path: Path) -> None:
    with headrace.open(tmp_path, mode="rw", create=True, layout="kafka") as volume:
        for name in ("orders-0", "orders-1", "other-0", "__consumer_offsets-0"):
            volume.commit([volume.create(name).append(headrace.batch("x", [b"m"]))])

    def logs(**options: str) -> list[str]:
        rows = spark.read.format("headrace").options(**options).load(str(tmp_path)).select("log").collect()
        return sorted(row.log for row in rows)

    assert logs() == ["orders-0", "orders-1", "other-0"]
    assert logs(topic="orders") == ["orders-0", "orders-1"]
    assert logs(topics="other,__consumer_offsets") == ["__consumer_offsets-0", "other-0"]


def test_messages_without_a_time_have_none(spark: Any) -> None:
    path = str(vectors.ROOT / STORES["rabbitmq"])
    rows = spark.read.format("headrace").load(path)
    assert rows.where("time is not null or time_ns is not null").count() == 0 < rows.count()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "nothing"}, "headrace.errors.BadInput: headrace source: .*no log 'nothing'; there are: "),
        ({"nothing": "x"}, "headrace.errors.BadInput: headrace source: no option 'nothing'"),
    ],
)
def test_errors_come_in_one_line(spark: Any, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text) as caught:
        spark.read.format("headrace").options(**options).load(str(vectors.ROOT / STORES["kafka"])).count()
    shown = str(caught.value)
    assert "Traceback" not in shown and re.search(text, shown.splitlines()[0])


def test_other_errors_keep_their_traceback(spark: Any) -> None:
    from pyspark.sql.functions import udf

    broken: Any = udf(lambda number: 1 / 0)
    with pytest.raises(Exception, match="Traceback"):
        spark.range(1).select(broken("id")).collect()
