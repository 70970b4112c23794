"""The batch source on the golden directories of every layout: the same rows as the library reads."""

from __future__ import annotations

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
        (row.log, row.seq, row.time_ns, row.subject, row.key and bytes(row.key), row.data) for row in rows
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
