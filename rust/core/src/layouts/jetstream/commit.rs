//! Group commit: the first caller that finds nobody syncing becomes the leader and syncs for all who wait;
//! those who come meanwhile share the next one. A failed sync poisons the log: what reached the disk is
//! unknown, and a re-read may come from the page cache.

use std::sync::Arc;

use super::log::{BlockLog, Inner, LogError, LogResult, Writer};
use crate::disk::{DiskFile, replace_file};

#[derive(Default)]
pub struct Commit {
    /// Everything below this mark is on disk for good.
    pub durable: u64,
    /// The last sequence and block length at that mark.
    pub durable_last: u64,
    pub syncing: bool,
    pub poison: Option<String>,
}

/// What has to be synced to make everything up to `mark` durable.
struct Work {
    mark: u64,
    last: u64,
    newest: Option<(u64, usize, Arc<dyn DiskFile>)>,
    sealed: Vec<Arc<dyn DiskFile>>,
    names: Option<String>,
}

impl BlockLog {
    /// Whether a sync failed and nothing is acknowledged until the tail is written again.
    pub fn is_poisoned(&self) -> bool {
        self.commit.lock().expect("commit lock").poison.is_some()
    }

    pub fn check_sound(&self) -> LogResult<()> {
        match &self.commit.lock().expect("commit lock").poison {
            Some(reason) => Err(LogError::Poisoned(reason.clone())),
            None => Ok(()),
        }
    }

    pub fn durable(&self) -> (u64, u64) {
        let commit = self.commit.lock().expect("commit lock");
        (commit.durable, commit.durable_last)
    }

    /// Returns once everything up to `mark` is on disk. `durable` is told after each sync.
    pub fn commit(&self, mark: u64) -> LogResult<()> {
        // A ticket of an earlier life of the store counts bytes differently: everything so far covers it.
        let mark = mark.min(self.lock().mark);
        let mut commit = self.commit.lock().expect("commit lock");
        loop {
            if let Some(reason) = &commit.poison {
                return Err(LogError::Poisoned(reason.clone()));
            }
            if commit.durable >= mark {
                return Ok(());
            }
            if commit.syncing {
                commit = self.committed.wait(commit).expect("commit lock");
                continue;
            }
            commit.syncing = true;
            drop(commit);
            let work = self.take_work();
            let outcome = work.run(self);
            commit = self.commit.lock().expect("commit lock");
            commit.syncing = false;
            match outcome {
                Ok(()) => {
                    commit.durable = commit.durable.max(work.mark);
                    commit.durable_last = work.last;
                    self.note_durable(&work);
                }
                Err(error) => {
                    commit.poison = Some(error.to_string());
                    self.give_back(work);
                }
            }
            self.committed.notify_all();
        }
    }

    fn take_work(&self) -> Work {
        let mut inner = self.lock();
        let newest = inner.writer.as_ref().map(|w| (w.number, w.data.len(), w.file.clone()));
        let names = std::mem::take(&mut inner.names_unsynced).then(|| inner.dir.clone());
        let sealed = std::mem::take(&mut inner.unsynced);
        Work { mark: inner.mark, last: inner.last, newest, sealed, names }
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
        let mut commit = self.commit.lock().expect("commit lock");
        (commit.durable, commit.durable_last) = (mark, last);
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
        let mut commit = self.commit.lock().expect("commit lock");
        *commit = Commit { durable: mark, durable_last: last, syncing: false, poison: None };
        self.committed.notify_all();
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
    fn run(&self, log: &BlockLog) -> LogResult<()> {
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
