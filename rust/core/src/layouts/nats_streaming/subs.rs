//! What `subs.dat` says: each subscription's last state, how far it was sent, what is not acknowledged. Deliveries and
//! acks are one record per message, so they are folded and encoded here, run by run.

use std::collections::{BTreeMap, BTreeSet};

use super::crc::Crc;
use super::frames::{self, Frame};
use super::record::skip;
use crate::varint;

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

/// What a payload looks like. The type of a record stands outside its CRC: the payload must bear it out.
#[derive(PartialEq, Eq)]
enum Shape {
    /// An id, or nothing.
    Id,
    /// An id and a sequence.
    Pair,
    State,
}

struct Payload {
    shape: Shape,
    id: u64,
    sequence: u64,
    last_sent: u64,
}

fn parse(payload: &[u8]) -> Option<Payload> {
    let mut out = Payload { shape: Shape::Id, id: 0, sequence: 0, last_sent: 0 };
    let mut at = 0;
    while at < payload.len() {
        let tag = varint::get_protobuf(payload, &mut at)?;
        match (tag >> 3, tag & 7) {
            (1, 0) => out.id = varint::get_protobuf(payload, &mut at)?,
            (2, 0) => (out.shape, out.sequence) = (Shape::Pair, varint::get_protobuf(payload, &mut at)?),
            (number, wire) => {
                out.shape = Shape::State;
                match (number, wire) {
                    (LAST_SENT, 0) => out.last_sent = varint::get_protobuf(payload, &mut at)?,
                    _ => skip(payload, &mut at, wire)?,
                }
            }
        }
    }
    Some(out)
}

impl Subs {
    /// Takes one record in; says why when it cannot be, or is not what it says.
    pub fn apply(&mut self, kind: u8, payload: &[u8]) -> Result<(), &'static str> {
        let found = parse(payload).ok_or("the payload is no record of a subscription")?;
        let fits = match kind {
            NEW | UPDATE => found.shape == Shape::State,
            DELETE => found.shape == Shape::Id,
            _ => found.shape == Shape::Pair,
        };
        if !fits {
            return Err("the payload is not that of the record's type; it is passed over");
        }
        let sub = self.subs.get(&found.id);
        match kind {
            NEW | UPDATE => self.put(kind, found.id, payload, found.last_sent),
            DELETE => self.delete(found.id),
            ACK if sub.is_some_and(|sub| found.sequence > sub.last_sent) => {
                self.sent(found.id, &[found.sequence]);
                return Err("an ack of what was never sent; it is taken for the delivery");
            }
            ACK => drop(self.acked(found.id, &[found.sequence])),
            _ if sub.is_some_and(|sub| sub.pending.contains(&found.sequence)) => {
                return Err("sent twice; the second may have been an ack: it is delivered again");
            }
            _ => drop(self.sent(found.id, &[found.sequence])),
        }
        Ok(())
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
        let removed: Vec<u64> = sequences.iter().copied().filter(|sequence| sub.pending.remove(sequence)).collect();
        self.deleted += removed.len() as u64;
        removed
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
                varint::put_uvarint(&mut payload, value);
            }
        }
        frames::encode(out, kind, &payload, crc);
    }
}

/// Folds the records of a whole file; returns those that are not what they say, and why.
pub fn load<'a>(data: &[u8], found: &'a [Frame]) -> (Subs, Vec<(&'a Frame, &'static str)>) {
    let mut subs = Subs::default();
    let mut bad = Vec::new();
    for frame in found {
        if let Err(why) = subs.apply(frame.kind, &data[frame.payload.clone()]) {
            bad.push((frame, why));
        }
    }
    (subs, bad)
}
