//! One record of a block. A block is nothing but these, back to back.
//!
//! ```text
//!  0        4               12              20     22           22+s       26+s      26+s+h
//! ┌────────┬───────────────┬───────────────┬──────┬────────────┬──────────┬─────────┬──────────┬──────┐
//! │ length │ sequence      │ time ns       │ s    │ subject    │ h        │ headers │ payload  │ hash │
//! │ u32    │ u64           │ i64           │ u16  │ s bytes    │ u32      │ h bytes │          │ u64  │
//! └────────┴───────────────┴───────────────┴──────┴────────────┴──────────┴─────────┴──────────┴──────┘
//!   bit 31: headers  bit 63: erased or placeholder              └ only with headers ┘
//!                    bit 62: tombstone
//! hash = HighwayHash-64(SHA-256("<stream>-<block>"), sequence time subject headers payload)
//! Outside the hash: length, s, h. All little-endian; length counts everything.
//! ```

use super::log::{LogError, LogResult};
use crate::batch::{Batch, flags};
use crate::hash::HashKey;

pub const LENGTH: usize = 0;
pub const SEQUENCE: usize = LENGTH + 4;
pub const TIME: usize = SEQUENCE + 8;
pub const SUBJECT_LENGTH: usize = TIME + 8;
/// Sequence and time, which the hash begins with.
const STAMP_SIZE: usize = SUBJECT_LENGTH - SEQUENCE;
pub const SUBJECT: usize = SUBJECT_LENGTH + 2;
pub const HEADER_LENGTH_SIZE: usize = 4;
pub const HASH_SIZE: usize = 8;
pub const RECORD_BYTES_MIN: usize = SUBJECT + HASH_SIZE;
/// What every reader of the format accepts at most.
pub const RECORD_BYTES_MAX: usize = 32 << 20;

pub const HEADERS_BIT: u32 = 1 << 31;
pub const ERASED_BIT: u64 = 1 << 63;
pub const TOMBSTONE_BIT: u64 = 1 << 62;
pub const SEQUENCE_MASK: u64 = !(ERASED_BIT | TOMBSTONE_BIT);

/// Where the parts of one record lie, relative to the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub offset: usize,
    pub len: usize,
    /// With its flag bits.
    pub raw_sequence: u64,
    pub time: i64,
    pub subject_len: usize,
    /// `None` without headers.
    pub header_len: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{left} bytes are left, a record has at least 30")]
    Short { left: usize },
    #[error("record length {len}, expected 30 to {max}")]
    Length { len: usize, max: usize },
    #[error("subject length {len}, only {space} bytes of body")]
    SubjectLength { len: usize, space: usize },
    #[error("header length {len}, only {space} bytes of body")]
    HeaderLength { len: usize, space: usize },
    #[error("hash {seen:016x}, expected {expected:016x}")]
    Hash { seen: u64, expected: u64 },
    #[error("record of {len} bytes not looked at: the bytes before it claim too many records")]
    Unaffordable { len: usize },
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl View {
    pub fn counted(&self, as_memory: bool) -> u64 {
        counted(self.len, self.header_len.is_some(), as_memory)
    }

    /// Reads the fields at `offset`; every length is checked against the block.
    #[inline]
    pub fn parse(block: &[u8], offset: usize) -> Result<View, Fault> {
        let left = block.len().saturating_sub(offset);
        if left < RECORD_BYTES_MIN {
            return Err(Fault::Short { left });
        }
        let record = &block[offset..];
        let raw_length = u32_at(record, LENGTH);
        let len = (raw_length & !HEADERS_BIT) as usize;
        let max = left.min(RECORD_BYTES_MAX);
        if len < RECORD_BYTES_MIN || len > max {
            return Err(Fault::Length { len, max });
        }
        let subject_len = u16::from_le_bytes([record[SUBJECT_LENGTH], record[SUBJECT_LENGTH + 1]]) as usize;
        let space = len - RECORD_BYTES_MIN;
        if subject_len > space {
            return Err(Fault::SubjectLength { len: subject_len, space });
        }
        let header_len = if raw_length & HEADERS_BIT == 0 {
            None
        } else {
            let space = space - subject_len;
            if space < HEADER_LENGTH_SIZE {
                return Err(Fault::HeaderLength { len: 0, space });
            }
            let header_len = u32_at(record, SUBJECT + subject_len) as usize;
            if header_len > space - HEADER_LENGTH_SIZE {
                return Err(Fault::HeaderLength { len: header_len, space: space - HEADER_LENGTH_SIZE });
            }
            Some(header_len)
        };
        Ok(View {
            offset,
            len,
            raw_sequence: u64_at(record, SEQUENCE),
            time: u64_at(record, TIME) as i64,
            subject_len,
            header_len,
        })
    }

    /// `parse` and the hash.
    #[inline]
    pub fn checked(block: &[u8], offset: usize, key: &HashKey) -> Result<View, Fault> {
        let view = View::parse(block, offset)?;
        let (seen, expected) = (view.stored_hash(block), view.hash(block, key));
        if seen != expected {
            return Err(Fault::Hash { seen, expected });
        }
        Ok(view)
    }

    pub fn sequence(&self) -> u64 {
        self.raw_sequence & SEQUENCE_MASK
    }

    pub fn is_tombstone(&self) -> bool {
        self.raw_sequence & TOMBSTONE_BIT != 0
    }

    /// A placeholder, or a message whose bytes were overwritten.
    pub fn is_erased(&self) -> bool {
        self.raw_sequence & ERASED_BIT != 0
    }

    pub fn is_message(&self) -> bool {
        self.raw_sequence & !SEQUENCE_MASK == 0
    }

    pub fn end(&self) -> usize {
        self.offset + self.len
    }

    pub fn subject<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        let start = self.offset + SUBJECT;
        &block[start..start + self.subject_len]
    }

    pub fn headers<'a>(&self, block: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.offset + SUBJECT + self.subject_len + HEADER_LENGTH_SIZE;
        self.header_len.map(|len| &block[start..start + len])
    }

    pub fn data_start(&self) -> usize {
        let headers = self.header_len.map_or(0, |len| HEADER_LENGTH_SIZE + len);
        self.offset + SUBJECT + self.subject_len + headers
    }

    pub fn data<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        &block[self.data_start()..self.end() - HASH_SIZE]
    }

    pub fn stored_hash(&self, block: &[u8]) -> u64 {
        u64_at(block, self.end() - HASH_SIZE)
    }

    #[inline]
    pub fn hash(&self, block: &[u8], key: &HashKey) -> u64 {
        let stamp = &block[self.offset + SEQUENCE..][..STAMP_SIZE];
        let body = self.offset + SUBJECT;
        let end = self.end() - HASH_SIZE;
        match self.header_len {
            None if end - body >= stamp.len() => {
                // One whole packet at the start: what follows is hashed where it lies.
                let (head, rest) = block[body..end].split_at(stamp.len());
                let mut first = [0; 2 * STAMP_SIZE];
                first[..STAMP_SIZE].copy_from_slice(stamp);
                first[STAMP_SIZE..].copy_from_slice(head);
                key.hash_pieces(&[&first, rest])
            }
            None => key.hash_pieces(&[stamp, &block[body..end]]),
            Some(_) => {
                let headers = body + self.subject_len + HEADER_LENGTH_SIZE;
                key.hash_pieces(&[stamp, &block[body..body + self.subject_len], &block[headers..end]])
            }
        }
    }
}

