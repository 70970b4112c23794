//! The guard: our sidecar with the boundaries of every record of a block, because the record hash covers
//! none of the three lengths. Written when a block is sealed and at a clean stop; never needed to open.
//!
//! ```text
//! "HRGUARD1" | u64 block bytes | 8 bytes last record hash | runs x ( uvarint count, uvarint length<<1|headers,
//!              uvarint subject length, uvarint header length ) | u32 CRC-32C of everything before
//! ```
//! A guard whose CRC or stamp does not fit is not used.

use super::decode::Reader;
use super::record::{HASH_SIZE, HEADERS_BIT, RECORD_BYTES_MIN, View};
use crate::varint::put_uvarint;

const MAGIC: &[u8; 8] = b"HRGUARD1";

/// The three lengths as they stand in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    pub raw_length: u32,
    pub subject_len: u16,
    pub header_len: u32,
}

impl Bounds {
    pub fn of(view: &View) -> Bounds {
        Bounds {
            raw_length: view.len as u32 | if view.header_len.is_some() { HEADERS_BIT } else { 0 },
            subject_len: view.subject_len as u16,
            header_len: view.header_len.unwrap_or(0) as u32,
        }
    }

    pub fn len(&self) -> usize {
        (self.raw_length & !HEADERS_BIT) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Boundaries from the block's first byte on, without a gap.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    runs: Vec<(u32, Bounds)>,
    pub covered: usize,
}

impl Guard {
    pub fn push(&mut self, view: &View) {
        let bounds = Bounds::of(view);
        self.covered = view.end();
        match self.runs.last_mut() {
            Some((count, last)) if *last == bounds && *count < u32::MAX => *count += 1,
            _ => self.runs.push((1, bounds)),
        }
    }

    /// How many it covers; no more than their bytes allow.
    pub fn records(&self) -> usize {
        self.runs.iter().map(|(count, _)| *count as usize).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = Bounds> + '_ {
        self.runs.iter().flat_map(|(count, bounds)| (0..*count).map(move |_| *bounds))
    }

    pub fn encode(&self, last_hash: &[u8]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&(self.covered as u64).to_le_bytes());
        out.extend_from_slice(last_hash);
        for (count, bounds) in &self.runs {
            put_uvarint(&mut out, u64::from(*count));
            let headers = u64::from(bounds.raw_length & HEADERS_BIT != 0);
            put_uvarint(&mut out, (bounds.len() as u64) << 1 | headers);
            put_uvarint(&mut out, u64::from(bounds.subject_len));
            put_uvarint(&mut out, u64::from(bounds.header_len));
        }
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// `None` unless the file is whole and belongs to a block that begins with these records. A block
    /// may have grown since: the guard then covers its beginning.
    pub fn decode(bytes: &[u8], block: &[u8]) -> Option<Guard> {
        Guard::parse(bytes).filter(|(guard, last_hash)| guard.fits(block, last_hash)).map(|found| found.0)
    }

    /// Whether the block begins with these records.
    pub fn fits(&self, block: &[u8], last_hash: &[u8]) -> bool {
        let covered = self.covered;
        covered <= block.len() && covered >= HASH_SIZE && &block[covered - HASH_SIZE..covered] == last_hash
    }

    /// `None` unless it covers exactly a block of this size that ends with this hash.
    pub fn decode_for(bytes: &[u8], block_len: usize, block_end: &[u8]) -> Option<Guard> {
        Guard::parse(bytes)
            .filter(|(guard, last)| guard.covered == block_len && *last == block_end)
            .map(|found| found.0)
    }

    /// A whole guard and the hash of the last record it covers, whatever has become of its block.
    pub fn parse(bytes: &[u8]) -> Option<(Guard, &[u8])> {
        let body = bytes.len().checked_sub(4).filter(|body| *body >= MAGIC.len() + 16)?;
        let crc = u32::from_le_bytes(bytes[body..].try_into().ok()?);
        if &bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..body]) != crc {
            return None;
        }
        let mut reader = Reader::new(&bytes[..body]);
        reader.at = MAGIC.len();
        let covered = usize::try_from(reader.u64().ok()?).ok()?;
        let last_hash = reader.take(HASH_SIZE).ok()?;
        let mut guard = Guard { runs: Vec::new(), covered };
        let mut total = 0usize;
        while reader.left() > 0 {
            let count = u32::try_from(reader.uvarint().ok()?).ok()?;
            let length = reader.uvarint().ok()?;
            let bounds = Bounds {
                raw_length: u32::try_from(length >> 1).ok()? | if length & 1 == 1 { HEADERS_BIT } else { 0 },
                subject_len: u16::try_from(reader.uvarint().ok()?).ok()?,
                header_len: u32::try_from(reader.uvarint().ok()?).ok()?,
            };
            if bounds.len() < RECORD_BYTES_MIN {
                return None;
            }
            total = total.checked_add(bounds.len().checked_mul(count as usize)?)?;
            guard.runs.push((count, bounds));
        }
        (total == covered).then_some((guard, last_hash))
    }
}
