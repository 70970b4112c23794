//! `RabbitQueue`, `RabbitStore`, `RabbitWrite`: RabbitMQ's queue index and message store. Locks are taken queue
//! first, then store; everything that walks messages or reads files runs without the GIL.

use std::sync::{Mutex, MutexGuard, PoisonError};

use headrace_core::batch::{Batch as CoreBatch, HeaderCodec};
use headrace_core::layouts::rabbitmq::props::{self, Text};
use headrace_core::layouts::rabbitmq::queue::{self, Flush, QueueError, QueueIndex, Rules, Written};
use headrace_core::layouts::rabbitmq::read::ReadLimits;
use headrace_core::layouts::rabbitmq::record::{Action, walk_journal, walk_segment};
use headrace_core::layouts::rabbitmq::stamp;
use headrace_core::layouts::rabbitmq::store::{FileKey, FileKind, FileState, MessageStore, StoreError, walk_store};
use headrace_core::layouts::rabbitmq::{Finding, MessageId};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::Batch;
use crate::disk::{Disk, DiskFile};
use crate::errors::{bad_input, damaged, disk_error};
use crate::held::held;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RabbitFile>()?;
    module.add_class::<RabbitQueue>()?;
    module.add_class::<RabbitTotals>()?;
    module.add_class::<RabbitStore>()?;
    module.add_class::<RabbitWrite>()?;
    module.add_function(wrap_pyfunction!(rabbit_check_journal, module)?)?;
    module.add_function(wrap_pyfunction!(rabbit_check_segment, module)?)?;
    module.add_function(wrap_pyfunction!(rabbit_check_store, module)?)?;
    module.add_function(wrap_pyfunction!(rabbit_stamp, module)?)?;
    module.add_function(wrap_pyfunction!(amqp_header_texts, module)?)?;
    module.add_function(wrap_pyfunction!(rabbit_rewritten_segment, module)?)
}

type FindingTuple = (&'static str, u64, u64, Option<u64>, Option<u64>, String);

fn findings_of(findings: Vec<Finding>) -> Vec<FindingTuple> {
    let tuple = |f: Finding| (f.kind, f.offset, f.len, f.sequences.map(|s| s.0), f.sequences.map(|s| s.1), f.detail);
    findings.into_iter().map(tuple).collect()
}

fn store_error(error: StoreError) -> PyErr {
    match error {
        StoreError::Disk(error) => disk_error(error),
        StoreError::Moved { ref path, offset, .. } => {
            damaged("Damaged", path, offset, &error.to_string(), "the message", "restore the file from a backup")
        }
    }
}

fn queue_error(error: QueueError) -> PyErr {
    bad_input(error.to_string())
}

fn kind_of(name: &str) -> PyResult<FileKind> {
    match name {
        "rdq" => Ok(FileKind::Rdq),
        "rdt" => Ok(FileKind::Rdt),
        "transient" => Ok(FileKind::Transient),
        _ => Err(bad_input(format!("no store file of kind {name:?}"))),
    }
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Rdq => "rdq",
        FileKind::Rdt => "rdt",
        FileKind::Transient => "transient",
    }
}

fn unpacked(ids: &[u8]) -> Vec<MessageId> {
    ids.chunks_exact(16).map(|id| id.try_into().unwrap_or_default()).collect()
}

fn locked<T: Send>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    held(mutex).unwrap_or_else(PoisonError::into_inner)
}

/// What is to be written before a staged change is applied.
#[pyclass(frozen, module = "headrace._core")]
pub struct RabbitWrite(Written);

#[pymethods]
impl RabbitWrite {
    #[getter]
    fn journal(&self) -> (usize, usize) {
        (self.0.journal.start, self.0.journal.end)
    }

    #[getter]
    fn chunks(&self) -> usize {
        self.0.chunks.len()
    }

