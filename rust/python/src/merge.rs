//! Several logs into one, for Python.

use headrace_core::merge::{self as core, MergeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::Batch;
use crate::errors::bad_input;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<MergeRound>()?;
    module.add_function(wrap_pyfunction!(merge_round, module)?)?;
    module.add_function(wrap_pyfunction!(interleave, module)?)?;
    module.add_function(wrap_pyfunction!(deinterleave, module)?)?;
    module.add_function(wrap_pyfunction!(unacked, module)?)
}

/// Origins are u32, little-endian.
#[pyclass(module = "headrace._core", frozen, get_all)]
pub struct MergeRound {
    origins: Py<PyBytes>,
    taken: Vec<usize>,
    keys: Vec<i64>,
}

fn refused(error: MergeError) -> PyErr {
    bad_input(error.to_string())
}

fn numbers(origins: &[u8]) -> Vec<u32> {
    origins.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn inner(batches: &[PyRef<'_, Batch>]) -> Vec<headrace_core::batch::Batch> {
    batches.iter().map(|batch| batch.0.clone()).collect()
}

#[pyfunction]
fn merge_round(
    py: Python<'_>,
    batches: Vec<PyRef<'_, Batch>>,
    keys: Vec<i64>,
    ended: Vec<bool>,
    by_time: bool,
) -> PyResult<MergeRound> {
    let batches = inner(&batches);
    let round = py.detach(|| core::next_round(&batches, &keys, &ended, by_time)).map_err(refused)?;
    let bytes: Vec<u8> = round.origins.iter().flat_map(|origin| origin.to_le_bytes()).collect();
    Ok(MergeRound { origins: PyBytes::new(py, &bytes).unbind(), taken: round.taken, keys: round.keys })
}

#[pyfunction]
fn interleave(py: Python<'_>, parts: Vec<PyRef<'_, Batch>>, origins: &[u8]) -> PyResult<Batch> {
    let (parts, origins) = (inner(&parts), numbers(origins));
    py.detach(|| core::interleave(&parts, &origins)).map(Batch).map_err(refused)
}

#[pyfunction]
fn deinterleave(py: Python<'_>, batch: &Batch, origins: &[u8], logs: usize) -> Vec<Batch> {
    let (source, origins) = (&batch.0, numbers(origins));
    py.detach(|| source.split(&origins, logs)).into_iter().map(Batch).collect()
}

#[pyfunction]
fn unacked(py: Python<'_>, origins: &[u8], acked: Vec<Option<usize>>) -> (Vec<u64>, Option<u64>) {
    let origins = numbers(origins);
    py.detach(|| core::unacked(&origins, &acked))
}
