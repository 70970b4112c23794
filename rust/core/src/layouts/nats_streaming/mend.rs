//! A slice read from its first byte to its last: which records are live, what the index lacks, what is lost.
//!
//! ```text
//! msgs.N.dat   | 1 | 2 | 3 orphan | 3 | ~~~~ | 5 | 6 | half of 7
//! index          1   2              3           5
//!                      superseded       lost: 4    6: taken in   unsound tail
//! ```
//! A sound index entry is believed: it vouches for the record at its offset. Behind the last one nothing was
//! acknowledged by a writer that syncs; what is sound there is taken in, what is not is left where it is.
//! Without an index the later of two records with one sequence is the live one.

use super::index::{Entry, sound_entries};
use super::read::{Sums, check};
use super::record::{self, Parsed};
use super::{COUNTED, FILE_HEAD, FRAME, Finding, PAYLOAD_MAX, Part};
use crate::disk::{BEGINS_WITH_ZEROS, DiskFile, DiskResult};
use crate::layouts::search::Credit;
use crate::varint;

const WINDOW: usize = 4 << 20;
/// A sequence in unsound bytes is believed if it is not further than this beyond the last sound one.
const PLAUSIBLE_STEP: u64 = 1 << 24;

#[derive(Debug, Default)]
pub struct Mended {
    pub entries: Vec<Entry>,
    pub findings: Vec<Finding>,
    /// The end of the last record that counts.
    pub sound_end: u64,
    /// Sound records that the index did not have.
    pub taken_in: u64,
    /// The highest sequence that any evidence shows.
    pub highest: u64,
    /// Whether the index must be written anew to say what `entries` says.
    pub index_differs: bool,
}

impl Mended {
    /// The earliest and the latest time.
    pub fn times(&self) -> (i64, i64) {
        let times = self.entries.iter().map(|entry| entry.time);
        times.fold((i64::MAX, i64::MIN), |(first, last), time| (first.min(time), last.max(time)))
    }

    /// What limits count: payload and 40 for each message.
    pub fn counted(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.size) + COUNTED).sum()
    }
}

/// A file in pieces.
struct Pages<'a> {
    file: &'a dyn DiskFile,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Pages<'_> {
    /// Up to `len` bytes; fewer at the end of the file.
    fn get(&mut self, at: u64, len: usize) -> DiskResult<&[u8]> {
        let inside = at >= self.start && at + len as u64 <= self.start + self.bytes.len() as u64;
        if !inside {
            self.bytes = self.file.read_at(at, len.max(WINDOW))?;
            self.start = at;
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..(from + len).min(self.bytes.len())])
    }

    fn skip_hole(&self, at: u64) -> DiskResult<u64> {
        Ok(self.file.next_data(at)?.saturating_sub(BEGINS_WITH_ZEROS).max(at))
    }
}

enum Look {
    Sound(Entry),
    Zeros,
    Bad,
}

struct Walk<'a> {
    pages: Pages<'a>,
    channel: &'a [u8],
    sums: &'a Sums<'a>,
    hints: Vec<Entry>,
    has_index: bool,
    ceiling: u64,
    credit: Credit,
    out: Mended,
}

/// What the caller knows of the slice.
pub struct Bounds {
    /// Entries from this offset of the data on are not believed: it was cut there on purpose.
    pub cut_at: u64,
    /// The next slice begins with this sequence: a record here that no entry names and that has it or a later one was
    /// never acknowledged.
    pub below: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { cut_at: u64::MAX, below: u64::MAX }
    }
}

pub fn mend(
    data: &dyn DiskFile,
    index: Option<&dyn DiskFile>,
    channel: &[u8],
    sums: &Sums,
    bounds: &Bounds,
) -> DiskResult<Mended> {
    let crc = sums.crc;
    let (sound, bad) = index.map_or(Ok((Vec::new(), Vec::new())), |file| sound_entries(file, crc))?;
    let read = sound.len();
    let sound = sound.into_iter().filter(|entry| entry.offset < bounds.cut_at);
    let mut hints: Vec<Entry> = Vec::with_capacity(read);
    for entry in sound {
        if hints.last().is_none_or(|last| entry.sequence > last.sequence && entry.offset >= last.end()) {
            hints.push(entry);
        }
    }
    let len = data.len()?;
    let mut walk = Walk {
        pages: Pages { file: data, len, start: 0, bytes: Vec::new() },
        channel,
        sums,
        has_index: index.is_some(),
        ceiling: bounds.below,
        credit: Credit::new(len),
        out: Mended { sound_end: FILE_HEAD, ..Mended::default() },
        hints,
    };
    walk.run()?;
    let mut out = walk.out;
    if bad.len() as u64 > out.taken_in {
        // Entries that cannot be read may have vouched for what is unsound here.
        let tails = out.findings.iter_mut().filter(|found| found.kind == "unsound-tail");
        tails.for_each(|found| found.kind = "bad-record");
    }
    for offset in &bad {
        let detail = "an index entry is not sound; the record itself has what it said".into();
        out.findings.push(Finding {
            part: Part::Index,
            kind: "index",
            offset: *offset,
            len: 32,
            sequences: None,
            detail,
        });
    }
    if out.taken_in > 0 && index.is_some() {
        let detail = format!("{} sound records were not in the index; they are taken in", out.taken_in);
        let offset = FILE_HEAD + 32 * read as u64;
        out.findings.push(Finding { part: Part::Index, kind: "index", offset, len: 0, sequences: None, detail });
    }
    let kept = walk.hints.len() == out.entries.len() && read == out.entries.len();
    out.index_differs = index.is_none() || !bad.is_empty() || out.taken_in > 0 || !kept;
    Ok(out)
}

