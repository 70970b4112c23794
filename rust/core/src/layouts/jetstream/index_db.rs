//! `index.db` of 2.10 and later: the whole stream's state, a checkpoint of what the blocks say.
//!
//! ```text
//! 11 | version 1..4 | uvarint messages, bytes, first | varint first time = base | uvarint last | varint last time
//! uvarint subjects x ( uvarint length, subject, uvarint total, uvarint first block,
//!                      uvarint last block: v4 always, before only if total > 1 )
//! uvarint blocks x ( uvarint number, bytes, first | varint first time - base | uvarint last |
//!                    varint last time - base | uvarint deleted | v2+ uvarint TTLs | v3+ uvarint schedules |
//!                    a sequence set if deleted > 0 )
//! uvarint newest block | 8 bytes hash of its last record | 8 bytes HighwayHash-64, key SHA-256(stream)
//! ```

use super::decode::{DecodeError, Reader};
use super::record::{HASH_SIZE, SEQUENCE_MASK};
use super::seqset::SeqSet;
use crate::hash::HashKey;
use crate::varint::{put_uvarint, put_varint};

const MAGIC: u8 = 11;
pub const VERSION: u8 = 4;
const BYTES_MIN: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectEntry<'a> {
    pub subject: &'a [u8],
    pub total: u64,
    pub first_block: u64,
    pub last_block: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockEntry {
    pub number: u64,
    pub bytes: u64,
    pub first: u64,
    pub first_time: i64,
    pub last: u64,
    pub last_time: i64,
    pub deleted: SeqSet,
    pub ttls: u64,
    pub schedules: u64,
}

