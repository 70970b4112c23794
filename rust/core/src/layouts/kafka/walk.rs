//! Batch by batch through a segment file, past everything that is not sound.
//!
//! ```text
//! sound      length, checksum and offsets fit
//! repaired   one inverted bit in what the checksum does not cover (offset, length, magic, checksum): inverted back
//! bad        its own length leads to the next batch, or a search does: [position, to) is lost
//! ```
//! Payloads may hold batches too. So a batch that a search finds counts only when batch follows batch from it on (to
//! one that the index names, to the end of the file, or for `PROOF` batches without a gap in their offsets), or when
//! its offsets are those that the bytes before it may have left: it can then displace no batch that lies farther on.

use std::sync::Arc;

use super::header::{self, Header, LENGTH_AT, MAGIC_AT, OVERHEAD, PREFIX};
use super::index;
use crate::disk::{DiskFile, DiskResult, Window};
use crate::layouts::search::Credit;

/// What is read at once when a search or a check needs bytes.
const WINDOW_BYTES: usize = 4 << 20;
/// A header with room to spare.
const PEEK: usize = header::HEADER_V2;
/// So many sound batches in a row, without a gap, are no accident and hardly a payload.
const PROOF: usize = 8;
/// No message is smaller in a batch: so many bytes hold so many offsets at most.
const MESSAGE_BYTES_MIN: i64 = 7;
/// How many batches are asked whether an offset before them can be.
const WITNESSES: usize = 8;
/// Over so many bad batches in a row their own lengths are followed.
const BAD_RUN: usize = 64;
/// Offsets within a segment are 32-bit; no batch of a sound segment is farther from its base.
const SPAN_MAX: i64 = i32::MAX as i64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Sound(Header),
    /// The header as it should be, and the bytes that make it so: (position in the file, bytes).
    Repaired(Header, u64, Vec<u8>, &'static str),
    Bad(Bad),
    End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    pub from: u64,
    pub to: u64,
    pub why: &'static str,
    /// The offsets that the bad batch claims, half-open, where that can be.
    pub claim: Option<(i64, i64)>,
    /// Nothing sound follows.
    pub tail: bool,
    /// Nothing but zeros: room that was made and not used.
    pub zeros: bool,
}

pub struct Walker {
    window: Window,
    pub position: u64,
    /// Where the last sound batch ends.
    sound_end: u64,
    /// The last offset that was passed; the next must be above.
    pub last: i64,
    /// The first offset of the next segment.
    pub ceiling: i64,
    base: i64,
    credit: Credit,
    /// The offset index, as far as there is one: where batches are known to begin.
    index: Vec<u8>,
}

fn contradicted(at: u64, header: &Header) -> Step {
    let why = "an offset that the next batches contradict";
    Step::Bad(Bad { from: at, to: at + header.size as u64, why, claim: None, tail: false, zeros: false })
}

impl Walker {
    pub fn new(file: Arc<dyn DiskFile>, len: u64, base: i64, ceiling: Option<i64>, index: Vec<u8>) -> Walker {
        let window = Window::new(file, len, WINDOW_BYTES);
        Walker {
            window,
            position: 0,
            sound_end: 0,
            last: base - 1,
            ceiling: ceiling.unwrap_or(i64::MAX),
            base,
            credit: Credit::new(len),
            index,
        }
    }

    /// Goes on at a place behind a sound batch.
    pub fn resume(&mut self, position: u64, last: i64) {
        (self.position, self.sound_end, self.last) = (position, position, last);
    }

    pub fn step(&mut self) -> DiskResult<Step> {
        let at = self.position;
        if at >= self.window.len {
            return Ok(Step::End);
        }
        self.credit.advance(at);
        let step = match self.sound_at(at, self.last)? {
            Ok(header) => self.with_right_offset(at, header)?,
            Err(why) => match self.repaired(at)? {
                Some(Step::Repaired(header, ..)) if self.is_contradicted(at, &header)? => contradicted(at, &header),
                Some(step) => step,
                None => self.bad(at, why)?,
            },
        };
        match &step {
            Step::Sound(header) | Step::Repaired(header, ..) => {
                self.position = at + header.size as u64;
                (self.sound_end, self.last) = (self.position, header.last);
            }
            Step::Bad(bad) => self.position = bad.to,
            Step::End => {}
        }
        Ok(step)
    }

    /// The bytes of the batch that was passed last.
    pub fn batch(&mut self, header: &Header) -> DiskResult<&[u8]> {
        self.window.upto(self.position - header.size as u64, header.size)
    }

