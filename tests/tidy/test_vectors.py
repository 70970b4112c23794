"""Golden directories are complete: provenance, manifest, files; and the edits of manifests can be made."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.support import vectors

FOLDERS = sorted(path.parent for path in vectors.ROOT.glob("*/*/manifest.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: "-".join(folder.parts[-2:]))
def test_provenance(folder: Path) -> None:
    provenance = tomllib.loads((folder / "PROVENANCE.toml").read_text())
    assert provenance["version"] == folder.name
    assert {"product", "program", "how", "stopped", "store", "manifest"} <= set(provenance)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert provenance["store"]["messages"] == sum(len(s["messages"]) for s in manifest["streams"].values())
    assert provenance["store"]["streams"] == list(manifest["streams"])
    missing = [name for name in manifest["files"] if not (folder / name).is_file()]
    assert not missing, f"in the manifest but not in the tree: {missing}"


def test_every_edit_changes_the_copy_and_not_the_original(
    jetstream_vector: vectors.Vector, tmp_path: Path
) -> None:
    before = snapshot(jetstream_vector.folder / "store")
    for case in jetstream_vector.recovery():
        copy = jetstream_vector.copy(tmp_path / case.name)
        assert snapshot(copy) == before
        vectors.apply_ops(case.ops, copy)
        assert snapshot(copy) != before, case.name
    assert snapshot(jetstream_vector.folder / "store") == before


def test_expected_messages_are_readable(jetstream_vector: vectors.Vector) -> None:
    for stream in jetstream_vector.streams():
        sequences = [message.seq for message in jetstream_vector.messages(stream)]
        assert sequences == sorted(set(sequences))
        for message in jetstream_vector.messages(stream):
            assert message.data is None or message.data_matches(message.data)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