    fn chunk<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyBytes>> {
        let chunk = self.0.chunks.get(number).ok_or_else(|| bad_input(format!("no chunk {number}")))?;
        Ok(PyBytes::new(py, &chunk.bytes))
    }

    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.ids)
    }

    #[getter]
    fn first(&self) -> u64 {
        self.0.first
    }

    #[getter]
    fn next(&self) -> u64 {
        self.0.next
    }

    #[getter]
    fn count(&self) -> u64 {
        self.0.count
    }
}

/// A file of the message store.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct RabbitFile {
    pub kind: &'static str,
    pub number: u64,
    pub bytes: u64,
    pub referenced_bytes: u64,
    pub records: u64,
}

/// What a queue's index counts.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct RabbitTotals {
    pub messages: u64,
    pub bytes: u64,
    pub lost: u64,
    pub next: u64,
    pub journal_records: usize,
    pub journal_bytes: usize,
}

#[pyclass(frozen, module = "headrace._core")]
pub struct RabbitStore(Mutex<MessageStore>);

impl RabbitStore {
    fn key(kind: &str, number: u64) -> PyResult<FileKey> {
        Ok(FileKey { kind: kind_of(kind)?, number })
    }
}

#[pymethods]
impl RabbitStore {
    #[new]
    fn new(disk: &Disk, directory: &str, transient: &str) -> RabbitStore {
        RabbitStore(Mutex::new(MessageStore::new(disk.inner(), directory, transient)))
    }

    fn scan(&self, py: Python<'_>, kind: &str, number: u64) -> PyResult<Vec<FindingTuple>> {
        let key = Self::key(kind, number)?;
        py.detach(|| locked(&self.0).scan(key)).map(findings_of).map_err(disk_error)
    }

    fn files(&self) -> Vec<RabbitFile> {
        let one = |(key, state): (FileKey, FileState)| RabbitFile {
            kind: kind_name(key.kind),
            number: key.number,
            bytes: state.bytes,
            referenced_bytes: state.valid,
            records: state.records,
        };
        locked(&self.0).files().into_iter().map(one).collect()
    }

    fn add_file(&self, number: u64) {
        locked(&self.0).add_file(number);
    }

    fn forget_file(&self, kind: &str, number: u64) -> PyResult<()> {
        locked(&self.0).forget_file(Self::key(kind, number)?);
        Ok(())
    }

    fn forget_unreferenced(&self) {
        locked(&self.0).forget_unreferenced();
    }

    /// Referenced messages that RabbitMQ's own scanner would miss: (records one after the other, ids).
    fn hidden<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let (bytes, ids) = py
            .detach(|| {
                let mut store = locked(&self.0);
                let (mut bytes, mut ids) = (Vec::new(), Vec::new());
                for (id, location) in store.hidden() {
                    bytes.extend_from_slice(&store.repaired(&id, location)?);
                    ids.extend_from_slice(&id);
                }
                Ok::<_, StoreError>((bytes, ids))
            })
            .map_err(store_error)?;
        Ok((PyBytes::new(py, &bytes), PyBytes::new(py, &ids)))
    }

    /// `write`'s chunk lies at `offset` of `N.rdq`.
    fn wrote(&self, number: u64, offset: u64, write: &RabbitWrite, chunk: usize) {
        let mut store = locked(&self.0);
        for (id, at, total) in write.0.chunks.get(chunk).map_or(&[][..], |chunk| &chunk.records) {
            store.wrote(number, *id, offset + u64::from(*at), *total);
        }
    }

    /// Copies of known messages lie one after the other from `offset` on.
    fn copied(&self, number: u64, offset: u64, ids: &[u8]) {
        let mut store = locked(&self.0);
        let mut at = offset;
        for id in unpacked(ids) {
            if let Some(location) = store.locate(&id) {
                store.wrote(number, id, at, location.total);
                at += u64::from(location.total);
            }
        }
    }

    #[allow(clippy::type_complexity)] // two byte strings
    fn merged<'py>(
        &self,
        py: Python<'py>,
        files: Vec<(String, u64)>,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let keys: PyResult<Vec<FileKey>> = files.iter().map(|(kind, number)| Self::key(kind, *number)).collect();
        let keys = keys?;
        let (bytes, ids) = py.detach(|| locked(&self.0).merged(&keys)).map_err(store_error)?;
        Ok((PyBytes::new(py, &bytes), PyBytes::new(py, &ids.concat())))
    }

    fn took_over(&self, target: u64, data: &[u8], ids: &[u8]) {
        locked(&self.0).took_over(target, data, &unpacked(ids));
    }

    fn dump<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        py.detach(|| locked(&self.0).dump()).map(|dump| PyBytes::new(py, &dump))
    }

    fn load_dump(&self, py: Python<'_>, data: &[u8]) {
        py.detach(|| locked(&self.0).load_dump(data));
    }

    fn restore_file(&self, number: u64, bytes: u64, valid: u64, records: u64) {
        locked(&self.0).restore_file(number, FileState { bytes, valid, records });
    }

    fn close_files(&self) {
        locked(&self.0).close_files();
    }

    fn __len__(&self) -> usize {
        locked(&self.0).referenced()
    }
}

