//! The tolerant scanner: every sound record of a block, and a finding for all that is not sound.
//!
//! It never stops at damage and never writes: repairs are made in the caller's copy of the bytes, so that
//! later reads of the loaded block see them; the file keeps what it had. A record counts as sound when its
//! hash fits AND its boundaries hold up (the hash covers none of the lengths): subject grammar, the header
//! block ending at its first empty line, and the guard where there is one. The stream's configured subjects
//! are no test: they may have been others when the message was stored.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::guard::{Bounds, Guard};
use super::query::entry_of;
use super::record::{Fault, HEADERS_BIT, LENGTH, SUBJECT, SUBJECT_LENGTH, View, u32_at};
use super::resync::{Step, recover};
use crate::batch::Entry;
use crate::hash::HashKey;
use crate::layouts::search::Credit;

/// One sound record; `raw_sequence` keeps its flag bits.
#[derive(Debug, Clone, Copy)]
pub struct RecordRef {
    pub raw_sequence: u64,
    pub offset: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingKind {
    /// A record whose content is lost; its bytes stay in the file.
    BadRecord,
    /// One inverted bit was turned back in memory.
    Repaired,
    /// Bytes after the last sound record.
    UnsoundTail,
    /// A record inside the extent of a damaged one: anybody could have put it there.
    ForgedInside,
    /// Sound, but its sequence does not grow.
    Order,
}

impl FindingKind {
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::BadRecord => "bad-record",
            FindingKind::Repaired => "repaired",
            FindingKind::UnsoundTail => "unsound-tail",
            FindingKind::ForgedInside => "forged-inside",
            FindingKind::Order => "order",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Finding {
    pub kind: FindingKind,
    pub offset: u64,
    pub len: u64,
    /// The sequences concerned, half-open, as far as the neighbours show.
    pub sequences: Option<(u64, u64)>,
    pub detail: String,
}

/// What is known of the block from elsewhere.
#[derive(Default)]
pub struct Hints<'a> {
    pub guard: Option<&'a Guard>,
}

/// Takes the sound messages of a block, in order and some at a time, while their bytes are still in the processor's cache.
pub type Taker<'a> = dyn FnMut(&[u8], &[Entry]) + 'a;

/// How many messages a taker gets at a time.
const PIECE: usize = 1024;

#[derive(Default)]
pub struct Scan {
    pub records: Vec<RecordRef>,
    pub findings: Vec<Finding>,
    /// Where the last sound record ends.
    pub sound_end: usize,
    /// No lower than any sequence that the unsound bytes may have held, as far as this block shows.
    pub highest_plausible: u64,
    /// How many messages the unsound bytes behind the last sound one may have held.
    pub doubt: u64,
    /// How many bytes a whole guard of this block covers, whether or not they are (still) there; 0 without one.
    pub guard_covers: usize,
}

pub(super) struct Scanner<'a> {
    pub key: &'a HashKey,
    pub last_sequence: u64,
    /// How many messages the unsound bytes since the last sound one may have held, and the highest sequence
    /// they claim. A sound message behind them decides.
    pub doubt: u64,
    pub claimed: u64,
    pub credit: Credit,
    known_subject: (usize, usize),
    /// Messages that wait for the taker; `None` where nobody takes them.
    waiting: Option<Vec<Entry>>,
}

/// Scans the whole block. `block` may be changed by repairs.
pub fn scan(block: &mut [u8], key: &HashKey, hints: &Hints<'_>) -> Scan {
    scan_taking(block, key, hints, None)
}

