//! What the exchange hands to the models above: runs of equal things, in the order of their arrival.
//!
//! Publishes to one stream, acks of one consumer, pull requests of one consumer are gathered into one run each,
//! until a call (an API request) comes: what follows it must not be seen by it, so it ends every open run.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::AccountId;
use crate::batch::{Batch, BatchBuilder, HeaderCodec, Message, Span};
use crate::ledger::AckRun;

pub mod kind {
    pub const CALL: u8 = 0;
    pub const INGEST: u8 = 1;
    pub const ACKS: u8 = 2;
    pub const PULLS: u8 = 3;
    pub const INTEREST: u8 = 4;
}

/// A run ends before its bytes outgrow what its 32-bit spans can say, and long before memory hurts.
const RUN_BYTES_MAX: usize = 64 << 20;

pub enum Item {
    Publish(u64, PublishRun),
    Acks(u64, AckRun),
    Pulls(u64, PullRun),
    Call(u64, Call),
    Interest(u64, bool),
}

/// One request for a room of the server, decided one by one.
pub struct Call {
    /// The connection it came from; None for the server's own.
    pub conn: Option<u32>,
    pub account: AccountId,
    pub subject: Vec<u8>,
    pub reply: Option<Vec<u8>>,
    pub headers: Option<Vec<u8>>,
    pub data: Vec<u8>,
}

/// What became of a message of a run, if it was not simply stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Not stored: the sequence that the same id got before.
    Duplicate(u64),
    /// Not stored: the text with this number, and the value that belongs into it.
    Refused(u32, u64),
    /// Decided in Python: answered by the text with this number, or not at all.
    Answered(Option<u32>),
}

/// Messages for one stream. Verdicts are sparse: all others get consecutive sequences when they are stored.
pub struct PublishRun {
    pub account: AccountId,
    pub batch: Batch,
    /// Reply subjects, spans of `texts`; null for those who want no answer.
    pub replies: Vec<Span>,
    pub texts: Vec<u8>,
    /// (message, verdict), growing by message.
    pub verdicts: Vec<(u32, Verdict)>,
    /// (first message, first sequence): from there on accepted ones count up.
    pub stored: Vec<(u32, u64)>,
    /// Answers that verdicts name.
    pub answers: Vec<Box<[u8]>>,
}

impl PublishRun {
    pub fn reply(&self, at: usize) -> Option<&[u8]> {
        let span = *self.replies.get(at)?;
        let start = span.offset as usize;
        (!span.is_null()).then(|| &self.texts[start..start + span.len as usize])
    }

    pub fn judged(&self, at: u32) -> bool {
        self.verdicts.binary_search_by_key(&at, |(of, _)| *of).is_ok()
    }

    pub fn judge(&mut self, at: u32, verdict: Verdict) {
        match self.verdicts.binary_search_by_key(&at, |(of, _)| *of) {
            Ok(known) => self.verdicts[known].1 = verdict,
            Err(place) => self.verdicts.insert(place, (at, verdict)),
        }
    }

    /// The same messages on other subjects, one for each.
    pub fn resubject(&mut self, subjects: &[String]) {
        let old = &self.batch;
        let mut builder = BatchBuilder::with_capacity(old.len(), old.payload_bytes() as usize, old.codec());
        for (entry, subject) in old.entries().iter().zip(subjects) {
            let optional = |span: Span| (!span.is_null()).then(|| old.bytes(span));
            let message = Message {
                position: entry.position,
                time: entry.time,
                subject: subject.as_bytes(),
                key: None,
                headers: optional(entry.headers),
                data: optional(entry.data),
                flags: entry.flags,
            };
            // A run never reaches the 4 GiB at which a push can fail.
            let _ = builder.push(message);
        }
        self.batch = builder.finish();
    }

    /// The number of an answer of its own.
    pub fn text(&mut self, body: &[u8]) -> u32 {
        self.answers.push(body.into());
        self.answers.len() as u32 - 1
    }

    /// The messages of `[start, stop)` that no verdict was given on.
    pub fn accepted(&self, start: usize, stop: usize) -> Batch {
        let judged = self.verdicts.iter().any(|(of, _)| (start..stop).contains(&(*of as usize)));
        let part = self.batch.slice(start..stop);
        if !judged {
            return part;
        }
        let mask: Vec<u8> = (start..start + part.len()).map(|at| u8::from(!self.judged(at as u32))).collect();
        part.select(&mask)
    }
}

struct OpenPublish {
    account: AccountId,
    builder: BatchBuilder,
    replies: Vec<Span>,
    texts: Vec<u8>,
    bytes: usize,
}

impl OpenPublish {
    fn new(account: AccountId) -> Self {
        let builder = BatchBuilder::with_capacity(16, 2048, HeaderCodec::Nats);
        OpenPublish { account, builder, replies: Vec::with_capacity(16), texts: Vec::new(), bytes: 0 }
    }

