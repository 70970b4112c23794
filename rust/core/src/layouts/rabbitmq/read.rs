//! A queue's messages as batches: one segment at a time, straight over the file's bytes where that is possible.
//!
//! Subject is the first routing key, headers are the property block, time is what the publisher's properties say.
//! A message with an exchange, further keys or an expiry has them in the envelope behind its block; such a block, and
//! a body of several fragments, is a copy behind the file's bytes.

use std::sync::Arc;

use super::Finding;
use super::etf::{Message, Properties};
use super::props::{self, Block, Envelope, Facts};
use super::queue::{QueueIndex, state};
use super::record::{Action, Form, Publish, walk_segment};
use super::store::{MessageStore, StoreError};
use crate::batch::{Batch, BatchBuilder, Entry, HeaderCodec, Message as Row, Span};
use crate::disk::{Disk, DiskResult};

/// A segment file larger than this is not read: spans of a batch have 32 bits.
pub const SEGMENT_BYTES_MAX: u64 = 2 << 30;

/// A segment's embedded messages that are on disk, in order, acked ones too.
pub struct Cached {
    pub(super) number: u64,
    file_bytes: u64,
    batch: Batch,
    /// Sequences and expiries of messages in the store.
    stored: Vec<(u64, u64)>,
}

pub struct ReadLimits {
    pub max_msgs: usize,
    pub max_bytes: u64,
    /// Nothing at or above it is shown.
    pub below: u64,
}

#[derive(Default)]
pub struct Found {
    pub batches: Vec<Batch>,
    /// Where to go on.
    pub next: u64,
    pub findings: Vec<Finding>,
    pub lost: Vec<u64>,
}

struct Parts<'a> {
    block: std::borrow::Cow<'a, [u8]>,
    facts: Facts,
    envelope: Envelope<'a>,
}

fn parts<'a>(data: &'a [u8], message: &Message, expiry_us: u64) -> Option<Parts<'a>> {
    let block = match &message.properties {
        Properties::Block(span) => std::borrow::Cow::Borrowed(&data[span.clone()]),
        Properties::Decoded(span) => std::borrow::Cow::Owned(props::encode_decoded(&data[span.clone()])?),
    };
    let parsed = Block::parse(&block).filter(|parsed| parsed.end == block.len())?;
    let facts = parsed.facts(&block);
    let envelope = Envelope {
        exchange: &data[message.exchange.clone()],
        keys: if message.more_keys.0 == 0 { Vec::new() } else { message.more_keys(data) },
        expiry_us,
    };
    Some(Parts { block, facts, envelope })
}

fn span(offset: usize, len: usize) -> Span {
    Span { offset: offset as u32, len: len as u32 }
}

/// The entry of a message that can be served as it lies in the file.
fn entry_in_place(data: &[u8], sequence: u64, publish: &Publish, message: &Message) -> Option<Entry> {
    let Properties::Block(at) = &message.properties else { return None };
    let body = message.body.as_ref()?;
    let simple = message.exchange.is_empty() && message.more_keys.0 == 0 && publish.expiry_us == 0;
    if !simple {
        return None;
    }
    let block = &data[at.clone()];
    let parsed = Block::parse(block)?;
    if parsed.end != block.len() {
        return None;
    }
    let facts = parsed.facts(block);
    Some(Entry {
        position: sequence,
        time: facts.time_ns,
        subject: span(message.key.start, message.key.len()),
        key: facts.key.map_or(Span::NULL, |key| span(at.start + key.start, key.len())),
        headers: span(at.start, at.len()),
        data: if facts.null_body { Span::NULL } else { span(body.start, body.len()) },
        flags: 0,
    })
}

