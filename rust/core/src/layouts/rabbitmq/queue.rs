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

use super::change::Staged;
pub use super::change::{Chunk, QueueError, Rules, Written};
use super::cold::Row;
use super::etf::straight;
pub use super::flush::{Flush, rewritten};
use super::record::{Action, Form, Publish, PublishRest, walk_journal, walk_segment};
use super::store::MessageStore;
use super::{Finding, MessageId};

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

pub(super) const NO_OFFSET: u32 = u32::MAX;
/// A sequence this far above every publish is a damaged number, not one that was given out.
const PLAUSIBLE_AHEAD: u64 = 1 << 20;
/// So many entries at most are laid out because a journal names them: 6 bytes each.
const ENTRIES_MAX: u64 = 1 << 27;

pub(super) struct Segment {
    pub states: Vec<u16>,
    pub sizes: Vec<u32>,
    /// Where a publish lies in the journal; empty when none does.
    pub offsets: Vec<u32>,
    pub unacked: u32,
    pub file_bytes: u64,
    /// Entries with something in the journal.
    pub dirty: bool,
    /// Its file has not been read: `states` and `sizes` are empty.
    pub cold: Option<Row>,
}

impl Segment {
    pub(super) fn new(count: usize) -> Segment {
        let (states, sizes) = (vec![0; count], vec![0; count]);
        Segment { states, sizes, offsets: Vec::new(), unacked: 0, file_bytes: 0, dirty: false, cold: None }
    }

    pub(super) fn cold(row: Row, file_bytes: u64) -> Segment {
        Segment { unacked: row.unacked, file_bytes, cold: Some(row), ..Segment::new(0) }
    }
}

pub struct QueueIndex {
    pub(super) count: u64,
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) journal: Vec<u8>,
    pub(super) stored: HashMap<u64, MessageId, FixedState>,
    pub(super) cached: Option<super::read::Cached>,
    pub(super) staged: Option<Staged>,
    pub(super) scratch: Vec<u8>,
    pub(super) dirty: usize,
    pub(super) next: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) lost: u64,
    pub(super) ids: (u64, u64),
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

    /// Takes in a segment file, in place of what was known of it; journal last.
    pub fn load_segment(&mut self, number: u64, data: &[u8]) -> Vec<Finding> {
        self.take_segment(number, data, |_| {})
    }

    /// `seen` gets every publish of the file.
    pub(super) fn take_segment(&mut self, number: u64, data: &[u8], mut seen: impl FnMut(Publish)) -> Vec<Finding> {
        let count = self.count;
        self.take_out(number);
        self.cached.take_if(|cached| cached.number == number);
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
                    seen(publish);
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

    /// A publish of the journal; what is wrong with it, if it is not used.
    fn journalled(&mut self, publish: &Publish) -> Option<Finding> {
        self.dirty += 1;
        let sequence = publish.number;
        let bad = |text| Some(Finding::new("bad-record", publish.offset, 0, text).about(sequence));
        let fresh = !self.segments.contains_key(&(sequence / self.count));
        if fresh && self.segments.len() as u64 * self.count > ENTRIES_MAX {
            return bad("a publish far from all others; the map would grow too large");
        }
        let (rel, segment) = self.entry(sequence);
        if segment.states[rel] & (P | TWICE) != 0 {
            return bad("a second publish with the same sequence; the first is used");
        }
        if published(segment.states[rel]) {
            self.flushed_before(publish);
            return None;
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
        None
    }

    /// A publish that a segment has already: it was flushed before the journal was cleared. The journal's own counts.
    fn flushed_before(&mut self, publish: &Publish) {
        let (rel, segment) = self.entry(publish.number);
        segment.place(rel, publish.offset as u32);
        segment.states[rel] = (segment.states[rel] & !STORED) | TWICE;
        segment.states[rel] |= if publish.message.is_none() { STORED } else { 0 };
        segment.sizes[rel] = publish.size;
        if !unacked(segment.states[rel]) {
            return;
        }
        if segment.states[rel] & LOST != 0 {
            segment.states[rel] &= !LOST;
            (self.lost, self.messages) = (self.lost - 1, self.messages + 1);
        }
        match publish.message {
            None => self.stored.insert(publish.number, publish.id),
            Some(_) => self.stored.remove(&publish.number),
        };
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
                    findings.extend(self.journalled(&publish));
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

    pub(super) fn entry(&mut self, sequence: u64) -> (usize, &mut Segment) {
        let count = self.count;
        let segment = self.segments.entry(sequence / count).or_insert_with(|| Segment::new(count as usize));
        ((sequence % count) as usize, segment)
    }

    pub(super) fn state_of(&self, sequence: u64) -> u16 {
        let rel = (sequence % self.count) as usize;
        self.segments.get(&(sequence / self.count)).and_then(|s| s.states.get(rel)).copied().unwrap_or(0)
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

    /// The same for one segment that was just loaded, without counting.
    pub fn reference_segment(&mut self, number: u64, store: &MessageStore) -> Vec<u64> {
        let Some(segment) = self.segments.get(&number) else { return Vec::new() };
        let all = segment.states.iter().zip(number * self.count..);
        let stored = all.filter(|(state, _)| live(**state) && **state & STORED != 0).map(|(_, at)| at);
        let gone = |at: &u64| self.stored.get(at).is_none_or(|id| !store.contains(id));
        let missing: Vec<u64> = stored.filter(gone).collect();
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
    pub fn next_after_flush(&self) -> u64 {
        let newest = self.segments.iter().rev().find(|(_, segment)| segment.unacked > 0);
        newest.map_or(0, |(number, segment)| number * self.count + u64::from(segment.row().top))
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
            if let Some(state) = self.segments.get_mut(&(sequence / self.count)).and_then(|s| s.states.get_mut(rel)) {
                *state &= !SENT;
            }
        }
    }

    pub fn first_live(&self) -> Option<u64> {
        let mut held = self.segments.iter().filter(|(_, segment)| segment.unacked > 0);
        held.find_map(|(number, segment)| segment.row().first().map(|rel| number * self.count + rel))
    }

    pub fn last_live(&self) -> Option<u64> {
        let mut held = self.segments.iter().rev().filter(|(_, segment)| segment.unacked > 0);
        held.find_map(|(number, segment)| segment.row().last().map(|rel| number * self.count + rel))
    }
}

/// The journal's publishes as they should stand; each gets its new place.
fn straightened(data: &[u8], actions: &mut [Action]) -> Vec<u8> {
    let mut out = Vec::new();
    for action in actions {
        let Action::Publish(publish) = action else { continue };
        let body = publish.offset + Form::Journal.fixed_bytes();
        let term = publish.message.as_ref().map_or(&[][..], |message| &data[body..message.end]);
        let term = straight(term);
        let rest = PublishRest { id: &publish.id, expiry_us: publish.expiry_us, size: publish.size, embedded: &term };
        publish.offset = out.len();
        Form::Journal.put_publish(&mut out, publish.number, publish.persistent, &rest);
    }
    out
}

impl Segment {
    pub(super) fn place(&mut self, rel: usize, offset: u32) {
        if self.offsets.is_empty() {
            self.offsets = vec![NO_OFFSET; self.states.len()];
        }
        self.offsets[rel] = offset;
    }

    pub(super) fn put(&mut self, rel: usize, offset: u32) {
        self.place(rel, offset);
        self.states[rel] |= P;
        self.dirty = true;
    }
}
