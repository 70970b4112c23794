//! The file of a journal that is open for writing (`layouts/journal.py` has the format, the generations and reading).
//!
//! ```text
//! record   u32 length | u32 CRC-32 of (length, kind, payload) | u8 kind | payload
//! append → buffer     write → the operating system     commit → on disk, shared with others who wait
//! ```
//! A failed write leaves the buffer as it was: the next try writes the same bytes at the same place. A failed sync poisons.

use std::sync::{Arc, Mutex, MutexGuard};

use super::group::{GroupCommit, Reached, RoundError};
use super::{CommitError, Commits};
use crate::disk::DiskFile;

const KIND_BYTES: usize = 1;

pub struct JournalWriter {
    /// For errors.
    name: String,
    inner: Mutex<Inner>,
    group: GroupCommit,
}

#[derive(Default)]
struct Inner {
    file: Option<Arc<dyn DiskFile>>,
    offset: u64,
    buffer: Vec<u8>,
    appended: u64,
    /// The file is being changed for another one: what is in the buffer belongs into that one.
    held: bool,
}

impl JournalWriter {
    pub fn new(name: &str) -> JournalWriter {
        JournalWriter { name: name.into(), inner: Mutex::default(), group: GroupCommit::default() }
    }

    /// Write into `file` from `offset` on. `position` is the number of records before it, all of them durable.
    pub fn start(&self, file: Arc<dyn DiskFile>, offset: u64, position: u64) {
        let mut inner = self.lock();
        (inner.file, inner.offset, inner.appended) = (Some(file), offset, position);
        inner.buffer.clear();
        self.group.healed(Reached { mark: position, last: position });
    }

    pub fn append(&self, kind: u8, payload: &[u8]) -> Result<u64, CommitError> {
        let mut inner = self.lock();
        self.check_open(&inner)?;
        let length = ((KIND_BYTES + payload.len()) as u32).to_le_bytes();
        let mut crc = crc32fast::Hasher::new();
        crc.update(&length);
        crc.update(&[kind]);
        crc.update(payload);
        inner.buffer.extend_from_slice(&length);
        inner.buffer.extend_from_slice(&crc.finalize().to_le_bytes());
        inner.buffer.push(kind);
        inner.buffer.extend_from_slice(payload);
        inner.appended += 1;
        Ok(inner.appended)
    }

    /// Hands what was appended to the operating system: it outlives the process, not yet a power cut.
    pub fn write(&self) -> Result<(), CommitError> {
        let mut inner = self.lock();
        self.check_open(&inner)?;
        inner.write()
    }

    /// Waits until nobody syncs, writes and syncs everything, and keeps others from doing so until `release`.
    /// Returns the position up to which the present file goes.
    pub fn hold(&self) -> Result<u64, CommitError> {
        self.group.hold().map_err(|error| self.poisoned(error))?;
        match self.sync_held() {
            Ok(position) => Ok(position),
            Err(error) => {
                self.lock().held = false;
                let error = match error {
                    RoundError::Sync(reason) => {
                        self.group.set_poison(reason.clone());
                        self.poisoned(CommitError::Poisoned(reason))
                    }
                    RoundError::Before(error) => error,
                };
                self.group.release(None);
                Err(error)
            }
        }
    }

    fn sync_held(&self) -> Result<u64, RoundError> {
        let (file, position) = {
            let mut inner = self.lock();
            self.check_open(&inner).map_err(RoundError::Before)?;
            inner.write().map_err(RoundError::Before)?;
            inner.held = true;
            (inner.file.clone(), inner.appended)
        };
        if let Some(file) = file {
            file.sync_data().map_err(|error| RoundError::Sync(error.to_string()))?;
        }
        Ok(position)
    }

    /// The end of `hold`: go on in the new file, or, without one, in the present one.
    pub fn release(&self, next: Option<(Arc<dyn DiskFile>, u64)>, position: u64) {
        let mut inner = self.lock();
        inner.held = false;
        if let Some((file, offset)) = next {
            (inner.file, inner.offset) = (Some(file), offset);
        }
        drop(inner);
        self.group.release(Some(Reached { mark: position, last: position }));
    }

    /// Gives up the file when nobody syncs it.
    pub fn close(&self) {
        // A poisoned journal is closed too.
        let held = self.group.hold().is_ok();
        self.lock().file = None;
        if held {
            self.group.release(None);
        }
    }

    /// How many records were ever appended.
    pub fn position(&self) -> u64 {
        self.lock().appended
    }

    /// Bytes of the file, and those waiting for it.
    pub fn size(&self) -> u64 {
        let inner = self.lock();
        inner.offset + inner.buffer.len() as u64
    }

    /// Nothing is accepted any more.
    pub fn poison(&self, reason: String) {
        self.group.set_poison(reason);
    }

    /// Whether something may be appended.
    pub fn check(&self) -> Result<(), CommitError> {
        self.check_open(&self.lock())
    }

    fn check_open(&self, inner: &Inner) -> Result<(), CommitError> {
        if let Some(reason) = self.group.poison() {
            return Err(self.poisoned(CommitError::Poisoned(reason)));
        }
        if inner.file.is_none() {
            return Err(CommitError::Closed(format!("the journal {} is not open for writing", self.name)));
        }
        Ok(())
    }

    fn poisoned(&self, error: CommitError) -> CommitError {
        match error {
            CommitError::Poisoned(reason) => {
                CommitError::Poisoned(format!("{}: a sync failed ({reason}); open the store again", self.name))
            }
            other => other,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("journal lock")
    }
}

impl Commits for JournalWriter {
    fn commit_to(&self, mark: u64) -> Result<(), CommitError> {
        let mark = mark.min(self.lock().appended);
        let round = || {
            let (file, position) = {
                let mut inner = self.lock();
                self.check_open(&inner).map_err(RoundError::Before)?;
                inner.write().map_err(RoundError::Before)?;
                (inner.file.clone(), inner.appended)
            };
            if let Some(file) = file {
                file.sync_data().map_err(|error| RoundError::Sync(error.to_string()))?;
            }
            Ok(Reached { mark: position, last: position })
        };
        self.group.commit(mark, round).map_err(|error| self.poisoned(error))
    }
}

impl Inner {
    fn write(&mut self) -> Result<(), CommitError> {
        let Some(file) = &self.file else { return Ok(()) };
        if !self.buffer.is_empty() && !self.held {
            file.write_at(self.offset, &self.buffer)?;
            self.offset += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }
}
