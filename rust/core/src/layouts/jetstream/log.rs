//! The blocks of one stream in memory: append, and what the other parts (open, query, remove, commit) share.
//!
//! ```text
//! blocks   [1 sealed][2 sealed] … [n newest]     summaries only; bytes of a few in the cache
//! newest   its whole bytes stay in memory: reads need no file, and a tail that a failed sync left in doubt
//!          can be written again
//! mark     bytes ever written by this log; durable up to `group.durable()`
//! ```
//! Python decides when to roll, evict, sync and unlink; this works through the messages of a batch.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use memchr::memmem::Finder;

use super::block::{Block, Loaded, Lookup};
use super::cache::Cache;
use super::chain::Chain;
use super::commit::MarkFile;
use super::evicted::Evicted;
use super::record::{self, Fields, SEQUENCE_MASK, View};
use super::scan::Finding;
use super::subject_state::SubjectState;
use crate::batch::{Batch, flags};
use crate::commit::group::GroupCommit;
use crate::disk::{Disk, DiskError, DiskFile, OpenMode};
use crate::subjects::SubjectTree;

/// A hole in the sequences wider than this goes between two blocks, not inside one.
pub const HOLE_IN_BLOCK_MAX: u64 = 16_384;
/// Room made at once for a new block: the largest size that a server chooses.
const BUFFER_BYTES_MAX: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("the stream is poisoned since a sync failed: {0}")]
    Poisoned(String),
    #[error("message of {size} bytes: a record holds at most {max}")]
    TooLarge { size: usize, max: usize },
    #[error("subject of {0} bytes: at most 65535")]
    SubjectTooLong(usize),
    #[error("sequence {given} is not above the last one, {last}")]
    NotAbove { given: u64, last: u64 },
    #[error("no block is open for writing")]
    NoWriter,
    #[error("block {0} is not there")]
    NoBlock(u64),
    #[error("block {0} is not in memory")]
    Cold(u64),
    #[error("{0}")]
    Unsound(String),
}

pub type LogResult<T> = Result<T, LogError>;

/// The newest block while it is written.
pub struct Writer {
    pub file: Arc<dyn DiskFile>,
    pub data: Vec<u8>,
    pub lookup: Lookup,
    /// How much of `data` is known to be on disk for good.
    pub durable_len: usize,
    /// Where writing starts in the file: behind an unsound tail nothing is written, so it equals data.len().
    pub number: u64,
}

pub struct Inner {
    pub disk: Arc<dyn Disk>,
    pub dir: String,
    /// Where guards lie; they are used when a block is loaded.
    pub guard_dir: String,
    pub stream: Vec<u8>,
    pub blocks: Vec<Block>,
    pub subjects: SubjectTree<SubjectState>,
    /// Kept while there is a limit per subject.
    pub chain: Option<Chain>,
    pub cache: Cache,
    pub writer: Option<Writer>,
    pub msgs: u64,
    pub bytes: u64,
    pub last: u64,
    pub last_time: i64,
    pub mark: u64,
    /// Files that were written and then sealed without a sync (mode `interval`).
    pub unsynced: Vec<Arc<dyn DiskFile>>,
    pub names_unsynced: bool,
    /// What limits have evicted since somebody made that permanent.
    pub evicted: Evicted,
    /// Blocks without live messages that are out of the list but still on disk.
    pub dead: Vec<u64>,
    /// What is known of their tombstones without reading them again.
    pub dead_tombstones: HashMap<u64, Vec<(u64, i64)>>,
    pub findings: Vec<(u64, Finding)>,
    /// Sizes as a memory store has them, not as they are in a file.
    pub counts_as_memory: bool,
}

pub struct BlockLog {
    pub(super) inner: Mutex<Inner>,
    /// The bytes of all messages as they were seen last.
    pub(super) seen_bytes: AtomicU64,
    /// Somebody found it busy since whoever works on it in steps yielded last.
    pub(super) has_waiters: AtomicBool,
    pub(super) group: GroupCommit,
    pub(super) mark_file: Mutex<Option<MarkFile>>,
}

