//! A commit-log file from a position on, past everything that is not sound: what each queue gets from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::message::{self, BLANK, FIXED, MAGIC, MAGIC_V2, Parsed};
use crate::disk::{Disk, DiskResult, OpenMode, Window};
use crate::layouts::search::Credit;

pub const ENTRY: usize = 20;
const WINDOW_BYTES: usize = 8 << 20;

/// Entries of one queue without a gap in their offsets.
#[derive(Debug)]
pub struct QueueRun {
    pub first: i64,
    pub entries: Vec<u8>,
}

#[derive(Debug)]
pub struct Bad {
    /// Positions in the file.
    pub from: u64,
    pub to: u64,
    pub why: &'static str,
    /// Nothing sound follows in the file.
    pub tail: bool,
}

#[derive(Default)]
pub struct Scan {
    pub messages: u64,
    pub queued: u64,
    /// Where the next message would go; the file's size when it is full.
    pub end: u64,
    /// The file ended with a blank, or there is no room for another.
    pub full: bool,
    pub first_store_ms: Option<i64>,
    pub last_store_ms: i64,
    pub bad: Vec<Bad>,
    pub queues: BTreeMap<(Vec<u8>, i32), Vec<QueueRun>>,
    /// (topic#key, address, store time): what the index gets.
    pub keys: Vec<(Vec<u8>, i64, i64)>,
}

pub fn entry(address: i64, size: usize, tag: i64) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    out[..8].copy_from_slice(&address.to_be_bytes());
    out[8..12].copy_from_slice(&(size as i32).to_be_bytes());
    out[12..].copy_from_slice(&tag.to_be_bytes());
    out
}

/// `start` is the address of the file's first byte.
pub fn scan(disk: &Arc<dyn Disk>, path: &str, start: u64, from: u64, keys: bool) -> DiskResult<Scan> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = file.len()?;
    let mut window = Window::new(file, len, WINDOW_BYTES);
    let mut credit = Credit::new(len);
    let mut found = Scan { end: from, ..Scan::default() };
    let mut at = from;
    while len - at >= BLANK as u64 {
        credit.advance(at);
        match at_place(&mut window, at, start, &mut credit)? {
            Ok(Parsed::End) => break,
            Ok(Parsed::Blank(_)) => {
                (found.full, at) = (true, len);
                break;
            }
            Ok(Parsed::Message(view)) => {
                let bytes = window.upto(at, view.size)?;
                found.take(&view, bytes, keys);
                at += view.size as u64;
                found.end = at;
            }
            Err(why) => {
                let next = resync(&mut window, at + 1, start, &mut credit)?;
                let to = next.unwrap_or(used_end(&mut window, at)?);
                found.bad.push(Bad { from: at, to, why, tail: next.is_none() });
                if next.is_none() {
                    break;
                }
                at = to;
            }
        }
    }
    found.full |= len - at < BLANK as u64;
    if found.full {
        found.end = len;
    }
    Ok(found)
}

/// What stands at a position, checksums included; what is not sound is paid for.
fn at_place(window: &mut Window, at: u64, start: u64, credit: &mut Credit) -> DiskResult<Result<Parsed, &'static str>> {
    let size = message::extent(window.upto(at, BLANK)?).map_or(0, |(size, _)| size);
    let wanted = size.clamp(BLANK, message::MESSAGE_BYTES_MAX);
    if !credit.affords(wanted as u64) {
        return Ok(Err("not looked at: the bytes before it claim too many messages"));
    }
    let bytes = window.upto(at, wanted)?;
    let found = match message::parse(bytes, start + at) {
        Ok(Parsed::Message(view)) => view.check(bytes).map(|()| Parsed::Message(view.clone())),
        other => other,
    };
    if found.is_err() {
        credit.spend(bytes.len() as u64);
    }
    Ok(found)
}

/// The next place where a message begins that names its own address and is sound.
fn resync(window: &mut Window, from: u64, start: u64, credit: &mut Credit) -> DiskResult<Option<u64>> {
    let mut at = from;
    while at + FIXED as u64 <= window.len {
        at = window.skip_hole(at)?;
        let piece = window.upto(at, WINDOW_BYTES)?;
        let candidate = memchr::memmem::find_iter(piece, &MAGIC.to_be_bytes()[..3])
            .filter(|hit| *hit >= 4)
            .map(|hit| hit - 4)
            .find(|hit| {
                let magic = piece.get(hit + 7).copied();
                let own = piece.get(hit + 28..hit + 36).and_then(|b| b.first_chunk()).map(|b| u64::from_be_bytes(*b));
                let known = magic == Some(MAGIC as u8) || magic == Some(MAGIC_V2 as u8);
                known && own.is_none_or(|own| own == start + at + *hit as u64)
            });
        match candidate {
            Some(hit) => {
                let place = at + hit as u64;
                credit.advance(place);
                if matches!(at_place(window, place, start, credit)?, Ok(Parsed::Message(_))) {
                    return Ok(Some(place));
                }
                at = place + 1;
            }
            None if piece.len() < WINDOW_BYTES => return Ok(None),
            None => at += (piece.len() - 40) as u64,
        }
    }
    Ok(None)
}

/// Where the zeros begin that reach to the end of the file.
fn used_end(window: &mut Window, from: u64) -> DiskResult<u64> {
    let (mut at, mut end) = (from, from);
    while at < window.len {
        at = window.skip_hole(at)?;
        let piece = window.upto(at, WINDOW_BYTES)?;
        if let Some(last) = piece.iter().rposition(|byte| *byte != 0) {
            end = at + last as u64 + 1;
        }
        at += piece.len().max(1) as u64;
    }
    Ok(end)
}

impl Scan {
    fn take(&mut self, view: &message::View, bytes: &[u8], keys: bool) {
        self.messages += 1;
        self.first_store_ms.get_or_insert(view.store_ms);
        self.last_store_ms = view.store_ms;
        if !view.is_queued() {
            return;
        }
        self.queued += 1;
        let topic = &bytes[view.topic.clone()];
        let runs = self.queues.entry((topic.to_vec(), view.queue)).or_default();
        let made = entry(view.address, view.size, view.tag_code(bytes));
        match runs.last_mut() {
            Some(run) if run.first + (run.entries.len() / ENTRY) as i64 == view.queue_offset => {
                run.entries.extend_from_slice(&made);
            }
            _ => runs.push(QueueRun { first: view.queue_offset, entries: made.to_vec() }),
        }
        if keys {
            for name in [&b"UNIQ_KEY"[..], b"KEYS"] {
                let listed = view.property(bytes, name).unwrap_or(&[]);
                let words: Vec<&[u8]> =
                    if name == b"KEYS" { listed.split(|b| *b == b' ').collect() } else { vec![listed] };
                for key in words.into_iter().filter(|key| !key.is_empty()) {
                    self.keys.push(([topic, b"#", key].concat(), view.address, view.store_ms));
                }
            }
        }
    }
}
