//! `N.rdq`, the message store that all queues of a vhost share.
//!
//! ```text
//! size:64 | id:16 bytes | message term | 255        size = 16 + the term's bytes; the record has size + 9 bytes
//! ```
//! In memory: id → file, offset, bytes, references. References are never stored: they are counted from the queues.
//! A file's valid bytes are those of its referenced messages; the rest is garbage that a merge leaves behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::etf::{MARK, Message};
use super::{Finding, MessageId};
use crate::disk::{Disk, DiskError, DiskFile, DiskResult, OpenMode};
use crate::layouts::search::Credit;

const SIZE_BYTES: usize = 8;
const ID_BYTES: usize = 16;
const TERM_AT: usize = SIZE_BYTES + ID_BYTES;
const END_MARK: u8 = 255;
/// What a record has besides its `size` bytes.
const AROUND: usize = SIZE_BYTES + 1;
/// Files that are read in the core, a message at a time: `layouts/descriptors.py` would be a call into Python for each.
const HANDLES_MAX: usize = 64;
const DUMP_BYTES: usize = 40;
/// A store file is read whole: 16 MiB and one message is the rule.
pub const FILE_BYTES_MAX: u64 = 2 << 30;

pub fn put_record(out: &mut Vec<u8>, id: &MessageId, term: impl FnOnce(&mut Vec<u8>)) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; SIZE_BYTES]);
    out.extend_from_slice(id);
    term(out);
    let size = (out.len() - start - SIZE_BYTES) as u64;
    out[start..start + SIZE_BYTES].copy_from_slice(&size.to_be_bytes());
    out.push(END_MARK);
    out.len() - start
}

/// One sound record of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRecord {
    pub id: MessageId,
    /// The message's own idea of its id, if that is another.
    pub alias: Option<MessageId>,
    pub offset: u64,
    pub total: u32,
    /// RabbitMQ's own scanner stops before it.
    pub hidden: bool,
}

/// All sound records of a store file.
pub fn walk_store(data: &[u8], mut visit: impl FnMut(StoredRecord)) -> Vec<Finding> {
    let (mut at, mut hidden, mut findings) = (0, false, Vec::new());
    let mut credit = Credit::new(data.len() as u64);
    while at < data.len() {
        let record = sound_at(data, at, &mut credit);
        if let Some((total, id, inner, repaired)) = record {
            if let Some(what) = repaired {
                findings.push(Finding::new("repaired", at, total, what));
            }
            let alias = (inner != id).then_some(inner);
            visit(StoredRecord {
                id,
                alias,
                offset: at as u64,
                total: total as u32,
                hidden: hidden || repaired.is_some(),
            });
            hidden |= repaired.is_some();
            at += total;
            continue;
        }
        let next = next_sound(data, at + 1, data.len(), &mut credit).unwrap_or(data.len());
        let zeros = data[at..next].iter().all(|byte| *byte == 0);
        let what = if zeros { "zeros" } else { "bytes that are no record" };
        let kind = if next == data.len() { "unsound-tail" } else { "bad-record" };
        let behind = if next == data.len() { "after the last sound record" } else { "; sound records follow" };
        findings.push(Finding::new(kind, at, next - at, format!("{what} {behind}")));
        (at, hidden) = (next, true);
    }
    findings
}

/// (bytes, id, the message's own id, what was put right) of the record at `at`.
fn sound_at(
    data: &[u8],
    at: usize,
    credit: &mut Credit,
) -> Option<(usize, MessageId, MessageId, Option<&'static str>)> {
    let Candidate { id, size, own_id, term_end } = candidate_at(data, at, credit)?;
    let total = term_end - at + 1;
    let agree = [own_id == id, size == (total - AROUND) as u64, data[term_end] == END_MARK];
    match agree {
        [true, true, true] => Some((total, id, id, None)),
        // One of the three may be damaged: the term itself says how it is.
        [false, true, true] => Some((total, id, own_id, Some("the id differs from the message's own"))),
        [true, false, true] if !term_is_damaged(data, at, size, term_end, credit) => {
            Some((total, id, id, Some("the size disagrees with the message")))
        }
        [true, true, false] => Some((total, id, id, Some("the end mark is not 255"))),
        _ => None,
    }
}

/// What may be a record: a term that can be read, whatever the bytes around it say.
struct Candidate {
    id: MessageId,
    size: u64,
    /// The id that the message has inside.
    own_id: MessageId,
    term_end: usize,
}

