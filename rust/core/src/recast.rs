//! One message, whichever broker it came from: read into its plain form, written with the headers of another broker.
//!
//! ```text
//!   plain      subject · key or none · body or null · (name, value or null) …
//!   carried    what a target has no place for travels in headers of our own, and is put back on the way home:
//!              Headrace-Subject: s    Headrace-Key: k    Headrace-Null: 1    Headrace-Header: name=value  (null: name)
//! ```
//! Carried texts are percent-encoded, so that any bytes fit into any broker's headers. `Digest` takes the plain forms
//! of both sides: what was converted and converted back hashes alike.

use std::borrow::Cow;

use highway::{HighwayHash, HighwayHasher, Key as HashKey};

use crate::batch::{Batch, BatchBuilder, Entry, HeaderCodec, Message, TooLarge, flags};
use crate::columns::header_pairs;
use crate::layouts::rabbitmq::props::{Text, each_text};
use crate::varint;

const SUBJECT: &[u8] = b"Headrace-Subject";
const KEY: &[u8] = b"Headrace-Key";
const NULL: &[u8] = b"Headrace-Null";
const HEADER: &[u8] = b"Headrace-Header";
/// A property that is RocketMQ's place for the key.
const ROCKET_KEYS: &[u8] = b"KEYS";
/// Fields of AMQP that a batch has columns for.
const AMQP_OWN: [&[u8]; 6] =
    [b"delivery-mode", b"timestamp", b"timestamp_in_ms", b"timestamp_in_ns", b"x-key", b"x-null-body"];

type Bytes<'a> = Cow<'a, [u8]>;

/// A message without its broker's encoding.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plain<'a> {
    pub subject: Bytes<'a>,
    /// The subject came from a header of ours: the message stood on another one before it was converted.
    pub carried: bool,
    pub key: Option<Bytes<'a>>,
    pub null: bool,
    pub pairs: Vec<(Bytes<'a>, Option<Bytes<'a>>)>,
}

