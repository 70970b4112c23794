//! Segments known by their numbers only: what a sleeping queue, or the checkpoint of a clean stop, keeps of them.
//!
//! ```text
//! row   number:64 | file bytes:64 | body bytes:64 | unacked:32 | lost:32 | stored:32 | top:16 | first:16 | last:16
//! ```
//! `top` is one above the highest published entry, `first` and `last` are the live ones at the ends (none: 65535),
//! `stored` counts unacked entries whose message is in the store. Integers are big-endian. A cold segment is read
//! (`load_segment`) before anything in it is touched; until then its row answers for it.

use super::change::QueueError;
use super::queue::state::*;
use super::queue::{QueueIndex, Segment};

pub const ROW_BYTES: usize = 42;
const NONE: u16 = u16::MAX;

/// The numbers of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub bytes: u64,
    pub unacked: u32,
    pub lost: u32,
    pub stored: u32,
    pub top: u16,
    first: u16,
    last: u16,
}

impl Row {
    pub fn first(&self) -> Option<u64> {
        (self.first != NONE).then_some(u64::from(self.first))
    }

    pub fn last(&self) -> Option<u64> {
        (self.last != NONE).then_some(u64::from(self.last))
    }

    fn write(&self, number: u64, file_bytes: u64, out: &mut Vec<u8>) {
        for value in [number, file_bytes, self.bytes] {
            out.extend_from_slice(&value.to_be_bytes());
        }
        for value in [self.unacked, self.lost, self.stored] {
            out.extend_from_slice(&value.to_be_bytes());
        }
        for value in [self.top, self.first, self.last] {
            out.extend_from_slice(&value.to_be_bytes());
        }
    }

    /// (number, file bytes, row)
    fn read(row: &[u8]) -> (u64, u64, Row) {
        let number = |at: usize, len: usize| row[at..at + len].iter().fold(0, |v, byte| v << 8 | u64::from(*byte));
        let (word, half) = (|at| number(at, 4) as u32, |at| number(at, 2) as u16);
        let read = Row {
            bytes: number(16, 8),
            unacked: word(24),
            lost: word(28),
            stored: word(32),
            top: half(36),
            first: half(38),
            last: half(40),
        };
        (number(0, 8), number(8, 8), read)
    }
}

impl Segment {
    pub fn row(&self) -> Row {
        if let Some(row) = self.cold {
            return row;
        }
        let at = |found: Option<usize>| found.map_or(NONE, |rel| rel as u16);
        let mut row = Row {
            bytes: 0,
            unacked: self.unacked,
            lost: 0,
            stored: 0,
            top: self.states.iter().rposition(|state| published(*state)).map_or(0, |rel| rel as u16 + 1),
            first: at(self.states.iter().position(|state| live(*state))),
            last: at(self.states.iter().rposition(|state| live(*state))),
        };
        for (state, size) in self.states.iter().zip(&self.sizes).filter(|(state, _)| unacked(**state)) {
            row.stored += u32::from(state & STORED != 0);
            if state & LOST == 0 {
                row.bytes += u64::from(*size);
            } else {
                row.lost += 1;
            }
        }
        row
    }
}

impl QueueIndex {
    /// Everything about the segments that waking up needs. Only after a flush: a row knows nothing of a journal.
    pub fn rows(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.segments.len() * ROW_BYTES);
        for (number, segment) in &self.segments {
            segment.row().write(*number, segment.file_bytes, &mut out);
        }
        out
    }

    /// Takes in rows; their segments are cold from now on.
    pub fn restore(&mut self, rows: &[u8]) -> Result<(), QueueError> {
        if rows.len() % ROW_BYTES != 0 || !self.segments.is_empty() {
            return Err(QueueError::BadRows);
        }
        for row in rows.chunks_exact(ROW_BYTES) {
            let (number, file_bytes, row) = Row::read(row);
            let top = u64::from(row.top);
            let next = number.checked_mul(self.count).and_then(|base| base.checked_add(top));
            let (Some(next), true) = (next, row.lost <= row.unacked && top <= self.count) else {
                return Err(QueueError::BadRows);
            };
            self.next = self.next.max(next);
            (self.messages, self.bytes) = (self.messages + u64::from(row.unacked - row.lost), self.bytes + row.bytes);
            self.lost += u64::from(row.lost);
            self.segments.insert(number, Segment::cold(row, file_bytes));
        }
        Ok(())
    }

    /// Takes a segment out of the totals, before it is loaded (again).
    pub(super) fn take_out(&mut self, number: u64) {
        let Some(old) = self.segments.remove(&number) else { return };
        let row = old.row();
        self.messages = self.messages.saturating_sub(u64::from(row.unacked.saturating_sub(row.lost)));
        self.bytes = self.bytes.saturating_sub(row.bytes);
        self.lost = self.lost.saturating_sub(u64::from(row.lost));
        if old.cold.is_none() && row.stored > 0 {
            self.stored.retain(|sequence, _| sequence / self.count != number);
        }
    }

    pub(super) fn refuse_cold(&self, number: u64) -> Result<(), QueueError> {
        match self.segments.get(&number).filter(|segment| segment.cold.is_some()) {
            Some(_) => Err(QueueError::Cold { segment: number }),
            None => Ok(()),
        }
    }

    fn cold(&self) -> impl Iterator<Item = (u64, Row)> {
        self.segments.iter().filter_map(|(number, segment)| segment.cold.map(|row| (*number, row)))
    }

    /// The cold segments that hold one of the positions.
    pub fn cold_of(&self, positions: &[u64]) -> Vec<u64> {
        if self.cold().next().is_none() {
            return Vec::new();
        }
        let mut numbers: Vec<u64> = positions.iter().map(|position| position / self.count).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|number| self.refuse_cold(*number).is_err());
        numbers
    }

    /// The cold segments with a sequence below `sequence`.
    pub fn cold_below(&self, sequence: u64) -> Vec<u64> {
        self.cold().map(|(number, _)| number).filter(|number| number * self.count < sequence).collect()
    }

    /// The cold segments with messages in the store.
    pub fn cold_stored(&self) -> Vec<u64> {
        self.cold().filter(|(_, row)| row.stored > 0).map(|(number, _)| number).collect()
    }

    /// The segment in which reading goes on at `first`, if it is cold.
    pub fn cold_from(&self, first: u64) -> Option<u64> {
        let mut from = self.segments.range(first / self.count..).filter(|(_, segment)| segment.unacked > 0);
        from.next().filter(|(_, segment)| segment.cold.is_some()).map(|(number, _)| *number)
    }
}
