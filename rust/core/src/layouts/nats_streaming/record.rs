//! One message as the store keeps it: `MsgProto`, of which files carry five fields.
//!
//! ```text
//! 08 sequence | 12 len subject | 1a len reply | 22 len data | 28 time (ns, as an unsigned varint)
//! ```
//! Empty fields are left out. A reader takes fields in any order and skips those it does not know.

use std::ops::Range;

use super::crc::Crc;
use super::index::{self, Entry};
use super::seal::Sealer;
use super::{COUNTED, FRAME, PAYLOAD_MAX};
use crate::batch::{Batch, Entry as Message, HeaderCodec};
use crate::varint;

/// The header that carries a message's reply subject through the storage interface.
pub const REPLY_HEADER: &[u8] = b"Nats-Streaming-Reply";
const BLOCK_HEAD: &[u8] = b"NATS/1.0\r\n";
const SEQUENCE: u8 = 0x08;
const SUBJECT: u8 = 0x12;
const REPLY: u8 = 0x1a;
const DATA: u8 = 0x22;
const TIME: u8 = 0x28;

/// A parsed payload; the ranges lie in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parsed {
    pub sequence: u64,
    pub time: i64,
    pub subject: Range<usize>,
    pub reply: Range<usize>,
    pub data: Range<usize>,
}

pub fn parse(payload: &[u8]) -> Option<Parsed> {
    let mut found = Parsed::default();
    let mut at = 0;
    while at < payload.len() {
        let tag = varint::get_protobuf(payload, &mut at)?;
        match (tag >> 3, tag & 7) {
            (0, _) => return None,
            (1, 0) => found.sequence = varint::get_protobuf(payload, &mut at)?,
            (5, 0) => found.time = varint::get_protobuf(payload, &mut at)? as i64,
            (2, 2) => found.subject = piece(payload, &mut at)?,
            (3, 2) => found.reply = piece(payload, &mut at)?,
            (4, 2) => found.data = piece(payload, &mut at)?,
            (_, wire) => skip(payload, &mut at, wire)?,
        }
    }
    Some(found)
}

/// Past a field that nobody asked for.
pub fn skip(bytes: &[u8], at: &mut usize, wire: u64) -> Option<()> {
    match wire {
        0 => varint::get_protobuf(bytes, at).map(|_| ()),
        1 => fixed(bytes, at, 8).map(|_| ()),
        2 => piece(bytes, at).map(|_| ()),
        5 => fixed(bytes, at, 4).map(|_| ()),
        _ => None,
    }
}

fn fixed(bytes: &[u8], at: &mut usize, len: usize) -> Option<Range<usize>> {
    let end = at.checked_add(len).filter(|end| *end <= bytes.len())?;
    let range = *at..end;
    *at = end;
    Some(range)
}

pub fn piece(bytes: &[u8], at: &mut usize) -> Option<Range<usize>> {
    let len = varint::get_protobuf(bytes, at)?;
    fixed(bytes, at, usize::try_from(len).ok()?)
}

fn put_piece(out: &mut Vec<u8>, tag: u8, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if len == 0 {
        return;
    }
    out.push(tag);
    varint::put_uvarint(out, len as u64);
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// What an append must know beside the batch; all of it was decided before, once.
pub struct EncodeRules<'a> {
    pub channel: &'a [u8],
    /// The next sequence; messages with a position of their own may only raise it.
    pub next: u64,
    pub keep_positions: bool,
    pub now: i64,
    /// No message gets an earlier time than this.
    pub not_before: i64,
    /// Where in msgs.N.dat the first record will stand.
    pub offset: u64,
    /// The slice takes messages while its count and counted bytes are below these.
    pub msgs_left: u64,
    pub bytes_left: u64,
    /// Drop what the layout has no place for (other headers, keys, other subjects) instead of refusing it.
    pub lossy: bool,
}

