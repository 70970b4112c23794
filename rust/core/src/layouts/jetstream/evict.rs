//! What limits take: from the front, and the oldest of a subject. Without tombstones, as they are applied again at every
//! start.

use super::block::is_packed;
use super::cold::refusing;
use super::log::{BlockLog, Inner, LogError, LogResult};
use crate::batch::{Batch, Entry};
use crate::subjects::Filter;

/// Everything below these bounds goes; `None` = no bound.
#[derive(Default)]
pub struct FrontLimits {
    pub max_msgs: Option<u64>,
    pub max_bytes: Option<u64>,
    pub before_time: Option<i64>,
    pub below: Option<u64>,
}

impl BlockLog {
    /// Removes from the front, without tombstones: limits are applied again at every start.
    pub fn evict_front(&self, limits: &FrontLimits) -> LogResult<(u64, u64)> {
        let (mut msgs, mut bytes, mut held) = (0, 0, None);
        loop {
            let mut inner = self.lock();
            let before = (inner.msgs, inner.bytes);
            let unheld = matches!(held, Some(None)); // what cannot be held is read under the lock
            let done = if unheld { inner.evict_front(limits) } else { refusing(|| inner.evict_front(limits)) };
            (msgs, bytes) = (msgs + before.0 - inner.msgs, bytes + before.1 - inner.bytes);
            drop(inner);
            match done {
                Err(LogError::Cold(number)) => held = Some(self.hold(number, &[])?),
                done => return done.map(|()| (msgs, bytes)),
            }
        }
    }

    /// The first block that `evict_front` would have to read after so many more messages and bytes.
    pub fn cold_front(&self, limits: &FrontLimits, msgs: u64, bytes: u64) -> Option<u64> {
        let inner = self.lock();
        let over = |held: u64, max: Option<u64>| max.map_or(0, |max| held.saturating_sub(max));
        let mut over_msgs = over(inner.msgs + msgs, limits.max_msgs);
        let mut over_bytes = over(inner.bytes + bytes, limits.max_bytes);
        if inner.subjects.len() == 1 && inner.blocks.len() > 2 {
            return None; // whole blocks go by their summaries
        }
        for (index, block) in inner.blocks.iter().enumerate().filter(|(_, block)| block.msgs > 0) {
            if over_msgs == 0 && over_bytes == 0 {
                break;
            }
            if inner.must_load(index) {
                return Some(block.number);
            }
            over_msgs = over_msgs.saturating_sub(block.msgs);
            over_bytes = over_bytes.saturating_sub(block.bytes);
        }
        None
    }

    /// Applies a per-subject limit to every subject (at start).
    pub fn trim_all_subjects(&self, max: u64) -> LogResult<(u64, u64)> {
        let mut inner = self.lock();
        let (msgs, bytes) = (inner.msgs, inner.bytes);
        let mut over = Vec::new();
        inner.subjects.for_each_match(&Filter::all(), |subject, state| {
            if state.msgs > max {
                over.push(subject.to_vec());
            }
        });
        if !over.is_empty() {
            inner.start_chain()?;
        }
        for subject in over {
            inner.trim_subject(&subject, max)?;
        }
        Ok((msgs - inner.msgs, bytes - inner.bytes))
    }
}

impl Inner {
    fn evict_front(&mut self, limits: &FrontLimits) -> LogResult<()> {
        while self.msgs > 0 {
            let index = self.blocks.iter().position(|b| b.msgs > 0).expect("messages lie in blocks");
            let over = limits.max_msgs.is_some_and(|max| self.msgs > max)
                || limits.max_bytes.is_some_and(|max| self.bytes > max)
                || limits.below.is_some_and(|below| self.blocks[index].first < below);
            let old = match limits.before_time {
                Some(before) if !over => self.first_time_of(index)? < before,
                _ => false,
            };
            if !over && !old {
                break;
            }
            if !self.evict_block(index, limits)? {
                let first = self.blocks[index].first;
                self.remove_live(first)?;
                // Age needs no memory: what is too old now is too old at the next start.
                if over {
                    self.evicted.one(first);
                }
            }
        }
        Ok(())
    }

    /// With one subject a whole block can go by its summary, without being read.
    fn evict_block(&mut self, index: usize, limits: &FrontLimits) -> LogResult<bool> {
        let block = &self.blocks[index];
        let newest = self.writer.as_ref().is_some_and(|w| w.number == block.number);
        let whole = limits.max_msgs.is_some_and(|max| self.msgs - block.msgs >= max)
            || limits.max_bytes.is_some_and(|max| self.bytes - block.bytes >= max)
            || limits.below.is_some_and(|below| block.last < below);
        if newest || !whole || self.subjects.len() != 1 {
            return Ok(false);
        }
        let (msgs, bytes, last, number) = (block.msgs, block.bytes, block.last, block.number);
        if !self.counts_as_memory
            && bytes == block.file_len
            && !is_packed(self.disk.as_ref(), &self.block_path(number), block)
        {
            self.dead_tombstones.insert(number, Vec::new()); // its file is full of live messages
        }
        let mut emptied = None;
        self.subjects.for_each_match_mut(&Filter::all(), |subject, state| {
            state.msgs -= msgs;
            (state.first, state.first_bytes, state.first_exact) = (last + 1, 0, false);
            if state.msgs == 0 {
                emptied = Some(subject.to_vec());
            }
        });
        if let Some(subject) = emptied {
            self.subjects.remove(&subject);
        }
        self.msgs -= msgs;
        self.bytes -= bytes;
        self.blocks.remove(index);
        self.cache.forget(number);
        self.dead.push(number);
        self.evicted.whole_block();
        Ok(true)
    }

    /// Enforces a per-subject limit on the subjects of a batch that was just stored.
    pub fn trim_subjects(&mut self, batch: &Batch, entries: &[Entry], max: u64) -> LogResult<(u64, u64)> {
        if max == 0 {
            return Ok((0, 0));
        }
        let (msgs, bytes) = (self.msgs, self.bytes);
        for entry in entries.iter().filter(|e| e.flags & crate::batch::flags::PLACEHOLDER == 0) {
            self.trim_subject(batch.bytes(entry.subject), max)?;
        }
        Ok((msgs - self.msgs, bytes - self.bytes))
    }

    pub fn trim_subject(&mut self, subject: &[u8], max: u64) -> LogResult<()> {
        while let Some(state) = self.subjects.get_mut(subject).map(|s| *s).filter(|s| s.msgs > max) {
            let exact = state.first_exact && state.first_bytes > 0;
            if exact && let Some(index) = self.block_at(state.first).filter(|i| self.blocks[*i].is_live(state.first)) {
                let next = self.successor(state.first);
                self.evicted.one(state.first);
                self.remove_from_subject(subject, state.first);
                self.take_out(index, state.first, u64::from(state.first_bytes));
                if let (Some((next, bytes)), Some(state)) = (next, self.subjects.get_mut(subject)) {
                    (state.first, state.first_bytes, state.first_exact) = (next, bytes, true);
                }
                continue;
            }
            let Some(sequence) = self.first_on_subject(subject)? else { return Ok(()) };
            let next = self.successor(sequence);
            self.evicted.one(sequence);
            self.remove_live(sequence)?;
            if let (Some((next, bytes)), Some(state)) = (next, self.subjects.get_mut(subject)) {
                (state.first, state.first_bytes, state.first_exact) = (next, bytes, true);
            }
        }
        Ok(())
    }
}
