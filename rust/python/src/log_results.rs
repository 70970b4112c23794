//! What the calls of `BlockLog` return, by name.

use headrace_core::layouts::jetstream::block::Block;
use headrace_core::layouts::jetstream::query::Found;
use headrace_core::layouts::jetstream::scan::Finding;
use headrace_core::layouts::jetstream::{log, open};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::{record_of, text};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<OpenedBlock>()?;
    module.add_class::<Appended>()?;
    module.add_class::<Removed>()?;
    module.add_class::<Tombstones>()?;
    module.add_class::<BlockLogState>()?;
    module.add_class::<BlockSummary>()?;
    module.add_class::<BlockFinding>()
}

/// A block as `open_by_scan` found it.
#[pyclass(frozen, module = "headrace._core")]
pub struct OpenedBlock(pub open::OpenedBlock);

#[pymethods]
impl OpenedBlock {
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    #[getter]
    fn file_bytes(&self) -> u64 {
        self.0.file_bytes
    }

    #[getter]
    fn plain_bytes(&self) -> u64 {
        self.0.plain_bytes
    }

    /// Bytes behind its last sound record.
    #[getter]
    fn unsound_tail(&self) -> u64 {
        self.0.unsound_tail
    }

    #[getter]
    fn last_hash<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.last_hash)
    }

    /// How many bytes its guard covers, whether or not they are there; 0 without a whole guard.
    #[getter]
    fn guard_covers(&self) -> u64 {
        self.0.guard_covers
    }
}

/// What one `append` wrote, and what the limit per subject took for it.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct Appended {
    pub stored: usize,
    pub first: u64,
    pub next: u64,
    pub bytes: u64,
    pub mark: u64,
    pub trimmed: u64,
    pub trimmed_bytes: u64,
}

/// What one `remove` took out. `first` is its first sequence, 0 if there was none.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct Removed {
    pub messages: usize,
    pub bytes: u64,
    pub first: u64,
    pub mark: u64,
}

/// The tombstones in a block: those for messages of blocks that stay, and whether there are any at all.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct Tombstones {
    pub needed: Vec<(u64, i64)>,
    pub any: bool,
}

#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct BlockLogState {
    pub messages: u64,
    pub bytes: u64,
    pub first_seq: u64,
    pub first_time_ns: Option<i64>,
    pub last_seq: u64,
    pub last_time_ns: i64,
    pub subjects: u64,
    pub deleted: u64,
    pub file_bytes: u64,
}

/// One block of a log.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct BlockSummary {
    pub number: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    pub messages: u64,
    pub bytes: u64,
    pub file_bytes: u64,
    pub first_time_ns: i64,
    pub last_time_ns: i64,
    pub deleted: u64,
}

impl From<&Block> for BlockSummary {
    fn from(block: &Block) -> BlockSummary {
        BlockSummary {
            number: block.number,
            first_seq: block.first,
            last_seq: block.last,
            messages: block.msgs,
            bytes: block.bytes,
            file_bytes: block.file_len,
            first_time_ns: block.first_time,
            last_time_ns: block.last_time,
            deleted: block.deleted.len() as u64,
        }
    }
}

/// Bytes of a block that are not sound.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct BlockFinding {
    pub block: u64,
    pub kind: &'static str,
    pub offset: u64,
    pub length: u64,
    pub first_seq: Option<u64>,
    pub next_seq: Option<u64>,
    pub detail: String,
}

impl From<&(u64, Finding)> for BlockFinding {
    fn from((block, finding): &(u64, Finding)) -> BlockFinding {
        BlockFinding {
            block: *block,
            kind: finding.kind.name(),
            offset: finding.offset,
            length: finding.len,
            first_seq: finding.sequences.map(|(first, _)| first),
            next_seq: finding.sequences.map(|(_, next)| next),
            detail: finding.detail.clone(),
        }
    }
}

impl From<log::Appended> for Appended {
    fn from(done: log::Appended) -> Appended {
        Appended {
            stored: done.stored,
            first: done.first,
            next: done.next,
            bytes: done.bytes,
            mark: done.mark,
            trimmed: done.trimmed,
            trimmed_bytes: done.trimmed_bytes,
        }
    }
}

/// A message as a `Record`.
pub fn found_record<'py>(py: Python<'py>, found: Option<Found>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(found) = found else { return Ok(None) };
    let headers = found.headers.as_ref().map(|headers| PyBytes::new(py, headers));
    let data = PyBytes::new(py, &found.data);
    record_of(py, (found.sequence, found.time, text(py, &found.subject), data, headers)).map(Some)
}
