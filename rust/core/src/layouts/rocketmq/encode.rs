//! Messages → bytes of the commit log (with blanks at the ends of files) and entries of their queue.

use super::message::{self, BLANK, CRC_NAME, CRC_PROPERTY, FIXED, MAGIC, MAGIC_BLANK};
use super::scan::{ENTRY, entry};
use crate::batch::{Batch, Entry, HeaderCodec, flags};
use crate::columns::header_pairs;

const PROPERTIES_MAX: usize = i16::MAX as usize;

#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("message {at}: a body of {size} bytes is larger than maxMessageSize, {max}")]
    TooLarge { at: usize, size: usize, max: usize },
    #[error("message {at}: properties of {size} bytes; 32767 is the most")]
    Properties { at: usize, size: usize },
    #[error("message {at}: a name or value with a byte 1 or 2 in it cannot be a property")]
    BadProperty { at: usize },
    #[error("message {at}: the file size {file} has no room for its {size} bytes")]
    LargerThanFile { at: usize, size: usize, file: u64 },
    #[error("message {at}: position {given} is not the next one, {next}: this layout's queues have no gaps")]
    Gap { at: usize, given: u64, next: i64 },
}

pub struct EncodeRules<'a> {
    pub topic: &'a [u8],
    pub queue: i32,
    pub first: i64,
    pub keep_positions: bool,
    /// Where the log goes on.
    pub address: u64,
    pub file_bytes: u64,
    pub now_ms: i64,
    pub body_max: usize,
    pub store_host: [u8; 8],
    pub property_crc: bool,
}

/// Bytes for one file, at an address.
pub struct Piece {
    pub address: u64,
    pub at: usize,
    pub len: usize,
}

#[derive(Default)]
pub struct Encoded {
    pub bytes: Vec<u8>,
    pub pieces: Vec<Piece>,
    /// Of the queue, 20 bytes each.
    pub entries: Vec<u8>,
    pub next_address: u64,
    pub messages: u64,
    pub last_store_ms: i64,
    /// (topic#key, address, store time)
    pub keys: Vec<(Vec<u8>, i64, i64)>,
}

pub fn encode(batch: &Batch, rules: &EncodeRules<'_>) -> Result<Encoded, EncodeError> {
    let mut out = Encoded { next_address: rules.address, ..Encoded::default() };
    let overhead = FIXED + rules.topic.len() + CRC_PROPERTY;
    out.bytes.reserve(batch.payload_bytes() as usize + batch.len() * (overhead + 8));
    out.entries.reserve(batch.len() * ENTRY);
    let (mut properties, mut offset) = (Vec::new(), rules.first);
    for (at, item) in batch.entries().iter().enumerate() {
        if item.flags & (flags::PLACEHOLDER | flags::CONTROL) != 0 {
            continue;
        }
        if rules.keep_positions && item.position != offset as u64 {
            return Err(EncodeError::Gap { at, given: item.position, next: offset });
        }
        properties.clear();
        put_properties(batch, item, &mut properties).ok_or(EncodeError::BadProperty { at })?;
        let size = one(batch, at, item, offset, &properties, rules, &mut out)?;
        offset += 1;
        out.messages += 1;
        debug_assert!(size > 0);
    }
    Ok(out)
}