/// What a record counts for: its length, or in a memory store what nats-server counts there: the parts and 16 bytes.
pub fn counted(len: usize, with_headers: bool, as_memory: bool) -> u64 {
    const IN_MEMORY: usize = 16;
    let saved = RECORD_BYTES_MIN - IN_MEMORY + if with_headers { HEADER_LENGTH_SIZE } else { 0 };
    (if as_memory { len.saturating_sub(saved) } else { len }) as u64
}

/// The size on disk; also what the stream's `bytes` counts.
pub fn record_bytes(subject: usize, headers: Option<usize>, data: usize) -> usize {
    RECORD_BYTES_MIN + subject + headers.map_or(0, |len| HEADER_LENGTH_SIZE + len) + data
}

/// What the messages of a batch take as records.
pub fn batch_record_bytes(batch: &Batch, as_memory: bool) -> u64 {
    let size = |entry: &crate::batch::Entry| {
        let headers = (!entry.headers.is_null()).then(|| entry.headers.size());
        let size = record_bytes(entry.subject.size(), headers, entry.data.size());
        counted(size, headers.is_some(), as_memory)
    };
    batch.entries().iter().map(size).sum()
}

/// The length of a message as a record, if it can be one.
pub(super) fn check_size(batch: &Batch, entry: &crate::batch::Entry) -> LogResult<usize> {
    let subject = batch.bytes(entry.subject).len();
    if subject > usize::from(u16::MAX) {
        return Err(LogError::SubjectTooLong(subject));
    }
    let headers = (!entry.headers.is_null()).then(|| entry.headers.size());
    let size = record_bytes(subject, headers, entry.data.size());
    if size > RECORD_BYTES_MAX {
        return Err(LogError::TooLarge { size, max: RECORD_BYTES_MAX });
    }
    Ok(size)
}

/// What goes into one record; `raw_sequence` carries the flag bits.
pub struct Fields<'a> {
    pub raw_sequence: u64,
    pub time: i64,
    pub subject: &'a [u8],
    pub headers: Option<&'a [u8]>,
    pub data: &'a [u8],
}

