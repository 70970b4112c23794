//! `BlockLog` for Python: the blocks of one JetStream stream. Everything that may touch a disk or walk many
//! messages runs without the GIL.

use std::collections::HashMap;
use std::sync::MutexGuard;

use headrace_core::crypt::{Cipher, Seed};
use headrace_core::hash::HashKey;
use headrace_core::layouts::jetstream::index_db::IndexDb;
use headrace_core::layouts::jetstream::log::{self, AppendRules, LogError};
use headrace_core::layouts::jetstream::query::{Found, ReadLimits};
use headrace_core::layouts::jetstream::remove::FrontLimits;
use headrace_core::subjects::Filter;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::batch::{Batch, text};
use crate::disk::Disk;
use crate::errors::{bad_input, damaged, disk_error, raise};
use crate::held::held;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BlockLog>()
}

pub fn log_error(error: LogError) -> PyErr {
    match error {
        LogError::Disk(error) => disk_error(error),
        LogError::Poisoned(_) => raise("StorePoisoned", error.to_string()),
        LogError::TooLarge { .. } | LogError::SubjectTooLong(_) | LogError::NotAbove { .. } => {
            bad_input(error.to_string())
        }
        LogError::NoWriter => raise("ReadOnly", error.to_string()),
        LogError::NoBlock(_) => raise("NotFound", error.to_string()),
        LogError::Unsound(problem) => {
            damaged("Damaged", "index.db", 0, &problem, "counts that add up", "it is rebuilt from the blocks")
        }
    }
}

pub type CipherTuple = (String, Vec<u8>, Vec<u8>);

pub fn cipher_key((cipher, seed, nonce): CipherTuple) -> PyResult<Seed> {
    let cipher = Cipher::from_name(&cipher).ok_or_else(|| bad_input(format!("cipher {cipher:?}")))?;
    let seed = seed.try_into().map_err(|_| bad_input("a seed has 32 bytes"))?;
    Ok(Seed { cipher, seed, nonce })
}

type FoundTuple<'py> = (u64, i64, Bound<'py, PyString>, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

fn found_tuple<'py>(py: Python<'py>, found: &Found) -> FoundTuple<'py> {
    let headers = found.headers.as_ref().map(|headers| PyBytes::new(py, headers));
    (found.sequence, found.time, text(py, &found.subject), headers, PyBytes::new(py, &found.data))
}

fn filters_of(filters: &[String]) -> Vec<Filter> {
    filters.iter().map(|filter| Filter::new(filter.as_bytes())).collect()
}

type FindingTuple = (u64, &'static str, u64, u64, Option<u64>, Option<u64>, String);
type BlockTuple = (u64, u64, u64, u64, u64, u64, i64, i64, u64);

#[pyclass(frozen, module = "headrace._core")]
pub struct BlockLog(log::BlockLog);

impl BlockLog {
    pub fn core(&self) -> &log::BlockLog {
        &self.0
    }

    fn inner(&self) -> MutexGuard<'_, log::Inner> {
        held(self.0.mutex()).expect("block log lock")
    }
}

#[pymethods]
impl BlockLog {
    #[new]
    fn new(disk: &Disk, directory: &str, guard_directory: &str, stream: &str, cache_bytes: usize) -> BlockLog {
        BlockLog(log::BlockLog::new(disk.inner(), directory, guard_directory, stream.as_bytes(), cache_bytes))
    }

