//! What idempotent and transactional producers have left in a log: the content of `.snapshot` and `.txnindex`.

use std::collections::BTreeMap;

use super::header::{HEADER_V2, Header};
use crate::varint;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Producer {
    pub epoch: i16,
    /// −1 before the first batch of this epoch.
    pub last_sequence: i32,
    pub last_offset: i64,
    pub offset_delta: i32,
    pub time: i64,
    pub coordinator_epoch: i32,
    /// −1 outside a transaction.
    pub transaction_first: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted {
    pub producer_id: i64,
    pub first: i64,
    /// The marker's offset.
    pub last: i64,
    pub last_stable: i64,
}

#[derive(Debug, Clone, Default)]
pub struct Producers {
    pub known: BTreeMap<i64, Producer>,
}

/// The marker in a control batch: (commits, coordinator epoch). Other control records are not about producers.
fn marker(batch: &[u8]) -> Option<(bool, i32)> {
    let records = batch.get(HEADER_V2..)?;
    let mut at = 0;
    varint::get_varint(records, &mut at).ok()?;
    at += 1;
    varint::get_varint(records, &mut at).ok()?;
    varint::get_varint(records, &mut at).ok()?;
    let mut field = || {
        let length = usize::try_from(varint::get_varint(records, &mut at).ok()?).ok()?;
        let bytes = records.get(at..at.checked_add(length)?)?;
        at += length;
        Some(bytes)
    };
    let kind = i16::from_be_bytes(*field()?.get(2..)?.first_chunk()?);
    let epoch = i32::from_be_bytes(*field()?.get(2..)?.first_chunk()?);
    matches!(kind, 0 | 1).then_some((kind == 1, epoch))
}

impl Producers {
    /// Takes a sound batch in; an aborted transaction comes out when its marker passes.
    pub fn batch(&mut self, header: &Header, batch: &[u8]) -> Option<Aborted> {
        if header.magic < 2 || header.producer_id < 0 {
            return None;
        }
        if header.is_control() {
            return self.end(header, marker(batch)?);
        }
        let sequence = header.base_sequence.wrapping_add((header.last - header.base) as i32) & i32::MAX;
        let fresh = self.entry(header);
        fresh.last_sequence = if header.base_sequence < 0 { -1 } else { sequence };
        fresh.last_offset = header.last;
        fresh.offset_delta = (header.last - header.base) as i32;
        fresh.time = header.max_time;
        if header.is_transactional() && fresh.transaction_first < 0 {
            fresh.transaction_first = header.base;
        }
        None
    }

    /// A new epoch forgets the batches of the old one.
    fn entry(&mut self, header: &Header) -> &mut Producer {
        let unknown = Producer {
            epoch: header.producer_epoch,
            last_sequence: -1,
            last_offset: -1,
            offset_delta: 0,
            time: header.max_time,
            coordinator_epoch: -1,
            transaction_first: -1,
        };
        let entry = self.known.entry(header.producer_id).or_insert(unknown);
        if entry.epoch != header.producer_epoch {
            let (coordinator_epoch, transaction_first) = (entry.coordinator_epoch, entry.transaction_first);
            *entry = Producer { coordinator_epoch, transaction_first, ..unknown };
        }
        entry
    }

    fn end(&mut self, header: &Header, (commits, coordinator_epoch): (bool, i32)) -> Option<Aborted> {
        let entry = self.entry(header);
        entry.coordinator_epoch = coordinator_epoch;
        entry.time = header.max_time;
        let first = std::mem::replace(&mut entry.transaction_first, -1);
        if commits || first < 0 {
            return None;
        }
        let last_stable = self.first_open().unwrap_or(header.last + 1);
        Some(Aborted { producer_id: header.producer_id, first, last: header.last, last_stable })
    }

    /// The first offset of the oldest transaction that is open.
    pub fn first_open(&self) -> Option<i64> {
        self.known.values().map(|producer| producer.transaction_first).filter(|first| *first >= 0).min()
    }
}
