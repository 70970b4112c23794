"""What a store holds beside commit log, queues and key index, and is not read here.

<store>/dledger-<id>/            the log of DLedger, instead of commitlog/
        consumequeue_rocksdb/    queues in RocksDB (older versions put them into consumequeue/ itself)
        batchconsumequeue/       queues of batches
        timerlog/                which messages are due when
        compaction/              compacted topics          tiered…/    tiered storage
"""

from __future__ import annotations

from headrace.layouts.rocketmq._kernels import Disk
from headrace.layouts.rocketmq.names import COMMIT_LOG, DLEDGER, INDEX, QUEUES, SIDE, numbered
from headrace.layouts.unread import UNKNOWN, Unread, measure, unread_entries

TIMER_LOG = "timerlog"
_ROCKSDB = "queues in RocksDB: the messages of commitlog/ that belong to them are not found"
_KNOWN = {
    "batchconsumequeue": "queues of batches",
    "compaction": "compacted topics",
    "consumequeue_r": _ROCKSDB,
    "consumequeue_rocksdb": _ROCKSDB,
    "rocksdbstore": "a store in RocksDB",
}
_READ = {COMMIT_LOG, QUEUES, INDEX, SIDE, "config", "consumequeue_ext", TIMER_LOG}
_PROBE_BYTES = 4096


def unread(disk: Disk, path: str) -> list[Unread]:
    """All of it, for a store root."""
    places = unread_entries(disk, path, _of_store)
    queues, timer = f"{path}/{QUEUES}", f"{path}/{TIMER_LOG}"
    if disk.entry(f"{queues}/CURRENT") is not None:
        places.append(Unread(queues, _ROCKSDB, *measure(disk, queues)))
    # The broker makes its files in full length: zeros say that no message ever waited.
    if any(any(disk.open(f"{timer}/{at:020d}").read_at(0, _PROBE_BYTES)) for at in numbered(disk, timer)):
        places.append(Unread(timer, "which messages are due when", *measure(disk, timer)))
    return places


def _of_store(name: str, is_dir: bool) -> str | None:
    if not is_dir or name in _READ:
        return None
    if name.startswith(DLEDGER):
        return "the log of DLedger"
    if name.startswith("tiered"):
        return "tiered storage"
    return _KNOWN.get(name, UNKNOWN)
