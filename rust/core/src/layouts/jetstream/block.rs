//! One block: the summary that stays in memory, and the bytes with their slot table while it is cached.
//!
//! On disk a block may be packed: compressed (`cmp` 01, uvarint plain size, an S2 stream, the last 8 bytes
//! plain) and then enciphered. Loading undoes both, then scans; every hash is checked once per load.

use std::sync::Arc;

use super::decode::Reader;
use super::guard::Guard;
use super::matching::BlockSubjects;
use super::record::{HASH_SIZE, View};
use super::scan::{Finding, FindingKind, Hints, Scan, Taker, scan_taking};
use super::seqset::SeqSet;
use crate::compress;
use crate::crypt::{Seed as BlockKey, block_keystream_apply};
use crate::disk::{Disk, DiskResult, OpenMode};
use crate::hash::HashKey;
use crate::large_buffer;

const COMPRESSED: &[u8; 4] = b"cmp\x01";
/// The mark, the longest size, the identifier of the stream.
const HEAD_MAX: usize = 4 + 10 + 10;
/// A block is at most a full one plus one record of the largest size; anything above is not ours to load.
pub const BLOCK_BYTES_MAX: u64 = 1 << 30;
const NO_SLOT: u32 = u32::MAX;
/// Unknown until somebody asks: the first live message changed without a look at the block.
pub const TIME_UNKNOWN: i64 = i64::MIN;

/// What is known of a block without its bytes. `first` is the first live sequence (last + 1 if none),
/// `last` the last one that the block covers, live or not.
#[derive(Clone)]
pub struct Block {
    pub number: u64,
    pub key: HashKey,
    pub cipher: Option<BlockKey>,
    pub first: u64,
    /// No record in the file, live or dead, is below this; 0 when that is not known.
    pub file_first: u64,
    pub first_time: i64,
    pub last: u64,
    pub last_time: i64,
    pub msgs: u64,
    pub bytes: u64,
    /// The file's size (packed or not).
    pub file_len: u64,
    pub last_hash: [u8; HASH_SIZE],
    /// Sequences between first and last without a live message.
    pub deleted: SeqSet,
    pub ttls: u64,
    pub schedules: u64,
    /// What a sealed block holds, once somebody looked (matching.rs).
    pub subjects: Option<Arc<BlockSubjects>>,
}

impl Block {
    pub fn new(number: u64, stream: &[u8], cipher: Option<BlockKey>) -> Block {
        Block {
            number,
            key: block_key(stream, number),
            cipher,
            first: 1,
            file_first: 0,
            first_time: 0,
            last: 0,
            last_time: 0,
            msgs: 0,
            bytes: 0,
            file_len: 0,
            last_hash: [0; HASH_SIZE],
            deleted: SeqSet::default(),
            ttls: 0,
            schedules: 0,
            subjects: None,
        }
    }

    pub fn is_live(&self, sequence: u64) -> bool {
        self.msgs > 0 && sequence >= self.first && sequence <= self.last && !self.deleted.contains(sequence)
    }

    /// Every record of the file is a live message.
    pub fn is_whole(&self) -> bool {
        self.file_first == self.first && self.deleted.is_empty() && self.msgs == self.last + 1 - self.first
    }

    /// The next live sequence at or after `from`.
    pub fn next_live(&self, from: u64) -> Option<u64> {
        let mut sequence = from.max(self.first);
        while self.msgs > 0 && sequence <= self.last {
            if !self.deleted.contains(sequence) {
                return Some(sequence);
            }
            sequence += 1;
        }
        None
    }

    pub fn live_from(&self, from: u64) -> u64 {
        if from <= self.first {
            return self.msgs;
        }
        if from > self.last || self.msgs == 0 {
            return 0;
        }
        self.last - from + 1 - self.deleted.count_between(from, self.last)
    }

    /// A message was written at the end.
    #[inline]
    pub fn stored(&mut self, sequence: u64, time: i64, bytes: u64) {
        if self.msgs == 0 {
            (self.first, self.first_time) = (sequence, time);
            self.deleted = SeqSet::default();
        } else if sequence > self.last + 1 {
            self.deleted.insert_range(self.last + 1..sequence);
        }
        self.msgs += 1;
        self.bytes += bytes;
        (self.last, self.last_time) = (sequence, time);
    }

    /// A sequence was used up without a message.
    pub fn skipped(&mut self, sequence: u64) {
        if self.msgs == 0 {
            self.first = sequence + 1;
        } else {
            self.deleted.insert_range(self.last + 1..sequence + 1);
        }
        self.last = sequence;
    }

