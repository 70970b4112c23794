//! A whole segment, every checksum: what recovery and verify need to know of it.

use std::sync::Arc;

use super::header::Header;
use super::index::IndexBuilder;
use super::producers::{Aborted, Producers};
use super::records::{self, Sink, time_ns};
use super::walk::{Bad, Step, Walker};
use crate::batch::Span;
use crate::disk::{Disk, DiskResult, OpenMode};

pub struct SurveyRules {
    pub base: i64,
    /// The next segment's base.
    pub ceiling: Option<i64>,
    pub interval: u64,
    /// Where to begin, and the last offset before it.
    pub from: u64,
    pub last: i64,
    /// Decode every message too.
    pub deep: bool,
    pub inflated_max: usize,
    /// The `.index` that is there: it says where batches begin when the log does not.
    pub anchors: Vec<u8>,
    /// Bytes beyond are not looked at: somebody is writing there.
    pub limit: u64,
}

#[derive(Default)]
pub struct Survey {
    pub file_len: u64,
    pub batches: u64,
    pub messages: u64,
    pub control: u64,
    /// Of the sound batches.
    pub sound_bytes: u64,
    pub first: Option<i64>,
    pub last: i64,
    pub first_time: Option<i64>,
    pub first_batch_time: i64,
    pub bad: Vec<Bad>,
    pub repairs: Vec<(u64, Vec<u8>, &'static str)>,
    /// Batches whose messages do not decode: (position, size, first, next, why). Only a deep survey finds them.
    pub malformed: Vec<(u64, usize, i64, i64, String)>,
    /// (epoch, first offset) where it changes.
    pub epochs: Vec<(i32, i64)>,
    pub aborted: Vec<Aborted>,
    /// Codecs that occur, as bits; formats likewise.
    pub codecs: u8,
    pub formats: u8,
    pub index: Option<IndexBuilder>,
}

pub fn survey(disk: &Arc<dyn Disk>, path: &str, rules: &SurveyRules, producers: &mut Producers) -> DiskResult<Survey> {
    let file = disk.open(path, OpenMode::Read)?;
    let file_len = file.len()?.min(rules.limit);
    let mut walker = Walker::new(file, file_len, rules.base, rules.ceiling, rules.anchors.clone());
    walker.resume(rules.from, rules.last);
    let mut found = Survey { file_len, last: rules.last, first_batch_time: -1, ..Survey::default() };
    let mut index = IndexBuilder::new(rules.base, rules.interval);
    let mut scratch = (Vec::new(), Vec::new());
    loop {
        let header = match walker.step()? {
            Step::End => break,
            Step::Bad(bad) => {
                found.bad.push(bad);
                continue;
            }
            Step::Repaired(header, at, bytes, what) => {
                found.repairs.push((at, bytes, what));
                header
            }
            Step::Sound(header) => header,
        };
        let position = walker.position - header.size as u64;
        index.batch(position, header.size, header.last, header.max_time);
        found.batch(&header);
        if header.producer_id >= 0 {
            let aborted = producers.batch(&header, walker.batch(&header)?);
            found.aborted.extend(aborted);
        }
        if rules.deep || header.count < 0 {
            let bytes = walker.batch(&header)?;
            found.decode(&header, position, bytes, &mut scratch, rules.inflated_max);
        }
    }
    index.close();
    found.index = Some(index);
    Ok(found)
}

impl Survey {
    fn batch(&mut self, header: &Header) {
        self.batches += 1;
        let count = header.count.max(0) as u64;
        if header.is_control() {
            self.control += count
        } else {
            self.messages += count
        }
        self.sound_bytes += header.size as u64;
        self.first.get_or_insert(header.base);
        self.last = header.last;
        if self.batches == 1 {
            self.first_batch_time = header.max_time;
            // A delete horizon stands where the first time was.
            let time = if header.attributes & super::header::ATTRIBUTE_HORIZON != 0 {
                header.max_time
            } else {
                header.base_time
            };
            self.first_time = Some(time_ns(time));
        }
        self.codecs |= 1 << header.codec().id();
        self.formats |= 1 << header.magic;
        if header.magic == 2 && header.leader_epoch >= 0 && self.epochs.last().is_none_or(|e| e.0 < header.leader_epoch)
        {
            self.epochs.push((header.leader_epoch, header.base));
        }
    }

    fn decode(
        &mut self,
        header: &Header,
        position: u64,
        bytes: &[u8],
        scratch: &mut (Vec<u8>, Vec<crate::batch::Entry>),
        inflated_max: usize,
    ) {
        let (buffer, entries) = scratch;
        buffer.clear();
        entries.clear();
        buffer.extend_from_slice(bytes);
        let mut sink = Sink { buffer, entries, subject: Span::NULL, inflated_max };
        match records::decode(&mut sink, 0, header) {
            Ok(()) if header.count < 0 => self.messages += entries.len() as u64,
            Ok(()) => {}
            Err(why) => {
                self.malformed.push((position, header.size, header.base, header.last + 1, why.to_string()));
            }
        }
    }
}
