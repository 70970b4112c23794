//! Kafka's segments for Python: `KafkaReader`, `KafkaWriter`, `KafkaEncoded`, `KafkaProducers`, `KafkaSurvey`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use headrace_core::layouts::kafka::codec::Codec;
use headrace_core::layouts::kafka::encode::{self, EncodeError, EncodeRules};
use headrace_core::layouts::kafka::header::Header;
use headrace_core::layouts::kafka::index::IndexBuilder;
use headrace_core::layouts::kafka::producers::{self, Aborted, Producer};
use headrace_core::layouts::kafka::reader::{self, BatchPosition, Finding, Want};
use headrace_core::layouts::kafka::survey::{self, SurveyRules};
use headrace_core::layouts::kafka::writer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::Batch;
use crate::disk::Disk;
use crate::errors::{bad_input, disk_error, raise};

type FindingTuple = (&'static str, u64, u64, Option<i64>, Option<i64>, String);
type ProducerTuple = (i64, i16, i32, i64, i32, i64, i32, i64);
type AbortedTuple = (i64, i64, i64, i64);

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn codec_of(name: &str) -> PyResult<Codec> {
    Codec::from_name(name)
        .ok_or_else(|| bad_input(format!("compression {name:?}; known are none, gzip, snappy, lz4, zstd")))
}

fn encode_error(error: EncodeError) -> PyErr {
    match error {
        EncodeError::Codec(_) => raise("DiskFault", error.to_string()),
        _ => bad_input(error.to_string()),
    }
}

fn aborted_tuple(found: &Aborted) -> AbortedTuple {
    (found.producer_id, found.first, found.last, found.last_stable)
}

fn finding_tuple(finding: &Finding) -> FindingTuple {
    let (first, next) = finding.sequences.map_or((None, None), |(first, next)| (Some(first), Some(next)));
    (finding.kind, finding.offset, finding.len, first, next, finding.detail.clone())
}

#[pyclass(frozen, module = "headrace._core")]
pub struct KafkaEncoded(encode::Encoded);

#[pymethods]
impl KafkaEncoded {
    fn __len__(&self) -> usize {
        self.0.pieces.len()
    }

    #[getter]
    fn size(&self) -> usize {
        self.0.bytes.len()
    }

    #[getter]
    fn messages(&self) -> u64 {
        self.0.messages
    }

    #[getter]
    fn first(&self) -> i64 {
        self.0.first
    }

    #[getter]
    fn next(&self) -> i64 {
        self.0.next
    }

    #[getter]
    fn max_time_ms(&self) -> i64 {
        self.0.max_time()
    }

    /// One of the batches.
    fn piece(&self, at: usize) -> Option<KafkaPiece> {
        let header = &self.0.pieces.get(at)?.header;
        Some(KafkaPiece { size: header.size, first: header.base, last: header.last })
    }

    /// (messages, control records) of a run of batches.
    fn counts(&self, start: usize, count: usize) -> (u64, u64) {
        let pieces = self.0.pieces.iter().skip(start).take(count);
        pieces.fold((0, 0), |(messages, control), piece| match piece.header.is_control() {
            true => (messages, control + piece.messages),
            false => (messages + piece.messages, control),
        })
    }

    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.bytes)
    }
}

/// One batch among those that were encoded.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct KafkaPiece {
    pub size: usize,
    pub first: i64,
    pub last: i64,
}

/// A batch in a segment, and how many were passed on the way to it.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct KafkaFound {
    pub position: u64,
    pub first: i64,
    pub last: i64,
    pub passed: u64,
}

#[pyfunction]
#[allow(clippy::too_many_arguments)] // one per rule
fn kafka_encode(
    py: Python<'_>,
    batch: &Batch,
    first: i64,
    keep_positions: bool,
    now_ms: i64,
    magic: u8,
    codec: &str,
    level: Option<i32>,
    batch_bytes: usize,
    message_bytes_max: usize,
    leader_epoch: i32,
    append_time: bool,
) -> PyResult<KafkaEncoded> {
    let codec = codec_of(codec)?;
    if magic > 2 || (magic < 2 && codec == Codec::Zstd) {
        return Err(bad_input(format!("message format {magic} with {}: there is no such thing", codec.name())));
    }
    let rules = EncodeRules {
        first,
        keep_positions,
        now_ms,
        magic,
        codec,
        level,
        batch_bytes,
        message_bytes_max,
        leader_epoch,
        append_time,
    };
    py.detach(|| encode::encode(&batch.0, &rules)).map(KafkaEncoded).map_err(encode_error)
}

