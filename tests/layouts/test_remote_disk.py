"""The disk over a Python object: what it asks for, how often, and what it says when the object fails. No network."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace._core import Disk
from headrace.errors import BadInput, DiskFault, HeadraceError, NotFound, ReadOnly
from headrace.layouts import places, remote_files
from headrace.ops.archive import archive
from headrace.ops.cat import Reading
from headrace.ops.conversion import convert
from headrace.ops.look import salvage
from headrace.ops.replay import DirectoryTarget
from headrace.ops.store import open_store

BLOCK = 4 << 20


class Files:
    """Some files; counts what is asked of them."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.reads = files, list[tuple[str, int, int]]()
        self.raises: BaseException | None = None

    def entry(self, path: str) -> tuple[bool, int, int] | None:
        if self.raises is not None:
            raise self.raises
        return (False, len(self.files[path]), 5) if path in self.files else None

    def list(self, path: str) -> list[tuple[str, bool, int]]:
        return [(name.removeprefix(f"{path}/"), False, len(data)) for name, data in self.files.items()]

    def open(self, path: str) -> tuple[Any, int]:
        if path not in self.files:
            raise FileNotFoundError("no such key")
        return File(self, path), len(self.files[path])


class File:
    def __init__(self, home: Files, path: str) -> None:
        self._home, self._path = home, path

    def read_at(self, count: int, offset: int) -> bytes:
        if self._home.raises is not None:
            raise self._home.raises
        self._home.reads.append((self._path, offset, count))
        return self._home.files[self._path][offset : offset + count]


def test_small_reads_share_blocks_and_large_ones_are_one_request() -> None:
    data = random.Random(1).randbytes(3 * BLOCK + 300_000)
    place = Files({"m://a": data})
    disk = Disk.foreign(place)
    file = disk.open("m://a")
    entry = disk.entry("m://a")
    assert entry is not None and (entry.is_dir, entry.size) == (False, len(data)) and len(file) == len(data)
    chosen = random.Random(2)
    for _ in range(500):
        at, count = chosen.randrange(len(data) + 10), chosen.randrange(5000)
        assert file.read_at(at, count) == data[at : at + count]
    assert sorted(place.reads) == [("m://a", n * BLOCK, min(BLOCK, len(data) - n * BLOCK)) for n in range(4)]
    # Another handle of the same disk asks for nothing; another disk sees what is there now.
    assert disk.open("m://a").read_at(7, 9) == data[7:16] and len(place.reads) == 4
    Disk.foreign(place).open("m://a").read_at(7, 9)
    assert len(place.reads) == 5
    assert disk.read("m://a") == data and place.reads[5:] == [("m://a", 0, len(data))]
    assert file.read_at(len(data), 100) == b"" == file.read_at(2**63, 2**62)


