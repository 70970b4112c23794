//! What a commit of a stream's blocks syncs, the mark that shows others how far it is durable, and the way out of a failed
//! sync. The rule itself is `commit::group`.
//!
//! ```text
//! durable   "HRMARK01" | u64 block | u64 bytes of it | u64 last sequence | u32 CRC-32       rewritten in place after each sync
//! ```

use std::sync::{Arc, PoisonError};

use super::log::{BlockLog, Inner, LogError, LogResult, Writer};
use crate::commit::group::{Reached, RoundError};
use crate::commit::{CommitError, Commits};
use crate::disk::{DiskError, DiskFile, DiskResult, OpenMode, replace_file};

const MARK_MAGIC: &[u8; 8] = b"HRMARK01";

/// The file in which the durable mark is published.
pub struct MarkFile {
    pub path: String,
    pub file: Option<Arc<dyn DiskFile>>,
}

/// What has to be synced to make everything up to `reached` durable.
struct Work {
    reached: Reached,
    newest: Option<(u64, usize, Arc<dyn DiskFile>)>,
    sealed: Vec<Arc<dyn DiskFile>>,
    names: Option<String>,
}

impl From<CommitError> for LogError {
    fn from(error: CommitError) -> LogError {
        match error {
            CommitError::Disk(error) => LogError::Disk(error),
            CommitError::Poisoned(reason) | CommitError::Closed(reason) => LogError::Poisoned(reason),
        }
    }
}

impl Commits for BlockLog {
    fn commit_to(&self, mark: u64) -> Result<(), CommitError> {
        self.commit_group(mark).map_err(|error| match error {
            CommitError::Poisoned(reason) => CommitError::Poisoned(LogError::Poisoned(reason).to_string()),
            other => other,
        })
    }
}

impl BlockLog {
    fn commit_group(&self, mark: u64) -> Result<(), CommitError> {
        // A ticket of an earlier life of the store counts bytes differently: everything so far covers it.
        let mark = mark.min(self.lock().mark);
        self.group.commit(mark, || {
            let work = self.take_work();
            match work.run(self) {
                Ok(()) => {
                    self.note_durable(&work);
                    self.publish_mark(work.reached.last);
                    Ok(work.reached)
                }
                Err(error) => {
                    self.give_back(work);
                    Err(RoundError::Sync(error.to_string()))
                }
            }
        })
    }

    /// Whether a sync failed and nothing is acknowledged until the tail is written again.
    pub fn is_poisoned(&self) -> bool {
        self.group.poison().is_some()
    }

    pub fn check_sound(&self) -> LogResult<()> {
        self.group.poison().map_or(Ok(()), |reason| Err(LogError::Poisoned(reason)))
    }

    pub fn durable(&self) -> (u64, u64) {
        let Reached { mark, last } = self.group.durable();
        (mark, last)
    }

    /// Returns once everything up to `mark` is on disk.
    pub fn commit(&self, mark: u64) -> LogResult<()> {
        Ok(self.commit_group(mark)?)
    }

    /// Where the durable mark is published after each sync; no path: nowhere.
    pub fn set_mark_path(&self, path: Option<String>) {
        *self.mark_file() = path.map(|path| MarkFile { path, file: None });
    }

    /// Shows readers beside this writer how far the log is durable. Best effort: they fall behind, never ahead.
    pub fn publish_mark(&self, last: u64) {
        let (block, len) = self.durable_end();
        if self.write_mark(block, len, last).is_err()
            && let Some(mark) = self.mark_file().as_mut()
        {
            mark.file = None;
        }
    }

    /// As `publish_mark` with any mark, and on disk when this returns: before sequences are given out again on purpose.
    pub fn lower_mark(&self, last: u64) -> DiskResult<()> {
        self.write_mark(0, 0, last)?.map_or(Ok(()), |file| file.sync_data())
    }

    fn write_mark(&self, block: u64, len: u64, last: u64) -> DiskResult<Option<Arc<dyn DiskFile>>> {
        let mut bytes = MARK_MAGIC.to_vec();
        for number in [block, len, last] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        let mut guard = self.mark_file();
        let Some(mark) = guard.as_mut() else { return Ok(None) };
        if mark.file.is_none() {
            mark.file = Some(self.lock().disk.open(&mark.path, OpenMode::Write)?);
        }
        if let Some(file) = &mark.file {
            file.write_at(0, &bytes)?;
        }
        Ok(mark.file.clone())
    }

