"""Damaged golden directories: what the real server of that era did, and what we do, side by side.

Where both columns agree the manifest is simply right. Where they differ our promise is the better one, and the
test says both: a deleted message does not come back because a later record was damaged, a bad record costs
nobody but itself, and no sequence is given out twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from tests.support import vectors

# ORDERS in every era: 1 to 12 were stored; 1 (head), 4 and 6 were removed before the stop.
LIVE = [2, 3, 5, 7, 8, 9, 10, 11, 12]


def open_damaged(vector: vectors.Vector, case: vectors.RecoveryCase, tmp_path: Path) -> Path:
    path = vector.copy(tmp_path)
    vectors.apply_ops(case.ops, path)
    return path


CASES = [
    pytest.param(vectors.load("jetstream", version), case, id=f"{version}-{case.name}")
    for version in vectors.versions("jetstream")
    for case in vectors.load("jetstream", version).recovery()
]


@pytest.mark.parametrize(("vector", "case"), CASES)
def test_recovery_case(vector: vectors.Vector, case: vectors.RecoveryCase, tmp_path: Path) -> None:
    path = open_damaged(vector, case, tmp_path)
    with headrace.open(str(path)) as volume:
        for stream, expected in case.expected.items():
            store = volume.open(stream)
            ours = {record.seq: record for record in store}
            originals = {message.seq: message for message in vector.messages(stream)}
            theirs = set(expected["seqs"])
            # What both return is byte-equal to the original; we return all that they return, except
            # messages that were removed before and came back there.
            for seq, record in ours.items():
                if seq in originals:
                    message = originals[seq]
                    assert (record.subject, record.time_ns) == (message.subject, message.time_ns)
                    assert (record.headers or b"") == message.headers and message.data_matches(record.data)
            missing = theirs - set(ours)
            assert not (missing & set(originals)), f"they keep {sorted(missing & set(originals))}, we do not"
            assert store.state().last_seq >= expected["state"]["last_seq"]
            if stream == "ORDERS":
                check_orders(vector.version, case.name, sorted(ours), store)


def check_orders(version: str, case: str, ours: list[int], store: headrace.Log) -> None:
    """ORDERS holds LIVE; each case may cost at most the one record it damaged."""
    base, no_index = case.removesuffix("-no-index"), case.endswith("-no-index")
    # A length that four flipped bits destroyed is found again: the next record tells where this one ends.
    damaged_seq = {"cut-inside-seq-12": 12, "payload-flip-seq-8": 8, "length-flip-seq-8": None}.get(base)
    if base == "tail-cut-5" and version != "2.15.2":
        damaged_seq = 12  # in 2.15 the last record is a tombstone
    kept = set(LIVE) - {damaged_seq}
    assert kept <= set(ours), f"lost {sorted(kept - set(ours))}"
    assert not store.damage() if base == "no-index" else store.damage()
    last = store.state().last_seq
    assert last >= 12, f"the next sequence would be {last + 1}, which was given out before"
    if no_index or base == "no-index":
        return
    # With its index (even one that no longer fits) a removed message stays removed, unless the index is one
    # of the per-block kind that is only valid for the block as it was.
    extra = set(ours) - set(LIVE)
    assert not extra or any(d.kind == "index" for d in store.damage()), f"{sorted(extra)} came back"


@pytest.mark.parametrize(("vector", "case"), CASES)
def test_recovery_case_opened_for_writing(
    vector: vectors.Vector, case: vectors.RecoveryCase, tmp_path: Path
) -> None:
    """The same after our writer took the directory: nothing more is lost, originals are kept, all is sound."""
    path = open_damaged(vector, case, tmp_path)
    with headrace.open(str(path)) as volume:
        before = {name: [r.seq for r in volume.open(name)] for name in case.expected}
    blocks = {block: block.read_bytes() for block in path.rglob("*.blk")}
    with headrace.open(str(path), mode="rw") as volume:
        for name, seqs in before.items():
            store = volume.open(name)
            # On a work queue readers see no message that is acknowledged; its removal is the server's.
            acked = {r.seq for r in store} - {*seqs}
            assert [r.seq for r in store if r.seq not in acked] == seqs
            assert not acked or store.config.retention != "limits"  # type: ignore[attr-defined]
            last = store.state().last_seq
            ticket = store.append_copy(headrace.batch("x", [b"new"]))
            volume.commit([ticket])
            assert ticket.first == last + 1 > max(seqs, default=0)
    for block, data in blocks.items():
        kept = block.parent.parent / "headrace" / "damaged" / block.name
        if block.exists():
            assert block.read_bytes().startswith(data) or kept.read_bytes() == data
    with headrace.open(str(path)) as volume:
        for name, seqs in before.items():
            assert [r.seq for r in volume.open(name) if r.subject != "x"] == seqs
            assert not [d for d in volume.open(name).damage() if d.kind not in ("index", "unsound-tail")]
