//! Opening: every block scanned (in parallel, one block's bytes in memory per thread), or the summaries taken
//! from an `index.db` that was proved to belong to these very files.
//!
//! Deletions reach messages of older blocks, so they are applied after all blocks were seen: tombstones here,
//! what `.idx` and a stale `index.db` say by `forget`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::block::{Block, Loaded, load, loaded_of};
use super::index_db::IndexDb;
use super::log::{BlockLog, Inner, LogError, LogResult, special_headers};
use super::record::{HASH_SIZE, SEQUENCE_MASK, TOMBSTONE_BIT, View};
use super::scan::{Finding, FindingKind, RecordRef};
use super::subject_state::SubjectState;
use crate::crypt::Seed as BlockKey;
use crate::disk::{Disk, DiskError};

/// What one block says.
struct Seen {
    block: Block,
    first_record: u64,
    subjects: HashMap<Vec<u8>, SubjectState>,
    tombstones: Vec<(u64, i64)>,
    findings: Vec<Finding>,
    highest_plausible: u64,
    doubt: u64,
    opened: OpenedBlock,
    newest_bytes: Option<Loaded>,
}

/// A block as it was found.
#[derive(Debug, Default, Clone)]
pub struct OpenedBlock {
    pub number: u64,
    pub file_bytes: u64,
    pub plain_bytes: u64,
    pub unsound_tail: u64,
    pub last_hash: [u8; HASH_SIZE],
    pub guard_covers: u64,
}

/// What recovery decides by.
#[derive(Debug, Default, Clone)]
pub struct OpenReport {
    pub blocks: Vec<OpenedBlock>,
    /// The highest sequence of any sound record or tombstone.
    pub last: u64,
    /// No lower than any sequence that unsound bytes may have held.
    pub highest_plausible: u64,
}

impl BlockLog {
    /// Scans all blocks. `ciphers` holds the keys of enciphered ones.
    pub fn open_by_scan(
        &self,
        numbers: &[u64],
        ciphers: &HashMap<u64, BlockKey>,
        threads: usize,
    ) -> LogResult<OpenReport> {
        let mut inner = self.lock();
        let seen = scan_all(&inner, numbers, ciphers, threads)?;
        let report = inner.take_in(seen)?;
        Ok(report)
    }

    /// Takes the summaries of an index that belongs to the files (the caller checked sizes and stamps).
    pub fn open_by_index(&self, index: &IndexDb<'_>, sizes: &HashMap<u64, u64>) -> LogResult<()> {
        let mut inner = self.lock();
        inner.blocks.clear();
        for entry in &index.blocks {
            let mut block = Block::new(entry.number, &inner.stream, None);
            (block.first, block.first_time) = (entry.first, entry.first_time);
            (block.last, block.last_time) = (entry.last, entry.last_time);
            block.msgs = entry.msgs().ok_or_else(|| LogError::Unsound("index.db counts do not add up".into()))?;
            block.bytes = entry.bytes;
            block.deleted = entry.deleted.clone();
            (block.ttls, block.schedules) = (entry.ttls, entry.schedules);
            block.file_len = sizes.get(&entry.number).copied().unwrap_or(0);
            if entry.number == index.newest {
                block.last_hash = index.last_hash;
            }
            inner.blocks.push(block);
        }
        let ends: HashMap<u64, (u64, u64)> = inner.blocks.iter().map(|b| (b.number, (b.first, b.last))).collect();
        for entry in &index.subjects {
            let first = ends.get(&entry.first_block).map_or(index.first, |e| e.0);
            let last = ends.get(&entry.last_block).map_or(index.last, |e| e.1);
            let state = SubjectState { msgs: entry.total, first, last, ..SubjectState::default() };
            *inner.subjects.get_or_insert_with(entry.subject, SubjectState::default) = state;
        }
        (inner.msgs, inner.bytes) = (index.msgs, index.bytes);
        (inner.last, inner.last_time) = (index.last, index.last_time);
        Ok(())
    }

    /// Marks messages as gone without a tombstone: what an index of an older era, or a stale one, says.
    /// Returns how many were live.
    pub fn forget(&self, sequences: &[u64]) -> LogResult<u64> {
        let mut inner = self.lock();
        let mut gone = 0;
        for sequence in sequences {
            gone += u64::from(inner.remove_live(*sequence)?.is_some());
        }
        Ok(gone)
    }