    #[allow(clippy::type_complexity)] // one tuple per block
    fn open_by_scan<'py>(
        &self,
        py: Python<'py>,
        numbers: Vec<u64>,
        ciphers: HashMap<u64, CipherTuple>,
        threads: usize,
    ) -> PyResult<(Vec<(u64, u64, u64, Bound<'py, PyBytes>)>, u64, u64)> {
        let keys: PyResult<HashMap<u64, Seed>> = ciphers.into_iter().map(|(n, c)| Ok((n, cipher_key(c)?))).collect();
        let keys = keys?;
        let report = py.detach(|| self.0.open_by_scan(&numbers, &keys, threads)).map_err(log_error)?;
        let blocks = report.blocks.iter().map(|(n, len, tail, hash)| (*n, *len, *tail, PyBytes::new(py, hash)));
        Ok((blocks.collect(), report.last, report.highest_plausible))
    }

    fn open_by_index(&self, py: Python<'_>, index: &[u8], stream: &str, sizes: HashMap<u64, u64>) -> PyResult<()> {
        py.detach(|| {
            let decoded = IndexDb::decode(index, &HashKey::from_text(stream.as_bytes()))
                .map_err(|error| LogError::Unsound(error.to_string()))?;
            if !decoded.adds_up() {
                return Err(LogError::Unsound("blocks and subjects do not add up to the totals".into()));
            }
            self.0.open_by_index(&decoded, &sizes)
        })
        .map_err(log_error)
    }

    fn forget(&self, py: Python<'_>, sequences: Vec<u64>) -> PyResult<u64> {
        py.detach(|| self.0.forget(&sequences)).map_err(log_error)
    }

    fn raise_last(&self, sequence: u64, time_ns: i64) {
        self.0.raise_last(sequence, time_ns);
    }

    fn lower_last(&self, sequence: u64, number: u64, durable_bytes: u64) {
        self.0.lower_last(sequence, number, durable_bytes);
    }

    fn start_writer(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        py.detach(|| self.0.start_writer(number)).map_err(log_error)
    }

    fn end_writer(&self) -> Option<u64> {
        self.0.end_writer()
    }

    #[allow(clippy::type_complexity, clippy::too_many_arguments)] // small tuples, no objects: this is the hot call
    fn append(
        &self,
        py: Python<'_>,
        batch: &Batch,
        start: usize,
        now_ns: i64,
        keep_positions: bool,
        block_bytes_max: usize,
        per_subject_max: u64,
    ) -> PyResult<(usize, u64, u64, u64, u64, i64, u64, u64)> {
        let rules = AppendRules { now: now_ns, keep_positions, block_bytes_max, per_subject_max };
        let done = py.detach(|| self.0.append(&batch.0, start, &rules)).map_err(log_error)?;
        Ok((done.stored, done.first, done.next, done.bytes, done.mark, done.time, done.trimmed, done.trimmed_bytes))
    }

    fn skip(&self, py: Python<'_>, to: u64, now_ns: i64) -> PyResult<u64> {
        py.detach(|| self.0.skip(to, now_ns)).map_err(log_error)
    }

    fn write_tombstones(&self, py: Python<'_>, entries: Vec<(u64, i64)>) -> PyResult<u64> {
        py.detach(|| self.0.write_tombstones(&entries)).map_err(log_error)
    }

    #[allow(clippy::type_complexity)]
    fn remove(&self, py: Python<'_>, sequences: Vec<u64>) -> PyResult<(Vec<(u64, i64, u64)>, u64)> {
        let (removed, mark) = py.detach(|| self.0.remove(&sequences)).map_err(log_error)?;
        Ok((removed.iter().map(|r| (r.sequence, r.time, r.bytes)).collect(), mark))
    }

    fn evict_front(
        &self,
        py: Python<'_>,
        max_msgs: Option<u64>,
        max_bytes: Option<u64>,
        before_ns: Option<i64>,
        below: Option<u64>,
    ) -> PyResult<(u64, u64)> {
        let limits = FrontLimits { max_msgs, max_bytes, before_time: before_ns, below };
        py.detach(|| self.0.evict_front(&limits)).map_err(log_error)
    }

    fn trim_all_subjects(&self, py: Python<'_>, max: u64) -> PyResult<(u64, u64)> {
        py.detach(|| self.0.trim_all_subjects(max)).map_err(log_error)
    }

    fn drop_dead_blocks(&self) {
        self.inner().drop_dead_blocks();
    }

    fn erasure<'py>(
        &self,
        py: Python<'py>,
        sequence: u64,
        random: &[u8],
    ) -> PyResult<Option<(u64, u64, Bound<'py, PyBytes>)>> {
        let found = py.detach(|| self.0.erasure(sequence, random)).map_err(log_error)?;
        Ok(found.map(|(number, offset, bytes)| (number, offset, PyBytes::new(py, &bytes))))
    }

    fn record_bytes_of(&self, py: Python<'_>, sequence: u64) -> PyResult<Option<usize>> {
        py.detach(|| self.0.record_bytes_of(sequence)).map_err(log_error)
    }

    fn patched(&self, number: u64, offset: u64, data: &[u8]) {
        self.0.patched(number, offset, data);
    }

    #[allow(clippy::type_complexity)]
    fn truncate_after<'py>(
        &self,
        py: Python<'py>,
        sequence: u64,
    ) -> PyResult<(u64, Option<(u64, Bound<'py, PyBytes>)>, Vec<(u64, i64)>)> {
        let done = py.detach(|| self.0.truncate_after(sequence)).map_err(log_error)?;
        let cut = done.cut.map(|(number, bytes)| (number, PyBytes::new(py, &bytes)));
        Ok((done.removed, cut, done.tombstones))
    }

    fn compacted<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.compacted(number)).map_err(log_error)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn sound_copy<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.sound_copy(number)).map_err(log_error)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn plain_bytes<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.plain_bytes(number)).map_err(log_error)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn guard_of<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.guard_of(number)).map_err(log_error)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn replaced(&self, py: Python<'_>, number: u64, file_len: u64) -> PyResult<()> {
        py.detach(|| self.0.replaced(number, file_len)).map_err(log_error)
    }

    fn tombstones_of(&self, py: Python<'_>, number: u64) -> PyResult<(Vec<(u64, i64)>, bool)> {
        py.detach(|| self.0.tombstones_of(number)).map_err(log_error)
    }

    fn take_dead(&self) -> Vec<u64> {
        self.0.take_dead()
    }

    fn clear(&self) -> (u64, u64) {
        self.0.clear()
    }

    fn load<'py>(&self, py: Python<'py>, sequence: u64) -> PyResult<Option<FoundTuple<'py>>> {
        let found = py.detach(|| self.0.load(sequence)).map_err(log_error)?;
        Ok(found.map(|found| found_tuple(py, &found)))
    }

    #[pyo3(signature = (sequences, max_bytes=usize::MAX))]
    fn load_many(&self, py: Python<'_>, sequences: Vec<u64>, max_bytes: usize) -> PyResult<Batch> {
        py.detach(|| self.0.load_many(&sequences, max_bytes)).map(Batch).map_err(log_error)
    }

    fn read(
        &self,
        py: Python<'_>,
        first: u64,
        max_msgs: usize,
        max_bytes: usize,
        filter: Option<&str>,
        below: Option<u64>,
    ) -> PyResult<Batch> {
        let filter = filter.map(|filter| Filter::new(filter.as_bytes()));
        let filters = filter.as_slice();
        let limits = ReadLimits { msgs: max_msgs, bytes: max_bytes, filters, below: below.unwrap_or(u64::MAX) };
        py.detach(|| self.0.read(first, &limits)).map(Batch).map_err(log_error)
    }

    #[allow(clippy::too_many_arguments)] // what to read, and how much of it
    fn read_matching(
        &self,
        py: Python<'_>,
        first: u64,
        max_msgs: usize,
        max_bytes: usize,
        filters: Vec<String>,
        below: Option<u64>,
        max_loads: usize,
    ) -> PyResult<(Batch, u64)> {
        let filters = filters_of(&filters);
        let below = below.unwrap_or(u64::MAX);
        let limits = ReadLimits { msgs: max_msgs, bytes: max_bytes, filters: &filters, below };
        let (batch, next) = py.detach(|| self.0.read_matching(first, &limits, max_loads)).map_err(log_error)?;
        Ok((Batch(batch), next))
    }

    fn count_matching(&self, py: Python<'_>, start: u64, below: Option<u64>, filters: Vec<String>) -> PyResult<u64> {
        let filters = filters_of(&filters);
        py.detach(|| self.0.count_matching(start, below.unwrap_or(u64::MAX), &filters)).map_err(log_error)
    }

    fn last_per_subject(&self, py: Python<'_>, filters: Vec<String>) -> PyResult<Vec<u64>> {
        let filters = filters_of(&filters);
        py.detach(|| self.0.last_per_subject(&filters)).map_err(log_error)
    }

    fn live_among(&self, py: Python<'_>, sequences: Vec<u64>) -> Vec<u64> {
        py.detach(|| self.0.live_among(&sequences))
    }

    fn next_match<'py>(&self, py: Python<'py>, filter: &str, start: u64) -> PyResult<Option<FoundTuple<'py>>> {
        let filter = Filter::new(filter.as_bytes());
        let found = py.detach(|| self.0.next_match(&filter, start)).map_err(log_error)?;
        Ok(found.map(|found| found_tuple(py, &found)))
    }

    fn last_match<'py>(&self, py: Python<'py>, filter: &str) -> PyResult<Option<FoundTuple<'py>>> {
        let filter = Filter::new(filter.as_bytes());
        let found = py.detach(|| self.0.last_match(&filter)).map_err(log_error)?;
        Ok(found.map(|found| found_tuple(py, &found)))
    }

    fn seq_from_time(&self, py: Python<'_>, time_ns: i64) -> PyResult<u64> {
        py.detach(|| self.0.seq_from_time(time_ns)).map_err(log_error)
    }

    fn filtered_state(&self, py: Python<'_>, start: u64, filter: &str) -> PyResult<(u64, u64, u64)> {
        let filter = Filter::new(filter.as_bytes());
        let counts = py.detach(|| self.0.filtered_state(start, &filter)).map_err(log_error)?;
        Ok((counts.msgs, counts.first, counts.last))
    }

    fn subjects_state<'py>(&self, py: Python<'py>, filter: &str) -> PyResult<Bound<'py, PyDict>> {
        let filter = Filter::new(filter.as_bytes());
        let states = py.detach(|| self.0.subjects_state(&filter)).map_err(log_error)?;
        let result = PyDict::new(py);
        for (subject, counts) in states {
            result.set_item(text(py, &subject), (counts.msgs, counts.first, counts.last))?;
        }
        Ok(result)
    }

    #[allow(clippy::type_complexity)]
    fn state(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, Option<i64>, u64, i64, u64, u64, u64)> {
        let s = py.detach(|| self.0.state()).map_err(log_error)?;
        Ok((s.msgs, s.bytes, s.first, s.first_time, s.last, s.last_time, s.subjects, s.deleted, s.file_bytes))
    }

    /// The newest block and the length of its plain bytes.
    fn newest(&self) -> (u64, u64) {
        let inner = self.inner();
        inner.blocks.last().map_or((0, 0), |block| (block.number, block.file_len))
    }

    fn has(&self, sequence: u64) -> bool {
        let inner = self.inner();
        inner.block_at(sequence).is_some_and(|index| inner.blocks[index].is_live(sequence))
    }

    /// Neither compressed nor enciphered.
    fn is_plain(&self, py: Python<'_>, number: u64) -> PyResult<bool> {
        py.detach(|| self.0.is_plain(number)).map_err(log_error)
    }

    fn totals(&self) -> (u64, u64, u64, u64, i64) {
        let inner = self.inner();
        (inner.msgs, inner.bytes, inner.last, inner.mark, inner.last_time)
    }

    fn poisoned(&self) -> bool {
        self.0.is_poisoned()
    }

    fn first_seq(&self) -> u64 {
        self.inner().first()
    }

    fn last_before(&self, py: Python<'_>, subject: &str, sequence: u64) -> PyResult<u64> {
        let found = py.detach(|| self.0.lock().last_before(subject.as_bytes(), sequence));
        Ok(found.map_err(log_error)?.unwrap_or(0))
    }

    fn deleted(&self, py: Python<'_>, max: usize) -> Vec<u64> {
        py.detach(|| self.0.deleted(max))
    }

    /// Dead sequences between the first and the last of one block.
    fn deleted_of(&self, number: u64) -> PyResult<Vec<u64>> {
        let inner = self.inner();
        let index = inner.index_of(number).map_err(log_error)?;
        Ok(inner.blocks[index].deleted.iter().collect())
    }

    #[allow(clippy::type_complexity)]
    fn cipher_of<'py>(
        &self,
        py: Python<'py>,
        number: u64,
    ) -> PyResult<Option<(&'static str, Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let inner = self.inner();
        let index = inner.index_of(number).map_err(log_error)?;
        let cipher = inner.blocks[index].cipher.as_ref();
        Ok(cipher.map(|key| (key.cipher.name(), PyBytes::new(py, &key.seed), PyBytes::new(py, &key.nonce))))
    }

    fn blocks(&self, py: Python<'_>) -> Vec<BlockTuple> {
        let all = py.detach(|| self.0.blocks());
        let one = |b: &headrace_core::layouts::jetstream::block::Block| {
            (b.number, b.first, b.last, b.msgs, b.bytes, b.file_len, b.first_time, b.last_time, b.deleted.len() as u64)
        };
        all.iter().map(one).collect()
    }

    fn encode_index<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.encode_index()).map_err(log_error)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn commit(&self, py: Python<'_>, mark: u64) -> PyResult<()> {
        py.detach(|| self.0.commit(mark)).map_err(log_error)
    }

    fn durable(&self) -> (u64, u64) {
        self.0.durable()
    }

    fn assume_durable(&self) {
        self.0.assume_durable();
    }

    fn rewrite_tail(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        py.detach(|| self.0.rewrite_tail(number)).map_err(log_error)
    }

    /// Evicted by limits since `settled`, and whether there were too many to list.
    fn evicted(&self) -> (Vec<u64>, bool) {
        let inner = self.inner();
        let (listed, many) = inner.evicted.told();
        (listed.to_vec(), many)
    }

    fn settled(&self) {
        self.inner().evicted.settled();
    }

    /// What the loaded blocks take in memory (the newest one, which is being written, aside).
    fn cached_bytes(&self) -> usize {
        self.inner().cache.bytes()
    }

    fn findings(&self) -> Vec<FindingTuple> {
        let inner = self.inner();
        let one = |(number, f): &(u64, headrace_core::layouts::jetstream::scan::Finding)| {
            let (first, next) = f.sequences.map_or((None, None), |(first, next)| (Some(first), Some(next)));
            (*number, f.kind.name(), f.offset, f.len, first, next, f.detail.clone())
        };
        inner.findings.iter().map(one).collect()
    }
}
