//! A batch as Arrow buffers: offsets, bytes and validity, laid out as Arrow wants them, so that Python only
//! wraps them. Strings must be UTF-8; what is not is replaced, never refused.
//!
//! ```text
//! positions  values (i64)
//! times      validity (bits; empty = all valid) | values (i64); null where a message has no time (0 in a batch)
//! bytes      validity (bits; empty = all valid) | offsets (i32, n+1) | bytes
//! headers    map<string, list<string>>:
//!            validity | map offsets | name offsets | name bytes | list offsets | value offsets | value bytes
//! ```

use std::ops::Range;

use crate::batch::{Batch, Entry, HeaderCodec, Span, bytes_of};
use crate::large_buffer;
use crate::layouts::rabbitmq::props::{Text, each_text};
use crate::varint;

#[derive(Debug, thiserror::Error)]
pub enum ColumnError {
    #[error("the column {0} would hold more than 2 GiB; ask for fewer messages at once")]
    TooLarge(&'static str),
    #[error("no column {0:?}")]
    Unknown(String),
}

type Done = Result<(), ColumnError>;

/// So many messages stay in the processor's cache while every column takes its part of them.
const PIECE: usize = 1024;

/// Columns in the making: messages come piece by piece, and every column takes its part before the next piece comes.
pub struct Columns {
    codec: HeaderCodec,
    columns: Vec<Column>,
}

enum Column {
    Position(Vec<u8>),
    TimeUs(Vec<u8>),
    TimeNs(Vec<u8>),
    Subject(Strings),
    Key(Binary),
    RawHeaders(Binary),
    Data(Binary),
    Headers(Box<Headers>),
}

/// The columns `names` of a whole batch: for each its buffers.
pub fn of_batch(batch: &Batch, names: &[String]) -> Result<Vec<Vec<Vec<u8>>>, ColumnError> {
    let mut columns = Columns::new(names, batch.codec())?;
    columns.expect(batch.len(), batch.entries());
    for piece in batch.entries().chunks(PIECE) {
        columns.push(batch.buffer(), piece)?;
    }
    Ok(columns.finish())
}

impl Columns {
    pub fn new(names: &[String], codec: HeaderCodec) -> Result<Columns, ColumnError> {
        let one = |name: &String| {
            Ok(match name.as_str() {
                "seq" => Column::Position(Vec::new()),
                "time" => Column::TimeUs(Vec::new()),
                "time_ns" => Column::TimeNs(Vec::new()),
                "subject" => Column::Subject(Strings::new("subject")),
                "key" => Column::Key(Binary::new("key")),
                // As they are stored, in the batch's own codec: what an archive needs to give them back byte for byte.
                "headers_raw" => Column::RawHeaders(Binary::new("headers_raw")),
                "headers" => Column::Headers(Box::default()),
                "data" => Column::Data(Binary::new("data")),
                other => return Err(ColumnError::Unknown(other.to_string())),
            })
        };
        Ok(Columns { codec, columns: names.iter().map(one).collect::<Result<_, _>>()? })
    }

    /// Makes room for so many messages, the like of these.
    pub fn expect(&mut self, rows: usize, like: &[Entry]) {
        let sum = |span: fn(&Entry) -> Span| {
            like.iter().map(|entry| span(entry).size()).sum::<usize>() * rows.div_ceil(like.len().max(1))
        };
        for column in &mut self.columns {
            match column {
                Column::Position(out) | Column::TimeUs(out) | Column::TimeNs(out) => out.reserve(rows * 8),
                Column::Subject(out) => out.expect(rows, sum(|entry| entry.subject)),
                Column::Key(out) => out.values.expect(rows, sum(|entry| entry.key)),
                Column::RawHeaders(out) => out.values.expect(rows, sum(|entry| entry.headers)),
                Column::Data(out) => out.values.expect(rows, sum(|entry| entry.data)),
                Column::Headers(out) => out.map_offsets.reserve(rows * 4),
            }
        }
    }

    /// Messages whose spans point into `buffer`.
    pub fn push(&mut self, buffer: &[u8], entries: &[Entry]) -> Done {
        for column in &mut self.columns {
            match column {
                Column::Position(out) => fixed(out, entries, |entry| entry.position as i64),
                // Whole microseconds, rounded down: Spark's and Arrow's timestamp here.
                Column::TimeUs(out) => fixed(out, entries, |entry| time_or_none(entry.time, 1000)),
                Column::TimeNs(out) => fixed(out, entries, |entry| time_or_none(entry.time, 1)),
                Column::Subject(out) => subjects(out, buffer, entries)?,
                Column::Key(out) => out.push(buffer, entries, |entry| entry.key)?,
                Column::RawHeaders(out) => out.push(buffer, entries, |entry| entry.headers)?,
                Column::Data(out) => out.push(buffer, entries, |entry| entry.data)?,
                Column::Headers(out) => out.push(self.codec, buffer, entries)?,
            }
        }
        Ok(())
    }

