//! How many messages on which subjects: counts over filters, and the ends of each subject made exact.

use std::sync::TryLockError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::log::{BlockLog, Inner, LogResult};
use super::query::ReadLimits;
use super::subject_state::SubjectState;
use crate::subjects::Filter;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub msgs: u64,
    pub first: u64,
    pub last: u64,
}

impl BlockLog {
    /// Somebody has the lock at this moment, or the store's around it; who works in steps yields then.
    pub fn is_busy(&self, store_locked: bool) -> bool {
        let busy = store_locked || matches!(self.inner.try_lock(), Err(TryLockError::WouldBlock));
        if busy {
            self.has_waiters.store(true, Relaxed);
        }
        busy
    }

    /// Between two steps of long work, with no lock held: whoever found the log busy has time to come.
    pub fn yield_to_waiters(&self) {
        if self.has_waiters.swap(false, Relaxed) {
            std::thread::sleep(YIELD);
        }
    }

    /// The bytes of all messages as they are, or as they were a moment ago if somebody is at work.
    pub fn held_bytes(&self) -> u64 {
        if let Ok(inner) = self.inner.try_lock() {
            self.seen_bytes.store(inner.bytes, Relaxed);
        }
        self.seen_bytes.load(Relaxed)
    }

    /// Count sizes as a memory store does.
    pub fn count_as_memory(&self) {
        self.lock().counts_as_memory = true;
    }

    pub fn filtered_state(&self, from: u64, filter: &Filter) -> LogResult<Counts> {
        self.reading(|inner| inner.filtered_state(from, filter))
    }

    /// The newest message of each subject that one of the filters selects, in sequence order.
    pub fn last_per_subject(&self, filters: &[Filter]) -> LogResult<Vec<u64>> {
        self.reading(|inner| inner.last_per_subject(filters))
    }

    pub fn subjects_state(&self, filter: &Filter) -> LogResult<Vec<(Vec<u8>, Counts)>> {
        let mut inner = self.lock();
        let mut matched: Vec<(Vec<u8>, SubjectState)> = Vec::new();
        inner.subjects.for_each_match(filter, |subject, state| matched.push((subject.to_vec(), *state)));
        let inexact = matched.iter().filter(|m| !(m.1.first_exact && m.1.last_exact)).count();
        if inexact > LOOKED_UP_MAX {
            inner.make_all_exact()?;
        }
        let mut result = Vec::with_capacity(matched.len());
        for (subject, _) in matched {
            let first = inner.first_on_subject(&subject)?.unwrap_or(0);
            let last = inner.last_on_subject(&subject)?.unwrap_or(0);
            let msgs = inner.subjects.get(&subject).map_or(0, |s| s.msgs);
            result.push((subject, Counts { msgs, first, last }));
        }
        Ok(result)
    }

    /// Totals per subject, which need no look into blocks.
    pub fn subject_totals(&self, filter: &Filter) -> Vec<(Vec<u8>, u64)> {
        let inner = self.lock();
        let mut totals = Vec::new();
        inner.subjects.for_each_match(filter, |subject, state| totals.push((subject.to_vec(), state.msgs)));
        totals
    }
}

/// Twice as long as somebody who found it busy waits before looking again.
const YIELD: Duration = Duration::from_millis(2);
/// Up to this many subjects are looked up one by one; beyond, one pass over all blocks is quicker.
const LOOKED_UP_MAX: usize = 64;

impl Inner {
    fn last_per_subject(&mut self, filters: &[Filter]) -> LogResult<Vec<u64>> {
        let (mut found, mut unknown) = (Vec::new(), Vec::new());
        for filter in filters {
            self.subjects.for_each_match(filter, |subject, state| match state.last_exact {
                true => found.push(state.last),
                false => unknown.push(subject.to_vec()),
            });
        }
        if unknown.len() > LOOKED_UP_MAX {
            self.make_all_exact()?;
        }
        for subject in unknown {
            found.extend(self.last_on_subject(&subject)?);
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    fn filtered_state(&mut self, from: u64, filter: &Filter) -> LogResult<Counts> {
        let first = self.first();
        let from = from.max(first);
        if self.msgs == 0 || from > self.last {
            return Ok(Counts::default());
        }
        let (mut msgs, mut lowest, mut matched) = (0, u64::MAX, 0usize);
        if self.subjects.all_match(filter) {
            matched = self.subjects.len();
        } else {
            self.subjects.for_each_match(filter, |_, state| {
                (msgs, lowest, matched) = (msgs + state.msgs, lowest.min(state.first), matched + 1);
            });
        }
        if matched == 0 {
            return Ok(Counts::default());
        }
        let everything = matched == self.subjects.len();
        if from > first && !everything {
            return self.count_matches(from.max(lowest), filter);
        }
        let Some(last) = self.last_sequence_of(filter)? else { return Ok(Counts::default()) };
        if last < from {
            return Ok(Counts::default());
        }
        let start = if everything { from } else { lowest.max(from) };
        let limits = ReadLimits { msgs: 1, bytes: usize::MAX, filters: std::slice::from_ref(filter), below: u64::MAX };
        let (found, _) = self.read_matching(start, &limits, usize::MAX)?;
        let first_match = found.entries().first().map_or(0, |entry| entry.position);
        if everything {
            msgs = self.blocks.iter().map(|b| b.live_from(from)).sum();
        }
        Ok(Counts { msgs, first: first_match, last })
    }

    fn count_matches(&mut self, from: u64, filter: &Filter) -> LogResult<Counts> {
        let filters = std::slice::from_ref(filter);
        let limits = ReadLimits { msgs: 1, bytes: usize::MAX, filters, below: u64::MAX };
        let (found, _) = self.read_matching(from, &limits, usize::MAX)?;
        let Some(first) = found.entries().first().map(|entry| entry.position) else { return Ok(Counts::default()) };
        let msgs = self.count_matching(first, u64::MAX, filters)?;
        let last = self.last_sequence_of(filter)?.unwrap_or(first);
        Ok(Counts { msgs, first, last })
    }

    /// One pass over all blocks makes every subject's ends exact.
    fn make_all_exact(&mut self) -> LogResult<()> {
        let limits = ReadLimits { msgs: usize::MAX, bytes: usize::MAX, filters: &[], below: u64::MAX };
        for index in 0..self.blocks.len() {
            let (batch, _) = self.read_block(index, 0, &limits)?;
            for entry in batch.entries() {
                if let Some(state) = self.subjects.get_mut(batch.bytes(entry.subject)) {
                    if !state.first_exact {
                        (state.first, state.first_exact) = (entry.position, true);
                    }
                    if !state.last_exact || state.last < entry.position {
                        (state.last, state.last_bytes) = (entry.position, 0);
                    }
                }
            }
        }
        self.subjects.for_each_match_mut(&Filter::all(), |_, state| state.last_exact = true);
        Ok(())
    }
}
