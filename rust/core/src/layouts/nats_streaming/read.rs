//! Messages of one slice, through its index: one read of the index, one of the data, every CRC compared.

use std::sync::Arc;

use super::crc::Crc;
use super::index::{self, Entry};
use super::record::{self, Parsed};
use super::seal::Opener;
use super::{FRAME, Finding, Part};
use crate::batch::{Batch, Entry as Message, HeaderCodec, Span};
use crate::disk::{DiskError, DiskFile};

/// One read of the data takes at most this, unless a single message is larger.
const WINDOW_MAX: u64 = 64 << 20;
const ENTRIES_MAX: usize = 1 << 16;
/// Larger payloads are not searched for a flipped bit: that is quadratic.
const MENDED_MAX: usize = 2048;

pub struct Slice<'a> {
    pub data: &'a dyn DiskFile,
    pub index: &'a dyn DiskFile,
    /// Entries of the index that count, and the sequence of the first.
    pub count: u64,
    pub first: u64,
}

pub struct Wanted {
    pub first: u64,
    pub below: u64,
    pub msgs: usize,
    pub bytes: u64,
}

/// How to compute sums, and whether a payload with a wrong one may be served (file_crc=false) if it parses.
pub struct Sums<'a> {
    pub crc: &'a Crc,
    pub strict: bool,
}

pub struct Found {
    pub batch: Batch,
    /// Everything below this was looked at.
    pub next: u64,
    pub findings: Vec<Finding>,
    /// Messages whose tag does not fit the key.
    pub not_opened: u64,
}

pub fn read(slice: &Slice, want: &Wanted, sums: &Sums, opener: Option<&Opener>) -> Result<Found, DiskError> {
    let slot = index::slot_of(slice.index, slice.count, slice.first, want.first)?;
    let left = slice.count.saturating_sub(slot).min(ENTRIES_MAX as u64) as usize;
    let read = index::entries_at(slice.index, slot, left.min(want.msgs.max(1)), sums.crc)?;
    let mut out = Found {
        batch: Batch::empty(HeaderCodec::Nats),
        next: if left == 0 { want.below } else { want.first },
        findings: Vec::new(),
        not_opened: 0,
    };
    let mut entries: Vec<Entry> = Vec::with_capacity(read.len());
    let reached_end = read.len() as u64 + slot >= slice.count;
    for (at, entry) in read.iter().enumerate() {
        let Some(entry) = entry else {
            let offset = super::FILE_HEAD + (slot + at as u64) * index::ENTRY as u64;
            out.findings.push(Finding {
                part: Part::Index,
                kind: "index",
                offset,
                len: index::ENTRY as u64,
                sequences: None,
                detail: "an index entry went bad after the slice was opened; opening it again rebuilds the entry"
                    .into(),
            });
            continue;
        };
        let start = entries.first().map_or(entry.offset, |first| first.offset);
        let span = entry.end().saturating_sub(start);
        let past = entry.sequence >= want.below;
        if past || entry.offset < start || (!entries.is_empty() && span > want.bytes.min(WINDOW_MAX)) {
            out.next = out.next.max(if past { want.below } else { entry.sequence });
            return fill(slice, out, &entries, sums, opener);
        }
        entries.push(*entry);
        out.next = entry.sequence + 1;
    }
    if reached_end {
        out.next = out.next.max(want.below);
    }
    fill(slice, out, &entries, sums, opener)
}

