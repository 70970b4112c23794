//! One queue's index in memory: the segment map.
//!
//! ```text
//! segment number → states of its entries (published, delivered, acked; on disk or in the journal), unacked count
//! journal        → the bytes written since the last flush; a publish's state points into them
//! ```
//! A change is staged (bytes for the files), written by the caller, and only then applied to the map: journal first,
//! then the map. A flush writes per segment what its file lacks; where both the file and the journal know something,
//! the union counts.

use std::collections::BTreeMap;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::etf::NewMessage;
use super::props::{self, Block, Envelope, Given};
use super::record::{Action, Form, Publish, PublishRest, put_ack, put_deliver, put_rel, walk_journal, walk_segment};
use super::store::{MessageStore, put_record};
use super::{Finding, MessageId};
use crate::batch::{Batch, Entry, HeaderCodec, flags};
use crate::columns::nats_headers;
use crate::disk::{DiskFile, DiskResult};

pub(super) mod state {
    pub const P_DISK: u16 = 1;
    pub const D_DISK: u16 = 2;
    pub const A_DISK: u16 = 4;
    pub const P: u16 = 8;
    pub const D: u16 = 16;
    pub const A: u16 = 32;
    pub const STORED: u16 = 64;
    pub const TRANSIENT: u16 = 128;
    /// Handed to a consumer in this life; RabbitMQ since 3.10 keeps that in memory only.
    pub const SENT: u16 = 256;
    /// The index knows it, its message cannot be read.
    pub const LOST: u16 = 512;
    /// On disk and in the journal: the journal is older and whole, the segment may be half written.
    pub const TWICE: u16 = 1024;

    pub fn published(state: u16) -> bool {
        state & (P | P_DISK) != 0
    }

    pub fn delivered(state: u16) -> bool {
        state & (D | D_DISK) != 0
    }

    pub fn unacked(state: u16) -> bool {
        published(state) && state & (A | A_DISK) == 0
    }

    pub fn live(state: u16) -> bool {
        unacked(state) && state & LOST == 0
    }
}
use state::*;

const KEY_BYTES_MAX: usize = 255;
const NO_OFFSET: u32 = u32::MAX;
/// A sequence this far above every publish is a damaged number, not one that was given out.
const PLAUSIBLE_AHEAD: u64 = 1 << 20;
/// So many entries at most are laid out because a journal names them: 6 bytes each.
const ENTRIES_MAX: u64 = 1 << 27;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum QueueError {
    #[error("message {at} has position {position}; the next free one is {next}, and positions must grow")]
    NotAbove { at: usize, position: u64, next: u64 },
    #[error("message {at}: a routing key has {len} bytes; AMQP allows 255")]
    KeyTooLong { at: usize, len: usize },
    #[error("message {at}: its AMQP property block cannot be read")]
    BadProperties { at: usize },
    #[error("a change is staged already: apply or abandon it first")]
    Staged,
}

pub(super) struct Segment {
    pub states: Vec<u16>,
    pub sizes: Vec<u32>,
    /// Where a publish lies in the journal; empty when none does.
    pub offsets: Vec<u32>,
    pub unacked: u32,
    pub file_bytes: u64,
    /// Entries with something in the journal.
    pub dirty: bool,
}

impl Segment {
    fn new(count: usize) -> Segment {
        let (states, sizes) = (vec![0; count], vec![0; count]);
        Segment { states, sizes, offsets: Vec::new(), unacked: 0, file_bytes: 0, dirty: false }
    }
}

/// How messages are to be written.
pub struct Rules<'a> {
    pub vhost: &'a [u8],
    pub queue: &'a [u8],
    pub now_ns: i64,
    pub keep_positions: bool,
    pub embed_below: usize,
    /// A deliver record directly behind each publish, as RabbitMQ 3.10 writes it.
    pub deliver: bool,
    /// Ids of messages that another queue took already, 16 bytes each; empty: new ones.
    pub ids: &'a [u8],
    /// The current store file's length, and when it is full.
    pub store_bytes: u64,
    pub store_limit: u64,
}

/// Bytes for one store file, and what lies where in them.
#[derive(Default)]
pub struct Chunk {
    pub bytes: Vec<u8>,
    pub records: Vec<(MessageId, u32, u32)>,
}

