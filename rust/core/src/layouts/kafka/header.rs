//! One batch: a record batch of format 2, or one message (perhaps a compressed set) of formats 0 and 1.
//!
//! ```text
//!            0          8        12       16    17                                      61
//! format 2   baseOffset | length | epoch  | 2 | crc32c | attributes lastDelta baseTime maxTime pid pepoch seq count | records
//!                                               covers  ^ from here to the end
//! format 0/1 offset     | size   | crc32  | m | attributes [time, 1 only] | key length, key | value length, value
//!                                 covers  ^ from the magic to the end
//! ```
//! Offset, length and (format 2) leader epoch, magic and the checksum itself are covered by nothing.

use super::codec::Codec;

/// Before this field nothing says how long the batch is.
pub const LENGTH_AT: usize = 8;
pub const EPOCH_AT: usize = 12;
pub const OVERHEAD: usize = 12;
pub const MAGIC_AT: usize = 16;
/// Enough to know the format.
pub const PREFIX: usize = MAGIC_AT + 1;
pub const CRC_AT_V2: usize = 17;
pub const CRC_FROM_V2: usize = 21;
pub const HEADER_V2: usize = 61;
pub const CRC_AT_OLD: usize = 12;
pub const ATTRIBUTES_OLD: usize = 17;
/// Size without key and value.
pub const FIXED_V0: usize = 26;
pub const FIXED_V1: usize = 34;

pub const ATTRIBUTE_APPEND_TIME: i16 = 0x08;
pub const ATTRIBUTE_TRANSACTIONAL: i16 = 0x10;
pub const ATTRIBUTE_CONTROL: i16 = 0x20;
pub const ATTRIBUTE_HORIZON: i16 = 0x40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub base: i64,
    pub last: i64,
    /// Of the whole batch, with its first twelve bytes.
    pub size: usize,
    pub magic: u8,
    pub crc: u32,
    pub attributes: i16,
    pub leader_epoch: i32,
    /// Milliseconds; −1 where there is none.
    pub base_time: i64,
    pub max_time: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    /// Messages; −1 where only decompressing shows it.
    pub count: i32,
}

fn be<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("N bytes")
}

/// What the first 17 bytes say: (size, magic).
pub fn extent(bytes: &[u8]) -> Result<(usize, u8), &'static str> {
    if bytes.len() < PREFIX {
        return Err("fewer bytes than a batch needs");
    }
    let length = i32::from_be_bytes(be(bytes, LENGTH_AT));
    let magic = bytes[MAGIC_AT];
    let least = match magic {
        0 => FIXED_V0,
        1 => FIXED_V1,
        2 => HEADER_V2,
        _ => return Err("unknown message format"),
    };
    let size = usize::try_from(length).map_err(|_| "a negative length")? + OVERHEAD;
    if size < least { Err("a length too small for its format") } else { Ok((size, magic)) }
}

impl Header {
    /// The fields, as far as they can be right at all. The checksum is another question.
    pub fn parse(bytes: &[u8]) -> Result<Header, &'static str> {
        let (size, magic) = extent(bytes)?;
        let base = i64::from_be_bytes(be(bytes, 0));
        if base < 0 {
            return Err("a negative offset");
        }
        if magic < 2 {
            return Self::parse_old(bytes, base, size, magic);
        }
        if bytes.len() < HEADER_V2 {
            return Err("fewer bytes than a batch needs");
        }
        let i64_at = |at| i64::from_be_bytes(be(bytes, at));
        let i32_at = |at| i32::from_be_bytes(be(bytes, at));
        let (delta, count) = (i32_at(23), i32_at(57));
        let last = base.checked_add(i64::from(delta)).ok_or("offsets beyond 63 bits")?;
        if delta < 0 || count < 0 || i64::from(count) > i64::from(delta) + 1 {
            return Err("more messages than offsets");
        }
        let attributes = i16::from_be_bytes(be(bytes, 21));
        if Codec::of_attributes(attributes).is_none() {
            return Err("unknown compression");
        }
        Ok(Header {
            base,
            last,
            size,
            magic,
            crc: u32::from_be_bytes(be(bytes, CRC_AT_V2)),
            attributes,
            leader_epoch: i32_at(EPOCH_AT),
            base_time: i64_at(27),
            max_time: i64_at(35),
            producer_id: i64_at(43),
            producer_epoch: i16::from_be_bytes(be(bytes, 51)),
            base_sequence: i32_at(53),
            count,
        })
    }

    fn parse_old(bytes: &[u8], base: i64, size: usize, magic: u8) -> Result<Header, &'static str> {
        let fixed = if magic == 0 { FIXED_V0 } else { FIXED_V1 };
        if bytes.len() < fixed {
            return Err("fewer bytes than a message needs");
        }
        let attributes = i16::from(bytes[ATTRIBUTES_OLD]);
        let codec = Codec::of_attributes(attributes).filter(|codec| *codec != Codec::Zstd);
        let codec = codec.ok_or("unknown compression")?;
        let time = if magic == 0 { -1 } else { i64::from_be_bytes(be(bytes, ATTRIBUTES_OLD + 1)) };
        Ok(Header {
            base,
            last: base,
            size,
            magic,
            crc: u32::from_be_bytes(be(bytes, CRC_AT_OLD)),
            attributes,
            leader_epoch: -1,
            base_time: time,
            max_time: time,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            count: if codec == Codec::None { 1 } else { -1 },
        })
    }

    pub fn codec(&self) -> Codec {
        Codec::of_attributes(self.attributes).unwrap_or(Codec::None)
    }

    pub fn is_control(&self) -> bool {
        self.attributes & ATTRIBUTE_CONTROL != 0
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & ATTRIBUTE_TRANSACTIONAL != 0
    }

    /// The checksum of a whole batch, as its format wants it.
    pub fn checksum(&self, batch: &[u8]) -> u32 {
        if self.magic == 2 { crc32c::crc32c(&batch[CRC_FROM_V2..]) } else { crc32fast::hash(&batch[MAGIC_AT..]) }
    }

    pub fn is_intact(&self, batch: &[u8]) -> bool {
        batch.len() == self.size && self.checksum(batch) == self.crc
    }

    /// Where the checksum stands.
    pub fn crc_at(&self) -> usize {
        if self.magic == 2 { CRC_AT_V2 } else { CRC_AT_OLD }
    }
}

/// CRC-32C, as batches and producer snapshots have it.
pub fn crc32c_of(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
}
