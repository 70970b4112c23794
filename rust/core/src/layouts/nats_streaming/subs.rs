//! What `subs.dat` says: each subscription's last state, how far it was sent, what is not acknowledged. Deliveries and
//! acks are one record per message, so they are folded and encoded here, run by run.

use std::collections::{BTreeMap, BTreeSet};

use super::crc::Crc;
use super::frames::{self, Frame};
use super::record::{put_varint, skip, varint};

pub const NEW: u8 = 1;
pub const UPDATE: u8 = 2;
pub const DELETE: u8 = 3;
pub const ACK: u8 = 4;
pub const SENT: u8 = 5;
const LAST_SENT: u64 = 9;

#[derive(Default, Clone)]
pub struct Sub {
    /// `SubState` as it was written last.
    pub state: Vec<u8>,
    pub last_sent: u64,
    pub pending: BTreeSet<u64>,
}

#[derive(Default)]
pub struct Subs {
    pub subs: BTreeMap<u64, Sub>,
    pub max_id: u64,
    /// For the decision to compact: records that say something, and those that make one of them void.
    pub records: u64,
    pub deleted: u64,
    pub highest: u64,
}

/// Field `number` (a varint) of a protobuf, 0 when absent; `None` when the bytes are none.
fn field(payload: &[u8], number: u64) -> Option<u64> {
    let (mut at, mut found) = (0, 0);
    while at < payload.len() {
        let tag = varint(payload, &mut at)?;
        if tag == number << 3 {
            found = varint(payload, &mut at)?;
        } else {
            skip(payload, &mut at, tag & 7)?;
        }
    }
    Some(found)
}

impl Subs {
    /// Takes one record in; false when its payload is no protobuf.
    pub fn apply(&mut self, kind: u8, payload: &[u8]) -> bool {
        let (Some(id), Some(second)) = (field(payload, 1), field(payload, 2).or(Some(0))) else { return false };
        match kind {
            NEW | UPDATE => {
                let Some(last_sent) = field(payload, LAST_SENT) else { return false };
                self.put(kind, id, payload, last_sent);
            }
            DELETE => self.delete(id),
            ACK => drop(self.acked(id, &[second])),
            _ => drop(self.sent(id, &[second])),
        }
        true
    }

    pub fn put(&mut self, kind: u8, id: u64, state: &[u8], last_sent: u64) {
        self.max_id = self.max_id.max(id);
        self.records += 1;
        self.deleted += u64::from(kind == UPDATE && self.subs.contains_key(&id));
        let sub = self.subs.entry(id).or_default();
        sub.state = state.to_vec();
        sub.last_sent = sub.last_sent.max(last_sent);
        self.highest = self.highest.max(last_sent);
    }

    pub fn delete(&mut self, id: u64) {
        self.max_id = self.max_id.max(id);
        if let Some(gone) = self.subs.remove(&id) {
            self.deleted += 1 + gone.pending.len() as u64;
        }
    }

    /// Those that were not pending before.
    pub fn sent(&mut self, id: u64, sequences: &[u64]) -> Vec<u64> {
        self.highest = sequences.iter().copied().fold(self.highest, u64::max);
        let Some(sub) = self.subs.get_mut(&id) else { return Vec::new() };
        self.records += sequences.len() as u64;
        sub.last_sent = sequences.iter().copied().fold(sub.last_sent, u64::max);
        sequences.iter().copied().filter(|sequence| sub.pending.insert(*sequence)).collect()
    }

    /// Those that were pending.
    pub fn acked(&mut self, id: u64, sequences: &[u64]) -> Vec<u64> {
        self.highest = sequences.iter().copied().fold(self.highest, u64::max);
        let Some(sub) = self.subs.get_mut(&id) else { return Vec::new() };
        let settled: Vec<u64> = sequences.iter().copied().filter(|sequence| sub.pending.remove(sequence)).collect();
        self.deleted += settled.len() as u64;
        settled
    }

    /// A whole new file's records: each subscription and what is pending. `states` are the present ones, by id.
    pub fn compacted(&mut self, states: &BTreeMap<u64, Vec<u8>>, crc: &Crc) -> Vec<u8> {
        let mut out = Vec::new();
        (self.records, self.deleted) = (0, 0);
        for (id, sub) in &self.subs {
            frames::encode(&mut out, NEW, states.get(id).unwrap_or(&sub.state), crc);
            let pending: Vec<u64> = sub.pending.iter().copied().collect();
            updates(&mut out, SENT, *id, &pending, crc);
            self.records += 1 + pending.len() as u64;
        }
        out
    }
}

/// Records of type SENT or ACK, one per sequence.
pub fn updates(out: &mut Vec<u8>, kind: u8, id: u64, sequences: &[u64], crc: &Crc) {
    let mut payload = Vec::with_capacity(22);
    for sequence in sequences {
        payload.clear();
        for (tag, value) in [(0x08, id), (0x10, *sequence)] {
            if value != 0 {
                payload.push(tag);
                put_varint(&mut payload, value);
            }
        }
        frames::encode(out, kind, &payload, crc);
    }
}

/// Folds the records of a whole file; returns those whose payload could not be read.
pub fn load<'a>(data: &[u8], found: &'a [Frame]) -> (Subs, Vec<&'a Frame>) {
    let mut subs = Subs::default();
    let bad = found.iter().filter(|frame| !subs.apply(frame.kind, &data[frame.payload.clone()])).collect();
    (subs, bad)
}