    /// A live message went; its record stays.
    pub fn removed(&mut self, sequence: u64, bytes: u64) {
        self.msgs -= 1;
        self.bytes -= bytes.min(self.bytes);
        if self.msgs == 0 {
            self.first = self.last + 1;
            self.deleted = SeqSet::default();
        } else if sequence == self.first {
            let mut first = sequence + 1;
            while self.deleted.contains(first) {
                first += 1;
            }
            self.deleted.remove_below(first);
            (self.first, self.first_time) = (first, TIME_UNKNOWN);
        } else {
            self.deleted.insert(sequence);
        }
    }
}

/// The hash key of a block's records.
pub fn block_key(stream: &[u8], number: u64) -> HashKey {
    HashKey::from_text(&[stream, b"-", number.to_string().as_bytes()].concat())
}

/// From sequence to the record's place: slot = sequence - base where the block is dense, as it nearly
/// always is; a sorted list where a hostile or very thin block would make the table huge.
pub enum Lookup {
    Slots { base: u64, offsets: Vec<u32> },
    Sorted(Vec<(u64, u32)>),
}

impl Lookup {
    pub fn new() -> Lookup {
        Lookup::Slots { base: 0, offsets: Vec::new() }
    }

    pub fn push(&mut self, sequence: u64, offset: u32) {
        if let Lookup::Slots { base, offsets } = self {
            if offsets.is_empty() {
                *base = sequence;
            }
            let slot = sequence.saturating_sub(*base);
            if sequence >= *base && slot <= 4 * offsets.len() as u64 + 65_536 {
                offsets.resize(slot as usize, NO_SLOT);
                offsets.push(offset);
                return;
            }
            let filled = offsets.iter().enumerate().filter(|(_, o)| **o != NO_SLOT);
            *self = Lookup::Sorted(filled.map(|(i, o)| (*base + i as u64, *o)).collect());
        }
        if let Lookup::Sorted(entries) = self {
            entries.push((sequence, offset));
        }
    }

    pub fn get(&self, sequence: u64) -> Option<usize> {
        match self {
            Lookup::Slots { base, offsets } => {
                let slot = usize::try_from(sequence.checked_sub(*base)?).ok()?;
                offsets.get(slot).filter(|offset| **offset != NO_SLOT).map(|offset| *offset as usize)
            }
            Lookup::Sorted(entries) => {
                let at = entries.binary_search_by_key(&sequence, |entry| entry.0).ok()?;
                Some(entries[at].1 as usize)
            }
        }
    }

    /// Forgets the entries at and behind a byte offset (a write that failed).
    pub fn truncate(&mut self, offset: usize) {
        match self {
            Lookup::Slots { offsets, .. } => {
                while offsets.last().is_some_and(|o| *o == NO_SLOT || *o as usize >= offset) {
                    offsets.pop();
                }
            }
            Lookup::Sorted(entries) => entries.retain(|entry| (entry.1 as usize) < offset),
        }
    }

    /// The places of all records, in no order.
    pub fn offsets(&self) -> Vec<u32> {
        match self {
            Lookup::Slots { offsets, .. } => offsets.iter().copied().filter(|offset| *offset != NO_SLOT).collect(),
            Lookup::Sorted(entries) => entries.iter().map(|entry| entry.1).collect(),
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Lookup::Slots { offsets, .. } => offsets.capacity() * 4,
            Lookup::Sorted(entries) => entries.capacity() * 16,
        }
    }
}

impl Default for Lookup {
    fn default() -> Self {
        Self::new()
    }
}

/// A block's plain bytes with the place of every sound message.
pub struct Loaded {
    pub data: Arc<Vec<u8>>,
    pub lookup: Lookup,
    /// Where the sound records lie that are no messages; `None` when every byte is a sound record's.
    pub others: Option<Vec<u32>>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        large_buffer::give_back_shared(&mut self.data);
    }
}

impl Loaded {
    pub fn heap_bytes(&self) -> usize {
        self.data.capacity() + self.lookup.heap_bytes()
    }

    pub fn view(&self, sequence: u64) -> Option<View> {
        View::parse(&self.data, self.lookup.get(sequence)?).ok()
    }
}

/// The plain bytes of a block file, and what was wrong with its packing.
pub fn read_plain(disk: &dyn Disk, path: &str, cipher: Option<&BlockKey>) -> DiskResult<(Vec<u8>, u64, Vec<Finding>)> {
    let mut bytes = disk.read(path, BLOCK_BYTES_MAX)?;
    let file_len = bytes.len() as u64;
    if let Some(key) = cipher {
        // The nonce came out of the block's own key file, so its size fits; a block never outruns the key stream.
        let _ = block_keystream_apply(key.cipher, &key.seed, &key.nonce, 0, &mut bytes);
    }
    if !bytes.starts_with(COMPRESSED) && compress::s2_identifier(&bytes[..bytes.len().min(HEAD_MAX)]).is_none() {
        return Ok((bytes, file_len, Vec::new()));
    }
    let (plain, findings) = decompress(&bytes);
    Ok((plain, file_len, findings))
}

