//! After a bad record: what it was, and where the next sound one begins.
//!
//! Order of attempts, cheapest and surest first:
//! 1. one inverted bit in its lengths (they decide where everything else lies);
//! 2. its extent is known (from the guard, or because a sound record follows where it says it ends):
//!    one inverted bit anywhere in it if it is small, otherwise the record is lost and the walk goes on
//!    behind it. Records found inside it are reported, never served: the hash key is public;
//! 3. its extent is unknown: the next place that looks like a record (length, subject, sequence, what
//!    follows), proved by its hash, within a budget;
//! 4. nothing: the rest is an unsound tail.

use super::record::{
    Fault, HASH_SIZE, HEADERS_BIT, LENGTH, RECORD_BYTES_MAX, RECORD_BYTES_MIN, SEQUENCE, SEQUENCE_MASK, SUBJECT,
    SUBJECT_LENGTH, TOMBSTONE_BIT, View, u32_at, u64_at,
};
use super::scan::{Finding, FindingKind, Scan, Scanner, repaired_finding};

/// Records up to this size are tried with every single bit inverted.
const SMALL_RECORD: usize = 2048;
/// How far ahead of the last sound sequence a candidate may be.
const SEQUENCE_REACH: u64 = 1 << 32;
/// How far an unsound sequence field is believed when the next sequence is chosen.
const PLAUSIBLE_REACH: u64 = 1 << 20;

pub(super) enum Step {
    Repaired(View),
    GoOn(usize),
    Tail,
}

pub(super) fn recover(
    scanner: &mut Scanner<'_>,
    block: &mut [u8],
    at: usize,
    fault: Fault,
    extent: Option<usize>,
    scan: &mut Scan,
) -> Step {
    if let Some(view) = repair_lengths(scanner, block, at, extent) {
        scan.findings.push(repaired_finding(&view, "a bit of its lengths"));
        return Step::Repaired(view);
    }
    let extent = extent.or_else(|| own_extent(scanner, block, at));
    if let Some(len) = extent {
        if let Some(view) = repair_body(scanner, block, at, len) {
            scan.findings.push(repaired_finding(&view, "a bit of its content or hash"));
            return Step::Repaired(view);
        }
        report_lost(scanner, block, scan, (at, at + len), 1, fault);
        report_inside(scanner, block, at, at + len, scan);
        return Step::GoOn(at + len);
    }
    match next_sound(scanner, block, at) {
        Some(to) => {
            if let Some(view) = repair_by_extent(scanner, block, at, to) {
                scan.findings.push(repaired_finding(&view, "its length, from where the next record begins"));
                return Step::Repaired(view);
            }
            let fitting = ((to - at) / RECORD_BYTES_MIN).max(1) as u64;
            report_lost(scanner, block, scan, (at, to), fitting, fault);
            Step::GoOn(to)
        }
        None => {
            let len = block.len() - at;
            scanner.doubt += records_that_fit(block, at, scanner.last_sequence);
            let hint = plausible(block, at, scanner.last_sequence).unwrap_or(0);
            scanner.claimed = scanner.claimed.max(hint);
            let highest = scanner.claimed.max(scanner.last_sequence + scanner.doubt);
            scan.findings.push(Finding {
                kind: FindingKind::UnsoundTail,
                offset: at as u64,
                len: len as u64,
                sequences: Some((scanner.last_sequence + 1, highest + 1)),
                detail: fault.to_string(),
            });
            Step::Tail
        }
    }
}

/// `fitting`: how many messages the bytes may have held.
fn report_lost(
    scanner: &mut Scanner<'_>,
    block: &[u8],
    scan: &mut Scan,
    (from, to): (usize, usize),
    fitting: u64,
    fault: Fault,
) {
    let hint = plausible(block, from, scanner.last_sequence);
    scanner.doubt += fitting;
    scanner.claimed = scanner.claimed.max(hint.unwrap_or(0));
    let sequence = hint.unwrap_or(scanner.last_sequence + 1);
    scan.findings.push(Finding {
        kind: FindingKind::BadRecord,
        offset: from as u64,
        len: (to - from) as u64,
        sequences: Some((sequence, sequence + 1)),
        detail: fault.to_string(),
    });
}

/// The sequence that unsound bytes claim, if it could be true.
fn plausible(block: &[u8], at: usize, last: u64) -> Option<u64> {
    let end = at + SEQUENCE + 8;
    let sequence = (end <= block.len()).then(|| u64_at(block, at + SEQUENCE) & SEQUENCE_MASK)?;
    (sequence > last && sequence - last <= PLAUSIBLE_REACH).then_some(sequence)
}

/// At most so many messages can have been in the bytes from `at` on. A torn tombstone holds none.
fn records_that_fit(block: &[u8], at: usize, last: u64) -> u64 {
    let len = block.len() - at;
    let raw = if len >= SEQUENCE + 8 { u64_at(block, at + SEQUENCE) } else { 0 };
    let tombstone = raw & TOMBSTONE_BIT != 0 && raw & SEQUENCE_MASK <= last;
    match tombstone {
        true => (len.saturating_sub(RECORD_BYTES_MIN) / RECORD_BYTES_MIN) as u64,
        false => (len / RECORD_BYTES_MIN).max(1) as u64,
    }
}

fn hashed(scanner: &mut Scanner<'_>, block: &[u8], at: usize) -> Option<View> {
    let view = View::parse(block, at).ok()?;
    scanner.budget = scanner.budget.checked_sub(view.len)?;
    (view.hash(block, scanner.key) == view.stored_hash(block)).then_some(view)
}

