//! The message entries of a `NATSARC1` snapshot (nats-server 2.15), a whole batch at a time.
//!
//! ```text
//! entry   uvarint name length | varint time ns | uvarint sequence | uvarint header length
//!         | uvarint payload length | name | headers | payload
//! ```
//! A message's name is its subject; an entry with an empty name ends the archive. The magic, `state.json`
//! and the consumers stand before the messages and are read and written in Python.

use super::decode::{DecodeError, Reader};
use crate::batch::{Batch, BatchBuilder, HeaderCodec, Message, flags};
use crate::varint::{put_uvarint, put_varint};

/// Five numbers of at most ten bytes.
const HEAD_BYTES_MAX: usize = 50;
const NAME_BYTES_MAX: u64 = 0xffff;
/// No message can be larger: a record of the store ends at 32 MiB.
const PART_BYTES_MAX: u64 = 32 << 20;

/// The entries of all messages; placeholders are no messages and are left out.
pub fn encode(batch: &Batch) -> Vec<u8> {
    let messages = || batch.entries().iter().filter(|entry| entry.flags & flags::PLACEHOLDER == 0);
    let mut out = Vec::with_capacity(batch.payload_bytes() as usize + messages().count() * 32);
    for entry in messages() {
        put_uvarint(&mut out, entry.subject.size() as u64);
        put_varint(&mut out, entry.time);
        put_uvarint(&mut out, entry.position);
        put_uvarint(&mut out, entry.headers.size() as u64);
        put_uvarint(&mut out, entry.data.size() as u64);
        for span in [entry.subject, entry.headers, entry.data] {
            out.extend_from_slice(batch.bytes(span));
        }
    }
    out
}

/// Why decoding stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// At `max_msgs`, or inside an entry whose end is not there yet.
    More,
    /// Behind the entry that ends the archive.
    End,
    /// At an entry that cannot be one.
    Malformed(String),
}

/// Whole entries from `offset` on; the offset behind the last one taken; why it stopped there.
pub fn decode(data: &[u8], offset: usize, max_msgs: usize) -> (Batch, usize, Stop) {
    let rest = data.get(offset..).unwrap_or_default();
    let mut builder = BatchBuilder::with_capacity(0, rest.len(), HeaderCodec::Nats);
    let mut at = 0;
    let mut stop = Stop::More;
    for _ in 0..max_msgs {
        let mut reader = Reader { data: rest, at };
        match take_entry(&mut reader) {
            Ok(Some(message)) => {
                if message.subject.is_empty() {
                    at = reader.at;
                    stop = Stop::End;
                    break;
                }
                // A batch that is full goes out as it is; the next call takes the rest.
                if builder.push(message).is_err() {
                    break;
                }
                at = reader.at;
            }
            Ok(None) => break,
            Err(error) => {
                stop = Stop::Malformed(error.problem);
                break;
            }
        }
    }
    (builder.finish(), offset + at, stop)
}

/// `None` when the bytes end inside the entry.
fn take_entry<'a>(reader: &mut Reader<'a>) -> Result<Option<Message<'a>>, DecodeError> {
    let whole_head = reader.left() >= HEAD_BYTES_MAX;
    let (name, time, position, headers, payload) = match take_head(reader) {
        Ok(head) => head,
        Err(_) if !whole_head => return Ok(None),
        Err(error) => return Err(error),
    };
    if name > NAME_BYTES_MAX || headers > PART_BYTES_MAX || payload > PART_BYTES_MAX {
        return reader.fail(format!("an entry of {name} + {headers} + {payload} bytes is too large"));
    }
    if name == 0 && (headers, payload, position) != (0, 0, 0) {
        return reader.fail("a message without a subject");
    }
    if ((name + headers + payload) as usize) > reader.left() {
        return Ok(None);
    }
    let subject = reader.take(name as usize)?;
    let headers = reader.take(headers as usize)?;
    let data = reader.take(payload as usize)?;
    let headers = (!headers.is_empty()).then_some(headers);
    Ok(Some(Message { position, time, subject, key: None, headers, data: Some(data), flags: 0 }))
}

fn take_head(reader: &mut Reader<'_>) -> Result<(u64, i64, u64, u64, u64), DecodeError> {
    Ok((reader.uvarint()?, reader.varint()?, reader.uvarint()?, reader.uvarint()?, reader.uvarint()?))
}