    pub fn finish(self) -> Vec<Vec<Vec<u8>>> {
        let one = |column| match column {
            Column::Position(out) => vec![out],
            Column::TimeUs(out) | Column::TimeNs(out) => with_nulls(out),
            Column::Subject(out) => vec![Vec::new(), out.offsets, out.bytes],
            Column::Key(out) | Column::RawHeaders(out) | Column::Data(out) => {
                vec![out.validity.finish(), out.values.offsets, out.values.bytes]
            }
            Column::Headers(out) => out.finish(),
        };
        self.columns.into_iter().map(one).collect()
    }
}

/// Stands for "no time" while a column is made: no time in whole units is that small.
const NO_TIME: i64 = i64::MIN;

fn time_or_none(time: i64, unit: i64) -> i64 {
    if time == 0 { NO_TIME } else { time.div_euclid(unit).max(NO_TIME + 1) }
}

/// Validity and values; no validity where every message has a time.
fn with_nulls(mut values: Vec<u8>) -> Vec<Vec<u8>> {
    let none = NO_TIME.to_le_bytes();
    let mut validity = Validity::default();
    if values.chunks_exact(8).any(|value| value == none) {
        for value in values.chunks_exact_mut(8) {
            let there = value != none;
            validity.push(there);
            if !there {
                value.fill(0);
            }
        }
    }
    vec![validity.finish(), values]
}

fn fixed(out: &mut Vec<u8>, entries: &[Entry], value: impl Fn(&Entry) -> i64) {
    let start = out.len();
    out.resize(start + entries.len() * 8, 0);
    for (place, entry) in out[start..].chunks_exact_mut(8).zip(entries) {
        place.copy_from_slice(&value(entry).to_le_bytes());
    }
}

fn subjects(out: &mut Strings, buffer: &[u8], entries: &[Entry]) -> Done {
    let (start, count) = (out.bytes.len(), out.offsets.len());
    for entry in entries {
        out.push(bytes_of(buffer, entry.subject))?;
    }
    // Mostly plain ASCII, which is checked at once for all; otherwise one by one.
    if !out.bytes[start..].is_ascii() {
        out.bytes.truncate(start);
        out.offsets.truncate(count);
        for entry in entries {
            out.push_text(bytes_of(buffer, entry.subject))?;
        }
    }
    Ok(())
}

/// Bytes that may be null.
struct Binary {
    validity: Validity,
    values: Strings,
}

impl Binary {
    fn new(name: &'static str) -> Binary {
        Binary { validity: Validity::default(), values: Strings::new(name) }
    }

    fn push(&mut self, buffer: &[u8], entries: &[Entry], span: impl Fn(&Entry) -> Span) -> Done {
        for entry in entries {
            self.validity.push(!span(entry).is_null());
            self.values.push(bytes_of(buffer, span(entry)))?;
        }
        Ok(())
    }
}

/// Names in the order of their first appearance, each with all its values in order.
struct Headers {
    validity: Validity,
    map_offsets: Vec<u8>,
    names: Strings,
    list_offsets: Vec<u8>,
    values: Strings,
    name_count: i32,
    value_count: i32,
}

impl Default for Headers {
    fn default() -> Self {
        Headers {
            validity: Validity::default(),
            map_offsets: no_offsets(),
            names: Strings::new("headers"),
            list_offsets: no_offsets(),
            values: Strings::new("headers"),
            name_count: 0,
            value_count: 0,
        }
    }
}

impl Headers {
    fn push(&mut self, codec: HeaderCodec, buffer: &[u8], entries: &[Entry]) -> Done {
        let mut pairs: Vec<HeaderPair<'_>> = Vec::new();
        let mut same = Same { raw: b"", pieces: Vec::new() };
        for entry in entries {
            let there = !entry.headers.is_null();
            self.validity.push(there);
            if there && codec == HeaderCodec::Amqp {
                self.amqp(bytes_of(buffer, entry.headers), &mut same)?;
            } else if there {
                pairs.clear();
                // What cannot be read as headers shows none.
                let _ = header_pairs(codec, bytes_of(buffer, entry.headers), &mut pairs);
                self.pairs(&pairs)?;
            }
            self.map_offsets.extend_from_slice(&self.name_count.to_le_bytes());
        }
        Ok(())
    }

