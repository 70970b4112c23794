//! Batch by batch through a segment file, past everything that is not sound.
//!
//! ```text
//! sound      length, checksum and offsets fit
//! repaired   one inverted bit in what the checksum does not cover (offset, length, magic, checksum): inverted back
//! bad        its own length leads to the next batch, or a search does: [position, to) is lost
//! ```
//! Payloads may hold batches too. So a batch that a search finds counts only when the index has an entry for it, or
//! when from it on batch follows batch to the end of the file.

use std::sync::Arc;

use super::header::{self, Header, LENGTH_AT, MAGIC_AT, OVERHEAD, PREFIX};
use super::index;
use crate::disk::{DiskFile, DiskResult, Window};

/// What is read at once when a search or a check needs bytes.
const WINDOW_BYTES: usize = 4 << 20;
/// A header with room to spare.
const PEEK: usize = header::HEADER_V2;
/// How many times the file's size may be hashed while searching.
const SEARCH_BUDGET: u64 = 4;
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
    /// The last offset that was passed; the next must be above.
    pub last: i64,
    /// The first offset of the next segment.
    pub ceiling: i64,
    base: i64,
    budget: u64,
    /// The offset index, as far as there is one: where batches are known to begin.
    index: Vec<u8>,
}

impl Walker {
    pub fn new(file: Arc<dyn DiskFile>, len: u64, base: i64, ceiling: Option<i64>, index: Vec<u8>) -> Walker {
        let window = Window::new(file, len, WINDOW_BYTES);
        Walker {
            window,
            position: 0,
            last: base - 1,
            ceiling: ceiling.unwrap_or(i64::MAX),
            base,
            budget: len.saturating_mul(SEARCH_BUDGET).saturating_add(1 << 20),
            index,
        }
    }

    pub fn step(&mut self) -> DiskResult<Step> {
        let at = self.position;
        if at >= self.window.len {
            return Ok(Step::End);
        }
        let step = match self.sound_at(at, self.last)? {
            Ok(header) => self.with_right_offset(at, header)?,
            Err(why) => match self.repaired(at)? {
                Some(step) => step,
                None => self.bad(at, why)?,
            },
        };
        match &step {
            Step::Sound(header) | Step::Repaired(header, ..) => {
                self.position = at + header.size as u64;
                self.last = header.last;
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
        let Some(batch) = self.window.bytes(at, header.size)? else {
            return Ok(Err("the batch goes beyond the end of the file"));
        };
        Ok(if header.is_intact(batch) { Ok(header) } else { Err("the checksum differs") })
    }

    fn sound_at(&mut self, at: u64, last: i64) -> DiskResult<Result<Header, &'static str>> {
        let found = self.intact_at(at)?;
        Ok(found.and_then(|header| if self.fits(&header, last) { Ok(header) } else { Err("its offset does not fit") }))
    }

    /// The offset is covered by no checksum. When it leaves a gap, the next batch tells whether that can be.
    fn with_right_offset(&mut self, at: u64, header: Header) -> DiskResult<Step> {
        if header.base == self.last + 1 {
            return Ok(Step::Sound(header));
        }
        let next = Header::parse(self.window.upto(at + header.size as u64, PEEK)?);
        let overlaps = next.is_ok_and(|next| next.base <= header.last && next.base > self.last);
        Ok(self.dense(at, header).filter(|_| overlaps).unwrap_or(Step::Sound(header)))
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
            if let Some(batch) = self.window.bytes(at, header.size)? {
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
        self.budget = self.budget.saturating_sub(header.size as u64);
        if self.budget == 0 {
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
            let follows = end < self.window.len && self.sound_at(end, self.last)?.is_ok();
            if follows || end == self.window.len {
                let tail = !follows;
                return Ok(Step::Bad(Bad { from: at, to: end, why, claim, tail, zeros: false }));
            }
        }
        let found = self.search(at + 1)?;
        let (to, tail) = (found.unwrap_or(self.window.len), found.is_none());
        let zeros = tail && self.all_zeros(at)?;
        Ok(Step::Bad(Bad { from: at, to, why, claim, tail, zeros }))
    }

    fn all_zeros(&mut self, mut at: u64) -> DiskResult<bool> {
        while at < self.window.len {
            let piece = self.window.upto(at, WINDOW_BYTES)?;
            if piece.is_empty() || piece.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
        Ok(true)
    }

    fn search(&mut self, from: u64) -> DiskResult<Option<u64>> {
        let mut at = from;
        while at + (header::FIXED_V0 as u64) <= self.window.len && self.budget > 0 {
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
        self.budget = self.budget.saturating_sub(header.size as u64);
        if self.sound_at(at, self.last)?.is_err() {
            return Ok(false);
        }
        Ok(self.is_indexed(at, header.last) || self.leads_to_end(at, header)?)
    }

    fn is_indexed(&self, at: u64, last: i64) -> bool {
        let count = index::lookup(&self.index, self.base, last);
        count.checked_sub(1).and_then(|entry| index::entry_at(&self.index, self.base, entry)) == Some((last, at))
    }

    /// Batch follows batch to the end of the file; single bad ones may stand between if their length is right.
    fn leads_to_end(&mut self, at: u64, header: Header) -> DiskResult<bool> {
        let (mut end, mut last) = (at + header.size as u64, header.last);
        while end < self.window.len && self.budget > 0 {
            match self.sound_at(end, last)? {
                Ok(next) => {
                    self.budget = self.budget.saturating_sub(next.size as u64);
                    (end, last) = (end + next.size as u64, next.last);
                }
                Err(_) => {
                    let Ok((size, _)) = header::extent(self.window.upto(end, PREFIX)?) else { return Ok(false) };
                    let over = end + size as u64;
                    if over != self.window.len && (over > self.window.len || self.sound_at(over, last)?.is_err()) {
                        return Ok(false);
                    }
                    end = over;
                }
            }
        }
        Ok(end == self.window.len)
    }
}
