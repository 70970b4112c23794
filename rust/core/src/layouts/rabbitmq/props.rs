//! AMQP 0-9-1 properties of class basic: the block of a content header, behind its first 12 bytes.
//!
//! ```text
//! flags:16 [flags:16 while bit 0]   then the fields whose bit is set, from bit 15 down:
//! 15 content-type s · 14 content-encoding s · 13 headers t · 12 delivery-mode o · 11 priority o · 10 correlation-id s
//! 9 reply-to s · 8 expiration s · 7 message-id s · 6 timestamp 64 · 5 type s · 4 user-id s · 3 app-id s · 2 cluster-id s
//! s = length:8 + bytes      t = length:32 + (name:s type:8 value)…      o = 1 byte
//! ```
//! In a batch (codec `amqp`) the raw headers are this block, and behind it, only if there is something to say,
//! an envelope of ours: `exchange:s  count:16 (key:s)…  expiry_us:64`.

use std::ops::Range;

use super::etf::Reader;

pub const NAMES: [&str; 14] = [
    "content-type",
    "content-encoding",
    "headers",
    "delivery-mode",
    "priority",
    "correlation-id",
    "reply-to",
    "expiration",
    "message-id",
    "timestamp",
    "type",
    "user-id",
    "app-id",
    "cluster-id",
];
const HEADERS: usize = 2;
const DELIVERY_MODE: usize = 3;
const PRIORITY: usize = 4;
const TIMESTAMP: usize = 9;
const DEPTH_MAX: usize = 16;
/// Names under which we keep what AMQP has no field for; the first is what RabbitMQ's own interceptor writes.
const TIME_MS: &[u8] = b"timestamp_in_ms";
const TIME_NS: &[u8] = b"timestamp_in_ns";
const KEY: &[u8] = b"x-key";
const NULL_BODY: &[u8] = b"x-null-body";

/// Only delivery-mode 2: persistent.
pub const PLAIN: [u8; 3] = [0x10, 0x00, 0x02];

/// Where the fields of a block lie.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Block {
    /// Field → its value (short strings and tables without their length).
    fields: [Option<(usize, usize)>; 14],
    pub end: usize,
}

fn take(data: &[u8], at: &mut usize, count: usize) -> Option<Range<usize>> {
    let end = at.checked_add(count).filter(|end| *end <= data.len())?;
    let range = *at..end;
    *at = end;
    Some(range)
}

fn number(data: &[u8], at: &mut usize, count: usize) -> Option<u64> {
    let range = take(data, at, count)?;
    Some(data[range].iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

impl Block {
    pub fn parse(data: &[u8]) -> Option<Block> {
        let mut at = 0;
        let flags = number(data, &mut at, 2)? as u16;
        let mut more = flags;
        while more & 1 != 0 {
            more = number(data, &mut at, 2)? as u16;
        }
        let mut block = Block::default();
        for (field, slot) in block.fields.iter_mut().enumerate() {
            if flags & (0x8000 >> field) == 0 {
                continue;
            }
            let length = match field {
                DELIVERY_MODE | PRIORITY => 1,
                TIMESTAMP => 8,
                HEADERS => number(data, &mut at, 4)? as usize,
                _ => number(data, &mut at, 1)? as usize,
            };
            let range = take(data, &mut at, length)?;
            *slot = Some((range.start, range.end));
        }
        block.end = at;
        Some(block)
    }

    fn field(&self, field: usize) -> Option<Range<usize>> {
        self.fields[field].map(|(start, end)| start..end)
    }

    /// What a reader of the message wants to know besides the raw block.
    pub fn facts(&self, data: &[u8]) -> Facts {
        let mut facts = Facts::default();
        if let Some(range) = self.field(TIMESTAMP) {
            let mut at = range.start;
            let seconds = number(data, &mut at, 8).unwrap_or(0) as i64;
            facts.time_ns = seconds.saturating_mul(1_000_000_000);
        }
        let Some(range) = self.field(HEADERS) else { return facts };
        let end = range.end;
        let (mut at, table) = (range.start, &data[..end]);
        while let Some((name, kind, value)) = next_field(table, &mut at) {
            match (&table[name], kind) {
                (TIME_MS, b'l' | b'L') if facts.time_ns % 1_000_000 == 0 => {
                    let mut from = value.start;
                    facts.time_ns = (number(table, &mut from, 8).unwrap_or(0) as i64).saturating_mul(1_000_000);
                }
                (TIME_NS, b'l' | b'L') => {
                    let mut from = value.start;
                    facts.time_ns = number(table, &mut from, 8).unwrap_or(0) as i64;
                }
                (KEY, b'x') => facts.key = Some(value),
                (NULL_BODY, b't') => facts.null_body = true,
                _ => {}
            }
        }
        facts
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// 0 when the publisher gave none.
    pub time_ns: i64,
    pub key: Option<Range<usize>>,
    pub null_body: bool,
}

/// The next (name, type, value) of a table; strings and containers without their length.
fn next_field(data: &[u8], at: &mut usize) -> Option<(Range<usize>, u8, Range<usize>)> {
    let length = number(data, at, 1)? as usize;
    let name = take(data, at, length)?;
    let (kind, value) = next_value(data, at)?;
    Some((name, kind, value))
}

fn next_value(data: &[u8], at: &mut usize) -> Option<(u8, Range<usize>)> {
    let kind = number(data, at, 1)? as u8;
    let length = match kind {
        b't' | b'b' | b'B' => 1,
        b's' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'l' | b'L' | b'd' | b'T' => 8,
        b'S' | b'x' | b'A' | b'F' => number(data, at, 4)? as usize,
        b'V' => 0,
        _ => return None,
    };
    Some((kind, take(data, at, length)?))
}

/// A value for people.
pub enum Text<'a> {
    Bytes(&'a [u8]),
    Signed(i64),
    Unsigned(u64),
    Made(String),
}

impl Text<'_> {
    fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Text::Bytes(bytes) => out.extend_from_slice(bytes),
            Text::Signed(value) => out.extend_from_slice(value.to_string().as_bytes()),
            Text::Unsigned(value) => out.extend_from_slice(value.to_string().as_bytes()),
            Text::Made(text) => out.extend_from_slice(text.as_bytes()),
        }
    }
}