/// Appends the record to `out`. The caller has checked the sizes.
#[inline]
pub fn encode(out: &mut Vec<u8>, key: &HashKey, fields: &Fields<'_>) {
    let start = out.len();
    let len = record_bytes(fields.subject.len(), fields.headers.map(<[u8]>::len), fields.data.len());
    let flag = if fields.headers.is_some() { HEADERS_BIT } else { 0 };
    out.reserve(len);
    let mut head = [0; SUBJECT];
    head[LENGTH..SEQUENCE].copy_from_slice(&(len as u32 | flag).to_le_bytes());
    head[SEQUENCE..TIME].copy_from_slice(&fields.raw_sequence.to_le_bytes());
    head[TIME..SUBJECT_LENGTH].copy_from_slice(&fields.time.to_le_bytes());
    head[SUBJECT_LENGTH..SUBJECT].copy_from_slice(&(fields.subject.len() as u16).to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(fields.subject);
    if let Some(headers) = fields.headers {
        out.extend_from_slice(&(headers.len() as u32).to_le_bytes());
        out.extend_from_slice(headers);
    }
    out.extend_from_slice(fields.data);
    let view = View {
        offset: start,
        len,
        raw_sequence: fields.raw_sequence,
        time: fields.time,
        subject_len: fields.subject.len(),
        header_len: fields.headers.map(<[u8]>::len),
    };
    let hash = view.hash(out, key);
    out.extend_from_slice(&hash.to_le_bytes());
}

pub fn encode_tombstone(out: &mut Vec<u8>, key: &HashKey, sequence: u64, time: i64) {
    let raw_sequence = sequence | TOMBSTONE_BIT;
    encode(out, key, &Fields { raw_sequence, time, subject: b"", headers: None, data: b"" });
}

pub fn encode_placeholder(out: &mut Vec<u8>, key: &HashKey, sequence: u64, time: i64) {
    let raw_sequence = sequence | ERASED_BIT;
    encode(out, key, &Fields { raw_sequence, time, subject: b"", headers: None, data: b"" });
}

/// Overwrites a message in place: same length, no subject, no headers, random body.
pub fn encode_erased(key: &HashKey, view: &View, random: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(view.len);
    let raw_sequence = view.sequence() | ERASED_BIT;
    let data = &random[..view.len - RECORD_BYTES_MIN];
    encode(&mut out, key, &Fields { raw_sequence, time: 0, subject: b"", headers: None, data });
    out
}

/// The records of a whole batch, with its own positions and times; placeholders where it says so.
pub fn encode_batch(key: &HashKey, batch: &Batch) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::with_capacity(batch.payload_bytes() as usize + batch.len() * (RECORD_BYTES_MIN + 4));
    for entry in batch.entries() {
        if entry.flags & flags::PLACEHOLDER != 0 {
            encode_placeholder(&mut out, key, entry.position, entry.time);
            continue;
        }
        let headers = (!entry.headers.is_null()).then(|| batch.bytes(entry.headers));
        let (subject, data) = (batch.bytes(entry.subject), batch.bytes(entry.data));
        let len = record_bytes(subject.len(), headers.map(<[u8]>::len), data.len());
        if len > RECORD_BYTES_MAX || subject.len() > usize::from(u16::MAX) {
            return Err(Fault::Length { len, max: RECORD_BYTES_MAX });
        }
        encode(&mut out, key, &Fields { raw_sequence: entry.position, time: entry.time, subject, headers, data });
    }
    Ok(out)
}

/// What `encode_filled` wrote: the records, how many messages they hold.
pub struct Filled {
    pub bytes: Vec<u8>,
    pub taken: usize,
}

/// How far `encode_filled` may go.
pub struct FillLimits {
    /// The sequence that the block's next record must have; 0 = the block is new and begins anywhere.
    pub next: u64,
    /// Of the record before, for placeholders.
    pub time: i64,
    pub bytes_max: usize,
    pub hole_max: u64,
}

/// Records without holes: a placeholder stands for every sequence between two messages. Stops in front of a
/// message that does not fit (one always does if the block is new) or that lies behind a wide hole.
pub fn encode_filled(key: &HashKey, batch: &Batch, from: usize, limits: &FillLimits) -> Result<Filled, Fault> {
    let (mut out, mut taken) = (Vec::new(), 0);
    let (mut next, mut time) = (limits.next, limits.time);
    for entry in batch.entries().get(from..).unwrap_or_default() {
        let headers = (!entry.headers.is_null()).then(|| batch.bytes(entry.headers));
        let (subject, data) = (batch.bytes(entry.subject), batch.bytes(entry.data));
        let len = record_bytes(subject.len(), headers.map(<[u8]>::len), data.len());
        if len > RECORD_BYTES_MAX || subject.len() > usize::from(u16::MAX) {
            return Err(Fault::Length { len, max: RECORD_BYTES_MAX });
        }
        let hole = if next == 0 { 0 } else { entry.position.saturating_sub(next) };
        let size = out.len() + hole as usize * RECORD_BYTES_MIN + len;
        if next != 0 && (hole > limits.hole_max || size > limits.bytes_max) {
            break;
        }
        for sequence in entry.position - hole..entry.position {
            encode_placeholder(&mut out, key, sequence, time);
        }
        encode(&mut out, key, &Fields { raw_sequence: entry.position, time: entry.time, subject, headers, data });
        (next, time, taken) = (entry.position + 1, entry.time, taken + 1);
    }
    Ok(Filled { bytes: out, taken })
}
