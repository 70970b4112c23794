//! A batch as Arrow buffers: offsets, bytes and validity, laid out as Arrow wants them, so that Python only
//! wraps them. Strings must be UTF-8; what is not is replaced, never refused.
//!
//! ```text
//! fixed      values (i64)
//! bytes      validity (bits; empty = all valid) | offsets (i32, n+1) | bytes
//! headers    map<string, list<string>>:
//!            validity | map offsets | name offsets | name bytes | list offsets | value offsets | value bytes
//! ```

use std::ops::Range;

use crate::batch::{Batch, Entry, HeaderCodec, Span};
use crate::layouts::kafka::varint;
use crate::layouts::rabbitmq::props::{Text, each_text};

#[derive(Debug, thiserror::Error)]
#[error("the column {0} would hold more than 2 GiB; ask for fewer messages at once")]
pub struct ColumnTooLarge(pub &'static str);

type Buffers = Result<Vec<Vec<u8>>, ColumnTooLarge>;

pub fn positions(batch: &Batch) -> Vec<u8> {
    fixed(batch, |entry| entry.position as i64)
}

pub fn times_ns(batch: &Batch) -> Vec<u8> {
    fixed(batch, |entry| entry.time)
}

/// Whole microseconds, rounded down: Spark's and Arrow's timestamp here.
pub fn times_us(batch: &Batch) -> Vec<u8> {
    fixed(batch, |entry| entry.time.div_euclid(1000))
}

fn fixed(batch: &Batch, value: impl Fn(&Entry) -> i64) -> Vec<u8> {
    let mut out = Vec::with_capacity(batch.len() * 8);
    for entry in batch.entries() {
        out.extend_from_slice(&value(entry).to_le_bytes());
    }
    out
}

pub fn subjects(batch: &Batch) -> Buffers {
    let mut column = Strings::new("subject", batch.len());
    column.bytes.reserve(batch.entries().iter().map(|entry| entry.subject.size()).sum());
    for entry in batch.entries() {
        column.push(batch.bytes(entry.subject))?;
    }
    // Mostly plain ASCII, which is checked at once for all; otherwise one by one.
    if !column.bytes.is_ascii() {
        column = Strings::new("subject", batch.len());
        for entry in batch.entries() {
            column.push_text(batch.bytes(entry.subject))?;
        }
    }
    Ok(vec![Vec::new(), column.offsets, column.bytes])
}

pub fn keys(batch: &Batch) -> Buffers {
    binary(batch, "key", |entry| entry.key)
}

/// As they are stored, in the batch's own codec: what an archive needs to give them back byte for byte.
pub fn raw_headers(batch: &Batch) -> Buffers {
    binary(batch, "headers_raw", |entry| entry.headers)
}

pub fn data(batch: &Batch) -> Buffers {
    binary(batch, "data", |entry| entry.data)
}

fn binary(batch: &Batch, name: &'static str, span: impl Fn(&Entry) -> Span) -> Buffers {
    let mut column = Strings::new(name, batch.len());
    column.bytes.reserve(batch.entries().iter().map(|entry| span(entry).size()).sum());
    let mut validity = Validity::default();
    for entry in batch.entries() {
        validity.push(!span(entry).is_null());
        column.push(batch.bytes(span(entry)))?;
    }
    Ok(vec![validity.finish(), column.offsets, column.bytes])
}

/// Names in the order of their first appearance, each with all its values in order.
pub fn headers(batch: &Batch) -> Buffers {
    let mut validity = Validity::default();
    let mut map_offsets = offsets_with_capacity(batch.len());
    let mut names = Strings::new("headers", batch.len());
    let mut list_offsets = offsets_with_capacity(batch.len());
    let mut values = Strings::new("headers", batch.len());
    let (mut name_count, mut value_count) = (0i32, 0i32);
    let mut seen: Vec<(&[u8], Vec<&[u8]>)> = Vec::new();
    let mut pairs: Vec<HeaderPair<'_>> = Vec::new();
    let (mut pieces, mut last_raw): (Vec<(bool, Range<usize>)>, &[u8]) = (Vec::new(), b"");
    for entry in batch.entries() {
        validity.push(!entry.headers.is_null());
        seen.clear();
        pairs.clear();
        if !entry.headers.is_null() && batch.codec() == HeaderCodec::Amqp {
            let raw = batch.bytes(entry.headers);
            // Messages of one batch mostly have the same properties: decode them once.
            if pieces.is_empty() || last_raw != raw {
                last_raw = raw;
                pieces.clear();
                let mut open: Option<&[u8]> = None;
                each_text(raw, |name, value| {
                    if open.replace(name) != Some(name) {
                        pieces.push((true, names.push_text(name)?));
                    }
                    let at = match value {
                        Text::Bytes(bytes) => values.push_text(bytes),
                        Text::Signed(value) => values.push(itoa::Buffer::new().format(value).as_bytes()),
                        Text::Unsigned(value) => values.push(itoa::Buffer::new().format(value).as_bytes()),
                        Text::Made(text) => values.push(text.as_bytes()),
                    };
                    pieces.push((false, at?));
                    Ok(())
                })?;
            } else {
                for (is_name, at) in &pieces {
                    if *is_name { names.push_again(at.clone())? } else { values.push_again(at.clone())? }
                }
            }
            for (number, (is_name, _)) in pieces.iter().enumerate() {
                if *is_name {
                    name_count += 1;
                    continue;
                }
                value_count += 1;
                if pieces.get(number + 1).is_none_or(|(next_is_name, _)| *next_is_name) {
                    list_offsets.extend_from_slice(&value_count.to_le_bytes());
                }
            }
        } else if !entry.headers.is_null() {
            // What cannot be read as headers shows none.
            let _ = header_pairs(batch.codec(), batch.bytes(entry.headers), &mut pairs);
        }
        if distinct(&pairs) {
            for (name, value) in pairs.drain(..) {
                names.push_text(name)?;
                values.push_text(value.unwrap_or(&[]))?;
                (name_count, value_count) = (name_count + 1, value_count + 1);
                list_offsets.extend_from_slice(&value_count.to_le_bytes());
            }
        }
        for (name, value) in &pairs {
            let value = value.unwrap_or(&[]);
            match seen.iter_mut().find(|(known, _)| known == name) {
                Some((_, list)) => list.push(value),
                None => seen.push((name, vec![value])),
            }
        }
        for (name, list) in &seen {
            names.push_text(name)?;
            for value in list {
                values.push_text(value)?;
                value_count += 1;
            }
            name_count += 1;
            list_offsets.extend_from_slice(&value_count.to_le_bytes());
        }
        map_offsets.extend_from_slice(&name_count.to_le_bytes());
    }
    Ok(vec![validity.finish(), map_offsets, names.offsets, names.bytes, list_offsets, values.offsets, values.bytes])
}

/// Whether no name comes twice.
fn distinct(pairs: &[HeaderPair<'_>]) -> bool {
    pairs.iter().enumerate().all(|(at, (name, _))| pairs[..at].iter().all(|(known, _)| known != name))
}

/// A header's name and its value, which may be null where the codec knows that.
pub type HeaderPair<'a> = (&'a [u8], Option<&'a [u8]>);

/// The headers of one message in their order. None when the block is not what its codec says.
pub fn header_pairs<'a>(codec: HeaderCodec, block: &'a [u8], pairs: &mut Vec<HeaderPair<'a>>) -> Option<()> {
    match codec {
        HeaderCodec::Nats => nats_headers(block, pairs),
        HeaderCodec::Kafka => return kafka_headers(block, pairs),
        HeaderCodec::RocketMq => rocketmq_properties(block, pairs),
        HeaderCodec::None | HeaderCodec::Amqp => {}
    }
    Some(())
}

fn nats_headers<'a>(block: &'a [u8], pairs: &mut Vec<HeaderPair<'a>>) {
    let mut rest = block;
    let mut first = true;
    while let Some(end) = memchr::memchr_iter(b'\r', rest).find(|at| rest.get(at + 1) == Some(&b'\n')) {
        let line = &rest[..end];
        rest = &rest[end + 2..];
        if std::mem::take(&mut first) {
            continue;
        }
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        pairs.push((&line[..colon], Some(line[colon + 1..].trim_ascii())));
    }
}