#[pyfunction]
fn kafka_frames(
    py: Python<'_>,
    data: &[u8],
    first: i64,
    keep_offsets: bool,
    leader_epoch: i32,
    inflated_max: usize,
) -> PyResult<KafkaEncoded> {
    py.detach(|| encode::from_frames(data, first, keep_offsets, leader_epoch, inflated_max))
        .map(KafkaEncoded)
        .map_err(encode_error)
}

#[pyclass(frozen, module = "headrace._core")]
pub struct KafkaProducers(Mutex<producers::Producers>);

#[pymethods]
impl KafkaProducers {
    #[new]
    fn new(states: Vec<ProducerTuple>) -> Self {
        let one = |s: ProducerTuple| {
            let producer = Producer {
                epoch: s.1,
                last_sequence: s.2,
                last_offset: s.3,
                offset_delta: s.4,
                time: s.5,
                coordinator_epoch: s.6,
                transaction_first: s.7,
            };
            (s.0, producer)
        };
        KafkaProducers(Mutex::new(producers::Producers { known: states.into_iter().map(one).collect() }))
    }

    fn states(&self) -> Vec<ProducerTuple> {
        let one = |(id, p): (&i64, &Producer)| {
            let (epoch, sequence) = (p.epoch, p.last_sequence);
            (*id, epoch, sequence, p.last_offset, p.offset_delta, p.time, p.coordinator_epoch, p.transaction_first)
        };
        hold(&self.0).known.iter().map(one).collect()
    }

    fn apply(&self, encoded: &KafkaEncoded, start: usize, count: usize) -> Vec<AbortedTuple> {
        let mut known = hold(&self.0);
        let pieces = encoded.0.pieces.iter().skip(start).take(count);
        pieces
            .filter_map(|piece| known.batch(&piece.header, encoded.0.piece(piece)))
            .map(|a| aborted_tuple(&a))
            .collect()
    }

    #[getter]
    fn first_open(&self) -> Option<i64> {
        hold(&self.0).first_open()
    }
}

#[pyclass(frozen, module = "headrace._core")]
pub struct KafkaWriter(Mutex<writer::SegmentWriter>);

#[pymethods]
impl KafkaWriter {
    #[new]
    #[allow(clippy::too_many_arguments)] // what a segment is when it is taken up
    fn new(
        py: Python<'_>,
        disk: &Disk,
        stem: &str,
        base: i64,
        interval: u64,
        size: u64,
        first_batch_time_ms: i64,
        index: &[u8],
        times: &[u8],
    ) -> PyResult<Self> {
        let index = IndexBuilder::resumed(base, interval, index, times);
        let disk = disk.inner();
        py.detach(|| writer::SegmentWriter::open(&disk, stem, size, first_batch_time_ms, index))
            .map(|writer| KafkaWriter(Mutex::new(writer)))
            .map_err(disk_error)
    }

    fn append(&self, py: Python<'_>, encoded: &KafkaEncoded, start: usize, bytes_max: u64) -> PyResult<usize> {
        py.detach(|| hold(&self.0).append(&encoded.0, start, bytes_max)).map_err(disk_error)
    }

    #[getter]
    fn size(&self) -> u64 {
        hold(&self.0).size
    }

    #[getter]
    fn first_batch_time_ms(&self) -> i64 {
        hold(&self.0).first_batch_time
    }

    #[getter]
    fn max_time_ms(&self) -> i64 {
        hold(&self.0).index.max_time
    }

    fn entries(&self) -> (usize, usize) {
        hold(&self.0).entries()
    }

    fn index_data<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        let writer = hold(&self.0);
        (PyBytes::new(py, &writer.index.index), PyBytes::new(py, &writer.index.times))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        // Not under the lock: whoever appends meanwhile need not wait for the disk.
        let file = hold(&self.0).log_file();
        py.detach(|| file.map_or(Ok(()), |file| file.sync_data())).map_err(disk_error)
    }

    fn release_files(&self) {
        hold(&self.0).release_files();
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| hold(&self.0).close()).map_err(disk_error)
    }
}

#[pyclass(frozen, module = "headrace._core")]
pub struct KafkaReader(reader::SegmentReader);

