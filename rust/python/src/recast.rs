//! Conversion between layouts, for Python.

use headrace_core::batch::HeaderCodec;
use headrace_core::recast::{self as core, Carry, Rules, Subject};
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::errors::bad_input;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Digest>()?;
    module.add_function(wrap_pyfunction!(recast, module)?)
}

#[pyfunction]
#[allow(clippy::too_many_arguments)] // the rules, one by one
fn recast(
    py: Python<'_>,
    batch: &Batch,
    to: &str,
    keys: bool,
    nulls: bool,
    subject: Option<&[u8]>,
    restore: bool,
    carry: &str,
    usual: &[u8],
    subject_max: usize,
    shift: i64,
    time: i64,
) -> PyResult<Batch> {
    let to = HeaderCodec::from_name(to).ok_or_else(|| bad_input(format!("header codec {to:?}")))?;
    let carry = match carry {
        "header" => Carry::Header,
        "key" => Carry::Key,
        "no" => Carry::No,
        other => return Err(bad_input(format!("carry {other:?}; known: header key no"))),
    };
    let subject = Subject::parse(subject);
    let rules = Rules { to, keys, nulls, subject, restore, carry, usual, subject_max, shift, time };
    let source = &batch.0;
    py.detach(|| core::recast(source, &rules)).map(Batch).map_err(|error| bad_input(error.to_string()))
}

/// One hash over the messages of many batches. Boxed: the hasher wants 32-byte alignment, Python gives objects 16.
#[pyclass(module = "headrace._core")]
#[derive(Default)]
pub struct Digest(Box<core::Digest>);

#[pymethods]
impl Digest {
    #[new]
    fn new() -> Digest {
        Digest::default()
    }

    fn add(&mut self, py: Python<'_>, batch: &Batch, parts: u8, shift: i64, time: i64, tick: i64) {
        let (digest, source) = (&mut self.0, &batch.0);
        py.detach(|| digest.add(source, parts, shift, time, tick));
    }

    #[getter]
    fn count(&self) -> u64 {
        self.0.count
    }

    #[getter]
    fn data_bytes(&self) -> u64 {
        self.0.bytes
    }

    #[getter]
    fn value(&self) -> u64 {
        self.0.value()
    }
}
