//! `natsarc_encode`, `natsarc_decode`: the message entries of a NATSARC1 snapshot.

use headrace_core::layouts::jetstream::archive::{self, Stop};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::Batch;

/// The bytes of all message entries.
#[pyfunction]
fn natsarc_encode<'py>(py: Python<'py>, batch: &Batch) -> Bound<'py, PyBytes> {
    let bytes = py.detach(|| archive::encode(&batch.0));
    PyBytes::new(py, &bytes)
}

/// (batch, next offset, ended, problem or None).
#[pyfunction]
fn natsarc_decode(py: Python<'_>, data: &[u8], offset: usize, max_msgs: usize) -> (Batch, usize, bool, Option<String>) {
    let (batch, next, stop) = py.detach(|| archive::decode(data, offset, max_msgs));
    let ended = stop == Stop::End;
    let problem = if let Stop::Malformed(problem) = stop { Some(problem) } else { None };
    (Batch(batch), next, ended, problem)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(natsarc_encode, module)?)?;
    module.add_function(wrap_pyfunction!(natsarc_decode, module)?)
}
