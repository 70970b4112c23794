//! Kernels of the NATS Streaming layout for Python: functions over open files, and the table of subscriptions.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use headrace_core::layouts::nats_streaming::crc::Crc;
use headrace_core::layouts::nats_streaming::frames::{self, Reading};
use headrace_core::layouts::nats_streaming::mend::{self, Bounds};
use headrace_core::layouts::nats_streaming::read::{self, Slice, Sums, Wanted};
use headrace_core::layouts::nats_streaming::record::{self, EncodeError, EncodeRules};
use headrace_core::layouts::nats_streaming::seal::{Opener, Sealer};
use headrace_core::layouts::nats_streaming::{Finding, Part, VERSION, index, subs};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::Batch;
use crate::disk::DiskFile;
use crate::errors::{bad_input, disk_error};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<StanEntry>()?;
    module.add_class::<StanIndexSummary>()?;
    module.add_class::<StanMended>()?;
    module.add_class::<StanSub>()?;
    module.add_class::<StanSubs>()?;
    for function in [
        wrap_pyfunction!(stan_crc, module)?,
        wrap_pyfunction!(stan_encode, module)?,
        wrap_pyfunction!(stan_frame, module)?,
        wrap_pyfunction!(stan_frames, module)?,
        wrap_pyfunction!(stan_index, module)?,
        wrap_pyfunction!(stan_mend, module)?,
        wrap_pyfunction!(stan_read, module)?,
        wrap_pyfunction!(stan_seq_from_time, module)?,
        wrap_pyfunction!(stan_front, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}

/// (is it the index, kind, offset, length, first lost sequence, next sequence, detail)
type FindingTuple = (bool, &'static str, u64, u64, Option<u64>, Option<u64>, String);

fn finding(found: Finding) -> FindingTuple {
    let (first, next) = found.sequences.map_or((None, None), |(first, next)| (Some(first), Some(next)));
    (found.part == Part::Index, found.kind, found.offset, found.len, first, next, found.detail)
}

fn key_of(key: &[u8]) -> PyResult<[u8; 32]> {
    key.try_into().map_err(|_| bad_input("a channel's key has 32 bytes"))
}

#[pyfunction]
fn stan_crc(poly: u32, data: &[u8]) -> u32 {
    Crc::new(poly).of(data)
}

type Encoded<'py> =
    (Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize, u64, u64, i64, i64, u64, Option<Bound<'py, PyBytes>>);

/// (records, index entries, taken, first, next, first time, last time, counted bytes, next nonce)
#[pyfunction]
#[allow(clippy::too_many_arguments)] // a call per batch, each value once
fn stan_encode<'py>(
    py: Python<'py>,
    batch: &Batch,
    start: usize,
    channel: &str,
    next: u64,
    keep_positions: bool,
    now_ns: i64,
    not_before_ns: i64,
    offset: u64,
    msgs_left: u64,
    bytes_left: u64,
    lossy: bool,
    poly: u32,
    seal: Option<(Vec<u8>, u8, [u8; 12])>,
) -> PyResult<Encoded<'py>> {
    let rules = EncodeRules {
        channel: channel.as_bytes(),
        next,
        keep_positions,
        now: now_ns,
        not_before: not_before_ns,
        offset,
        msgs_left,
        bytes_left,
        lossy,
    };
    let mut sealer =
        seal.map(|(key, code, nonce)| key_of(&key).map(|key| Sealer::new(&key, code, nonce))).transpose()?;
    let made = py
        .detach(|| record::encode(&batch.0, start, &rules, &Crc::new(poly), sealer.as_mut()))
        .map_err(|error: EncodeError| bad_input(error.to_string()))?;
    let nonce = sealer.map(|sealer| PyBytes::new(py, &sealer.nonce()));
    let (data, index) = (PyBytes::new(py, &made.data), PyBytes::new(py, &made.index));
    Ok((data, index, made.taken, made.first, made.next, made.first_time, made.last_time, made.counted, nonce))
}

/// An entry of an index, with the earliest or latest time of the slice, which need not be its own.
#[pyclass(frozen, get_all, module = "headrace._core")]
#[derive(Clone, Copy)]
pub struct StanEntry {
    pub sequence: u64,
    pub offset: u64,
    pub time_ns: i64,
    pub size: u32,
}

fn entry(entry: &index::Entry, time_ns: i64) -> StanEntry {
    StanEntry { sequence: entry.sequence, offset: entry.offset, time_ns, size: entry.size }
}

/// What an index file says.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct StanIndexSummary {
    pub count: u64,
    pub first: StanEntry,
    pub last: StanEntry,
    pub counted_bytes: u64,
    pub sound_bytes: u64,
    pub problem: Option<String>,
    pub padded: bool,
}

