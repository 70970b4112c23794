"""Golden directories for tests: copied, damaged as their manifest says, compared with what it expects.

vector = load("jetstream", "2.15.2")
path = vector.copy(tmp_path)
for case in vector.recovery():
    apply_ops(case.ops, path)
for expected in vector.messages("ORDERS"):
    expected.data_matches(data)
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.units import parse_time_ns

ROOT = Path(__file__).resolve().parents[2] / "vectors"
INDEX_SUFFIXES = (".idx", ".fss")
INDEX_NAMES = ("index.db", "thw.db", "sched.db", "sources.db")


@dataclass(frozen=True)
class Expected:
    """One message as the product's API gave it. Large payloads are known by length and hash only."""

    seq: int
    subject: str
    time_ns: int
    headers: bytes
    data: bytes | None
    data_len: int
    data_sha256: str

    def data_matches(self, data: bytes | None) -> bool:
        found = data or b""
        return len(found) == self.data_len and hashlib.sha256(found).hexdigest() == self.data_sha256


@dataclass(frozen=True)
class RecoveryCase:
    """Damage as a list of edits, and what the product reported afterwards, by stream."""

    name: str
    description: str
    ops: tuple[dict[str, Any], ...]
    expected: dict[str, dict[str, Any]]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Vector:
    """One golden directory and its manifest."""

    product: str
    version: str
    manifest: dict[str, Any]

    @property
    def folder(self) -> Path:
        return ROOT / self.product / self.version

    def __str__(self) -> str:
        return f"{self.product}-{self.version}"

    def copy(self, target: Path, store: str = "store") -> Path:
        """A fresh, writable copy of the store below `target`; returns its path."""
        return Path(shutil.copytree(self.folder / store, target / f"{self.product}-{self.version}-{store}"))

    def streams(self, encrypted: bool = False) -> dict[str, dict[str, Any]]:
        """What the manifest says of each stream: config, state, messages, consumers."""
        place = self.manifest["encrypted"] if encrypted else self.manifest
        return place["streams"]

    def messages(self, stream: str, encrypted: bool = False) -> Iterator[Expected]:
        """The messages of a stream, by sequence."""
        for entry in self.streams(encrypted)[stream]["messages"]:
            yield read_message(entry)

    def recovery(self) -> list[RecoveryCase]:
        return [
            RecoveryCase(case["name"], case["description"], tuple(case["ops"]), case["expected"])
            for case in self.manifest["recovery"]
        ]


def load(product: str, version: str) -> Vector:
    """Read a vector's manifest."""
    text = (ROOT / product / version / "manifest.json").read_text()
    return Vector(product, version, json.loads(text))


def versions(product: str) -> list[str]:
    """All versions that are kept of a product, oldest first."""
    found = [path.parent.name for path in (ROOT / product).glob("*/manifest.json")]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def read_message(entry: dict[str, Any]) -> Expected:
    """One `messages` entry of a manifest."""
    if "data_b64" in entry:
        data: bytes | None = base64.b64decode(entry["data_b64"])
        length, digest = len(data), hashlib.sha256(data).hexdigest()
    else:
        data, length, digest = None, entry["data_len"], entry["data_sha256"]
    return Expected(
        seq=entry["seq"],
        subject=entry["subject"],
        time_ns=parse_time_ns(entry["time"]),
        headers=base64.b64decode(entry["hdrs_b64"]),
        data=data,
        data_len=length,
        data_sha256=digest,
    )


def apply_ops(ops: Sequence[dict[str, Any]], store: Path) -> None:
    """Edit a copy of a store in place. An edit that finds nothing to change is an error."""
    for op in ops:
        match op["op"]:
            case "remove_index_files":
                found = list(index_files(store))
                if not found:
                    raise ValueError(f"{store}: no index file to remove")
                for path in found:
                    path.unlink()
            case "truncate_tail":
                path = store / op["file"]
                cut(path, path.stat().st_size - op["bytes"])
            case "truncate_at":
                cut(store / op["file"], op["offset"])
            case "xor":
                xor(store / op["file"], op["offset"], op["mask"])
            case other:
                raise ValueError(f"{other!r} is not an edit that a manifest may ask for")


def index_files(store: Path) -> Iterator[Path]:
    """Every file that the product can make again from its blocks."""
    for path in sorted(store.rglob("*")):
        if path.is_file() and (path.suffix in INDEX_SUFFIXES or path.name in INDEX_NAMES):
            yield path


def cut(path: Path, length: int) -> None:
    size = path.stat().st_size
    if not 0 <= length < size:
        raise ValueError(f"{path}: cannot cut {size} bytes to {length}")
    with path.open("r+b") as file:
        file.truncate(length)


def xor(path: Path, offset: int, mask: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        if len(byte) != 1:
            raise ValueError(f"{path}: has no byte {offset}")
        file.seek(offset)
        file.write(bytes([byte[0] ^ mask]))