/// What the caller is to write before it applies the change.
#[derive(Default)]
pub struct Written {
    /// Its records within the journal's bytes in memory.
    pub journal: std::ops::Range<usize>,
    /// The first goes to the end of the current store file, each further one to a new file.
    pub chunks: Vec<Chunk>,
    pub first: u64,
    pub next: u64,
    pub ids: Vec<u8>,
    pub count: u64,
}

enum Step {
    Publish { sequence: u64, offset: u32, size: u32, stored: Option<MessageId>, delivered: bool },
    Deliver(u64),
    Ack(u64),
}

#[derive(Default)]
struct Staged {
    /// Where its records begin in the journal's bytes.
    start: usize,
    steps: Vec<Step>,
    next: u64,
    records: usize,
}

/// What a flush does to one segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    Delete(u64),
    Append(u64),
}

pub struct QueueIndex {
    pub(super) count: u64,
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) journal: Vec<u8>,
    pub(super) stored: HashMap<u64, MessageId, FixedState>,
    pub(super) cached: Option<super::read::Cached>,
    staged: Option<Staged>,
    scratch: Vec<u8>,
    dirty: usize,
    next: u64,
    messages: u64,
    bytes: u64,
    lost: u64,
    ids: (u64, u64),
}

/// The numbers of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    pub messages: u64,
    pub bytes: u64,
    pub lost: u64,
    pub next: u64,
    pub dirty: usize,
    pub journal_bytes: usize,
}

impl QueueIndex {
    /// `count` entries per segment; `seed` makes message ids unique.
    pub fn new(count: u64, seed: (u64, u64)) -> QueueIndex {
        QueueIndex {
            count: count.clamp(1, super::record::REL_MAX),
            segments: BTreeMap::new(),
            journal: Vec::new(),
            stored: HashMap::with_hasher(FixedState::default()),
            cached: None,
            staged: None,
            scratch: Vec::new(),
            dirty: 0,
            next: 0,
            messages: 0,
            bytes: 0,
            lost: 0,
            ids: seed,
        }
    }

    pub fn totals(&self) -> Totals {
        Totals {
            messages: self.messages,
            bytes: self.bytes,
            lost: self.lost,
            next: self.next,
            dirty: self.dirty,
            journal_bytes: self.journal.len(),
        }
    }

    /// (segment, unacked, bytes of its file, has journal entries)
    pub fn segments(&self) -> Vec<(u64, u32, u64, bool)> {
        self.segments.iter().map(|(n, s)| (*n, s.unacked, s.file_bytes, s.dirty)).collect()
    }