#[pymethods]
impl KafkaReader {
    #[new]
    #[pyo3(signature = (disk, path, base, ceiling, subject, inflated_max, index_path=None, times_path=None, index=None, times=None))]
    #[allow(clippy::too_many_arguments)] // the indexes come as files or as bytes
    fn new(
        py: Python<'_>,
        disk: &Disk,
        path: &str,
        base: i64,
        ceiling: Option<i64>,
        subject: &str,
        inflated_max: usize,
        index_path: Option<&str>,
        times_path: Option<&str>,
        index: Option<&[u8]>,
        times: Option<&[u8]>,
    ) -> PyResult<Self> {
        let disk = disk.inner();
        py.detach(|| {
            let mut made = reader::SegmentReader::new(&disk, path, base, ceiling, subject.as_bytes(), inflated_max)?;
            if let (Some(index_path), Some(times_path)) = (index_path, times_path) {
                made.map_indexes(&disk, index_path, times_path)?;
            }
            if let (Some(index), Some(times)) = (index, times) {
                made.set_indexes(index.to_vec(), times.to_vec());
            }
            Ok(KafkaReader(made))
        })
        .map_err(disk_error)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        py.detach(|| self.0.len()).map(|len| len as usize).map_err(disk_error)
    }

    /// (position, last offset before it, whether the index was believed)
    #[pyo3(signature = (offset, writer=None))]
    fn locate(&self, py: Python<'_>, offset: i64, writer: Option<&KafkaWriter>) -> PyResult<(u64, i64, bool)> {
        let found = py.detach(|| match writer {
            Some(writer) => self.0.locate(offset, Some(&hold(&writer.0).index.index)),
            None => self.0.locate(offset, None),
        });
        found.map(|(place, believed)| (place.position, place.last, believed)).map_err(disk_error)
    }

    /// The batch that holds an offset.
    fn find(&self, py: Python<'_>, offset: i64, position: u64, last: i64) -> PyResult<Option<KafkaFound>> {
        let found = py.detach(|| self.0.find(offset, BatchPosition { position, last })).map_err(disk_error)?;
        let one = |(place, header, passed): (BatchPosition, Header, u64)| KafkaFound {
            position: place.position,
            first: header.base,
            last: header.last,
            passed,
        };
        Ok(found.map(one))
    }

    #[allow(clippy::too_many_arguments, clippy::type_complexity)] // one call per batch of messages
    fn read(
        &self,
        py: Python<'_>,
        position: u64,
        last: i64,
        first: i64,
        next: i64,
        max_msgs: usize,
        max_bytes: usize,
        limit: u64,
        control: bool,
        aborted: Vec<(i64, i64, i64)>,
    ) -> PyResult<(Batch, u64, i64, bool, Vec<FindingTuple>)> {
        let want =
            Want { first, next, messages_max: max_msgs, bytes_max: max_bytes, control, aborted: &aborted, limit };
        let read = py.detach(|| self.0.read(BatchPosition { position, last }, &want)).map_err(disk_error)?;
        let findings = read.findings.iter().map(finding_tuple).collect();
        Ok((Batch(read.batch), read.place.position, read.place.last, read.ended, findings))
    }

    #[allow(clippy::type_complexity)]
    fn read_frames<'py>(
        &self,
        py: Python<'py>,
        position: u64,
        last: i64,
        first: i64,
        max_bytes: usize,
        limit: u64,
    ) -> PyResult<(Bound<'py, PyBytes>, i64, i64, u64, i64, u64, i64)> {
        let place = BatchPosition { position, last };
        let (run, place) = py.detach(|| self.0.read_raw(place, first, max_bytes, limit)).map_err(disk_error)?;
        let data = PyBytes::new(py, &run.bytes);
        Ok((data, run.first, run.next, run.count, run.max_time, place.position, place.last))
    }

    #[pyo3(signature = (time_ms, first, limit, writer=None))]
    fn find_time(
        &self,
        py: Python<'_>,
        time_ms: i64,
        first: i64,
        limit: u64,
        writer: Option<&KafkaWriter>,
    ) -> PyResult<Option<i64>> {
        py.detach(|| match writer {
            Some(writer) => {
                let (index, times) = {
                    let held = hold(&writer.0);
                    (held.index.index.clone(), held.index.times.clone())
                };
                self.0.find_time(time_ms, first, Some((&index, &times)), limit)
            }
            None => self.0.find_time(time_ms, first, None, limit),
        })
        .map_err(disk_error)
    }
}

#[pyclass(frozen, module = "headrace._core")]
pub struct KafkaSurvey(survey::Survey);

#[pymethods]
impl KafkaSurvey {
    #[getter]
    fn file_bytes(&self) -> u64 {
        self.0.file_len
    }

    #[getter]
    fn batches(&self) -> u64 {
        self.0.batches
    }

    #[getter]
    fn messages(&self) -> u64 {
        self.0.messages
    }

