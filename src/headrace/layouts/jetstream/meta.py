"""`meta.inf` and `meta.sum`: the pair that says what a stream or consumer is.

    meta.inf   one line of JSON (sealed when meta.key is there)
    meta.sum   16 lower-case hex digits: HighwayHash-64 of the bytes of meta.inf,
               key SHA-256(key text); key text = `<stream>` or `<stream>/<consumer>`

nats-server skips a stream whose pair does not match, so a crash between the two files loses the stream
there. Here a change goes:

    1 write + sync meta.inf.tmp, meta.sum.tmp     the old pair is whole
    2 sync the directory                          … and both new files will be found after a crash
    3 rename meta.inf.tmp, rename meta.sum.tmp    any mixture: `finish_meta` finds the matching halves
    4 sync the directory                          the new pair is whole

A matching meta.inf + meta.sum always wins over leftovers: a change that got no further than step 2 was
not answered to anybody, and a foreign server may have written the pair since.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from headrace.errors import KeyNeeded, ReadOnly
from headrace.layouts.base import Damage
from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.recovery.bits import single_bit_repair
from headrace.layouts.jetstream.sealed import StoreKey, is_sealed
from headrace.layouts.shortcuts import read_shortcut

META_FILE = "meta.inf"
SUM_FILE = "meta.sum"
META_BYTES_MAX = 64 << 20
_SUM_DIGITS = 16
_TMP = ".tmp"


class MetaRead(NamedTuple):
    """What `read_meta` found. `data` is decrypted; `ok` says whether it may be relied on.

    With `ok` and a `problem` the content was repaired. Without `ok` the data, if any, is what the file
    holds: show it, do not act on it.
    """

    data: bytes
    ok: bool
    problem: Damage | None


def hash_key(key_text: str) -> bytes:
    """The 32-byte key that JetStream derives from a text."""
    return sha256(key_text.encode()).digest()


def meta_sum(key_text: str, data: bytes) -> bytes:
    """The content of meta.sum for a meta.inf."""
    return _kernels.highway_hash(hash_key(key_text), data).hex().encode()


def read_meta(disk: Disk, directory: str, key_text: str, secret: StoreKey | None = None) -> MetaRead:
    """The meta.inf of a directory, checked against its meta.sum. Never writes."""
    problems: list[Damage] = []
    data, seen = (
        read_shortcut(disk, f"{directory}/{name}", META_BYTES_MAX, problems, "metadata")
        for name in (META_FILE, SUM_FILE)
    )
    if data is None or seen is None:
        absent = Damage(
            f"{directory}/{META_FILE if data is None else SUM_FILE}", 0, 0, "missing", "no such file"
        )
        return MetaRead(data or b"", False, problems[0] if problems else absent)
    data, ok, problem = _checked(f"{directory}/{META_FILE}", key_text, data, seen)
    if not is_sealed(disk, directory):
        return MetaRead(data, ok, problem)
    if secret is None:
        what = "give the key of the server that wrote it"
        raise KeyNeeded(f"{directory}/{META_FILE}", 0, "an encrypted file", "a server key", what)
    if not ok:
        return MetaRead(b"", False, problem)
    context = key_text.replace("/", ".")
    return MetaRead(secret.open_file(disk, directory, context, data), True, problem)


def meta_files(key_text: str, data: bytes) -> dict[str, bytes]:
    """The pair of files, by name."""
    return {META_FILE: data, SUM_FILE: meta_sum(key_text, data)}


def write_meta(disk: Disk, directory: str, key_text: str, data: bytes) -> None:
    """Replace the pair so that a crash at any point leaves the old one or the new one."""
    if is_sealed(disk, directory):
        raise ReadOnly(f"{directory} is encrypted: encrypted stores are read, not written")
    for name, content in meta_files(key_text, data).items():
        file = disk.open(f"{directory}/{name}{_TMP}", "write")
        file.set_len(0)
        file.write_at(0, content)
        file.sync_data()
    disk.sync_dir(directory)
    for name in (META_FILE, SUM_FILE):
        disk.rename(f"{directory}/{name}{_TMP}", f"{directory}/{name}")
    disk.sync_dir(directory)


def finish_meta(disk: Disk, directory: str, key_text: str) -> bool:
    """Complete a change that a crash interrupted, or clear its leftovers. True if a file changed.

    To be called before `read_meta` when a directory is opened for writing.
    """
    metas = _leftovers(disk, directory, META_FILE)
    sums = _leftovers(disk, directory, SUM_FILE)
    if not any(name.endswith(_TMP) for name in (*metas, *sums)):
        return False
    whole = next(
        (
            (meta, sum_)
            for meta, data in metas.items()
            for sum_, seen in sums.items()
            if meta_sum(key_text, data) == seen
        ),
        None,
    )
    if whole is None:
        return False  # nothing here proves itself: leave every byte where it is
    # The writer may have been killed before its own syncs, with the bytes still in the page cache.
    for name in whole:
        if name.endswith(_TMP):
            disk.open(f"{directory}/{name}", "write").sync_data()
    disk.sync_dir(directory)
    for name, target in zip(whole, (META_FILE, SUM_FILE), strict=True):
        if name != target:
            disk.rename(f"{directory}/{name}", f"{directory}/{target}")
    for name in (*metas, *sums):
        if name.endswith(_TMP) and name not in whole:
            disk.remove_file(f"{directory}/{name}")
    disk.sync_dir(directory)
    return True


def _leftovers(disk: Disk, directory: str, name: str) -> dict[str, bytes]:
    """The file and its temporary twin, as far as they exist; the final one first."""
    found = {each: _read(disk, directory, each) for each in (name, name + _TMP)}
    return {each: data for each, data in found.items() if data is not None}


def _checked(file: str, key_text: str, data: bytes, seen: bytes) -> tuple[bytes, bool, Damage | None]:
    expected = meta_sum(key_text, data)
    if expected == seen:
        return data, True, None
    if len(seen) == _SUM_DIGITS and _bits_apart(expected, seen) == 1:
        detail = "one bit of meta.sum was inverted; meta.inf is sound"
        return data, True, Damage(file.replace(META_FILE, SUM_FILE), 0, len(seen), "repaired", detail)
    key, digest = hash_key(key_text), _digest(seen)
    repair = single_bit_repair(data, lambda trial: _kernels.highway_hash(key, trial) == digest)
    if repair is not None:
        detail = f"bit {repair.bit} of this byte was inverted"
        return repair.data, True, Damage(file, repair.offset, 1, "repaired", detail)
    shown = seen[:40].decode("ascii", "replace")
    detail = f"meta.sum says {shown!r}, the content gives {expected.decode()!r}"
    return data, False, Damage(file, 0, len(data), "metadata", detail)


def _digest(seen: bytes) -> bytes | None:
    try:
        return bytes.fromhex(seen.decode("ascii"))
    except (UnicodeDecodeError, ValueError):
        return None


def _bits_apart(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


def _read(disk: Disk, directory: str, name: str) -> bytes | None:
    path = f"{directory}/{name}"
    entry = disk.entry(path)
    return None if entry is None or entry.is_dir else disk.read(path, META_BYTES_MAX)