/// Every field, for people and columns: properties under their AMQP names, headers under their own, what belongs to
/// the envelope as `amqp-exchange`, `amqp-cc`, `amqp-expiry`. Several values of one name come one after the other.
pub fn each_text<'a, E>(raw: &'a [u8], mut visit: impl FnMut(&'a [u8], Text<'a>) -> Result<(), E>) -> Result<(), E> {
    let Some(block) = Block::parse(raw) else { return Ok(()) };
    for (field, name) in NAMES.iter().enumerate() {
        let Some(range) = block.field(field) else { continue };
        match field {
            HEADERS => {
                let (table, mut at) = (&raw[..range.end], range.start);
                while let Some((name, kind, value)) = next_field(table, &mut at) {
                    each_value(&raw[name], table, kind, value, &mut visit)?;
                }
            }
            DELIVERY_MODE | PRIORITY | TIMESTAMP => {
                let mut at = range.start;
                visit(name.as_bytes(), Text::Unsigned(number(raw, &mut at, range.len()).unwrap_or(0)))?;
            }
            _ => visit(name.as_bytes(), Text::Bytes(&raw[range]))?,
        }
    }
    if block.end == raw.len() {
        return Ok(());
    }
    let envelope = Envelope::parse(&raw[block.end..]);
    if !envelope.exchange.is_empty() {
        visit(b"amqp-exchange", Text::Bytes(envelope.exchange))?;
    }
    for key in &envelope.keys {
        visit(b"amqp-cc", Text::Bytes(key))?;
    }
    if envelope.expiry_us != 0 {
        visit(b"amqp-expiry", Text::Unsigned(envelope.expiry_us))?;
    }
    Ok(())
}

/// An array of a header is several values of one name.
fn each_value<'a, E>(
    name: &'a [u8],
    table: &'a [u8],
    kind: u8,
    value: Range<usize>,
    visit: &mut impl FnMut(&'a [u8], Text<'a>) -> Result<(), E>,
) -> Result<(), E> {
    if kind != b'A' {
        return visit(name, text(table, kind, value, 0));
    }
    let (array, mut at) = (&table[..value.end], value.start);
    while let Some((kind, value)) = next_value(array, &mut at) {
        visit(name, text(array, kind, value, 0))?;
    }
    Ok(())
}

fn text(data: &[u8], kind: u8, value: Range<usize>, depth: usize) -> Text<'_> {
    let bytes = &data[value.clone()];
    let mut at = value.start;
    let mut unsigned = |count| number(data, &mut at, count).unwrap_or(0);
    match kind {
        b'S' | b'x' => Text::Bytes(bytes),
        b't' => Text::Bytes(if bytes[0] == 0 { b"false" } else { b"true" }),
        b'b' => Text::Signed(i64::from(bytes[0] as i8)),
        b'B' => Text::Unsigned(u64::from(bytes[0])),
        b's' => Text::Signed(i64::from(unsigned(2) as i16)),
        b'u' => Text::Unsigned(unsigned(2)),
        b'I' => Text::Signed(i64::from(unsigned(4) as i32)),
        b'i' => Text::Unsigned(unsigned(4)),
        b'l' | b'L' => Text::Signed(unsigned(8) as i64),
        b'T' => Text::Unsigned(unsigned(8)),
        b'f' => Text::Made(f32::from_bits(unsigned(4) as u32).to_string()),
        b'd' => Text::Made(f64::from_bits(unsigned(8)).to_string()),
        b'D' => {
            let scale = unsigned(1);
            Text::Made(format!("{}e-{scale}", unsigned(4) as i32))
        }
        b'F' | b'A' if depth < DEPTH_MAX => {
            Text::Made(String::from_utf8_lossy(&nested(data, kind, value, depth)).into_owned())
        }
        _ => Text::Bytes(b""),
    }
}

