//! The messages inside a batch, as entries over a buffer. Uncompressed ones stay where they are.
//!
//! ```text
//! format 2   length | attributes | time delta | offset delta | key | value | header count, (name, value)*   zig-zag varints
//! ```
//! The raw header block of a message is what stands from the header count to its end; none at all is null.

use super::codec::{self, Codec};
use super::header::{ATTRIBUTE_APPEND_TIME, ATTRIBUTE_HORIZON, ATTRIBUTES_OLD, FIXED_V0, FIXED_V1, HEADER_V2, Header};
use crate::batch::{Entry, Span, flags};
use crate::varint;

const NS_PER_MS: i64 = 1_000_000;
const PRODUCER_SPAN_MAX: usize = u32::MAX as usize - 1;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("the checksum fits but the messages do not: {0}")]
    Malformed(&'static str),
    #[error(transparent)]
    Codec(#[from] codec::CodecError),
}

use RecordError::Malformed;

/// Nanoseconds; 0 where there is no time.
pub fn time_ns(ms: i64) -> i64 {
    if ms == -1 { 0 } else { ms.saturating_mul(NS_PER_MS) }
}

/// Where entries go, and what comes out of compressed batches.
pub struct Sink<'a> {
    pub buffer: &'a mut Vec<u8>,
    pub entries: &'a mut Vec<Entry>,
    pub subject: Span,
    /// Limit for one batch.
    pub inflated_max: usize,
}

/// Decodes the batch that lies at `at` of the sink's buffer. After an error the sink has nothing of it.
pub fn decode(sink: &mut Sink<'_>, at: usize, header: &Header) -> Result<(), RecordError> {
    let (entries, bytes) = (sink.entries.len(), sink.buffer.len());
    let outcome = if header.magic == 2 { decode_v2(sink, at, header) } else { decode_old(sink, at, header) };
    if outcome.is_err() {
        sink.entries.truncate(entries);
        sink.buffer.truncate(bytes);
    }
    outcome
}

fn decode_v2(sink: &mut Sink<'_>, at: usize, header: &Header) -> Result<(), RecordError> {
    let payload = at + HEADER_V2..at + header.size;
    if header.codec() == Codec::None {
        // The two halves of the sink are apart: the buffer is only read.
        let Sink { buffer, entries, subject, .. } = sink;
        return records_v2(&buffer[payload.clone()], payload.start, header, *subject, entries);
    }
    let plain = codec::decompress(header.codec(), &sink.buffer[payload], 2, sink.inflated_max)?;
    let start = sink.buffer.len();
    if start + plain.len() > PRODUCER_SPAN_MAX {
        return Err(codec::CodecError::TooLarge(PRODUCER_SPAN_MAX).into());
    }
    records_v2(&plain, start, header, sink.subject, sink.entries)?;
    sink.buffer.extend_from_slice(&plain);
    Ok(())
}

/// A length and that many bytes; −1 is null.
#[inline]
fn field(bytes: &[u8], at: &mut usize, start: usize, end: usize) -> Option<Span> {
    let length = varint::get_varint(bytes, at).ok()?;
    if length == -1 {
        return Some(Span::NULL);
    }
    let length = usize::try_from(length).ok().filter(|length| *length <= end.saturating_sub(*at))?;
    let span = Span { offset: (start + *at) as u32, len: length as u32 };
    *at += length;
    Some(span)
}

fn records_v2(
    bytes: &[u8],
    start: usize,
    header: &Header,
    subject: Span,
    entries: &mut Vec<Entry>,
) -> Result<(), RecordError> {
    let mut state = 0;
    if header.is_control() {
        state |= flags::CONTROL;
    }
    if header.is_transactional() {
        state |= flags::TRANSACTIONAL;
    }
    let append_time = header.attributes & ATTRIBUTE_APPEND_TIME != 0;
    // At least seven bytes each: a count cannot make us allocate more than there is.
    entries.reserve((header.count as usize).min(bytes.len() / 7 + 1));
    let (mut at, mut least) = (0, 0i64);
    for _ in 0..header.count {
        let length = varint::get_varint(bytes, &mut at).ok().ok_or(Malformed("cut"))?;
        let end = usize::try_from(length).ok().and_then(|length| at.checked_add(length));
        let end = end.filter(|end| *end <= bytes.len()).ok_or(Malformed("a message is cut"))?;
        at += 1; // attributes, always 0
        let record = (|| {
            let time = varint::get_varint(bytes, &mut at).ok()?;
            let delta = varint::get_varint(bytes, &mut at).ok()?;
            let key = field(bytes, &mut at, start, end)?;
            let data = field(bytes, &mut at, start, end)?;
            let headers_at = at;
            let count = varint::get_varint(bytes, &mut at).ok()?;
            if count < 0 || count as usize > end.saturating_sub(at) {
                return None;
            }
            for _ in 0..count {
                if field(bytes, &mut at, start, end)?.is_null() {
                    return None;
                }
                field(bytes, &mut at, start, end)?;
            }
            let raw = Span { offset: (start + headers_at) as u32, len: (at - headers_at) as u32 };
            Some((time, delta, key, data, if count == 0 { Span::NULL } else { raw }))
        })();
        let (time, delta, key, data, headers) = record.ok_or(Malformed("a field is cut"))?;
        if at != end {
            return Err(Malformed("a message is longer or shorter than it says"));
        }
        if delta < least || header.base + delta > header.last {
            return Err(Malformed("offsets do not ascend within the batch"));
        }
        least = delta + 1;
        let ms = if append_time { header.max_time } else { header.base_time.wrapping_add(time) };
        entries.push(Entry {
            position: (header.base + delta) as u64,
            time: time_ns(ms),
            subject,
            key,
            headers,
            data,
            flags: state,
        });
    }
    if at != bytes.len() {
        return Err(Malformed("bytes after the last message"));
    }
    // With a delete horizon the base time is that horizon; the deltas lead back to the messages' own times.
    debug_assert!(header.attributes & ATTRIBUTE_HORIZON == 0 || header.magic == 2);
    Ok(())
}

