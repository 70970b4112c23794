//! `N.idx` of 2.6 and 2.9 (and, version 2, read once by 2.10): which messages of a block are logically gone.
//!
//! ```text
//! 22 | version | uvarint live | uvarint live bytes | uvarint first | varint first time | uvarint last |
//! varint last time | uvarint deleted n | 8 bytes hash of the block's last record |
//! version 1: n x uvarint (sequence - first), a 0 ends the list      version 2: a sequence set
//! ```
//! No checksum of its own; it counts only while its hash is the block's last one. 2.6 never shortens the
//! file, so bytes after the list are normal.

use super::decode::{DecodeError, Reader};
use super::record::HASH_SIZE;
use super::seqset::SeqSet;
use crate::varint::{put_uvarint, put_varint};

const MAGIC: u8 = 22;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Idx {
    pub msgs: u64,
    pub bytes: u64,
    pub first: u64,
    pub first_time: i64,
    pub last: u64,
    pub last_time: i64,
    pub last_hash: [u8; HASH_SIZE],
    pub deleted: SeqSet,
}

impl Idx {
    pub fn decode(bytes: &[u8]) -> Result<Idx, DecodeError> {
        let mut reader = Reader::new(bytes);
        let (magic, version) = (reader.byte()?, reader.byte()?);
        if magic != MAGIC || !(1..=2).contains(&version) {
            return reader.fail(format!("begins with {magic} {version}, expected 22 1 or 22 2"));
        }
        let mut idx = Idx {
            msgs: reader.uvarint()?,
            bytes: reader.uvarint()?,
            first: reader.uvarint()?,
            first_time: reader.varint()?,
            last: reader.uvarint()?,
            last_time: reader.varint()?,
            ..Idx::default()
        };
        let deleted = reader.uvarint()?;
        idx.last_hash = reader.take(HASH_SIZE)?.try_into().unwrap();
        if version == 2 {
            if deleted > 0 {
                idx.deleted = SeqSet::decode(&mut reader)?;
            }
            return Ok(idx);
        }
        for _ in 0..deleted.min(bytes.len() as u64) {
            match reader.uvarint() {
                Ok(0) | Err(_) => break,
                Ok(delta) if delta <= super::record::SEQUENCE_MASK => {
                    idx.deleted.insert(idx.first.wrapping_add(delta) & super::record::SEQUENCE_MASK)
                }
                Ok(delta) => return reader.fail(format!("deleted entry {delta} beyond any sequence")),
            };
        }
        Ok(idx)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![MAGIC, 1];
        put_uvarint(&mut out, self.msgs);
        put_uvarint(&mut out, self.bytes);
        put_uvarint(&mut out, self.first);
        put_varint(&mut out, self.first_time);
        put_uvarint(&mut out, self.last);
        put_varint(&mut out, self.last_time);
        put_uvarint(&mut out, self.deleted.len() as u64);
        out.extend_from_slice(&self.last_hash);
        for seq in self.deleted.iter() {
            put_uvarint(&mut out, seq - self.first);
        }
        out
    }

    /// The rule of 2.9 and later: it belongs to this block's last record and its counts agree.
    pub fn fits(&self, block: &[u8]) -> bool {
        let newest = block.len() >= HASH_SIZE && block[block.len() - HASH_SIZE..] == self.last_hash;
        let empty = block.is_empty() && self.msgs == 0;
        let span = self.last.wrapping_add(1).wrapping_sub(self.first);
        (newest || empty) && self.msgs == span.wrapping_sub(self.deleted.len() as u64)
    }
}
