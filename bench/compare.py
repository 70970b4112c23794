"""`python -m bench.compare [names]`: Headrace and nats-server 2.15.2 under the same load, alternating, in one run.

Each run starts both servers on fresh directories; each workload is driven by `headrace-load` (bench/load) or by the
`nats` CLI, and checked by STREAM.INFO (or the consumer's ack floor) afterwards: a fast wrong server is easy to build.
Figures are medians of the runs with their spread: throughput as ratio to nats-server, and the server's CPU time per
message from /proc. `--pin` puts servers on one core and the load on the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats

from headrace.testing import TestServer
from tests.support.peers import NatsServer, find_peer
from tests.support.rawclient import RawClient

ROOT = Path(__file__).resolve().parent.parent
LOAD = ROOT / "target" / "release" / "headrace-load"
TICK = os.sysconf("SC_CLK_TCK")
STREAM, SUBJECT, CONSUMER = "BENCH", "bench.a", "C"
PEER = "2.15.2"
RECORD_BYTES = 170
"""What a message of the load takes in a block."""


@dataclass
class Run:
    """One workload on one server."""

    rate: float
    cpu_us: float
    p99_us: float = 0.0
    p50_us: float = 0.0


@dataclass
class Workload:
    """What is driven, and the ratios required: (throughput, CPU); None where there is none."""

    name: str
    act: Callable[[Server, int], Run]
    messages: int
    rate_required: float | None
    cpu_required: float | None
    mode: str = "interval"
    peer_mode: str = ""
    peer_share: float = 1.0
    latency: str = ""
    """Compare this figure (`p50_us`, `p99_us`) instead of the rate: theirs ÷ ours."""
    floor: bool = False
    """Beside it the least that a durable publish can take: a bare append and fdatasync, and the same publish unsynced."""
    runs: dict[str, list[Run]] = field(default_factory=dict)


class Server:
    """Either of the two."""

    def __init__(self, kind: str, directory: Path, mode: str, pin: bool) -> None:
        self.kind, self.pin = kind, pin
        if kind == "headrace":
            sync = "always" if mode == "sync" else "2m"
            self._server: Any = TestServer(directory / "headrace", ["--sync", sync])
        else:
            lines = "max_file_store: 50GB\n" + ("sync_interval: always\n" if mode == "sync" else "")
            self._server = NatsServer(PEER, directory / "nats", jetstream=lines)
        self._server.start()
        if pin:
            subprocess.run(
                ["taskset", "-a", "-cp", "0", str(self._server.pid)], capture_output=True, check=True
            )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    @property
    def url(self) -> str:
        return str(self._server.url)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._server.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def stop(self) -> None:
        self._server.kill()

    # Setting up and checking, with a real client

    def call(self, work: Callable[[Any], Any]) -> Any:
        async def connected() -> Any:
            client = await nats.connect(self.url, allow_reconnect=False)
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(connected())

    def fresh_stream(self, subjects: str = "bench.>", **options: Any) -> None:
        async def work(js: Any) -> None:
            try:
                await js.delete_stream(STREAM)
            except nats.js.errors.NotFoundError:
                pass
            await js.add_stream(name=STREAM, subjects=[subjects], **options)

        self.call(work)

    def fill(self, count: int) -> None:
        self.load("pub", SUBJECT, "--conns", "1", "--window", "1000", "--msgs", str(count))
        self.expect_messages(count)

    def expect_messages(self, count: int) -> None:
        async def work(js: Any) -> Any:
            return (await js.stream_info(STREAM)).state

        state = self.call(work)
        assert (state.messages, state.last_seq) == (count, count), f"{self.kind}: {state}, expected {count}"

    def load(self, mode: str, *arguments: str) -> dict[str, Any]:
        command = [str(LOAD), mode, self.address, *arguments]
        if self.pin:
            command = ["taskset", "-c", "1", *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.kind}: {' '.join(command)}: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def measured(self, mode: str, *arguments: str) -> Run:
        before = self.cpu_s()
        figures = self.load(mode, *arguments)
        spent = self.cpu_s() - before
        return Run(figures["rate"], spent * 1e6 / figures["msgs"], figures["p99_us"], figures["p50_us"])

    def cli(self, messages: int, *arguments: str) -> Run:
        """`nats bench …`; the rate is the one it prints last."""
        command = [str(find_peer("nats", "0.3.0")), "-s", self.url, "bench", *arguments, "--no-progress"]
        before = self.cpu_s()
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        spent = self.cpu_s() - before
        rates = re.findall(r"([\d,]+) msgs/sec", done.stdout)
        if done.returncode or not rates:
            raise RuntimeError(f"{self.kind}: {' '.join(command)}: {done.stdout}{done.stderr}")
        return Run(float(rates[-1].replace(",", "")), spent * 1e6 / messages)


def publish(conns: int, window: int, *more: str) -> Callable[[Server, int], Run]:
    def act(server: Server, messages: int) -> Run:
        server.fresh_stream()
        messages = messages // conns * conns
        flags = ["--conns", str(conns), "--window", str(window), "--msgs", str(messages), *more]
        run = server.measured("pub", SUBJECT, *flags)
        server.expect_messages(messages)
        return run

    return act


def bench_publish(server: Server, messages: int) -> Run:
    server.fresh_stream()
    run = server.cli(
        messages,
        "js",
        "pub",
        "async",
        SUBJECT,
        "--stream",
        STREAM,
        "--msgs",
        str(messages),
        "--size",
        "128",
        "--batch",
        "500",
    )
    server.expect_messages(messages)
    return run


def paced(server: Server, messages: int) -> Run:
    server.fresh_stream()
    return server.measured("pub", SUBJECT, "--window", "1", "--rate", "1000", "--msgs", str(messages))


def fetch(batch: int, filled: int | None = None, with_acks: bool = True) -> Callable[[Server, int], Run]:
    def act(server: Server, messages: int) -> Run:
        server.fresh_stream()
        server.fill(filled or messages)

        async def make(js: Any) -> None:
            config = nats.js.api.ConsumerConfig(
                durable_name=CONSUMER, ack_policy="explicit", max_ack_pending=100_000
            )
            await js.add_consumer(STREAM, config)

        server.call(make)
        flags = [] if with_acks else ["--no-ack"]
        run = server.measured(
            "fetch", STREAM, CONSUMER, "--batch", str(batch), "--msgs", str(messages), *flags
        )
        deadline = time.monotonic() + 20
        while True:

            async def look(js: Any) -> Any:
                return await js.consumer_info(STREAM, CONSUMER)

            info = server.call(look)
            if info.ack_floor.stream_seq == messages and info.num_ack_pending == 0:
                return run
            assert time.monotonic() < deadline, f"{server.kind}: acks were lost: {info}"
            time.sleep(0.1)

    return act


def push(server: Server, messages: int) -> Run:
    server.fresh_stream()
    server.fill(messages)
    body = {
        "stream_name": STREAM,
        "config": {
            "deliver_policy": "all",
            "ack_policy": "none",
            "max_deliver": 1,
            "replay_policy": "instant",
            "deliver_subject": "deliver.bench",
            "flow_control": True,
            "idle_heartbeat": 5_000_000_000,
            "mem_storage": True,
            "num_replicas": 1,
        },
    }
    request = f"$JS.API.CONSUMER.CREATE.{STREAM}"
    return server.measured(
        "push",
        "deliver.bench",
        "--msgs",
        str(messages),
        "--request",
        request,
        "--body",
        json.dumps(body, separators=(",", ":")),
    )


def core(subs: int) -> Callable[[Server, int], Run]:
    return lambda server, messages: server.measured(
        "core", "plain", "--subs", str(subs), "--msgs", str(messages)
    )


def request(server: Server, messages: int) -> Run:
    return server.measured("req", "service", "--msgs", str(messages))


def sparse(server: Server, messages: int) -> Run:
    """A consumer whose filter matches one in 100,000: the time until it has them all."""
    server.fresh_stream()
    step = 100_000
    for _ in range(messages // step):
        server.load("pub", "bench.many", "--window", "1000", "--msgs", str(step - 1))
        server.load("pub", "bench.rare", "--window", "1", "--msgs", "1")

    async def make(js: Any) -> None:
        config = nats.js.api.ConsumerConfig(
            durable_name=CONSUMER, ack_policy="none", filter_subject="bench.rare"
        )
        await js.add_consumer(STREAM, config)

    server.call(make)
    before, start = server.cpu_s(), time.monotonic()

    async def take(js: Any) -> int:
        sub = await js.pull_subscribe_bind(CONSUMER, STREAM)
        found = await sub.fetch(messages // step, timeout=30)
        return len(found)

    count = server.call(take)
    assert count == messages // step, (server.kind, count)
    took = time.monotonic() - start
    return Run(count / took, (server.cpu_s() - before) * 1e6 / count)


IN_FLIGHT = 16


def made(endpoint: str, body: Callable[[str], dict[str, Any]]) -> Callable[[Server, int], Run]:
    """Streams or consumers made, with that many requests in flight on one connection."""

    def act(server: Server, count: int) -> Run:
        server.fresh_stream(max_consumers=-1)
        with RawClient(int(server.address.rpartition(":")[2])) as client:
            before, start = server.cpu_s(), time.monotonic()
            for number in range(count + IN_FLIGHT):
                if number < count:
                    name = f"made{number}"
                    client.publish(
                        f"$JS.API.{endpoint}.{name}", json.dumps(body(name)).encode(), "_INBOX.made"
                    )
                if number >= IN_FLIGHT:
                    answer = client.next(30)
                    assert answer is not None and b'"error"' not in answer.data, (server.kind, answer)
            took, spent = time.monotonic() - start, server.cpu_s() - before
        return Run(count / took, spent * 1e6 / count)

    return act


make_streams = made("STREAM.CREATE", lambda name: {"name": name, "subjects": [name], "storage": "file"})
make_consumers = made(
    f"CONSUMER.CREATE.{STREAM}",
    lambda name: {
        "stream_name": STREAM,
        "config": {"name": name, "durable_name": name, "ack_policy": "explicit"},
    },
)


WORKLOADS = [
    Workload(
        "async publish, 1 publisher, window 1000", publish(1, 1000), 1_000_000, 6, 1 / 8, peer_share=0.3
    ),
    Workload(
        "async publish, 4 publishers, window 1000", publish(4, 1000), 1_000_000, 6, 1 / 8, peer_share=0.3
    ),
    Workload("async publish, 64 publishers, window 50", publish(64, 50), 1_000_000, 3, 1 / 5, peer_share=0.3),
    Workload("nats bench js pub async", bench_publish, 500_000, 1.8, 1 / 6),
    Workload("sync publish, 1 client", publish(1, 1), 20_000, 1, 0.8),
    Workload("sync publish, 4 clients", publish(4, 1), 40_000, 1.2, 0.8),
    Workload("async publish, 1 publisher, window 10", publish(1, 10), 100_000, None, None),
    Workload("async publish, 4 publishers, window 100", publish(4, 100), 400_000, None, None),
    Workload("fetch one by one", fetch(1), 20_000, 1, 0.7),
    Workload(
        "p50 of a durable publish, 1 client",
        publish(1, 1),
        5_000,
        1.5,
        None,
        mode="sync",
        latency="p50_us",
        floor=True,
    ),
    Workload(
        "durable publish, 100 in flight", publish(1, 100), 200_000, 20, None, mode="sync", peer_share=0.02
    ),
    Workload(
        "durable publish against unsynced nats-server, async",
        publish(1, 1000),
        500_000,
        1,
        None,
        mode="sync",
        peer_mode="interval",
        peer_share=0.4,
    ),
    Workload("fetch and ack, batches of 500", fetch(500), 2_000_000, 6, 1 / 8, peer_share=0.25),
    Workload("push consume (ordered)", push, 1_000_000, 3, 1 / 4),
    Workload("filter that matches 1 in 100,000", sparse, 1_000_000, 1, None),
    Workload("core publish, 1 subscriber", core(1), 2_000_000, 1, 0.7, peer_share=0.5),
    Workload("core publish, 4 subscribers", core(4), 500_000, 1, 0.7),
    Workload("dedupe by message id, async", publish(1, 1000, "--ids"), 500_000, 4, 1 / 5, peer_share=0.4),
    Workload("p99 of a sync publish at 1,000/s", paced, 5_000, 1, None, latency="p99_us"),
    Workload(
        "streams made, 16 in flight, against unsynced nats-server",
        make_streams,
        1000,
        1,
        None,
        mode="sync",
        peer_mode="interval",
    ),
    Workload(
        "consumers made, 16 in flight, against unsynced nats-server",
        make_consumers,
        1000,
        1,
        None,
        mode="sync",
        peer_mode="interval",
    ),
    Workload("p99 of core request and reply", request, 10_000, 1, None, latency="p99_us"),
]


def bare_sync_us(directory: Path, count: int) -> float:
    """The median of an append of a record's size and its fdatasync, without anything around it."""
    record, taken = bytes(RECORD_BYTES), list[int]()
    file = os.open(directory / "bare", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        for number in range(count):
            start = time.perf_counter_ns()
            os.pwrite(file, record, number * RECORD_BYTES)
            os.fdatasync(file)
            taken.append(time.perf_counter_ns() - start)
    finally:
        os.close(file)
    return statistics.median(taken) / 1000


def floor_us(work: Workload, messages: int, pin: bool) -> float:
    """A bare sync, and the p50 of the same publish where nobody waits for the disk."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as directory:
        bare = bare_sync_us(Path(directory), min(messages, 2_000))
        server = Server("headrace", Path(directory), "interval", pin)
        try:
            return bare + work.act(server, messages).p50_us
        finally:
            server.stop()


def run_workload(work: Workload, runs: int, share: float, pin: bool) -> dict[str, Any]:
    """Alternating runs on both; the ratios."""
    floors: list[float] = []
    for turn in range(runs):
        order = ["headrace", "nats-server"] if turn % 2 == 0 else ["nats-server", "headrace"]
        for kind in order:
            own = kind == "headrace"
            mode = work.mode if own else work.peer_mode or work.mode
            messages = max(int(work.messages * share * (1 if own else work.peer_share)), 100)
            if "100,000" in work.name:
                messages = max(messages, 100_000)
            with tempfile.TemporaryDirectory(
                prefix="headrace-bench-", ignore_cleanup_errors=True
            ) as directory:
                server = Server(kind, Path(directory), mode, pin)
                try:
                    work.runs.setdefault(kind, []).append(work.act(server, messages))
                finally:
                    server.stop()
        if work.floor:
            floors.append(floor_us(work, max(int(work.messages * share), 100), pin))
    ours, theirs = work.runs["headrace"], work.runs["nats-server"]

    def median(runs: list[Run], name: str) -> float:
        return statistics.median(getattr(each, name) for each in runs)

    if work.latency:
        ratio = median(theirs, work.latency) / median(ours, work.latency)
    else:
        ratio = median(ours, "rate") / median(theirs, "rate")
    cpu = median(ours, "cpu_us") / max(median(theirs, "cpu_us"), 0.001)
    spread = [getattr(each, work.latency or "rate") for each in ours]
    met = (work.rate_required is None or ratio >= work.rate_required) and (
        work.cpu_required is None or cpu <= work.cpu_required
    )
    return {
        "name": work.name,
        "pinned": pin,
        "met": met,
        "ratio": round(ratio, 2),
        "ratio_required": work.rate_required,
        "cpu_ratio": round(cpu, 3),
        "cpu_required": work.cpu_required and round(work.cpu_required, 3),
        "ours": {
            "rate": round(median(ours, "rate"), 1),
            "cpu_us": round(median(ours, "cpu_us"), 3),
            "p50_us": median(ours, "p50_us"),
            "p99_us": median(ours, "p99_us"),
            "spread": [round(min(spread), 1), round(max(spread), 1)],
        },
        "theirs": {
            "rate": round(median(theirs, "rate"), 1),
            "cpu_us": round(median(theirs, "cpu_us"), 3),
            "p50_us": median(theirs, "p50_us"),
            "p99_us": median(theirs, "p99_us"),
        },
        **({"floor_us": round(statistics.median(floors), 1)} if floors else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of workload names")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the messages of each workload")
    parser.add_argument("--smoke", action="store_true", help="small and once: does everything still run?")
    parser.add_argument("--pin", action="store_true", help="servers on one core, load on the other")
    parser.add_argument("--json", type=Path, default=ROOT / "bench" / "results" / "compare.local.json")
    given = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "headrace-load"], cwd=ROOT, check=True)
    found: list[dict[str, Any]] = []
    for work in WORKLOADS:
        if given.names and not any(name in work.name for name in given.names):
            continue
        figure = run_workload(
            work, 1 if given.smoke else given.runs, 0.01 if given.smoke else given.share, given.pin
        )
        found.append(figure)
        mark = "" if given.smoke else ("met   " if figure["met"] else "SHORT ")
        floor = (
            f"; floor {figure['floor_us']} us, ours p50 {figure['ours']['p50_us']} us" if work.floor else ""
        )
        required = f"required {figure['ratio_required']} x, CPU {figure['cpu_required']}"
        print(
            f"{mark}{work.name}: {figure['ratio']} x, CPU {figure['cpu_ratio']} ({required}); "
            f"{figure['ours']['rate']:,.0f}/s {figure['ours']['cpu_us']} us p99 {figure['ours']['p99_us']} us, "
            f"nats-server {figure['theirs']['rate']:,.0f}/s {figure['theirs']['cpu_us']} us p99 {figure['theirs']['p99_us']} us{floor}",
            flush=True,
        )
    if not given.smoke:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