    fn fits(&self, header: &Header, last: i64) -> bool {
        header.base > last && header.last < self.ceiling && header.base - self.base <= SPAN_MAX
    }

    /// A batch with the right checksum; whether its offset fits is another question.
    fn intact_at(&mut self, at: u64) -> DiskResult<Result<Header, &'static str>> {
        let header = match Header::parse(self.window.upto(at, PEEK)?) {
            Ok(header) => header,
            Err(why) => return Ok(Err(why)),
        };
        if !self.credit.affords(header.size as u64) {
            return Ok(Err("not looked at: the bytes before it claim too many batches"));
        }
        let Some(batch) = self.window.bytes(at, header.size)? else {
            return Ok(Err("the batch goes beyond the end of the file"));
        };
        if header.is_intact(batch) {
            return Ok(Ok(header));
        }
        self.credit.spend(header.size as u64);
        Ok(Err("the checksum differs"))
    }

    fn sound_at(&mut self, at: u64, last: i64) -> DiskResult<Result<Header, &'static str>> {
        let found = self.intact_at(at)?;
        Ok(found.and_then(|header| if self.fits(&header, last) { Ok(header) } else { Err("its offset does not fit") }))
    }

    /// The offset is covered by no checksum. When it leaves a gap, the next batches show whether that can be.
    fn with_right_offset(&mut self, at: u64, header: Header) -> DiskResult<Step> {
        if !self.is_contradicted(at, &header)? {
            return Ok(Step::Sound(header));
        }
        Ok(self.dense(at, header).unwrap_or_else(|| contradicted(at, &header)))
    }

    /// Whether one of the next batches has an offset that this one passes over, and its own is the right one: it leaves
    /// just the offsets that this batch needs, the batch behind it follows without a gap, or the damaged bytes account
    /// for it and not for this one.
    fn is_contradicted(&mut self, at: u64, header: &Header) -> DiskResult<bool> {
        if header.base == self.last + 1 {
            return Ok(false);
        }
        // Where nothing is lost between the last batch and this one.
        let expected = (self.sound_end == at).then_some(self.last + 1 + (header.last - header.base) + 1);
        let mut place = at + header.size as u64;
        for _ in 0..WITNESSES {
            let next = Header::parse(self.window.upto(place, PEEK)?);
            let passed_over = next.is_ok_and(|next| next.base <= header.last && next.base > self.last);
            if passed_over && let Ok(next) = self.intact_at(place)? {
                let behind = Header::parse(self.window.upto(place + next.size as u64, PEEK)?);
                let follows = behind.is_ok_and(|behind| behind.base == next.last + 1);
                if Some(next.base) == expected || follows || (self.is_near(place, &next) && !self.is_near(at, header)) {
                    return Ok(true);
                }
            }
            let over = header::extent(self.window.upto(place, PREFIX)?).map(|(size, _)| place + size as u64);
            place = match over {
                Ok(over) if over < self.window.len && self.may_begin(over)? => over,
                _ => match self.search(place + 1, self.window.len.min(place + WINDOW_BYTES as u64))? {
                    Some(found) => found,
                    None => return Ok(false),
                },
            };
        }
        Ok(false)
    }

    /// With one bit of the offset inverted the batch follows its predecessor without a gap.
    fn dense(&self, at: u64, header: Header) -> Option<Step> {
        let wanted = self.last + 1;
        if header.magic != 2 || (header.base ^ wanted).count_ones() != 1 {
            return None;
        }
        let mended = Header { base: wanted, last: wanted + (header.last - header.base), ..header };
        let bytes = wanted.to_be_bytes().to_vec();
        self.fits(&mended, self.last).then_some(Step::Repaired(mended, at, bytes, "flipped bit in an offset"))
    }

    fn repaired(&mut self, at: u64) -> DiskResult<Option<Step>> {
        if let Ok(header) = self.intact_at(at)? {
            return Ok(self.dense(at, header));
        }
        let seen: Vec<u8> = self.window.upto(at, PEEK)?.to_vec();
        if seen.len() < PREFIX {
            return Ok(None);
        }
        // The magic of format 2, then the checksum, then the length.
        for magic in (0..3).filter(|magic| *magic != seen[MAGIC_AT]) {
            let mut bytes = seen.clone();
            bytes[MAGIC_AT] = magic;
            if (magic ^ seen[MAGIC_AT]).count_ones() == 1 {
                if let Some(header) = self.try_as(at, &bytes)? {
                    let patch = vec![magic];
                    return Ok(Some(Step::Repaired(header, at + MAGIC_AT as u64, patch, "flipped bit in a magic")));
                }
            }
        }
        if let Ok(header) = Header::parse(&seen) {
            let paid = self.credit.spend_on_repair(header.size as u64);
            if let Some(batch) = if paid { self.window.bytes(at, header.size)? } else { None } {
                let right = header.checksum(batch);
                if (right ^ header.crc).count_ones() == 1 && self.fits(&header, self.last) {
                    let crc_at = at + header.crc_at() as u64;
                    let mended = Header { crc: right, ..header };
                    let patch = right.to_be_bytes().to_vec();
                    return Ok(Some(Step::Repaired(mended, crc_at, patch, "flipped bit in a checksum")));
                }
            }
        }
        for bit in 0..31 {
            let mut bytes = seen.clone();
            let length = u32::from_be_bytes(seen[LENGTH_AT..OVERHEAD].try_into().expect("four")) ^ (1 << bit);
            bytes[LENGTH_AT..OVERHEAD].copy_from_slice(&length.to_be_bytes());
            if let Some(header) = self.try_as(at, &bytes)? {
                let patch = length.to_be_bytes().to_vec();
                return Ok(Some(Step::Repaired(header, at + LENGTH_AT as u64, patch, "flipped bit in a length")));
            }
        }
        Ok(None)
    }

    /// Whether the batch is sound when its header is read as `bytes`.
    fn try_as(&mut self, at: u64, bytes: &[u8]) -> DiskResult<Option<Header>> {
        let Some(header) = Header::parse(bytes).ok().filter(|header| self.fits(header, self.last)) else {
            return Ok(None);
        };
        let end = at + header.size as u64;
        if end > self.window.len || (end < self.window.len && !self.may_begin(end)?) {
            return Ok(None);
        }
        if !self.credit.spend_on_repair(header.size as u64) {
            return Ok(None);
        }
        let Some(batch) = self.window.bytes(at, header.size)? else { return Ok(None) };
        let mut batch = batch.to_vec();
        let own = bytes.len().min(batch.len());
        batch[..own].copy_from_slice(&bytes[..own]);
        Ok(header.is_intact(&batch).then_some(header))
    }

    fn may_begin(&mut self, at: u64) -> DiskResult<bool> {
        Ok(header::extent(self.window.upto(at, PREFIX)?).is_ok())
    }

    fn bad(&mut self, at: u64, why: &'static str) -> DiskResult<Step> {
        let claimed = Header::parse(self.window.upto(at, PEEK)?).ok();
        let plausible = claimed.filter(|header| self.fits(header, self.last) && header.last - self.last <= SPAN_MAX);
        let claim = plausible.map(|header| (header.base, header.last + 1));
        if let Some(header) = claimed {
            // Its length may be right though its content is not.
            let end = at + header.size as u64;
            if end == self.window.len {
                return Ok(Step::Bad(Bad { from: at, to: end, why, claim, tail: true, zeros: false }));
            }
            if let Some(next) = self.behind(end)? {
                let holes = header.count >= 0 && header.last - header.base + 1 != i64::from(header.count);
                let missing = holes || next.base > header.last.saturating_add(1);
                let inside = if missing { self.swallowed(at + 1, end, next.base)? } else { None };
                let to = inside.unwrap_or(end);
                return Ok(Step::Bad(Bad { from: at, to, why, claim, tail: false, zeros: false }));
            }
        }
        let found = self.search(at + 1, self.window.len)?;
        let (to, tail) = (found.unwrap_or(self.window.len), found.is_none());
        let zeros = tail && self.all_zeros(at)?;
        Ok(Step::Bad(Bad { from: at, to, why, claim, tail, zeros }))
    }

    /// The next sound batch, from the end of a bad one on: at once, or behind more bad ones whose lengths lead to it.
    fn behind(&mut self, mut end: u64) -> DiskResult<Option<Header>> {
        for _ in 0..BAD_RUN {
            if end >= self.window.len {
                return Ok(None);
            }
            if let Ok(next) = self.sound_at(end, self.last)? {
                return Ok(Some(next));
            }
            let claimed = Header::parse(self.window.upto(end, PEEK)?).ok();
            let Some(bad) = claimed.filter(|bad| self.fits(bad, self.last)) else { return Ok(None) };
            end += bad.size as u64;
        }
        Ok(None)
    }

    /// A sound batch inside a bad one that has offsets below `base`: more are missing in front of it than the bad one
    /// claims, so it is its length that is wrong.
    fn swallowed(&mut self, from: u64, to: u64, base: i64) -> DiskResult<Option<u64>> {
        let Some(start) = self.search(from, to)? else { return Ok(None) };
        Ok(self.intact_at(start)?.is_ok_and(|header| header.last < base).then_some(start))
    }

    fn all_zeros(&mut self, mut at: u64) -> DiskResult<bool> {
        while at < self.window.len {
            at = self.window.skip_hole(at)?;
            let piece = self.window.upto(at, WINDOW_BYTES)?;
            if piece.is_empty() || piece.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
        Ok(true)
    }

    fn search(&mut self, from: u64, to: u64) -> DiskResult<Option<u64>> {
        let mut at = from;
        while at + (header::FIXED_V0 as u64) <= to {
            self.credit.advance(at);
            at = self.window.skip_hole(at)?;
            let piece = self.window.upto(at, WINDOW_BYTES)?;
            if piece.len() < PREFIX {
                break;
            }
            // A cheap look at every byte; what passes is looked at again with its surroundings.
            let (base, last) = (self.base, self.last);
            let likely = (0..=piece.len() - PREFIX).find(|offset| {
                let bytes = &piece[*offset..];
                let first = i64::from_be_bytes(bytes[..8].try_into().expect("eight"));
                bytes[MAGIC_AT] <= 2 && first > last && first - base <= SPAN_MAX && header::extent(bytes).is_ok()
            });
            let Some(offset) = likely else {
                at += (piece.len() - PREFIX + 1) as u64;
                continue;
            };
            at += offset as u64;
            if self.is_anchor(at)? {
                return Ok(Some(at));
            }
            at += 1;
        }
        Ok(None)
    }

    fn is_anchor(&mut self, at: u64) -> DiskResult<bool> {
        let Ok(header) = Header::parse(self.window.upto(at, PEEK)?) else { return Ok(false) };
        if !self.fits(&header, self.last) || at + header.size as u64 > self.window.len {
            return Ok(false);
        }
        if self.sound_at(at, self.last)?.is_err() {
            return Ok(false);
        }
        Ok(self.is_near(at, &header) || self.leads_on(at, header)?)
    }

    fn is_indexed(&self, at: u64, last: i64) -> bool {
        let count = index::lookup(&self.index, self.base, last);
        count.checked_sub(1).and_then(|entry| index::entry_at(&self.index, self.base, entry)) == Some((last, at))
    }

    /// Offsets that the damaged bytes before it and its own bytes can account for, all below the next indexed ones.
    fn is_near(&self, at: u64, header: &Header) -> bool {
        let damaged = (at - self.sound_end.min(at)) as i64;
        let entry = index::lookup(&self.index, self.base, header.base);
        let next = index::entry_at(&self.index, self.base, entry);
        header.base - self.last - 1 <= damaged / MESSAGE_BYTES_MIN + 1
            && header.last - header.base <= header.size as i64 / MESSAGE_BYTES_MIN
            && next.is_none_or(|(last, place)| place <= at || (header.last < last && at + header.size as u64 <= place))
    }

    /// Batch follows batch; single bad ones may stand between if their length is right.
    fn leads_on(&mut self, at: u64, header: Header) -> DiskResult<bool> {
        if self.is_indexed(at, header.last) {
            return Ok(true);
        }
        let (mut end, mut last, mut dense) = (at + header.size as u64, header.last, 1);
        while end < self.window.len && dense < PROOF {
            if !self.credit.affords(PEEK as u64) {
                return Ok(false);
            }
            match self.sound_at(end, last)? {
                Ok(next) if self.is_indexed(end, next.last) => return Ok(true),
                Ok(next) => {
                    self.credit.spend(next.size as u64);
                    dense = if next.base == last + 1 { dense + 1 } else { 1 };
                    (end, last) = (end + next.size as u64, next.last);
                }
                Err(_) => {
                    let Ok((size, _)) = header::extent(self.window.upto(end, PREFIX)?) else { return Ok(false) };
                    let over = end + size as u64;
                    if over != self.window.len && (over > self.window.len || self.sound_at(over, last)?.is_err()) {
                        return Ok(false);
                    }
                    (end, dense) = (over, 1);
                }
            }
        }
        Ok(end == self.window.len || dense >= PROOF)
    }
}