#[pyclass(frozen, module = "headrace._core")]
pub struct RabbitQueue(Mutex<QueueIndex>);

#[pymethods]
impl RabbitQueue {
    #[new]
    fn new(count: u64, seed: &[u8]) -> PyResult<RabbitQueue> {
        let seed: [u8; 16] = seed.try_into().map_err(|_| bad_input("a seed has 16 bytes"))?;
        let half = |at: usize| seed[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        Ok(RabbitQueue(Mutex::new(QueueIndex::new(count, (half(0), half(8))))))
    }

    fn load_segment(&self, py: Python<'_>, number: u64, data: &[u8]) -> Vec<FindingTuple> {
        findings_of(py.detach(|| locked(&self.0).load_segment(number, data)))
    }

    fn load_for_reading(
        &self,
        py: Python<'_>,
        disk: &Disk,
        directory: &str,
        number: u64,
    ) -> PyResult<(Vec<FindingTuple>, Vec<u64>)> {
        let disk = disk.inner();
        let found = py.detach(|| locked(&self.0).load_for_reading(&*disk, directory, number)).map_err(disk_error)?;
        Ok((findings_of(found.findings), found.lost))
    }

    fn load_journal(&self, py: Python<'_>, data: &[u8]) -> PyResult<Vec<FindingTuple>> {
        if let Some(segment) = locked(&self.0).cold_below(u64::MAX).first() {
            return Err(queue_error(QueueError::Cold { segment: *segment }));
        }
        Ok(findings_of(py.detach(|| locked(&self.0).load_journal(data.to_vec()))))
    }

    fn rows<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &locked(&self.0).rows())
    }

    fn restore(&self, rows: &[u8]) -> PyResult<()> {
        locked(&self.0).restore(rows).map_err(queue_error)
    }

    fn cold_of(&self, py: Python<'_>, positions: Vec<u64>) -> Vec<u64> {
        py.detach(|| locked(&self.0).cold_of(&positions))
    }

    fn cold_below(&self, sequence: u64) -> Vec<u64> {
        locked(&self.0).cold_below(sequence)
    }

    fn cold_stored(&self) -> Vec<u64> {
        locked(&self.0).cold_stored()
    }

    fn cold_from(&self, first: u64) -> Option<u64> {
        locked(&self.0).cold_from(first)
    }

    fn reference_segment(&self, py: Python<'_>, number: u64, store: &RabbitStore) -> Vec<u64> {
        py.detach(|| locked(&self.0).reference_segment(number, &locked(&store.0)))
    }

    fn totals(&self) -> RabbitTotals {
        let totals = locked(&self.0).totals();
        RabbitTotals {
            messages: totals.messages,
            bytes: totals.bytes,
            lost: totals.lost,
            next: totals.next,
            journal_records: totals.dirty,
            journal_bytes: totals.journal_bytes,
        }
    }

    fn segments(&self) -> Vec<(u64, u32, u64, bool)> {
        locked(&self.0).segments()
    }

    fn raise_next(&self, next: u64) {
        locked(&self.0).raise_next(next);
    }

    fn reference(&self, py: Python<'_>, store: &RabbitStore, count: bool) -> Vec<u64> {
        py.detach(|| locked(&self.0).reference(&mut locked(&store.0), count))
    }

    #[allow(clippy::too_many_arguments)] // the rules, one by one
    fn stage_publish(
        &self,
        py: Python<'_>,
        batch: &Batch,
        store: &RabbitStore,
        vhost: &[u8],
        queue: &[u8],
        now_ns: i64,
        keep_positions: bool,
        embed_below: usize,
        deliver: bool,
        ids: &[u8],
        store_bytes: u64,
        store_limit: u64,
    ) -> PyResult<RabbitWrite> {
        let rules = Rules { vhost, queue, now_ns, keep_positions, embed_below, deliver, ids, store_bytes, store_limit };
        py.detach(|| locked(&self.0).stage_publish(&batch.0, &rules, &locked(&store.0)))
            .map(RabbitWrite)
            .map_err(queue_error)
    }

    fn stage_moves(&self, py: Python<'_>, positions: Vec<u64>, ack: bool, record: bool) -> PyResult<RabbitWrite> {
        py.detach(|| locked(&self.0).stage_moves(&positions, ack, record)).map(RabbitWrite).map_err(queue_error)
    }

    fn apply(&self, py: Python<'_>, store: &RabbitStore) {
        py.detach(|| {
            let (dropped, taken) = locked(&self.0).apply();
            if !dropped.is_empty() || !taken.is_empty() {
                let mut store = locked(&store.0);
                store.add_references(taken.iter());
                store.drop_references(dropped.iter());
            }
        });
    }

    fn abandon(&self) {
        locked(&self.0).abandon();
    }

    fn write_journal(&self, py: Python<'_>, piece: (usize, usize), file: &DiskFile, offset: u64) -> PyResult<()> {
        let file = file.shared();
        py.detach(|| locked(&self.0).write_journal(piece.0..piece.1, &*file, offset)).map_err(disk_error)
    }

    fn plan_flush(&self) -> Vec<(u64, bool)> {
        let plan = locked(&self.0).plan_flush();
        plan.into_iter()
            .map(|step| match step {
                Flush::Delete(number) => (number, false),
                Flush::Append(number) => (number, true),
            })
            .collect()
    }

    fn flush_segment(&self, py: Python<'_>, number: u64, file: &DiskFile, offset: u64) -> PyResult<u64> {
        let file = file.shared();
        py.detach(|| locked(&self.0).flush_segment(number, &*file, offset)).map_err(disk_error)
    }

    fn flushed(&self, py: Python<'_>) {
        py.detach(|| locked(&self.0).flushed());
    }

    fn set_file_bytes(&self, number: u64, bytes: u64) {
        locked(&self.0).set_file_bytes(number, bytes);
    }

    #[allow(clippy::too_many_arguments, clippy::type_complexity)]
    fn read(
        &self,
        py: Python<'_>,
        disk: &Disk,
        directory: &str,
        store: &RabbitStore,
        first: u64,
        max_msgs: usize,
        max_bytes: u64,
        below: u64,
    ) -> PyResult<(Batch, u64, Vec<FindingTuple>, Vec<u64>)> {
        let (limits, disk) = (ReadLimits { max_msgs, max_bytes, below }, disk.inner());
        let found = py
            .detach(|| locked(&self.0).read(&*disk, directory, &mut locked(&store.0), first, &limits))
            .map_err(store_error)?;
        let batch = found.batches.into_iter().next().unwrap_or_else(|| CoreBatch::empty(HeaderCodec::Amqp));
        Ok((Batch(batch), found.next, findings_of(found.findings), found.lost))
    }

    fn unacked_below(&self, py: Python<'_>, sequence: u64) -> Vec<u64> {
        py.detach(|| locked(&self.0).unacked_below(sequence))
    }

    fn pending(&self, max: usize) -> Vec<u64> {
        locked(&self.0).pending(max)
    }

    fn mark_sent(&self, positions: Vec<u64>) {
        locked(&self.0).mark_sent(&positions);
    }

    fn next_after_flush(&self) -> u64 {
        locked(&self.0).next_after_flush()
    }

    fn store_files(&self, segment: u64, store: &RabbitStore) -> Vec<(&'static str, u64)> {
        let files = locked(&self.0).store_files(segment, &locked(&store.0));
        files.into_iter().map(|key| (kind_name(key.kind), key.number)).collect()
    }

    fn unsend(&self, positions: Vec<u64>) {
        locked(&self.0).unsend(&positions);
    }

    fn first_live(&self) -> Option<u64> {
        locked(&self.0).first_live()
    }

    fn last_live(&self) -> Option<u64> {
        locked(&self.0).last_live()
    }
}

