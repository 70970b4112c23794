//! Which blocks' bytes are in memory: the last few that were used, and those that somebody holds.
//!
//! ```text
//! blocks    the most recently used, up to a number of bytes
//! held      whole blocks that are alive elsewhere: whoever reads there keeps them (`BlockLog::hold`)
//! sparse    the few records of a block that some filters select, alive in the same way
//! loading   what is being read without the lock: stale as soon as the file is changed under it
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::block::Loaded;

#[derive(Default)]
pub struct Cache {
    /// Most recently used last.
    blocks: Vec<(u64, Arc<Loaded>)>,
    bytes_max: usize,
    spare: Option<Vec<u8>>,
    held: HashMap<u64, Weak<Loaded>>,
    sparse: Vec<Sparse>,
    loading: Vec<Loading>,
    loads: u64,
    /// The block whose file is being written to in place.
    patching: Option<u64>,
}

struct Sparse {
    number: u64,
    hashes: Vec<u64>,
    loaded: Weak<Loaded>,
}

struct Loading {
    token: u64,
    number: u64,
    stale: bool,
}

impl Cache {
    pub fn new(bytes_max: usize) -> Cache {
        Cache { bytes_max, ..Cache::default() }
    }

    pub fn get(&mut self, number: u64) -> Option<Arc<Loaded>> {
        let Some(at) = self.blocks.iter().position(|(n, _)| *n == number) else {
            return self.held.get(&number).and_then(Weak::upgrade);
        };
        let entry = self.blocks.remove(at);
        let loaded = entry.1.clone();
        self.blocks.push(entry);
        Some(loaded)
    }

    pub fn has(&self, number: u64) -> bool {
        let kept = self.blocks.iter().any(|(cached, _)| *cached == number);
        kept || self.held.get(&number).is_some_and(|held| held.strong_count() > 0)
    }

    pub fn put(&mut self, number: u64, loaded: Arc<Loaded>) {
        self.blocks.retain(|(n, _)| *n != number);
        self.held.retain(|_, held| held.strong_count() > 0);
        self.held.insert(number, Arc::downgrade(&loaded));
        self.blocks.push((number, loaded));
        while self.bytes() > self.bytes_max && self.blocks.len() > 1 {
            self.blocks.remove(0);
        }
    }

    /// `put` of a block that was written to its end; the buffer of the one that leaves is kept for the next one,
    /// which needs less memory than a fresh buffer beside it.
    pub fn put_written(&mut self, number: u64, loaded: Loaded) {
        let fits = self.bytes() + loaded.data.capacity() <= self.bytes_max;
        if !fits && !self.blocks.is_empty() {
            let (_, oldest) = self.blocks.remove(0);
            self.spare = Arc::try_unwrap(oldest).ok().and_then(|mut l| Arc::get_mut(&mut l.data).map(std::mem::take));
        }
        self.put(number, Arc::new(loaded));
    }

    pub fn take_spare(&mut self) -> Vec<u8> {
        let mut spare = self.spare.take().unwrap_or_default();
        spare.clear();
        spare
    }

    /// The file is another one now, or gone.
    pub fn forget(&mut self, number: u64) {
        self.blocks.retain(|(n, _)| *n != number);
        self.held.remove(&number);
        self.sparse.retain(|sparse| sparse.number != number);
        self.loading.iter_mut().filter(|load| load.number == number).for_each(|load| load.stale = true);
        self.patching = self.patching.filter(|patching| *patching != number);
    }

    pub fn clear(&mut self) {
        self.blocks.clear();
        self.held.clear();
        self.sparse.clear();
        self.loading.iter_mut().for_each(|load| load.stale = true);
        self.patching = None;
    }

    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|(_, b)| b.heap_bytes()).sum()
    }

    /// All records of a block on the subjects with these hashes.
    pub fn sparse(&self, number: u64, hashes: &[u64]) -> Option<Arc<Loaded>> {
        let found = self.sparse.iter().find(|sparse| sparse.number == number && sparse.hashes == hashes)?;
        found.loaded.upgrade()
    }

    pub fn put_sparse(&mut self, number: u64, hashes: Vec<u64>, loaded: &Arc<Loaded>) {
        self.sparse.retain(|sparse| sparse.loaded.strong_count() > 0);
        self.sparse.push(Sparse { number, hashes, loaded: Arc::downgrade(loaded) });
    }

    /// A block is about to be read without the lock: a token for `end_load`. Not while it is written to.
    pub fn begin_load(&mut self, number: u64) -> Option<u64> {
        if self.patching == Some(number) {
            return None;
        }
        self.loads += 1;
        self.loading.push(Loading { token: self.loads, number, stale: false });
        Some(self.loads)
    }

    /// Whether what was read is still what the file holds.
    pub fn end_load(&mut self, token: u64) -> bool {
        let Some(at) = self.loading.iter().position(|load| load.token == token) else { return false };
        !self.loading.swap_remove(at).stale
    }

    /// The file is about to be written to in place; `forget` follows.
    pub fn begin_patch(&mut self, number: u64) {
        self.forget(number);
        self.patching = Some(number);
    }
}