    pub fn raise_next(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    // Loading

    /// Takes in a segment file; journal last.
    pub fn load_segment(&mut self, number: u64, data: &[u8]) -> Vec<Finding> {
        let count = self.count;
        let mut segment = Segment::new(count as usize);
        segment.file_bytes = data.len() as u64;
        let stored = &mut self.stored;
        let mut highest = None;
        let base = number.saturating_mul(count);
        let mut findings = walk_segment(data, count, |action| {
            let rel = match &action {
                Action::Publish(publish) => publish.number,
                Action::Deliver(rel) | Action::Ack(rel) | Action::Lost(rel) => *rel,
            };
            let state = &mut segment.states[rel as usize];
            match action {
                Action::Publish(publish) => {
                    *state |= P_DISK | if publish.persistent { 0 } else { TRANSIENT };
                    segment.sizes[rel as usize] = publish.size;
                    if publish.message.is_none() {
                        *state |= STORED;
                        stored.insert(base + rel, publish.id);
                    }
                    highest = highest.max(Some(rel));
                }
                Action::Lost(_) => {
                    *state |= P_DISK | LOST;
                    highest = highest.max(Some(rel));
                }
                Action::Deliver(_) => *state |= D_DISK,
                Action::Ack(_) => {
                    *state |= A_DISK;
                    stored.remove(&(base + rel));
                }
            }
        });
        for finding in &mut findings {
            finding.sequences = finding.sequences.map(|(first, next)| (base + first, base + next));
        }
        for (state, size) in segment.states.iter().zip(&segment.sizes).filter(|(state, _)| unacked(**state)) {
            segment.unacked += 1;
            if *state & LOST == 0 {
                self.messages += 1;
                self.bytes += u64::from(*size);
            } else {
                self.lost += 1;
            }
        }
        if let Some(rel) = highest {
            self.next = self.next.max(base + rel + 1);
        }
        self.segments.insert(number, segment);
        findings
    }

    /// Takes in the journal, after all segments.
    pub fn load_journal(&mut self, data: Vec<u8>) -> Vec<Finding> {
        let mut actions = Vec::new();
        let mut findings = walk_journal(&data, |action| actions.push(action));
        let data = if findings.is_empty() { data } else { straightened(&data, &mut actions) };
        let mut suggested = 0;
        for action in actions {
            match action {
                Action::Publish(publish) if publish.number < u64::MAX >> 2 => {
                    self.dirty += 1;
                    let sequence = publish.number;
                    let fresh = !self.segments.contains_key(&(sequence / self.count));
                    if fresh && self.segments.len() as u64 * self.count > ENTRIES_MAX {
                        let text = "a publish far from all others; the map would grow too large";
                        findings.push(Finding::new("bad-record", publish.offset, 0, text).about(sequence));
                        continue;
                    }
                    let (rel, segment) = self.entry(sequence);
                    if segment.states[rel] & (P | TWICE) != 0 {
                        let text = "a second publish with the same sequence; the first is used";
                        findings.push(Finding::new("bad-record", publish.offset, 0, text).about(sequence));
                        continue;
                    }
                    if published(segment.states[rel]) {
                        // Flushed before the journal was cleared.
                        segment.place(rel, publish.offset as u32);
                        segment.states[rel] = (segment.states[rel] & !STORED) | TWICE;
                        segment.states[rel] |= if publish.message.is_none() { STORED } else { 0 };
                        segment.sizes[rel] = publish.size;
                        if unacked(segment.states[rel]) {
                            if segment.states[rel] & LOST != 0 {
                                segment.states[rel] &= !LOST;
                                (self.lost, self.messages) = (self.lost - 1, self.messages + 1);
                            }
                            match publish.message {
                                None => self.stored.insert(sequence, publish.id),
                                Some(_) => self.stored.remove(&sequence),
                            };
                        }
                        continue;
                    }
                    segment.put(rel, publish.offset as u32);
                    segment.states[rel] |= if publish.persistent { 0 } else { TRANSIENT };
                    segment.sizes[rel] = publish.size;
                    segment.unacked += 1;
                    if publish.message.is_none() {
                        segment.states[rel] |= STORED;
                        self.stored.insert(sequence, publish.id);
                    }
                    self.messages += 1;
                    self.bytes += u64::from(publish.size);
                    self.next = self.next.max(sequence + 1);
                }
                Action::Publish(_) => {}
                Action::Lost(sequence) => {
                    suggested = suggested.max(sequence + 1);
                    self.lost += 1;
                }
                Action::Deliver(sequence) => {
                    self.dirty += 1;
                    suggested = suggested.max(sequence + 1);
                    self.apply_deliver(sequence);
                }
                Action::Ack(sequence) => {
                    self.dirty += 1;
                    suggested = suggested.max(sequence + 1);
                    self.apply_ack(sequence);
                }
            }
        }
        if suggested > self.next {
            if suggested - self.next < PLAUSIBLE_AHEAD {
                self.next = suggested;
            } else {
                let text = format!("a record for sequence {}, far above every publish", suggested - 1);
                findings.push(Finding::new("bad-record", 0, 0, text).about(suggested - 1));
            }
        }
        self.journal = data;
        findings
    }

    fn entry(&mut self, sequence: u64) -> (usize, &mut Segment) {
        let count = self.count;
        let segment = self.segments.entry(sequence / count).or_insert_with(|| Segment::new(count as usize));
        ((sequence % count) as usize, segment)
    }

    pub(super) fn state_of(&self, sequence: u64) -> u16 {
        let rel = (sequence % self.count) as usize;
        self.segments.get(&(sequence / self.count)).map_or(0, |segment| segment.states[rel])
    }

    // References into the store

    /// Counts this queue's references (or only looks, with `count` false); messages that are not there become lost.
    pub fn reference(&mut self, store: &mut MessageStore, count: bool) -> Vec<u64> {
        let wanted: Vec<(u64, MessageId)> = self.stored.iter().map(|(sequence, id)| (*sequence, *id)).collect();
        let mut missing: Vec<u64> = Vec::new();
        for (sequence, id) in wanted {
            if !store.contains(&id) {
                missing.push(sequence);
            } else if count {
                store.add_references(std::iter::once(&id));
            }
        }
        missing.sort_unstable();
        missing.iter().for_each(|sequence| self.lose(*sequence));
        missing
    }

    /// The message of this entry cannot be read.
    pub fn lose(&mut self, sequence: u64) {
        if !live(self.state_of(sequence)) {
            return;
        }
        let (rel, segment) = self.entry(sequence);
        segment.states[rel] |= LOST;
        let size = u64::from(segment.sizes[rel]);
        (self.messages, self.bytes, self.lost) = (self.messages - 1, self.bytes.saturating_sub(size), self.lost + 1);
    }

    pub fn stored_ids(&self) -> impl Iterator<Item = &MessageId> {
        self.stored.values()
    }

    // Changing: stage, then apply

    fn new_id(&mut self) -> MessageId {
        self.ids.1 = self.ids.1.wrapping_add(1);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.ids.0.to_be_bytes());
        // Mixed, so that no two ids are a flipped bit apart.
        let mut low = self.ids.1;
        low = (low ^ (low >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        low = (low ^ (low >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        id[8..].copy_from_slice(&(low ^ (low >> 31)).to_be_bytes());
        id
    }

    pub fn stage_publish(
        &mut self,
        batch: &Batch,
        rules: &Rules<'_>,
        store: &MessageStore,
    ) -> Result<Written, QueueError> {
        if self.staged.is_some() {
            return Err(QueueError::Staged);
        }
        let mut written = Written { chunks: vec![Chunk::default()], ..Written::default() };
        let mut staged = Staged { start: self.journal.len(), next: self.next, ..Staged::default() };
        staged.steps.reserve(batch.len());
        let staging = self.encode_publishes(batch, rules, store, &mut staged, &mut written);
        if let Err(error) = staging {
            self.journal.truncate(staged.start);
            return Err(error);
        }
        (written.journal, written.next) = (staged.start..self.journal.len(), staged.next);
        if written.count == 0 {
            written.first = written.next;
        }
        self.staged = Some(staged);
        Ok(written)
    }

    fn encode_publishes(
        &mut self,
        batch: &Batch,
        rules: &Rules<'_>,
        store: &MessageStore,
        staged: &mut Staged,
        written: &mut Written,
    ) -> Result<(), QueueError> {
        self.journal.reserve(batch.payload_bytes() as usize + batch.len() * 256);
        let mut keys: Vec<&[u8]> = Vec::new();
        let mut blocks = Blocks::new(batch, rules);
        let mut file_bytes = rules.store_bytes;
        for (at, entry) in batch.entries().iter().enumerate() {
            if rules.keep_positions {
                if entry.position < staged.next {
                    return Err(QueueError::NotAbove { at, position: entry.position, next: staged.next });
                }
                staged.next = entry.position;
            }
            let sequence = staged.next;
            staged.next += 1;
            if written.count == 0 {
                written.first = sequence;
            }
            if entry.flags & flags::PLACEHOLDER != 0 {
                written.ids.extend_from_slice(&[0; 16]);
                continue;
            }
            written.count += 1;
            let id = match rules.ids.get(at * 16..at * 16 + 16) {
                Some(id) => id.try_into().unwrap_or_default(),
                None => self.new_id(),
            };
            written.ids.extend_from_slice(&id);
            let (block, envelope) = blocks.of(entry).ok_or(QueueError::BadProperties { at })?;
            let subject = batch.bytes(entry.subject);
            keys.clear();
            keys.push(if subject.is_empty() { rules.queue } else { subject });
            keys.extend_from_slice(&envelope.keys);
            if let Some(long) = keys.iter().find(|key| key.len() > KEY_BYTES_MAX) {
                return Err(QueueError::KeyTooLong { at, len: long.len() });
            }
            let body = batch.bytes(entry.data);
            let message =
                NewMessage { vhost: rules.vhost, exchange: envelope.exchange, keys: &keys, block, body, id: &id };
            let stored = body.len() + block.len() >= rules.embed_below;
            let offset = self.journal.len() as u32;
            let rest = PublishRest { id: &id, expiry_us: envelope.expiry_us, size: body.len() as u32, embedded: &[] };
            if stored {
                Form::Journal.put_publish(&mut self.journal, sequence, true, &rest);
                if !store.contains(&id) {
                    let chunk = written.chunks.last_mut().expect("there is one from the start");
                    let start = chunk.bytes.len();
                    let total = put_record(&mut chunk.bytes, &id, |out| message.write(out));
                    chunk.records.push((id, start as u32, total as u32));
                    file_bytes += total as u64;
                    if file_bytes >= rules.store_limit {
                        written.chunks.push(Chunk::default());
                        file_bytes = 0;
                    }
                }
            } else {
                let size = message.size() as u32;
                Form::Journal.put_publish(&mut self.journal, sequence, true, &rest);
                let at = self.journal.len();
                self.journal[at - 4..].copy_from_slice(&size.to_be_bytes());
                message.write(&mut self.journal);
                debug_assert_eq!(self.journal.len() - at, size as usize);
            }
            if rules.deliver {
                put_deliver(&mut self.journal, sequence);
            }
            staged.records += 1 + usize::from(rules.deliver);
            let stored = stored.then_some(id);
            let size = body.len() as u32;
            staged.steps.push(Step::Publish { sequence, offset, size, stored, delivered: rules.deliver });
        }
        Ok(())
    }

    /// Deliver or ack records for those of the positions that want one.
    pub fn stage_moves(&mut self, positions: &[u64], ack: bool, record: bool) -> Result<Written, QueueError> {
        if self.staged.is_some() {
            return Err(QueueError::Staged);
        }
        let mut staged = Staged { start: self.journal.len(), next: self.next, ..Staged::default() };
        let mut written = Written { first: u64::MAX, ..Written::default() };
        let mut positions = positions.to_vec();
        positions.sort_unstable();
        positions.dedup();
        for sequence in positions {
            let state = self.state_of(sequence);
            if !unacked(state) {
                continue;
            }
            // RabbitMQ cannot read an ack without a deliver before it.
            if !delivered(state) && (ack || record) {
                put_deliver(&mut self.journal, sequence);
                staged.steps.push(Step::Deliver(sequence));
                staged.records += 1;
            }
            if ack {
                put_ack(&mut self.journal, sequence);
                staged.steps.push(Step::Ack(sequence));
                staged.records += 1;
            } else {
                let (rel, segment) = self.entry(sequence);
                segment.states[rel] |= SENT;
            }
            written.count += 1;
            (written.first, written.next) = (written.first.min(sequence), sequence + 1);
        }
        written.first = written.first.min(written.next);
        written.journal = staged.start..self.journal.len();
        self.staged = Some(staged);
        Ok(written)
    }

    /// Everything below `sequence` that is not acked, lost ones too.
    pub fn unacked_below(&self, sequence: u64) -> Vec<u64> {
        let mut found = Vec::new();
        for (number, segment) in self.segments.range(..=sequence / self.count) {
            let all = segment.states.iter().zip(number * self.count..);
            found.extend(all.filter(|(state, at)| *at < sequence && unacked(**state)).map(|(_, at)| at));
        }
        found
    }

    /// Delivered, not acked: [first, next) limited to `max` of them.
    pub fn pending(&self, max: usize) -> Vec<u64> {
        let all = self.segments.iter().flat_map(|(number, segment)| segment.states.iter().zip(number * self.count..));
        all.filter(|(state, _)| live(**state) && **state & SENT != 0).map(|(_, at)| at).take(max).collect()
    }

    /// Handed out before the map was unloaded.
    pub fn mark_sent(&mut self, positions: &[u64]) {
        for sequence in positions.iter().filter(|sequence| live(self.state_of(**sequence))).copied().collect::<Vec<_>>()
        {
            let (rel, segment) = self.entry(sequence);
            segment.states[rel] |= SENT;
        }
    }

    /// Above every sequence that the segment files will show after a flush.
    pub fn told_next(&self) -> u64 {
        let newest = self.segments.iter().rev().find(|(_, segment)| segment.unacked > 0);
        newest.map_or(0, |(number, segment)| {
            let rel = segment.states.iter().rposition(|state| published(*state)).map_or(0, |rel| rel as u64 + 1);
            number * self.count + rel
        })
    }

    /// The store files that hold messages of one segment.
    pub fn store_files(&self, number: u64, store: &MessageStore) -> Vec<super::store::FileKey> {
        let within = self.stored.iter().filter(|(sequence, _)| *sequence / self.count == number);
        let mut files: Vec<_> = within.filter_map(|(_, id)| store.locate(id)).map(|location| location.file).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Back to "not handed out".
    pub fn unsend(&mut self, positions: &[u64]) {
        for sequence in positions {
            let rel = (sequence % self.count) as usize;
            if let Some(segment) = self.segments.get_mut(&(sequence / self.count)) {
                segment.states[rel] &= !SENT;
            }
        }
    }

    pub fn first_live(&self) -> Option<u64> {
        self.segments.iter().filter(|(_, segment)| segment.unacked > 0).find_map(|(number, segment)| {
            segment.states.iter().position(|state| live(*state)).map(|rel| number * self.count + rel as u64)
        })
    }

    pub fn last_live(&self) -> Option<u64> {
        self.segments.iter().rev().filter(|(_, segment)| segment.unacked > 0).find_map(|(number, segment)| {
            segment.states.iter().rposition(|state| live(*state)).map(|rel| number * self.count + rel as u64)
        })
    }

    /// Nothing was written: as if it had never been staged.
    pub fn abandon(&mut self) {
        if let Some(staged) = self.staged.take() {
            self.journal.truncate(staged.start);
        }
    }

    /// Writes a piece of the journal to its file.
    pub fn write_journal(&self, piece: std::ops::Range<usize>, file: &dyn DiskFile, offset: u64) -> DiskResult<()> {
        file.write_at(offset, self.journal.get(piece).unwrap_or_default())
    }

    /// The staged bytes are in the journal. Returns the ids that this queue no longer references, and those it does now.
    pub fn apply(&mut self) -> (Vec<MessageId>, Vec<MessageId>) {
        let Some(staged) = self.staged.take() else { return Default::default() };
        self.dirty += staged.records;
        let (mut dropped, mut taken) = (Vec::new(), Vec::new());
        for step in staged.steps {
            match step {
                Step::Publish { sequence, offset, size, stored, delivered } => {
                    let (rel, segment) = self.entry(sequence);
                    segment.put(rel, offset);
                    segment.states[rel] |= if delivered { D } else { 0 } | if stored.is_some() { STORED } else { 0 };
                    segment.sizes[rel] = size;
                    segment.unacked += 1;
                    if let Some(id) = stored {
                        self.stored.insert(sequence, id);
                        taken.push(id);
                    }
                    (self.messages, self.bytes) = (self.messages + 1, self.bytes + u64::from(size));
                }
                Step::Deliver(sequence) => self.apply_deliver(sequence),
                Step::Ack(sequence) => dropped.extend(self.apply_ack(sequence)),
            }
        }
        self.next = self.next.max(staged.next);
        (dropped, taken)
    }

    fn apply_deliver(&mut self, sequence: u64) {
        if published(self.state_of(sequence)) {
            let (rel, segment) = self.entry(sequence);
            if !delivered(segment.states[rel]) {
                segment.states[rel] |= D;
                segment.dirty = true;
            }
        }
    }

    fn apply_ack(&mut self, sequence: u64) -> Option<MessageId> {
        if !unacked(self.state_of(sequence)) {
            return None;
        }
        let (rel, segment) = self.entry(sequence);
        let was_live = live(segment.states[rel]);
        let size = u64::from(segment.sizes[rel]);
        segment.unacked -= 1;
        segment.dirty = true;
        if segment.states[rel] & P_DISK == 0 {
            segment.states[rel] = 0; // published and acked within one journal: no trace in the segment
            segment.offsets[rel] = NO_OFFSET;
        } else {
            // An ack without a deliver (RabbitMQ hangs on it): a single rel-only record would read as the deliver.
            let missing = if delivered(segment.states[rel]) { 0 } else { D };
            segment.states[rel] |= A | missing;
        }
        if was_live {
            (self.messages, self.bytes) = (self.messages - 1, self.bytes.saturating_sub(size));
        } else {
            self.lost = self.lost.saturating_sub(1);
        }
        self.stored.remove(&sequence)
    }

    // Flushing

    /// What the segment files need, lowest segment first.
    pub fn plan_flush(&self) -> Vec<Flush> {
        let wanting = self.segments.iter().filter(|(_, segment)| segment.unacked == 0 || segment.dirty);
        wanting.map(|(n, segment)| if segment.unacked == 0 { Flush::Delete(*n) } else { Flush::Append(*n) }).collect()
    }

    /// Writes what a segment's file lacks; returns how many bytes. Entries go in descending order, as RabbitMQ's do.
    pub fn flush_segment(&mut self, number: u64, file: &dyn DiskFile, offset: u64) -> DiskResult<u64> {
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        if let Some(segment) = self.segments.get(&number) {
            self.encode(segment, &mut out);
        }
        let done = file.write_at(offset, &out).map(|()| out.len() as u64);
        self.scratch = out;
        done
    }

    fn encode(&self, segment: &Segment, out: &mut Vec<u8>) {
        for (rel, state) in segment.states.iter().enumerate().rev() {
            if state & (P | D | A) == 0 {
                continue;
            }
            if state & P != 0 {
                let at = segment.offsets[rel] as usize;
                let rest = &self.journal[at + Form::Journal.head_bytes()..];
                let end = Form::Journal.fixed_bytes() - Form::Journal.head_bytes();
                let embedded = u32::from_be_bytes([rest[end - 4], rest[end - 3], rest[end - 2], rest[end - 1]]);
                let kind: u16 = if state & TRANSIENT == 0 { 0xC000 } else { 0x8000 };
                out.extend_from_slice(&(kind | rel as u16).to_be_bytes());
                out.extend_from_slice(&rest[..(end + embedded as usize).min(rest.len())]);
            }
            if state & D != 0 {
                put_rel(out, rel as u16);
            }
            if state & A != 0 {
                put_rel(out, rel as u16);
            }
        }
    }

    /// The plan was carried out and the journal is empty now.
    pub fn flushed(&mut self) {
        self.segments.retain(|_, segment| segment.unacked > 0);
        for segment in self.segments.values_mut().filter(|segment| segment.dirty) {
            for state in &mut segment.states {
                *state = (*state & !(P | D | A | TWICE)) | (*state & (P | D | A)) >> 3;
            }
            (segment.offsets, segment.dirty) = (Vec::new(), false);
        }
        self.journal.clear();
        (self.dirty, self.cached) = (0, None);
    }

    /// After a flush: how long a segment's file is now.
    pub fn set_file_bytes(&mut self, number: u64, bytes: u64) {
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.file_bytes = bytes;
        }
    }
}

/// The journal's publishes as they should stand; each gets its new place.
fn straightened(data: &[u8], actions: &mut [Action]) -> Vec<u8> {
    let mut out = Vec::new();
    for action in actions {
        let Action::Publish(publish) = action else { continue };
        let body = publish.offset + Form::Journal.fixed_bytes();
        let term = publish.message.as_ref().map_or(&[][..], |message| &data[body..message.end]);
        let rest = PublishRest { id: &publish.id, expiry_us: publish.expiry_us, size: publish.size, embedded: term };
        publish.offset = out.len();
        Form::Journal.put_publish(&mut out, publish.number, publish.persistent, &rest);
    }
    out
}

/// A segment file anew, from what is sound in `data`; messages that cannot be read are left out, and those that the
/// journal has differently: a power cut during a flush leaves holes in the segment, not in the journal.
/// Returns the bytes and whether the journal contradicts.
pub fn rewritten(data: &[u8], number: u64, count: u64, journal: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    let mut kept = vec![false; count as usize];
    let mut rels = Vec::new();
    let (mut other, mut contradicted) = (HashMap::<u64, Publish, FixedState>::default(), false);
    walk_journal(journal, |action| {
        if let Action::Publish(publish) = action {
            other.insert(publish.number, publish);
        }
    });
    walk_segment(data, count, |action| match action {
        Action::Publish(publish) => {
            let body = publish.offset + Form::Segment.fixed_bytes();
            let term = publish.message.as_ref().map_or(&[][..], |message| &data[body..message.end]);
            if let Some(known) = other.get(&(number * count + publish.number)) {
                let body = known.offset + Form::Journal.fixed_bytes();
                let same = known.message.as_ref().map_or(&[][..], |message| &journal[body..message.end]) == term;
                if !same || known.id != publish.id || known.expiry_us != publish.expiry_us || known.size != publish.size
                {
                    contradicted = true;
                    return;
                }
            }
            let rest =
                PublishRest { id: &publish.id, expiry_us: publish.expiry_us, size: publish.size, embedded: term };
            Form::Segment.put_publish(&mut out, publish.number, publish.persistent, &rest);
            kept[publish.number as usize] = true;
        }
        Action::Deliver(rel) | Action::Ack(rel) => rels.push(rel),
        Action::Lost(_) => {}
    });
    for rel in rels.into_iter().filter(|rel| kept[*rel as usize]) {
        put_rel(&mut out, rel as u16);
    }
    (out, contradicted)
}

impl Segment {
    fn place(&mut self, rel: usize, offset: u32) {
        if self.offsets.is_empty() {
            self.offsets = vec![NO_OFFSET; self.states.len()];
        }
        self.offsets[rel] = offset;
    }

    fn put(&mut self, rel: usize, offset: u32) {
        self.place(rel, offset);
        self.states[rel] |= P;
        self.dirty = true;
    }
}

/// Property blocks for the messages of one batch; the usual one is made once.
struct Blocks<'a> {
    batch: &'a Batch,
    now_ns: i64,
    usual: Vec<u8>,
    own: Vec<u8>,
}

impl<'a> Blocks<'a> {
    fn new(batch: &'a Batch, rules: &Rules<'_>) -> Blocks<'a> {
        // Whole milliseconds: that is what the usual header can say.
        let now_ns = rules.now_ns - rules.now_ns.rem_euclid(1_000_000);
        let mut usual = Vec::new();
        props::write_block(&Given { time_ns: now_ns, ..Given::default() }, &mut usual);
        Blocks { batch, now_ns, usual, own: Vec::new() }
    }

    /// The block and what else the publisher said.
    fn of(&mut self, entry: &Entry) -> Option<(&[u8], Envelope<'a>)> {
        let batch = self.batch;
        let raw = batch.bytes(entry.headers);
        if batch.codec() == HeaderCodec::Amqp && !entry.headers.is_null() {
            let end = Block::parse(raw)?.end;
            return Some((&raw[..end], Envelope::parse(&raw[end..])));
        }
        let usual = entry.time == 0 && entry.key.is_null() && entry.headers.is_null() && !entry.data.is_null();
        if usual {
            return Some((&self.usual, Envelope::default()));
        }
        let mut given = Given {
            time_ns: if entry.time == 0 { self.now_ns } else { entry.time },
            key: (!entry.key.is_null()).then(|| batch.bytes(entry.key)),
            null_body: entry.data.is_null(),
            ..Given::default()
        };
        if !entry.headers.is_null() {
            match batch.codec() {
                HeaderCodec::Nats => {
                    let mut seen = Vec::new();
                    nats_headers(raw, &mut seen);
                    given.headers = seen
                        .into_iter()
                        .flat_map(|(name, all)| all.into_iter().map(move |value| (name, value)))
                        .collect();
                }
                HeaderCodec::Kafka => given.raw = Some((b"x-headers-kafka", raw)),
                HeaderCodec::RocketMq => given.raw = Some((b"x-headers-rocketmq", raw)),
                HeaderCodec::Amqp | HeaderCodec::None => given.raw = Some((b"x-headers", raw)),
            }
        }
        self.own.clear();
        props::write_block(&given, &mut self.own);
        Some((&self.own, Envelope::default()))
    }
}