pub struct Appended {
    pub stored: usize,
    pub first: u64,
    pub next: u64,
    pub bytes: u64,
    pub mark: u64,
    /// Of the last message stored.
    pub time: i64,
    /// Removed by the per-subject limit.
    pub trimmed: u64,
    pub trimmed_bytes: u64,
}

pub struct AppendRules {
    pub now: i64,
    /// Take the batch's positions instead of counting on.
    pub keep_positions: bool,
    pub block_bytes_max: usize,
    /// 0 = no limit.
    pub per_subject_max: u64,
}

impl BlockLog {
    pub fn new(disk: Arc<dyn Disk>, dir: &str, guard_dir: &str, stream: &[u8], cache_bytes: usize) -> BlockLog {
        BlockLog {
            inner: Mutex::new(Inner {
                disk,
                dir: dir.into(),
                guard_dir: guard_dir.into(),
                stream: stream.into(),
                blocks: Vec::new(),
                subjects: SubjectTree::new(),
                chain: None,
                cache: Cache::new(cache_bytes),
                writer: None,
                msgs: 0,
                bytes: 0,
                last: 0,
                last_time: 0,
                mark: 0,
                unsynced: Vec::new(),
                names_unsynced: false,
                evicted: Evicted::default(),
                dead: Vec::new(),
                dead_tombstones: HashMap::new(),
                findings: Vec::new(),
                counts_as_memory: false,
            }),
            seen_bytes: AtomicU64::new(0),
            has_waiters: AtomicBool::new(false),
            group: GroupCommit::default(),
            mark_file: Mutex::new(None),
        }
    }

    /// For those who must not simply wait.
    pub fn mutex(&self) -> &Mutex<Inner> {
        &self.inner
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while holding the lock is a bug; what is in memory is then not to be trusted.
        self.inner.lock().expect("block log lock")
    }

    /// Opens the newest block for appending, or a new one with this number.
    pub fn start_writer(&self, number: u64) -> LogResult<()> {
        self.lock().start_writer(number)
    }

    /// Ends writing to the newest block. Returns its number and whether its bytes still need a sync.
    pub fn end_writer(&self) -> Option<u64> {
        self.lock().end_writer()
    }

    /// Stores messages from `from` on until the batch or the block ends. Call again after rolling while
    /// fewer than all were stored.
    pub fn append(&self, batch: &Batch, from: usize, rules: &AppendRules) -> LogResult<Appended> {
        self.check_sound()?;
        let mut inner = self.lock();
        if rules.per_subject_max > 0 {
            inner.start_chain()?;
        } else {
            inner.chain = None;
        }
        inner.append(batch, from, rules)
    }

    /// The whole batch, if the newest block has room for it. None: nothing was done, `append` has to.
    pub fn append_whole(&self, batch: &Batch, rules: &AppendRules) -> LogResult<Option<Appended>> {
        self.check_sound()?;
        let mut inner = self.lock();
        let begun = inner.writer.as_ref().map_or(0, |writer| writer.data.len());
        let sizes = batch.entries().iter().map(|entry| record::check_size(batch, entry));
        let size: usize = match sizes.sum::<LogResult<usize>>() {
            Ok(size) if begun > 0 && rules.per_subject_max == 0 => size,
            _ => return Ok(None),
        };
        if begun + size > rules.block_bytes_max {
            return Ok(None);
        }
        inner.chain = None;
        inner.append(batch, 0, rules).map(Some)
    }

    /// Uses up sequences `[last + 1, to]` with placeholder records.
    pub fn skip(&self, to: u64, now: i64) -> LogResult<u64> {
        self.check_sound()?;
        let mut inner = self.lock();
        let time = now.max(inner.last_time);
        let (from, key) = (inner.last + 1, inner.newest_key()?);
        let mut bytes = Vec::new();
        for sequence in from..=to {
            record::encode_placeholder(&mut bytes, &key, sequence, time);
        }
        inner.write(&bytes)?;
        let block = inner.blocks.last_mut().ok_or(LogError::NoWriter)?;
        for sequence in from..=to {
            block.skipped(sequence);
        }
        block.last_time = time;
        inner.last = inner.last.max(to);
        inner.last_time = time;
        Ok(inner.mark)
    }

