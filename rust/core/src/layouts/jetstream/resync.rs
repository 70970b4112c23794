//! After a bad record: what it was, and where the next sound one begins.
//!
//! Order of attempts, cheapest and surest first:
//! 1. one inverted bit in its lengths (they decide where everything else lies);
//! 2. its extent is known (from the guard, or because a sound record follows where it says it ends):
//!    one inverted bit anywhere in it if it is small, otherwise the record is lost and the walk goes on
//!    behind it. Records found inside it are reported, never served: the hash key is public. But its length is wrong
//!    when the last of them ends where this one claims to end (a payload cannot reach over its own hash), or when
//!    the record behind it leaves sequences for this one and for all of them: behind a true length comes the next;
//! 3. its extent is unknown: the next place that looks like a record (length, subject, sequence), proved by its hash;
//! 4. nothing: the rest is an unsound tail.
//!
//! Repairs are optional and have a budget of their own; the search is paid from a credit that grows with the walk
//! (layouts/search.rs).

use super::record::{
    Fault, HASH_SIZE, HEADERS_BIT, LENGTH, RECORD_BYTES_MAX, RECORD_BYTES_MIN, SEQUENCE, SEQUENCE_MASK, SUBJECT,
    SUBJECT_LENGTH, TOMBSTONE_BIT, View, u32_at, u64_at,
};
use super::scan::{Finding, FindingKind, Scan, Scanner, repaired_finding};

