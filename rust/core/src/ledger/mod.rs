//! What a consumer was given and what it acked: pending messages, ack floor, redelivery.
//!
//! ```text
//! stream      … 4 5 6 7 8 9 …       floor: everything at or below is acked
//! floor 4 ───────┘ │   │ └─ delivered 8: nothing above was handed out yet
//! pending          6   7            unacked; 5 and 8 were acked (or filtered out)
//! ```
//! The consumer has its own sequence: one number for each delivery, redeliveries included. A pending message keeps
//! the number of its first delivery; the floor is counted by it. Every change is noted for the journal
//! (changes.rs), and replaying those notes runs the same code.

mod acks;
mod changes;
mod pending;
mod redelivery;
mod state;

use std::collections::{BTreeMap, VecDeque};

pub use acks::{Ack, AckKind, AckRun, NO_BYTES};
use changes::Changes;
pub use changes::{ReplayError, highest_sent, replay};
use pending::{Pending, Slot};
pub use state::State;

/// The numbers that a message goes out with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub consumer_seq: u64,
    pub deliveries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckPolicy {
    /// Delivered counts as acked.
    None,
    /// An ack acks everything at or below it.
    All,
    /// An ack covers one message.
    Explicit,
}

/// What of a consumer's configuration decides how its ledger moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub policy: AckPolicy,
    /// 0 = no limit.
    pub max_deliver: u32,
    pub ack_wait_ns: i64,
    /// Waits after the first, second, … delivery instead of `ack_wait_ns`; the last one repeats.
    pub backoff_ns: Vec<i64>,
}

impl Rules {
    #[inline]
    fn wait(&self, deliveries: u32) -> i64 {
        let Some(longest) = self.backoff_ns.len().checked_sub(1) else { return self.ack_wait_ns };
        self.backoff_ns[longest.min((deliveries as usize).saturating_sub(1))]
    }
}

/// How far a run of acks was worked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The first one that was not: it needs more than bookkeeping.
    pub next: usize,
    /// Messages that were acked.
    pub acked: usize,
}

/// The state of one consumer. A pair is (consumer sequence, stream sequence).
#[derive(Clone, Debug)]
pub struct Ledger {
    rules: Rules,
    delivered: (u64, u64),
    floor: (u64, u64),
    pending: Pending,
    /// Pending and delivered more than once.
    pending_again: usize,
    /// Delivered as often as allowed and no longer pending: sequence → deliveries. Not acked either.
    given_up: BTreeMap<u64, u32>,
    /// Sequences to be delivered again, in the order they became due, each with a ticket: one counts while its
    /// slot has the same.
    queue: VecDeque<(u64, u32)>,
    queued: usize,
    last_ticket: u32,
    /// Given up since somebody asked: (sequence, deliveries).
    exceeded: Vec<(u64, u32)>,
    /// No deadline is before this.
    next_check: i64,
    changes: Changes,
    recording: bool,
}

impl Ledger {
    /// A consumer that has seen nothing, and does not look at anything up to `start_after`.
    pub fn new(rules: Rules, start_after: u64) -> Ledger {
        Ledger {
            rules,
            delivered: (0, start_after),
            floor: (0, start_after),
            pending: Pending::default(),
            pending_again: 0,
            given_up: BTreeMap::new(),
            queue: VecDeque::new(),
            queued: 0,
            last_ticket: 0,
            exceeded: Vec::new(),
            next_check: i64::MAX,
            changes: Changes::default(),
            recording: false,
        }
    }

    /// Whether changes are noted for the journal. What was noted so far is forgotten.
    pub fn record(&mut self, on: bool) {
        self.changes = Changes::default();
        self.recording = on;
    }

    pub fn delivered(&self) -> (u64, u64) {
        self.delivered
    }

    pub fn floor(&self) -> (u64, u64) {
        self.floor
    }

    pub fn num_pending(&self) -> usize {
        self.pending.len()
    }

    /// Messages delivered more than once and not acked.
    pub fn num_redelivered(&self) -> usize {
        self.pending_again + self.given_up.len()
    }

    pub fn is_pending(&self, seq: u64) -> bool {
        self.pending.get(seq).is_some()
    }

    /// First consumer sequence, time of the last delivery, deliveries.
    pub fn pending_of(&self, seq: u64) -> Option<(u64, i64, u32)> {
        self.pending.get(seq).map(|slot| (slot.consumer_seq, slot.time, slot.deliveries))
    }

    /// Everything that was delivered and not acked, in order: pending, and given up.
    pub fn unacked(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.pending.iter().map(|(seq, _)| seq).chain(self.given_up.keys().copied()).collect();
        all.sort_unstable();
        all
    }

