//! Erlang's external term format, as far as a stored message needs it.
//!
//! ```text
//! 131 {basic_message,
//!        {resource, <<vhost>>, exchange, <<exchange>>},
//!        [<<routing key>> …],
//!        {content, 60, Properties | none, <<property block>> | none, Protocol, [<<last fragment>> … <<first>>]},
//!        <<id:16>>, true | false}
//! ```
//! Reading never allocates by a length from the file and never goes deeper than `DEPTH_MAX`.

use std::borrow::Cow;
use std::ops::Range;

use super::MessageId;

pub const VERSION: u8 = 131;
const SMALL_INT: u8 = 97;
const INT: u8 = 98;
const FLOAT: u8 = 70;
const OLD_FLOAT: u8 = 99;
const ATOM: u8 = 100;
const SMALL_ATOM: u8 = 115;
const ATOM_UTF8: u8 = 118;
const SMALL_ATOM_UTF8: u8 = 119;
const SMALL_TUPLE: u8 = 104;
const LARGE_TUPLE: u8 = 105;
const NIL: u8 = 106;
const STRING: u8 = 107;
const LIST: u8 = 108;
const BINARY: u8 = 109;
const SMALL_BIG: u8 = 110;
const LARGE_BIG: u8 = 111;
const MAP: u8 = 116;
const OLD_FLOAT_BYTES: usize = 31;
const DEPTH_MAX: usize = 32;
const CLASS_BASIC: i64 = 60;

/// A stored message starts with these bytes, whichever atom tag follows: what a search looks for.
pub const MARK: [u8; 3] = [VERSION, SMALL_TUPLE, 6];

/// Reads one value after the other; `None` when the bytes are not what was asked for.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

