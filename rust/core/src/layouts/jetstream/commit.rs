//! Group commit: the first caller that finds nobody syncing becomes the leader and syncs for all who wait;
//! those who come meanwhile share the next one. A failed sync poisons the log: what reached the disk is
//! unknown, and a re-read may come from the page cache.

use std::sync::Arc;

use super::log::{BlockLog, LogError, LogResult};
use crate::disk::DiskFile;

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
                Err(error) => commit.poison = Some(error.to_string()),
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
    /// records live on in the new one.
    pub fn rewrite_tail(&self, number: u64) -> LogResult<()> {
        let mut inner = self.lock();
        let old = inner.writer.take().ok_or(LogError::NoWriter)?;
        inner.cache.forget(old.number);
        inner.start_writer(number)?;
        let outcome = inner.move_tail(&old).and_then(|()| {
            let writer = inner.writer.as_ref().ok_or(LogError::NoWriter)?;
            writer.file.sync_data()?;
            Ok(inner.disk.sync_dir(&inner.dir)?)
        });
        outcome?;
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
