//! One message of the commit log.
//!
//! ```text
//!  0 size i32 · 4 magic · 8 body CRC-32 & 2^31−1 · 12 queue · 16 flag · 20 queue offset i64 · 28 own address i64
//! 36 sys flag · 40 born time i64 · 48 born host (4 or 16 bytes, port i32) · store time i64 · store host
//!    reconsume times i32 · prepared offset i64 · body length i32, body · topic length (1 byte; 2 in v2), topic
//!    properties length i16, properties: (name 1 value 2)*
//! ```
//! Only the body has a checksum, unless the last property is `__CRC32#`: that one covers all that precedes it.

use std::ops::Range;

pub const MAGIC: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
/// Without body, topic and properties, both hosts IPv4.
pub const FIXED: usize = 91;
/// A blank at the end of a file.
pub const BLANK: usize = 8;
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
pub const FLAG_COMPRESSED: i32 = 0x1;
pub const FLAG_TRANSACTION: i32 = 0xC;
pub const FLAG_PREPARED: i32 = 0x4;
pub const FLAG_ROLLBACK: i32 = 0xC;
const FLAG_BORN_V6: i32 = 0x10;
const FLAG_STORE_V6: i32 = 0x20;
pub const CRC_NAME: &[u8] = b"__CRC32#\x01";
/// Name, ten digits, end.
pub const CRC_PROPERTY: usize = CRC_NAME.len() + 11;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub size: usize,
    pub body_crc: u32,
    pub queue: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub address: i64,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub store_ms: i64,
    pub body: Range<usize>,
    pub topic: Range<usize>,
    pub properties: Range<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    Message(View),
    /// The rest of the file is not used.
    Blank(usize),
    /// Nothing was written here yet.
    End,
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn i64_at(bytes: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The size and magic at a place.
pub fn extent(bytes: &[u8]) -> Option<(usize, u32)> {
    let size = usize::try_from(i32_at(bytes, 0)?).ok()?;
    Some((size, i32_at(bytes, 4)? as u32))
}

/// A whole message (or blank) at the beginning of `bytes`, which lies at `address`. Lengths must add up, and the
/// message must say the same address.
pub fn parse(bytes: &[u8], address: u64) -> Result<Parsed, &'static str> {
    let (size, magic) = extent(bytes).ok_or("fewer bytes than a message needs")?;
    match magic {
        0 if size == 0 => return Ok(Parsed::End),
        MAGIC_BLANK if size >= BLANK => return Ok(Parsed::Blank(size)),
        MAGIC | MAGIC_V2 => {}
        _ => return Err("no message begins here"),
    }
    if !(FIXED..=MESSAGE_BYTES_MAX).contains(&size) || size > bytes.len() {
        return Err("a size that cannot be");
    }
    let bytes = &bytes[..size];
    let view = fields(bytes, magic).ok_or("lengths that do not add up")?;
    if view.properties.end != size {
        return Err("lengths that do not add up");
    }
    if view.address as u64 != address {
        return Err("another address than its own");
    }
    Ok(Parsed::Message(view))
}

fn fields(bytes: &[u8], magic: u32) -> Option<View> {
    let sys_flag = i32_at(bytes, 36)?;
    let host = |v6: i32| if sys_flag & v6 != 0 { 20 } else { 8 };
    let store_at = 48 + host(FLAG_BORN_V6);
    let mut at = store_at + 8 + host(FLAG_STORE_V6) + 4 + 8;
    let mut take = |width: usize| {
        let length = match width {
            1 => usize::from(*bytes.get(at)?),
            2 => usize::from(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?)),
            _ => usize::try_from(i32_at(bytes, at)?).ok()?,
        };
        at += width;
        let range = at..at.checked_add(length).filter(|end| *end <= bytes.len())?;
        at = range.end;
        Some(range)
    };
    let (body, topic) = (take(4)?, take(if magic == MAGIC_V2 { 2 } else { 1 })?);
    let properties = take(2)?;
    Some(View {
        size: bytes.len(),
        body_crc: i32_at(bytes, 8)? as u32,
        queue: i32_at(bytes, 12)?,
        flag: i32_at(bytes, 16)?,
        queue_offset: i64_at(bytes, 20)?,
        address: i64_at(bytes, 28)?,
        sys_flag,
        born_ms: i64_at(bytes, 40)?,
        store_ms: i64_at(bytes, store_at)?,
        body,
        topic,
        properties,
    })
}

pub fn crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & 0x7FFF_FFFF
}

/// Ten digits, the last one first.
pub fn crc_digits(value: u32) -> [u8; 10] {
    let mut rest = value;
    std::array::from_fn(|_| {
        let digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        digit
    })
}

impl View {
    /// Every checksum that the message has.
    pub fn check(&self, bytes: &[u8]) -> Result<(), &'static str> {
        let properties = &bytes[self.properties.clone()];
        if properties.len() >= CRC_PROPERTY {
            let own = &properties[properties.len() - CRC_PROPERTY..];
            if own.starts_with(CRC_NAME) {
                let right = crc_digits(crc(&bytes[..self.size - CRC_PROPERTY]));
                return if own[CRC_NAME.len()..CRC_PROPERTY - 1] == right {
                    Ok(())
                } else {
                    Err("the checksum differs")
                };
            }
        }
        if crc(&bytes[self.body.clone()]) == self.body_crc { Ok(()) } else { Err("the body's checksum differs") }
    }

    /// Prepared and rolled-back messages are in no queue.
    pub fn is_queued(&self) -> bool {
        !matches!(self.sys_flag & FLAG_TRANSACTION, FLAG_PREPARED | FLAG_ROLLBACK)
    }

    pub fn property<'a>(&self, bytes: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
        let pairs = bytes[self.properties.clone()].split(|byte| *byte == 2);
        pairs.filter_map(|pair| pair.split_once_at(1)).find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// What a queue entry has of the tag: Java's hash of its text.
    pub fn tag_code(&self, bytes: &[u8]) -> i64 {
        self.property(bytes, b"TAGS").filter(|tag| !tag.is_empty()).map_or(0, |tag| i64::from(java_hash(tag)))
    }
}

/// `String.hashCode`.
pub fn java_hash(text: &[u8]) -> i32 {
    let units = String::from_utf8_lossy(text);
    units.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

trait SplitOnce {
    fn split_once_at(&self, byte: u8) -> Option<(&[u8], &[u8])>;
}

impl SplitOnce for [u8] {
    fn split_once_at(&self, byte: u8) -> Option<(&[u8], &[u8])> {
        let at = memchr::memchr(byte, self)?;
        Some((&self[..at], &self[at + 1..]))
    }
}
