//! RocketMQ's store for Python: `RocketEncoded`, `RocketReader`, `RocketScan`, `RocketIndex`.

use std::sync::{Mutex, PoisonError};

use headrace_core::layouts::rocketmq::encode::{self, EncodeRules};
use headrace_core::layouts::rocketmq::index::IndexFile;
use headrace_core::layouts::rocketmq::reader::CommitLogReader;
use headrace_core::layouts::rocketmq::{message, scan};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::{Batch, text};
use crate::disk::{Disk, DiskFile};
use crate::errors::{bad_input, disk_error};

type Keys = Vec<(Vec<u8>, i64, i64)>;

#[pyclass(frozen, module = "headrace._core")]
pub struct RocketEncoded(encode::Encoded);

#[pymethods]
impl RocketEncoded {
    /// [(address, bytes)] for each file that is written to.
    fn pieces(&self) -> Vec<(u64, usize)> {
        self.0.pieces.iter().map(|piece| (piece.address, piece.len)).collect()
    }

    fn write(&self, py: Python<'_>, piece: usize, file: &DiskFile, position: u64) -> PyResult<()> {
        let Some(piece) = self.0.pieces.get(piece) else { return Err(bad_input("no such piece")) };
        let (file, bytes) = (file.shared(), &self.0.bytes[piece.at..piece.at + piece.len]);
        py.detach(|| file.write_at(position, bytes)).map_err(disk_error)
    }

    fn entries<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.entries)
    }

    #[getter]
    fn messages(&self) -> u64 {
        self.0.messages
    }

    #[getter]
    fn size(&self) -> usize {
        self.0.bytes.len()
    }

    #[getter]
    fn next_address(&self) -> u64 {
        self.0.next_address
    }

    #[getter]
    fn keys(&self) -> usize {
        self.0.keys.len()
    }
}

#[pyfunction]
#[allow(clippy::too_many_arguments)] // one per rule
fn rocketmq_encode(
    py: Python<'_>,
    batch: &Batch,
    topic: &str,
    queue: i32,
    first: i64,
    keep_positions: bool,
    address: u64,
    file_bytes: u64,
    now_ms: i64,
    body_max: usize,
    store_host: [u8; 8],
    property_crc: bool,
) -> PyResult<RocketEncoded> {
    let rules = EncodeRules {
        topic: topic.as_bytes(),
        queue,
        first,
        keep_positions,
        address,
        file_bytes,
        now_ms,
        body_max,
        store_host,
        property_crc,
    };
    py.detach(|| encode::encode(&batch.0, &rules)).map(RocketEncoded).map_err(|error| bad_input(error.to_string()))
}

#[pyclass(frozen, module = "headrace._core")]
pub struct RocketScan(scan::Scan);

#[pymethods]
impl RocketScan {
    #[getter]
    fn messages(&self) -> u64 {
        self.0.messages
    }

    /// Where the next message goes.
    #[getter]
    fn end(&self) -> u64 {
        self.0.end
    }

    #[getter]
    fn first_store_ms(&self) -> Option<i64> {
        self.0.first_store_ms
    }

    #[getter]
    fn last_store_ms(&self) -> i64 {
        self.0.last_store_ms
    }

    /// [(from, to, why, nothing sound follows)]
    fn bad(&self) -> Vec<(u64, u64, &'static str, bool)> {
        self.0.bad.iter().map(|bad| (bad.from, bad.to, bad.why, bad.tail)).collect()
    }

    /// How many keys belong to messages up to an address.
    fn keys_upto(&self, address: i64) -> usize {
        self.0.keys.partition_point(|(_, at, _)| *at <= address)
    }

    /// [(topic, queue, first offset, entries)]
    fn queues<'py>(&self, py: Python<'py>) -> Vec<(String, i32, i64, Bound<'py, PyBytes>)> {
        let runs = self.0.queues.iter().flat_map(|(name, runs)| runs.iter().map(move |run| (name, run)));
        runs.map(|((topic, queue), run)| {
            (text(py, topic).to_string(), *queue, run.first, PyBytes::new(py, &run.entries))
        })
        .collect()
    }
}

#[pyfunction]
fn rocketmq_scan(
    py: Python<'_>,
    disk: &Disk,
    path: &str,
    start: u64,
    position: u64,
    keys: bool,
) -> PyResult<RocketScan> {
    let disk = disk.inner();
    py.detach(|| scan::scan(&disk, path, start, position, keys)).map(RocketScan).map_err(disk_error)
}

#[pyclass(frozen, module = "headrace._core")]
pub struct RocketReader(CommitLogReader);

#[pymethods]
impl RocketReader {
    #[new]
    fn new(py: Python<'_>, disk: &Disk, files: Vec<(u64, String)>) -> PyResult<RocketReader> {
        let disk = disk.inner();
        py.detach(|| CommitLogReader::new(&disk, &files)).map(RocketReader).map_err(disk_error)
    }

