//! Single files of the JetStream layout, and the hash and compression they use, as functions.

use headrace_core::batch::{self as core, Entry, HeaderCodec};
use headrace_core::columns::Columns;
use headrace_core::compress;
use headrace_core::hash::HashKey;
use headrace_core::layouts::jetstream::block::{self, Block, compress_block};
use headrace_core::layouts::jetstream::decode::DecodeError;
use headrace_core::layouts::jetstream::guard::Guard;
use headrace_core::layouts::jetstream::idx::Idx;
use headrace_core::layouts::jetstream::index_db::IndexDb;
use headrace_core::layouts::jetstream::record::{self, View};
use headrace_core::layouts::jetstream::seqset::SeqSet;
use headrace_core::layouts::jetstream::{remove, scan};
use headrace_core::subjects;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::sync::Arc;

use crate::batch::{Batch, column_buffers};
use crate::crypt::{CipherTuple, cipher_key};
use crate::disk::Disk;
use crate::errors::{bad_input, damaged, disk_error};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BlockScan>()?;
    for function in [
        wrap_pyfunction!(highway_hash, module)?,
        wrap_pyfunction!(s2_compress, module)?,
        wrap_pyfunction!(s2_decompress, module)?,
        wrap_pyfunction!(js_compress_block, module)?,
        wrap_pyfunction!(js_tombstone_block, module)?,
        wrap_pyfunction!(js_encode_records, module)?,
        wrap_pyfunction!(js_encode_filled, module)?,
        wrap_pyfunction!(js_record_bytes, module)?,
        wrap_pyfunction!(js_decode_idx, module)?,
        wrap_pyfunction!(js_encode_idx, module)?,
        wrap_pyfunction!(js_decode_index, module)?,
        wrap_pyfunction!(js_guard_extent, module)?,
        wrap_pyfunction!(js_scan_block, module)?,
        wrap_pyfunction!(js_block_columns, module)?,
        wrap_pyfunction!(js_check_block, module)?,
        wrap_pyfunction!(subject_matches, module)?,
        wrap_pyfunction!(subject_valid, module)?,
        wrap_pyfunction!(subject_filter_valid, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}

fn decode_error(file: &str, error: DecodeError) -> PyErr {
    damaged(
        "Damaged",
        file,
        error.offset as u64,
        &error.problem,
        "a whole index file",
        "it is not used; the blocks are scanned instead",
    )
}

#[pyfunction]
fn highway_hash<'py>(py: Python<'py>, key: &[u8], data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let key: [u8; 32] = key.try_into().map_err(|_| bad_input(format!("a hash key has 32 bytes, not {}", key.len())))?;
    Ok(PyBytes::new(py, &HashKey::new(&key).hash(data).to_le_bytes()))
}

#[pyfunction]
fn s2_compress<'py>(py: Python<'py>, data: &[u8]) -> Bound<'py, PyBytes> {
    let packed = py.detach(|| compress::s2_compress_stream(data));
    PyBytes::new(py, &packed)
}

#[pyfunction]
fn s2_decompress<'py>(py: Python<'py>, data: &[u8], max_output: usize) -> PyResult<Bound<'py, PyBytes>> {
    let plain = py.detach(|| compress::s2_decompress_stream(data, max_output)).map_err(|error| {
        damaged(
            "Damaged",
            "S2 stream",
            0,
            &error.to_string(),
            "a sound S2 stream",
            "get the bytes again from where they came",
        )
    })?;
    Ok(PyBytes::new(py, &plain))
}

#[pyfunction]
fn js_compress_block<'py>(py: Python<'py>, plain: &[u8]) -> Bound<'py, PyBytes> {
    let packed = py.detach(|| compress_block(plain));
    PyBytes::new(py, &packed)
}

#[pyfunction]
fn js_tombstone_block<'py>(
    py: Python<'py>,
    stream: &str,
    number: u64,
    sequence: u64,
    time_ns: i64,
) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &remove::tombstone_block(stream.as_bytes(), number, sequence, time_ns))
}

/// The records of a batch for a block of that number; entries flagged as placeholders become such.
#[pyfunction]
fn js_encode_records<'py>(py: Python<'py>, stream: &str, number: u64, batch: &Batch) -> PyResult<Bound<'py, PyBytes>> {
    let key = block::block_key(stream.as_bytes(), number);
    let bytes = py.detach(|| record::encode_batch(&key, &batch.0)).map_err(|error| bad_input(error.to_string()))?;
    Ok(PyBytes::new(py, &bytes))
}

/// What the messages of a batch take as records.
#[pyfunction]
fn js_record_bytes(batch: &Batch, as_memory: bool) -> u64 {
    record::batch_record_bytes(&batch.0, as_memory)
}

