//! A file seen through a window that moves: what a scan looks at is read in large pieces, in order.

use std::sync::Arc;

use super::{DiskFile, DiskResult};

/// No record begins with more zeros.
pub const BEGINS_WITH_ZEROS: u64 = 64;

pub struct Window {
    file: Arc<dyn DiskFile>,
    pub len: u64,
    at_once: usize,
    start: u64,
    data: Vec<u8>,
}

impl Window {
    pub fn new(file: Arc<dyn DiskFile>, len: u64, at_once: usize) -> Self {
        Window { file, len, at_once, start: 0, data: Vec::new() }
    }

    /// Exactly these bytes; None past the end.
    pub fn bytes(&mut self, at: u64, len: usize) -> DiskResult<Option<&[u8]>> {
        if at.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Ok(None);
        }
        let held = self.start..self.start + self.data.len() as u64;
        if at < held.start || at + len as u64 > held.end {
            let there = (self.len - at).min(len.max(self.at_once) as u64) as usize;
            (self.start, self.data) = (at, self.file.read_at(at, there)?);
        }
        let from = (at - self.start) as usize;
        // The file may have been cut since its length was taken.
        Ok(self.data.get(from..from + len))
    }

    /// Up to `len` bytes.
    pub fn upto(&mut self, at: u64, len: usize) -> DiskResult<&[u8]> {
        let there = self.len.saturating_sub(at).min(len as u64) as usize;
        Ok(self.bytes(at, there)?.unwrap_or(&[]))
    }

    /// Where a search from `at` on may go on: behind a hole, but not behind what may begin with its last zeros.
    pub fn skip_hole(&self, at: u64) -> DiskResult<u64> {
        Ok(self.file.next_data(at)?.saturating_sub(BEGINS_WITH_ZEROS).max(at))
    }
}
