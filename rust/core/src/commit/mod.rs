//! How writes become durable: those who wait for the disk share one sync.
//!
//! ```text
//! group      one caller syncs for all who wait; a failed sync poisons
//! journal    the open file of a journal: records appended, written and synced by that rule
//! committer  commits on a thread of its own, in the order in which they were handed in
//! ```

pub mod committer;
pub mod group;
pub mod journal;

use crate::disk::DiskError;

/// Why a commit did not make its mark durable.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A sync failed: what reached the disk is unknown, and nothing is confirmed until it was written anew.
    #[error("{0}")]
    Poisoned(String),
    /// Nothing was synced, and nothing is lost: the same commit may be tried again.
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("{0}")]
    Closed(String),
}

/// Something with a mark of what was written, which a commit makes durable. A mark beyond the end means all so far.
pub trait Commits: Send + Sync {
    fn commit_to(&self, mark: u64) -> Result<(), CommitError>;
}