/// Where a body lies.
struct Fragments {
    /// If there is only one.
    alone: Option<Range<usize>>,
    /// Of all of them.
    len: u64,
    count: usize,
    first: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8], at: usize) -> Self {
        Reader { data, at }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn bytes(&self, span: &Range<usize>) -> &'a [u8] {
        &self.data[span.clone()]
    }

    #[inline]
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let bytes = self.data.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    #[inline]
    fn expect(&mut self, piece: &[u8]) -> Option<()> {
        (self.take(piece.len())? == piece).then_some(())
    }

    #[inline]
    fn sized(&mut self) -> Option<Range<usize>> {
        let length = self.u32()?;
        self.take(length)?;
        Some(self.at - length..self.at)
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<usize> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]) as usize)
    }

    fn u32(&mut self) -> Option<usize> {
        self.take(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize)
    }

    pub fn peek(&self) -> Option<u8> {
        self.data.get(self.at).copied()
    }

    pub fn atom(&mut self) -> Option<&'a [u8]> {
        let length = match self.byte()? {
            ATOM | ATOM_UTF8 => self.u16()?,
            SMALL_ATOM | SMALL_ATOM_UTF8 => self.byte()? as usize,
            _ => return None,
        };
        self.take(length)
    }

    pub fn is_atom(&self) -> bool {
        matches!(self.peek(), Some(ATOM | ATOM_UTF8 | SMALL_ATOM | SMALL_ATOM_UTF8))
    }

    fn expect_atom(&mut self, name: &[u8]) -> Option<()> {
        (self.atom()? == name).then_some(())
    }

    pub fn tuple(&mut self) -> Option<usize> {
        match self.byte()? {
            SMALL_TUPLE => self.byte().map(usize::from),
            LARGE_TUPLE => self.u32(),
            _ => None,
        }
    }

    fn expect_tuple(&mut self, arity: usize) -> Option<()> {
        (self.tuple()? == arity).then_some(())
    }

    /// Where the binary's bytes lie.
    pub fn binary(&mut self) -> Option<Range<usize>> {
        if self.byte()? != BINARY {
            return None;
        }
        let length = self.u32()?;
        self.take(length)?;
        Some(self.at - length..self.at)
    }

    /// The number of elements; the reader stands at the first one. Call `end_list` behind the last.
    pub fn list(&mut self) -> Option<usize> {
        match self.byte()? {
            NIL => Some(0),
            LIST => self.u32().filter(|count| *count <= self.data.len() - self.at),
            _ => None,
        }
    }

    /// A list of routing keys: the first, and how many more there are from where.
    fn routing_keys(&mut self) -> Option<(Range<usize>, (usize, usize))> {
        let count = self.list()?;
        let mut key = self.at..self.at;
        let mut second = self.at;
        for number in 0..count {
            let span = self.binary()?;
            if number == 0 {
                (key, second) = (span, self.at);
            }
        }
        self.end_list(count)?;
        Some((key, (count.saturating_sub(1), second)))
    }

    /// The fragments of a body, last first.
    fn fragments(&mut self) -> Option<Fragments> {
        let count = self.list()?;
        let first = self.at;
        let (mut body, mut len) = (None, 0);
        for _ in 0..count {
            let span = self.binary()?;
            len += span.len() as u64;
            body = Some(span);
        }
        self.end_list(count)?;
        Some(Fragments { alone: body.filter(|_| count == 1), len, count, first })
    }

    pub fn end_list(&mut self, count: usize) -> Option<()> {
        if count == 0 { Some(()) } else { (self.byte()? == NIL).then_some(()) }
    }

    pub fn integer(&mut self) -> Option<i64> {
        match self.byte()? {
            SMALL_INT => self.byte().map(i64::from),
            INT => self.u32().map(|value| value as u32 as i32 as i64),
            SMALL_BIG => {
                let (count, sign) = (self.byte()? as usize, self.byte()?);
                if count > 8 {
                    return None;
                }
                let mut value = [0u8; 8];
                value[..count].copy_from_slice(self.take(count)?);
                let value = u64::from_le_bytes(value) as i64;
                Some(if sign == 0 { value } else { value.wrapping_neg() })
            }
            _ => None,
        }
    }

    pub fn float(&mut self) -> Option<f64> {
        if self.byte()? != FLOAT {
            return None;
        }
        Some(f64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Steps over any value.
    pub fn skip(&mut self) -> Option<()> {
        self.skip_at(0)
    }

    fn skip_at(&mut self, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        let count = match self.byte()? {
            SMALL_INT => return self.take(1).map(drop),
            INT => return self.take(4).map(drop),
            FLOAT => return self.take(8).map(drop),
            OLD_FLOAT => return self.take(OLD_FLOAT_BYTES).map(drop),
            NIL => return Some(()),
            ATOM | ATOM_UTF8 | STRING => return self.u16().and_then(|length| self.take(length)).map(drop),
            SMALL_ATOM | SMALL_ATOM_UTF8 => return self.byte().and_then(|length| self.take(length.into())).map(drop),
            BINARY => return self.u32().and_then(|length| self.take(length)).map(drop),
            SMALL_BIG => return self.byte().and_then(|length| self.take(length as usize + 1)).map(drop),
            LARGE_BIG => return self.u32().and_then(|length| self.take(length.checked_add(1)?)).map(drop),
            SMALL_TUPLE => self.byte()? as usize,
            LARGE_TUPLE => self.u32()?,
            LIST => self.u32()?.checked_add(1)?,
            MAP => self.u32()?.checked_mul(2)?,
            _ => return None,
        };
        if count > self.data.len() - self.at {
            return None;
        }
        (0..count).try_for_each(|_| self.skip_at(depth + 1))
    }
}

/// How the properties are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Properties {
    /// The block as the publisher sent it.
    Block(Range<usize>),
    /// The broker's decoded record (it changed the headers): the term's bytes.
    Decoded(Range<usize>),
}

