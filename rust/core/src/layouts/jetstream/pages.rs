//! Subjects a page at a time, and the newest message of each up to a sequence: for answers that show a part of much.

use std::collections::HashMap;

use super::log::{BlockLog, Inner, LogResult};
use super::query::ReadLimits;
use crate::subjects::Filter;

/// One page of the subjects that a filter selects, in byte order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SubjectPage {
    /// Subjects on all pages.
    pub total: usize,
    /// (subject, messages)
    pub subjects: Vec<(Vec<u8>, u64)>,
}

/// The newest messages at or below a sequence, as far as the subjects themselves show.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NewestOfEach {
    /// The filters select more subjects than were allowed.
    pub too_many: bool,
    pub sequences: Vec<u64>,
    /// Subjects whose newest message is above, or not known: `newest_below` finds the one that is wanted.
    pub open: Vec<Vec<u8>>,
}

impl SubjectPage {
    /// `{"subject":messages,…}`
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = Vec::with_capacity(self.subjects.iter().map(|(subject, _)| subject.len() + 8).sum());
        for (subject, msgs) in &self.subjects {
            json.extend_from_slice(if json.is_empty() { b"{\"" } else { b",\"" });
            for message in String::from_utf8_lossy(subject).chars() {
                match message {
                    '"' | '\\' => json.extend_from_slice(&[b'\\', message as u8]),
                    ' '.. => json.extend_from_slice(message.encode_utf8(&mut [0; 4]).as_bytes()),
                    control => json.extend_from_slice(format!("\\u{:04x}", control as u32).as_bytes()),
                }
            }
            json.extend_from_slice(format!("\":{msgs}").as_bytes());
        }
        json.extend_from_slice(if json.is_empty() { b"{}" } else { b"}" });
        json
    }
}

impl BlockLog {
    pub fn subjects_page(&self, filter: &Filter, offset: usize, limit: usize) -> SubjectPage {
        let inner = self.lock();
        let mut page = SubjectPage::default();
        let all = inner.subjects.all_match(filter);
        if all && offset >= inner.subjects.len() {
            page.total = inner.subjects.len();
            return page;
        }
        inner.subjects.for_each_match_while(filter, |subject, state| {
            if page.total >= offset && page.subjects.len() < limit {
                page.subjects.push((subject.to_vec(), state.msgs));
            }
            page.total += 1;
            // How many there are at all is known without a walk.
            !(all && page.subjects.len() == limit)
        });
        if all {
            page.total = inner.subjects.len();
        }
        page
    }

    pub fn newest_of_each(&self, filters: &[Filter], up_to: u64, max: usize) -> NewestOfEach {
        let inner = self.lock();
        let mut found = NewestOfEach::default();
        for filter in filters {
            inner.subjects.for_each_match_while(filter, |subject, state| {
                if state.first > up_to {
                    return true;
                }
                if state.last_exact && state.last <= up_to {
                    found.sequences.push(state.last);
                } else {
                    found.open.push(subject.to_vec());
                }
                found.sequences.len() + found.open.len() <= max
            });
            found.sequences.sort_unstable();
            found.sequences.dedup();
            found.open.sort_unstable();
            found.open.dedup();
            if found.sequences.len() + found.open.len() > max {
                return NewestOfEach { too_many: true, ..NewestOfEach::default() };
            }
        }
        found
    }

    /// Goes back from a sequence over at most `blocks_max` blocks and finds the newest message of each subject: (index of
    /// the subject, sequence), and where to go on; 0 at the end.
    pub fn newest_below(
        &self,
        subjects: &[Vec<u8>],
        below: u64,
        blocks_max: usize,
    ) -> LogResult<(Vec<(usize, u64)>, u64)> {
        self.reading(|inner| inner.newest_below(subjects, below, blocks_max))
    }
}

impl Inner {
    fn newest_below(
        &mut self,
        subjects: &[Vec<u8>],
        below: u64,
        blocks_max: usize,
    ) -> LogResult<(Vec<(usize, u64)>, u64)> {
        let mut wanted: HashMap<&[u8], usize> = subjects.iter().enumerate().map(|(at, s)| (&s[..], at)).collect();
        let (mut found, mut below) = (Vec::new(), below);
        for _ in 0..blocks_max {
            let before = self.blocks.partition_point(|block| block.first < below);
            let Some(index) = before.checked_sub(1).filter(|_| !wanted.is_empty()) else { return Ok((found, 0)) };
            let limits = ReadLimits { msgs: usize::MAX, bytes: usize::MAX, filters: &[], below };
            let (batch, _) = self.read_block(index, 0, &limits)?;
            for entry in batch.entries().iter().rev() {
                if let Some(at) = wanted.remove(batch.bytes(entry.subject)) {
                    found.push((at, entry.position));
                }
            }
            below = self.blocks[index].first.min(below - 1); // an emptied block has no first of its own
        }
        Ok((found, if wanted.is_empty() { 0 } else { below }))
    }
}
