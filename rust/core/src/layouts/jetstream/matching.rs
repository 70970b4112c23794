//! Reading by filter without loading what cannot match.
//!
//! ```text
//! filters ─→ the subjects they select (tree)  ─→ lowest first, highest last: where to begin and end
//!                                             ─→ their hashes ─→ blocks that hold none of them are passed over
//! ```
//! What a sealed block holds is noted when its guard is made, or when a filtered read loads it for the first time.

use std::collections::HashSet;
use std::sync::Arc;

use super::block::Loaded;
use super::cold::loads_refused;
use super::log::{BlockLog, Inner, LogError, LogResult};
use super::query::ReadLimits;
use super::record::View;
use crate::batch::{Batch, HeaderCodec};
use crate::subjects::Filter;

/// Up to this many subjects a block counts the messages of each.
const COUNTED_MAX: usize = 1024;
/// Beyond, it keeps ten bits for each, up to this many words.
const WORDS_MAX: usize = 2048;
const BITS_EACH: usize = 10;
/// Filters that select more subjects than this are matched message by message.
const SUBJECTS_MAX: usize = 256;
/// Filters that select more than this are not counted while somebody waits who must not.
const SUBJECTS_AT_ONCE: usize = 16_384;
/// Blocks with so few matches are worth being joined to one batch.
const FEW: usize = 64;

/// The subjects of a block's messages, by hash. Removals leave it as it is: it may show too many.
pub enum BlockSubjects {
    /// (hash, messages), sorted.
    Counted(Box<[(u64, u32)]>),
    /// Two bits set for each.
    Bits(Box<[u64]>),
}

impl BlockSubjects {
    pub fn of<'a>(subjects: impl Iterator<Item = &'a [u8]>) -> BlockSubjects {
        let mut hashes: Vec<u64> = Vec::new();
        let mut memo: (&[u8], u64) = (b"", hash(b""));
        for subject in subjects {
            if subject != memo.0 {
                memo = (subject, hash(subject));
            }
            hashes.push(memo.1);
        }
        hashes.sort_unstable();
        let runs: Vec<(u64, u32)> = hashes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u32)).collect();
        if runs.len() <= COUNTED_MAX {
            return BlockSubjects::Counted(runs.into());
        }
        let words = (runs.len() * BITS_EACH / 64).next_power_of_two().min(WORDS_MAX);
        let mut bits = vec![0u64; words];
        for (hash, _) in runs {
            for at in places(hash, words) {
                bits[at / 64] |= 1 << (at % 64);
            }
        }
        BlockSubjects::Bits(bits.into())
    }

    fn may_hold(&self, hash: u64) -> bool {
        match self {
            BlockSubjects::Counted(runs) => runs.binary_search_by_key(&hash, |run| run.0).is_ok(),
            BlockSubjects::Bits(bits) => places(hash, bits.len()).iter().all(|at| bits[at / 64] >> (at % 64) & 1 == 1),
        }
    }

    /// How many messages of these subjects were there when this was made, if it knows.
    pub fn count(&self, hashes: &[u64]) -> Option<u64> {
        let BlockSubjects::Counted(runs) = self else { return None };
        let of = |hash: &u64| runs.binary_search_by_key(hash, |run| run.0).map_or(0, |at| u64::from(runs[at].1));
        Some(hashes.iter().map(of).sum())
    }
}

fn places(hash: u64, words: usize) -> [usize; 2] {
    let mask = words * 64 - 1;
    [hash as usize & mask, (hash >> 32) as usize & mask]
}

/// A quick 64-bit hash; nobody gains by making it collide: a block is then loaded in vain.
fn hash(subject: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = subject.len() as u64 ^ ODD;
    for chunk in subject.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = (state ^ u64::from_le_bytes(word)).wrapping_mul(ODD);
        state ^= state >> 29;
    }
    state = state.wrapping_mul(ODD);
    state ^ state >> 32
}

/// What filters select at present.
struct Wanted {
    /// No match is below `lowest` or above `highest`.
    lowest: u64,
    highest: u64,
    /// The subjects, unless there are too many.
    hashes: Option<Vec<u64>>,
}

/// Sequences whose messages are counted.
struct ToCount {
    from: u64,
    end: u64,
    /// What is known of the subjects may tell it all.
    by_subject: bool,
}