def test_no_more_than_sixteen_blocks_are_kept() -> None:
    place = Files({"m://a": bytes(40 * BLOCK)})
    file = Disk.foreign(place).open("m://a")
    for number in [*range(17), 0, 16]:
        file.read_at(number * BLOCK, 1)
    assert [offset // BLOCK for _, offset, _ in place.reads] == [*range(17), 0]


def test_nothing_is_written() -> None:
    disk = Disk.foreign(Files({"m://a": b"x"}))
    file = disk.open("m://a")
    attempts = [
        lambda: disk.open("m://b", "write"),
        lambda: disk.open("m://b", "create_new"),
        lambda: disk.create_dir_all("m://d"),
        lambda: disk.rename("m://a", "m://b"),
        lambda: disk.remove_file("m://a"),
        lambda: disk.remove_dir_all("m://a"),
        lambda: disk.sync_dir("m://a"),
        lambda: disk.replace_file("m://a", b""),
        lambda: disk.lock("m://a/lock", "me"),
        lambda: file.write_at(0, b"y"),
        lambda: file.set_len(0),
        lambda: file.sync_data(),
    ]
    for attempt in attempts:
        with pytest.raises(DiskFault, match=r"^m://.*remote places are only read; .*copy the directory"):
            attempt()
    assert disk.lock_holder("m://a/lock") is None and file.read_at(0, 5) == b"x"


def test_what_the_object_raises_is_one_line_with_the_path() -> None:
    place = Files({"m://a": bytes(100)})
    disk = Disk.foreign(place)
    file = disk.open("m://a")
    place.raises = OSError("no\nanswer  after\t3 tries")
    for attempt in (lambda: file.read_at(0, 10), lambda: disk.entry("m://a"), lambda: disk.read("m://a")):
        with pytest.raises(DiskFault, match=r"^m://a: (read|stat) failed: no answer after 3 tries$"):
            attempt()
    place.raises = KeyError()
    with pytest.raises(DiskFault, match="m://a: read failed: KeyError"):
        file.read_at(0, 10)
    place.raises = None
    assert file.read_at(0, 10) == bytes(10)
    with pytest.raises(NotFound, match=r"m://b: open failed: no such key"):
        disk.open("m://b")
    other = Disk.foreign(place).open("m://a")
    place.files["m://a"] = b"short"
    with pytest.raises(DiskFault, match=r"m://a: .*5 bytes came instead of 100 at 0: the file was changed"):
        other.read_at(0, 10)
    with pytest.raises(DiskFault, match="more than the 3 allowed"):
        Disk.foreign(place).read("m://a", 3)
    with pytest.raises(DiskFault):
        Disk.foreign(object()).entry("m://a")  # type: ignore[arg-type]


def test_threads_get_the_right_bytes() -> None:
    data = {f"m://{n}": random.Random(n).randbytes(BLOCK + 77) for n in range(20)}
    disk = Disk.foreign(Files(data))

    def work(seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(100):
            name, at = f"m://{chosen.randrange(20)}", chosen.randrange(BLOCK + 70)
            assert disk.open(name).read_at(at, 300) == data[name][at : at + 300]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


# Paths


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("/data/store", "/data/store"),
        ("file:///data/a%20b", "/data/a b"),
        ("file:/data", "/data"),
        ("relative:x", "relative:x"),
        ("s3a://bucket/dir/", "s3://bucket/dir"),
        ("S3N://bucket", "s3://bucket"),
        ("s3://b/d?scheme=http&endpoint_override=127.0.0.1:55", "s3://b;endpoint_override=127.0.0.1:55;scheme=http/d"),
        ("s3://b/d?endpoint_override=http%3A%2F%2Fh", "s3://b;endpoint_override=http:%2F%2Fh/d"),
        ("abfs://box@account.dfs.core.windows.net/x", "abfs://box@account.dfs.core.windows.net/x"),
        ("hdfs://name:9000/x", "hdfs://name:9000/x"),
    ],
)  # fmt: skip
def test_a_path_says_how_its_files_are_opened(given: str, used: str) -> None:
    assert places.place_of(given) == used == places.place_of(used)
    assert places.is_remote(used) == ("://" in used)


@pytest.mark.parametrize(
    "path",
    [
        "s3://AKIA:hunter2@bucket/dir",
        "s3://AKIA:hunter2/x@bucket/dir",
        "s3://AKIA:123/hunter2@bucket/dir",
        "abfs://:hunter2@account/box",
        "hdfs://me:hunter2@host:9000/x",
        "s3://bucket/dir?secret_key=hunter2",
        "s3://bucket/dir?X-Amz-Signature=hunter2",
        "abfs://box@account/x?client_secret=hunter2",
        "abfs://box@account/x?sig=hunter2",
        "gs://bucket/x?access_token=hunter2",
    ],
)
def test_secrets_are_refused_and_not_repeated(path: str) -> None:
    with pytest.raises(BadInput, match="a plan would show") as refused:
        places.place_of(path)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(BadInput, match="a plan would show"):
        headrace.open(path)


def test_other_refusals() -> None:
    for path, text in {
        "nats://host:4222": "that is a server, not a directory; give it as url",
        "s3:///dir": "no bucket or host",
        "nonsense://a/b": "nonsense://a",
    }.items():
        with pytest.raises(BadInput, match=re.escape(text)) as refused:
            headrace.open(path)
        assert "\n" not in str(refused.value)
    with pytest.raises(ReadOnly, match="remote places are only read"):
        headrace.open("s3://bucket/dir", mode="rw")
    with pytest.raises(ReadOnly, match="remote places are only read"):
        headrace.open("s3://bucket/dir", create=True)


def test_what_a_remote_store_is_not_for(tmp_path: Path, far: Counting) -> None:
    """Said at once: half of it on the wrong disk would be worse."""
    path = tmp_path / "store"
    with headrace.open(str(path), mode="rw", create=True) as volume:
        volume.create("S", subjects=["s"]).append(headrace.batch("s", [b"x"]))
    out, store = str(tmp_path / "out"), "s3://bucket/store"
    assert [len(batch) for _, batch in Reading(store)] == [1]
    made = convert(store, out, "kafka")
    assert (made.verified, made.messages) == (True, 1)
    for attempt in (
        lambda: salvage(store, f"{out}2"),
        lambda: salvage(str(path), "s3://bucket/out"),
        lambda: Reading(store, follow=True),
        lambda: convert(str(path), "s3://bucket/out", "kafka"),
        lambda: archive(str(path), "s3://bucket/out"),
        lambda: DirectoryTarget("s3://bucket/out", "kafka").check(),
        lambda: open_store(store),
    ):
        with pytest.raises(
            HeadraceError, match=r"remote place|salvage works on a local directory|through a running server"
        ):
            attempt()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "store"]