    /// Those of the sequences that were delivered (or passed over) and are neither pending nor given up.
    pub fn acked_among(&self, sequences: &[u64]) -> Vec<u64> {
        let acked = |seq: &u64| {
            *seq <= self.delivered.1 && self.pending.get(*seq).is_none() && !self.given_up.contains_key(seq)
        };
        sequences.iter().copied().filter(acked).collect()
    }

    /// A message goes out, for the first time or again: what is known of the sequence decides.
    #[inline]
    pub fn sent(&mut self, stream_seq: u64, now_ns: i64) -> Sent {
        if self.recording {
            self.changes.sent(stream_seq, now_ns, self.delivered);
        }
        self.delivered.0 += 1;
        let consumer_seq = self.delivered.0;
        if self.rules.policy == AckPolicy::None {
            self.delivered.1 = self.delivered.1.max(stream_seq);
            self.floor = self.delivered;
            return Sent { consumer_seq, deliveries: 1 };
        }
        let deliveries = if stream_seq > self.delivered.1 {
            self.delivered.1 = stream_seq;
            self.pending.insert(stream_seq, Slot::first(consumer_seq, now_ns));
            1
        } else {
            self.sent_again(stream_seq, consumer_seq, now_ns)
        };
        self.next_check = self.next_check.min(now_ns.saturating_add(self.rules.wait(deliveries)));
        Sent { consumer_seq, deliveries: u64::from(deliveries) }
    }

    fn sent_again(&mut self, seq: u64, consumer_seq: u64, now_ns: i64) -> u32 {
        if let Some(slot) = self.pending.get_mut(seq) {
            self.pending_again += usize::from(slot.deliveries == 1);
            self.queued -= usize::from(slot.queued());
            (slot.deliveries, slot.time, slot.ticket) = (slot.deliveries + 1, now_ns, 0);
            return slot.deliveries;
        }
        // Given up, or acked, and handed out all the same: it is pending anew.
        let deliveries = self.given_up.remove(&seq).unwrap_or(0) + 1;
        self.pending_again += usize::from(deliveries > 1);
        self.pending.insert(seq, Slot { deliveries, ..Slot::first(consumer_seq, now_ns) });
        deliveries
    }

    /// Works through plain acks (and asks for more time) from `start` on; stops before the first message that
    /// needs more. The sequences that were acked go to `acked`, if somebody wants them.
    pub fn apply(&mut self, run: &AckRun, start: usize, now_ns: i64, mut acked: Option<&mut Vec<u64>>) -> Applied {
        let mut count = 0;
        for (at, ack) in run.acks.iter().enumerate().skip(start) {
            match ack.kind {
                AckKind::Ack => count += self.ack(ack.stream_seq, ack.consumer_seq, acked.as_deref_mut()),
                AckKind::Progress => _ = self.progress(ack.stream_seq, now_ns),
                AckKind::Other => {}
                AckKind::Nak | AckKind::Next | AckKind::Term => return Applied { next: at, acked: count },
            }
        }
        Applied { next: run.acks.len(), acked: count }
    }

    /// An ack; returns how many messages it acked. Old news and what was never delivered change nothing.
    #[inline]
    pub fn ack(&mut self, seq: u64, consumer_seq: u64, acked: Option<&mut Vec<u64>>) -> usize {
        match self.rules.policy {
            AckPolicy::None => 0,
            AckPolicy::Explicit => {
                let done = self.ack_one(seq) || self.ack_late(seq, consumer_seq);
                if let Some(acked) = acked.filter(|_| done) {
                    acked.push(seq);
                }
                usize::from(done)
            }
            AckPolicy::All => {
                let before = self.pending.len() + self.given_up.len();
                self.ack_up_to(seq, consumer_seq, acked);
                before - self.pending.len() - self.given_up.len()
            }
        }
    }

    /// One message needs no more care: acked, terminated, or gone from the stream. False if it was not pending.
    #[inline]
    pub fn ack_one(&mut self, seq: u64) -> bool {
        let Some(slot) = self.pending.remove(seq) else { return false };
        if self.recording {
            self.changes.acked(seq, self.delivered);
        }
        self.pending_again -= usize::from(slot.deliveries > 1);
        self.queued -= usize::from(slot.queued());
        self.raise_floor(slot.consumer_seq, seq);
        true
    }

    /// An ack for a message that was given up before. False if it was not.
    pub fn ack_late(&mut self, seq: u64, consumer_seq: u64) -> bool {
        if self.given_up.remove(&seq).is_none() {
            return false;
        }
        if self.recording {
            self.changes.late(seq, consumer_seq, self.delivered);
        }
        self.raise_floor(consumer_seq.min(self.delivered.0), seq);
        true
    }

