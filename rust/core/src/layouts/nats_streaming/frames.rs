//! The records of small files (server.dat, clients.dat, subs.dat), checked one after the other.
//!
//! A header of eight zeros ends the file. A header without any payload byte behind it is a torn write that the real
//! server takes for a clean end; nothing may be appended after it.

use std::ops::Range;

use super::crc::Crc;
use super::{FILE_HEAD, FRAME};
use crate::layouts::search::Credit;

const SIZE_BITS: u32 = 24;
/// A search looks at every record up to this size.
const SMALL: usize = 64 << 10;

pub struct Frame {
    pub offset: usize,
    /// 0 in files without types.
    pub kind: u8,
    pub payload: Range<usize>,
}

/// The first thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub offset: usize,
    /// Where the next sound record begins, or the end of the file.
    pub end: usize,
    pub detail: String,
    /// The file ends inside the record ("unexpected EOF"): cutting it there is what file_truncate_bad_eof does.
    pub cut_short: bool,
}

#[derive(Default)]
pub struct Walk {
    pub frames: Vec<Frame>,
    /// Every problem; without `tolerant` at most one.
    pub problems: Vec<Problem>,
    /// The end of the last sound record.
    pub sound_end: usize,
}

pub struct Reading<'a> {
    pub crc: &'a Crc,
    pub strict: bool,
    /// The highest type of a record; 0 for files without types.
    pub types: u8,
    /// Go on after a bad record.
    pub tolerant: bool,
}

pub fn walk(data: &[u8], how: &Reading) -> Walk {
    let mut out = Walk { sound_end: data.len().min(FILE_HEAD as usize), ..Walk::default() };
    let mut at = out.sound_end;
    let mut credit = Credit::new(data.len() as u64);
    while at < data.len() {
        match look(data, at, how, &mut credit) {
            Ok(Some(frame)) => {
                at = frame.payload.end;
                out.sound_end = at;
                out.frames.push(frame);
            }
            Ok(None) => return out,
            Err(mut problem) => {
                if how.tolerant {
                    problem.end = resume(data, at, how, &mut credit);
                }
                at = problem.end;
                out.problems.push(problem);
                if !how.tolerant {
                    return out;
                }
            }
        }
    }
    out
}

/// A sound record, `None` for padding, or what is wrong.
fn look(data: &[u8], at: usize, how: &Reading, credit: &mut Credit) -> Result<Option<Frame>, Problem> {
    credit.advance(at as u64);
    let rest = &data[at..];
    let bad = |detail: String, cut_short: bool| Problem { offset: at, end: data.len(), detail, cut_short };
    if rest.len() < FRAME {
        return Err(bad(format!("record header expected to be 8 bytes, only read {}", rest.len()), true));
    }
    let (head, body) = rest.split_at(FRAME);
    if head.iter().all(|byte| *byte == 0) {
        let padding = body.iter().all(|byte| *byte == 0);
        return if padding { Ok(None) } else { Err(bad("zeros, and then something else".into(), false)) };
    }
    let word = u32::from_le_bytes(head[..4].try_into().unwrap());
    let sum = u32::from_le_bytes(head[4..].try_into().unwrap());
    let (kind, size) = match how.types {
        0 => (0, word as usize),
        _ => ((word >> SIZE_BITS) as u8, (word & ((1 << SIZE_BITS) - 1)) as usize),
    };
    if size > body.len() {
        return Err(bad(format!("record payload expected to be {size} bytes, only read {}", body.len()), true));
    }
    if how.types > 0 && !(1..=how.types).contains(&kind) {
        return Err(bad(format!("unexpected record type: {kind}"), false));
    }
    if !credit.affords(size as u64) {
        return Err(bad("not looked at: the bytes before it claim too many records".into(), false));
    }
    let got = how.crc.of(&body[..size]);
    if got != sum && how.strict {
        credit.spend(size as u64);
        return Err(bad(format!("corrupted data, expected crc to be 0x{sum:08x}, got 0x{got:08x}"), false));
    }
    let start = at + FRAME;
    Ok(Some(Frame { offset: at, kind, payload: start..start + size }))
}

/// Where the records go on after a bad one: where its size says, or at the next that is sound. Its size is wrong when
/// one other bit makes the record sound, or when there are sound records inside it: a client could write such bytes
/// into a name, but would gain no more by it than by asking for the same.
fn resume(data: &[u8], at: usize, how: &Reading, credit: &mut Credit) -> usize {
    let strict = Reading { strict: true, ..*how };
    let Some(head) = data.get(at..at + FRAME) else { return data.len() };
    let word = u32::from_le_bytes(head[..4].try_into().unwrap());
    let sum = u32::from_le_bytes(head[4..].try_into().unwrap());
    let size = if how.types == 0 { word } else { word & ((1 << SIZE_BITS) - 1) } as usize;
    let end = at.saturating_add(FRAME + size);
    let follows = end == data.len() || (end < data.len() && look(data, end, how, credit).is_ok());
    let limit = if follows { end } else { data.len() };
    let Some(next) = next_sound(data, at + 1..limit, &strict, credit) else { return limit };
    let repaired = (0..SIZE_BITS).map(|bit| at + FRAME + (size ^ 1 << bit)).find(|end| {
        let paid = *end <= data.len() && credit.spend_on_repair((*end - at) as u64);
        paid && how.crc.of(&data[at + FRAME..*end]) == sum
    });
    match repaired {
        Some(end) => end,
        None => next,
    }
}

/// The next sound record. Nothing shorter than two bytes proves itself.
fn next_sound(data: &[u8], within: Range<usize>, strict: &Reading, credit: &mut Credit) -> Option<usize> {
    let data = &data[..within.end];
    let sound = |at: &usize| {
        // Any bytes claim something: a large record is looked at only where another may follow it.
        let likely = claim(data, *at, strict)
            .is_some_and(|end| end - at <= SMALL || end == data.len() || claim(data, end, strict).is_some());
        likely && matches!(look(data, *at, strict, credit), Ok(Some(frame)) if frame.payload.len() > 1)
    };
    (within.start..within.end.saturating_sub(FRAME)).find(sound)
}

/// Where a record that begins at `at` would end.
fn claim(data: &[u8], at: usize, how: &Reading) -> Option<usize> {
    let word = u32::from_le_bytes(*data.get(at..)?.first_chunk()?);
    let typed = how.types == 0 || (1..=u32::from(how.types)).contains(&(word >> SIZE_BITS));
    let size = if how.types == 0 { word } else { word & ((1 << SIZE_BITS) - 1) } as usize;
    let end = at.checked_add(FRAME + size)?;
    (typed && size > 0 && end <= data.len()).then_some(end)
}

/// One record; `kind` 0 for files without types. The payload of a typed record ends at 16 MiB.
pub fn encode(out: &mut Vec<u8>, kind: u8, payload: &[u8], crc: &Crc) {
    let word = payload.len() as u32 | u32::from(kind) << SIZE_BITS;
    out.extend_from_slice(&word.to_le_bytes());
    out.extend_from_slice(&crc.of(payload).to_le_bytes());
    out.extend_from_slice(payload);
}
