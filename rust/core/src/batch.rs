//! `Batch`, what passes through the storage interface: n messages over one shared buffer, immutable.
//!
//! ```text
//!   buffer   | ... orders.new | hdr | {"id":1} ... orders.new | {"id":2} ... |
//!   entries  [ position time subject key headers data flags ] x n     spans point into the buffer
//! ```
//! A slice shares both; a selection shares the buffer. A span may be null (key, headers, data): null
//! is not empty. A record that was read from a block points straight into the block's bytes.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::hash::HashKey;
use crate::large_buffer;
use crate::subjects::{Filter, Matcher};

/// A piece of the batch's buffer, or null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub offset: u32,
    pub len: u32,
}

impl Span {
    pub const NULL: Span = Span { offset: 0, len: u32::MAX };

    pub fn is_null(self) -> bool {
        self.len == u32::MAX
    }

    /// Bytes in the buffer; null counts nothing.
    pub fn size(self) -> usize {
        if self.is_null() { 0 } else { self.len as usize }
    }
}

/// The bytes of a span; null has none.
#[inline]
pub fn bytes_of(buffer: &[u8], span: Span) -> &[u8] {
    if span.is_null() {
        return &[];
    }
    let start = span.offset as usize;
    &buffer[start..start + span.len as usize]
}

/// How the raw header bytes are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderCodec {
    None,
    Nats,
    Kafka,
    Amqp,
    RocketMq,
}

impl HeaderCodec {
    pub fn name(self) -> &'static str {
        match self {
            HeaderCodec::None => "none",
            HeaderCodec::Nats => "nats",
            HeaderCodec::Kafka => "kafka",
            HeaderCodec::Amqp => "amqp",
            HeaderCodec::RocketMq => "rocketmq",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::None, Self::Nats, Self::Kafka, Self::Amqp, Self::RocketMq].into_iter().find(|codec| codec.name() == name)
    }
}

pub mod flags {
    pub const CONTROL: u8 = 1;
    pub const PLACEHOLDER: u8 = 2;
    pub const TRANSACTIONAL: u8 = 4;
}

#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub position: u64,
    /// Nanoseconds since 1970.
    pub time: i64,
    pub subject: Span,
    pub key: Span,
    pub headers: Span,
    pub data: Span,
    pub flags: u8,
}

#[derive(Clone)]
pub struct Batch {
    buffer: Arc<Vec<u8>>,
    entries: Arc<Vec<Entry>>,
    range: Range<usize>,
    codec: HeaderCodec,
}

impl Drop for Batch {
    fn drop(&mut self) {
        large_buffer::give_back_shared(&mut self.buffer);
    }
}

impl Batch {
    pub fn new(buffer: Arc<Vec<u8>>, entries: Vec<Entry>, codec: HeaderCodec) -> Self {
        let range = 0..entries.len();
        Batch { buffer, entries: Arc::new(entries), range, codec }
    }

    pub fn empty(codec: HeaderCodec) -> Self {
        Self::new(Arc::new(Vec::new()), Vec::new(), codec)
    }

    pub fn len(&self) -> usize {
        self.range.len()
    }

    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    pub fn codec(&self) -> HeaderCodec {
        self.codec
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries[self.range.clone()]
    }

    /// What all spans point into.
    pub fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    pub fn bytes(&self, span: Span) -> &[u8] {
        bytes_of(&self.buffer, span)
    }

    /// Subject, key, headers and data together: what a limit on bytes counts.
    pub fn payload_bytes(&self) -> u64 {
        let size = |e: &Entry| e.subject.size() + e.key.size() + e.headers.size() + e.data.size();
        self.entries().iter().map(|e| size(e) as u64).sum()
    }

    pub fn slice(&self, range: Range<usize>) -> Batch {
        let start = (self.range.start + range.start).min(self.range.end);
        let end = (self.range.start + range.end).clamp(start, self.range.end);
        let mut part = self.clone();
        part.range = start..end;
        part
    }