    #[getter]
    fn control_records(&self) -> u64 {
        self.0.control
    }

    #[getter]
    fn sound_bytes(&self) -> u64 {
        self.0.sound_bytes
    }

    #[getter]
    fn first(&self) -> Option<i64> {
        self.0.first
    }

    #[getter]
    fn last(&self) -> i64 {
        self.0.last
    }

    #[getter]
    fn first_time_ns(&self) -> Option<i64> {
        self.0.first_time
    }

    #[getter]
    fn max_time_ms(&self) -> i64 {
        self.0.index.as_ref().map_or(-1, |index| index.max_time)
    }

    #[getter]
    fn first_batch_time_ms(&self) -> i64 {
        self.0.first_batch_time
    }

    /// Formats and codecs that occur.
    fn kinds(&self) -> (Vec<u8>, Vec<&'static str>) {
        let formats = (0..3).filter(|magic| self.0.formats & (1 << magic) != 0).collect();
        let codecs = Codec::ALL.into_iter().filter(|codec| self.0.codecs & (1 << codec.id()) != 0);
        (formats, codecs.map(Codec::name).collect())
    }

    fn index_data<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        let empty = Vec::new();
        let (index, times) = self.0.index.as_ref().map_or((&empty, &empty), |index| (&index.index, &index.times));
        (PyBytes::new(py, index), PyBytes::new(py, times))
    }

    /// [(from, to, why, first claimed, next claimed, nothing sound follows, only zeros)]
    #[allow(clippy::type_complexity)]
    fn bad(&self) -> Vec<(u64, u64, &'static str, Option<i64>, Option<i64>, bool, bool)> {
        let one = |bad: &headrace_core::layouts::kafka::walk::Bad| {
            let (first, next) = bad.claim.map_or((None, None), |(first, next)| (Some(first), Some(next)));
            (bad.from, bad.to, bad.why, first, next, bad.tail, bad.zeros)
        };
        self.0.bad.iter().map(one).collect()
    }

    /// [(position, right bytes, what was wrong)]
    fn repairs<'py>(&self, py: Python<'py>) -> Vec<(u64, Bound<'py, PyBytes>, &'static str)> {
        self.0.repairs.iter().map(|(at, bytes, what)| (*at, PyBytes::new(py, bytes), *what)).collect()
    }

    /// [(position, size, first, next, why)] of batches whose messages do not decode
    fn malformed(&self) -> Vec<(u64, usize, i64, i64, String)> {
        self.0.malformed.clone()
    }

    fn epochs(&self) -> Vec<(i32, i64)> {
        self.0.epochs.clone()
    }

    fn aborted(&self) -> Vec<AbortedTuple> {
        self.0.aborted.iter().map(aborted_tuple).collect()
    }
}

#[pyfunction]
#[pyo3(signature = (disk, path, base, ceiling, interval, producers, start=0, last=None, deep=false, inflated_max=134_217_728, anchors=None, limit=None))]
#[allow(clippy::too_many_arguments)] // one per rule
fn kafka_survey(
    py: Python<'_>,
    disk: &Disk,
    path: &str,
    base: i64,
    ceiling: Option<i64>,
    interval: u64,
    producers: &KafkaProducers,
    start: u64,
    last: Option<i64>,
    deep: bool,
    inflated_max: usize,
    anchors: Option<&[u8]>,
    limit: Option<u64>,
) -> PyResult<KafkaSurvey> {
    let (last, anchors) = (last.unwrap_or(base - 1), anchors.unwrap_or(&[]).to_vec());
    let limit = limit.unwrap_or(u64::MAX);
    let rules = SurveyRules { base, ceiling, interval, from: start, last, deep, inflated_max, anchors, limit };
    let disk = disk.inner();
    py.detach(|| survey::survey(&disk, path, &rules, &mut hold(&producers.0))).map(KafkaSurvey).map_err(disk_error)
}

#[pyfunction]
fn kafka_crc32c(data: &[u8]) -> u32 {
    headrace_core::layouts::kafka::header::crc32c_of(data)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<KafkaEncoded>()?;
    module.add_class::<KafkaFound>()?;
    module.add_class::<KafkaPiece>()?;
    module.add_class::<KafkaProducers>()?;
    module.add_class::<KafkaReader>()?;
    module.add_class::<KafkaSurvey>()?;
    module.add_class::<KafkaWriter>()?;
    module.add_function(wrap_pyfunction!(kafka_crc32c, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_encode, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_frames, module)?)?;
    module.add_function(wrap_pyfunction!(kafka_survey, module)?)
}
