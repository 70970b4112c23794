//! Patterns against patterns, for Python.

use headrace_core::subjects::{self as core, STEPS_MAX};
use pyo3::prelude::*;

use crate::errors::bad_input;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PatternSet>()?;
    module.add_function(wrap_pyfunction!(first_overlapping_pair, module)?)
}

#[pyclass(module = "headrace._core")]
pub struct PatternSet(core::PatternSet);

#[pymethods]
impl PatternSet {
    #[new]
    fn new() -> PatternSet {
        PatternSet(core::PatternSet::default())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn add(&mut self, patterns: Vec<String>, label: u64) {
        patterns.iter().for_each(|pattern| self.0.insert(pattern.as_bytes(), label));
    }

    fn remove(&mut self, patterns: Vec<String>, label: u64) {
        patterns.iter().for_each(|pattern| _ = self.0.remove(pattern.as_bytes(), label));
    }

    #[pyo3(signature = (patterns, without=None))]
    fn first_overlap(&self, patterns: Vec<String>, without: Option<u64>) -> PyResult<Option<u64>> {
        let mut steps = STEPS_MAX;
        for pattern in &patterns {
            let found = self.0.first_overlap(pattern.as_bytes(), without, &mut steps);
            if let Some(label) = found.map_err(|error| bad_input(error.to_string()))? {
                return Ok(Some(label));
            }
        }
        Ok(None)
    }

    fn labels(&self, pattern: &str) -> PyResult<Vec<u64>> {
        let (mut labels, mut steps) = (std::collections::BTreeSet::new(), STEPS_MAX);
        let note = |label| {
            labels.insert(label);
            true
        };
        self.0.overlaps(pattern.as_bytes(), &mut steps, note).map_err(|error| bad_input(error.to_string()))?;
        Ok(labels.into_iter().collect())
    }
}

#[pyfunction]
fn first_overlapping_pair(py: Python<'_>, patterns: Vec<String>) -> PyResult<Option<(usize, usize)>> {
    let bytes: Vec<&[u8]> = patterns.iter().map(String::as_bytes).collect();
    py.detach(|| core::first_pair(&bytes)).map_err(|error| bad_input(error.to_string()))
}
