"""`headrace pipeline init`: a project of Spark Declarative Pipelines that uses the source and the sink, ready to run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.pipeline import EPILOG
from headrace.cli.pipeline_events import app
from headrace.errors import AlreadyExists, BadInput

SPEC = """\
# Run with:  spark-pipelines run --conf spark.sql.catalogImplementation=in-memory
# Static settings (spark.ui.enabled …) do not belong under `configuration`: give them with --conf.
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""
FLOWS = '''\
"""From a stream of Headrace: everything into a table, a count for each subject, and the counts back into a stream."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit, to_json, struct

spark = SparkSession.active()
SOURCE = {source}
SINK = {sink}


def messages() -> DataFrame:
    return spark.readStream.format("headrace").options(**SOURCE).load()


@dp.table(name="messages", format="parquet")
def all_messages() -> DataFrame:
    """Every message, as it comes; a run goes on where the last one ended."""
    return messages().select("seq", "time", "log", "subject", "data")


@dp.materialized_view(format="parquet")
def per_subject() -> DataFrame:
    """How many on each subject."""
    return spark.read.table("messages").groupBy("subject").count()


dp.create_sink("out", "headrace", SINK)


@dp.append_flow(target="out")
def into_the_sink() -> DataFrame:
    """Each message once more, with where it came from: its id is made of log and sequence, so that it is stored once."""
    event = to_json(struct("log", "seq", col("subject").alias("from"), col("time").cast("string").alias("time")))
    return messages().select(
        concat(lit({prefix}), col("subject")).alias("subject"), event.cast("binary").alias("data"), "log", "seq"
    )
'''


@app.command("init", epilog=EPILOG)
def init(
    project: Annotated[
        str, typer.Argument(metavar="DIR", help="A directory that is not there yet.", show_default=False)
    ],
    source: Annotated[
        str,
        typer.Option("--source", metavar="SRC", help="A server, nats://host:4222, or a store's directory."),
    ] = "nats://127.0.0.1:4222",
    stream: Annotated[
        str, typer.Option("--stream", "-s", metavar="NAME", help="The stream to read.")
    ] = "ORDERS",
    sink: Annotated[
        str,
        typer.Option(
            "--sink", metavar="DEST", help="A server, or a directory that becomes a JetStream store."
        ),
    ] = "nats://127.0.0.1:4222",
    prefix: Annotated[
        str,
        typer.Option("--prefix", metavar="TEXT", help="What subjects get in front when they are written."),
    ] = "processed.",
) -> int:
    """Write a ready project of Spark Declarative Pipelines; `spark-pipelines run` in it runs it once, incrementally.

    Needs pip install 'pyspark[pipelines]'. Into a server the subjects (processed.> by default) need a stream.
    """
    from headrace.layouts.places import absolute, only_read

    place = Path(project).absolute()
    if place.exists():
        raise AlreadyExists(f"{place} is there already; name a directory that is not")
    if not stream:
        raise BadInput("--stream: which one?")
    remote = ("nats://", "tls://")
    reads = {"url": source} if source.startswith(remote) else {"path": absolute(source)}
    writes = (
        {"url": sink}
        if sink.startswith(remote)
        else {"path": absolute(only_read(sink, "--sink")), "layout": "jetstream"}
    )
    (place / "transformations").mkdir(parents=True)
    (place / "storage").mkdir()
    spec = SPEC.format(name=place.name, storage=json.dumps((place / "storage").as_uri()))
    (place / "spark-pipeline.yml").write_text(spec, encoding="utf-8")
    flows = FLOWS.format(
        source=json.dumps(reads | {"stream": stream}),
        sink=json.dumps(writes | {"application": place.name}),
        prefix=json.dumps(prefix),
    )
    (place / "transformations" / "headrace.py").write_text(flows, encoding="utf-8")
    print(
        f"{place}: a pipeline from {source} ({stream}) to {sink}. Run it with: cd {place} && spark-pipelines run"
    )
    return 0


@app.command("script", epilog=EPILOG)
def script() -> int:
    """Print the file to give to spark-submit: it takes the same words as headrace pipeline."""
    print(Path(__file__).with_name("submit") / "headrace_pipeline.py")
    return 0
