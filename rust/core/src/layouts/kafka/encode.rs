//! Messages → batches of any format, and batches that came from elsewhere → batches with offsets of this log.

use super::codec::{self, Codec};
use super::header::{
    ATTRIBUTE_APPEND_TIME, CRC_AT_V2, CRC_FROM_V2, EPOCH_AT, FIXED_V0, FIXED_V1, HEADER_V2, Header, LENGTH_AT,
    MAGIC_AT, OVERHEAD,
};
use super::records::{self, Sink};
use crate::batch::{Batch, Entry, HeaderCodec, Span, flags};
use crate::columns::header_pairs;
use crate::varint;

const NS_PER_MS: i64 = 1_000_000;

#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("message {at} of {size} bytes is larger than max.message.bytes, {max}")]
    TooLarge { at: usize, size: usize, max: usize },
    #[error("message {at}: format {magic} has no place for headers; write format 2, or leave them out")]
    NoHeaders { at: usize, magic: u8 },
    #[error("message {at}: position {given} is not above the last one, {last}")]
    NotAbove { at: usize, given: i64, last: i64 },
    #[error("message {at}: its header block is not one of Kafka's: a header count, then names and values")]
    BadHeaders { at: usize },
    #[error("offsets end at 2^63")]
    OffsetsEnd,
    #[error("compressing failed: {0}")]
    Codec(#[from] std::io::Error),
    #[error("batch at byte {at}: {why}")]
    BadFrame { at: usize, why: String },
}

pub struct EncodeRules {
    pub first: i64,
    /// Take the batch's own positions instead of counting on.
    pub keep_positions: bool,
    pub now_ms: i64,
    pub magic: u8,
    pub codec: Codec,
    pub level: Option<i32>,
    /// A batch is closed when it has this many bytes before compression.
    pub batch_bytes: usize,
    pub message_bytes_max: usize,
    pub leader_epoch: i32,
    /// Every message has the time of now.
    pub append_time: bool,
}

/// Batches ready to be written, in order.
#[derive(Default)]
pub struct Encoded {
    pub bytes: Vec<u8>,
    pub pieces: Vec<Piece>,
    pub messages: u64,
    pub first: i64,
    pub next: i64,
}

#[derive(Debug, Clone, Copy)]
pub struct Piece {
    pub at: usize,
    pub header: Header,
    pub messages: u64,
}

impl Encoded {
    pub fn max_time(&self) -> i64 {
        self.pieces.iter().map(|piece| piece.header.max_time).max().unwrap_or(-1)
    }

    pub fn piece(&self, piece: &Piece) -> &[u8] {
        &self.bytes[piece.at..piece.at + piece.header.size]
    }

    /// A whole batch stands at `at` of the bytes.
    fn close(&mut self, at: usize, messages: u64) {
        let header = Header::parse(&self.bytes[at..]).expect("what was just written");
        self.pieces.push(Piece { at, header, messages });
        self.next = header.last + 1;
    }
}

pub fn encode(batch: &Batch, rules: &EncodeRules) -> Result<Encoded, EncodeError> {
    let mut out = Encoded { first: rules.first, next: rules.first, ..Encoded::default() };
    out.bytes.reserve(batch.payload_bytes() as usize + batch.len() * 24 + HEADER_V2);
    let mut group = Group::default();
    for (at, entry) in batch.entries().iter().enumerate() {
        if entry.flags & (flags::PLACEHOLDER | flags::CONTROL) != 0 {
            continue;
        }
        let offset = if rules.keep_positions {
            let given = i64::try_from(entry.position).map_err(|_| EncodeError::OffsetsEnd)?;
            let last = if group.count > 0 { group.last } else { out.next - 1 };
            if given <= last {
                return Err(EncodeError::NotAbove { at, given, last });
            }
            given
        } else {
            rules.first.checked_add(out.messages as i64).ok_or(EncodeError::OffsetsEnd)?
        };
        if offset == i64::MAX {
            return Err(EncodeError::OffsetsEnd);
        }
        if out.messages == 0 {
            out.first = offset;
        }
        let size = size_of(batch, entry, rules.magic);
        if HEADER_V2 + size > rules.message_bytes_max {
            return Err(EncodeError::TooLarge { at, size, max: rules.message_bytes_max });
        }
        let full = group.count > 0 && group.records.len() + size > rules.batch_bytes.min(rules.message_bytes_max);
        let far = group.count > 0 && offset - group.base > i64::from(i32::MAX);
        // Formats 0 and 1 know no batches: without compression every message stands alone.
        if full || far || (rules.magic < 2 && rules.codec == Codec::None && group.count > 0) {
            group.flush(&mut out, rules)?;
        }
        group.add(batch, at, entry, offset, rules)?;
        out.messages += 1;
    }
    group.flush(&mut out, rules)?;
    Ok(out)
}