/// `scan`, with its messages for a taker. What a taker got is not changed afterwards.
pub fn scan_taking(block: &mut [u8], key: &HashKey, hints: &Hints<'_>, mut take: Option<&mut Taker<'_>>) -> Scan {
    let credit = Credit::new(block.len() as u64);
    let waiting = take.is_some().then(|| Vec::with_capacity(PIECE));
    let mut scanner = Scanner { key, last_sequence: 0, doubt: 0, claimed: 0, credit, known_subject: (0, 0), waiting };
    let mut scan = Scan::default();
    scan.records.reserve(hints.guard.map_or(0, Guard::records));
    let mut guarded = hints.guard.map(Guard::iter);
    let mut at = 0;
    while at < block.len() {
        scanner.hand_over(block, PIECE, &mut take);
        let bounds = guarded.as_mut().and_then(Iterator::next);
        if let Some(bounds) = bounds.filter(|bounds| !bounds_fit(block, at, bounds)) {
            at = scanner.restore_bounds(block, at, &bounds, &mut scan);
            continue;
        }
        match scanner.checked(block, at) {
            Ok(view) if bounds.is_some() || scanner.boundaries_hold(block, &view) => {
                scanner.accept(&view, &mut scan);
                at = view.end();
            }
            Ok(view) => {
                let view = scanner.check_boundaries(block, view, &mut scan);
                at = view.end();
            }
            Err(fault) => {
                let extent = bounds.map(|bounds| bounds.len());
                match recover(&mut scanner, block, at, fault, extent, &mut scan) {
                    Step::Repaired(view) => {
                        scanner.accept(&view, &mut scan);
                        at = view.end();
                    }
                    Step::GoOn(to) => {
                        if guarded.is_some() && extent.is_none() {
                            guarded = None;
                        }
                        at = to;
                    }
                    Step::Tail => break,
                }
            }
        }
    }
    scanner.hand_over(block, 1, &mut take);
    scan.doubt = scanner.doubt;
    scan.highest_plausible = scanner.claimed.max(scanner.last_sequence + scanner.doubt);
    scan
}

impl Scanner<'_> {
    /// The record where the last one ended. Only one that is not sound is paid for: it may claim the rest of the block.
    #[inline]
    fn checked(&mut self, block: &[u8], at: usize) -> Result<View, Fault> {
        self.credit.advance(at as u64);
        let view = View::parse(block, at)?;
        if !self.credit.affords(view.len as u64) {
            return Err(Fault::Unaffordable { len: view.len });
        }
        let (seen, expected) = (view.stored_hash(block), view.hash(block, self.key));
        if seen != expected {
            self.credit.spend(view.len as u64);
            return Err(Fault::Hash { seen, expected });
        }
        Ok(view)
    }

    /// What waits, if it is as many as that.
    #[inline]
    fn hand_over(&mut self, block: &[u8], least: usize, take: &mut Option<&mut Taker<'_>>) {
        if let (Some(waiting), Some(take)) = (&mut self.waiting, take)
            && waiting.len() >= least
        {
            take(block, waiting);
            waiting.clear();
        }
    }

    fn accept(&mut self, view: &View, scan: &mut Scan) {
        if !view.is_tombstone() {
            let sequence = view.sequence();
            if sequence <= self.last_sequence {
                scan.findings.push(Finding {
                    kind: FindingKind::Order,
                    offset: view.offset as u64,
                    len: view.len as u64,
                    sequences: Some((sequence, sequence + 1)),
                    detail: format!("sequence {sequence} after {}", self.last_sequence),
                });
                scan.sound_end = view.end();
                return;
            }
            (self.last_sequence, self.doubt, self.claimed) = (sequence, 0, 0);
        }
        if let Some(waiting) = self.waiting.as_mut().filter(|_| view.is_message()) {
            waiting.push(entry_of(view, 0));
        }
        scan.records.push(RecordRef { raw_sequence: view.raw_sequence, offset: view.offset as u32 });
        scan.sound_end = view.end();
    }

    /// Do subject and headers end where the lengths say? Cheap for runs on one subject.
    #[inline]
    pub fn boundaries_hold(&mut self, block: &[u8], view: &View) -> bool {
        if !view.is_message() {
            return has_no_parts(view);
        }
        let (start, len) = self.known_subject;
        let subject = view.subject(block);
        if &block[start..start + len] != subject || len == 0 {
            if !stored_subject(subject) {
                return false;
            }
            self.known_subject = (view.offset + SUBJECT, view.subject_len);
        }
        view.headers(block).is_none_or(headers_end_once)
    }

    /// The hash fits but the boundaries look wrong. If exactly one inverted length bit makes them right,
    /// that is the record; if none does, it was stored that way; if several do, nobody can know.
    fn check_boundaries(&mut self, block: &mut [u8], view: View, scan: &mut Scan) -> View {
        let mut found = Vec::new();
        let fields = [(SUBJECT_LENGTH, 16), (SUBJECT + view.subject_len, 32)];
        for (field, bits) in fields.into_iter().take(1 + usize::from(view.header_len.is_some())) {
            for bit in 0..bits {
                let (byte, mask) = (view.offset + field + bit / 8, 1u8 << (bit % 8));
                block[byte] ^= mask;
                let candidate = View::checked(block, view.offset, self.key).ok();
                if candidate.is_some_and(|c| self.well_formed(block, &c)) {
                    found.push((byte, mask));
                }
                block[byte] ^= mask;
            }
        }
        match found[..] {
            [] => {
                self.accept(&view, scan);
                view
            }
            [(byte, mask)] => {
                block[byte] ^= mask;
                let repaired = View::parse(block, view.offset).unwrap_or(view);
                scan.findings.push(repaired_finding(&repaired, "a bit of its subject or header length"));
                self.accept(&repaired, scan);
                repaired
            }
            _ => {
                let sequence = view.sequence();
                self.last_sequence = self.last_sequence.max(sequence);
                scan.findings.push(Finding {
                    kind: FindingKind::BadRecord,
                    offset: view.offset as u64,
                    len: view.len as u64,
                    sequences: Some((sequence, sequence + 1)),
                    detail: "its subject and payload cannot be distinguished".into(),
                });
                scan.sound_end = view.end();
                view
            }
        }
    }

    /// `boundaries_hold` without the memo: for candidates that are not accepted yet.
    pub fn well_formed(&self, block: &[u8], view: &View) -> bool {
        if !view.is_message() {
            return has_no_parts(view);
        }
        stored_subject(view.subject(block)) && view.headers(block).is_none_or(headers_end_once)
    }

    /// The guard knows better than the record: write its lengths into the copy, then judge by the hash.
    fn restore_bounds(&mut self, block: &mut [u8], at: usize, bounds: &Bounds, scan: &mut Scan) -> usize {
        let end = at + bounds.len();
        let original = block[at..end].to_vec();
        write_bounds(block, at, bounds);
        match View::checked(block, at, self.key) {
            Ok(view) => {
                scan.findings.push(repaired_finding(&view, "its lengths, from the guard"));
                self.accept(&view, scan);
            }
            Err(fault) => match recover(self, block, at, fault, Some(bounds.len()), scan) {
                Step::Repaired(view) => self.accept(&view, scan),
                Step::GoOn(_) | Step::Tail => block[at..end].copy_from_slice(&original),
            },
        }
        end
    }
}