fn decode_old(sink: &mut Sink<'_>, at: usize, header: &Header) -> Result<(), RecordError> {
    let codec = header.codec();
    if codec == Codec::None {
        let entry = message_old(&sink.buffer[at..at + header.size], at, header, sink.subject)?;
        sink.entries.push(entry);
        return Ok(());
    }
    let wrapper = message_old(&sink.buffer[at..at + header.size], at, header, Span::NULL)?;
    if wrapper.data.is_null() {
        return Err(Malformed("a compressed set without content"));
    }
    let packed = wrapper.data.offset as usize..wrapper.data.offset as usize + wrapper.data.size();
    let plain = codec::decompress(codec, &sink.buffer[packed], header.magic, sink.inflated_max)?;
    let start = sink.buffer.len();
    if start + plain.len() > PRODUCER_SPAN_MAX {
        return Err(codec::CodecError::TooLarge(PRODUCER_SPAN_MAX).into());
    }
    let first = sink.entries.len();
    let mut inner_at = 0;
    while inner_at < plain.len() {
        let inner = Header::parse(&plain[inner_at..]).map_err(Malformed)?;
        let bytes = plain.get(inner_at..inner_at + inner.size).ok_or(Malformed("an inner message is cut"))?;
        if inner.magic != header.magic || inner.codec() != Codec::None || !inner.is_intact(bytes) {
            return Err(Malformed("an inner message is not sound"));
        }
        sink.entries.push(message_old(bytes, start + inner_at, &inner, sink.subject)?);
        inner_at += inner.size;
    }
    place_inner(&mut sink.entries[first..], header)?;
    sink.buffer.extend_from_slice(&plain);
    Ok(())
}

/// Format 0 has absolute inner offsets, format 1 relative ones that end at the wrapper's.
fn place_inner(entries: &mut [Entry], header: &Header) -> Result<(), RecordError> {
    let Some(last) = entries.last().map(|entry| entry.position as i64) else {
        return Err(Malformed("an empty set"));
    };
    // Old librdkafka left 0 in the wrapper: its messages then count from 0.
    let shift = if header.magic == 0 || (header.base == 0 && last > 0) { 0 } else { header.base - last };
    for entry in entries.iter_mut() {
        let position = entry.position as i64 + shift;
        entry.position = u64::try_from(position).map_err(|_| Malformed("a negative offset"))?;
        if header.attributes & ATTRIBUTE_APPEND_TIME != 0 {
            entry.time = time_ns(header.max_time);
        }
    }
    if entries.windows(2).any(|pair| pair[1].position <= pair[0].position) {
        return Err(Malformed("offsets do not ascend within the set"));
    }
    Ok(())
}

fn message_old(bytes: &[u8], start: usize, header: &Header, subject: Span) -> Result<Entry, RecordError> {
    let mut at = ATTRIBUTES_OLD + 1 + if header.magic == 0 { 0 } else { 8 };
    debug_assert!(bytes.len() >= if header.magic == 0 { FIXED_V0 } else { FIXED_V1 });
    let mut field = || {
        let length = i32::from_be_bytes(*bytes.get(at..)?.first_chunk::<4>()?);
        at += 4;
        if length == -1 {
            return Some(Span::NULL);
        }
        let length = usize::try_from(length).ok().filter(|length| *length <= bytes.len() - at)?;
        let span = Span { offset: (start + at) as u32, len: length as u32 };
        at += length;
        Some(span)
    };
    let key = field().ok_or(Malformed("the key is cut"))?;
    let data = field().ok_or(Malformed("the value is cut"))?;
    if at != bytes.len() {
        return Err(Malformed("bytes after the value"));
    }
    Ok(Entry {
        position: header.base as u64,
        time: time_ns(header.max_time),
        subject,
        key,
        headers: Span::NULL,
        data,
        flags: 0,
    })
}