/// At most: the fields, and room for the lengths.
fn size_of(batch: &Batch, entry: &Entry, magic: u8) -> usize {
    let fixed = if magic == 2 { 32 } else { FIXED_V1 };
    let headers = if batch.codec() == HeaderCodec::Kafka { entry.headers.size() } else { entry.headers.size() * 2 };
    fixed + entry.key.size() + entry.data.size() + headers
}

#[derive(Default)]
struct Group {
    records: Vec<u8>,
    headers: Vec<u8>,
    count: i32,
    base: i64,
    last: i64,
    base_time: i64,
    max_time: i64,
}

impl Group {
    fn add(
        &mut self,
        batch: &Batch,
        at: usize,
        entry: &Entry,
        offset: i64,
        rules: &EncodeRules,
    ) -> Result<(), EncodeError> {
        let own = entry.time.div_euclid(NS_PER_MS);
        let time = if rules.append_time || entry.time == 0 { rules.now_ms } else { own };
        if self.count == 0 {
            (self.base, self.base_time, self.max_time) = (offset, time, time);
        }
        self.max_time = self.max_time.max(time);
        self.last = offset;
        if rules.magic < 2 {
            if !entry.headers.is_null() {
                return Err(EncodeError::NoHeaders { at, magic: rules.magic });
            }
            // Inside a set of format 1 offsets count from 0.
            let inner = rules.magic == 1 && rules.codec != Codec::None;
            let shown = if inner { i64::from(self.count) } else { offset };
            let (key, data) = (optional(batch, entry.key), optional(batch, entry.data));
            put_old(&mut self.records, rules.magic, shown, 0, time, key, data);
        } else {
            self.headers.clear();
            raw_headers(batch, entry, &mut self.headers).ok_or(EncodeError::BadHeaders { at })?;
            let (time, delta) = (time - self.base_time, offset - self.base);
            let (key, data) = (optional(batch, entry.key), optional(batch, entry.data));
            let field = |bytes: Option<&[u8]>| bytes.map_or(1, |b| varint::varint_size(b.len() as i64) + b.len());
            let length = 1
                + varint::varint_size(time)
                + varint::varint_size(delta)
                + field(key)
                + field(data)
                + self.headers.len();
            let out = &mut self.records;
            varint::put_varint(out, length as i64);
            out.push(0);
            varint::put_varint(out, time);
            varint::put_varint(out, delta);
            put_field(out, key);
            put_field(out, data);
            out.extend_from_slice(&self.headers);
        }
        self.count += 1;
        Ok(())
    }

    fn flush(&mut self, out: &mut Encoded, rules: &EncodeRules) -> Result<(), EncodeError> {
        if self.count == 0 {
            return Ok(());
        }
        let at = out.bytes.len();
        let append_time = if rules.append_time { ATTRIBUTE_APPEND_TIME } else { 0 };
        let attributes = rules.codec.id() | append_time;
        let packed;
        let records = if rules.codec == Codec::None {
            &self.records[..]
        } else {
            packed = codec::compress(rules.codec, &self.records, rules.magic, rules.level)?;
            &packed
        };
        if rules.magic == 2 {
            let bytes = &mut out.bytes;
            bytes.extend_from_slice(&self.base.to_be_bytes());
            bytes.extend_from_slice(&((HEADER_V2 - OVERHEAD + records.len()) as i32).to_be_bytes());
            bytes.extend_from_slice(&rules.leader_epoch.to_be_bytes());
            bytes.push(2);
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&attributes.to_be_bytes());
            bytes.extend_from_slice(&((self.last - self.base) as i32).to_be_bytes());
            bytes.extend_from_slice(&self.base_time.to_be_bytes());
            bytes.extend_from_slice(&self.max_time.to_be_bytes());
            bytes.extend_from_slice(&(-1i64).to_be_bytes());
            bytes.extend_from_slice(&(-1i16).to_be_bytes());
            bytes.extend_from_slice(&(-1i32).to_be_bytes());
            bytes.extend_from_slice(&self.count.to_be_bytes());
            bytes.extend_from_slice(records);
            let crc = crc32c::crc32c(&bytes[at + CRC_FROM_V2..]);
            bytes[at + CRC_AT_V2..at + CRC_FROM_V2].copy_from_slice(&crc.to_be_bytes());
        } else if rules.codec == Codec::None {
            out.bytes.extend_from_slice(records);
        } else {
            put_old(&mut out.bytes, rules.magic, self.last, attributes, self.max_time, None, Some(records));
        }
        out.close(at, self.count as u64);
        self.records.clear();
        self.count = 0;
        Ok(())
    }
}