/// The same with the parts that must be put together appended to `data`.
fn entry_with_copies(data: &mut Vec<u8>, sequence: u64, publish: &Publish, message: &Message) -> Option<Entry> {
    let mut headers = Vec::new();
    let mut body = Vec::new();
    let facts = {
        let parts = parts(data, message, publish.expiry_us)?;
        headers.extend_from_slice(&parts.block);
        if !parts.envelope.is_empty() {
            parts.envelope.write(&mut headers);
        }
        message.copy_body(data, &mut body);
        parts.facts
    };
    let mut put = |bytes: &[u8]| {
        let at = span(data.len(), bytes.len());
        data.extend_from_slice(bytes);
        at
    };
    let at = put(&headers);
    let body = if facts.null_body { Span::NULL } else { put(&body) };
    Some(Entry {
        position: sequence,
        time: facts.time_ns,
        subject: span(message.key.start, message.key.len()),
        key: facts.key.map_or(Span::NULL, |key| span(at.offset as usize + key.start, key.len())),
        headers: at,
        data: body,
        flags: 0,
    })
}

/// A segment's publishes, gathered while its file is walked.
struct Gathered {
    base: u64,
    slots: Vec<Option<Entry>>,
    /// Those that cannot be served as they lie in the file.
    rest: Vec<Publish>,
    stored: Vec<(u64, u64)>,
}

impl Gathered {
    fn new(base: u64, count: u64) -> Gathered {
        Gathered { base, slots: vec![None; count as usize], rest: Vec::new(), stored: Vec::new() }
    }

    fn see(&mut self, data: &[u8], publish: Publish) {
        let sequence = self.base + publish.number;
        match &publish.message {
            None => self.stored.push((sequence, publish.expiry_us)),
            Some(message) => match entry_in_place(data, sequence, &publish, message) {
                Some(entry) => self.slots[publish.number as usize] = Some(entry),
                None => self.rest.push(publish),
            },
        }
    }

    /// And the sequences of messages that cannot be read.
    fn cached(mut self, number: u64, mut data: Vec<u8>) -> (Cached, Vec<u64>) {
        let (file_bytes, mut unreadable) = (data.len() as u64, Vec::new());
        for publish in self.rest {
            let sequence = self.base + publish.number;
            let message = publish.message.as_ref().expect("only those with one were kept");
            match entry_with_copies(&mut data, sequence, &publish, message) {
                Some(entry) => self.slots[publish.number as usize] = Some(entry),
                None => unreadable.push(sequence),
            }
        }
        self.stored.sort_unstable();
        let batch = Batch::new(Arc::new(data), self.slots.into_iter().flatten().collect(), HeaderCodec::Amqp);
        (Cached { number, file_bytes, batch, stored: self.stored }, unreadable)
    }
}

impl QueueIndex {
    /// The next live messages from `first` on: those of one segment.
    pub fn read(
        &mut self,
        disk: &dyn Disk,
        directory: &str,
        store: &mut MessageStore,
        first: u64,
        limits: &ReadLimits,
    ) -> Result<Found, StoreError> {
        let mut found = Found { next: first, ..Found::default() };
        while found.batches.is_empty() && found.next < limits.below {
            let from = found.next / self.count;
            let wanted =
                self.segments.range(from..).find(|(_, segment)| segment.unacked > 0).map(|(number, _)| *number);
            let Some(number) = wanted.filter(|number| number * self.count < limits.below) else {
                found.next = found.next.max(limits.below);
                return Ok(found);
            };
            let start = found.next.max(number * self.count);
            if self.cold_from(start).is_some() {
                found.next = start; // to be loaded first
                return Ok(found);
            }
            self.read_segment(disk, directory, store, number, start, limits, &mut found)?;
        }
        Ok(found)
    }