# Stores, over a file system of pyarrow's


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    """`s3://bucket` is a directory."""
    counting = Counting(tmp_path)
    monkeypatch.setattr(remote_files, "file_system", lambda head: (counting, ""))
    return counting


class Counting:
    """A file system of pyarrow that counts."""

    def __init__(self, root: Path) -> None:
        self._inner: Any = remote_files.arrow_fs.SubTreeFileSystem(
            str(root), remote_files.arrow_fs.LocalFileSystem()
        )
        self.calls: list[str] = []

    def get_file_info(self, what: Any) -> Any:
        self.calls.append(f"info {getattr(what, 'base_dir', what)}")
        return self._inner.get_file_info(what)

    def open_input_file(self, path: str) -> Any:
        self.calls.append(f"open {path}")
        return self._inner.open_input_file(path)


def test_a_store_is_listed_once_and_its_blocks_opened_once(tmp_path: Path, far: Counting) -> None:
    with headrace.open(str(tmp_path / "store"), mode="rw", create=True, block_bytes=64 << 10) as volume:
        volume.create("S", subjects=["s"]).append(headrace.batch("s", [bytes(1000)] * 1000))
    with headrace.open("s3://bucket/store") as volume:
        tasks = volume.open("S").scan_tasks()
        assert len(tasks) > 10 and all(task.path.startswith("s3://bucket/store/") for task in tasks)
    planning = [each for each in far.calls if each.startswith("info")]
    assert len(planning) == len(set(planning)) < 12
    # Nothing above the directory was listed.
    assert all(each.removeprefix("info ").startswith("/store") for each in planning)
    far.calls.clear()
    assert sum(len(batch) for task in tasks for batch in task.batches()) == 1000
    assert len(far.calls) <= 2 * len(tasks)


def test_any_file_system_that_fsspec_knows(tmp_path: Path) -> None:
    import fsspec  # it comes with the packages for lakes

    path = tmp_path / "store"
    with headrace.open(str(path), mode="rw", create=True) as volume:
        log = volume.create("S", subjects=["s"])
        log.append(headrace.batch("s", [b"x"] * 10))
        volume.commit([log.append(headrace.batch("s", [b"y"]))])
    memory: Any = fsspec.filesystem("memory")
    memory.put(str(path), "/box/store", recursive=True)
    try:
        with headrace.open("memory://box/store") as volume:
            assert [each.data for each in volume.open("S")] == [b"x"] * 10 + [b"y"]
        memory.put(str(path), "/box/later", recursive=True)
        assert places.matching("memory://box/*") == ["memory://box/later", "memory://box/store"]
    finally:
        memory.rm("/box", recursive=True)


def test_patterns(tmp_path: Path, far: Counting) -> None:
    for name in ("a1/x", "a2/x", "b/x", ".a/x", "a1/y"):
        (tmp_path / "in" / name).mkdir(parents=True)
    (tmp_path / "in" / "a3").write_text("a file")
    assert places.matching("s3://bucket/in/a*/x") == ["s3://bucket/in/a1/x", "s3://bucket/in/a2/x"]
    assert places.matching("s3://bucket/in/[ab]*") == [f"s3://bucket/in/{name}" for name in ("a1", "a2", "b")]
    assert places.matching("s3://bucket/none/*") == []
    assert "info /" not in far.calls and not places.has_magic("s3://b*/plain")


def test_one_store_in_many_threads(tmp_path: Path, far: Counting) -> None:
    """A thread that reads holds the log's lock and needs the interpreter; one that asks must not hold that and wait."""
    with headrace.open(str(tmp_path / "store"), mode="rw", create=True, block_bytes=64 << 10) as volume:
        volume.create("S", subjects=["s"]).append(headrace.batch("s", [bytes(1000)] * 1000))
    code = (
        "import sys, threading, pathlib\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.layouts.test_remote_disk import Counting, headrace, remote_files\n"
        f"counting = Counting(pathlib.Path({str(tmp_path)!r}))\n"
        "remote_files.file_system = lambda head: (counting, '')\n"
        "sys.setswitchinterval(1e-5)\n"
        "volume = headrace.open('s3://bucket/store', cache_bytes=1)\n"
        "log = volume.open('S')\n"
        "def read():\n"
        "    for turn in range(3):\n"
        "        assert sum(len(log.read(at, 20)) for at in range(1, 1000, 20)) == 1000\n"
        "def ask():\n"
        "    for turn in range(3000):\n"
        "        assert log.state().messages == 1000 and len(log.log.blocks()) > 10\n"
        "threads = [threading.Thread(target=each, daemon=True) for each in (read, ask, read, ask)]\n"
        "[each.start() for each in threads]\n"
        "[each.join(60) for each in threads]\n"
        "print('alive' if any(each.is_alive() for each in threads) else 'done', flush=True)\n"
        "import os; os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert done.stdout == "done\n", done.stderr