fn optional(batch: &Batch, span: Span) -> Option<&[u8]> {
    (!span.is_null()).then(|| batch.bytes(span))
}

fn put_field(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    varint::put_varint(out, bytes.map_or(-1, |bytes| bytes.len() as i64));
    out.extend_from_slice(bytes.unwrap_or(&[]));
}

fn put_old(
    out: &mut Vec<u8>,
    magic: u8,
    offset: i64,
    attributes: i16,
    time: i64,
    key: Option<&[u8]>,
    data: Option<&[u8]>,
) {
    let start = out.len();
    let size = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
    let fixed = if magic == 0 { FIXED_V0 } else { FIXED_V1 };
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&((fixed - OVERHEAD + size(key) + size(data)) as i32).to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.push(magic);
    out.push(attributes as u8);
    if magic == 1 {
        out.extend_from_slice(&time.to_be_bytes());
    }
    for bytes in [key, data] {
        out.extend_from_slice(&bytes.map_or(-1, |bytes| bytes.len() as i32).to_be_bytes());
        out.extend_from_slice(bytes.unwrap_or(&[]));
    }
    let crc = crc32fast::hash(&out[start + MAGIC_AT..]);
    out[start + EPOCH_AT..start + MAGIC_AT].copy_from_slice(&crc.to_be_bytes());
}

/// The header block of format 2: as it is when it came from Kafka, else made of the pairs.
fn raw_headers(batch: &Batch, entry: &Entry, out: &mut Vec<u8>) -> Option<()> {
    if entry.headers.is_null() {
        out.push(0);
        return Some(());
    }
    let raw = batch.bytes(entry.headers);
    let mut pairs = Vec::new();
    header_pairs(batch.codec(), raw, &mut pairs)?;
    if batch.codec() == HeaderCodec::Kafka {
        out.extend_from_slice(raw);
        return Some(());
    }
    varint::put_varint(out, pairs.len() as i64);
    for (name, value) in pairs {
        put_field(out, Some(name));
        put_field(out, value);
    }
    Some(())
}

/// Batches in Kafka's own encoding, checked and (unless they keep theirs) given offsets from `first` on. Compressed
/// ones of format 2 are not opened: their count is believed, as it is covered by the checksum.
pub fn from_frames(
    bytes: &[u8],
    first: i64,
    keep_offsets: bool,
    leader_epoch: i32,
    inflated_max: usize,
) -> Result<Encoded, EncodeError> {
    let mut out = Encoded { bytes: bytes.to_vec(), first, next: first, ..Encoded::default() };
    let mut at = 0;
    while at < bytes.len() {
        let bad = |why: &str| EncodeError::BadFrame { at, why: why.to_owned() };
        let header = Header::parse(&bytes[at..]).map_err(bad)?;
        let end = at.checked_add(header.size).filter(|end| *end <= bytes.len());
        let end = end.ok_or_else(|| bad("cut"))?;
        if !header.is_intact(&bytes[at..end]) {
            return Err(bad("the checksum differs"));
        }
        let least = out.next;
        if keep_offsets {
            if header.base < least {
                return Err(bad("its offsets are not above the last one"));
            }
        } else if header.magic < 2 {
            return Err(bad("message sets of formats 0 and 1 keep their offsets; convert them to format 2"));
        } else {
            if i64::from(header.count) != header.last - header.base + 1 {
                return Err(bad("it has fewer messages than offsets"));
            }
            out.bytes[at..at + LENGTH_AT].copy_from_slice(&least.to_be_bytes());
            out.bytes[at + EPOCH_AT..at + MAGIC_AT].copy_from_slice(&leader_epoch.to_be_bytes());
        }
        if out.pieces.is_empty() {
            out.first = if keep_offsets { header.base } else { least };
        }
        let messages = match u64::try_from(header.count) {
            Ok(count) => count,
            Err(_) => {
                let (mut buffer, mut entries) = (bytes[at..end].to_vec(), Vec::new());
                let mut sink = Sink { buffer: &mut buffer, entries: &mut entries, subject: Span::NULL, inflated_max };
                records::decode(&mut sink, 0, &header).map_err(|why| bad(&why.to_string()))?;
                entries.len() as u64
            }
        };
        out.messages += messages;
        out.close(at, messages);
        at = end;
    }
    Ok(out)
}
