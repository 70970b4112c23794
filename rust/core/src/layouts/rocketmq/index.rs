//! Lookup by key: a hash table in a file.
//!
//! ```text
//! header 40   begin time, end time, begin address, end address: i64; used slots, entries + 1: i32
//! slots       i32 each: the newest entry with that hash, 0 = none
//! entries     20 each: key hash i32, address i64, seconds since begin time i32, the entry before it i32; number 0 unused
//! ```

use std::sync::Arc;

use super::message::java_hash;
use crate::disk::{DiskFile, DiskResult};

pub const HEADER: u64 = 40;
const SLOT: u64 = 4;
const ENTRY: u64 = 20;
/// A chain longer than this is a loop.
const CHAIN_MAX: usize = 1 << 20;

#[derive(Debug, Clone, Copy, Default)]
pub struct Header {
    pub begin_ms: i64,
    pub end_ms: i64,
    pub begin_address: i64,
    pub end_address: i64,
    pub slots_used: i32,
    /// The number of the next entry; starts at 1.
    pub count: i32,
}

pub struct IndexFile {
    file: Arc<dyn DiskFile>,
    pub slots: u32,
    pub entries: u32,
    pub header: Header,
}

pub fn key_hash(key: &[u8]) -> i32 {
    java_hash(key).checked_abs().unwrap_or(0)
}

impl IndexFile {
    pub fn open(file: Arc<dyn DiskFile>, slots: u32, entries: u32) -> DiskResult<IndexFile> {
        let bytes = file.read_at(0, HEADER as usize)?;
        let mut header = Header { count: 1, ..Header::default() };
        if bytes.len() == HEADER as usize {
            let i64_at = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight"));
            let i32_at = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
            header = Header {
                begin_ms: i64_at(0),
                end_ms: i64_at(8),
                begin_address: i64_at(16),
                end_address: i64_at(24),
                slots_used: i32_at(32),
                count: i32_at(36).clamp(1, entries.min(i32::MAX as u32) as i32),
            };
        }
        Ok(IndexFile { file, slots: slots.max(1), entries, header })
    }

    pub fn is_full(&self) -> bool {
        self.header.count as u32 >= self.entries
    }

    /// Puts keys in until the file is full; returns how many.
    pub fn put(&mut self, keys: &[(Vec<u8>, i64, i64)]) -> DiskResult<usize> {
        let mut taken = 0;
        for (key, address, store_ms) in keys {
            if self.is_full() {
                break;
            }
            let hash = key_hash(key);
            let slot_at = HEADER + u64::from(hash as u32 % self.slots) * SLOT;
            let before = self.number(slot_at)?;
            let before = if before > 0 && before < self.header.count { before } else { 0 };
            // The first entry of a file counts from the end of the file before: the library's way.
            let begin = if self.header.begin_ms > 0 { self.header.begin_ms } else { *store_ms };
            let seconds = (store_ms.saturating_sub(begin) / 1000).clamp(0, i64::from(i32::MAX)) as i32;
            if self.header.count == 1 {
                (self.header.begin_ms, self.header.begin_address) = (*store_ms, *address);
            }
            let mut entry = [0; ENTRY as usize];
            entry[..4].copy_from_slice(&hash.to_be_bytes());
            entry[4..12].copy_from_slice(&address.to_be_bytes());
            entry[12..16].copy_from_slice(&seconds.to_be_bytes());
            entry[16..].copy_from_slice(&before.to_be_bytes());
            self.file.write_at(self.entry_at(self.header.count), &entry)?;
            self.file.write_at(slot_at, &self.header.count.to_be_bytes())?;
            self.header.slots_used = self.header.slots_used.saturating_add(i32::from(before == 0));
            self.header.count += 1;
            (self.header.end_ms, self.header.end_address) = (*store_ms, *address);
            taken += 1;
        }
        self.write_header()?;
        Ok(taken)
    }

    fn entry_at(&self, number: i32) -> u64 {
        HEADER + u64::from(self.slots) * SLOT + number as u64 * ENTRY
    }

    fn number(&self, at: u64) -> DiskResult<i32> {
        let bytes = self.file.read_at(at, 4)?;
        Ok(bytes.first_chunk().map_or(0, |b| i32::from_be_bytes(*b)))
    }

    fn write_header(&self) -> DiskResult<()> {
        let h = &self.header;
        let mut bytes = Vec::with_capacity(HEADER as usize);
        for value in [h.begin_ms, h.end_ms, h.begin_address, h.end_address] {
            bytes.extend_from_slice(&value.to_be_bytes());
        }
        bytes.extend_from_slice(&h.slots_used.to_be_bytes());
        bytes.extend_from_slice(&h.count.to_be_bytes());
        self.file.write_at(0, &bytes)
    }

    /// Addresses of messages whose key may be this one, newest first.
    pub fn find(&self, key: &[u8], max: usize) -> DiskResult<Vec<i64>> {
        let hash = key_hash(key);
        let mut number = self.number(HEADER + u64::from(hash as u32 % self.slots) * SLOT)?;
        let mut found = Vec::new();
        for _ in 0..CHAIN_MAX {
            if number <= 0 || number >= self.header.count || found.len() >= max {
                break;
            }
            let entry = self.file.read_at(self.entry_at(number), ENTRY as usize)?;
            let Ok(entry) = <[u8; ENTRY as usize]>::try_from(entry) else { break };
            if i32::from_be_bytes(entry[..4].try_into().expect("four")) == hash {
                found.push(i64::from_be_bytes(entry[4..12].try_into().expect("eight")));
            }
            let before = i32::from_be_bytes(entry[16..].try_into().expect("four"));
            // Chains lead back: anything else is damage.
            if before >= number {
                break;
            }
            number = before;
        }
        Ok(found)
    }
}