fn candidate_at(data: &[u8], at: usize, credit: &mut Credit) -> Option<Candidate> {
    let head: [u8; 8] = data.get(at..at + SIZE_BYTES)?.try_into().ok()?;
    let id: MessageId = data.get(at + SIZE_BYTES..at + TERM_AT)?.try_into().ok()?;
    credit.advance(at as u64);
    if !credit.affords(1) {
        return None;
    }
    let (message, looked_at) = Message::parse_counting(data, at + TERM_AT);
    let Some(message) = message else {
        credit.owe(looked_at as u64);
        return None;
    };
    let (own_id, term_end) = (message.id, message.end);
    let fits = term_end < data.len() && u32::try_from(term_end - at + 1).is_ok();
    fits.then_some(Candidate { id, size: u64::from_be_bytes(head), own_id, term_end })
}

/// Size and term name two ends of the record at `at`. A damaged length inside the term reaches into the records
/// behind (sound ones then start before its end) or stops short in its own body (the size then leads to the next
/// record): believing it would cost others, or serve half a message.
fn term_is_damaged(data: &[u8], at: usize, size: u64, term_end: usize, credit: &mut Credit) -> bool {
    if next_sound(data, at + 1, term_end, credit).is_some() {
        return true;
    }
    let size_end = usize::try_from(size).ok().and_then(|size| (at + SIZE_BYTES).checked_add(size));
    size_end.is_some_and(|end| {
        let behind = end.saturating_add(1);
        data.get(end) == Some(&END_MARK) && (behind == data.len() || agrees_at(data, behind, credit))
    })
}

/// Whether a record lies there of which every part says the same.
fn agrees_at(data: &[u8], at: usize, credit: &mut Credit) -> bool {
    candidate_at(data, at, credit).is_some_and(|found| {
        found.own_id == found.id
            && found.size == (found.term_end - at + 1 - AROUND) as u64
            && data[found.term_end] == END_MARK
    })
}

/// The first place in `from..until` where such a record starts.
fn next_sound(data: &[u8], from: usize, until: usize, credit: &mut Credit) -> Option<usize> {
    let terms = data.get(from + TERM_AT..data.len().min(until.saturating_add(TERM_AT + MARK.len())))?;
    memchr::memmem::find_iter(terms, &MARK)
        .map(|found| from + found)
        .take_while(|at| *at < until)
        .find(|at| agrees_at(data, *at, credit))
}

/// Which file: `N.rdq`, `N.rdt` (left by an interrupted merge of RabbitMQ's), or one of the transient store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey {
    pub kind: FileKind,
    pub number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    Rdq,
    Rdt,
    Transient,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    pub file: FileKey,
    pub offset: u64,
    pub total: u32,
    pub references: u32,
    pub hidden: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileState {
    pub bytes: u64,
    pub valid: u64,
    pub records: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("{path}: at byte {offset}: message {id} is not where the index says")]
    Moved { path: String, offset: u64, id: String },
}

pub struct MessageStore {
    disk: Arc<dyn Disk>,
    directory: String,
    transient: String,
    index: HashMap<MessageId, Location, FixedState>,
    files: BTreeMap<FileKey, FileState>,
    handles: HashMap<FileKey, Arc<dyn DiskFile>, FixedState>,
}

impl MessageStore {
    pub fn new(disk: Arc<dyn Disk>, directory: &str, transient: &str) -> MessageStore {
        MessageStore {
            disk,
            directory: directory.to_owned(),
            transient: transient.to_owned(),
            index: HashMap::with_hasher(FixedState::default()),
            files: BTreeMap::new(),
            handles: HashMap::with_hasher(FixedState::default()),
        }
    }

    pub fn path(&self, file: FileKey) -> String {
        match file.kind {
            FileKind::Rdq => format!("{}/{}.rdq", self.directory, file.number),
            FileKind::Rdt => format!("{}/{}.rdt", self.directory, file.number),
            FileKind::Transient => format!("{}/{}.rdq", self.transient, file.number),
        }
    }