/// `{name=value, …}` for a table, `[value, …]` for an array.
fn nested(data: &[u8], kind: u8, value: Range<usize>, depth: usize) -> Vec<u8> {
    let (inner, mut at) = (&data[..value.end], value.start);
    let mut out = vec![if kind == b'F' { b'{' } else { b'[' }];
    loop {
        let name = match kind {
            b'F' => {
                let Some(length) = number(inner, &mut at, 1) else { break };
                take(inner, &mut at, length as usize)
            }
            _ => Some(0..0),
        };
        let (Some(name), Some((kind, value))) = (name, next_value(inner, &mut at)) else { break };
        if out.len() > 1 {
            out.extend_from_slice(b", ");
        }
        if !name.is_empty() {
            out.extend_from_slice(&inner[name]);
            out.push(b'=');
        }
        text(inner, kind, value, depth + 1).append_to(&mut out);
    }
    out.push(if kind == b'F' { b'}' } else { b']' });
    out
}

/// What a message has besides its properties and its first routing key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub exchange: &'a [u8],
    pub keys: Vec<&'a [u8]>,
    pub expiry_us: u64,
}

impl<'a> Envelope<'a> {
    pub fn is_empty(&self) -> bool {
        self.exchange.is_empty() && self.keys.is_empty() && self.expiry_us == 0
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        put_short(out, self.exchange);
        out.extend_from_slice(&(self.keys.len() as u16).to_be_bytes());
        self.keys.iter().for_each(|key| put_short(out, key));
        out.extend_from_slice(&self.expiry_us.to_be_bytes());
    }

    /// Tolerant: what is not there is empty.
    pub fn parse(data: &'a [u8]) -> Envelope<'a> {
        let mut at = 0;
        let mut envelope = Envelope::default();
        let short = |at: &mut usize| {
            let length = number(data, at, 1)? as usize;
            take(data, at, length).map(|range| &data[range])
        };
        let Some(exchange) = short(&mut at) else { return envelope };
        envelope.exchange = exchange;
        let count = number(data, &mut at, 2).unwrap_or(0);
        for _ in 0..count {
            let Some(key) = short(&mut at) else { return envelope };
            envelope.keys.push(key);
        }
        envelope.expiry_us = number(data, &mut at, 8).unwrap_or(0);
        envelope
    }
}

fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(255)];
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

/// A message of another layout, or of none: what is to be kept of it.
#[derive(Default)]
pub struct Given<'a> {
    pub time_ns: i64,
    pub key: Option<&'a [u8]>,
    pub null_body: bool,
    /// Texts by name, in order.
    pub headers: Vec<(&'a [u8], &'a [u8])>,
    /// Headers of a codec that is not read here, kept as they are under this name.
    pub raw: Option<(&'a [u8], &'a [u8])>,
}