#[derive(Debug, Default)]
pub struct Encoded {
    pub data: Vec<u8>,
    pub index: Vec<u8>,
    pub taken: usize,
    pub first: u64,
    pub next: u64,
    /// The earliest; with the channel's own times the first one's.
    pub first_time: i64,
    pub last_time: i64,
    /// As limits count them: payload and 40.
    pub counted: u64,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EncodeError {
    #[error("message {at}: position {seen} is not above the last one, {last}")]
    NotAbove { at: usize, seen: u64, last: u64 },
    #[error("message {at}: {len} bytes are more than a record of this layout may have ({PAYLOAD_MAX})")]
    TooLarge { at: usize, len: usize },
    #[error("message {at}: {what} has no place in a NATS Streaming channel; convert with lossy=True to drop it")]
    NoPlace { at: usize, what: &'static str },
    #[error("the channel has used its last sequence")]
    Exhausted,
}

/// Records and index entries for the messages from `start` on, as many as the slice takes (at least one).
pub fn encode(
    batch: &Batch,
    start: usize,
    rules: &EncodeRules,
    crc: &Crc,
    mut sealer: Option<&mut Sealer>,
) -> Result<Encoded, EncodeError> {
    let messages = &batch.entries()[start.min(batch.len())..];
    let mut out = Encoded { next: rules.next, last_time: rules.not_before, ..Encoded::default() };
    let expected = usize::try_from(rules.msgs_left).unwrap_or(usize::MAX).min(messages.len()).max(1);
    out.data.reserve(expected.min(1 << 16) * 64);
    out.index.reserve(expected.min(1 << 16) * index::ENTRY);
    for (count, message) in messages.iter().enumerate() {
        let full = count as u64 >= rules.msgs_left || out.counted >= rules.bytes_left;
        if full && count > 0 {
            break;
        }
        let at = start + count;
        let sequence = match message.position {
            position if rules.keep_positions && position > 0 => position,
            _ => out.next,
        };
        if sequence < out.next {
            return Err(EncodeError::NotAbove { at, seen: sequence, last: out.next - 1 });
        }
        let following = sequence.checked_add(1).ok_or(EncodeError::Exhausted)?;
        let reply = placed(batch, message, at, rules)?;
        let given = if message.time != 0 { message.time } else { rules.now };
        // A copy keeps its times, whatever their order; in a channel's own life they do not go backwards.
        let time = if rules.keep_positions && message.time != 0 { given } else { given.max(out.last_time) };

        let frame = out.data.len();
        out.data.extend_from_slice(&[0; FRAME]);
        out.data.push(SEQUENCE);
        varint::put_uvarint(&mut out.data, sequence);
        put_piece(&mut out.data, SUBJECT, &[rules.channel]);
        put_piece(&mut out.data, REPLY, &[reply]);
        let data = batch.bytes(message.data);
        match sealer.as_deref_mut().filter(|_| !data.is_empty()) {
            Some(sealer) => put_piece(&mut out.data, DATA, &[&sealer.seal(data)]),
            None => put_piece(&mut out.data, DATA, &[data]),
        }
        if time != 0 {
            out.data.push(TIME);
            varint::put_uvarint(&mut out.data, time as u64);
        }
        let size = out.data.len() - frame - FRAME;
        if size > PAYLOAD_MAX {
            return Err(EncodeError::TooLarge { at, len: size });
        }
        let sum = crc.of(&out.data[frame + FRAME..]);
        out.data[frame..frame + 4].copy_from_slice(&(size as u32).to_le_bytes());
        out.data[frame + 4..frame + 8].copy_from_slice(&sum.to_le_bytes());
        let entry = Entry { sequence, offset: rules.offset + frame as u64, time, size: size as u32 };
        entry.encode(&mut out.index, crc);
        if count == 0 {
            (out.first, out.first_time) = (sequence, time);
        }
        (out.next, out.taken) = (following, count + 1);
        (out.first_time, out.last_time) = (out.first_time.min(time), out.last_time.max(time));
        out.counted += size as u64 + COUNTED;
    }
    Ok(out)
}

/// The reply subject of a message; an error for anything that would be lost.
fn placed<'a>(batch: &'a Batch, message: &Message, at: usize, rules: &EncodeRules) -> Result<&'a [u8], EncodeError> {
    let subject = batch.bytes(message.subject);
    if !rules.lossy {
        if !subject.is_empty() && subject != rules.channel {
            return Err(EncodeError::NoPlace { at, what: "a subject that is not the channel's name" });
        }
        if !message.key.is_null() {
            return Err(EncodeError::NoPlace { at, what: "a key" });
        }
    }
    if message.headers.is_null() {
        return Ok(b"");
    }
    let block = batch.bytes(message.headers);
    let reply = if batch.codec() == HeaderCodec::Nats { reply_of(block) } else { None };
    match reply {
        Some((reply, true)) => Ok(reply),
        Some((reply, false)) if rules.lossy => Ok(reply),
        None if rules.lossy || block.is_empty() => Ok(b""),
        _ => Err(EncodeError::NoPlace { at, what: "a header" }),
    }
}

/// The reply subject in a NATS header block, and whether there is nothing else in it.
fn reply_of(block: &[u8]) -> Option<(&[u8], bool)> {
    let lines = block.strip_prefix(BLOCK_HEAD)?.strip_suffix(b"\r\n\r\n")?;
    let mut reply = None;
    let mut others = false;
    let mut rest = lines;
    while !rest.is_empty() {
        let end = memchr::memmem::find(rest, b"\r\n").unwrap_or(rest.len());
        let line = &rest[..end];
        rest = &rest[(end + 2).min(rest.len())..];
        match line.strip_prefix(REPLY_HEADER).and_then(|value| value.strip_prefix(b":")) {
            Some(value) if reply.is_none() => reply = Some(value.trim_ascii()),
            _ => others = true,
        }
    }
    reply.map(|reply| (reply, !others))
}

/// The header block that stands for a reply subject.
pub fn put_reply_block(out: &mut Vec<u8>, reply: &[u8]) {
    for part in [BLOCK_HEAD, REPLY_HEADER, b": ", reply, b"\r\n\r\n"] {
        out.extend_from_slice(part);
    }
}