    fn pairs(&mut self, pairs: &[HeaderPair<'_>]) -> Done {
        if distinct(pairs) {
            for (name, value) in pairs {
                self.names.push_text(name)?;
                self.values.push_text(value.unwrap_or(&[]))?;
                self.name_count += 1;
                self.value_count += 1;
                self.end_list();
            }
            return Ok(());
        }
        let mut seen: Vec<(&[u8], Vec<&[u8]>)> = Vec::new();
        for (name, value) in pairs {
            let value = value.unwrap_or(&[]);
            match seen.iter_mut().find(|(known, _)| known == name) {
                Some((_, list)) => list.push(value),
                None => seen.push((name, vec![value])),
            }
        }
        for (name, list) in &seen {
            self.names.push_text(name)?;
            for value in list {
                self.values.push_text(value)?;
                self.value_count += 1;
            }
            self.name_count += 1;
            self.end_list();
        }
        Ok(())
    }

    /// Messages of one batch mostly have the same properties: they are decoded once.
    fn amqp<'a>(&mut self, raw: &'a [u8], same: &mut Same<'a>) -> Done {
        if same.pieces.is_empty() || same.raw != raw {
            same.raw = raw;
            same.pieces.clear();
            let mut open: Option<&[u8]> = None;
            each_text(raw, |name, value| {
                if open.replace(name) != Some(name) {
                    same.pieces.push((true, self.names.push_text(name)?));
                }
                let at = match value {
                    Text::Bytes(bytes) => self.values.push_text(bytes),
                    Text::Signed(value) => self.values.push(itoa::Buffer::new().format(value).as_bytes()),
                    Text::Unsigned(value) => self.values.push(itoa::Buffer::new().format(value).as_bytes()),
                    Text::Made(text) => self.values.push(text.as_bytes()),
                };
                same.pieces.push((false, at?));
                Ok::<(), ColumnError>(())
            })?;
        } else {
            for (is_name, at) in &same.pieces {
                let list = if *is_name { &mut self.names } else { &mut self.values };
                list.push_again(at.clone())?;
            }
        }
        for (number, (is_name, _)) in same.pieces.iter().enumerate() {
            if *is_name {
                self.name_count += 1;
                continue;
            }
            self.value_count += 1;
            if same.pieces.get(number + 1).is_none_or(|(next_is_name, _)| *next_is_name) {
                self.end_list();
            }
        }
        Ok(())
    }

    fn end_list(&mut self) {
        self.list_offsets.extend_from_slice(&self.value_count.to_le_bytes());
    }

    fn finish(self) -> Vec<Vec<u8>> {
        let (names, values) = (self.names, self.values);
        let validity = self.validity.finish();
        vec![validity, self.map_offsets, names.offsets, names.bytes, self.list_offsets, values.offsets, values.bytes]
    }
}

/// Properties that were decoded, and where names (true) and values of them lie.
struct Same<'a> {
    raw: &'a [u8],
    pieces: Vec<(bool, Range<usize>)>,
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
    let plain = block.strip_prefix(b"NATS/1.0\r\n");
    let mut rest = plain.unwrap_or(block);
    let mut first = plain.is_none();
    while rest != b"\r\n" {
        let Some(end) = memchr::memchr_iter(b'\r', rest).find(|at| rest.get(at + 1) == Some(&b'\n')) else { break };
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
    let count = usize::try_from(varint::get_varint(block, &mut at).ok()?).ok()?;
    for _ in 0..count {
        let mut field = || {
            let length = varint::get_varint(block, &mut at).ok()?;
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

fn no_offsets() -> Vec<u8> {
    0i32.to_le_bytes().to_vec()
}

struct Strings {
    name: &'static str,
    offsets: Vec<u8>,
    bytes: Vec<u8>,
}

impl Strings {
    fn new(name: &'static str) -> Strings {
        Strings { name, offsets: no_offsets(), bytes: Vec::new() }
    }

    /// Room for so many values of so many bytes in all; nothing was pushed yet.
    fn expect(&mut self, count: usize, bytes: usize) {
        self.offsets.reserve(count * 4);
        self.bytes = large_buffer::with_capacity(bytes);
    }

    /// Where the bytes lie now.
    fn push(&mut self, bytes: &[u8]) -> Result<Range<usize>, ColumnError> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.end()?;
        Ok(start..self.bytes.len())
    }

    /// The same value once more.
    fn push_again(&mut self, at: Range<usize>) -> Result<(), ColumnError> {
        self.bytes.extend_from_within(at);
        self.end()
    }

    fn end(&mut self) -> Result<(), ColumnError> {
        let end = i32::try_from(self.bytes.len()).map_err(|_| ColumnError::TooLarge(self.name))?;
        self.offsets.extend_from_slice(&end.to_le_bytes());
        Ok(())
    }

    fn push_text(&mut self, bytes: &[u8]) -> Result<Range<usize>, ColumnError> {
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