#[pyfunction]
fn stan_index(py: Python<'_>, file: &DiskFile, poly: u32, strict: bool) -> PyResult<StanIndexSummary> {
    let (file, crc) = (file.inner(), Crc::new(poly));
    let found = py.detach(|| index::summarize(file, &crc, strict)).map_err(disk_error)?;
    let (first, last) = (entry(&found.first, found.times.0), entry(&found.last, found.times.1));
    Ok(StanIndexSummary {
        count: found.count,
        first,
        last,
        counted_bytes: found.counted,
        sound_bytes: found.sound_bytes,
        problem: found.problem,
        padded: found.padded,
    })
}

/// (messages, everything below this was looked at, findings, messages that the key does not open)
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn stan_read(
    py: Python<'_>,
    data: &DiskFile,
    index: &DiskFile,
    count: u64,
    slice_first: u64,
    first: u64,
    below: u64,
    max_msgs: usize,
    max_bytes: u64,
    poly: u32,
    strict: bool,
    key: Option<Vec<u8>>,
) -> PyResult<(Batch, u64, Vec<FindingTuple>, u64)> {
    let opener = key.map(|key| key_of(&key).map(|key| Opener::new(&key))).transpose()?;
    let slice = Slice { data: data.inner(), index: index.inner(), count, first: slice_first };
    let want = Wanted { first, below, msgs: max_msgs, bytes: max_bytes };
    let crc = Crc::new(poly);
    let found =
        py.detach(|| read::read(&slice, &want, &Sums { crc: &crc, strict }, opener.as_ref())).map_err(disk_error)?;
    let findings = found.findings.into_iter().map(finding).collect();
    Ok((Batch(found.batch), found.next, findings, found.not_opened))
}

#[pyfunction]
fn stan_seq_from_time(py: Python<'_>, index: &DiskFile, count: u64, time_ns: i64) -> PyResult<Option<u64>> {
    let index = index.inner();
    py.detach(|| index::first_not_before(index, count, time_ns)).map_err(disk_error)
}

/// How far the front moves: (next first sequence, messages that go, their counted bytes). Goes on
/// while more than `msgs` messages or `bytes` counted bytes are in excess, or entries are older than `before_ns` or
/// below `below`, but not to `keep_from`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn stan_front(
    py: Python<'_>,
    index: &DiskFile,
    count: u64,
    slice_first: u64,
    first: u64,
    excess_msgs: u64,
    excess_bytes: u64,
    before_ns: i64,
    below: u64,
    keep_from: u64,
    poly: u32,
) -> PyResult<(u64, u64, u64)> {
    let file = index.inner();
    let limits = index::Excess { msgs: excess_msgs, bytes: excess_bytes, before: before_ns, below, keep_from };
    py.detach(|| index::front(file, count, slice_first, first, &limits, &Crc::new(poly))).map_err(disk_error)
}

/// A slice whose index was made anew from its data: `index` is the whole file.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct StanMended {
    pub index: Py<PyBytes>,
    pub count: u64,
    pub counted_bytes: u64,
    pub taken_in: u64,
    pub highest_seq: u64,
    pub first: Option<StanEntry>,
    pub last: Option<StanEntry>,
    pub findings: Vec<FindingTuple>,
    pub sound_end: u64,
    pub differs: bool,
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn stan_mend(
    py: Python<'_>,
    data: &DiskFile,
    index: Option<&DiskFile>,
    channel: &str,
    poly: u32,
    strict: bool,
    cut_at: Option<u64>,
    below: Option<u64>,
) -> PyResult<StanMended> {
    let (data, index) = (data.inner(), index.map(DiskFile::inner));
    let (found, image) = py
        .detach(|| {
            let crc = Crc::new(poly);
            let bounds = Bounds { cut_at: cut_at.unwrap_or(u64::MAX), below: below.unwrap_or(u64::MAX) };
            let found = mend::mend(data, index, channel.as_bytes(), &Sums { crc: &crc, strict }, &bounds)?;
            let mut image = Vec::with_capacity(4 + found.entries.len() * index::ENTRY);
            image.extend_from_slice(&VERSION.to_le_bytes());
            found.entries.iter().for_each(|entry| entry.encode(&mut image, &crc));
            Ok((found, image))
        })
        .map_err(disk_error)?;
    let times = found.times();
    let first = found.entries.first().map(|first| entry(first, times.0));
    let last = found.entries.last().map(|last| entry(last, times.1));
    Ok(StanMended {
        index: PyBytes::new(py, &image).unbind(),
        count: found.entries.len() as u64,
        counted_bytes: found.counted(),
        taken_in: found.taken_in,
        highest_seq: found.highest,
        first,
        last,
        sound_end: found.sound_end,
        differs: found.index_differs,
        findings: found.findings.into_iter().map(finding).collect(),
    })
}

#[pyfunction]
fn stan_frame<'py>(py: Python<'py>, kind: u8, payload: &[u8], poly: u32) -> PyResult<Bound<'py, PyBytes>> {
    if payload.len() > 0xFF_FFFF {
        return Err(bad_input(format!("record size too big: {} bytes, at most 16777215", payload.len())));
    }
    let mut out = Vec::with_capacity(payload.len() + 8);
    frames::encode(&mut out, kind, payload, &Crc::new(poly));
    Ok(PyBytes::new(py, &out))
}

