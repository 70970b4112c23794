"""Promise 8 in the RabbitMQ and NATS Streaming layouts: opening a million messages keeps no object per message.

A Python object takes 50 bytes and more: a million of them would be seen at once. What is kept per message in RabbitMQ's map
is 6 bytes, in Rust; a NATS Streaming channel keeps a few numbers per slice.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.volume import StreamingVolume
from headrace.layouts.rabbitmq.volume import RabbitVolume

LOGS, MESSAGES = 10, 1_000_000
OPEN_AND_PRINT = """
import gc, re, sys, headrace

def told(name):  # VmRSS, VmHWM: not getrusage, whose maximum comes from the parent
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

headrace.open(sys.argv[3]).close()
gc.collect()
objects, before = len(gc.get_objects()), told('VmRSS')
volume = headrace.open(sys.argv[1], mode=sys.argv[2])
messages = sum(volume.open(name).state().messages for name in volume.logs())
print(messages, told('VmRSS') - before, told('VmHWM') - before, len(gc.get_objects()) - objects)
"""


def opened(store: Path, small: Path, mode: str) -> tuple[int, int, int, int]:
    """(messages, bytes kept, bytes at the highest, Python objects) of an opening in a process of its own."""
    command = [sys.executable, "-c", OPEN_AND_PRINT, str(store), mode, str(small)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    messages, kept, peak, objects = (int(word) for word in output)
    return messages, kept, peak, objects


def fill(volume: headrace.Volume, messages: int) -> None:
    for n in range(LOGS):
        log = volume.create(f"log{n}")
        batch = headrace.batch(log.name, [bytes(100)] * 1000)
        for _ in range(messages // LOGS // 1000):
            log.append(batch)


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False])
def test_rabbitmq(tmp_path: Path, clean: bool) -> None:
    for name, messages in (("large", MESSAGES), ("small", 10_000)):
        with RabbitVolume(str(tmp_path / name), mode="rw", create=True, durability="interval") as volume:
            fill(volume, messages)
    for mode in ("r", "rw"):
        if not clean:
            for stamp in (tmp_path / "large").rglob("headrace.clean"):
                stamp.unlink()
        messages, kept, peak, objects = opened(tmp_path / "large", tmp_path / "small", mode)
        print(
            f"{mode} clean={clean}: {kept >> 10} KiB kept, {peak >> 10} KiB at the highest, {objects} objects"
        )
        assert messages == MESSAGES and objects < 5_000
        assert kept < (2 << 20 if clean else 16 << 20) and peak < (4 << 20 if clean else 24 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_nats_streaming(tmp_path: Path, mode: str) -> None:
    options = StreamingOptions(max_channels=0)
    for name, messages in (("large", MESSAGES), ("small", 10_000)):
        path = str(tmp_path / name)
        with StreamingVolume(path, mode="rw", create=True, durability="interval", options=options) as volume:
            fill(volume, messages)
    messages, kept, peak, objects = opened(tmp_path / "large", tmp_path / "small", mode)
    print(f"{mode}: {kept >> 10} KiB kept, {peak >> 10} KiB at the highest, {objects} objects")
    assert messages == MESSAGES and objects < 5_000
    assert kept < 16 << 20 and peak < 24 << 20