    #[allow(clippy::too_many_arguments)] // one place to read from, one to write to
    fn read_segment(
        &mut self,
        disk: &dyn Disk,
        directory: &str,
        store: &mut MessageStore,
        number: u64,
        start: u64,
        limits: &ReadLimits,
        found: &mut Found,
    ) -> Result<(), StoreError> {
        let end = ((number + 1) * self.count).min(limits.below);
        self.cache(disk, directory, number, found)?;
        let mut wanted: Vec<(u64, bool)> = Vec::new();
        let mut total = 0;
        let segment = &self.segments[&number];
        let base = number * self.count;
        let mut stop = end;
        for sequence in start..end {
            let (flags, size) = (segment.states[(sequence - base) as usize], segment.sizes[(sequence - base) as usize]);
            if !state::live(flags) {
                continue;
            }
            if wanted.len() >= limits.max_msgs || (total >= limits.max_bytes && !wanted.is_empty()) {
                stop = sequence;
                break;
            }
            total += u64::from(size);
            let in_file = flags & (state::STORED | state::TWICE) == 0 && flags & state::P_DISK != 0;
            wanted.push((sequence, in_file));
        }
        found.next = stop;
        let cached = self.cached.as_ref().filter(|cached| cached.number == number);
        if wanted.iter().all(|(_, in_file)| *in_file) {
            let Some(cached) = cached else { return Ok(()) };
            let entries = cached.batch.entries();
            let low = entries.partition_point(|entry| entry.position < start);
            let high = entries.partition_point(|entry| entry.position < stop);
            let batch = if high - low == wanted.len() {
                cached.batch.slice(low..high)
            } else {
                let live: Vec<u8> = entries[low..high]
                    .iter()
                    .map(|e| u8::from(state::live(segment.states[(e.position - base) as usize])))
                    .collect();
                cached.batch.slice(low..high).select(&live)
            };
            if !batch.is_empty() {
                found.batches.push(batch);
            }
            return Ok(());
        }
        let batch = self.put_together(store, &wanted, number, found)?;
        if !batch.is_empty() {
            found.batches.push(batch);
        }
        found.lost.iter().for_each(|sequence| self.lose(*sequence));
        Ok(())
    }

    /// The segment file's messages, parsed once as long as nothing else is read.
    fn cache(&mut self, disk: &dyn Disk, directory: &str, number: u64, found: &mut Found) -> Result<(), StoreError> {
        let file_bytes = self.segments[&number].file_bytes;
        let fresh = self.cached.as_ref().is_some_and(|c| c.number == number && c.file_bytes == file_bytes);
        if file_bytes == 0 || fresh {
            return Ok(());
        }
        let data = disk.read(&format!("{directory}/{number}.idx"), SEGMENT_BYTES_MAX)?;
        let mut gathered = Gathered::new(number * self.count, self.count);
        walk_segment(&data, self.count, |action| {
            if let Action::Publish(publish) = action {
                gathered.see(&data, publish);
            }
        });
        found.lost.extend(self.keep(gathered.cached(number, data)));
        Ok(())
    }

    fn keep(&mut self, (cached, unreadable): (Cached, Vec<u64>)) -> Vec<u64> {
        self.cached = Some(cached);
        unreadable.iter().for_each(|sequence| self.lose(*sequence));
        unreadable
    }

    /// Takes in a segment's file that is to be read next: walked once, for the map and for its messages.
    pub fn load_for_reading(&mut self, disk: &dyn Disk, directory: &str, number: u64) -> DiskResult<Found> {
        let data = disk.read(&format!("{directory}/{number}.idx"), SEGMENT_BYTES_MAX)?;
        let mut gathered = Gathered::new(number * self.count, self.count);
        let findings = self.take_segment(number, &data, |publish| gathered.see(&data, publish));
        let lost = self.keep(gathered.cached(number, data));
        Ok(Found { findings, lost, ..Found::default() })
    }

