"""Archives: every message once, whatever is killed where; only what is new; nothing visible that is not committed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as parquet
import pytest

import headrace
from headrace.errors import BadInput, Damaged, NotFound, ReadOnly, StoreLocked
from headrace.layouts.base import Predicate
from headrace.layouts.parquet.manifest import ArchiveWriter, read_manifest
from headrace.ops import archive as archiving
from headrace.ops.archive import ArchiveOptions, archive
from headrace.ops.archive_slice import archive_slice
from headrace.ops.engines import Threads
from tests.ops.helpers import fingerprint, small_store
from tests.support import vectors

DAY_NS = 86_400_000_000_000
START_NS = 1_700_000_000_000_000_000
ALL = ArchiveOptions(newest=True)
SMALL = ArchiveOptions(target_bytes=8192, newest=True)
STORES = {
    "jetstream": "jetstream/2.15.2/store",
    "nats_streaming": "nats_streaming/0.25.6/clean",
    "kafka": "kafka/4.3.1/store",
    "rocketmq": "rocketmq/5.3.3/store",
    "rabbitmq": "rabbitmq/3.10.8/clean_mixed",
}


def visible(path: Path) -> Any:
    """The archive as any reader of Parquet sees it: names with `_` and `.` are not looked at."""
    return ds.dataset(str(path), format="parquet", partitioning="hive").to_table()


def messages(path: Path | str) -> list[tuple[Any, ...]]:
    """Everything in a store or an archive, as the library reads it."""
    with headrace.open(str(path)) as volume:
        return sorted(
            (name, each.seq, each.time_ns, each.subject, each.key or b"", each.headers or b"", each.data)
            for name in volume.logs()
            for each in volume.open(name)
        )


def more(path: Path, count: int) -> None:
    with headrace.open(str(path), mode="rw", block_bytes=4096) as volume:
        orders = volume.open("ORDERS")
        for _ in range(count // 50):
            ticket = orders.append(headrace.batch("orders.new", [b"more"] * 50))
            volume.commit([ticket])


def test_only_what_is_new_and_the_newest_block_later(tmp_path: Path) -> None:
    store, target = small_store(tmp_path / "store"), tmp_path / "lake"
    before = fingerprint(store)
    first = archive(str(store), str(target), ArchiveOptions(target_bytes=8192))
    assert first.rows and first.logs[0].left and first.files > 1 and first.rows < 297
    assert archive(str(store), str(target), ArchiveOptions(target_bytes=8192)).rows == 0
    more(store, 200)
    second = archive(str(store), str(target), ArchiveOptions(target_bytes=8192))
    assert second.rows and second.logs[0].first == first.logs[0].next
    third = archive(str(store), str(target), SMALL)
    assert third.logs[0].left == 0 and first.rows + second.rows + third.rows == 497 == third.rows_all
    again = archive(str(store), str(target), SMALL)
    assert (again.rows, again.files, again.commits) == (0, 0, 0)
    assert visible(target).num_rows == 497
    assert sorted(visible(target)["seq"].to_pylist()) == [n for n in range(1, 501) if n not in (7, 8, 20)]
    assert messages(target) == messages(store)
    manifest = read_manifest(target)
    assert manifest is not None and manifest.logs["ORDERS"].ranges == [(1, 501)]
    assert before != fingerprint(store)  # more() wrote; archive itself did not:
    after = fingerprint(store)
    archive(str(store), str(tmp_path / "other"), ALL)
    assert fingerprint(store) == after


@pytest.mark.parametrize("layout", STORES)
def test_every_layout_comes_back_byte_for_byte(tmp_path: Path, layout: str) -> None:
    source = vectors.ROOT / STORES[layout]
    if layout == "jetstream":
        source = small_store(tmp_path / "store")
    result = archive(str(source), str(tmp_path / "lake"), ALL)
    assert result.rows == len(messages(source)) > 5
    assert messages(tmp_path / "lake") == messages(source)
    files = list((tmp_path / "lake").glob("*.parquet"))
    assert sum(parquet.read_metadata(file).num_rows for file in files) == result.rows


class Killed(BaseException):
    """As kill -9: nothing of ours runs afterwards."""


def killer(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], int]:
    """The process dies at the n-th rename or sync: before it, nothing after it."""
    seen = [0]
    real = {"replace": os.replace, "fsync": os.fsync, "rename": os.rename}
    path_replace = Path.replace

    def step(name: str, *args: Any) -> Any:
        seen[0] += 1
        if seen[0] >= at:
            raise Killed
        return real[name](*args)

    def replace(self: Path, target: Any) -> Any:
        seen[0] += 1
        if seen[0] >= at:
            raise Killed
        return path_replace(self, target)

    monkeypatch.setattr(os, "fsync", lambda *a: step("fsync", *a))
    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(
        Path, "unlink", lambda *a, **k: None
    )  # clean-up after an exception: a killed process has none
    return lambda: seen[0]


def test_killed_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each rename and sync of a run: what is visible is never double, and the next run completes it to the same files."""
    store = small_store(tmp_path / "store")
    options = ArchiveOptions(target_bytes=8192, newest=True, by=("orders.{kind}",))
    monkeypatch.setattr(archiving, "COMMIT_EVERY_S", 0.0)
    archive(str(store), str(tmp_path / "whole"), options, engine=Threads(1))
    wanted = {p.name: p.read_bytes() for p in (tmp_path / "whole").rglob("*.parquet")}
    at, died = 1, 0
    while True:
        target = tmp_path / "lake"
        shutil.rmtree(target, ignore_errors=True)
        with monkeypatch.context() as patch:
            steps = killer(patch, at)
            try:
                archive(str(store), str(target), options, engine=Threads(1))
                finished = True
            except Killed:
                finished = False
        if finished:
            assert steps() > 40
            break
        died += 1
        published = [p for p in target.rglob("*.parquet") if "_headrace" not in p.parts]
        seqs = [seq for p in published for seq in parquet.read_table(p)["seq"].to_pylist()]
        assert len(seqs) == len(set(seqs))
        archive(str(store), str(target), options, engine=Threads(1))
        assert {p.name: p.read_bytes() for p in target.rglob("*.parquet")} == wanted, at
        assert messages(target) == messages(store)
        at += 3 if at > 20 else 1
    assert died > 20