impl BlockEntry {
    /// The count that the format implies; `None` when it is impossible.
    pub fn msgs(&self) -> Option<u64> {
        self.last.checked_add(1)?.checked_sub(self.first)?.checked_sub(self.deleted.len() as u64)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IndexDb<'a> {
    pub version: u8,
    pub msgs: u64,
    pub bytes: u64,
    pub first: u64,
    pub first_time: i64,
    pub last: u64,
    pub last_time: i64,
    pub subjects: Vec<SubjectEntry<'a>>,
    pub blocks: Vec<BlockEntry>,
    pub newest: u64,
    pub last_hash: [u8; HASH_SIZE],
}

impl<'a> IndexDb<'a> {
    pub fn decode(bytes: &'a [u8], key: &HashKey) -> Result<IndexDb<'a>, DecodeError> {
        let mut reader = Reader::new(bytes);
        if bytes.len() < BYTES_MIN {
            return reader.fail(format!("{} bytes, an index.db has at least {BYTES_MIN}", bytes.len()));
        }
        let body = bytes.len() - HASH_SIZE;
        let (seen, expected) = (&bytes[body..], key.hash(&bytes[..body]).to_le_bytes());
        if seen != expected {
            return Err(DecodeError { offset: body, problem: "its hash does not fit its content".into() });
        }
        reader.data = &bytes[..body];
        let (magic, version) = (reader.byte()?, reader.byte()?);
        if magic != MAGIC || !(1..=VERSION).contains(&version) {
            return reader.fail(format!("begins with {magic} {version}, expected 11 and 1 to 4"));
        }
        let mut index = IndexDb {
            version,
            msgs: reader.uvarint()?,
            bytes: reader.uvarint()?,
            first: reader.uvarint()?,
            first_time: reader.varint()?,
            last: reader.uvarint()?,
            last_time: reader.varint()?,
            ..IndexDb::default()
        };
        let subjects = reader.count(3, "subjects")?;
        index.subjects.reserve(subjects);
        for _ in 0..subjects {
            index.subjects.push(read_subject(&mut reader, version)?);
        }
        let blocks = reader.count(7, "blocks")?;
        for _ in 0..blocks {
            let block = read_block(&mut reader, version, index.first_time)?;
            if block.msgs().is_none() {
                return reader.fail(format!("block {} has more deleted messages than sequences", block.number));
            }
            index.blocks.push(block);
        }
        index.newest = reader.uvarint()?;
        index.last_hash = reader.take(HASH_SIZE)?.try_into().unwrap();
        Ok(index)
    }

    pub fn encode(&self, key: &HashKey) -> Vec<u8> {
        let mut out = vec![MAGIC, VERSION];
        put_uvarint(&mut out, self.msgs);
        put_uvarint(&mut out, self.bytes);
        put_uvarint(&mut out, self.first);
        put_varint(&mut out, self.first_time);
        put_uvarint(&mut out, self.last);
        put_varint(&mut out, self.last_time);
        put_uvarint(&mut out, self.subjects.len() as u64);
        for entry in &self.subjects {
            put_uvarint(&mut out, entry.subject.len() as u64);
            out.extend_from_slice(entry.subject);
            put_uvarint(&mut out, entry.total);
            put_uvarint(&mut out, entry.first_block);
            put_uvarint(&mut out, entry.last_block);
        }
        put_uvarint(&mut out, self.blocks.len() as u64);
        for block in &self.blocks {
            put_uvarint(&mut out, block.number);
            put_uvarint(&mut out, block.bytes);
            put_uvarint(&mut out, block.first);
            put_varint(&mut out, block.first_time.wrapping_sub(self.first_time));
            put_uvarint(&mut out, block.last);
            put_varint(&mut out, block.last_time.wrapping_sub(self.first_time));
            put_uvarint(&mut out, block.deleted.len() as u64);
            put_uvarint(&mut out, block.ttls);
            put_uvarint(&mut out, block.schedules);
            if !block.deleted.is_empty() {
                block.deleted.encode(&mut out);
            }
        }
        put_uvarint(&mut out, self.newest);
        out.extend_from_slice(&self.last_hash);
        let hash = key.hash(&out);
        out.extend_from_slice(&hash.to_le_bytes());
        out
    }

    /// Do the blocks add up to the totals, and follow each other?
    pub fn adds_up(&self) -> bool {
        let msgs = self.blocks.iter().filter_map(BlockEntry::msgs).try_fold(0u64, u64::checked_add);
        let bytes = self.blocks.iter().map(|b| b.bytes).try_fold(0u64, u64::checked_add);
        let total = self.subjects.iter().map(|s| s.total).try_fold(0u64, u64::checked_add);
        let follow = self.blocks.windows(2).all(|pair| pair[0].number < pair[1].number && pair[0].last < pair[1].first);
        let within = self.last <= SEQUENCE_MASK && self.blocks.iter().all(|b| b.last <= self.last);
        let all = Some(self.msgs);
        msgs == all && total == all && bytes == Some(self.bytes) && follow && within
    }
}

fn read_subject<'a>(reader: &mut Reader<'a>, version: u8) -> Result<SubjectEntry<'a>, DecodeError> {
    let len = reader.count(1, "bytes of subject")?;
    let subject = reader.take(len)?;
    let (total, first_block) = (reader.uvarint()?, reader.uvarint()?);
    let last_block = if version >= 4 || total > 1 { reader.uvarint()? } else { first_block };
    Ok(SubjectEntry { subject, total, first_block, last_block })
}

fn read_block(reader: &mut Reader<'_>, version: u8, base: i64) -> Result<BlockEntry, DecodeError> {
    let mut block = BlockEntry {
        number: reader.uvarint()?,
        bytes: reader.uvarint()?,
        first: reader.uvarint()?,
        first_time: reader.varint()?.wrapping_add(base),
        last: reader.uvarint()?,
        last_time: reader.varint()?.wrapping_add(base),
        ..BlockEntry::default()
    };
    let deleted = reader.uvarint()?;
    block.ttls = if version >= 2 { reader.uvarint()? } else { 0 };
    block.schedules = if version >= 3 { reader.uvarint()? } else { 0 };
    if deleted > 0 {
        block.deleted = SeqSet::decode(reader)?;
    }
    if block.last > super::record::SEQUENCE_MASK || block.first > block.last + 1 {
        return reader.fail(format!("block {} spans {}..{}", block.number, block.first, block.last));
    }
    Ok(block)
}