/// A message's parts: spans into the bytes it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub exchange: Range<usize>,
    pub key: Range<usize>,
    /// More keys (CC, BCC): how many, and where the second one begins.
    pub more_keys: (usize, usize),
    pub properties: Properties,
    /// The only fragment, if there is one at most.
    pub body: Option<Range<usize>>,
    /// How many fragments, and where the list begins; they lie in reverse order.
    pub fragments: (usize, usize),
    pub body_len: u64,
    pub id: MessageId,
    pub end: usize,
}

/// The pieces between the variable parts, as OTP 25 writes them: what nearly every message is made of.
const TO_VHOST: &[u8] = b"\x83h\x06d\x00\x0dbasic_messageh\x04d\x00\x08resourcem";
const TO_EXCHANGE: &[u8] = b"d\x00\x08exchangem";
const TO_KEY: &[u8] = b"l\x00\x00\x00\x01m";
const TO_BLOCK: &[u8] = b"jh\x06d\x00\x07contenta\x3cd\x00\x04nonem";
const TO_BODY: &[u8] = b"d\x00\x19rabbit_framing_amqp_0_9_1l\x00\x00\x00\x01m";
const TO_ID: &[u8] = b"jm\x00\x00\x00\x10";
const TO_END: &[u8] = b"d\x00\x04true";

impl Message {
    /// The message at `start`; `None` if there is none.
    pub fn parse(data: &[u8], start: usize) -> Option<Message> {
        Self::parse_counting(data, start).0
    }

    /// … and how many bytes were looked at for it: no element of a list is free.
    pub fn parse_counting(data: &[u8], start: usize) -> (Option<Message>, usize) {
        if let Some(message) = Self::parse_usual(data, start) {
            let end = message.end;
            return (Some(message), end - start);
        }
        let mut reader = Reader::new(data, start);
        let message = Self::parse_any(&mut reader);
        (message, reader.at - start)
    }

    /// One key, one fragment, properties as sent, persistent: compared piece by piece.
    fn parse_usual(data: &[u8], start: usize) -> Option<Message> {
        let mut reader = Reader::new(data, start);
        reader.expect(TO_VHOST)?;
        reader.sized()?;
        reader.expect(TO_EXCHANGE)?;
        let exchange = reader.sized()?;
        reader.expect(TO_KEY)?;
        let key = reader.sized()?;
        let second = reader.at;
        reader.expect(TO_BLOCK)?;
        let block = reader.sized()?;
        reader.expect(TO_BODY)?;
        let first_fragment = reader.at - 1;
        let body = reader.sized()?;
        reader.expect(TO_ID)?;
        let id = reader.take(16)?.try_into().ok()?;
        reader.expect(TO_END)?;
        Some(Message {
            exchange,
            key,
            more_keys: (0, second),
            properties: Properties::Block(block),
            body_len: body.len() as u64,
            body: Some(body),
            fragments: (1, first_fragment),
            id,
            end: reader.at,
        })
    }

    fn parse_any(reader: &mut Reader) -> Option<Message> {
        if reader.byte()? != VERSION {
            return None;
        }
        reader.expect_tuple(6)?;
        reader.expect_atom(b"basic_message")?;
        reader.expect_tuple(4)?;
        reader.expect_atom(b"resource")?;
        reader.binary()?;
        reader.expect_atom(b"exchange")?;
        let exchange = reader.binary()?;
        let (key, more_keys) = reader.routing_keys()?;
        reader.expect_tuple(6)?;
        reader.expect_atom(b"content")?;
        (reader.integer()? == CLASS_BASIC).then_some(())?;
        let decoded = reader.at;
        reader.skip()?;
        let decoded = decoded..reader.at;
        let properties = if reader.is_atom() {
            reader.atom()?;
            Properties::Decoded(decoded)
        } else {
            Properties::Block(reader.binary()?)
        };
        reader.atom()?;
        let fragments = reader.fragments()?;
        let id = reader.binary()?;
        let id = reader.bytes(&id).try_into().ok()?;
        reader.atom()?;
        let body = if fragments.count == 0 { Some(reader.at..reader.at) } else { fragments.alone };
        Some(Message {
            exchange,
            key,
            more_keys,
            properties,
            body,
            fragments: (fragments.count, fragments.first),
            body_len: fragments.len,
            id,
            end: reader.at,
        })
    }

