"""What the shared parts of the layouts take from the Rust core."""

from headrace._core import (
    JOURNAL_RECORD_BYTES_MAX,
    BlockLog,
    CommitHandle,
    DiskLock,
    GroupCommit,
    HeldBlock,
    JournalWriter,
    Ledger,
)

__all__ = [
    "JOURNAL_RECORD_BYTES_MAX",
    "BlockLog",
    "CommitHandle",
    "DiskLock",
    "GroupCommit",
    "HeldBlock",
    "JournalWriter",
    "Ledger",
]