    fn finish(self) -> PublishRun {
        PublishRun {
            account: self.account,
            batch: self.builder.finish(),
            replies: self.replies,
            texts: self.texts,
            verdicts: Vec::new(),
            stored: Vec::new(),
            answers: Vec::new(),
        }
    }
}

/// Requests for messages of one consumer. Equal ones behind each other are one group.
#[derive(Default)]
pub struct PullRun {
    pub account: AccountId,
    pub texts: Vec<u8>,
    /// (payload, first reply, next reply)
    pub groups: Vec<(Box<[u8]>, usize, usize)>,
    pub replies: Vec<Span>,
}

impl PullRun {
    pub fn push(&mut self, payload: &[u8], reply: &[u8]) {
        let offset = self.texts.len() as u32;
        self.texts.extend_from_slice(reply);
        self.replies.push(Span { offset, len: reply.len() as u32 });
        let next = self.replies.len();
        match self.groups.last_mut() {
            Some((last, _, end)) if **last == *payload => *end = next,
            _ => self.groups.push((payload.into(), next - 1, next)),
        }
    }

    pub fn replies_of(&self, group: usize) -> impl Iterator<Item = &[u8]> {
        let (_, first, next) = &self.groups[group];
        self.replies[*first..*next].iter().map(|span| {
            let start = span.offset as usize;
            &self.texts[start..start + span.len as usize]
        })
    }
}

enum Slot {
    Publish(u64, OpenPublish),
    Acks(u64, AckRun),
    Pulls(u64, PullRun),
    Call(u64, Call),
    Interest(u64, bool),
}

/// The runs of one turn while they grow.
#[derive(Default)]
pub struct Gathering {
    slots: Vec<Slot>,
    open: HashMap<(u8, u64), usize, RandomState>,
    last: Option<(u8, u64, usize)>,
}

impl Gathering {
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn publish(&mut self, id: u64, account: AccountId, message: Message<'_>, reply: Option<&[u8]>) {
        let at = self.slot(kind::INGEST, id, || Slot::Publish(id, OpenPublish::new(account)));
        let Slot::Publish(_, run) = &mut self.slots[at] else { return };
        run.bytes += message.subject.len()
            + message.headers.map_or(0, <[u8]>::len)
            + message.data.map_or(0, <[u8]>::len)
            + reply.map_or(0, <[u8]>::len);
        // A run never reaches the 4 GiB at which a push can fail.
        let _ = run.builder.push(message);
        run.replies.push(match reply {
            Some(reply) => {
                let offset = run.texts.len() as u32;
                run.texts.extend_from_slice(reply);
                Span { offset, len: reply.len() as u32 }
            }
            None => Span::NULL,
        });
        if run.bytes > RUN_BYTES_MAX {
            self.close(kind::INGEST, id);
        }
    }

    pub fn acks(&mut self, id: u64) -> &mut AckRun {
        let at = self.slot(kind::ACKS, id, || Slot::Acks(id, AckRun::new()));
        match &mut self.slots[at] {
            Slot::Acks(_, run) => run,
            _ => unreachable!("the slot of this kind"),
        }
    }

    pub fn pull(&mut self, id: u64, account: AccountId, payload: &[u8], reply: &[u8]) {
        let at = self.slot(kind::PULLS, id, || Slot::Pulls(id, PullRun { account, ..PullRun::default() }));
        let Slot::Pulls(_, run) = &mut self.slots[at] else { return };
        run.push(payload, reply);
    }

    pub fn call(&mut self, id: u64, call: Call) {
        self.open.clear();
        self.last = None;
        self.slots.push(Slot::Call(id, call));
    }

    pub fn interest(&mut self, id: u64, some: bool) {
        self.slots.push(Slot::Interest(id, some));
    }

    pub fn take(&mut self) -> Vec<Item> {
        self.open.clear();
        self.last = None;
        let slots = std::mem::take(&mut self.slots);
        let item = |slot| match slot {
            Slot::Publish(id, run) => Item::Publish(id, run.finish()),
            Slot::Acks(id, run) => Item::Acks(id, run),
            Slot::Pulls(id, run) => Item::Pulls(id, run),
            Slot::Call(id, call) => Item::Call(id, call),
            Slot::Interest(id, some) => Item::Interest(id, some),
        };
        slots.into_iter().map(item).collect()
    }

    fn slot(&mut self, kind: u8, id: u64, make: impl FnOnce() -> Slot) -> usize {
        if let Some((last_kind, last_id, at)) = self.last {
            if last_kind == kind && last_id == id {
                return at;
            }
        }
        let at = *self.open.entry((kind, id)).or_insert_with(|| {
            self.slots.push(make());
            self.slots.len() - 1
        });
        self.last = Some((kind, id, at));
        at
    }

    fn close(&mut self, kind: u8, id: u64) {
        self.open.remove(&(kind, id));
        self.last = None;
    }
}
