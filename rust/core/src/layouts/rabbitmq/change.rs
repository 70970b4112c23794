//! Changing a queue: a batch of publishes, delivers or acks is staged as bytes, written by the caller, then applied.
//!
//! Staged records already stand at the end of the journal's bytes in memory; `abandon` takes them off again.

use std::ops::Range;

use super::MessageId;
use super::etf::NewMessage;
use super::props::{self, Block, Envelope, Given};
use super::queue::state::*;
use super::queue::{NO_OFFSET, QueueIndex, Segment};
use super::record::{Form, PublishRest, put_ack, put_deliver};
use super::store::{MessageStore, put_record};
use crate::batch::{Batch, Entry, HeaderCodec, flags};
use crate::columns::header_pairs;
use crate::disk::{DiskFile, DiskResult};

const KEY_BYTES_MAX: usize = 255;

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
    #[error("segment {segment} has not been read: load it first")]
    Cold { segment: u64 },
    #[error("rows of segments that do not fit together")]
    BadRows,
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
    pub journal: Range<usize>,
    /// The first goes to the end of the current store file, each further one to a new file.
    pub chunks: Vec<Chunk>,
    pub first: u64,
    pub next: u64,
    pub ids: Vec<u8>,
    pub count: u64,
}

/// A publish that stands in the journal's bytes.
struct Placed {
    sequence: u64,
    offset: u32,
    size: u32,
    stored: Option<MessageId>,
}

enum Move {
    Deliver(u64),
    Ack(u64),
}

#[derive(Default)]
pub(super) struct Staged {
    /// Where its records begin in the journal's bytes.
    start: usize,
    publishes: Vec<Placed>,
    /// Each publish has a deliver record behind it.
    delivered: bool,
    moves: Vec<Move>,
    next: u64,
    records: usize,
}

impl QueueIndex {
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
        self.refuse_cold(self.next / self.count)?;
        let mut written = Written { chunks: vec![Chunk::default()], ..Written::default() };
        let mut staged = Staged { start: self.journal.len(), next: self.next, ..Staged::default() };
        staged.publishes.reserve(batch.len());
        staged.delivered = rules.deliver;
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
        // Where the last message with the usual properties has its head, and its subject: the next one copies it.
        let mut usual: Option<(&[u8], Range<usize>)> = None;
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
                let same = usual.as_ref().filter(|(key, _)| Blocks::is_usual(entry) && *key == subject);
                match same {
                    Some((_, head)) => self.journal.extend_from_within(head.clone()),
                    None => {
                        message.write_head(&mut self.journal);
                        usual = Blocks::is_usual(entry).then_some((subject, at..self.journal.len()));
                    }
                }
                message.write_tail(&mut self.journal);
                debug_assert_eq!(self.journal.len() - at, size as usize);
            }
            if rules.deliver {
                put_deliver(&mut self.journal, sequence);
            }
            staged.records += 1 + usize::from(rules.deliver);
            let stored = stored.then_some(id);
            let size = body.len() as u32;
            staged.publishes.push(Placed { sequence, offset, size, stored });
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
        if let Some(segment) = self.cold_of(&positions).first() {
            return Err(QueueError::Cold { segment: *segment });
        }
        for sequence in positions {
            let state = self.state_of(sequence);
            if !unacked(state) {
                continue;
            }
            // RabbitMQ cannot read an ack without a deliver before it.
            if !delivered(state) && (ack || record) {
                put_deliver(&mut self.journal, sequence);
                staged.moves.push(Move::Deliver(sequence));
                staged.records += 1;
            }
            if ack {
                put_ack(&mut self.journal, sequence);
                staged.moves.push(Move::Ack(sequence));
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

    /// Nothing was written: as if it had never been staged.
    pub fn abandon(&mut self) {
        if let Some(staged) = self.staged.take() {
            self.journal.truncate(staged.start);
        }
    }

    /// Writes a piece of the journal to its file.
    pub fn write_journal(&self, piece: Range<usize>, file: &dyn DiskFile, offset: u64) -> DiskResult<()> {
        file.write_at(offset, self.journal.get(piece).unwrap_or_default())
    }

    /// The staged bytes are in the journal. Returns the ids that this queue no longer references, and those it does now.
    pub fn apply(&mut self) -> (Vec<MessageId>, Vec<MessageId>) {
        let Some(staged) = self.staged.take() else { return Default::default() };
        self.dirty += staged.records;
        let (mut dropped, mut taken) = (Vec::new(), Vec::new());
        let (count, known) = (self.count, if staged.delivered { D } else { 0 });
        let mut publishes = staged.publishes.into_iter().peekable();
        while let Some(first) = publishes.peek() {
            // Segment by segment: looked up once for all that fall into it.
            let base = first.sequence / count * count;
            let segment = self.segments.entry(base / count).or_insert_with(|| Segment::new(count as usize));
            while let Some(placed) = publishes.next_if(|placed| placed.sequence - base < count) {
                let rel = (placed.sequence - base) as usize;
                segment.put(rel, placed.offset);
                segment.states[rel] |= known;
                segment.sizes[rel] = placed.size;
                segment.unacked += 1;
                if let Some(id) = placed.stored {
                    segment.states[rel] |= STORED;
                    self.stored.insert(placed.sequence, id);
                    taken.push(id);
                }
                (self.messages, self.bytes) = (self.messages + 1, self.bytes + u64::from(placed.size));
            }
        }
        for step in staged.moves {
            match step {
                Move::Deliver(sequence) => self.apply_deliver(sequence),
                Move::Ack(sequence) => dropped.extend(self.apply_ack(sequence)),
            }
        }
        self.next = self.next.max(staged.next);
        (dropped, taken)
    }

    pub(super) fn apply_deliver(&mut self, sequence: u64) {
        if published(self.state_of(sequence)) {
            let (rel, segment) = self.entry(sequence);
            if !delivered(segment.states[rel]) {
                segment.states[rel] |= D;
                segment.dirty = true;
            }
        }
    }

    pub(super) fn apply_ack(&mut self, sequence: u64) -> Option<MessageId> {
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

    fn is_usual(entry: &Entry) -> bool {
        entry.time == 0 && entry.key.is_null() && entry.headers.is_null() && !entry.data.is_null()
    }

    /// The block and what else the publisher said.
    fn of(&mut self, entry: &Entry) -> Option<(&[u8], Envelope<'a>)> {
        let batch = self.batch;
        let raw = batch.bytes(entry.headers);
        if batch.codec() == HeaderCodec::Amqp && !entry.headers.is_null() {
            let end = Block::parse(raw)?.end;
            return Some((&raw[..end], Envelope::parse(&raw[end..])));
        }
        if Self::is_usual(entry) {
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
                    let mut pairs = Vec::new();
                    let _ = header_pairs(HeaderCodec::Nats, raw, &mut pairs);
                    given.headers = pairs.into_iter().map(|(name, value)| (name, value.unwrap_or(&[]))).collect();
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