    /// Takes in a file. Of several copies of a message one that RabbitMQ would find is preferred.
    pub fn scan(&mut self, file: FileKey) -> DiskResult<Vec<Finding>> {
        let data = self.disk.read(&self.path(file), FILE_BYTES_MAX)?;
        let mut state = FileState { bytes: data.len() as u64, ..FileState::default() };
        let index = &mut self.index;
        let findings = walk_store(&data, |place| {
            state.records += 1;
            let fresh = Location {
                file,
                offset: place.offset,
                total: place.total,
                references: 0,
                hidden: place.hidden || file.kind != FileKind::Rdq,
            };
            for id in std::iter::once(place.id).chain(place.alias) {
                let known = index.entry(id).or_insert(fresh);
                if known.hidden && !fresh.hidden {
                    *known = fresh;
                }
            }
        });
        self.files.insert(file, state);
        Ok(findings)
    }

    /// A queue holds these messages; returns those that are in no file.
    pub fn add_references<'a>(&mut self, ids: impl Iterator<Item = &'a MessageId>) -> Vec<MessageId> {
        let mut missing = Vec::new();
        for id in ids {
            match self.index.get_mut(id) {
                Some(location) => {
                    location.references += 1;
                    if location.references == 1 {
                        if let Some(file) = self.files.get_mut(&location.file) {
                            file.valid += u64::from(location.total);
                        }
                    }
                }
                None => missing.push(*id),
            }
        }
        missing
    }

    /// A queue gave these up. Their bytes are garbage once nobody holds them.
    pub fn drop_references<'a>(&mut self, ids: impl Iterator<Item = &'a MessageId>) {
        for id in ids {
            let Some(location) = self.index.get_mut(id).filter(|location| location.references > 0) else { continue };
            location.references -= 1;
            if location.references == 0 {
                if let Some(file) = self.files.get_mut(&location.file) {
                    file.valid = file.valid.saturating_sub(u64::from(location.total));
                }
                self.index.remove(id);
            }
        }
    }

    pub fn contains(&self, id: &MessageId) -> bool {
        self.index.contains_key(id)
    }

    pub fn locate(&self, id: &MessageId) -> Option<Location> {
        self.index.get(id).copied()
    }

    /// A message was written at the end of `file`.
    pub fn wrote(&mut self, file: u64, id: MessageId, offset: u64, total: u32) {
        let file = FileKey { kind: FileKind::Rdq, number: file };
        let state = self.files.entry(file).or_default();
        state.bytes = state.bytes.max(offset + u64::from(total));
        state.records += 1;
        let moved = self.index.insert(id, Location { file, offset, total, references: 0, hidden: false });
        // The same message at another place (a copy made by recovery): its references come along.
        if let Some(old) = moved.filter(|old| old.references > 0) {
            if let Some(before) = self.files.get_mut(&old.file) {
                before.valid = before.valid.saturating_sub(u64::from(old.total));
            }
            self.files.entry(file).or_default().valid += u64::from(total);
            if let Some(location) = self.index.get_mut(&id) {
                location.references = old.references;
            }
        }
    }

    pub fn files(&self) -> Vec<(FileKey, FileState)> {
        self.files.iter().map(|(key, state)| (*key, *state)).collect()
    }

    /// A new, empty file.
    pub fn add_file(&mut self, number: u64) {
        self.files.entry(FileKey { kind: FileKind::Rdq, number }).or_default();
    }

    pub fn forget_file(&mut self, file: FileKey) {
        self.files.remove(&file);
        self.handles.remove(&file);
        self.index.retain(|_, location| location.file != file);
    }

    /// Records that no queue references any more are not worth memory.
    pub fn forget_unreferenced(&mut self) {
        self.index.retain(|_, location| location.references > 0);
        self.index.shrink_to_fit();
    }

    /// Referenced messages that RabbitMQ would not find where they are, in order.
    pub fn hidden(&self) -> Vec<(MessageId, Location)> {
        let mut found: Vec<_> =
            self.index.iter().filter(|(_, l)| l.hidden && l.references > 0).map(|(id, l)| (*id, *l)).collect();
        found.sort_unstable_by_key(|(_, location)| (location.file, location.offset));
        found
    }

    /// The record's bytes, checked to be the message asked for.
    pub fn record(&mut self, id: &MessageId, location: Location) -> Result<Vec<u8>, StoreError> {
        if self.handles.len() >= HANDLES_MAX {
            self.handles.clear();
        }
        let path = self.path(location.file);
        let handle = match self.handles.get(&location.file) {
            Some(handle) => handle.clone(),
            None => {
                let opened = self.disk.open(&path, OpenMode::Read)?;
                self.handles.insert(location.file, opened.clone());
                opened
            }
        };
        let bytes = handle.read_at(location.offset, location.total as usize)?;
        match sound_at(&bytes, 0, &mut Credit::new(bytes.len() as u64)) {
            Some((total, outer, inner, _)) if (outer == *id || inner == *id) && total == location.total as usize => {
                Ok(bytes)
            }
            _ => {
                let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
                Err(StoreError::Moved { path, offset: location.offset, id })
            }
        }
    }

    pub fn close_files(&mut self) {
        self.handles.clear();
    }

    /// The referenced records of these files, one after the other: what a merge writes. (bytes, ids in order)
    pub fn merged(&mut self, files: &[FileKey]) -> Result<(Vec<u8>, Vec<MessageId>), StoreError> {
        let mut kept: Vec<_> = self
            .index
            .iter()
            .filter(|(_, location)| location.references > 0 && files.contains(&location.file))
            .map(|(id, location)| (*id, *location))
            .collect();
        kept.sort_unstable_by_key(|(_, location)| (location.file, location.offset));
        let (mut bytes, mut ids) = (Vec::new(), Vec::with_capacity(kept.len()));
        for (id, location) in kept {
            bytes.extend_from_slice(&self.repaired(&id, location)?);
            ids.push(id);
        }
        Ok((bytes, ids))
    }

    /// The record with head and end as they should be.
    pub fn repaired(&mut self, id: &MessageId, location: Location) -> Result<Vec<u8>, StoreError> {
        let record = self.record(id, location)?;
        let mut bytes = Vec::with_capacity(record.len());
        put_record(&mut bytes, id, |out| out.extend_from_slice(&record[TERM_AT..record.len() - 1]));
        Ok(bytes)
    }

    /// The merge is on disk: `target` holds `ids` in order and nothing else.
    pub fn took_over(&mut self, target: u64, data: &[u8], ids: &[MessageId]) {
        let file = FileKey { kind: FileKind::Rdq, number: target };
        self.handles.remove(&file);
        let size = data.len() as u64;
        self.files.insert(file, FileState { bytes: size, valid: size, records: ids.len() as u64 });
        let mut offset = 0;
        for id in ids {
            if let Some(location) = self.index.get_mut(id) {
                *location = Location { file, offset, hidden: false, ..*location };
                offset += u64::from(location.total);
            }
        }
    }

    /// What a clean stop keeps: `id | file:64 | offset:64 | bytes:32 | references:32` of every referenced message, and
    /// the files. None when one lies where RabbitMQ would not look: then the files must be read again.
    pub fn dump(&self) -> Option<Vec<u8>> {
        let mut kept: Vec<_> = self.index.iter().filter(|(_, location)| location.references > 0).collect();
        kept.sort_unstable_by_key(|(_, location)| (location.file, location.offset));
        let mut out = Vec::with_capacity(kept.len() * DUMP_BYTES);
        for (id, location) in kept {
            if location.file.kind != FileKind::Rdq || location.hidden {
                return None;
            }
            out.extend_from_slice(id);
            out.extend_from_slice(&location.file.number.to_be_bytes());
            out.extend_from_slice(&location.offset.to_be_bytes());
            out.extend_from_slice(&location.total.to_be_bytes());
            out.extend_from_slice(&location.references.to_be_bytes());
        }
        Some(out)
    }

    /// Takes in a dump; what was written since stays, what lay in files that are gone is left out.
    pub fn load_dump(&mut self, data: &[u8]) {
        let number =
            |row: &[u8], at: usize, len: usize| row[at..at + len].iter().fold(0, |v, b| v << 8 | u64::from(*b));
        self.index.reserve(data.len() / DUMP_BYTES);
        for row in data.chunks_exact(DUMP_BYTES) {
            let id: MessageId = row[..ID_BYTES].try_into().unwrap_or_default();
            let file = FileKey { kind: FileKind::Rdq, number: number(row, 16, 8) };
            let (total, references) = (number(row, 32, 4) as u32, number(row, 36, 4) as u32);
            let location = Location { file, offset: number(row, 24, 8), total, references, hidden: false };
            if self.files.contains_key(&file) {
                self.index.entry(id).or_insert(location);
            }
        }
    }

    /// A file as a clean stop left it.
    pub fn restore_file(&mut self, number: u64, state: FileState) {
        self.files.insert(FileKey { kind: FileKind::Rdq, number }, state);
    }

    pub fn referenced(&self) -> usize {
        self.index.len()
    }
}