/// Whether the file may hold something else than plain records.
pub fn is_packed(disk: &dyn Disk, path: &str, block: &Block) -> bool {
    let head = || disk.open(path, OpenMode::Read)?.read_at(0, HEAD_MAX);
    block.cipher.is_some()
        || head().map_or(true, |head| head.starts_with(COMPRESSED) || compress::s2_identifier(&head).is_some())
}

fn decompress(packed: &[u8]) -> (Vec<u8>, Vec<Finding>) {
    let finding = |kind, offset: usize, len: usize, detail: String| Finding {
        kind,
        offset: offset as u64,
        len: len as u64,
        sequences: None,
        detail,
    };
    let mut reader = Reader::new(packed);
    reader.at = COMPRESSED.len().min(packed.len());
    let stated = reader.uvarint().ok();
    // A damaged head does not matter: the stream begins with its identifier, and its chunks state their sizes.
    let head = compress::s2_identifier(&packed[..packed.len().min(HEAD_MAX)]).unwrap_or(reader.at);
    if packed.len() - head < HASH_SIZE {
        let detail = "the compressed block ends in its head".to_string();
        return (Vec::new(), vec![finding(FindingKind::UnsoundTail, 0, packed.len(), detail)]);
    }
    let (body, tail) = packed[head..].split_at(packed.len() - head - HASH_SIZE);
    let own = compress::s2_stated_len(body).filter(|len| *len as u64 <= BLOCK_BYTES_MAX);
    let stated = stated.filter(|len| (HASH_SIZE as u64..=BLOCK_BYTES_MAX).contains(len));
    let stated = stated.map(|len| len as usize - HASH_SIZE);
    let damaged_head = !packed.starts_with(COMPRESSED) || own.is_some_and(|own| stated != Some(own));
    let expected = own.or(stated).unwrap_or(0);
    let (mut plain, bad) = compress::s2_decompress_stream_tolerant(body, expected, BLOCK_BYTES_MAX as usize);
    plain.extend_from_slice(tail);
    let head_finding = damaged_head.then(|| {
        let detail = "turned back: the head of a compressed block, from its chunks".to_string();
        finding(FindingKind::Repaired, 0, head, detail)
    });
    let findings = bad.iter().map(|chunk| {
        let detail = format!(
            "an S2 chunk cannot be read: plain bytes {} to {} are lost",
            chunk.out_offset,
            chunk.out_offset + chunk.out_len
        );
        finding(FindingKind::BadRecord, head + chunk.in_offset, chunk.in_len, detail)
    });
    (plain, head_finding.into_iter().chain(findings).collect())
}

/// The packed form of a sealed block: what 2.10 and later write with `compression: s2`.
pub fn compress_block(plain: &[u8]) -> Vec<u8> {
    let mut out = COMPRESSED.to_vec();
    crate::varint::put_uvarint(&mut out, plain.len() as u64);
    let (body, tail) = plain.split_at(plain.len() - HASH_SIZE.min(plain.len()));
    out.extend_from_slice(&compress::s2_compress_stream(body));
    out.extend_from_slice(tail);
    out
}

/// Reads and scans a block.
pub fn load(disk: &dyn Disk, path: &str, block: &Block, guard: Option<&[u8]>) -> DiskResult<(Vec<u8>, u64, Scan)> {
    load_taking(disk, path, block, guard, None)
}

/// `load`, with its messages for a taker.
pub fn load_taking(
    disk: &dyn Disk,
    path: &str,
    block: &Block,
    guard: Option<&[u8]>,
    take: Option<&mut Taker<'_>>,
) -> DiskResult<(Vec<u8>, u64, Scan)> {
    let (mut data, file_len, findings) = read_plain(disk, path, block.cipher.as_ref())?;
    let guard = guard.and_then(Guard::parse);
    let guard_covers = guard.as_ref().map_or(0, |(guard, _)| guard.covered);
    let guard = guard.filter(|(guard, last_hash)| guard.fits(&data, last_hash)).map(|found| found.0);
    let mut scan = scan_taking(&mut data, &block.key, &Hints { guard: guard.as_ref() }, take);
    scan.guard_covers = guard_covers;
    scan.findings.splice(0..0, findings);
    Ok((data, file_len, scan))
}

/// A scanned block for the cache.
pub fn loaded_of(data: Vec<u8>, scan: &Scan) -> Loaded {
    let (mut lookup, mut others) = (Lookup::new(), Vec::new());
    for record in &scan.records {
        if record.raw_sequence & !super::record::SEQUENCE_MASK == 0 {
            lookup.push(record.raw_sequence, record.offset);
        } else {
            others.push(record.offset);
        }
    }
    Loaded { data: Arc::new(data), lookup, others: Some(others) }
}
