//! The few matches of a sealed block, without loading it: its bytes pass by in pieces, only what matches is hashed.
//!
//! Taken only where nothing can be missed by it: the guard gives every boundary, the block's own count of subjects says
//! how many records must be found. Whatever does not fit (a boundary, a hash, the count) is left to the full load,
//! which finds out what is wrong and reports it.

use super::guard::{Bounds, Guard};
use super::log::Inner;
use super::query::ReadLimits;
use super::record::{HASH_SIZE, SEQUENCE_MASK, View};
use crate::batch::{Batch, BatchBuilder, HeaderCodec, Message};
use crate::disk::OpenMode;
use crate::subjects::Matcher;

/// More matches than this are worth having the block in memory.
const MATCHES_MAX: u64 = 8;
const PIECE_BYTES: usize = 1 << 20;
const GUARD_BYTES_MAX: u64 = 64 << 20;

impl Inner {
    /// All matches of a block from a sequence on; `None` when the block must be loaded to know.
    pub fn skim(&self, index: usize, from: u64, limits: &ReadLimits<'_>, hashes: &[u64]) -> Option<Batch> {
        let block = &self.blocks[index];
        let expected = block.subjects.as_ref()?.count(hashes)?;
        if block.cipher.is_some() || expected > MATCHES_MAX || expected as usize > limits.msgs {
            return None;
        }
        let guard = self.disk.read(&self.guard_path(block.number), GUARD_BYTES_MAX).ok()?;
        let file = self.disk.open(&self.block_path(block.number), OpenMode::Read).ok()?;
        let len = usize::try_from(file.len().ok()?).ok().filter(|len| *len >= HASH_SIZE)?;
        let last_hash = file.read_at((len - HASH_SIZE) as u64, HASH_SIZE).ok()?;
        let guard = Guard::decode_for(&guard, len, &last_hash)?;
        let mut builder = BatchBuilder::with_capacity(expected as usize, 0, HeaderCodec::Nats);
        let (mut piece, mut start, mut at) = (Vec::new(), 0, 0);
        let (mut seen, mut bytes) = (0, 0);
        let mut memo: (Vec<u8>, bool) = (Vec::new(), false);
        let matcher = Matcher::new(limits.filters);
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
            let view = View::checked(&piece, view.offset, &block.key).ok()?;
            seen += 1;
            let sequence = view.raw_sequence;
            let wanted = sequence & !SEQUENCE_MASK == 0 && sequence >= from && sequence < limits.below;
            if wanted && block.is_live(sequence) {
                bytes += view.len;
                let (headers, data) = (view.headers(&piece), Some(view.data(&piece)));
                let (position, time, subject) = (sequence, view.time, view.subject(&piece));
                builder.push(Message { position, time, subject, key: None, headers, data, flags: 0 }).ok()?;
            }
        }
        (seen == expected && at == len && bytes <= limits.bytes).then(|| builder.finish())
    }
}