fn repair_lengths(scanner: &mut Scanner<'_>, block: &mut [u8], at: usize, extent: Option<usize>) -> Option<View> {
    if block.len() - at < RECORD_BYTES_MIN {
        return None;
    }
    let subject_len = u16::from_le_bytes([block[at + SUBJECT_LENGTH], block[at + SUBJECT_LENGTH + 1]]) as usize;
    let headers = (at + SUBJECT + subject_len, 32);
    let fields = [(at + LENGTH, 32), (at + SUBJECT_LENGTH, 16), headers];
    for (field, bits) in fields {
        for bit in 0..bits {
            let (byte, mask) = (field + bit / 8, 1u8 << (bit % 8));
            if byte >= block.len() {
                break;
            }
            block[byte] ^= mask;
            let length = (u32_at(block, at + LENGTH) & !HEADERS_BIT) as usize;
            let fits = extent.is_none_or(|extent| extent == length) && follows(block, at + length);
            if fits
                && let Some(view) = hashed(scanner, block, at)
                && in_order(scanner, &view)
                && scanner.well_formed(block, &view)
            {
                return Some(view);
            }
            block[byte] ^= mask;
        }
    }
    None
}

fn repair_body(scanner: &mut Scanner<'_>, block: &mut [u8], at: usize, len: usize) -> Option<View> {
    let view = View::parse(block, at).ok().filter(|view| view.len == len)?;
    let difference = view.hash(block, scanner.key) ^ view.stored_hash(block);
    if difference.count_ones() == 1 {
        let hash_at = at + len - HASH_SIZE;
        let fixed = u64_at(block, hash_at) ^ difference;
        block[hash_at..hash_at + HASH_SIZE].copy_from_slice(&fixed.to_le_bytes());
        return (in_order(scanner, &view) && scanner.well_formed(block, &view)).then_some(view);
    }
    if len > SMALL_RECORD {
        return None;
    }
    for byte in at + SEQUENCE..at + len - HASH_SIZE {
        for bit in 0..8 {
            block[byte] ^= 1 << bit;
            if let Some(view) = hashed(scanner, block, at)
                && in_order(scanner, &view)
                && scanner.well_formed(block, &view)
            {
                return Some(view);
            }
            block[byte] ^= 1 << bit;
        }
    }
    None
}

/// Where the next record begins, this one may simply end: its length field alone was damaged.
fn repair_by_extent(scanner: &mut Scanner<'_>, block: &mut [u8], at: usize, to: usize) -> Option<View> {
    let original: [u8; 4] = block[at..at + 4].try_into().ok()?;
    for flag in [0, HEADERS_BIT] {
        block[at..at + 4].copy_from_slice(&((to - at) as u32 | flag).to_le_bytes());
        if let Some(view) = hashed(scanner, block, at)
            && in_order(scanner, &view)
            && scanner.well_formed(block, &view)
        {
            return Some(view);
        }
    }
    block[at..at + 4].copy_from_slice(&original);
    None
}

fn in_order(scanner: &Scanner<'_>, view: &View) -> bool {
    view.is_tombstone() || view.sequence() > scanner.last_sequence
}

/// The block's end, or something that parses as a record.
fn follows(block: &[u8], at: usize) -> bool {
    at == block.len() || (at < block.len() && View::parse(block, at).is_ok())
}

/// The record's own length, believed if a sound record (or the end) lies behind it, or behind the next one.
fn own_extent(scanner: &mut Scanner<'_>, block: &[u8], at: usize) -> Option<usize> {
    let view = View::parse(block, at).ok()?;
    let mut end = view.end();
    for _ in 0..3 {
        if end == block.len() || hashed(scanner, block, end).is_some() {
            return Some(view.len);
        }
        end = View::parse(block, end).ok()?.end();
    }
    None
}

/// Cheap tests that a place could begin a record, before anything is hashed.
fn candidate(scanner: &Scanner<'_>, block: &[u8], at: usize) -> Option<View> {
    let length = (u32_at(block, at + LENGTH) & !HEADERS_BIT) as usize;
    if !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX.min(block.len() - at)).contains(&length) {
        return None;
    }
    let raw_sequence = u64_at(block, at + SEQUENCE);
    let sequence = raw_sequence & SEQUENCE_MASK;
    let tombstone = raw_sequence & TOMBSTONE_BIT != 0;
    let near = sequence > scanner.last_sequence && sequence - scanner.last_sequence <= SEQUENCE_REACH;
    if !(near || tombstone && length == RECORD_BYTES_MIN) {
        return None;
    }
    let view = View::parse(block, at).ok()?;
    (scanner.well_formed(block, &view) && follows(block, view.end())).then_some(view)
}

fn next_sound(scanner: &mut Scanner<'_>, block: &[u8], from: usize) -> Option<usize> {
    let last = block.len().checked_sub(RECORD_BYTES_MIN)?;
    for at in from + 1..=last {
        if candidate(scanner, block, at).is_some() && hashed(scanner, block, at).is_some() {
            return Some(at);
        }
        if scanner.budget == 0 {
            return None;
        }
    }
    None
}

fn report_inside(scanner: &mut Scanner<'_>, block: &[u8], from: usize, to: usize, scan: &mut Scan) {
    let mut at = from + 1;
    while at + RECORD_BYTES_MIN <= to {
        let inside = candidate(scanner, block, at).filter(|view| view.end() <= to);
        if inside.is_some()
            && let Some(view) = hashed(scanner, block, at)
        {
            scan.findings.push(Finding {
                kind: FindingKind::ForgedInside,
                offset: at as u64,
                len: view.len as u64,
                sequences: Some((view.sequence(), view.sequence() + 1)),
                detail: format!("a whole record inside the damaged one at {from}; not served"),
            });
            at = view.end();
        } else {
            at += 1;
        }
    }
}
