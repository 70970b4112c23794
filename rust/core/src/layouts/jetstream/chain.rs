//! For streams with a limit per subject: which message follows which on its subject.
//!
//! ```text
//! subject a:  4 ──▶ 9 ──▶ 17        next = { 4: (9, size of 9), 9: (17, size of 17) }
//! ```
//! When the oldest message of a subject goes, the next oldest is known without a look into the blocks. Only
//! messages that have a successor are in the table, so a key-value stream that keeps one value has an empty one. A
//! link is a hint: it is followed only to a live message, and dropped whenever sequences may be given out again.

use std::collections::HashMap;

use super::log::{Inner, LogResult};
use super::query::ReadLimits;

/// Above this many messages the table would be larger than it is worth; the blocks are searched instead.
const MESSAGES_MAX: u64 = 4_000_000;

#[derive(Default)]
pub struct Chain {
    next: HashMap<u64, (u64, u32)>,
}

impl Chain {
    pub fn link(&mut self, from: u64, to: u64, bytes: u32) {
        self.next.insert(from, (to, bytes));
    }

    pub fn unlink(&mut self, sequence: u64) {
        self.next.remove(&sequence);
    }
}

impl Inner {
    /// Builds the table from the blocks, once; nothing to read when no subject has two messages.
    pub fn start_chain(&mut self) -> LogResult<()> {
        if self.chain.is_some() || self.msgs > MESSAGES_MAX {
            return Ok(());
        }
        let mut chain = Chain::default();
        if self.msgs > self.subjects.len() as u64 {
            let mut newest: HashMap<Vec<u8>, u64> = HashMap::with_capacity(self.subjects.len());
            let limits = ReadLimits { msgs: usize::MAX, bytes: usize::MAX, filters: &[], below: u64::MAX };
            for index in 0..self.blocks.len() {
                let (batch, _) = self.read_block(index, 0, &limits)?;
                for entry in batch.entries() {
                    let subject = batch.bytes(entry.subject);
                    let headers = (!entry.headers.is_null()).then(|| entry.headers.size());
                    let bytes = super::record::record_bytes(subject.len(), headers, entry.data.size()) as u32;
                    match newest.get_mut(subject) {
                        Some(last) => {
                            chain.link(*last, entry.position, bytes);
                            *last = entry.position;
                        }
                        None => {
                            newest.insert(subject.to_vec(), entry.position);
                        }
                    }
                }
            }
        }
        self.chain = Some(chain);
        Ok(())
    }

    /// The live message that follows on the same subject, and its record's size.
    pub fn successor(&self, sequence: u64) -> Option<(u64, u32)> {
        let (next, bytes) = *self.chain.as_ref()?.next.get(&sequence)?;
        let live = self.block_at(next).is_some_and(|index| self.blocks[index].is_live(next));
        live.then_some((next, bytes))
    }
}