    /// A reader beside a live writer sees nothing above this; the caller has forgotten the messages. Bytes behind
    /// the durable part of the newest block are being written: they are no damage.
    pub fn lower_last(&self, sequence: u64, number: u64, durable_bytes: u64) {
        let mut inner = self.lock();
        inner.last = inner.last.min(sequence);
        inner.findings.retain(|(n, f)| *n < number || (*n == number && f.offset < durable_bytes));
        if let Some(block) = inner.blocks.iter_mut().find(|block| block.number == number) {
            block.file_len = block.file_len.min(durable_bytes);
        }
    }

    /// Never hand out a sequence at or below this again.
    pub fn raise_last(&self, sequence: u64, time: i64) {
        let mut inner = self.lock();
        if sequence > inner.last {
            inner.last = sequence;
        }
        inner.last_time = inner.last_time.max(time);
    }
}

fn scan_all(inner: &Inner, numbers: &[u64], ciphers: &HashMap<u64, BlockKey>, threads: usize) -> LogResult<Vec<Seen>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<Seen, DiskError>>>> = Mutex::new(numbers.iter().map(|_| None).collect());
    let (disk, dir, guard_dir): (&Arc<dyn Disk>, &str, &str) = (&inner.disk, &inner.dir, &inner.guard_dir);
    let stream = &inner.stream;
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, numbers.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&number) = numbers.get(at) else { break };
                    let block = Block::new(number, stream, ciphers.get(&number).cloned());
                    let newest = at + 1 == numbers.len();
                    let guard = disk.read(&format!("{guard_dir}/{number}.guard"), 1 << 30).ok();
                    let path = format!("{dir}/{number}.blk");
                    let seen = see(disk.as_ref(), &path, block, guard.as_deref(), newest);
                    results.lock().expect("results")[at] = Some(seen);
                }
            });
        }
    });
    let results = results.into_inner().expect("results");
    results.into_iter().map(|seen| seen.expect("every block was visited").map_err(LogError::Disk)).collect()
}

fn see(disk: &dyn Disk, path: &str, block: Block, guard: Option<&[u8]>, newest: bool) -> Result<Seen, DiskError> {
    let (data, file_len, scan) = load(disk, path, &block, guard)?;
    let mut seen = Seen {
        block,
        first_record: u64::MAX,
        subjects: HashMap::new(),
        tombstones: Vec::new(),
        findings: Vec::new(),
        highest_plausible: scan.highest_plausible,
        doubt: scan.doubt,
        opened: OpenedBlock::default(),
        newest_bytes: None,
    };
    summarise(&mut seen, &data, &scan.records);
    seen.block.file_len = file_len;
    let tail = scan.findings.iter().find(|f| f.kind == FindingKind::UnsoundTail);
    seen.opened.unsound_tail = tail.map_or(0, |finding| finding.len);
    (seen.opened.plain_bytes, seen.opened.guard_covers) = (data.len() as u64, scan.guard_covers as u64);
    if data.len() >= HASH_SIZE {
        let end = scan.sound_end.max(HASH_SIZE);
        seen.block.last_hash = data[end - HASH_SIZE..end].try_into().expect("eight bytes");
    }
    seen.newest_bytes = newest.then(|| loaded_of(data, &scan));
    seen.findings = scan.findings;
    Ok(seen)
}

/// Fills the block's summary and the per-subject counts from its records.
fn summarise(seen: &mut Seen, data: &[u8], records: &[RecordRef]) {
    let mut run: (&[u8], SubjectState) = (b"", SubjectState::default());
    for record in records {
        let Ok(view) = View::parse(data, record.offset as usize) else { continue };
        let sequence = record.raw_sequence & SEQUENCE_MASK;
        if record.raw_sequence & TOMBSTONE_BIT != 0 {
            seen.tombstones.push((sequence, view.time));
            continue;
        }
        seen.first_record = seen.first_record.min(sequence);
        if !view.is_message() {
            seen.block.skipped(sequence);
            seen.block.last_time = seen.block.last_time.max(view.time);
            continue;
        }
        seen.block.stored(sequence, view.time, view.len as u64);
        if let Some(headers) = view.headers(data) {
            let (ttl, schedule) = special_headers(headers);
            seen.block.ttls += u64::from(ttl);
            seen.block.schedules += u64::from(schedule);
        }
        let subject = view.subject(data);
        if subject != run.0 {
            flush(&mut seen.subjects, run);
            run = (subject, SubjectState::default());
        }
        run.1.stored(1, sequence, view.len as u32, sequence, view.len as u32);
    }
    flush(&mut seen.subjects, run);
}

