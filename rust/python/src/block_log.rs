//! `BlockLog` for Python: the blocks of one JetStream stream. Everything that may touch a disk or walk many
//! messages runs without the GIL.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use headrace_core::crypt::Seed;
use headrace_core::hash::HashKey;
use headrace_core::layouts::jetstream::evict::FrontLimits;
use headrace_core::layouts::jetstream::index_db::IndexDb;
use headrace_core::layouts::jetstream::log::{self, AppendRules, LogError};
use headrace_core::layouts::jetstream::query::ReadLimits;
use headrace_core::subjects::Filter;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::batch::{Batch, text};
use crate::commit::CommitHandle;
use crate::crypt::{CipherTuple, cipher_key};
use crate::disk::Disk;
use crate::errors::{disk_error, log_error};
use crate::held::held;
use crate::held_block::HeldBlock;
use crate::log_results::{
    Appended, BlockFinding, BlockLogState, BlockSummary, OpenedBlock, Removed, Tombstones, found_record,
};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BlockLog>()
}

fn filters_of(filters: &[String]) -> Vec<Filter> {
    filters.iter().map(|filter| Filter::new(filter.as_bytes())).collect()
}

fn as_bytes(py: Python<'_>, made: log::LogResult<Vec<u8>>) -> PyResult<Bound<'_, PyBytes>> {
    made.map(|bytes| PyBytes::new(py, &bytes)).map_err(log_error)
}

#[pyclass(frozen, module = "headrace._core")]
pub struct BlockLog(Arc<log::BlockLog>);

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
        let log = log::BlockLog::new(disk.inner(), directory, guard_directory, stream.as_bytes(), cache_bytes);
        BlockLog(Arc::new(log))
    }

    #[allow(clippy::type_complexity)] // one tuple per block
    fn open_by_scan(
        &self,
        py: Python<'_>,
        numbers: Vec<u64>,
        ciphers: HashMap<u64, CipherTuple>,
        threads: usize,
    ) -> PyResult<(Vec<OpenedBlock>, u64, u64)> {
        let keys: PyResult<HashMap<u64, Seed>> = ciphers.into_iter().map(|(n, c)| Ok((n, cipher_key(c)?))).collect();
        let keys = keys?;
        let report = py.detach(|| self.0.open_by_scan(&numbers, &keys, threads)).map_err(log_error)?;
        let blocks = report.blocks.into_iter().map(OpenedBlock);
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

    #[allow(clippy::too_many_arguments)] // one call per batch, each value once
    fn append(
        &self,
        py: Python<'_>,
        batch: &Batch,
        start: usize,
        now_ns: i64,
        keep_positions: bool,
        block_bytes_max: usize,
        per_subject_max: u64,
    ) -> PyResult<Appended> {
        let rules = AppendRules { now: now_ns, keep_positions, block_bytes_max, per_subject_max };
        py.detach(|| self.0.append(&batch.0, start, &rules)).map(Appended::from).map_err(log_error)
    }

    fn skip(&self, py: Python<'_>, to: u64, now_ns: i64) -> PyResult<u64> {
        py.detach(|| self.0.skip(to, now_ns)).map_err(log_error)
    }

    fn write_tombstones(&self, py: Python<'_>, entries: Vec<(u64, i64)>) -> PyResult<u64> {
        py.detach(|| self.0.write_tombstones(&entries)).map_err(log_error)
    }

    fn remove(&self, py: Python<'_>, sequences: Vec<u64>) -> PyResult<Removed> {
        let (removed, mark) = py.detach(|| self.0.remove(&sequences)).map_err(log_error)?;
        Ok(Removed {
            messages: removed.len(),
            bytes: removed.iter().map(|each| each.bytes).sum(),
            first: removed.first().map_or(0, |each| each.sequence),
            mark,
        })
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
        as_bytes(py, py.detach(|| self.0.compacted(number)))
    }

    fn sound_copy<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Bound<'py, PyBytes>> {
        as_bytes(py, py.detach(|| self.0.sound_copy(number)))
    }

    fn plain_bytes<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Bound<'py, PyBytes>> {
        as_bytes(py, py.detach(|| self.0.plain_bytes(number)))
    }

    fn guard_of<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Bound<'py, PyBytes>> {
        as_bytes(py, py.detach(|| self.0.guard_of(number)))
    }

    fn replaced(&self, py: Python<'_>, number: u64, file_len: u64) -> PyResult<()> {
        py.detach(|| self.0.replaced(number, file_len)).map_err(log_error)
    }

    fn tombstones_of(&self, py: Python<'_>, number: u64) -> PyResult<Tombstones> {
        let (needed, any) = py.detach(|| self.0.tombstones_of(number)).map_err(log_error)?;
        Ok(Tombstones { needed, any })
    }

    fn take_dead(&self) -> Vec<u64> {
        self.0.take_dead()
    }

    fn clear(&self) -> (u64, u64) {
        self.0.clear()
    }

    fn load<'py>(&self, py: Python<'py>, sequence: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = py.detach(|| self.0.load(sequence)).map_err(log_error)?;
        found_record(py, found)
    }

    #[pyo3(signature = (sequences, max_bytes=usize::MAX))]
    fn load_many(&self, py: Python<'_>, sequences: Vec<u64>, max_bytes: usize) -> PyResult<Batch> {
        py.detach(|| self.0.load_many(&sequences, max_bytes)).map(Batch).map_err(log_error)
    }

    /// (messages as far as their blocks are in memory, how many of the sequences were looked at)
    fn load_warm(&self, py: Python<'_>, sequences: Vec<u64>, max_bytes: usize) -> PyResult<(Batch, usize)> {
        let (batch, looked_at) = py.detach(|| self.0.load_warm(&sequences, max_bytes)).map_err(log_error)?;
        Ok((Batch(batch), looked_at))
    }

    /// The block that covers a sequence, or else the next one: (number, first, last); None behind the last.
    fn block_of(&self, sequence: u64) -> Option<(u64, u64, u64)> {
        self.0.block_of(sequence)
    }

    /// Keeps a block (or what the filters select of it) in memory; None if there is none to be read.
    fn hold(&self, py: Python<'_>, number: u64, filters: Vec<String>) -> PyResult<Option<HeldBlock>> {
        let filters = filters_of(&filters);
        let held = py.detach(|| self.0.hold(number, &filters)).map_err(log_error)?;
        Ok(held.map(HeldBlock::new))
    }

    /// A block that evictions would have to read, after so many more messages and bytes; None if all are in memory.
    fn cold_front(&self, limits: (Option<u64>, Option<u64>), msgs: u64, bytes: u64) -> Option<u64> {
        let limits = FrontLimits { max_msgs: limits.0, max_bytes: limits.1, ..FrontLimits::default() };
        self.0.cold_front(&limits, msgs, bytes)
    }

    fn patching(&self, number: u64) {
        self.0.patching(number);
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

    fn last_per_subject<'py>(&self, py: Python<'py>, filters: Vec<String>) -> PyResult<Bound<'py, PyBytes>> {
        let filters = filters_of(&filters);
        let packed = py.detach(|| {
            let found = self.0.last_per_subject(&filters)?;
            Ok(found.iter().flat_map(|sequence| sequence.to_ne_bytes()).collect::<Vec<u8>>())
        });
        Ok(PyBytes::new(py, &packed.map_err(log_error)?))
    }

    /// How many of the sequences (8 bytes each) still have a message.
    fn count_live(&self, py: Python<'_>, packed: &[u8]) -> usize {
        py.detach(|| {
            let sequences: Vec<u64> =
                packed.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
            self.0.live_among(&sequences).len()
        })
    }

    fn live_among(&self, py: Python<'_>, sequences: Vec<u64>) -> Vec<u64> {
        py.detach(|| self.0.live_among(&sequences))
    }

    fn next_match<'py>(&self, py: Python<'py>, filter: &str, start: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let filter = Filter::new(filter.as_bytes());
        let found = py.detach(|| self.0.next_match(&filter, start)).map_err(log_error)?;
        found_record(py, found)
    }

    fn last_match<'py>(&self, py: Python<'py>, filter: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let filter = Filter::new(filter.as_bytes());
        let found = py.detach(|| self.0.last_match(&filter)).map_err(log_error)?;
        found_record(py, found)
    }

    /// The sequence of the newest message on a filter, 0 if there is none.
    fn last_seq_of(&self, py: Python<'_>, filter: &str) -> PyResult<u64> {
        let filter = Filter::new(filter.as_bytes());
        py.detach(|| self.0.last_seq_of(&filter)).map(|found| found.unwrap_or(0)).map_err(log_error)
    }

    fn seq_from_time(&self, py: Python<'_>, time_ns: i64) -> PyResult<u64> {
        py.detach(|| self.0.seq_from_time(time_ns)).map_err(log_error)
    }

    fn filtered_state(&self, py: Python<'_>, start: u64, filter: &str) -> PyResult<(u64, u64, u64)> {
        let filter = Filter::new(filter.as_bytes());
        let counts = py.detach(|| self.0.filtered_state(start, &filter)).map_err(log_error)?;
        Ok((counts.msgs, counts.first, counts.last))
    }

    /// (subjects on all pages, JSON of one page)
    fn subjects_page<'py>(
        &self,
        py: Python<'py>,
        filter: &str,
        offset: usize,
        limit: usize,
    ) -> (usize, Bound<'py, PyBytes>) {
        let filter = Filter::new(filter.as_bytes());
        let (total, json) = py.detach(|| {
            let page = self.0.subjects_page(&filter, offset, limit);
            (page.total, page.to_json())
        });
        (total, PyBytes::new(py, &json))
    }

    /// ([sequences], [subjects that are open]), or None if there are too many
    #[allow(clippy::type_complexity)]
    fn newest_of_each<'py>(
        &self,
        py: Python<'py>,
        filters: Vec<String>,
        up_to: u64,
        max: usize,
    ) -> Option<(Vec<u64>, Vec<Bound<'py, PyBytes>>)> {
        let filters = filters_of(&filters);
        let found = py.detach(|| self.0.newest_of_each(&filters, up_to, max));
        (!found.too_many).then(|| (found.sequences, found.open.iter().map(|s| PyBytes::new(py, s)).collect()))
    }

    /// ([(index of the subject, sequence)], where to go on; 0 at the end)
    #[allow(clippy::type_complexity)]
    fn newest_below(
        &self,
        py: Python<'_>,
        subjects: Vec<Vec<u8>>,
        below: u64,
        blocks_max: usize,
    ) -> PyResult<(Vec<(usize, u64)>, u64)> {
        py.detach(|| self.0.newest_below(&subjects, below, blocks_max)).map_err(log_error)
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

    fn state(&self, py: Python<'_>) -> PyResult<BlockLogState> {
        let state = py.detach(|| self.0.state()).map_err(log_error)?;
        Ok(BlockLogState {
            messages: state.msgs,
            bytes: state.bytes,
            first_seq: state.first,
            first_time_ns: state.first_time,
            last_seq: state.last,
            last_time_ns: state.last_time,
            subjects: state.subjects,
            deleted: state.deleted,
            file_bytes: state.file_bytes,
        })
    }

    /// The number of the newest block.
    #[getter]
    fn newest_block(&self) -> u64 {
        self.inner().blocks.last().map_or(0, |block| block.number)
    }

    /// The length of its plain bytes.
    #[getter]
    fn newest_block_bytes(&self) -> u64 {
        self.inner().blocks.last().map_or(0, |block| block.file_len)
    }

    fn has(&self, sequence: u64) -> bool {
        let inner = self.inner();
        inner.block_at(sequence).is_some_and(|index| inner.blocks[index].is_live(sequence))
    }

    /// Neither compressed nor enciphered.
    fn is_plain(&self, py: Python<'_>, number: u64) -> PyResult<bool> {
        py.detach(|| self.0.is_plain(number)).map_err(log_error)
    }

    #[getter]
    fn messages(&self) -> u64 {
        self.inner().msgs
    }

    /// The bytes of all messages that are there.
    #[getter]
    fn live_bytes(&self) -> u64 {
        self.inner().bytes
    }

    #[getter]
    fn last_seq(&self) -> u64 {
        self.inner().last
    }

    #[getter]
    fn last_time_ns(&self) -> i64 {
        self.inner().last_time
    }

    /// Everything that was written so far, for `commit`.
    #[getter]
    fn mark(&self) -> u64 {
        self.inner().mark
    }

    fn count_as_memory(&self) {
        self.0.count_as_memory();
    }

    fn is_busy(&self, store_locked: bool) -> bool {
        self.0.is_busy(store_locked)
    }

    fn yield_to_waiters(&self, py: Python<'_>) {
        py.detach(|| self.0.yield_to_waiters());
    }

    fn poisoned(&self) -> bool {
        self.0.is_poisoned()
    }

    #[getter]
    fn first_seq(&self) -> u64 {
        self.inner().first()
    }

    fn last_before(&self, py: Python<'_>, subject: &str, sequence: u64) -> PyResult<u64> {
        let found = py.detach(|| self.0.last_before(subject.as_bytes(), sequence));
        Ok(found.map_err(log_error)?.unwrap_or(0))
    }

    /// `live_bytes` as they are, or as they were a moment ago if somebody is at work: nobody waits for it.
    #[getter]
    fn held_bytes(&self) -> u64 {
        self.0.held_bytes()
    }

    /// `[sequence,…]`
    fn deleted_json<'py>(&self, py: Python<'py>, max: usize) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.0.deleted_json(max)))
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

    fn blocks(&self, py: Python<'_>) -> Vec<BlockSummary> {
        py.detach(|| self.0.blocks()).iter().map(BlockSummary::from).collect()
    }

    fn encode_index<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        as_bytes(py, py.detach(|| self.0.encode_index()))
    }

    fn commit(&self, py: Python<'_>, mark: u64) -> PyResult<()> {
        py.detach(|| self.0.commit(mark)).map_err(log_error)
    }

    fn commit_handle(&self) -> CommitHandle {
        CommitHandle::new(self.0.clone())
    }

    fn set_mark_path(&self, path: Option<String>) {
        self.0.set_mark_path(path);
    }

    fn publish_mark(&self, py: Python<'_>) {
        py.detach(|| self.0.publish_mark(self.0.durable().1));
    }

    fn lower_mark(&self, py: Python<'_>, last: u64) -> PyResult<()> {
        py.detach(|| self.0.lower_mark(last)).map_err(disk_error)
    }

    /// The mark up to which everything is on disk.
    #[getter]
    fn durable_mark(&self) -> u64 {
        self.0.durable().0
    }

    /// The last sequence that is on disk.
    #[getter]
    fn durable_seq(&self) -> u64 {
        self.0.durable().1
    }

    fn assume_durable(&self) {
        self.0.assume_durable();
    }

    fn rewrite_tail(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        py.detach(|| self.0.rewrite_tail(number)).map_err(log_error)
    }

    /// Whether limits have evicted something since `evictions_saved`.
    #[getter]
    fn has_evicted(&self) -> bool {
        let inner = self.inner();
        let (listed, many) = inner.evicted.listed();
        many || !listed.is_empty()
    }

    /// What they have evicted; None if there were too many to list.
    fn evicted(&self) -> Option<Vec<u64>> {
        let inner = self.inner();
        let (listed, many) = inner.evicted.listed();
        (!many).then(|| listed.to_vec())
    }

    fn evictions_saved(&self) {
        self.inner().evicted.saved();
    }

    /// What the loaded blocks take in memory (the newest one, which is being written, aside).
    fn cached_bytes(&self) -> usize {
        self.inner().cache.bytes()
    }

    fn findings(&self) -> Vec<BlockFinding> {
        self.inner().findings.iter().map(BlockFinding::from).collect()
    }
}