    /// The keys behind the first one.
    pub fn more_keys<'a>(&self, data: &'a [u8]) -> Vec<&'a [u8]> {
        let mut reader = Reader::new(data, self.more_keys.1);
        (0..self.more_keys.0).filter_map(|_| reader.binary()).map(|span| &data[span]).collect()
    }

    /// Appends the whole body, its fragments put into order.
    pub fn copy_body(&self, data: &[u8], out: &mut Vec<u8>) {
        let mut reader = Reader::new(data, self.fragments.1);
        let spans: Vec<_> = (0..self.fragments.0).filter_map(|_| reader.binary()).collect();
        for span in spans.into_iter().rev() {
            out.extend_from_slice(&data[span]);
        }
    }
}

/// A message's bytes as they should be: where the last atom's length is damaged, it is put right.
pub fn straight(term: &[u8]) -> Cow<'_, [u8]> {
    let ends = |term: &[u8]| Message::parse(term, 0).is_some_and(|message| message.end == term.len());
    if ends(term) || term.len() < TO_END.len() {
        return Cow::Borrowed(term);
    }
    let mut patched = term.to_vec();
    let at = patched.len() - TO_END.len();
    patched[at..].copy_from_slice(TO_END);
    if ends(&patched) { Cow::Owned(patched) } else { Cow::Borrowed(term) }
}

/// What a new message is made of.
pub struct NewMessage<'a> {
    pub vhost: &'a [u8],
    pub exchange: &'a [u8],
    pub keys: &'a [&'a [u8]],
    pub block: &'a [u8],
    pub body: &'a [u8],
    pub id: &'a MessageId,
}

impl NewMessage<'_> {
    /// Appends the term, with the tags of OTP 25.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_head(out);
        self.write_tail(out);
    }

    /// The part that messages with the same keys and properties share.
    pub fn write_head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MARK);
        put_atom(out, b"basic_message");
        out.extend_from_slice(&[SMALL_TUPLE, 4]);
        put_atom(out, b"resource");
        put_binary(out, self.vhost);
        put_atom(out, b"exchange");
        put_binary(out, self.exchange);
        out.push(LIST);
        out.extend_from_slice(&(self.keys.len() as u32).to_be_bytes());
        self.keys.iter().for_each(|key| put_binary(out, key));
        out.push(NIL);
        out.extend_from_slice(&[SMALL_TUPLE, 6]);
        put_atom(out, b"content");
        out.extend_from_slice(&[SMALL_INT, CLASS_BASIC as u8]);
        put_atom(out, b"none");
        put_binary(out, self.block);
        put_atom(out, b"rabbit_framing_amqp_0_9_1");
    }

    pub fn write_tail(&self, out: &mut Vec<u8>) {
        if !self.body.is_empty() {
            out.push(LIST);
            out.extend_from_slice(&1u32.to_be_bytes());
            put_binary(out, self.body);
        }
        out.push(NIL);
        put_binary(out, self.id);
        put_atom(out, b"true");
    }

    /// How many bytes `write` appends.
    pub fn size(&self) -> usize {
        const FIXED: usize = 3 + 16 + 2 + 11 + 11 + 5 + 1 + 2 + 10 + 2 + 7 + 28 + 1 + 7;
        let keys: usize = self.keys.iter().map(|key| 5 + key.len()).sum();
        let body = if self.body.is_empty() { 0 } else { 10 + self.body.len() };
        FIXED + 5 + self.vhost.len() + 5 + self.exchange.len() + keys + 5 + self.block.len() + body + 5 + 16
    }
}

fn put_atom(out: &mut Vec<u8>, name: &[u8]) {
    out.push(ATOM);
    out.extend_from_slice(&(name.len() as u16).to_be_bytes());
    out.extend_from_slice(name);
}

fn put_binary(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(BINARY);
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}