/// (records, messages taken): from index `start` on, with a placeholder for every sequence between `next` and
/// the messages; ends where the block would be too large or a hole too wide.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // a call per batch, each value once
fn js_encode_filled<'py>(
    py: Python<'py>,
    stream: &str,
    number: u64,
    batch: &Batch,
    start: usize,
    next: u64,
    time_ns: i64,
    bytes_max: usize,
    hole_max: u64,
) -> PyResult<(Bound<'py, PyBytes>, usize)> {
    let key = block::block_key(stream.as_bytes(), number);
    let limits = record::FillLimits { next, time: time_ns, bytes_max, hole_max };
    let filled = py
        .detach(|| record::encode_filled(&key, &batch.0, start, &limits))
        .map_err(|error| bad_input(error.to_string()))?;
    Ok((PyBytes::new(py, &filled.bytes), filled.taken))
}

type IdxTuple = (u64, u64, u64, i64, u64, i64, Vec<u64>, bool);

/// (msgs, bytes, first, first time, last, last time, deleted, belongs to the block's bytes)
#[pyfunction]
fn js_decode_idx(file: &str, data: &[u8], block_tail: &[u8]) -> PyResult<IdxTuple> {
    let idx = Idx::decode(data).map_err(|error| decode_error(file, error))?;
    let fits = idx.fits(block_tail);
    Ok((idx.msgs, idx.bytes, idx.first, idx.first_time, idx.last, idx.last_time, idx.deleted.iter().collect(), fits))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)] // the fields of the file, in order
fn js_encode_idx<'py>(
    py: Python<'py>,
    msgs: u64,
    bytes: u64,
    first: u64,
    first_time: i64,
    last: u64,
    last_time: i64,
    deleted: Vec<u64>,
    last_hash: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let last_hash = last_hash.try_into().map_err(|_| bad_input("a record hash has 8 bytes"))?;
    let deleted: SeqSet = deleted.into_iter().collect();
    let idx = Idx { msgs, bytes, first, first_time, last, last_time, last_hash, deleted };
    Ok(PyBytes::new(py, &idx.encode()))
}

#[pyfunction]
fn js_decode_index<'py>(py: Python<'py>, file: &str, data: &[u8], stream: &str) -> PyResult<Bound<'py, PyDict>> {
    let index =
        IndexDb::decode(data, &HashKey::from_text(stream.as_bytes())).map_err(|error| decode_error(file, error))?;
    let result = PyDict::new(py);
    result.set_item("version", index.version)?;
    result.set_item("msgs", index.msgs)?;
    result.set_item("bytes", index.bytes)?;
    result.set_item("first", index.first)?;
    result.set_item("first_time", index.first_time)?;
    result.set_item("last", index.last)?;
    result.set_item("last_time", index.last_time)?;
    result.set_item("subjects", index.subjects.len())?;
    result.set_item("newest", index.newest)?;
    result.set_item("last_hash", PyBytes::new(py, &index.last_hash))?;
    result.set_item("adds_up", index.adds_up())?;
    result.set_item("hash", PyBytes::new(py, &data[data.len() - record::HASH_SIZE..]))?;
    let blocks = PyList::empty(py);
    for b in &index.blocks {
        let deleted: Vec<u64> = b.deleted.iter().collect();
        blocks.append((b.number, b.bytes, b.first, b.first_time, b.last, b.last_time, deleted))?;
    }
    result.set_item("blocks", blocks)?;
    Ok(result)
}

/// (bytes, records) that a guard covers, whatever has become of its block; None unless it is whole.
#[pyfunction]
fn js_guard_extent(data: &[u8]) -> Option<(usize, usize)> {
    Guard::parse(data).map(|(guard, _)| (guard.covered, guard.records()))
}

/// (kind, offset, length, first sequence, next sequence, detail)
type Finding = (&'static str, u64, u64, Option<u64>, Option<u64>, String);

/// One block file, scanned: its sound messages and what is not sound.
#[pyclass(frozen, module = "headrace._core")]
struct BlockScan {
    batch: core::Batch,
    #[pyo3(get)]
    tombstones: Vec<(u64, i64)>,
    #[pyo3(get)]
    placeholders: Vec<u64>,
    #[pyo3(get)]
    findings: Vec<Finding>,
    #[pyo3(get)]
    file_bytes: u64,
    #[pyo3(get)]
    plain_bytes: usize,
    #[pyo3(get)]
    highest_plausible: u64,
    #[pyo3(get)]
    guard_covers: usize,
    last_hash: Vec<u8>,
}

#[pymethods]
impl BlockScan {
    #[getter]
    fn batch(&self) -> Batch {
        Batch(self.batch.clone())
    }

    #[getter]
    fn last_hash<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.last_hash)
    }
}

