"""What is in the place of a file: links that lead out of a store are not followed, a FIFO keeps nobody waiting.

The folder that a user names may be a link itself, or lie behind one.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import run
from headrace.config.model import ConsumerConfig
from headrace.errors import DiskFault, HeadraceError

LOGS = {
    "jetstream": ("S", "s.a"),
    "nats_streaming": ("foo", "foo"),
    "kafka": ("orders-0", "orders"),
    "rocketmq": ("orders-0", "orders"),
    "rabbitmq": ("q", "q"),
}
MESSAGES = [b"m%d" % n + b"x" * (5_000 * (n % 2)) for n in range(40)]
FILES = {
    "jetstream": "**/*.blk",
    "nats_streaming": "**/msgs.*.dat",
    "kafka": "**/*.log",
    "rocketmq": "commitlog/0*",
    "rabbitmq": "**/*.rdq",
}


def made(path: Path, layout: str) -> Path:
    name, subject = LOGS[layout]
    options: dict[str, Any] = {"subjects": ["s.>"]} if layout == "jetstream" else {}
    with headrace.open(str(path), mode="rw", create=True, layout=layout) as volume:
        log = volume.create(name, **options)
        volume.commit([log.append(headrace.batch(subject, MESSAGES))])
    return path


def bodies(path: Path, layout: str) -> list[bytes]:
    with headrace.open(str(path)) as volume:
        return [record.data or b"" for record in volume.open(LOGS[layout][0])]


@pytest.mark.parametrize("layout", list(LOGS))
def test_a_store_behind_a_link(layout: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    made(tmp_path / "disk" / "store", layout)
    (tmp_path / "mounted").symlink_to(tmp_path / "disk")
    (tmp_path / "store").symlink_to(tmp_path / "mounted" / "store")
    for path in (tmp_path / "mounted" / "store", tmp_path / "store"):
        assert bodies(path, layout) == MESSAGES
        assert run(["verify", str(path)]) == 0
        with headrace.open(str(path), mode="rw") as volume:
            assert volume.open(LOGS[layout][0]).state().messages == len(MESSAGES)


@pytest.mark.parametrize("layout", list(LOGS))
def test_a_lock_that_leads_elsewhere(layout: str, tmp_path: Path) -> None:
    store, precious = made(tmp_path / "store", layout), tmp_path / "precious"
    precious.write_text("mine")
    locks = list(store.rglob("headrace.lock"))
    assert locks
    for lock in locks:
        lock.unlink()
        lock.symlink_to(precious)
    with pytest.raises(DiskFault, match=r"headrace\.lock.*symbolic link"):
        headrace.open(str(store), mode="rw")
    assert precious.read_text() == "mine"
    assert bodies(store, layout) == MESSAGES, "reading needs no lock"


def purge(store: Path) -> None:
    with headrace.open(str(store), mode="rw") as volume:
        stream: Any = volume.open("S")
        stream.purge()


@pytest.mark.parametrize("folder", ["msgs", "S", "headrace", "obs"])
def test_a_folder_that_leads_elsewhere(folder: str, tmp_path: Path) -> None:
    store = made(tmp_path / "store", "jetstream")
    with headrace.open(str(store), mode="rw") as volume:
        stream: Any = volume.open("S")
        stream.consumers.create("c", ConsumerConfig(durable_name="c"), 1)
    inside = next(path for path in store.rglob(folder) if path.is_dir())
    outside = tmp_path / "outside"
    shutil.move(inside, outside)
    (outside / "precious").write_text("mine")
    inside.symlink_to(outside)
    before = sorted((path.relative_to(outside), path.stat().st_size) for path in outside.rglob("*"))
    with pytest.raises(HeadraceError, match="symbolic link"):
        purge(store)
    assert sorted((path.relative_to(outside), path.stat().st_size) for path in outside.rglob("*")) == before
    if folder in ("msgs", "S"):
        assert run(["verify", str(store)]) == 2


@pytest.mark.parametrize("layout", list(LOGS))
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_is_no_file(kind: str, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command ends, and says what is in the place of the messages."""
    store, outside = made(tmp_path / "store", layout), tmp_path / "outside"
    file = next(path for path in sorted(store.glob(FILES[layout])) if path.is_file() and path.stat().st_size)
    shutil.move(file, outside)
    if kind == "link":
        file.symlink_to(outside)
    else:
        os.mkfifo(file)
    before = outside.read_bytes()
    for command in ("inspect", "verify", "cat"):
        capsys.readouterr()
        code = run([command, str(store)])
        said = "".join(capsys.readouterr())
        if command != "inspect":
            assert code != 0, said
        assert "Traceback" not in said and "fault in headrace" not in said
        if command == "verify":
            assert ("symbolic link" if kind == "link" else "FIFO") in said, said
    try:
        with headrace.open(str(store), mode="rw") as volume:
            volume.open(LOGS[layout][0])
    except HeadraceError:
        pass
    assert outside.read_bytes() == before


@pytest.mark.parametrize("layout", list(LOGS))
def test_a_terabyte_of_nothing(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is all holes is refused by name; nobody reads it to its end."""
    store = made(tmp_path / "store", layout)
    file = next(path for path in sorted(store.glob(FILES[layout])) if path.is_file() and path.stat().st_size)
    os.truncate(file, 1 << 40)
    began = time.monotonic()
    for command in ("verify", "cat"):
        capsys.readouterr()
        assert run([command, str(store)]) != 0
        said = "".join(capsys.readouterr())
        assert "Traceback" not in said and "fault in headrace" not in said
        if command == "verify":
            assert "holes" in said, said
    assert time.monotonic() - began < 60