    /// Writes tombstones for messages that are out already (or to pin the last sequence).
    pub fn write_tombstones(&self, entries: &[(u64, i64)]) -> LogResult<u64> {
        self.check_sound()?;
        self.lock().write_tombstones(entries)
    }
}

impl Inner {
    pub fn block_path(&self, number: u64) -> String {
        format!("{}/{number}.blk", self.dir)
    }

    pub fn guard_path(&self, number: u64) -> String {
        format!("{}/{number}.guard", self.guard_dir)
    }

    fn newest_key(&self) -> LogResult<crate::hash::HashKey> {
        self.writer.as_ref().and(self.blocks.last()).map(|b| b.key).ok_or(LogError::NoWriter)
    }

    fn end_writer(&mut self) -> Option<u64> {
        let writer = self.writer.take()?;
        let number = writer.number;
        if writer.durable_len < writer.data.len() {
            self.unsynced.push(writer.file);
        }
        let loaded = Loaded { data: Arc::new(writer.data), lookup: writer.lookup, others: None };
        self.cache.put_written(number, loaded);
        Some(number)
    }

    /// An open block ends only when its successor is there: a full disk must not leave the log without one.
    pub fn start_writer(&mut self, number: u64) -> LogResult<()> {
        let path = self.block_path(number);
        if self.blocks.last().is_some_and(|block| block.number == number) {
            let loaded = self.loaded(self.blocks.len() - 1)?;
            self.cache.forget(number);
            let file = self.disk.open(&path, OpenMode::Write)?;
            let (data, lookup) = match Arc::try_unwrap(loaded) {
                Ok(mut only) => (mem::take(&mut only.data), mem::take(&mut only.lookup)),
                Err(shared) => (shared.data.clone(), shared.copy_lookup()),
            };
            let data = Arc::try_unwrap(data).unwrap_or_else(|shared| shared.to_vec());
            let durable_len = 0;
            self.blocks.last_mut().expect("checked").subjects = None;
            self.writer = Some(Writer { file, data, lookup, durable_len, number });
            return Ok(());
        }
        let file = self.disk.open(&path, OpenMode::CreateNew)?;
        self.end_writer();
        let mut block = Block::new(number, &self.stream, None);
        (block.first, block.last, block.last_time) = (self.last + 1, self.last, self.last_time);
        block.file_first = block.first;
        self.blocks.push(block);
        self.names_unsynced = true;
        let data = self.cache.take_spare();
        self.writer = Some(Writer { file, data, lookup: Lookup::new(), durable_len: 0, number });
        Ok(())
    }

    /// One write at the end of the newest block; all or nothing.
    pub fn write(&mut self, bytes: &[u8]) -> LogResult<()> {
        let writer = self.writer.as_mut().ok_or(LogError::NoWriter)?;
        let start = writer.data.len();
        writer.data.extend_from_slice(bytes);
        self.write_tail(start)
    }

    /// Writes `writer.data[start..]`, which is in memory already. After a failure neither memory nor,
    /// if the disk lets us, the file has any of it.
    fn write_tail(&mut self, start: usize) -> LogResult<()> {
        let writer = self.writer.as_mut().ok_or(LogError::NoWriter)?;
        if let Err(error) = writer.file.write_at(start as u64, &writer.data[start..]) {
            writer.data.truncate(start);
            writer.lookup.truncate(start);
            // Nothing of it was acknowledged. If the cut fails too, the next write covers the same bytes.
            let _ = writer.file.set_len(start as u64);
            return Err(error.into());
        }
        let written = writer.data.len() - start;
        let hash = writer.data[writer.data.len() - record::HASH_SIZE..].try_into().expect("eight bytes");
        let file_len = writer.data.len() as u64;
        self.mark += written as u64;
        if let Some(block) = self.blocks.last_mut() {
            (block.last_hash, block.file_len) = (hash, file_len);
        }
        Ok(())
    }