    /// The messages whose mask byte is not zero. The mask has one byte per message.
    pub fn select(&self, mask: &[u8]) -> Batch {
        let kept = self.entries().iter().zip(mask).filter(|(_, keep)| **keep != 0);
        Batch::new(self.buffer.clone(), kept.map(|(entry, _)| *entry).collect(), self.codec)
    }

    /// One batch for each part: the messages whose origin it is, in their order. The list has one origin per message.
    pub fn split(&self, origins: &[u32], parts: usize) -> Vec<Batch> {
        let mut found = vec![Vec::new(); parts];
        for (entry, origin) in self.entries().iter().zip(origins) {
            if let Some(entries) = found.get_mut(*origin as usize) {
                entries.push(*entry);
            }
        }
        found.into_iter().map(|entries| Batch::new(self.buffer.clone(), entries, self.codec)).collect()
    }

    /// The messages inside all bounds (half-open) and on one of the subjects, if any are given.
    pub fn filtered(
        &self,
        first: Option<u64>,
        next: Option<u64>,
        since: Option<i64>,
        until: Option<i64>,
        filters: &[Filter],
    ) -> Batch {
        let whole = |entry: &Entry| {
            first.is_none_or(|first| entry.position >= first)
                && next.is_none_or(|next| entry.position < next)
                && since.is_none_or(|since| entry.time >= since)
                && until.is_none_or(|until| entry.time < until)
        };
        let mut memo: (&[u8], bool) = (b"", false);
        let matcher = Matcher::new(filters);
        let mut on_subject = |entry: &Entry| {
            if filters.is_empty() {
                return true;
            }
            let subject = self.bytes(entry.subject);
            if subject != memo.0 || subject.is_empty() {
                memo = (subject, matcher.matches(subject));
            }
            memo.1
        };
        if self.entries().iter().all(|entry| whole(entry) && on_subject(entry)) {
            return self.clone();
        }
        let kept = self.entries().iter().filter(|entry| whole(entry) && on_subject(entry));
        Batch::new(self.buffer.clone(), kept.copied().collect(), self.codec)
    }

    /// Positions that follow each other without a gap, as half-open ranges.
    pub fn position_runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for entry in self.entries() {
            match runs.last_mut() {
                Some((_, next)) if *next == entry.position => *next += 1,
                _ => runs.push((entry.position, entry.position + 1)),
            }
        }
        runs
    }

    /// Whether no message is older than the one before it.
    pub fn in_time_order(&self) -> bool {
        self.entries().is_sorted_by_key(|entry| entry.time)
    }

    /// The messages whose position is not in the (sorted) list.
    pub fn without(&self, positions: &[u64]) -> Batch {
        if positions.is_empty() {
            return self.clone();
        }
        let kept = self.entries().iter().filter(|entry| positions.binary_search(&entry.position).is_err());
        Batch::new(self.buffer.clone(), kept.copied().collect(), self.codec)
    }

    /// The same messages with these positions, one for each.
    pub fn renumbered(&self, positions: impl Iterator<Item = u64>) -> Batch {
        let numbered = self.entries().iter().zip(positions);
        let entries = numbered.map(|(entry, position)| Entry { position, ..*entry }).collect();
        Batch::new(self.buffer.clone(), entries, self.codec)
    }

    /// Every subject once, in the order in which they come.
    pub fn subjects(&self) -> Vec<&[u8]> {
        let (mut known, mut found) = (HashSet::new(), Vec::new());
        let mut before: &[u8] = b"";
        for entry in self.entries() {
            let subject = self.bytes(entry.subject);
            if (subject != before || found.is_empty()) && known.insert(subject) {
                found.push(subject);
            }
            before = subject;
        }
        found
    }

    /// A hash of what each message says: subject, headers, data; null is not empty.
    pub fn content_hashes(&self) -> Vec<u64> {
        let key = HashKey::new(&[0; 32]);
        let one = |entry: &Entry| {
            let spans = [entry.subject, entry.headers, entry.data];
            let mut lengths = [0; 12];
            for (at, span) in spans.iter().enumerate() {
                lengths[at * 4..at * 4 + 4].copy_from_slice(&span.len.to_le_bytes());
            }
            let [subject, headers, data] = spans.map(|span| self.bytes(span));
            key.hash_pieces(&[&lengths, subject, headers, data])
        };
        self.entries().iter().map(one).collect()
    }

    /// One batch over one new buffer, with the messages of all, in order.
    pub fn concat(batches: &[Batch]) -> Result<Batch, TooLarge> {
        let codec = batches.first().map_or(HeaderCodec::None, |b| b.codec);
        let count = batches.iter().map(Batch::len).sum();
        let bytes = batches.iter().map(|b| b.payload_bytes() as usize).sum();
        let mut builder = BatchBuilder::with_capacity(count, bytes, codec);
        for batch in batches {
            for entry in batch.entries() {
                let optional = |span: Span| (!span.is_null()).then(|| batch.bytes(span));
                builder.push(Message {
                    position: entry.position,
                    time: entry.time,
                    subject: batch.bytes(entry.subject),
                    key: optional(entry.key),
                    headers: optional(entry.headers),
                    data: optional(entry.data),
                    flags: entry.flags,
                })?;
            }
        }
        Ok(builder.finish())
    }
}

