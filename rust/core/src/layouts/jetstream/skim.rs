//! The few matches of a sealed block, without loading it: its bytes pass by in pieces, only what matches is hashed.
//!
//! Taken only where nothing can be missed by it: the guard gives every boundary, the block's own count of subjects says
//! how many records must be found. Whatever does not fit (a boundary, a hash, the count) is left to the full load,
//! which finds out what is wrong and reports it.

use std::sync::Arc;

use super::block::{Loaded, Lookup};
use super::guard::{Bounds, Guard};
use super::log::Inner;
use super::record::{HASH_SIZE, SEQUENCE_MASK, View};
use crate::disk::{Disk, OpenMode};
use crate::hash::HashKey;
use crate::subjects::{Filter, Matcher};

/// More matches than this are worth having the block in memory.
const MATCHES_MAX: u64 = 8;
const PIECE_BYTES: usize = 1 << 20;
const GUARD_BYTES_MAX: u64 = 64 << 20;

/// What is needed to skim one block, with or without the lock.
pub struct Skim {
    disk: Arc<dyn Disk>,
    path: String,
    guard_path: String,
    key: HashKey,
    expected: u64,
}

impl Inner {
    /// `None` when the block must be loaded to know.
    pub fn skim_of(&self, index: usize, hashes: &[u64]) -> Option<Skim> {
        let block = &self.blocks[index];
        let expected = block.subjects.as_ref()?.count(hashes)?;
        if block.cipher.is_some() || expected > MATCHES_MAX {
            return None;
        }
        let (path, guard_path) = (self.block_path(block.number), self.guard_path(block.number));
        Some(Skim { disk: self.disk.clone(), path, guard_path, key: block.key, expected })
    }
}

impl Skim {
    /// The messages that match, live or not, as if they were all that the block holds.
    pub fn run(&self, filters: &[Filter]) -> Option<Loaded> {
        let guard = self.disk.read(&self.guard_path, GUARD_BYTES_MAX).ok()?;
        let file = self.disk.open(&self.path, OpenMode::Read).ok()?;
        let len = usize::try_from(file.len().ok()?).ok().filter(|len| *len >= HASH_SIZE)?;
        let last_hash = file.read_at((len - HASH_SIZE) as u64, HASH_SIZE).ok()?;
        let guard = Guard::decode_for(&guard, len, &last_hash)?;
        let (mut data, mut lookup) = (Vec::new(), Lookup::new());
        let (mut piece, mut start, mut at, mut seen) = (Vec::new(), 0, 0, 0);
        let mut memo: (Vec<u8>, bool) = (Vec::new(), false);
        let matcher = Matcher::new(filters);
        for bounds in guard.iter() {
            if at + bounds.len() > start + piece.len() {
                piece = file.read_at(at as u64, PIECE_BYTES.max(bounds.len())).ok()?;
                start = at;
            }
            let view = View::parse(&piece, at - start).ok().filter(|view| Bounds::of(view) == bounds)?;
            at += view.len;
            let subject = view.subject(&piece);
            if subject != memo.0 {
                memo.1 = matcher.matches(subject);
                memo.0.clear();
                memo.0.extend_from_slice(subject);
            }
            if !memo.1 {
                continue;
            }
            let view = View::checked(&piece, view.offset, &self.key).ok()?;
            seen += 1;
            if view.raw_sequence & !SEQUENCE_MASK == 0 {
                lookup.push(view.raw_sequence, u32::try_from(data.len()).ok()?);
                data.extend_from_slice(&piece[view.offset..view.end()]);
            }
        }
        let whole = seen == self.expected && at == len;
        whole.then(|| Loaded { data: Arc::new(data), lookup, others: Some(Vec::new()) })
    }
}