/// (name, value) of every property, header and part of the envelope, as the Arrow column shows them.
#[pyfunction]
fn amqp_header_texts(block: &[u8]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut pairs = Vec::new();
    let _: Result<(), std::convert::Infallible> = props::each_text(block, |name, value| {
        let value = match value {
            Text::Bytes(bytes) => text(bytes),
            Text::Signed(value) => value.to_string(),
            Text::Unsigned(value) => value.to_string(),
            Text::Made(made) => made,
        };
        pairs.push((text(name), value));
        Ok(())
    });
    pairs
}

/// Another number once anything under `path` was changed that is not a file of ours.
#[pyfunction]
fn rabbit_stamp(py: Python<'_>, disk: &Disk, path: &str, but: &str) -> PyResult<u64> {
    let disk = disk.inner();
    py.detach(|| stamp::of_tree(&*disk, path, but)).map_err(disk_error)
}

/// (findings, publishes, delivers, acks)
#[pyfunction]
fn rabbit_check_journal(py: Python<'_>, data: &[u8]) -> (Vec<FindingTuple>, u64, u64, u64) {
    let mut counts = [0; 3];
    let findings = py.detach(|| walk_journal(data, |action| count(&mut counts, &action)));
    (findings_of(findings), counts[0], counts[1], counts[2])
}

