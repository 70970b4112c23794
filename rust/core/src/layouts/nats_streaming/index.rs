//! `msgs.N.idx`: 32 bytes per live message, in the order of sequences. All zero means: the rest is padding.

use super::crc::Crc;
use super::{COUNTED, FILE_HEAD, FRAME, PAYLOAD_MAX};
use crate::disk::{DiskFile, DiskResult};

pub const ENTRY: usize = 32;
const SUMMED: usize = 28;
const CHUNK: usize = ENTRY << 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Entry {
    pub sequence: u64,
    /// Of the record's frame in msgs.N.dat.
    pub offset: u64,
    pub time: i64,
    /// Of the payload, without the frame.
    pub size: u32,
}

impl Entry {
    pub fn encode(&self, out: &mut Vec<u8>, crc: &Crc) {
        let start = out.len();
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        let sum = crc.of(&out[start..]);
        out.extend_from_slice(&sum.to_le_bytes());
    }

    /// Without the CRC; `bytes` has 32.
    fn raw(bytes: &[u8]) -> Entry {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let size = u32::from_le_bytes(bytes[24..28].try_into().unwrap());
        Entry { sequence: word(0), offset: word(8), time: word(16) as i64, size }
    }

    /// The entry if its CRC fits and it could be one.
    pub fn decode(bytes: &[u8], crc: &Crc) -> Option<Entry> {
        let sum = u32::from_le_bytes(bytes[SUMMED..ENTRY].try_into().unwrap());
        (crc.of(&bytes[..SUMMED]) == sum).then(|| Entry::raw(bytes)).filter(Entry::is_possible)
    }

    fn is_possible(&self) -> bool {
        let end = self.offset.checked_add(FRAME as u64 + u64::from(self.size));
        self.sequence > 0 && self.offset >= FILE_HEAD && self.size as usize <= PAYLOAD_MAX && end.is_some()
    }

    /// Where the next record begins.
    pub fn end(&self) -> u64 {
        self.offset + FRAME as u64 + u64::from(self.size)
    }
}

/// An index from its first entry to the first that is not sound.
#[derive(Debug, Default)]
pub struct Summary {
    pub count: u64,
    pub first: Entry,
    pub last: Entry,
    /// The earliest and the latest time.
    pub times: (i64, i64),
    /// As limits count: payload and 40 each.
    pub counted: u64,
    /// Bytes up to the end of the last sound entry.
    pub sound_bytes: u64,
    /// Why it ended before the file did, if it did.
    pub problem: Option<String>,
    /// The rest is zeros: a sound end.
    pub padded: bool,
}

/// Reads an index in pieces. With `check` false (file_crc=false) sums are not compared.
pub fn summarize(file: &dyn DiskFile, crc: &Crc, check: bool) -> DiskResult<Summary> {
    let mut found = Summary { sound_bytes: FILE_HEAD, ..Summary::default() };
    let len = file.len()?;
    loop {
        let chunk = file.read_at(found.sound_bytes, CHUNK)?;
        if chunk.is_empty() {
            return Ok(found);
        }
        for bytes in chunk.chunks(ENTRY) {
            if bytes.len() < ENTRY {
                found.problem = Some("unexpected EOF".into());
                return Ok(found);
            }
            if bytes.iter().all(|byte| *byte == 0) {
                found.padded = rest_is_zero(file, found.sound_bytes, len)?;
                found.problem = (!found.padded).then(|| "zeros, and then something else".into());
                return Ok(found);
            }
            let entry = match Entry::decode(bytes, crc) {
                Some(entry) => entry,
                None if !check && Entry::raw(bytes).is_possible() => Entry::raw(bytes),
                None => {
                    let sum = u32::from_le_bytes(bytes[SUMMED..].try_into().unwrap());
                    let got = crc.of(&bytes[..SUMMED]);
                    found.problem = Some(format!("corrupted data, expected crc to be 0x{sum:08x}, got 0x{got:08x}"));
                    return Ok(found);
                }
            };
            if found.count > 0 && (entry.sequence <= found.last.sequence || entry.offset < found.last.end()) {
                found.problem = Some(format!("sequence {} does not follow {}", entry.sequence, found.last.sequence));
                return Ok(found);
            }
            if found.count == 0 {
                (found.first, found.times) = (entry, (entry.time, entry.time));
            }
            found.last = entry;
            found.times = (found.times.0.min(entry.time), found.times.1.max(entry.time));
            found.count += 1;
            found.counted += u64::from(entry.size) + COUNTED;
            found.sound_bytes += ENTRY as u64;
        }
    }
}

