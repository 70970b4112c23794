"""Kafka for tests: golden partitions, rows to compare, and a real broker (KRaft, one node) on the loopback interface.

with Broker(tmp_path / "logs") as broker:
    broker.create_topic("orders")
    broker.consume("orders", 10)
broker.dump(files)          # DumpLogSegments
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.layouts.base import Log
from headrace.record import Record, kafka_header_pairs
from tests.support import vectors
from tests.support.peers import PeerFailed, find_peer, free_port

VERSION = "4.3.1"
START_LIMIT_S = 90.0
STOP_LIMIT_S = 60.0
TOOL_LIMIT_S = 120.0
TOOLS = "org.apache.kafka.tools"

Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def row(record: Record) -> Row:
    """Offset, time in ms, key, value, headers."""
    headers = tuple(kafka_header_pairs(record.headers)) if record.headers is not None else ()
    return record.position, record.time_ns // 1_000_000, record.key, record.data, headers


def rows(log: Log) -> list[Row]:
    return [row(record) for record in log]


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def expected_rows(entry: dict[str, Any], *, control: bool = False) -> list[Row]:
    """What a manifest says a log holds. No time (−1) is 0 here."""
    found: list[Row] = []
    for message in entry["messages"]:
        if "control" in message and not control:
            continue
        headers = tuple((name, _decoded(value)) for name, value in message.get("headers", []))
        time_ms = max(message["timestamp"], 0)
        found.append(
            (message["offset"], time_ms, _decoded(message["key"]), _decoded(message["value"]), headers)
        )
    return found


def golden(version: str = VERSION) -> vectors.Vector:
    return vectors.load("kafka", version)


def copy_damaged(case: str, target: Path) -> tuple[Path, dict[str, Any]]:
    """(log directory, what the manifest says) of a damaged one."""
    vector = golden()
    folder = Path(shutil.copytree(vector.folder / "damaged" / case, target / case))
    return folder, vector.manifest["damaged"][case]


@dataclass(frozen=True)
class Dumped:
    """What DumpLogSegments said."""

    text: str

    @property
    def records(self) -> list[int]:
        return [int(offset) for offset in re.findall(r"^\| offset: (\d+)", self.text, re.MULTILINE)]

    @property
    def complaints(self) -> list[str]:
        """Everything that is not a listing. Offsets that begin above 0 or have gaps are no fault."""
        ok = (
            "Dumping",
            "Log starting offset",
            "baseOffset:",
            "| offset:",
            "offset:",
            "timestamp:",
            "Snapshot",
        )
        lines = [line for line in self.text.splitlines() if line.strip()]
        kept: list[str] = []
        for line in lines:
            gap = line.startswith("Non-consecutive offsets") or re.fullmatch(
                r"\s+-?\d+ is followed by \d+", line
            )
            if not gap and not line.startswith(ok) and not line.endswith("index is empty."):
                kept.append(line)
        return kept + [line for line in lines if "isvalid: false" in line or "isvalid: null" in line]


def run_tool(name: str, *args: str, feed: str | None = None) -> str:
    """One of Kafka's command-line tools."""
    done = subprocess.run(
        [find_peer("kafka", VERSION), name, *args],
        input=feed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOOL_LIMIT_S,
        env={**os.environ, "JAVA_OPTS": "-Xmx512m -XX:TieredStopAtLevel=1"},
    )
    if done.returncode != 0:
        raise PeerFailed(f"{name} {' '.join(args)} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def dump(directory: Path) -> Dumped:
    """DumpLogSegments over every log (deep) and every index of a partition."""
    names = sorted(path for path in directory.iterdir() if path.suffix in (".log", ".index", ".timeindex"))
    files = ",".join(str(path) for path in names)
    return Dumped(
        run_tool(f"{TOOLS}.DumpLogSegments", "--deep-iteration", "--verify-index-only", "--files", files)
    )


class Broker:
    """A real broker over one log directory. Stopped by its PID."""

    def __init__(self, log_dir: Path, properties: str = "") -> None:
        self.log_dir, self._properties = log_dir, properties
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log_path = log_dir.parent / f"{log_dir.name}.broker.log"
        self._config = log_dir.parent / f"{log_dir.name}.properties"

    def start(self) -> Self:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.port, controller = free_port(), free_port()
        self._config.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\ncontroller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={self.log_dir}\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
            f"group.initial.rebalance.delay.ms=0\nlog.retention.ms=-1\n{self._properties}"
        )
        if not (self.log_dir / "meta.properties").exists():
            run_tool(
                "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(self._config)
            )
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [find_peer("kafka", VERSION), "kafka.Kafka", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "JAVA_OPTS": "-Xmx512m -Dorg.apache.logging.log4j.level=INFO"},
            )
        self._wait()
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return
            except OSError:
                time.sleep(0.1)
        log = self.log()
        self.kill()
        raise PeerFailed(f"the broker did not start:\n{log}")

    def log(self, lines: int = 60) -> str:
        try:
            return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PeerFailed("the broker is not running")
        return self._process.pid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def create_topic(self, topic: str, partitions: int = 1, **config: object) -> None:
        settings = [
            word
            for name, value in config.items()
            for word in ("--config", f"{name.replace('_', '.')}={value}")
        ]
        where = ("--bootstrap-server", self.address, "--create", "--topic", topic)
        run_tool(f"{TOOLS}.TopicCommand", *where, "--partitions", str(partitions), *settings)

    def consume(self, topic: str, count: int) -> list[tuple[int, str]]:
        """(offset, value as text) of the first `count` records."""
        text = run_tool(
            f"{TOOLS}.consumer.ConsoleConsumer",
            *(
                "--bootstrap-server",
                self.address,
                "--topic",
                topic,
                "--partition",
                "0",
                "--offset",
                "earliest",
            ),
            *("--max-messages", str(count), "--timeout-ms", "30000"),
            *("--formatter-property", "print.offset=true"),
        )
        found = re.findall(r"^Offset:(\d+)\t(.*)$", text, re.MULTILINE)
        return [(int(offset), value) for offset, value in found]

    def produce(self, topic: str, values: Sequence[str], *, keyed: bool = False) -> None:
        """`keyed`: values are "key<TAB>value", and the key chooses the partition."""
        where = ("--bootstrap-server", self.address, "--topic", topic)
        text = run_tool(
            f"{TOOLS}.ConsoleProducer",
            *where,
            *("--command-property", "batch.size=600"),
            *(("--reader-property", "parse.key=true") if keyed else ()),
            feed="\n".join(values) + "\n",
        )
        if "ERROR" in text:
            raise PeerFailed(f"the producer said:\n{text[-2000:]}")

    def stop(self) -> None:
        """A clean stop: SIGTERM, then wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """No goodbye: kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(f"the broker's log:\n{self.log()}")
        self.stop()
