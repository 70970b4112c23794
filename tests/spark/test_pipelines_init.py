"""`headrace pipeline init` writes a project that Spark Declarative Pipelines runs: source, table, view, sink."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import headrace
from headrace.cli.main import run
from tests.ops.helpers import small_store


@pytest.mark.slow
def test_the_project_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, sink, project = small_store(tmp_path / "store"), tmp_path / "out", tmp_path / "project"
    command = ["pipeline", "init", str(project), "--source", str(store), "--sink", str(sink)]
    assert run(command) == 0
    assert run(command) == 2 and "is there already" in capsys.readouterr().err
    bin = Path(sys.executable).parent
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{bin}:{os.environ['PATH']}",
    }
    command = [
        str(bin / "spark-pipelines"),
        "run",
        "--remote",
        "local[2]",
        "--conf",
        "spark.ui.enabled=false",
    ]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    warehouse = project / "spark-warehouse"
    assert ds.dataset(str(warehouse / "messages"), format="parquet").count_rows() == 297
    counts = ds.dataset(str(warehouse / "per_subject"), format="parquet").to_table().to_pydict()
    assert sum(counts["count"]) == 297 and len(counts["subject"]) == 4
    with headrace.open(str(sink)) as volume:
        written = [each for name in volume.logs() for each in volume.open(name)]
    assert len(written) == 297 and {each.subject for each in written} == {
        f"processed.orders.{n}" for n in range(4)
    }