    /// Over what was acked: to just before the next pending one, or to the end when there is none.
    #[inline]
    fn raise_floor(&mut self, consumer_seq: u64, seq: u64) {
        if self.pending.is_empty() {
            self.floor = self.delivered;
        } else if consumer_seq == self.floor.0 + 1 {
            if let Some((next, slot)) = self.pending.next_above(seq) {
                let is_known = slot.consumer_seq > 0;
                self.floor = if is_known { (slot.consumer_seq - 1, next - 1) } else { (consumer_seq, seq) };
            }
        }
    }

    /// Everything at or below is acked. Sequences that went are added to `gone`.
    ///
    /// The stream sequence alone decides: after a crash the numbers of forgotten deliveries are given out again, so that
    /// the consumer sequence of an ack may belong to another message by now.
    pub fn ack_up_to(&mut self, seq: u64, consumer_seq: u64, mut gone: Option<&mut Vec<u64>>) {
        if seq <= self.floor.1 || seq > self.delivered.1 {
            return;
        }
        let consumer_seq = consumer_seq.clamp(self.floor.0, self.delivered.0);
        if self.recording {
            self.changes.up_to(seq, consumer_seq, self.delivered);
        }
        self.floor = (consumer_seq, seq);
        self.drop_pending_below(seq + 1, |seq, _| {
            if let Some(gone) = gone.as_deref_mut() {
                gone.push(seq);
            }
        });
        let kept = self.given_up.split_off(&(seq + 1));
        let given_up = std::mem::replace(&mut self.given_up, kept);
        if let Some(gone) = gone {
            gone.extend(given_up.into_keys());
        }
    }

    fn drop_pending_below(&mut self, below: u64, mut each: impl FnMut(u64, &Slot)) {
        while let Some((seq, slot)) = self.pending.first().map(|(seq, slot)| (seq, *slot)) {
            if seq >= below {
                return;
            }
            self.pending.remove(seq);
            self.pending_again -= usize::from(slot.deliveries > 1);
            self.queued -= usize::from(slot.queued());
            each(seq, &slot);
        }
    }

    /// Messages left the stream. Returns those that were pending: (sequence, first consumer sequence, deliveries).
    pub fn removed(&mut self, sequences: &[u64]) -> Vec<(u64, u64, u32)> {
        let mut pending = Vec::new();
        for seq in sequences {
            if let Some(slot) = self.pending.get(*seq).copied() {
                pending.push((*seq, slot.consumer_seq, slot.deliveries));
                self.ack_one(*seq);
            } else if !self.given_up.is_empty() {
                // Nobody can deliver it any more; for the floor nothing changes.
                self.ack_late(*seq, 0);
            }
        }
        pending
    }

    /// Everything below left the stream; with `moves_on` (a purge) it also counts as delivered.
    /// Returns how many were pending.
    pub fn removed_below(&mut self, below: u64, moves_on: bool) -> usize {
        let moves_on = moves_on && below > self.delivered.1 + 1;
        let first = self.pending.first().map(|(seq, slot)| (seq, slot.consumer_seq));
        let touches_given_up = self.given_up.first_key_value().is_some_and(|(seq, _)| *seq < below);
        if !moves_on && !touches_given_up && first.is_none_or(|(seq, _)| seq >= below) {
            return 0;
        }
        if self.recording {
            self.changes.below(below, moves_on, self.delivered);
        }
        if moves_on {
            self.delivered.1 = below - 1;
        }
        let (mut last, before) = (0, self.pending.len());
        self.drop_pending_below(below, |_, slot| last = last.max(slot.consumer_seq));
        self.given_up = self.given_up.split_off(&below);
        let dropped = before - self.pending.len();
        let Some((next, slot)) = self.pending.first() else {
            self.floor = self.delivered;
            return dropped;
        };
        let open_between = self.given_up.first_key_value().is_some_and(|(seq, _)| *seq < next);
        let reached =
            if open_between || slot.consumer_seq == 0 { (last, below - 1) } else { (slot.consumer_seq - 1, next - 1) };
        self.floor = (self.floor.0.max(reached.0), self.floor.1.max(reached.1));
        dropped
    }

    /// Begins anew behind `seq`: nothing delivered, nothing pending. Not noted: the caller saves the whole state.
    pub fn reset(&mut self, seq: u64) {
        let recording = self.recording;
        *self = Ledger::new(self.rules.clone(), seq);
        self.recording = recording;
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Another configuration; deadlines follow it at once.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.next_check = i64::MIN;
    }

    /// Everything since the last call, for the journal.
    pub fn take_changes(&mut self) -> Option<Vec<u8>> {
        self.changes.take()
    }

    /// Bytes that `take_changes` would give, about.
    pub fn changes_len(&self) -> usize {
        self.changes.len()
    }
}