fn flush(subjects: &mut HashMap<Vec<u8>, SubjectState>, run: (&[u8], SubjectState)) {
    let (subject, add) = run;
    if add.msgs == 0 {
        return;
    }
    match subjects.get_mut(subject) {
        Some(state) => state.stored(add.msgs, add.first, add.first_bytes, add.last, add.last_bytes),
        None => {
            subjects.insert(subject.to_vec(), add);
        }
    }
}

impl Inner {
    /// Puts what the blocks say together, oldest first.
    fn take_in(&mut self, all: Vec<Seen>) -> LogResult<OpenReport> {
        let mut report = OpenReport::default();
        // What unsound bytes may have held lies below the first record of any later block.
        let last_with_records = all.iter().rposition(|seen| seen.first_record != u64::MAX).unwrap_or(0);
        let mut tombstones: Vec<(usize, u64, i64)> = Vec::new();
        let starts: Vec<u64> = all.iter().map(|seen| seen.first_record).collect();
        let mut overlaps = Vec::new();
        for (at, seen) in all.into_iter().enumerate() {
            let mut block = seen.block;
            block.file_first = seen.first_record;
            // A tail that was written again into a later block after a failed sync is there twice.
            let later = starts[at + 1..].iter().copied().min().unwrap_or(u64::MAX);
            if seen.first_record != u64::MAX && block.last >= later {
                overlaps.push((at, later));
            }
            let highest_tombstone = seen.tombstones.iter().map(|t| t.0).max().unwrap_or(0);
            for (sequence, time) in seen.tombstones {
                tombstones.push((at, sequence, time));
                if sequence == highest_tombstone && sequence > self.last.max(block.last) {
                    self.last_time = self.last_time.max(time);
                }
            }
            if block.last >= self.last && block.last_time != 0 {
                self.last_time = self.last_time.max(block.last_time);
            }
            self.last = self.last.max(block.last).max(highest_tombstone);
            if seen.first_record == u64::MAX {
                // It covers nothing and begins behind all that is known so far, its own pin included.
                (block.first, block.last, block.last_time) = (self.last + 1, self.last, self.last_time);
                block.file_first = block.first;
            }
            self.msgs += block.msgs;
            self.bytes += block.bytes;
            for (subject, add) in seen.subjects {
                let state = self.subjects.get_or_insert_with(&subject, SubjectState::default);
                state.stored(add.msgs, add.first, add.first_bytes, add.last, add.last_bytes);
            }
            let (number, file_bytes, last_hash) = (block.number, block.file_len, block.last_hash);
            report.blocks.push(OpenedBlock { number, file_bytes, last_hash, ..seen.opened });
            if at >= last_with_records {
                let plausible = seen.highest_plausible.max(self.last + seen.doubt);
                report.highest_plausible = report.highest_plausible.max(plausible);
            }
            self.blocks.push(block);
            self.note_findings(number, seen.findings);
            if let Some(loaded) = seen.newest_bytes {
                self.cache.put(number, Arc::new(loaded));
            }
        }
        for (at, later) in overlaps {
            self.drop_overlap(at, later)?;
        }
        for (at, sequence, _) in tombstones {
            let index = self.block_at(sequence);
            if index.is_some_and(|index| index <= at) {
                self.remove_live(sequence)?;
            }
        }
        report.last = self.last;
        report.highest_plausible = report.highest_plausible.max(self.last);
        // What emptied blocks mean is decided by the caller; they are still on disk and in the list.
        Ok(report)
    }

    fn drop_overlap(&mut self, index: usize, later: u64) -> LogResult<()> {
        let sequences: Vec<u64> = (later..=self.blocks[index].last).collect();
        for sequence in sequences {
            if self.blocks[index].is_live(sequence) {
                self.remove_copy(index, sequence)?;
            }
        }
        let block = &mut self.blocks[index];
        block.last = later - 1;
        block.first = block.first.min(later);
        let kept: super::seqset::SeqSet = block.deleted.iter().filter(|seq| *seq < later).collect();
        block.deleted = kept;
        Ok(())
    }
}