/// (findings, publishes, delivers, acks)
#[pyfunction]
fn rabbit_check_segment(py: Python<'_>, data: &[u8], entries: u64) -> (Vec<FindingTuple>, u64, u64, u64) {
    let mut counts = [0; 3];
    let findings = py.detach(|| walk_segment(data, entries.clamp(1, 1 << 14), |action| count(&mut counts, &action)));
    (findings_of(findings), counts[0], counts[1], counts[2])
}

fn count(counts: &mut [u64; 3], action: &Action) {
    match action {
        Action::Publish(_) | Action::Lost(_) => counts[0] += 1,
        Action::Deliver(_) => counts[1] += 1,
        Action::Ack(_) => counts[2] += 1,
    }
}

/// (findings, sound records)
#[pyfunction]
fn rabbit_check_store(py: Python<'_>, data: &[u8]) -> (Vec<FindingTuple>, u64) {
    let mut records = 0;
    let findings = py.detach(|| walk_store(data, |_| records += 1));
    (findings_of(findings), records)
}

/// (the segment without what is unsound or contradicted by the journal, whether the journal contradicts)
#[pyfunction]
fn rabbit_rewritten_segment<'py>(
    py: Python<'py>,
    data: &[u8],
    number: u64,
    entries: u64,
    journal: &[u8],
) -> (Bound<'py, PyBytes>, bool) {
    let (bytes, contradicted) = py.detach(|| queue::rewritten(data, number, entries.clamp(1, 1 << 14), journal));
    (PyBytes::new(py, &bytes), contradicted)
}