fn fill(
    slice: &Slice,
    mut out: Found,
    entries: &[Entry],
    sums: &Sums,
    opener: Option<&Opener>,
) -> Result<Found, DiskError> {
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(out) };
    let mut buffer = slice.data.read_at(first.offset, (last.end() - first.offset) as usize)?;
    let mut messages = Vec::with_capacity(entries.len());
    for entry in entries {
        let frame = (entry.offset - first.offset) as usize;
        let mut lost = |kind, detail: String| {
            out.findings.push(Finding {
                part: Part::Data,
                kind,
                offset: entry.offset,
                len: (FRAME + entry.size as usize) as u64,
                sequences: Some((entry.sequence, entry.sequence + 1)),
                detail,
            });
        };
        let end = frame + FRAME + entry.size as usize;
        if end > buffer.len() {
            let there = buffer.len().saturating_sub(frame + FRAME);
            lost("bad-record", format!("record payload expected to be {} bytes, only read {there}", entry.size));
            continue;
        }
        let (parsed, mended) = match check(&mut buffer[frame..end], entry, sums) {
            Ok(found) => found,
            Err(problem) => {
                lost("bad-record", problem);
                continue;
            }
        };
        if let Some(how) = mended {
            lost("repaired", how);
        }
        let base = frame + FRAME;
        let mut data = base + parsed.data.start..base + parsed.data.end;
        if let Some(opener) = opener.filter(|_| !data.is_empty()) {
            match opener.open(&buffer[data.clone()]) {
                Some(plain) => {
                    data.end = data.start + plain.len();
                    buffer[data.clone()].copy_from_slice(&plain);
                }
                None => {
                    out.not_opened += 1;
                    continue;
                }
            }
        }
        messages.push(Message {
            position: entry.sequence,
            time: parsed.time,
            subject: span(base + parsed.subject.start, parsed.subject.len()),
            key: Span::NULL,
            headers: if parsed.reply.is_empty() { Span::NULL } else { reply(&mut buffer, base, &parsed) },
            data: span(data.start, data.len()),
            flags: 0,
        });
    }
    out.batch = Batch::new(Arc::new(buffer), messages, HeaderCodec::Nats);
    Ok(out)
}

fn span(offset: usize, len: usize) -> Span {
    Span { offset: offset as u32, len: len as u32 }
}

fn reply(buffer: &mut Vec<u8>, base: usize, parsed: &Parsed) -> Span {
    let text = buffer[base + parsed.reply.start..base + parsed.reply.end].to_vec();
    let start = buffer.len();
    record::put_reply_block(buffer, &text);
    span(start, buffer.len() - start)
}

/// A frame with its payload against the index entry. One flipped bit is turned back; it says how.
pub fn check(bytes: &mut [u8], entry: &Entry, sums: &Sums) -> Result<(Parsed, Option<String>), String> {
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (size, sum) = (word(bytes, 0), word(bytes, 4));
    let fits = |payload: &[u8]| {
        let parsed = record::parse(payload).filter(|parsed| parsed.sequence == entry.sequence);
        parsed.filter(|parsed| parsed.time == entry.time)
    };
    let crc = sums.crc;
    let got = crc.of(&bytes[FRAME..]);
    if got == sum {
        let Some(parsed) = fits(&bytes[FRAME..]) else {
            return Err(format!("the record is not the message {} that the index names", entry.sequence));
        };
        let how =
            (size != entry.size).then(|| format!("the size was {size}, the index and the CRC say {}", entry.size));
        return Ok((parsed, how));
    }
    let bad = format!("corrupted data, expected crc to be 0x{sum:08x}, got 0x{got:08x}");
    if size != entry.size {
        return Err(bad);
    }
    if entry.size as usize > MENDED_MAX {
        return unchecked(sums, &fits, bytes).ok_or(bad);
    }
    if (got ^ sum).count_ones() == 1 {
        if let Some(parsed) = fits(&bytes[FRAME..]) {
            return Ok((parsed, Some("one bit of the CRC was inverted".into())));
        }
    }
    for bit in 0..(bytes.len() - FRAME) * 8 {
        let (at, mask) = (FRAME + bit / 8, 1 << (bit % 8));
        bytes[at] ^= mask;
        if crc.of(&bytes[FRAME..]) == sum {
            if let Some(parsed) = fits(&bytes[FRAME..]) {
                return Ok((parsed, Some(format!("one bit was inverted, at byte {} of the record", at))));
            }
        }
        bytes[at] ^= mask;
    }
    unchecked(sums, &fits, bytes).ok_or(bad)
}

fn unchecked(sums: &Sums, fits: &dyn Fn(&[u8]) -> Option<Parsed>, bytes: &[u8]) -> Option<(Parsed, Option<String>)> {
    if sums.strict {
        return None;
    }
    fits(&bytes[FRAME..]).map(|parsed| (parsed, Some("the CRC does not fit; served because file_crc is false".into())))
}