    pub fn write_tombstones(&mut self, entries: &[(u64, i64)]) -> LogResult<u64> {
        if entries.is_empty() {
            return Ok(self.mark);
        }
        let key = self.newest_key()?;
        let mut bytes = Vec::with_capacity(entries.len() * record::RECORD_BYTES_MIN);
        for (sequence, time) in entries {
            record::encode_tombstone(&mut bytes, &key, *sequence, *time);
        }
        self.write(&bytes)?;
        Ok(self.mark)
    }

    fn append(&mut self, batch: &Batch, from: usize, rules: &AppendRules) -> LogResult<Appended> {
        let key = self.newest_key()?;
        let Inner { writer, blocks, .. } = self;
        let (Some(writer), Some(block)) = (writer.as_mut(), blocks.last_mut()) else {
            return Err(LogError::NoWriter);
        };
        if writer.data.is_empty() {
            // Growing to a block's size by doubling would copy it all once more.
            writer.data.reserve(rules.block_bytes_max.min(BUFFER_BYTES_MAX));
        }
        let start = writer.data.len();
        let (mut sequence, mut time) = (self.last, self.last_time);
        let (mut stored, mut failure, as_memory) = (0, None, self.counts_as_memory);
        let entries = &batch.entries()[from..];
        let mut placed: Vec<(u64, u32)> = Vec::with_capacity(entries.len());
        for entry in entries {
            let next = if rules.keep_positions { entry.position } else { sequence + 1 };
            let size = match record::check_size(batch, entry) {
                Ok(size) if next > sequence && next <= SEQUENCE_MASK => size,
                Ok(_) => {
                    failure = Some(LogError::NotAbove { given: next, last: sequence });
                    break;
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            };
            let full = !writer.data.is_empty() && writer.data.len() + size > rules.block_bytes_max;
            let hole = next - sequence - 1;
            if full || (hole > HOLE_IN_BLOCK_MAX && !writer.data.is_empty()) {
                break;
            }
            time = if entry.time != 0 { entry.time } else { rules.now.max(time) };
            sequence = next;
            let placeholder = entry.flags & flags::PLACEHOLDER != 0;
            if placeholder {
                record::encode_placeholder(&mut writer.data, &key, sequence, time);
                placed.push((time as u64, 0));
            } else {
                writer.lookup.push(sequence, writer.data.len() as u32);
                let headers = (!entry.headers.is_null()).then(|| batch.bytes(entry.headers));
                let fields = Fields {
                    raw_sequence: sequence,
                    time,
                    subject: batch.bytes(entry.subject),
                    headers,
                    data: batch.bytes(entry.data),
                };
                record::encode(&mut writer.data, &key, &fields);
                placed.push((time as u64, record::counted(size, headers.is_some(), as_memory) as u32));
            }
            stored += 1;
        }
        if let Some(error) = failure {
            writer.data.truncate(start);
            writer.lookup.truncate(start);
            return Err(error);
        }
        let first =
            if rules.keep_positions { entries.first().map_or(self.last + 1, |e| e.position) } else { self.last + 1 };
        if stored == 0 {
            let (mark, time) = (self.mark, self.last_time);
            return Ok(Appended { stored, first, next: first, bytes: 0, mark, time, trimmed: 0, trimmed_bytes: 0 });
        }
        let _ = block;
        self.write_tail(start)?;
        let bytes = self.account(batch, &entries[..stored], &placed, rules);
        let (trimmed, trimmed_bytes) = self.trim_subjects(batch, &entries[..stored], rules.per_subject_max)?;
        let (next, mark, time) = (self.last + 1, self.mark, self.last_time);
        Ok(Appended { stored, first, next, bytes, mark, time, trimmed, trimmed_bytes })
    }

    /// Counts what was just written: block, stream, subjects (once per run on one subject).
    fn account(
        &mut self,
        batch: &Batch,
        entries: &[crate::batch::Entry],
        placed: &[(u64, u32)],
        rules: &AppendRules,
    ) -> u64 {
        let Inner { blocks, subjects, chain, .. } = self;
        let block = blocks.last_mut().expect("a block was written");
        let mut run: Option<(crate::batch::Span, u64, u64, u32, u64, u32)> = None;
        let (mut total, mut sequence) = (0u64, self.last);
        for (entry, (time, size)) in entries.iter().zip(placed) {
            sequence = if rules.keep_positions { entry.position } else { sequence + 1 };
            if *size == 0 {
                block.skipped(sequence);
                block.last_time = *time as i64;
                continue;
            }
            block.stored(sequence, *time as i64, u64::from(*size));
            total += u64::from(*size);
            self.msgs += 1;
            if !entry.headers.is_null() {
                let (ttl, schedule) = special_headers(batch.bytes(entry.headers));
                block.ttls += u64::from(ttl);
                block.schedules += u64::from(schedule);
            }
            if let Some(chain) = chain.as_mut() {
                let state = subjects.get_or_insert_with(batch.bytes(entry.subject), SubjectState::default);
                if state.msgs > 0 && state.last_exact {
                    chain.link(state.last, sequence, *size);
                }
                state.stored(1, sequence, *size, sequence, *size);
                continue;
            }
            match run.as_mut() {
                Some(run) if run.0 == entry.subject || batch.bytes(run.0) == batch.bytes(entry.subject) => {
                    (run.1, run.4, run.5) = (run.1 + 1, sequence, *size);
                }
                _ => {
                    if let Some((span, count, first, first_bytes, last, last_bytes)) = run.take() {
                        let state = subjects.get_or_insert_with(batch.bytes(span), SubjectState::default);
                        state.stored(count, first, first_bytes, last, last_bytes);
                    }
                    run = Some((entry.subject, 1, sequence, *size, sequence, *size));
                }
            }
        }
        if let Some((span, count, first, first_bytes, last, last_bytes)) = run {
            let state = subjects.get_or_insert_with(batch.bytes(span), SubjectState::default);
            state.stored(count, first, first_bytes, last, last_bytes);
        }
        self.bytes += total;
        self.last = sequence;
        self.last_time = placed.last().map_or(self.last_time, |p| p.0 as i64);
        total
    }

    pub fn note_findings(&mut self, number: u64, findings: Vec<Finding>) {
        for finding in findings {
            let known = |(n, f): &(u64, Finding)| *n == number && f.offset == finding.offset && f.kind == finding.kind;
            if !self.findings.iter().any(known) {
                self.findings.push((number, finding));
            }
        }
    }

    /// Runs `look` on the record of a live sequence, wherever its block's bytes are.
    pub fn with_record<T>(
        &mut self,
        index: usize,
        sequence: u64,
        look: impl FnOnce(&[u8], &View) -> T,
    ) -> LogResult<Option<T>> {
        if let Some(writer) = self.writer.as_ref().filter(|w| w.number == self.blocks[index].number) {
            let view = writer.lookup.get(sequence).and_then(|offset| View::parse(&writer.data, offset).ok());
            return Ok(view.map(|view| look(&writer.data, &view)));
        }
        let loaded = self.loaded(index)?;
        Ok(loaded.view(sequence).map(|view| look(&loaded.data, &view)))
    }

    /// The block that covers a sequence, or else the next one behind it.
    pub fn block_at(&self, sequence: u64) -> Option<usize> {
        let index = self.blocks.partition_point(|block| block.last < sequence);
        (index < self.blocks.len()).then_some(index)
    }

    pub fn first(&self) -> u64 {
        self.blocks.iter().find(|block| block.msgs > 0).map_or(self.last + 1, |block| block.first)
    }
}

impl Loaded {
    fn copy_lookup(&self) -> Lookup {
        match &self.lookup {
            Lookup::Slots { base, offsets } => Lookup::Slots { base: *base, offsets: offsets.clone() },
            Lookup::Sorted(entries) => Lookup::Sorted(entries.clone()),
        }
    }
}

/// Does the header block carry a per-message TTL, a schedule? `index.db` counts both.
pub fn special_headers(headers: &[u8]) -> (bool, bool) {
    // Preparing a search costs more than most headers are long: both begin alike, and only one search is prepared.
    static START: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\r\nNats-"));
    let (mut ttl, mut schedule) = (false, false);
    for at in START.find_iter(headers) {
        let name = &headers[at + START.needle().len()..];
        ttl |= name.starts_with(b"TTL:");
        schedule |= name.starts_with(b"Schedule:");
    }
    (ttl, schedule)
}