    /// (messages, entries used, [(queue offset, address, size, why)] of those that are not there)
    #[allow(clippy::type_complexity, clippy::too_many_arguments)]
    fn read(
        &self,
        py: Python<'_>,
        topic: &str,
        queue: i32,
        first: i64,
        entries: &[u8],
        max_bytes: usize,
        inflated_max: usize,
    ) -> PyResult<(Batch, usize, Vec<(i64, u64, u64, String)>)> {
        let read = py.detach(|| self.0.read(topic.as_bytes(), queue, first, entries, max_bytes, inflated_max));
        let (batch, used, findings) = read.map_err(disk_error)?;
        let findings = findings.into_iter().map(|f| (f.queue_offset, f.address, f.size, f.why)).collect();
        Ok((Batch(batch), used, findings))
    }

    fn store_time(&self, py: Python<'_>, address: u64, size: usize) -> PyResult<Option<i64>> {
        py.detach(|| self.0.store_time(address, size)).map_err(disk_error)
    }

    fn identify(&self, py: Python<'_>, address: u64) -> PyResult<Option<RocketPlace>> {
        let found = py.detach(|| self.0.identify(address)).map_err(disk_error)?;
        Ok(found.map(|(topic, queue, offset)| RocketPlace { topic: text(py, &topic).to_string(), queue, offset }))
    }
}

/// Whose message lies at an address.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct RocketPlace {
    pub topic: String,
    pub queue: i32,
    pub offset: i64,
}

/// What a key file says of itself; `count` is one more than its entries.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct RocketIndexHeader {
    pub begin_ms: i64,
    pub end_ms: i64,
    pub begin_address: i64,
    pub end_address: i64,
    pub slots_used: i32,
    pub count: i32,
}

#[pyclass(frozen, module = "headrace._core")]
pub struct RocketIndex(Mutex<IndexFile>);

impl RocketIndex {
    fn put_all(&self, py: Python<'_>, keys: &Keys, start: usize) -> PyResult<usize> {
        let keys = keys.get(start..).unwrap_or(&[]);
        py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).put(keys)).map_err(disk_error)
    }
}

#[pymethods]
impl RocketIndex {
    #[new]
    #[pyo3(signature = (file, slots, entries, begin_ms=0))]
    fn new(py: Python<'_>, file: &DiskFile, slots: u32, entries: u32, begin_ms: i64) -> PyResult<RocketIndex> {
        let file = file.shared();
        let mut made = py.detach(|| IndexFile::open(file, slots, entries)).map_err(disk_error)?;
        if made.header.begin_ms == 0 {
            made.header.begin_ms = begin_ms;
        }
        Ok(RocketIndex(Mutex::new(made)))
    }

    /// Keys from number `start` on, until the file is full; how many.
    fn put(&self, py: Python<'_>, encoded: &RocketEncoded, start: usize) -> PyResult<usize> {
        self.put_all(py, &encoded.0.keys, start)
    }

    fn put_scanned(&self, py: Python<'_>, scan: &RocketScan, start: usize) -> PyResult<usize> {
        self.put_all(py, &scan.0.keys, start)
    }

    fn find(&self, py: Python<'_>, key: &str, max: usize) -> PyResult<Vec<i64>> {
        let found = py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).find(key.as_bytes(), max));
        found.map_err(disk_error)
    }

    fn header(&self) -> RocketIndexHeader {
        let header = self.0.lock().unwrap_or_else(PoisonError::into_inner).header;
        RocketIndexHeader {
            begin_ms: header.begin_ms,
            end_ms: header.end_ms,
            begin_address: header.begin_address,
            end_address: header.end_address,
            slots_used: header.slots_used,
            count: header.count,
        }
    }

    #[getter]
    fn full(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_full()
    }
}

/// The bytes that entries of a queue point to.
#[pyfunction]
fn rocketmq_bytes_of(entries: &[u8]) -> u64 {
    entries.chunks_exact(scan::ENTRY).map(|e| u64::from(u32::from_be_bytes([e[8], e[9], e[10], e[11]]))).sum()
}

/// The body CRC of a message, for those who make one by hand.
#[pyfunction]
fn rocketmq_crc(data: &[u8]) -> u32 {
    message::crc(data)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RocketEncoded>()?;
    module.add_class::<RocketIndex>()?;
    module.add_class::<RocketIndexHeader>()?;
    module.add_class::<RocketPlace>()?;
    module.add_class::<RocketReader>()?;
    module.add_class::<RocketScan>()?;
    module.add_function(wrap_pyfunction!(rocketmq_bytes_of, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_crc, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_encode, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_scan, module)?)
}
