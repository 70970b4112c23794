"""Reopening and memory with many messages, beside nats-server 2.15.2 on the same files.

The files are written once by Headrace; the server opens a copy of them, stops cleanly (which writes its index),
and is then killed, or loses its index, before the start that is measured. Both read from a warm page cache.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import Figure, Sample, alternate, process_cpu_s, rss_bytes, scratch
from bench.store import filled

SERVER = "2.15.2"
OPEN = """
import json, os, sys, time
import headrace
def rss():
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmRSS:"))
before = rss()
cpu, wall = time.process_time(), time.perf_counter()
volume = headrace.open(sys.argv[1], mode=sys.argv[2])
store = volume.open("S")
state = store.fast_state()
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps({"wall": wall, "cpu": cpu, "messages": state.messages, "grown": rss() - before}), flush=True)
os._exit(0)
"""


def find_server() -> Path:
    """The pinned server from the cache of `make peers`."""
    base = os.environ.get("HEADRACE_PEERS")
    cache = (
        Path(base)
        if base
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace/peers"
    )
    return cache / f"nats-server-{SERVER}" / "nats-server"


class Server:
    """One start of nats-server, timed until it greets (which it does after recovery)."""

    def __init__(self, store: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        command = [str(find_server()), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(store)]
        began = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
                    if client.recv(4):
                        break
            except OSError:
                time.sleep(0.005)
            if self.process.poll() is not None or time.perf_counter() - began > 120:
                raise RuntimeError("nats-server did not start")
        self.wall_s = time.perf_counter() - began
        self.cpu_s = process_cpu_s(self.process.pid)
        self.rss = rss_bytes(self.process.pid)

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(120)


def open_ours(path: Path, mode: str = "rw") -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(path), mode], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def reopen(messages: int, runs: int) -> Figure:
    """After kill -9, every hash checked, against both starts of the server."""
    with scratch() as place:
        ours, theirs = place / "ours", place / "theirs"
        filled(ours, messages)
        shutil.copytree(ours, theirs)
        Server(theirs).end(signal.SIGTERM)
        index = next(theirs.rglob("index.db"))

        def headrace_killed() -> Sample:
            for stamp in ours.rglob("clean.json"):
                stamp.unlink()
            shown = open_ours(ours)
            assert shown["messages"] == messages
            return Sample(messages, shown["wall"], shown["cpu"], {"grown": shown["grown"]})

        def headrace_clean() -> Sample:
            clean_stop(ours)
            shown = open_ours(ours, "rw")
            return Sample(messages, shown["wall"], shown["cpu"], {"grown": shown["grown"]})

        def server_killed() -> Sample:
            server = Server(theirs)
            server.end(signal.SIGKILL)
            return Sample(messages, server.wall_s, server.cpu_s, {"rss": server.rss})

        def server_without_index() -> Sample:
            kept = index.read_bytes() if index.exists() else None
            index.unlink(missing_ok=True)
            server = Server(theirs)
            server.end(signal.SIGKILL)
            if kept is not None:
                index.write_bytes(kept)
            return Sample(messages, server.wall_s, server.cpu_s, {"rss": server.rss})

        contestants: dict[str, Callable[[], Sample]] = {
            "headrace, killed": headrace_killed,
            "headrace, clean stop": headrace_clean,
            "nats-server, killed": server_killed,
            "nats-server, no index": server_without_index,
        }
        figure = Figure(
            f"reopen {messages:,} messages",
            ">= 3 x nats-server without index, >= 1 x the killed one; <= 0.3 us CPU per message; clean stop < 0.3 s",
            alternate(runs, contestants),
        )
    killed, clean = (
        figure.median(f"headrace, {how}", lambda s: s.wall_s) for how in ("killed", "clean stop")
    )
    no_index = figure.median("nats-server, no index", lambda s: s.wall_s) / killed
    with_index = figure.median("nats-server, killed", lambda s: s.wall_s) / killed
    cpu = figure.median("headrace, killed", lambda s: s.cpu_us)
    figure.met = no_index >= 3 and with_index >= 1 and cpu <= 0.3 and clean < 0.3
    figure.verdict = (
        f"{killed:.2f} s, {cpu:.3f} us CPU per message; {no_index:.1f} x the server without index, "
        f"{with_index:.2f} x the killed one; after a clean stop {clean * 1000:.0f} ms"
    )
    return figure


def clean_stop(path: Path) -> None:
    code = "import sys, headrace\nwith headrace.open(sys.argv[1], mode='rw') as v: v.open('S')"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


GROW = """
import json, os, sys
import headrace
def rss():
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmRSS:"))
before = rss()
volume = headrace.open(sys.argv[1], "rw", create=True, durability="interval")
store = volume.create("S", subjects=["orders.new"])
batch = headrace.batch("orders.new", [os.urandom(128) for _ in range(500)])
for _ in range(int(sys.argv[2]) // 500):
    store.append(batch)
print(json.dumps({"grown": rss() - before, "messages": store.fast_state().messages}), flush=True)
os._exit(0)
"""


def memory(messages: int, runs: int) -> Figure:
    """Growth over the empty process with that many messages on one subject."""

    def ours() -> Sample:
        with scratch() as place:
            done = subprocess.run(
                [sys.executable, "-c", GROW, str(place), str(messages)],
                capture_output=True,
                text=True,
                check=True,
            )
            shown = json.loads(done.stdout)
            assert shown["messages"] == messages
            reopened = open_ours(place)
            return Sample(messages, 1, 0, {"grown": shown["grown"], "grown_by_reopening": reopened["grown"]})

    def theirs() -> Sample:
        with scratch() as place:
            empty = Server(place / "empty")
            empty.end(signal.SIGKILL)
            filled(place / "full", messages)
            full = Server(place / "full")
            full.end(signal.SIGKILL)
            return Sample(
                messages, 1, 0, {"grown": full.rss - empty.rss, "empty": empty.rss, "full": full.rss}
            )

    figure = Figure(
        f"memory with {messages:,} messages on one subject",
        "growth over the empty process no more than nats-server's",
        alternate(runs, {"headrace": ours, "nats-server": theirs}),
    )
    grown = {who: figure.median(who, lambda s: s.extra["grown"]) for who in figure.samples}
    reopened = figure.median("headrace", lambda s: s.extra["grown_by_reopening"])
    figure.met = max(grown["headrace"], reopened) <= grown["nats-server"]
    figure.verdict = (
        f"+{grown['headrace'] / 2**20:.0f} MiB while writing, +{reopened / 2**20:.0f} MiB by reopening; "
        f"nats-server +{grown['nats-server'] / 2**20:.0f} MiB by opening"
    )
    return figure


ALL: dict[str, Callable[[int, int], Figure]] = {"reopen": reopen, "memory": memory}