#[pyfunction]
#[pyo3(signature = (disk, path, stream, number, guard=None, cipher=None))]
fn js_scan_block(
    py: Python<'_>,
    disk: &Disk,
    path: &str,
    stream: &str,
    number: u64,
    guard: Option<&[u8]>,
    cipher: Option<CipherTuple>,
) -> PyResult<BlockScan> {
    let cipher = cipher.map(cipher_key).transpose()?;
    let disk = disk.inner();
    py.detach(|| {
        let block = Block::new(number, stream.as_bytes(), cipher);
        let mut entries: Vec<Entry> = Vec::new();
        let mut take = |_: &[u8], some: &[Entry]| entries.extend_from_slice(some);
        let (data, file_bytes, scan) = block::load_taking(disk.as_ref(), path, &block, guard, Some(&mut take))?;
        let (mut tombstones, mut placeholders) = (Vec::new(), Vec::new());
        for found in scan.records.iter().filter(|found| found.raw_sequence & !record::SEQUENCE_MASK != 0) {
            let Ok(view) = View::parse(&data, found.offset as usize) else { continue };
            match view.is_tombstone() {
                true => tombstones.push((view.sequence(), view.time)),
                false => placeholders.push(view.sequence()),
            }
        }
        let findings = scan.findings.iter().map(finding);
        let tail = scan.sound_end.saturating_sub(record::HASH_SIZE)..scan.sound_end;
        Ok(BlockScan {
            findings: findings.collect(),
            tombstones,
            placeholders,
            file_bytes,
            plain_bytes: data.len(),
            highest_plausible: scan.highest_plausible,
            guard_covers: scan.guard_covers,
            last_hash: data[tail].to_vec(),
            batch: core::Batch::new(Arc::new(data), entries, HeaderCodec::Nats),
        })
    })
    .map_err(disk_error)
}

/// The messages of a block as columns, in one pass over its bytes: (rows, columns, findings, file bytes, plain bytes).
/// Messages outside `[first, next)` and those in `dead` (sorted) are left out.
type BlockColumns<'py> = (usize, Bound<'py, PyDict>, Vec<Finding>, u64, usize);

#[pyfunction]
#[pyo3(signature = (disk, path, stream, number, guard, cipher, first, next, dead, names))]
#[allow(clippy::too_many_arguments)] // what a task knows of its block
fn js_block_columns<'py>(
    py: Python<'py>,
    disk: &Disk,
    path: &str,
    stream: &str,
    number: u64,
    guard: Option<&[u8]>,
    cipher: Option<CipherTuple>,
    first: u64,
    next: u64,
    dead: Vec<u64>,
    names: Vec<String>,
) -> PyResult<BlockColumns<'py>> {
    let cipher = cipher.map(cipher_key).transpose()?;
    let disk = disk.inner();
    let (made, rows, findings, file_bytes, plain_bytes) = py.detach(|| {
        let block = Block::new(number, stream.as_bytes(), cipher);
        let mut columns = Columns::new(&names, HeaderCodec::Nats).map_err(|error| bad_input(error.to_string()))?;
        let (mut rows, mut problem, mut kept) = (0, None, Vec::new());
        let wanted = |entry: &Entry| (first..next).contains(&entry.position);
        let mut take = |bytes: &[u8], some: &[Entry]| {
            let all = dead.is_empty() && some.first().is_none_or(wanted) && some.last().is_none_or(wanted);
            if !all {
                kept.clear();
                kept.extend(some.iter().filter(|e| wanted(e) && dead.binary_search(&e.position).is_err()));
            }
            let some = if all { some } else { &kept };
            if rows == 0 && !some.is_empty() {
                // The rest of the block is probably like its first messages.
                let seen = some.last().map_or(1, |entry| entry.data.offset as usize + entry.data.size()).max(1);
                columns.expect(bytes.len().div_ceil(seen) * some.len(), some);
            }
            rows += some.len();
            if problem.is_none() {
                problem = columns.push(bytes, some).err();
            }
        };
        let (data, file_bytes, scan) =
            block::load_taking(disk.as_ref(), path, &block, guard, Some(&mut take)).map_err(disk_error)?;
        if let Some(problem) = problem {
            return Err(bad_input(problem.to_string()));
        }
        let findings: Vec<Finding> = scan.findings.iter().map(finding).collect();
        Ok((columns.finish(), rows, findings, file_bytes, data.len()))
    })?;
    Ok((rows, column_buffers(py, &names, made)?, findings, file_bytes, plain_bytes))
}

fn finding(found: &scan::Finding) -> Finding {
    let (first, next) = found.sequences.map_or((None, None), |(first, next)| (Some(first), Some(next)));
    (found.kind.name(), found.offset, found.len, first, next, found.detail.clone())
}

/// Every hash and boundary of a block file; only what is wrong comes back.
#[pyfunction]
fn js_check_block(
    py: Python<'_>,
    disk: &Disk,
    path: &str,
    stream: &str,
    number: u64,
    guard: Option<&[u8]>,
) -> PyResult<Vec<Finding>> {
    let disk = disk.inner();
    let block = Block::new(number, stream.as_bytes(), None);
    let (_, _, scan) = py.detach(|| block::load(disk.as_ref(), path, &block, guard)).map_err(disk_error)?;
    Ok(scan.findings.iter().map(finding).collect())
}

#[pyfunction]
fn subject_matches(filter: &str, subject: &str) -> bool {
    subjects::matches(filter.as_bytes(), subject.as_bytes())
}

#[pyfunction]
fn subject_valid(subject: &str) -> bool {
    subjects::valid_literal(subject.as_bytes())
}

#[pyfunction]
fn subject_filter_valid(filter: &str) -> bool {
    subjects::valid_filter(filter.as_bytes())
}