    /// One batch out of several places: segment, journal, store.
    fn put_together(
        &self,
        store: &mut MessageStore,
        wanted: &[(u64, bool)],
        number: u64,
        found: &mut Found,
    ) -> Result<Batch, StoreError> {
        let segment = &self.segments[&number];
        let base = number * self.count;
        let cached = self.cached.as_ref().filter(|cached| cached.number == number);
        let bytes = wanted.iter().map(|(s, _)| segment.sizes[(s - base) as usize] as usize + 64).sum();
        let mut builder = BatchBuilder::with_capacity(wanted.len(), bytes, HeaderCodec::Amqp);
        for (sequence, _) in wanted {
            let rel = (sequence - base) as usize;
            let flags = segment.states[rel];
            if flags & state::STORED != 0 {
                let known = self.stored.get(sequence).and_then(|id| store.locate(id).map(|at| (*id, at)));
                let record = match known {
                    Some((id, location)) => match store.record(&id, location) {
                        Ok(record) => Some(record),
                        Err(StoreError::Disk(error)) => return Err(error.into()),
                        Err(error) => {
                            found.findings.push(Finding::new("missing", 0, 0, error.to_string()).about(*sequence));
                            None
                        }
                    },
                    None => None,
                };
                let expiry = self.expiry_of(*sequence, rel, number, cached);
                let pushed = record.is_some_and(|record| {
                    Message::parse(&record, 24).is_some_and(|m| push(&mut builder, *sequence, &record, &m, expiry))
                });
                if !pushed {
                    found.lost.push(*sequence);
                }
            } else if flags & state::P_DISK != 0 && flags & state::TWICE == 0 {
                let entry = cached.and_then(|cached| {
                    let entries = cached.batch.entries();
                    let at = entries.binary_search_by_key(sequence, |entry| entry.position).ok()?;
                    Some((&cached.batch, entries[at]))
                });
                let Some((batch, entry)) = entry else {
                    found.lost.push(*sequence);
                    continue;
                };
                let optional = |span: Span| (!span.is_null()).then(|| batch.bytes(span));
                let row = Row {
                    position: entry.position,
                    time: entry.time,
                    subject: batch.bytes(entry.subject),
                    key: optional(entry.key),
                    headers: optional(entry.headers),
                    data: optional(entry.data),
                    flags: entry.flags,
                };
                if builder.push(row).is_err() {
                    found.next = *sequence;
                    break;
                }
            } else {
                let at = segment.offsets[rel] as usize;
                let body = at + Form::Journal.fixed_bytes();
                let expiry = journal_expiry(&self.journal, at);
                let pushed = Message::parse(&self.journal, body)
                    .is_some_and(|m| push(&mut builder, *sequence, &self.journal, &m, expiry));
                if !pushed {
                    found.lost.push(*sequence);
                }
            }
        }
        Ok(builder.finish())
    }

    fn expiry_of(&self, sequence: u64, rel: usize, number: u64, cached: Option<&Cached>) -> u64 {
        let segment = &self.segments[&number];
        if segment.states[rel] & state::P_DISK == 0 || segment.states[rel] & state::TWICE != 0 {
            return journal_expiry(&self.journal, segment.offsets[rel] as usize);
        }
        let stored = cached.map_or(&[][..], |cached| &cached.stored);
        stored.binary_search_by_key(&sequence, |(at, _)| *at).map_or(0, |at| stored[at].1)
    }
}

fn journal_expiry(journal: &[u8], at: usize) -> u64 {
    let from = at + Form::Journal.head_bytes() + 16;
    journal.get(from..from + 8).map_or(0, |b| b.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn push(builder: &mut BatchBuilder, sequence: u64, data: &[u8], message: &Message, expiry_us: u64) -> bool {
    let Some(parts) = parts(data, message, expiry_us) else { return false };
    let mut body = Vec::new();
    let body: &[u8] = match &message.body {
        Some(span) => &data[span.clone()],
        None => {
            message.copy_body(data, &mut body);
            &body
        }
    };
    let mut headers = parts.block.to_vec();
    if !parts.envelope.is_empty() {
        parts.envelope.write(&mut headers);
    }
    let row = Row {
        position: sequence,
        time: parts.facts.time_ns,
        subject: &data[message.key.clone()],
        key: parts.facts.key.map(|key| &parts.block[key]),
        headers: Some(&headers),
        data: (!parts.facts.null_body).then_some(body),
        flags: 0,
    };
    builder.push(row).is_ok()
}
