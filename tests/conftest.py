"""Fixtures for all tests: real servers, golden directories, one Spark session, seeds that are printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import vectors
from tests.support.peers import NatsServer

# One printed blob replays a failing example; machines that share two cores must not fail on time.
settings.register_profile(
    "headrace",
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("headrace")

NatsServers = Callable[..., NatsServer]


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServers]:
    """Start real servers: `nats_server("2.15.2")` or `nats_server("2.9.10", store_dir)`; all are stopped."""
    with ExitStack() as stack:

        def start(version: str, store_dir: Path | None = None, **options: Any) -> NatsServer:
            place = store_dir or tmp_path / f"nats-server-{version}"
            return stack.enter_context(NatsServer(version, place, **options))

        yield start


@pytest.fixture(params=vectors.versions("jetstream"))
def jetstream_vector(request: pytest.FixtureRequest) -> vectors.Vector:
    """Each golden JetStream directory in turn."""
    return vectors.load("jetstream", request.param)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Spark session of this test process: two local cores, no user interface."""
    from pyspark.sql import SparkSession

    from tests.support.s3 import CREDENTIALS

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.update(CREDENTIALS)
    place = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("headrace-tests")
        .config("spark.ui.enabled", "false")
        # A busy machine may need longer than 15 s to start a worker.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Side by side (`pytest -n 2`) a file stays together, and so does everything that uses the one Spark session."""
    for item in items:
        package = item.path.parent.name
        item.add_marker(pytest.mark.xdist_group(package if package == "spark" else str(item.path)))