def test_killed_process_goes_on(tmp_path: Path) -> None:
    """A real kill -9, several times, at no chosen moment."""
    store = small_store(tmp_path / "store", 3000)
    target = tmp_path / "lake"
    program = (
        "import sys, headrace.ops.archive as a\na.COMMIT_EVERY_S = 0\n"
        "a.archive(sys.argv[1], sys.argv[2], a.ArchiveOptions(target_bytes=4096, newest=True))\n"
    )
    for wait in (0.4, 0.5, 0.6, 0.7, 0.8):
        child = subprocess.Popen([sys.executable, "-c", program, str(store), str(target)])
        try:
            child.wait(wait)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    archive(str(store), str(target), ArchiveOptions(target_bytes=4096, newest=True))
    assert visible(target).num_rows == 2997 and messages(target) == messages(store)


def test_divided_by_date_and_subject(tmp_path: Path) -> None:
    with headrace.open(str(tmp_path / "store"), mode="rw", create=True) as volume:
        log = volume.create("ORDERS", subjects=["orders.>", "other"])
        subjects = [("orders.eu.new", "orders.us.new", "other")[n % 3] for n in range(300)]
        times = [START_NS + n * DAY_NS // 100 for n in range(300)]
        volume.commit([log.append(headrace.batch(subjects, [b"%d" % n for n in range(300)], times=times))])
    target = tmp_path / "lake"
    options = ArchiveOptions(newest=True, by=("date", "orders.{region}.*"))
    assert archive(str(tmp_path / "store"), str(target), options).files == 4 * 3
    table = visible(target)
    rows = {row["seq"]: (str(row["date"]), row["region"]) for row in table.to_pylist()}
    assert rows[1] == ("2023-11-14", "eu") and rows[2][1] == "us" and rows[3][1] is None and len(rows) == 300
    assert messages(target) == messages(tmp_path / "store")
    with headrace.open(str(target)) as volume:
        log = volume.open("ORDERS")
        assert [each.seq for each in log] == list(range(1, 301))
        assert log.seq_from_time(START_NS + DAY_NS) == 101
        assert len(log.scan_tasks(Predicate(until_ns=START_NS + 1))) < 12
        assert [each.seq for batch in log.batches(Predicate(first=10, next=13)) for each in batch] == [
            10,
            11,
            12,
        ]
        only = log.batches(Predicate(subjects=("orders.us.*",), next=10))
        assert [each.seq for batch in only for each in batch] == [2, 5, 8]
    with pytest.raises(BadInput, match="is an archive of jetstream by date, orders"):
        archive(str(tmp_path / "store"), str(target), ALL)


@pytest.mark.parametrize(
    ("by", "text"),
    [("week", "write date, hour"), ("orders.{seq}", "'seq' is a column already"), ("a.x{y}", "is no token")],
)
def test_what_cannot_divide(by: str, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        ArchiveOptions(by=(by,)).check()


def test_loss_and_new_incarnations_are_errors(tmp_path: Path) -> None:
    store, target = small_store(tmp_path / "store"), tmp_path / "lake"
    archive(str(store), str(target), ArchiveOptions(newest=True, until_seq=100))
    assert visible(target).num_rows == 97
    with headrace.open(str(store), mode="rw") as volume:
        volume.open("ORDERS").drop_front(151)
    with pytest.raises(BadInput, match="no longer holds 101 to 150"):
        archive(str(store), str(target), ALL)
    result = archive(str(store), str(target), ArchiveOptions(newest=True, lost_ok=True))
    assert result.logs[0].lost == [(101, 151)] and result.rows == 150
    manifest = read_manifest(target)
    assert manifest is not None and manifest.logs["ORDERS"].lost == [(101, 151)]
    with headrace.open(str(store), mode="rw") as volume:
        volume.delete("ORDERS")
        volume.create("ORDERS", subjects=["orders.>"])
    with pytest.raises(BadInput, match="ORDERS was deleted and made again"):
        archive(str(store), str(target), ALL)


def test_refusals(tmp_path: Path) -> None:
    store, target = small_store(tmp_path / "store"), tmp_path / "lake"
    archive(str(store), str(target), ALL)
    with ArchiveWriter(target, "jetstream"), pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        archive(str(store), str(target), ALL)
    with pytest.raises(NotFound, match="no log 'NONE'"):
        archive(str(store), str(target), ArchiveOptions(logs=("NONE",)))
    with pytest.raises(ReadOnly):
        headrace.open(str(target), mode="rw")
    (target / "_headrace" / "manifest.json").write_text("{")
    with pytest.raises(Damaged, match=r"manifest\.json"):
        archive(str(store), str(target), ALL)


def test_a_plan_writes_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    plan = archive(str(store), str(tmp_path / "lake"), SMALL, dry_run=True)
    assert len(plan.groups) == plan.blocks > 1 and not (tmp_path / "lake").exists()
    assert [group[2] for group in plan.groups[:-1]] == [group[1] for group in plan.groups[1:]]


def test_slices_that_a_nats_streaming_server_gives_up(tmp_path: Path) -> None:
    """As its archive script: in any order, twice, and the files go only when they are archived."""
    source = tmp_path / "stan"
    shutil.copytree(vectors.ROOT / "nats_streaming/0.25.6/slices", source)
    before = messages(source)
    released: list[tuple[str, str, str]] = []
    for data in sorted(source.glob("*/msgs.*.dat"), reverse=True):
        index = data.with_suffix(".idx")
        taken = [str(data) + ".bak", str(index) + ".bak"]
        data.rename(taken[0])
        index.rename(taken[1])
        released.append((data.parent.name, taken[0], taken[1]))
    assert len(released) > 3
    target = tmp_path / "lake"
    for channel, data, index in released:
        archive_slice(str(target), channel, data, index, keep=True)
        archive_slice(str(target), channel, data, index)
        assert not Path(data).exists() and not Path(index).exists()
    assert messages(target) == before
    with pytest.raises(NotFound, match="no such file"):
        archive_slice(str(target), *released[0])


def test_a_reader_beside_a_run_waits_until_its_files_have_their_names(tmp_path: Path) -> None:
    """The manifest names files a moment before they are moved; one that never comes is reported."""
    lake = tmp_path / "lake"
    archive(str(small_store(tmp_path / "store")), str(lake), ALL)
    expected, manifest = messages(lake), read_manifest(lake)
    assert manifest is not None
    file = lake / manifest.publishing[-1]
    away = file.rename(tmp_path / "staged.parquet")
    timer = threading.Timer(0.2, lambda: away.rename(file))
    timer.start()
    assert messages(lake) == expected
    timer.join()
    file.rename(away)
    with pytest.raises(Damaged, match="interrupted"):
        messages(lake)