/// Writes a block: persistent, with the time and whatever else was given.
pub fn write_block(given: &Given<'_>, out: &mut Vec<u8>) {
    let timed = given.time_ns > 0;
    let tabled = timed || given.key.is_some() || given.null_body || !given.headers.is_empty() || given.raw.is_some();
    let flags: u16 = 0x1000 | if tabled { 0x2000 } else { 0 } | if timed { 0x0040 } else { 0 };
    out.extend_from_slice(&flags.to_be_bytes());
    if tabled {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        for (position, (name, value)) in given.headers.iter().enumerate() {
            let same = |other: &(&[u8], &[u8])| other.0 == *name;
            if given.headers[..position].iter().any(same) {
                continue; // written with its first appearance
            }
            put_short(out, name);
            if given.headers[position + 1..].iter().any(same) {
                put_array(out, given.headers.iter().filter(|other| same(other)).map(|other| other.1));
            } else {
                put_long(out, b'S', value);
            }
        }
        if let Some((name, raw)) = given.raw {
            put_short(out, name);
            put_long(out, b'x', raw);
        }
        if timed {
            put_short(out, TIME_MS);
            put_i64(out, given.time_ns / 1_000_000);
            if given.time_ns % 1_000_000 != 0 {
                put_short(out, TIME_NS);
                put_i64(out, given.time_ns);
            }
        }
        if let Some(key) = given.key {
            put_short(out, KEY);
            put_long(out, b'x', key);
        }
        if given.null_body {
            put_short(out, NULL_BODY);
            out.extend_from_slice(b"t\x01");
        }
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
    out.push(2);
    if timed {
        out.extend_from_slice(&(given.time_ns / 1_000_000_000).to_be_bytes());
    }
}

fn put_i64(out: &mut Vec<u8>, value: i64) {
    out.push(b'l');
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_long(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn put_array<'a>(out: &mut Vec<u8>, values: impl Iterator<Item = &'a [u8]>) {
    let mut array = Vec::new();
    values.for_each(|value| put_long(&mut array, b'S', value));
    put_long(out, b'A', &array);
}

/// The broker's decoded record `{P_basic, …14 fields}` as a block; `None` if it is something else.
pub fn encode_decoded(term: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Reader::new(term, 0);
    if reader.is_atom() {
        return (reader.atom()? == b"none").then(|| vec![0, 0]);
    }
    (reader.tuple()? == 15 && reader.atom()? == b"P_basic").then_some(())?;
    let (mut flags, mut values) = (0u16, Vec::new());
    for field in 0..14 {
        if reader.is_atom() {
            reader.atom()?; // undefined
            continue;
        }
        flags |= 0x8000 >> field;
        match field {
            HEADERS => decoded_table(&mut reader, &mut values, 0)?,
            DELIVERY_MODE | PRIORITY => values.push(reader.integer()? as u8),
            TIMESTAMP => values.extend_from_slice(&reader.integer()?.to_be_bytes()),
            _ => {
                let span = reader.binary()?;
                put_short(&mut values, reader.bytes(&span));
            }
        }
    }
    let mut block = flags.to_be_bytes().to_vec();
    block.append(&mut values);
    Some(block)
}

fn sized(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> Option<()>) -> Option<()> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out)?;
    let length = u32::try_from(out.len() - start - 4).ok()?;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    Some(())
}

fn decoded_table(reader: &mut Reader<'_>, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    sized(out, |out| {
        let count = reader.list()?;
        for _ in 0..count {
            (reader.tuple()? == 3).then_some(())?;
            let name = reader.binary()?;
            put_short(out, reader.bytes(&name));
            decoded_value(reader, out, depth)?;
        }
        reader.end_list(count)
    })
}

fn decoded_value(reader: &mut Reader<'_>, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    (depth < DEPTH_MAX).then_some(())?;
    let kind = reader.atom()?;
    let mut integer = |out: &mut Vec<u8>, kind: u8, count: usize| {
        out.push(kind);
        out.extend_from_slice(&reader.integer()?.to_be_bytes()[8 - count..]);
        Some(())
    };
    match kind {
        b"signedint" => integer(out, b'I', 4),
        b"unsignedint" => integer(out, b'i', 4),
        b"short" => integer(out, b's', 2),
        b"unsignedshort" => integer(out, b'u', 2),
        b"byte" => integer(out, b'b', 1),
        b"unsignedbyte" => integer(out, b'B', 1),
        b"long" => integer(out, b'l', 8),
        b"timestamp" => integer(out, b'T', 8),
        b"longstr" | b"binary" => {
            let span = reader.binary()?;
            put_long(out, if kind == b"binary" { b'x' } else { b'S' }, reader.bytes(&span));
            Some(())
        }
        b"float" => {
            out.push(b'f');
            out.extend_from_slice(&(reader.float()? as f32).to_be_bytes());
            Some(())
        }
        b"double" => {
            out.push(b'd');
            out.extend_from_slice(&reader.float()?.to_be_bytes());
            Some(())
        }
        b"decimal" => {
            (reader.tuple()? == 2).then_some(())?;
            out.extend_from_slice(&[b'D', reader.integer()? as u8]);
            out.extend_from_slice(&(reader.integer()? as u32).to_be_bytes());
            Some(())
        }
        b"bool" => {
            out.extend_from_slice(&[b't', u8::from(reader.atom()? == b"true")]);
            Some(())
        }
        b"void" => {
            out.push(b'V');
            reader.skip()
        }
        b"table" => {
            out.push(b'F');
            decoded_table(reader, out, depth + 1)
        }
        b"array" => {
            out.push(b'A');
            sized(out, |out| {
                let count = reader.list()?;
                for _ in 0..count {
                    (reader.tuple()? == 2).then_some(())?;
                    decoded_value(reader, out, depth + 1)?;
                }
                reader.end_list(count)
            })
        }
        _ => None,
    }
}