fn rest_is_zero(file: &dyn DiskFile, mut at: u64, len: u64) -> DiskResult<bool> {
    while at < len {
        let piece = file.read_at(at, CHUNK)?;
        if piece.is_empty() || piece.iter().any(|byte| *byte != 0) {
            return Ok(piece.is_empty());
        }
        at += piece.len() as u64;
    }
    Ok(true)
}

/// Every sound entry of a file, wherever it stands.
pub fn sound_entries(file: &dyn DiskFile, crc: &Crc) -> DiskResult<(Vec<Entry>, Vec<u64>)> {
    let (mut found, mut bad, mut at) = (Vec::new(), Vec::new(), FILE_HEAD);
    loop {
        // Zeros are no entries, and a hole is nothing but zeros.
        at += (file.next_data(at)? - at) / ENTRY as u64 * ENTRY as u64;
        let chunk = file.read_at(at, CHUNK)?;
        if chunk.is_empty() {
            return Ok((found, bad));
        }
        for bytes in chunk.chunks(ENTRY) {
            match (bytes.len() == ENTRY).then(|| Entry::decode(bytes, crc)).flatten() {
                Some(entry) => found.push(entry),
                None if bytes.iter().all(|byte| *byte == 0) => {}
                None => bad.push(at),
            }
            at += bytes.len() as u64;
        }
    }
}

/// The slot of the first of `count` entries whose sequence is not below `sequence`; `first` is that of slot 0.
pub fn slot_of(file: &dyn DiskFile, count: u64, first: u64, sequence: u64) -> DiskResult<u64> {
    let at = |slot: u64| -> DiskResult<u64> {
        let bytes = file.read_at(FILE_HEAD + slot * ENTRY as u64, 8)?;
        Ok(bytes.try_into().map_or(u64::MAX, u64::from_le_bytes))
    };
    let guess = sequence.saturating_sub(first);
    // Without holes the sequence gives the slot; with holes it stands before that.
    if guess < count && at(guess)? == sequence {
        return Ok(guess);
    }
    let (mut low, mut high) = (0, count.min(guess));
    while low < high {
        let middle = low + (high - low) / 2;
        if at(middle)? < sequence { low = middle + 1 } else { high = middle }
    }
    Ok(low)
}

/// The slot of the first entry whose time is not before `time`, and its sequence; `None` behind the last.
pub fn first_not_before(file: &dyn DiskFile, count: u64, time: i64) -> DiskResult<Option<u64>> {
    let at = |slot: u64| -> DiskResult<Entry> {
        let bytes = file.read_at(FILE_HEAD + slot * ENTRY as u64, ENTRY)?;
        Ok(if bytes.len() == ENTRY { Entry::raw(&bytes) } else { Entry { time: i64::MAX, ..Entry::default() } })
    };
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if at(middle)?.time < time { low = middle + 1 } else { high = middle }
    }
    if low < count { Ok(Some(at(low)?.sequence)) } else { Ok(None) }
}

/// Entries from a slot on, at most `count`; unsound ones are `None`.
pub fn entries_at(file: &dyn DiskFile, slot: u64, count: usize, crc: &Crc) -> DiskResult<Vec<Option<Entry>>> {
    let bytes = file.read_at(FILE_HEAD + slot * ENTRY as u64, count.saturating_mul(ENTRY))?;
    Ok(bytes.chunks_exact(ENTRY).map(|bytes| Entry::decode(bytes, crc)).collect())
}

/// What must go from the front of a log: the front moves while any of these holds.
pub struct Excess {
    pub msgs: u64,
    pub bytes: u64,
    pub before: i64,
    pub below: u64,
    /// From here on everything stays.
    pub keep_from: u64,
}

/// (where the front is then, messages that went, their counted bytes), for the entries from `first` on.
pub fn front(
    file: &dyn DiskFile,
    count: u64,
    slice_first: u64,
    first: u64,
    excess: &Excess,
    crc: &Crc,
) -> DiskResult<(u64, u64, u64)> {
    let mut slot = slot_of(file, count, slice_first, first)?;
    let (mut next, mut msgs, mut bytes) = (first, 0, 0);
    while slot < count {
        let entries = entries_at(file, slot, (count - slot).min(4096) as usize, crc)?;
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            slot += 1;
            let Some(entry) = entry else { continue };
            let goes = msgs < excess.msgs
                || bytes < excess.bytes
                || entry.time < excess.before
                || entry.sequence < excess.below;
            if !goes || entry.sequence >= excess.keep_from {
                return Ok((entry.sequence, msgs, bytes));
            }
            next = entry.sequence + 1;
            msgs += 1;
            bytes += u64::from(entry.size) + COUNTED;
        }
    }
    Ok((next, msgs, bytes))
}