/// Counts messages from a sequence on by what is known of their subjects.
struct SubjectCount {
    from: u64,
    found: u64,
    /// A subject has messages on both sides: it cannot tell.
    both_sides: bool,
    /// Overlapping filters select a subject more than once; it counts once.
    seen: Option<HashSet<Box<[u8]>>>,
}

impl SubjectCount {
    fn new(from: u64, filters: &[Filter]) -> SubjectCount {
        let seen = (filters.len() > 1).then(HashSet::new);
        SubjectCount { from, found: 0, both_sides: false, seen }
    }

    fn add(&mut self, inner: &Inner, filter: &Filter) {
        if self.both_sides {
            return;
        }
        inner.subjects.for_each_match_while(filter, |subject, state| {
            if self.seen.as_mut().is_some_and(|seen| !seen.insert(subject.into())) {
                return true;
            }
            if state.first >= self.from {
                self.found += state.msgs;
            } else if state.last >= self.from {
                self.both_sides = true;
            }
            !self.both_sides
        });
    }

    fn count(&self) -> Option<u64> {
        (!self.both_sides).then_some(self.found)
    }
}

impl BlockLog {
    /// Live messages from `first` on that match one of the filters, and the sequence to go on from: everything
    /// before it was looked at. At most `loads_max` blocks are read from disk, so the batch may be empty.
    pub fn read_matching(&self, first: u64, limits: &ReadLimits<'_>, loads_max: usize) -> LogResult<(Batch, u64)> {
        self.reading(|inner| inner.read_matching(first, limits, loads_max))
    }

    /// How many live messages in `[from, below)` match one of the filters (all, if there are none).
    pub fn count_matching(&self, from: u64, below: u64, filters: &[Filter]) -> LogResult<u64> {
        if loads_refused() {
            let mut inner = self.lock();
            // Who does not wait for a block does not wait for a walk over very many subjects either.
            let first = inner.blocks.first().map_or(0, |block| block.number);
            let many = inner.subjects.len() > SUBJECTS_AT_ONCE && inner.selects_many(filters);
            return if many { Err(LogError::Cold(first)) } else { inner.count_matching(from, below, filters) };
        }
        let range = match self.lock().count_quickly(from, below, filters) {
            Ok(count) => return Ok(count),
            Err(range) => range,
        };
        // Filter by filter, block by block: others have the lock between two of them.
        if range.by_subject {
            let mut subjects = SubjectCount::new(range.from, filters);
            for filter in filters {
                subjects.add(&self.lock(), filter);
                self.yield_to_waiters();
            }
            if let Some(count) = subjects.count().filter(|_| self.lock().last + 1 == range.end) {
                return Ok(count);
            }
        }
        let (mut count, mut at) = (0, range.from);
        while at < range.end {
            let (more, next) = self.reading(|inner| inner.count_some(at, range.end, filters))?;
            (count, at) = (count + more, next);
            self.yield_to_waiters();
        }
        Ok(count)
    }

    /// Those of the sequences that still have a message.
    pub fn live_among(&self, sequences: &[u64]) -> Vec<u64> {
        let inner = self.lock();
        let live = |seq: &u64| inner.block_at(*seq).is_some_and(|index| inner.blocks[index].is_live(*seq));
        sequences.iter().copied().filter(live).collect()
    }

    /// Notes what a sealed block holds.
    pub fn note_subjects(&self, number: u64, subjects: BlockSubjects) {
        let mut inner = self.lock();
        let writing = inner.writer.as_ref().is_some_and(|writer| writer.number == number);
        if let (false, Ok(index)) = (writing, inner.index_of(number)) {
            inner.blocks[index].set_subjects(subjects);
        }
    }
}

/// Every record counts, dead ones too: an upper bound, until the block's live messages say better.
pub fn subjects_of(data: &[u8]) -> BlockSubjects {
    BlockSubjects::of(records(data).map(|view| view.subject(data)))
}

/// The records of a block one after the other, up to the first one that cannot be.
pub fn records(data: &[u8]) -> impl Iterator<Item = View> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let view = View::parse(data, at).ok()?;
        at = view.end();
        Some(view)
    })
}

