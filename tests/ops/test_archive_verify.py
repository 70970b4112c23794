"""`headrace verify` of an archive: each kind of damage is found, named, and not taken for another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as parquet
import pytest

from headrace.cli.main import run
from headrace.layouts.parquet.check import file_hash
from headrace.layouts.parquet.manifest import Manifest, read_manifest
from headrace.ops.archive import ArchiveOptions, archive
from tests.ops.helpers import fingerprint, small_store

pq: Any = parquet


def lake(path: Path, **options: Any) -> tuple[Path, Manifest]:
    archive(
        str(small_store(path / "store")),
        str(path / "lake"),
        ArchiveOptions(target_bytes=8192, newest=True, **options),
    )
    found = read_manifest(path / "lake")
    assert found is not None and len(found.files) > 2
    return path / "lake", found


def verified(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = run(["verify", str(path), "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def flip(root: Path, manifest: Manifest) -> None:
    path = root / manifest.files[1].path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def cut(root: Path, manifest: Manifest) -> None:
    path = root / manifest.files[1].path
    path.write_bytes(path.read_bytes()[:-9])


def remove(root: Path, manifest: Manifest) -> None:
    (root / manifest.files[1].path).unlink()


def exchange(root: Path, manifest: Manifest) -> None:
    """A sound file of other positions, with the hash that the manifest wants."""
    one = manifest.files[1]
    (root / one.path).write_bytes((root / manifest.files[0].path).read_bytes())
    digest, size = file_hash(root / one.path)
    rows = manifest.files[0].rows
    manifest.logs["ORDERS"].rows += rows - one.rows
    manifest.files[1] = msgspec.structs.replace(one, hash=digest, bytes=size, rows=rows)
    (root / "_headrace/manifest.json").write_bytes(msgspec.json.encode(manifest))


def forget(root: Path, manifest: Manifest) -> None:
    del manifest.files[1]
    (root / "_headrace/manifest.json").write_bytes(msgspec.json.encode(manifest))


@pytest.mark.parametrize(
    ("hurt", "kind", "text"),
    [
        (flip, "bad-record", "its hash is"),
        (cut, "bad-record", "bytes instead of"),
        (remove, "missing", "is not there"),
        (exchange, "metadata", "in a file of"),
        (forget, "metadata", "but its files have"),
    ],
)
def test_damage_is_found(
    hurt: Callable[[Path, Manifest], None],
    kind: str,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, manifest = lake(tmp_path)
    before = fingerprint(root)
    code, sound = verified(root, capsys)
    assert code == 0 and sound["sound"] and sound["messages"] == 297
    assert fingerprint(root) == before
    hurt(root, manifest)
    code, found = verified(root, capsys)
    damage = [
        *found["logs"][0]["damage"],
        *(each for row in found["logs"][0]["files"] for each in row["damage"]),
    ]
    assert code == 1 and not found["sound"]
    assert [(each["kind"], text in each["detail"]) for each in damage] == [(kind, True)]
    assert run(["pipeline", "verify", str(root), "--engine", "local"]) == 1


def test_divided_archives_and_files_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several files of one range are no overlap; a file that nobody named is no damage, but said."""
    root, manifest = lake(tmp_path, by=("orders.{kind}",))
    (root / "kind=1/stray.parquet").write_bytes((root / manifest.files[0].path).read_bytes())
    code, found = verified(root, capsys)
    assert code == 0 and found["sound"] and found["messages"] == 297
    assert found["notes"] == [
        "kind=1/stray.parquet: no file of the archive, but readers of Parquet will take it for one"
    ]
    assert run(["inspect", str(root)]) == 0 and "divided by" in capsys.readouterr().out


def test_compression_by_what_the_data_is(tmp_path: Path) -> None:
    """Data that zstd makes smaller gets it; noise does not."""
    import os

    import headrace

    with headrace.open(str(tmp_path / "store"), mode="rw", create=True) as volume:
        for name, data in (("TEXT", b"the same words " * 9), ("NOISE", None)):
            log = volume.create(name, subjects=[name])
            volume.commit([log.append(headrace.batch(name, [data or os.urandom(128) for _ in range(2000)]))])
    archive(str(tmp_path / "store"), str(tmp_path / "lake"), ArchiveOptions(newest=True))
    found = read_manifest(tmp_path / "lake")
    assert found is not None
    codecs: dict[str, dict[str, str]] = {}
    for file in found.files:
        group = pq.read_metadata(str(tmp_path / "lake" / file.path)).row_group(0)
        columns = [group.column(at) for at in range(group.num_columns)]
        codecs[file.log] = {column.path_in_schema: column.compression for column in columns}
    assert codecs["TEXT"].pop("data") == "ZSTD" and codecs["NOISE"].pop("data") == "SNAPPY"
    assert set(codecs["TEXT"].values()) == set(codecs["NOISE"].values()) == {"ZSTD"}