    fn mark_file(&self) -> std::sync::MutexGuard<'_, Option<MarkFile>> {
        self.mark_file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest block and how many of its bytes are on disk for good.
    fn durable_end(&self) -> (u64, u64) {
        self.lock().writer.as_ref().map_or((0, 0), |writer| (writer.number, writer.durable_len as u64))
    }

    fn take_work(&self) -> Work {
        let mut inner = self.lock();
        let newest = inner.writer.as_ref().map(|w| (w.number, w.data.len(), w.file.clone()));
        let names = std::mem::take(&mut inner.names_unsynced).then(|| inner.dir.clone());
        let sealed = std::mem::take(&mut inner.unsynced);
        Work { reached: Reached { mark: inner.mark, last: inner.last }, newest, sealed, names }
    }

    /// A sync failed: what was to be synced still is.
    fn give_back(&self, work: Work) {
        let mut inner = self.lock();
        inner.names_unsynced |= work.names.is_some();
        inner.unsynced.splice(0..0, work.sealed);
    }

    fn note_durable(&self, work: &Work) {
        let mut inner = self.lock();
        if let (Some((number, len, _)), Some(writer)) = (&work.newest, inner.writer.as_mut())
            && writer.number == *number
        {
            writer.durable_len = writer.durable_len.max(*len);
        }
    }

    /// Marks everything as on disk: after opening, what the blocks hold is what there is.
    pub fn assume_durable(&self) {
        let mut inner = self.lock();
        let (mark, last) = (inner.mark, inner.last);
        if let Some(writer) = inner.writer.as_mut() {
            writer.durable_len = writer.data.len();
        }
        drop(inner);
        self.group.healed(Reached { mark, last });
    }

    /// After a failed sync: everything written since the last good one goes into a new block, which is synced
    /// before the log takes anything again. Only then the doubtful tail of the old block is cut off: its
    /// records live on in the new one. May be tried again after a failure.
    pub fn rewrite_tail(&self, number: u64) -> LogResult<()> {
        let mut inner = self.lock();
        inner.rewrite_sealed()?;
        let old = inner.writer.take().ok_or(LogError::NoWriter)?;
        let mut free = number;
        while inner.disk.entry(&inner.block_path(free))?.is_some() {
            free += 1; // an earlier try could not take its file away
        }
        if let Err(error) = inner.copy_tail(&old, free) {
            inner.undo_copy(old, free);
            return Err(error);
        }
        inner.cache.forget(old.number);
        inner.adopt_tail(&old);
        let _ = old.file.set_len(old.durable_len as u64).and_then(|()| old.file.sync_data());
        inner.names_unsynced = false;
        let (mark, last) = (inner.mark, inner.last);
        if let Some(writer) = inner.writer.as_mut() {
            writer.durable_len = writer.data.len();
        }
        drop(inner);
        self.group.healed(Reached { mark, last });
        self.publish_mark(last);
        Ok(())
    }
}

impl Inner {
    /// Sealed blocks whose sync failed or is still to come (mode `interval`): written whole again, as new files.
    fn rewrite_sealed(&mut self) -> LogResult<()> {
        while let Some(file) = self.unsynced.first().cloned() {
            if self.disk.entry(file.path())?.is_some() {
                let bytes = file.read_at(0, usize::try_from(file.len()?).unwrap_or(usize::MAX))?;
                replace_file(self.disk.as_ref(), file.path(), &bytes)?;
            }
            self.unsynced.remove(0);
        }
        Ok(())
    }

    /// The new block with the doubtful records, on disk for good.
    fn copy_tail(&mut self, old: &Writer, number: u64) -> LogResult<()> {
        self.start_writer(number)?;
        let bytes = self.encode_tail(old);
        if !bytes.is_empty() {
            self.write(&bytes)?;
        }
        self.writer.as_ref().ok_or(LogError::NoWriter)?.file.sync_data()?;
        Ok(self.disk.sync_dir(&self.dir)?)
    }

    fn undo_copy(&mut self, old: Writer, number: u64) {
        if self.blocks.last().is_some_and(|block| block.number == number) {
            self.blocks.pop();
            let _ = self.disk.remove_file(&self.block_path(number));
        }
        self.writer = Some(old);
    }
}

impl Work {
    fn run(&self, log: &BlockLog) -> Result<(), DiskError> {
        for file in &self.sealed {
            file.sync_data()?;
        }
        if let Some((_, _, file)) = &self.newest {
            file.sync_data()?;
        }
        if let Some(dir) = &self.names {
            let disk = log.lock().disk.clone();
            disk.sync_dir(dir)?;
        }
        Ok(())
    }
}