/// One message on its way into a batch.
pub struct Message<'a> {
    pub position: u64,
    pub time: i64,
    pub subject: &'a [u8],
    pub key: Option<&'a [u8]>,
    pub headers: Option<&'a [u8]>,
    pub data: Option<&'a [u8]>,
    pub flags: u8,
}

/// Spans are 32-bit: a batch's buffer ends at 4 GiB.
#[derive(Debug, thiserror::Error)]
#[error("a batch holds at most 4 GiB; split it into smaller ones")]
pub struct TooLarge;

pub struct BatchBuilder {
    buffer: Vec<u8>,
    entries: Vec<Entry>,
    codec: HeaderCodec,
    last_subject: Span,
}

impl BatchBuilder {
    pub fn with_capacity(messages: usize, bytes: usize, codec: HeaderCodec) -> Self {
        BatchBuilder {
            buffer: Vec::with_capacity(bytes),
            entries: Vec::with_capacity(messages),
            codec,
            last_subject: Span::NULL,
        }
    }

    pub fn push(&mut self, message: Message<'_>) -> Result<(), TooLarge> {
        // Runs on one subject are the normal case: store its text once.
        let same = !self.last_subject.is_null() && self.bytes(self.last_subject) == message.subject;
        let subject = if same { self.last_subject } else { self.put(message.subject)? };
        self.last_subject = subject;
        let entry = Entry {
            position: message.position,
            time: message.time,
            subject,
            key: self.put_optional(message.key)?,
            headers: self.put_optional(message.headers)?,
            data: self.put_optional(message.data)?,
            flags: message.flags,
        };
        self.entries.push(entry);
        Ok(())
    }

    pub fn finish(self) -> Batch {
        Batch::new(Arc::new(self.buffer), self.entries, self.codec)
    }

    fn bytes(&self, span: Span) -> &[u8] {
        &self.buffer[span.offset as usize..span.offset as usize + span.len as usize]
    }

    fn put(&mut self, bytes: &[u8]) -> Result<Span, TooLarge> {
        let offset = u32::try_from(self.buffer.len()).map_err(|_| TooLarge)?;
        let len = u32::try_from(bytes.len()).ok().filter(|len| *len != u32::MAX).ok_or(TooLarge)?;
        offset.checked_add(len).ok_or(TooLarge)?;
        self.buffer.extend_from_slice(bytes);
        Ok(Span { offset, len })
    }

    fn put_optional(&mut self, bytes: Option<&[u8]>) -> Result<Span, TooLarge> {
        bytes.map_or(Ok(Span::NULL), |bytes| self.put(bytes))
    }
}
