//! A ledger's whole state, taken in and given out; and the fields of `o.dat`, version 2:
//!
//! ```text
//! 22 2 | floor: consumer, stream | delivered: consumer, stream                             uvarint each
//! uvarint p, p > 0: varint base s, p x (uvarint seq - floor, uvarint consumer seq - floor, varint base - s)
//! uvarint r, r x (uvarint seq - floor, uvarint redeliveries)
//! ```

use super::changes::replay;
use super::pending::Slot;
use super::{Ledger, ReplayError, Rules};
use crate::varint::{put_uvarint, put_varint};

const MAGIC: u8 = 22;
const VERSION: u8 = 2;
const SECOND_NS: i64 = 1_000_000_000;

/// Where a consumer stands, as a file or another program gives it. Pairs are (consumer, stream).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub delivered: (u64, u64),
    pub floor: (u64, u64),
    /// (stream sequence, first consumer sequence, time in ns), in order.
    pub pending: Vec<(u64, u64, i64)>,
    /// (stream sequence, redeliveries), in order; also of messages that are not pending.
    pub redelivered: Vec<(u64, u64)>,
}

impl Ledger {
    /// A ledger that goes on from a state; the time of its deadlines is theirs.
    pub fn from_state(rules: Rules, state: &State) -> Ledger {
        let mut ledger = Ledger::new(rules, 0);
        (ledger.delivered, ledger.floor) = (state.delivered, state.floor);
        for (seq, consumer_seq, time) in &state.pending {
            if ledger.pending.get(*seq).is_none() {
                ledger.pending.insert(*seq, Slot::first(*consumer_seq, *time));
            }
        }
        for (seq, again) in state.redelivered.iter().filter(|(_, again)| *again > 0) {
            let deliveries = u32::try_from(again.saturating_add(1)).unwrap_or(u32::MAX - 1);
            match ledger.pending.get_mut(*seq) {
                Some(slot) => {
                    slot.deliveries = deliveries;
                    ledger.pending_again += 1;
                }
                None => _ = ledger.given_up.insert(*seq, deliveries),
            }
        }
        ledger.next_check = i64::MIN;
        ledger
    }

    /// The state as `from_state` takes it. One that was given up at its first delivery counts as delivered again:
    /// the format has no other way to say that it is not acked.
    pub fn state(&self) -> State {
        let mut redelivered: Vec<(u64, u64)> = self.pending.iter().filter_map(|(seq, slot)| again(seq, slot)).collect();
        if !self.given_up.is_empty() {
            redelivered.extend(self.given_up.iter().map(|(seq, deliveries)| (*seq, given_up_count(*deliveries))));
            redelivered.sort_unstable();
        }
        State {
            delivered: self.delivered,
            floor: self.floor,
            pending: self.pending.iter().map(|(seq, slot)| (seq, slot.consumer_seq, slot.time)).collect(),
            redelivered,
        }
    }

    /// The fields of `o.dat` for this state. Times keep whole seconds: the format has no more.
    pub fn encode_state(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + 6 * self.pending.len());
        out.extend_from_slice(&[MAGIC, VERSION]);
        for value in [self.floor.0, self.floor.1, self.delivered.0, self.delivered.1] {
            put_uvarint(&mut out, value);
        }
        put_uvarint(&mut out, self.pending.len() as u64);
        let newest = self.pending.iter().map(|(_, slot)| slot.time).max();
        if let Some(base) = newest.map(|time| time.div_euclid(SECOND_NS)) {
            put_varint(&mut out, base);
            for (seq, slot) in self.pending.iter() {
                put_uvarint(&mut out, seq.wrapping_sub(self.floor.1));
                put_uvarint(&mut out, slot.consumer_seq.wrapping_sub(self.floor.0));
                put_varint(&mut out, base - slot.time.div_euclid(SECOND_NS));
            }
        }
        put_uvarint(&mut out, self.num_redelivered() as u64);
        if self.num_redelivered() > 0 {
            for (seq, count) in self.state().redelivered {
                put_uvarint(&mut out, seq.wrapping_sub(self.floor.1));
                put_uvarint(&mut out, count);
            }
        }
        out
    }

    /// Replays records that `take_changes` gave, without noting them again.
    pub fn replay(&mut self, record: &[u8]) -> Result<(), ReplayError> {
        let recording = std::mem::replace(&mut self.recording, false);
        let outcome = replay(self, record);
        self.recording = recording;
        self.exceeded.clear(); // reported when it happened
        outcome
    }
}

fn again(seq: u64, slot: &Slot) -> Option<(u64, u64)> {
    (slot.deliveries > 1).then(|| (seq, u64::from(slot.deliveries) - 1))
}

fn given_up_count(deliveries: u32) -> u64 {
    u64::from(deliveries.max(2)) - 1
}