/// `name 1 value 2`, repeated; the checksum that some stores put at the end is not the sender's.
fn rocketmq_properties<'a>(block: &'a [u8], pairs: &mut Vec<HeaderPair<'a>>) {
    for pair in block.split(|byte| *byte == 2) {
        let Some(at) = memchr::memchr(1, pair) else { continue };
        if &pair[..at] != b"__CRC32#" {
            pairs.push((&pair[..at], Some(&pair[at + 1..])));
        }
    }
}

/// A count, then names and values, all lengths zig-zag varints; a value of length −1 is null.
fn kafka_headers<'a>(block: &'a [u8], pairs: &mut Vec<HeaderPair<'a>>) -> Option<()> {
    let mut at = 0;
    let count = usize::try_from(varint::read(block, &mut at)?).ok()?;
    for _ in 0..count {
        let mut field = || {
            let length = varint::read(block, &mut at)?;
            if length == -1 {
                return Some(None);
            }
            let bytes = block.get(at..at.checked_add(usize::try_from(length).ok()?)?)?;
            at += bytes.len();
            Some(Some(bytes))
        };
        pairs.push((field()??, field()?));
    }
    (at == block.len()).then_some(())
}

fn offsets_with_capacity(count: usize) -> Vec<u8> {
    let mut offsets = Vec::with_capacity((count + 1) * 4);
    offsets.extend_from_slice(&0i32.to_le_bytes());
    offsets
}

struct Strings {
    name: &'static str,
    offsets: Vec<u8>,
    bytes: Vec<u8>,
}

impl Strings {
    fn new(name: &'static str, count: usize) -> Strings {
        Strings { name, offsets: offsets_with_capacity(count), bytes: Vec::new() }
    }

    /// Where the bytes lie now.
    fn push(&mut self, bytes: &[u8]) -> Result<Range<usize>, ColumnTooLarge> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.end()?;
        Ok(start..self.bytes.len())
    }

    /// The same value once more.
    fn push_again(&mut self, at: Range<usize>) -> Result<(), ColumnTooLarge> {
        self.bytes.extend_from_within(at);
        self.end()
    }

    fn end(&mut self) -> Result<(), ColumnTooLarge> {
        let end = i32::try_from(self.bytes.len()).map_err(|_| ColumnTooLarge(self.name))?;
        self.offsets.extend_from_slice(&end.to_le_bytes());
        Ok(())
    }

    fn push_text(&mut self, bytes: &[u8]) -> Result<Range<usize>, ColumnTooLarge> {
        if bytes.is_ascii() {
            return self.push(bytes);
        }
        self.push(String::from_utf8_lossy(bytes).as_bytes())
    }
}

#[derive(Default)]
struct Validity {
    bits: Vec<u8>,
    count: usize,
    any_null: bool,
}

impl Validity {
    fn push(&mut self, valid: bool) {
        if self.count % 8 == 0 {
            self.bits.push(0);
        }
        if valid {
            self.bits[self.count / 8] |= 1 << (self.count % 8);
        }
        self.any_null |= !valid;
        self.count += 1;
    }

    /// No buffer when nothing is null.
    fn finish(self) -> Vec<u8> {
        if self.any_null { self.bits } else { Vec::new() }
    }
}