/// Records up to this size are tried with every single bit inverted.
const SMALL_RECORD: usize = 2048;
/// How far ahead of the last sound sequence a candidate may be; at the start of a block no sequence is known.
const SEQUENCE_REACH: u64 = 1 << 32;
const FIRST_SEQUENCE_MAX: u64 = 1 << 56;
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
    let claimed = if extent.is_none() { own_extent(scanner, block, at) } else { None };
    if let Some(len) = extent.or(claimed.as_ref().map(|claimed| claimed.len)) {
        if let Some(view) = repair_body(scanner, block, at, len) {
            scan.findings.push(repaired_finding(&view, "a bit of its content or hash"));
            return Step::Repaired(view);
        }
        let inside = records_inside(scanner, block, at, at + len);
        if claimed.is_none_or(|claimed| !claimed.covers_others(scanner, block, at, &inside)) {
            report_lost(scanner, block, scan, (at, at + len), 1, fault);
            report_inside(&inside, at, scan);
            return Step::GoOn(at + len);
        }
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

fn is_sound(scanner: &Scanner<'_>, block: &[u8], view: &View) -> bool {
    view.hash(block, scanner.key) == view.stored_hash(block)
}

/// The record at `at`, proved by its hash, on the credit of the search.
fn hashed(scanner: &mut Scanner<'_>, block: &[u8], at: usize) -> Option<View> {
    let view = View::parse(block, at).ok().filter(|view| scanner.credit.spend(view.len as u64))?;
    is_sound(scanner, block, &view).then_some(view)
}

/// The record at `at` as it stands after a try to repair it.
fn repaired(scanner: &mut Scanner<'_>, block: &[u8], at: usize) -> Option<View> {
    let view = View::parse(block, at).ok().filter(|view| scanner.credit.spend_on_repair(view.len as u64))?;
    let sound = is_sound(scanner, block, &view) && in_order(scanner, &view) && scanner.well_formed(block, &view);
    sound.then_some(view)
}

fn repair_lengths(scanner: &mut Scanner<'_>, block: &mut [u8], at: usize, extent: Option<usize>) -> Option<View> {
    if block.len() - at < RECORD_BYTES_MIN {
        return None;
    }
    let subject_len = u16::from_le_bytes([block[at + SUBJECT_LENGTH], block[at + SUBJECT_LENGTH + 1]]) as usize;
    let headers = (at + SUBJECT + subject_len, 0..32);
    // The flag of the headers is in the same field; it is tried in any case.
    let length_bits = if next_in_sequence(scanner, block, at) { 31..32 } else { 0..32 };
    let fields = [(at + LENGTH, length_bits), (at + SUBJECT_LENGTH, 0..16), headers];
    for (field, bits) in fields {
        for bit in bits {
            let (byte, mask) = (field + bit / 8, 1u8 << (bit % 8));
            if byte >= block.len() {
                break;
            }
            block[byte] ^= mask;
            let length = (u32_at(block, at + LENGTH) & !HEADERS_BIT) as usize;
            let fits = extent.is_none_or(|extent| extent == length) && follows(block, at + length);
            if fits && let Some(view) = repaired(scanner, block, at) {
                return Some(view);
            }
            block[byte] ^= mask;
        }
    }
    None
}

/// Whether the length leads to the record that comes next in the sequence: then it is right, and trying others would
/// only cost.
fn next_in_sequence(scanner: &Scanner<'_>, block: &[u8], at: usize) -> bool {
    let Ok(view) = View::parse(block, at) else { return false };
    let Ok(next) = View::parse(block, view.end()) else { return false };
    let follows = next.sequence() == view.sequence() + 1 || next.sequence() == scanner.last_sequence + 2;
    follows && scanner.well_formed(block, &view)
}

fn repair_body(scanner: &mut Scanner<'_>, block: &mut [u8], at: usize, len: usize) -> Option<View> {
    let view = View::parse(block, at).ok().filter(|view| view.len == len)?;
    let difference = view.hash(block, scanner.key) ^ view.stored_hash(block);
    if difference.count_ones() == 1 && in_order(scanner, &view) && scanner.well_formed(block, &view) {
        let hash_at = at + len - HASH_SIZE;
        let fixed = u64_at(block, hash_at) ^ difference;
        block[hash_at..hash_at + HASH_SIZE].copy_from_slice(&fixed.to_le_bytes());
        return Some(view);
    }
    if len > SMALL_RECORD {
        return None;
    }
    for byte in at + SEQUENCE..at + len - HASH_SIZE {
        for bit in 0..8 {
            block[byte] ^= 1 << bit;
            if let Some(view) = repaired(scanner, block, at) {
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
        let whole = hashed(scanner, block, at);
        if whole.is_some_and(|view| in_order(scanner, &view) && scanner.well_formed(block, &view)) {
            return whole;
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

/// The length that a record states for itself, and the sequence of the sound message that it leads to.
struct OwnExtent {
    len: usize,
    leads_to: Option<u64>,
}

impl OwnExtent {
    /// Whether the whole records inside this extent are the next ones, and so the length is wrong.
    fn covers_others(&self, scanner: &Scanner<'_>, block: &[u8], at: usize, inside: &[View]) -> bool {
        let Some(last) = inside.last() else { return false };
        if last.end() == at + self.len {
            return true;
        }
        let sequences: Vec<u64> = inside.iter().filter(|view| view.is_message()).map(View::sequence).collect();
        let (Some(first), Some(last), Some(next)) = (sequences.first(), sequences.last(), self.leads_to) else {
            return false;
        };
        // The sequence before the damaged one, as far as is known.
        let own = plausible(block, at, scanner.last_sequence).filter(|own| own < first);
        let before = own.map_or(scanner.last_sequence, |own| own - 1);
        let in_order = sequences.is_sorted_by(|one, other| one < other) && before < *first && *last < next;
        in_order && next - before - 1 > sequences.len() as u64
    }
}

/// The record's own length, believed if a sound record (or the end) lies behind it, or behind the next one.
fn own_extent(scanner: &mut Scanner<'_>, block: &[u8], at: usize) -> Option<OwnExtent> {
    let view = View::parse(block, at).ok()?;
    let mut end = view.end();
    for _ in 0..3 {
        if end == block.len() {
            return Some(OwnExtent { len: view.len, leads_to: None });
        }
        if let Some(sound) = hashed(scanner, block, end) {
            return Some(OwnExtent { len: view.len, leads_to: sound.is_message().then(|| sound.sequence()) });
        }
        end = View::parse(block, end).ok()?.end();
    }
    None
}

/// Cheap tests that a place could begin a record, before anything is hashed.
fn candidate(scanner: &mut Scanner<'_>, block: &[u8], at: usize) -> Option<View> {
    let length = (u32_at(block, at + LENGTH) & !HEADERS_BIT) as usize;
    if !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX.min(block.len() - at)).contains(&length) {
        return None;
    }
    let raw_sequence = u64_at(block, at + SEQUENCE);
    let sequence = raw_sequence & SEQUENCE_MASK;
    let tombstone = raw_sequence & TOMBSTONE_BIT != 0;
    let reach = if scanner.last_sequence == 0 { FIRST_SEQUENCE_MAX } else { SEQUENCE_REACH };
    let near = sequence > scanner.last_sequence && sequence - scanner.last_sequence <= reach;
    if !(near || tombstone && length == RECORD_BYTES_MIN) {
        return None;
    }
    let view = View::parse(block, at).ok()?;
    let read = view.subject_len + view.header_len.unwrap_or(0);
    (scanner.credit.spend(read as u64) && scanner.well_formed(block, &view)).then_some(view)
}

fn next_sound(scanner: &mut Scanner<'_>, block: &[u8], from: usize) -> Option<usize> {
    let last = block.len().checked_sub(RECORD_BYTES_MIN)?;
    (from + 1..=last).find(|at| {
        scanner.credit.advance(*at as u64);
        let Some(view) = candidate(scanner, block, *at) else { return false };
        scanner.credit.spend(view.len as u64) && is_sound(scanner, block, &view)
    })
}

/// Whole records between two places, one behind the other.
fn records_inside(scanner: &mut Scanner<'_>, block: &[u8], from: usize, to: usize) -> Vec<View> {
    let (mut found, mut at) = (Vec::new(), from + 1);
    while at + RECORD_BYTES_MIN <= to {
        let inside = candidate(scanner, block, at).filter(|view| view.end() <= to);
        let inside = inside.filter(|view| scanner.credit.spend(view.len as u64) && is_sound(scanner, block, view));
        at = inside.map_or(at + 1, |view| view.end());
        found.extend(inside);
    }
    found
}

fn report_inside(inside: &[View], from: usize, scan: &mut Scan) {
    scan.findings.extend(inside.iter().map(|view| Finding {
        kind: FindingKind::ForgedInside,
        offset: view.offset as u64,
        len: view.len as u64,
        sequences: Some((view.sequence(), view.sequence() + 1)),
        detail: format!("a whole record inside the damaged one at {from}; not served"),
    }));
}