/// (offset, end, detail, whether the file ends inside the record)
type ProblemTuple = (usize, usize, String, bool);

fn problems(walk: &frames::Walk) -> Vec<ProblemTuple> {
    walk.problems.iter().map(|p| (p.offset, p.end, p.detail.clone(), p.cut_short)).collect()
}

type Frames<'py> = (Vec<(usize, u8, Bound<'py, PyBytes>)>, Vec<ProblemTuple>, usize);

/// ([(offset, type, payload)], problems, end of the last sound record)
#[pyfunction]
fn stan_frames<'py>(
    py: Python<'py>,
    data: &[u8],
    types: u8,
    poly: u32,
    strict: bool,
    tolerant: bool,
) -> PyResult<Frames<'py>> {
    let crc = Crc::new(poly);
    let walk = frames::walk(data, &Reading { crc: &crc, strict, types, tolerant });
    let list = walk.frames.iter().map(|f| (f.offset, f.kind, PyBytes::new(py, &data[f.payload.clone()])));
    Ok((list.collect(), problems(&walk), walk.sound_end))
}

/// A subscription: its SubState as written last.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct StanSub {
    pub state: Py<PyBytes>,
    pub last_sent: u64,
}

/// The subscriptions of one channel.
#[pyclass(frozen, module = "headrace._core")]
pub struct StanSubs {
    table: Mutex<subs::Subs>,
    crc: Crc,
}

impl StanSubs {
    fn table(&self) -> MutexGuard<'_, subs::Subs> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl StanSubs {
    #[new]
    fn new(poly: u32) -> StanSubs {
        StanSubs { table: Mutex::default(), crc: Crc::new(poly) }
    }

    /// (table, problems, end of the last sound record)
    #[staticmethod]
    fn load(
        py: Python<'_>,
        data: &[u8],
        poly: u32,
        strict: bool,
        tolerant: bool,
    ) -> PyResult<(StanSubs, Vec<ProblemTuple>, usize)> {
        let crc = Crc::new(poly);
        let (table, found, end) = py.detach(|| {
            let walk = frames::walk(data, &Reading { crc: &crc, strict, types: subs::SENT, tolerant });
            let mut found = problems(&walk);
            let (table, bad) = subs::load(data, &walk.frames);
            let odd = bad.iter().map(|(frame, why)| (frame.offset, frame.payload.end, (*why).to_owned(), false));
            found.extend(odd);
            (table, found, walk.sound_end)
        });
        Ok((StanSubs { table: Mutex::new(table), crc }, found, end))
    }

    fn ids(&self) -> Vec<u64> {
        self.table().subs.keys().copied().collect()
    }

    fn get(&self, py: Python<'_>, id: u64) -> Option<StanSub> {
        let table = self.table();
        let sub = table.subs.get(&id)?;
        Some(StanSub { state: PyBytes::new(py, &sub.state).unbind(), last_sent: sub.last_sent })
    }

    fn pending(&self, id: u64) -> Vec<u64> {
        self.table().subs.get(&id).map_or_else(Vec::new, |sub| sub.pending.iter().copied().collect())
    }

    #[getter]
    fn highest_id(&self) -> u64 {
        self.table().max_id
    }

    #[getter]
    fn records(&self) -> u64 {
        self.table().records
    }

    #[getter]
    fn void_records(&self) -> u64 {
        self.table().deleted
    }

    #[getter]
    fn highest_seq(&self) -> u64 {
        self.table().highest
    }

    /// A state; returns its record.
    fn put<'py>(
        &self,
        py: Python<'py>,
        kind: u8,
        id: u64,
        state: &[u8],
        last_sent: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.table().put(kind, id, state, last_sent);
        let mut out = Vec::new();
        frames::encode(&mut out, kind, state, &self.crc);
        Ok(PyBytes::new(py, &out))
    }

    fn delete(&self, id: u64) {
        self.table().delete(id);
    }

    /// Deliveries; returns the records, without those that were pending already.
    fn sent<'py>(&self, py: Python<'py>, id: u64, sequences: Vec<u64>) -> Bound<'py, PyBytes> {
        let mut out = Vec::new();
        let fresh = self.table().sent(id, &sequences);
        subs::updates(&mut out, subs::SENT, id, &fresh, &self.crc);
        PyBytes::new(py, &out)
    }

    /// Acks; returns the records, without those that were not pending.
    fn acked<'py>(&self, py: Python<'py>, id: u64, sequences: Vec<u64>) -> Bound<'py, PyBytes> {
        let mut out = Vec::new();
        let removed = self.table().acked(id, &sequences);
        subs::updates(&mut out, subs::ACK, id, &removed, &self.crc);
        PyBytes::new(py, &out)
    }

    /// The records of a compacted file, with these states.
    fn compacted<'py>(&self, py: Python<'py>, states: BTreeMap<u64, Vec<u8>>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.table().compacted(&states, &self.crc))
    }
}