impl<'a> Plain<'a> {
    /// The plain form of one message.
    pub fn of(batch: &'a Batch, entry: &Entry) -> Plain<'a> {
        let mut plain = Plain {
            subject: Cow::Borrowed(batch.bytes(entry.subject)),
            key: (!entry.key.is_null()).then(|| Cow::Borrowed(batch.bytes(entry.key))),
            null: entry.data.is_null(),
            ..Plain::default()
        };
        if entry.headers.is_null() {
            return plain;
        }
        let raw = batch.bytes(entry.headers);
        match batch.codec() {
            HeaderCodec::Amqp => {
                let copied: Result<(), ()> = each_text(raw, |name, value| {
                    if !AMQP_OWN.contains(&name) {
                        let value = match value {
                            Text::Bytes(bytes) => Cow::Borrowed(bytes),
                            Text::Signed(number) => Cow::Owned(number.to_string().into_bytes()),
                            Text::Unsigned(number) => Cow::Owned(number.to_string().into_bytes()),
                            Text::Made(text) => Cow::Owned(text.into_bytes()),
                        };
                        plain.take(name, Some(value));
                    }
                    Ok(())
                });
                debug_assert!(copied.is_ok());
            }
            codec => {
                let mut pairs = Vec::new();
                // What cannot be read as headers has none.
                let _ = header_pairs(codec, raw, &mut pairs);
                for (name, value) in pairs {
                    if codec != HeaderCodec::RocketMq || name != ROCKET_KEYS {
                        plain.take(name, value.map(Cow::Borrowed));
                    }
                }
            }
        }
        plain
    }

    /// A header; those of ours are undone.
    fn take(&mut self, name: &'a [u8], value: Option<Bytes<'a>>) {
        let text = || unescape(value.as_deref().unwrap_or_default());
        match name {
            SUBJECT => (self.subject, self.carried) = (Cow::Owned(text()), true),
            KEY => self.key = Some(Cow::Owned(text())),
            NULL => self.null = true,
            HEADER => {
                let (name, value) = match memchr::memchr(b'=', value.as_deref().unwrap_or_default()) {
                    Some(at) => {
                        let value = value.as_deref().unwrap_or_default();
                        (unescape(&value[..at]), Some(Cow::Owned(unescape(&value[at + 1..]))))
                    }
                    None => (text(), None),
                };
                self.pairs.push((Cow::Owned(name), value));
            }
            _ => self.pairs.push((Cow::Borrowed(name), value)),
        }
    }
}

/// Printable ASCII stays; everything else, and what has a meaning in a carried text, becomes `%XX`.
fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        if byte.is_ascii_graphic() && !matches!(byte, b'%' | b'=') {
            out.push(*byte);
        } else {
            out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// The inverse; what was never escaped by us stays as it is.
fn unescape(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| (*byte as char).to_digit(16));
    let (mut out, mut at) = (Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        match (text[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// Where a subject goes in a layout that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carry {
    No,
    Header,
    /// It becomes the key of messages without one.
    Key,
}

/// Stands for a message's own subject in the text that all messages get.
const OWN: &[u8] = b"{subject}";

/// What a message's subject becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// Stays as it is.
    Own,
    /// The same for all messages.
    Fixed(&'a [u8]),
    /// The own one between two texts.
    Within(&'a [u8], &'a [u8]),
}

impl<'a> Subject<'a> {
    /// `copy`, `copy.{subject}`; none: each keeps its own.
    pub fn parse(text: Option<&'a [u8]>) -> Subject<'a> {
        let Some(text) = text else { return Subject::Own };
        match memchr::memmem::find(text, OWN) {
            None => Subject::Fixed(text),
            Some(at) => Subject::Within(&text[..at], &text[at + OWN.len()..]),
        }
    }
}

/// How messages are to look afterwards.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    pub to: HeaderCodec,
    /// The target has a place for keys, and one for the difference between an empty and no body.
    pub keys: bool,
    pub nulls: bool,
    pub subject: Subject<'a>,
    /// A subject that was carried in a header becomes the subject again, and no fixed one takes its place.
    pub restore: bool,
    pub carry: Carry,
    /// The subject that needs no carrying: the log's name says it already.
    pub usual: &'a [u8],
    /// Longer subjects are carried.
    pub subject_max: usize,
    /// Added to every position.
    pub shift: i64,
    /// For messages without a time.
    pub time: i64,
}

/// The same messages with the headers of another broker. Control records and placeholders are left out.
pub fn recast(batch: &Batch, rules: &Rules<'_>) -> Result<Batch, TooLarge> {
    let mut builder = BatchBuilder::with_capacity(batch.len(), batch.payload_bytes() as usize, rules.to);
    let (mut block, mut text) = (Vec::new(), Vec::new());
    for entry in batch.entries().iter().filter(|entry| entry.flags & (flags::CONTROL | flags::PLACEHOLDER) == 0) {
        let plain = Plain::of(batch, entry);
        let own: &[u8] = &plain.subject;
        let mut subject = match rules.subject {
            Subject::Fixed(fixed) if !(rules.restore && plain.carried) => fixed,
            Subject::Own | Subject::Fixed(_) => own,
            Subject::Within(before, after) => {
                text.clear();
                for part in [before, own, after] {
                    text.extend_from_slice(part);
                }
                &text
            }
        };
        if subject.len() > rules.subject_max {
            subject = rules.usual;
        }
        let mut key = plain.key.as_deref();
        let mut carried = (rules.carry == Carry::Header && own != subject && own != rules.usual).then_some(own);
        if rules.carry == Carry::Key && key.is_none() {
            key = Some(own);
        }
        if own.len() > rules.subject_max {
            carried = Some(own);
        }
        let fits = (rules.keys || key.is_none()) && (rules.nulls || !plain.null) && carried.is_none();
        // A subject that is put back is carried no longer.
        let same = batch.codec() == rules.to && !(plain.carried && rules.restore);
        let headers = if same && fits {
            (!entry.headers.is_null()).then(|| batch.bytes(entry.headers))
        } else {
            block.clear();
            Block { to: rules.to, out: &mut block }.write(&plain, carried, key.filter(|_| !rules.keys), !rules.nulls);
            (!block.is_empty()).then_some(&block[..])
        };
        builder.push(Message {
            position: entry.position.saturating_add_signed(rules.shift),
            time: if entry.time == 0 { rules.time } else { entry.time },
            subject,
            key: key.filter(|_| rules.keys),
            headers,
            data: if plain.null { (!rules.nulls).then_some(&[][..]) } else { Some(batch.bytes(entry.data)) },
            flags: 0,
        })?;
    }
    Ok(builder.finish())
}

/// A header block under construction.
struct Block<'a> {
    to: HeaderCodec,
    out: &'a mut Vec<u8>,
}

impl Block<'_> {
    /// Empty when there is nothing to say.
    fn write(&mut self, plain: &Plain<'_>, subject: Option<&[u8]>, key: Option<&[u8]>, note_null: bool) {
        let null = (note_null && plain.null).then_some(&b"1"[..]);
        let ours = [(SUBJECT, subject), (KEY, key), (NULL, null)];
        let count = plain.pairs.len() + ours.iter().filter(|(_, value)| value.is_some()).count();
        if count == 0 || self.to == HeaderCodec::None {
            return;
        }
        match self.to {
            HeaderCodec::Kafka => varint::put_varint(self.out, count as i64),
            HeaderCodec::Nats => self.out.extend_from_slice(b"NATS/1.0\r\n"),
            _ => {}
        }
        let mut text = Vec::new();
        for (name, value) in &plain.pairs {
            if self.fits(name, value.as_deref()) {
                self.put(name, value.as_deref());
                continue;
            }
            text.clear();
            escape(name, &mut text);
            if let Some(value) = value {
                text.push(b'=');
                escape(value, &mut text);
            }
            self.put(HEADER, Some(&text));
        }
        for (name, value) in ours {
            let Some(value) = value else { continue };
            text.clear();
            escape(value, &mut text);
            self.put(name, Some(&text));
        }
        if self.to == HeaderCodec::Nats {
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Whether the target can say it as it is, and would read it back as the same.
    fn fits(&self, name: &[u8], value: Option<&[u8]>) -> bool {
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
        if [SUBJECT, KEY, NULL, HEADER].contains(&name) {
            return false;
        }
        match (self.to, value) {
            (HeaderCodec::Kafka, _) => text(name),
            (_, None) => false,
            (HeaderCodec::RocketMq, Some(value)) => {
                let plain = |bytes: &[u8]| text(bytes) && memchr::memchr2(1, 2, bytes).is_none();
                !name.is_empty() && plain(name) && plain(value) && name != ROCKET_KEYS && name != b"__CRC32#"
            }
            // RabbitMQ takes these too: its names are short, and some are ours there.
            (_, Some(value)) => {
                let token = |byte: &u8| byte.is_ascii_graphic() && *byte != b':';
                let usable = !name.is_empty() && name.len() <= 255 && name.iter().all(token);
                usable
                    && !AMQP_OWN.contains(&name)
                    && text(value)
                    && value.trim_ascii() == value
                    && !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
            }
        }
    }

    fn put(&mut self, name: &[u8], value: Option<&[u8]>) {
        let out = &mut *self.out;
        match self.to {
            HeaderCodec::Kafka => {
                varint::put_varint(out, name.len() as i64);
                out.extend_from_slice(name);
                varint::put_varint(out, value.map_or(-1, |value| value.len() as i64));
                out.extend_from_slice(value.unwrap_or_default());
            }
            HeaderCodec::RocketMq => {
                for part in [name, b"\x01", value.unwrap_or_default(), b"\x02"] {
                    out.extend_from_slice(part);
                }
            }
            _ => {
                for part in [name, b": ", value.unwrap_or_default(), b"\r\n"] {
                    out.extend_from_slice(part);
                }
            }
        }
    }
}

/// What a digest compares, beside the body.
pub mod parts {
    pub const POSITION: u8 = 1;
    pub const TIME: u8 = 2;
    pub const KEY: u8 = 4;
    pub const HEADERS: u8 = 8;
    pub const SUBJECT: u8 = 16;
    pub const NULL: u8 = 32;
}

/// One hash over many messages, in their order.
pub struct Digest {
    hasher: HighwayHasher,
    scratch: Vec<u8>,
    pub count: u64,
    pub bytes: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Digest { hasher: HighwayHasher::new(HashKey([1, 2, 3, 4])), scratch: Vec::new(), count: 0, bytes: 0 }
    }
}

impl Digest {
    /// `shift`, `time` and the length of a tick make the two sides comparable.
    pub fn add(&mut self, batch: &Batch, which: u8, shift: i64, time: i64, tick: i64) {
        self.scratch.clear();
        for entry in batch.entries().iter().filter(|entry| entry.flags & (flags::CONTROL | flags::PLACEHOLDER) == 0) {
            let plain = Plain::of(batch, entry);
            let out = &mut self.scratch;
            let mut put = |bytes: &[u8]| {
                out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                out.extend_from_slice(bytes);
            };
            put(batch.bytes(entry.data));
            if which & parts::POSITION != 0 {
                put(&entry.position.saturating_add_signed(shift).to_le_bytes());
            }
            if which & parts::TIME != 0 {
                let given = if entry.time == 0 { time } else { entry.time };
                put(&given.div_euclid(tick.max(1)).to_le_bytes());
            }
            if which & parts::KEY != 0 {
                put(&[u8::from(plain.key.is_some())]);
                put(plain.key.as_deref().unwrap_or_default());
            }
            if which & parts::SUBJECT != 0 {
                put(&plain.subject);
            }
            if which & parts::NULL != 0 {
                put(&[u8::from(plain.null)]);
            }
            if which & parts::HEADERS != 0 {
                // Some brokers keep headers in a map: their order says nothing.
                let sum = plain.pairs.iter().fold(0u64, |sum, pair| sum.wrapping_add(pair_hash(pair)));
                put(&sum.to_le_bytes());
            }
            self.count += 1;
            self.bytes += entry.data.size() as u64;
        }
        self.hasher.append(&self.scratch);
    }

    pub fn value(&self) -> u64 {
        self.hasher.clone().finalize64()
    }
}

fn pair_hash((name, value): &(Bytes<'_>, Option<Bytes<'_>>)) -> u64 {
    let mut hasher = HighwayHasher::new(HashKey([5, 6, 7, 8]));
    hasher.append(&(name.len() as u64).to_le_bytes());
    hasher.append(name);
    hasher.append(&[u8::from(value.is_some())]);
    hasher.append(value.as_deref().unwrap_or_default());
    hasher.finalize64()
}