pub(super) fn repaired_finding(view: &View, what: &str) -> Finding {
    let sequence = view.sequence();
    Finding {
        kind: FindingKind::Repaired,
        offset: view.offset as u64,
        len: view.len as u64,
        sequences: Some((sequence, sequence + 1)),
        detail: format!("turned back: {what}"),
    }
}

fn bounds_fit(block: &[u8], at: usize, bounds: &Bounds) -> bool {
    // A guard never reaches past the block (checked when it was read).
    let record = &block[at..at + bounds.len()];
    let subject_len = u16::from_le_bytes([record[SUBJECT_LENGTH], record[SUBJECT_LENGTH + 1]]);
    let fixed = u32_at(record, LENGTH) == bounds.raw_length && subject_len == bounds.subject_len;
    let headers_at = SUBJECT + bounds.subject_len as usize;
    let no_headers = bounds.raw_length & HEADERS_BIT == 0;
    fixed && (no_headers || (headers_at + 4 <= record.len() && u32_at(record, headers_at) == bounds.header_len))
}

fn write_bounds(block: &mut [u8], at: usize, bounds: &Bounds) {
    block[at + LENGTH..at + LENGTH + 4].copy_from_slice(&bounds.raw_length.to_le_bytes());
    block[at + SUBJECT_LENGTH..at + SUBJECT].copy_from_slice(&bounds.subject_len.to_le_bytes());
    let headers_at = at + SUBJECT + bounds.subject_len as usize;
    if bounds.raw_length & HEADERS_BIT != 0 && headers_at + 4 <= at + bounds.len() {
        block[headers_at..headers_at + 4].copy_from_slice(&bounds.header_len.to_le_bytes());
    }
}

/// Tombstones, placeholders and erased messages have neither subject nor headers.
fn has_no_parts(view: &View) -> bool {
    view.subject_len == 0 && view.header_len.is_none()
}

/// What a server can have stored: tokens without blanks or control bytes, none of them empty. A published
/// literal `*` is legal, so wildcards say nothing here.
fn stored_subject(subject: &[u8]) -> bool {
    let mut previous = b'.';
    for &byte in subject {
        if byte <= b' ' || byte == 0x7f || (byte == b'.' && previous == b'.') {
            return false;
        }
        previous = byte;
    }
    previous != b'.'
}

/// A header block ends at its first empty line.
fn headers_end_once(headers: &[u8]) -> bool {
    // Preparing a search costs more than most headers are long.
    static EMPTY_LINE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));
    EMPTY_LINE.find(headers).is_some_and(|at| at + 4 == headers.len())
}
