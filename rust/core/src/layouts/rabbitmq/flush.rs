//! Flushing a queue: what each segment file lacks, in the order RabbitMQ writes it; and a damaged file written anew.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::etf::straight;
use super::queue::state::*;
use super::queue::{QueueIndex, Segment};
use super::record::{Action, Form, Publish, PublishRest, put_rel, walk_journal, walk_segment};
use crate::disk::{DiskFile, DiskResult};

/// What a flush does to one segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    Delete(u64),
    Append(u64),
}

impl QueueIndex {
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

/// A segment file anew, from what is sound in `data`; messages that cannot be read are left out, and those that the
/// journal has differently: a power cut during a flush leaves holes in the segment, not in the journal.
/// Returns the bytes and whether the journal contradicts.
pub fn rewritten(data: &[u8], number: u64, count: u64, journal: &[u8]) -> (Vec<u8>, bool) {
    let mut kept: Vec<Publish> = Vec::new();
    let mut rels = vec![0u8; count as usize];
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
            kept.push(publish);
        }
        Action::Deliver(rel) | Action::Ack(rel) => rels[rel as usize] += 1,
        Action::Lost(_) => {}
    });
    let mut out = Vec::new();
    for publish in kept {
        let body = publish.offset + Form::Segment.fixed_bytes();
        let term = publish.message.as_ref().map_or(&[][..], |message| &data[body..message.end]);
        let term = straight(term);
        let rest = PublishRest { id: &publish.id, expiry_us: publish.expiry_us, size: publish.size, embedded: &term };
        Form::Segment.put_publish(&mut out, publish.number, publish.persistent, &rest);
        (0..rels[publish.number as usize]).for_each(|_| put_rel(&mut out, publish.number as u16));
    }
    (out, contradicted)
}