impl Walk<'_> {
    fn run(&mut self) -> DiskResult<()> {
        let (mut at, mut hint) = (FILE_HEAD, 0);
        let vouched = self.hints.last().map_or(0, Entry::end);
        self.out.highest = self.hints.last().map_or(0, |last| last.sequence);
        while at < self.pages.len || hint < self.hints.len() {
            self.credit.advance(at);
            while self.hints.get(hint).is_some_and(|entry| entry.offset < at) {
                hint += 1;
            }
            if let Some(entry) = self.hints.get(hint).copied().filter(|entry| entry.offset <= at) {
                hint += 1;
                self.vouched_record(&entry)?;
                at = entry.end().min(self.pages.len.max(at));
                continue;
            }
            let limit = self.hints.get(hint).map_or(self.pages.len, |entry| entry.offset.min(self.pages.len));
            if at >= limit {
                // Entries that point beyond the end of the file.
                let Some(entry) = self.hints.get(hint).copied() else { return Ok(()) };
                hint += 1;
                self.vouched_record(&entry)?;
                continue;
            }
            let below = self.hints.get(hint).map_or(u64::MAX, |entry| entry.sequence);
            at = self.unvouched(at, limit, below, self.has_index && at >= vouched)?;
        }
        Ok(())
    }

    fn last(&self) -> u64 {
        self.out.entries.last().map_or(0, |entry| entry.sequence)
    }

    fn report(&mut self, kind: &'static str, from: u64, to: u64, sequences: Option<(u64, u64)>, detail: String) {
        let len = to.saturating_sub(from);
        self.out.findings.push(Finding { part: Part::Data, kind, offset: from, len, sequences, detail });
    }

    /// A record that an index entry names.
    fn vouched_record(&mut self, entry: &Entry) -> DiskResult<()> {
        let whole = FRAME + entry.size as usize;
        let mut bytes = self.pages.get(entry.offset.min(self.pages.len), whole)?.to_vec();
        let sequences = Some((entry.sequence, entry.sequence + 1));
        if bytes.len() < whole {
            let there = bytes.len().saturating_sub(FRAME);
            let detail = format!("record payload expected to be {} bytes, only read {there}", entry.size);
            self.report("bad-record", entry.offset, entry.end(), sequences, detail);
            return Ok(());
        }
        match check(&mut bytes, entry, self.sums) {
            Ok((_, mended)) => {
                if let Some(how) = mended {
                    self.report("repaired", entry.offset, entry.end(), sequences, how);
                }
                self.out.entries.push(*entry);
                self.out.sound_end = self.out.sound_end.max(entry.end());
            }
            Err(problem) => self.report("bad-record", entry.offset, entry.end(), sequences, problem),
        }
        Ok(())
    }

    /// Bytes that no entry names, up to `limit`: a record that was taken in, a dead one, padding, or damage.
    fn unvouched(&mut self, at: u64, limit: u64, below: u64, tail: bool) -> DiskResult<u64> {
        match self.look(at, limit, 0)? {
            Look::Zeros => {
                if limit < self.pages.len && below > self.last() + 1 {
                    let lost = Some((self.last() + 1, below));
                    self.report("bad-record", at, limit, lost, "zeros where records were".into());
                }
                Ok(limit)
            }
            Look::Sound(entry) => {
                self.take(entry, below);
                Ok(entry.end())
            }
            Look::Bad => self.damaged(at, limit, below, tail),
        }
    }

    fn take(&mut self, entry: Entry, below: u64) {
        let named = self.hints.binary_search_by_key(&entry.sequence, |hint| hint.sequence).is_ok();
        if named || entry.sequence >= below.min(self.ceiling) {
            let detail = format!("sequence {} was given out again; this record was never acknowledged", entry.sequence);
            self.report("superseded", entry.offset, entry.end(), None, detail);
            return;
        }
        while let Some(older) = self.out.entries.last().copied().filter(|older| older.sequence >= entry.sequence) {
            if self.hints.binary_search(&older).is_ok() {
                let detail = format!("sequence {} comes behind {}", entry.sequence, older.sequence);
                self.report("superseded", entry.offset, entry.end(), None, detail);
                return;
            }
            self.out.entries.pop();
            let detail = format!("sequence {} was given out again; the later record counts", older.sequence);
            self.report("superseded", older.offset, older.end(), None, detail);
        }
        self.out.taken_in += 1;
        self.out.highest = self.out.highest.max(entry.sequence);
        self.out.sound_end = entry.end();
        self.out.entries.push(entry);
    }

    fn damaged(&mut self, at: u64, limit: u64, below: u64, tail: bool) -> DiskResult<u64> {
        for bit in 0..30 {
            if !self.may_be_size(at, limit, 1 << bit)? {
                continue;
            }
            if let Look::Sound(entry) = self.look(at, limit, 1 << bit)? {
                self.report("repaired", at, entry.end(), None, "one bit of the size was inverted".into());
                self.take(entry, below);
                return Ok(entry.end());
            }
        }
        let nothing_lost = below == self.last() + 1;
        let kind = if nothing_lost {
            "superseded"
        } else if tail {
            "unsound-tail"
        } else {
            "bad-record"
        };
        let (end, detail) = self.end_of_damage(at, limit)?;
        let known = below.min(self.following(end, limit)?.unwrap_or(below));
        // At the start of a slice nothing says where it began: the one before the next sound record is lost at least.
        let first = if self.last() == 0 { known.saturating_sub(1) } else { self.last() + 1 };
        let lost = (!nothing_lost && known != u64::MAX && known > first).then_some((first, known));
        self.plausible(at)?;
        self.report(kind, at, end, lost, detail);
        Ok(end)
    }

    /// The sequence that the bytes at `at` claim.
    fn claimed(&mut self, at: u64) -> DiskResult<Option<u64>> {
        let bytes = self.pages.get(at, FRAME + 11)?;
        let mut from = FRAME + 1;
        Ok((bytes.get(FRAME) == Some(&0x08)).then(|| varint::get_protobuf(bytes, &mut from)).flatten())
    }

    /// Whether the record may end where its size says with some bits inverted: at the end, before padding, or before
    /// the record that comes next in the sequence. Cheap, so that few sums are made.
    fn may_be_size(&mut self, at: u64, limit: u64, flip: u32) -> DiskResult<bool> {
        let Some(head) = self.pages.get(at, FRAME)?.first_chunk::<4>().copied() else { return Ok(false) };
        let end = at + FRAME as u64 + u64::from(u32::from_le_bytes(head) ^ flip);
        if end >= limit {
            return Ok(end == limit);
        }
        let next = self.pages.get(end, FRAME)?;
        if next.iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
        Ok(match (self.claimed(at)?, self.claimed(end)?) {
            (Some(own), Some(next)) => next.wrapping_sub(own) <= 1,
            (None, next) => next.is_some(),
            (_, None) => false,
        })
    }

    /// The sequence of the sound record at `at`, if there is one.
    fn following(&mut self, at: u64, limit: u64) -> DiskResult<Option<u64>> {
        Ok(match self.look(at, limit, 0)? {
            Look::Sound(entry) => Some(entry.sequence),
            _ => None,
        })
    }

    fn end_of_damage(&mut self, at: u64, limit: u64) -> DiskResult<(u64, String)> {
        let head = self.pages.get(at, FRAME)?.to_vec();
        if head.len() < FRAME {
            return Ok((limit, format!("record header expected to be 8 bytes, only read {}", head.len())));
        }
        let size = u32::from_le_bytes(head[..4].try_into().unwrap());
        let sum = u32::from_le_bytes(head[4..].try_into().unwrap());
        let end = at + (FRAME as u64) + u64::from(size);
        let following = if end < limit { self.following(end, limit)? } else { None };
        if end == limit || following.is_some() {
            // More sequences are missing than one record has: the size is wrong, and leads over sound ones.
            let last = self.last();
            let expected = if last > 0 { Some(last + 2) } else { self.claimed(at)?.map(|own| own + 1) };
            if following.zip(expected).is_some_and(|(next, expected)| next > expected)
                && let Some(inside) = self.search(at + 1, end)?
            {
                return Ok((inside, "bytes that are no record".into()));
            }
            let got = self.sums.crc.of(self.pages.get(at + FRAME as u64, size as usize)?);
            return Ok((end, format!("corrupted data, expected crc to be 0x{sum:08x}, got 0x{got:08x}")));
        }
        let there = self.pages.len - at - FRAME as u64;
        let detail = format!("record payload expected to be {size} bytes, only read {there}");
        let detail = if end > self.pages.len { detail } else { "bytes that are no record".into() };
        Ok((self.search(at + 1, limit)?.unwrap_or(limit), detail))
    }

    /// The next sound record of this channel. It begins with its sequence and the channel's name, so looking is cheap.
    fn search(&mut self, from: u64, limit: u64) -> DiskResult<Option<u64>> {
        let mut pattern = vec![0x12];
        varint::put_uvarint(&mut pattern, self.channel.len() as u64);
        pattern.extend_from_slice(self.channel);
        let mut start = from;
        while start < limit {
            self.credit.advance(start);
            start = self.pages.skip_hole(start)?.min(limit);
            let window = WINDOW.min((limit - start) as usize);
            let piece = self.pages.get(start, window)?.to_vec();
            for found in memchr::memmem::find_iter(&piece, &pattern) {
                for varint_len in 1..=10u64 {
                    let head = varint_len + 1 + FRAME as u64;
                    let Some(at) = (start + found as u64).checked_sub(head).filter(|at| *at >= from) else { break };
                    let begins = self.pages.get(at + FRAME as u64, 1)?.first() == Some(&0x08);
                    if begins && matches!(self.look(at, limit, 0)?, Look::Sound(entry) if entry.sequence > self.last())
                    {
                        return Ok(Some(at));
                    }
                }
            }
            start += (window.saturating_sub(pattern.len() + 24)).max(1) as u64;
            if window < WINDOW {
                break;
            }
        }
        Ok(None)
    }

    fn look(&mut self, at: u64, limit: u64, flip: u32) -> DiskResult<Look> {
        if at + FRAME as u64 > limit {
            let rest = self.pages.get(at, (limit - at) as usize)?;
            return Ok(if rest.iter().all(|byte| *byte == 0) { Look::Zeros } else { Look::Bad });
        }
        let head = self.pages.get(at, FRAME)?;
        if head.iter().all(|byte| *byte == 0) {
            let zeros = flip == 0 && self.zeros(at, limit)?;
            return Ok(if zeros { Look::Zeros } else { Look::Bad });
        }
        let size = u32::from_le_bytes(head[..4].try_into().unwrap()) ^ flip;
        let sum = u32::from_le_bytes(head[4..].try_into().unwrap());
        let whole = FRAME as u64 + u64::from(size);
        if size == 0 || size as usize > PAYLOAD_MAX || at + whole > limit {
            return Ok(Look::Bad);
        }
        let paid = if flip == 0 { self.credit.affords(whole) } else { self.credit.spend_on_repair(whole) };
        if !paid {
            return Ok(Look::Bad);
        }
        let payload = self.pages.get(at + FRAME as u64, size as usize)?.to_vec();
        let parsed = record::parse(&payload).filter(|parsed| self.belongs(&payload, parsed));
        match parsed {
            Some(parsed) if !self.sums.strict && flip == 0 || self.sums.crc.of(&payload) == sum => {
                Ok(Look::Sound(Entry { sequence: parsed.sequence, offset: at, time: parsed.time, size }))
            }
            _ => {
                self.credit.spend(if flip == 0 { whole } else { 0 });
                Ok(Look::Bad)
            }
        }
    }

    fn belongs(&self, payload: &[u8], parsed: &Parsed) -> bool {
        parsed.sequence > 0 && (self.channel.is_empty() || payload[parsed.subject.clone()] == *self.channel)
    }

    fn zeros(&mut self, mut at: u64, limit: u64) -> DiskResult<bool> {
        while at < limit {
            at = self.pages.skip_hole(at)?.min(limit);
            let piece = self.pages.get(at, WINDOW.min((limit - at) as usize))?;
            if piece.iter().any(|byte| *byte != 0) || (piece.is_empty() && at < limit) {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
        Ok(true)
    }

    /// A sequence in unsound bytes counts as given out, so that it is not given out again.
    fn plausible(&mut self, at: u64) -> DiskResult<()> {
        if let Some(sequence) = self.claimed(at)? {
            let near = sequence <= self.last().saturating_add(PLAUSIBLE_STEP);
            self.out.highest = self.out.highest.max(if near { sequence } else { 0 });
        }
        Ok(())
    }
}