fn one(
    batch: &Batch,
    at: usize,
    item: &Entry,
    offset: i64,
    properties: &[u8],
    rules: &EncodeRules<'_>,
    out: &mut Encoded,
) -> Result<usize, EncodeError> {
    let body = batch.bytes(item.data);
    if body.len() > rules.body_max {
        return Err(EncodeError::TooLarge { at, size: body.len(), max: rules.body_max });
    }
    let tail = if rules.property_crc { CRC_PROPERTY } else { 0 };
    // The property before the checksum must end with its mark.
    let properties_len = properties.len() + tail;
    if properties_len > PROPERTIES_MAX {
        return Err(EncodeError::Properties { at, size: properties_len });
    }
    let size = FIXED + body.len() + rules.topic.len() + properties_len;
    if (size + BLANK) as u64 > rules.file_bytes {
        return Err(EncodeError::LargerThanFile { at, size, file: rules.file_bytes });
    }
    let left = rules.file_bytes - out.next_address % rules.file_bytes;
    if (size + BLANK) as u64 > left {
        let start = out.bytes.len();
        out.bytes.extend_from_slice(&(left as u32).to_be_bytes());
        out.bytes.extend_from_slice(&MAGIC_BLANK.to_be_bytes());
        out.piece(start, rules.file_bytes);
        out.next_address += left;
    }
    let (address, start) = (out.next_address, out.bytes.len());
    let store_ms = rules.now_ms;
    let born_ms = if item.time == 0 { store_ms } else { item.time.div_euclid(1_000_000) };
    let bytes = &mut out.bytes;
    bytes.extend_from_slice(&(size as u32).to_be_bytes());
    bytes.extend_from_slice(&MAGIC.to_be_bytes());
    bytes.extend_from_slice(&message::crc(body).to_be_bytes());
    bytes.extend_from_slice(&rules.queue.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&address.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&born_ms.to_be_bytes());
    bytes.extend_from_slice(&rules.store_host);
    bytes.extend_from_slice(&store_ms.to_be_bytes());
    bytes.extend_from_slice(&rules.store_host);
    bytes.extend_from_slice(&[0; 12]);
    bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes.push(rules.topic.len() as u8);
    bytes.extend_from_slice(rules.topic);
    bytes.extend_from_slice(&(properties_len as u16).to_be_bytes());
    bytes.extend_from_slice(properties);
    if rules.property_crc {
        let crc = message::crc(&bytes[start..]);
        bytes.extend_from_slice(CRC_NAME);
        bytes.extend_from_slice(&message::crc_digits(crc));
        bytes.push(2);
    }
    let tag = value_of(properties, b"TAGS").map_or(0, |tag| i64::from(message::java_hash(tag)));
    out.entries.extend_from_slice(&entry(address as i64, size, tag));
    for key in value_of(properties, b"KEYS").unwrap_or(&[]).split(|b| *b == b' ').filter(|key| !key.is_empty()) {
        out.keys.push(([rules.topic, b"#", key].concat(), address as i64, store_ms));
    }
    out.piece(start, rules.file_bytes);
    out.next_address += size as u64;
    out.last_store_ms = store_ms;
    Ok(size)
}

impl Encoded {
    /// Bytes from `start` on go to `next_address`; they join the piece before when they follow it in the same file.
    fn piece(&mut self, start: usize, file_bytes: u64) {
        let len = self.bytes.len() - start;
        let next = self.next_address;
        let same_file = |piece: &Piece| piece.address / file_bytes == next / file_bytes;
        match self.pieces.last_mut() {
            Some(last) if last.address + last.len as u64 == next && last.at + last.len == start && same_file(last) => {
                last.len += len;
            }
            _ => self.pieces.push(Piece { address: self.next_address, at: start, len }),
        }
    }
}

fn value_of<'a>(properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    properties.split(|b| *b == 2).find_map(|pair| pair.strip_prefix(name)?.strip_prefix(b"\x01"))
}

/// The raw block when it is RocketMQ's own, else made of the pairs; the key becomes KEYS.
fn put_properties(batch: &Batch, item: &Entry, out: &mut Vec<u8>) -> Option<()> {
    if batch.codec() == HeaderCodec::RocketMq {
        let raw = batch.bytes(item.headers);
        let crc_at = memchr::memmem::rfind(raw, CRC_NAME).unwrap_or(raw.len());
        out.extend_from_slice(&raw[..crc_at]);
        if out.last().is_some_and(|last| *last != 2) {
            out.push(2);
        }
    } else if !item.headers.is_null() {
        let mut pairs = Vec::new();
        header_pairs(batch.codec(), batch.bytes(item.headers), &mut pairs)?;
        for (name, value) in pairs {
            put(out, name, value.unwrap_or(&[]))?;
        }
    }
    if !item.key.is_null() && value_of(out, b"KEYS").is_none() {
        put(out, b"KEYS", batch.bytes(item.key))?;
    }
    Some(())
}

fn put(out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> Option<()> {
    if memchr::memchr2(1, 2, name).is_some() || memchr::memchr2(1, 2, value).is_some() {
        return None;
    }
    out.extend_from_slice(name);
    out.push(1);
    out.extend_from_slice(value);
    out.push(2);
    Some(())
}
