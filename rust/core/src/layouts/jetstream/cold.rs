//! Blocks that are not in memory: read and checked without the lock, so that nobody waits who needs none of them.
//!
//! ```text
//! lock ─ what to read ─ unlock ─→ read, undo the packing, check every hash ─→ lock ─ still the same file? ─ into the cache
//! ```
//! A thread may refuse to read blocks (`refuse_loads`): the event loop does. It gets `LogError::Cold` instead, has the block
//! held by a thread that may wait (`BlockLog::hold`), and asks again.

use std::cell::Cell;
use std::sync::Arc;

use super::block::{Block, Loaded, load, loaded_of};
use super::log::{BlockLog, Inner, LogError, LogResult};
use super::matching::{BlockSubjects, subjects_of};
use super::scan::Finding;
use super::skim::Skim;
use crate::disk::{Disk, DiskResult};
use crate::subjects::Filter;

/// A file that changes so often while it is read is read under the lock.
const TRIES: usize = 3;
/// What one read may hold; beyond, it reads under the lock.
const HELD_MAX: usize = 4;
const GUARD_BYTES_MAX: u64 = 1 << 30;

thread_local! {
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread wants `LogError::Cold` instead of a read from disk; returns what it wanted before.
pub fn refuse_loads(refused: bool) -> bool {
    REFUSED.replace(refused)
}

pub fn loads_refused() -> bool {
    REFUSED.get()
}

/// Runs `act` on a thread that refuses to read blocks meanwhile.
pub fn refusing<T>(act: impl FnOnce() -> T) -> T {
    let before = refuse_loads(true);
    let result = act();
    refuse_loads(before);
    result
}

/// One block to be read.
struct Load {
    token: u64,
    disk: Arc<dyn Disk>,
    block: Block,
    path: String,
    guard_path: String,
    /// Somebody else may be writing to the directory.
    reading: bool,
    learn: bool,
    skim: Option<(Skim, Vec<u64>)>,
}

enum Read {
    Whole(Loaded, Vec<Finding>, Option<BlockSubjects>),
    Sparse(Loaded, Vec<u64>),
}

impl BlockLog {
    /// A block's bytes, in memory for as long as the caller keeps them; with filters that select little of it perhaps only
    /// that. `None` if there is no such block, or none that would have to be read.
    pub fn hold(&self, number: u64, filters: &[Filter]) -> LogResult<Option<Arc<Loaded>>> {
        for _ in 0..TRIES {
            let mut load = {
                let mut inner = self.lock();
                let Ok(index) = inner.index_of(number) else { return Ok(None) };
                if inner.is_writing(index) {
                    return Ok(None);
                }
                if let Some(loaded) = inner.cache.get(number) {
                    return Ok(Some(loaded));
                }
                match inner.begin_load(index, filters) {
                    Some(load) => load,
                    None => return Ok(None),
                }
            };
            let read = load.run(filters);
            if let Some(held) = self.lock().end_load(&load, read)? {
                return Ok(Some(held));
            }
        }
        let mut inner = self.lock();
        let Ok(index) = inner.index_of(number) else { return Ok(None) };
        inner.loaded(index).map(Some)
    }

    /// Runs a read. Blocks that it needs are read without the lock, and it begins again: it may change nothing but
    /// what it learns. A thread that refuses to read blocks gets the error.
    pub fn reading<T>(&self, act: impl Fn(&mut Inner) -> LogResult<T>) -> LogResult<T> {
        if loads_refused() {
            return act(&mut self.lock());
        }
        let mut held = Vec::new();
        while held.len() < HELD_MAX {
            match refusing(|| act(&mut self.lock())) {
                Err(LogError::Cold(number)) => held.push(self.hold(number, &[])?),
                other => return other,
            }
        }
        act(&mut self.lock())
    }

    /// The block that covers a sequence, or else the next one behind it: its number, first and last sequence.
    pub fn block_of(&self, sequence: u64) -> Option<(u64, u64, u64)> {
        let inner = self.lock();
        let block = inner.block_at(sequence).map(|index| &inner.blocks[index])?;
        Some((block.number, block.first, block.last))
    }

    /// The file of a block is about to be written to in place; `patched` follows.
    pub fn patching(&self, number: u64) {
        self.lock().cache.begin_patch(number);
    }
}

impl Inner {
    fn begin_load(&mut self, index: usize, filters: &[Filter]) -> Option<Load> {
        let number = self.blocks[index].number;
        let token = self.cache.begin_load(number)?;
        let hashes = if filters.is_empty() { None } else { self.wanted_hashes(filters) };
        let skim = hashes.and_then(|hashes| Some((self.skim_of(index, &hashes)?, hashes)));
        Some(Load {
            token,
            disk: self.disk.clone(),
            block: Block::new(number, &self.stream, self.blocks[index].cipher.clone()),
            path: self.block_path(number),
            guard_path: self.guard_path(number),
            reading: self.writer.is_none(),
            learn: !filters.is_empty() && self.blocks[index].subjects.is_none(),
            skim,
        })
    }

    /// What was read, if it is still true.
    fn end_load(&mut self, load: &Load, read: DiskResult<Read>) -> LogResult<Option<Arc<Loaded>>> {
        if !self.cache.end_load(load.token) {
            return Ok(None); // perhaps the very reason why it could not be read
        }
        let number = load.block.number;
        let Ok(index) = self.index_of(number) else { return Ok(None) };
        match read? {
            Read::Sparse(loaded, hashes) => {
                let loaded = Arc::new(loaded);
                self.cache.put_sparse(number, hashes, &loaded);
                Ok(Some(loaded))
            }
            Read::Whole(loaded, findings, subjects) => {
                if let Some(subjects) = subjects {
                    self.blocks[index].subjects = Some(Arc::new(subjects));
                }
                Ok(Some(self.keep(index, loaded, findings)))
            }
        }
    }

    /// A block's bytes; read from disk if they are not in memory, unless this thread refuses that.
    pub fn loaded(&mut self, index: usize) -> LogResult<Arc<Loaded>> {
        let number = self.blocks[index].number;
        if let Some(loaded) = self.cache.get(number) {
            return Ok(loaded);
        }
        if loads_refused() {
            return Err(LogError::Cold(number));
        }
        let (guard_path, path) = (self.guard_path(number), self.block_path(number));
        let (loaded, findings) =
            read_block(self.disk.as_ref(), &path, &guard_path, &self.blocks[index], self.writer.is_none())?;
        Ok(self.keep(index, loaded, findings))
    }

    fn keep(&mut self, index: usize, loaded: Loaded, mut findings: Vec<Finding>) -> Arc<Loaded> {
        if self.writer.is_none() && index + 1 == self.blocks.len() {
            // A writer beside this reader is appending to it: what lies behind the part that was there when it was
            // opened is no damage.
            findings.retain(|finding| finding.offset < self.blocks[index].file_len);
        }
        let (number, loaded) = (self.blocks[index].number, Arc::new(loaded));
        self.note_findings(number, findings);
        self.cache.put(number, loaded.clone());
        loaded
    }
}

impl Load {
    fn run(&mut self, filters: &[Filter]) -> DiskResult<Read> {
        if let Some((skim, hashes)) = self.skim.take()
            && let Some(loaded) = skim.run(filters)
        {
            return Ok(Read::Sparse(loaded, hashes));
        }
        let (loaded, findings) =
            read_block(self.disk.as_ref(), &self.path, &self.guard_path, &self.block, self.reading)?;
        let subjects = self.learn.then(|| subjects_of(&loaded.data));
        Ok(Read::Whole(loaded, findings, subjects))
    }
}

fn read_block(
    disk: &dyn Disk,
    path: &str,
    guard_path: &str,
    block: &Block,
    reading: bool,
) -> DiskResult<(Loaded, Vec<Finding>)> {
    let guard = disk.read(guard_path, GUARD_BYTES_MAX).ok();
    let (data, _, scan) = match load(disk, path, block, guard.as_deref()) {
        // A writer beside this reader took the block away: its messages are gone.
        Err(error) if reading && error.source.kind() == std::io::ErrorKind::NotFound => Default::default(),
        loaded => loaded?,
    };
    let loaded = loaded_of(data, &scan);
    Ok((loaded, scan.findings))
}