impl super::block::Block {
    fn set_subjects(&mut self, subjects: BlockSubjects) {
        self.subjects = Some(Arc::new(subjects));
    }
}

impl Inner {
    pub fn is_writing(&self, index: usize) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.number == self.blocks[index].number)
    }

    fn all_match(&self, filters: &[Filter]) -> bool {
        filters.is_empty() || filters.iter().any(|filter| self.subjects.all_match(filter))
    }

    /// Whether filters select so many subjects (but not all) that looking at each takes long.
    fn selects_many(&self, filters: &[Filter]) -> bool {
        let mut left = SUBJECTS_AT_ONCE;
        !self.all_match(filters)
            && filters.iter().any(|filter| {
                self.subjects.for_each_match_while(filter, |_, _| {
                    left = left.saturating_sub(1);
                    left > 0
                });
                left == 0
            })
    }

    /// The hashes of the subjects that filters select, unless there are too many, or all are selected.
    pub fn wanted_hashes(&self, filters: &[Filter]) -> Option<Vec<u64>> {
        self.wanted(filters).hashes
    }

    fn wanted(&self, filters: &[Filter]) -> Wanted {
        let mut wanted = Wanted { lowest: 0, highest: u64::MAX, hashes: None };
        if self.all_match(filters) {
            return wanted;
        }
        let (mut lowest, mut highest, mut hashes) = (u64::MAX, 0, Vec::new());
        for filter in filters {
            self.subjects.for_each_match_while(filter, |subject, state| {
                (lowest, highest) = (lowest.min(state.first), highest.max(state.last));
                hashes.push(hash(subject));
                hashes.len() <= SUBJECTS_MAX
            });
            if hashes.len() > SUBJECTS_MAX {
                return wanted;
            }
        }
        // Overlapping filters select a subject more than once; it counts once.
        hashes.sort_unstable();
        hashes.dedup();
        (wanted.lowest, wanted.highest, wanted.hashes) = (lowest, highest, Some(hashes));
        wanted
    }

    /// Whether the block need not be looked into.
    fn can_skip(&self, index: usize, wanted: &Wanted) -> bool {
        let (Some(subjects), Some(hashes)) = (&self.blocks[index].subjects, &wanted.hashes) else { return false };
        !self.is_writing(index) && !hashes.iter().any(|hash| subjects.may_hold(*hash))
    }

    /// Whether its bytes are not in memory.
    pub fn must_load(&self, index: usize) -> bool {
        let number = self.blocks[index].number;
        !self.is_writing(index) && !self.cache.has(number)
    }

    pub fn read_matching(&mut self, first: u64, limits: &ReadLimits<'_>, loads_max: usize) -> LogResult<(Batch, u64)> {
        let wanted = self.wanted(limits.filters);
        let end = limits.below.min(self.last + 1);
        let (mut at, mut loads, mut found) = (first.max(wanted.lowest.min(end)), 0, Vec::<Batch>::new());
        let (mut msgs, mut bytes) = (limits.msgs, limits.bytes);
        while at < end {
            let Some(index) = self.block_at(at).filter(|_| at <= wanted.highest) else {
                at = end;
                break;
            };
            let after = self.blocks[index].last + 1;
            if self.blocks[index].msgs > 0 && !self.can_skip(index, &wanted) {
                let here = ReadLimits { msgs, bytes, filters: limits.filters, below: limits.below };
                let sparse = self.sparse(index, &wanted);
                let must_load = sparse.is_none() && self.must_load(index);
                loads += usize::from(must_load);
                if loads > loads_max {
                    break;
                }
                if must_load && loads_refused() {
                    return Err(LogError::Cold(self.blocks[index].number));
                }
                let skimmed = wanted.hashes.as_ref().filter(|_| must_load);
                let skimmed = || self.skim_of(index, skimmed?)?.run(limits.filters).map(Arc::new);
                let (batch, next) = match sparse.or_else(skimmed) {
                    Some(few) => self.read_loaded(index, &few, at, &here),
                    None => self.read_block(index, at, &here)?,
                };
                self.learn_subjects(index, limits.filters)?;
                (msgs, bytes) = (msgs - batch.len(), bytes.saturating_sub(batch.payload_bytes() as usize));
                let enough = msgs == 0 || bytes == 0 || next < after.min(end) || batch.len() > FEW;
                if !batch.is_empty() {
                    found.push(batch);
                }
                at = next;
                if enough {
                    break;
                }
            }
            // Blocks that cover nothing share their neighbour's last sequence: step over them.
            at = at.max(after);
            if self.block_at(at).is_some_and(|next| next <= index) {
                at = end;
            }
        }
        let batch = match found.len() {
            0 => Batch::empty(HeaderCodec::Nats),
            1 => found.remove(0),
            _ => Batch::concat(&found).map_err(|error| LogError::Unsound(error.to_string()))?,
        };
        Ok((batch, at.min(end).max(first)))
    }

    /// What somebody holds of a block because the same filters select so little of it.
    fn sparse(&self, index: usize, wanted: &Wanted) -> Option<Arc<Loaded>> {
        let hashes = wanted.hashes.as_ref().filter(|_| !self.is_writing(index))?;
        self.cache.sparse(self.blocks[index].number, hashes)
    }

    /// A filtered read had the block in its hands: remember what it holds.
    fn learn_subjects(&mut self, index: usize, filters: &[Filter]) -> LogResult<()> {
        if !filters.is_empty() && self.blocks[index].subjects.is_none() && !self.is_writing(index) {
            let loaded = self.loaded(index)?;
            self.blocks[index].set_subjects(subjects_of(&loaded.data));
        }
        Ok(())
    }

    pub fn count_matching(&mut self, from: u64, below: u64, filters: &[Filter]) -> LogResult<u64> {
        let range = match self.count_quickly(from, below, filters) {
            Ok(count) => return Ok(count),
            Err(range) => range,
        };
        if range.by_subject {
            let mut subjects = SubjectCount::new(range.from, filters);
            filters.iter().for_each(|filter| subjects.add(self, filter));
            if let Some(count) = subjects.count() {
                return Ok(count);
            }
        }
        let (mut count, mut at) = (0, range.from);
        while at < range.end {
            let (more, next) = self.count_some(at, range.end, filters)?;
            (count, at) = (count + more, next);
        }
        Ok(count)
    }

    /// The count, where neither subjects nor blocks have to be looked at; else what is to be gone through.
    fn count_quickly(&self, from: u64, below: u64, filters: &[Filter]) -> Result<u64, ToCount> {
        let (from, end) = (from.max(self.first()), below.min(self.last + 1));
        if from >= end || self.msgs == 0 {
            return Ok(0);
        }
        if self.all_match(filters) {
            let upto = |seq: u64| self.blocks.iter().map(|block| block.live_from(seq)).sum::<u64>();
            return Ok(upto(from) - upto(end));
        }
        // For the last few messages a look at each is quicker than one at each subject.
        let by_subject = end == self.last + 1 && end - from > SUBJECTS_MAX as u64;
        Err(ToCount { from, end, by_subject })
    }

    /// Counts up to behind the next block that has to be looked into: the count, and where to go on.
    fn count_some(&mut self, from: u64, end: u64, filters: &[Filter]) -> LogResult<(u64, u64)> {
        let wanted = self.wanted(filters);
        let (mut count, mut at) = (0, from.max(wanted.lowest.min(end)));
        while let Some(index) = self.block_at(at).filter(|_| at < end && at <= wanted.highest) {
            let block = &self.blocks[index];
            let after = block.last + 1;
            let whole = at <= block.first && after <= end && block.is_whole() && !self.is_writing(index);
            let known = block.subjects.as_ref().filter(|_| whole);
            let mut looked = false;
            if let Some(known) = known.zip(wanted.hashes.as_ref()).and_then(|(subjects, hashes)| subjects.count(hashes))
            {
                count += known;
            } else if block.msgs > 0 && !self.can_skip(index, &wanted) {
                let limits = ReadLimits { msgs: usize::MAX, bytes: usize::MAX, filters, below: end };
                count += self.read_block(index, at, &limits)?.0.len() as u64;
                self.learn_subjects(index, filters)?;
                looked = true;
            }
            at = after;
            if self.block_at(at).is_some_and(|next| next <= index) {
                break;
            }
            if looked {
                return Ok((count, at));
            }
        }
        Ok((count, end))
    }
}
