//! `Plan` and `Window` for Python: the checks that a publish meets, and the ids of the last minutes.

use headrace_core::admit::{self as core, Check};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::errors::bad_input;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Plan>()?;
    module.add_class::<Window>()
}

/// An ordered list of checks: ("size_max", 1024, b"answer"), ("duplicate",), …
#[pyclass(frozen, module = "headrace._core")]
pub struct Plan(pub core::Plan);

#[pymethods]
impl Plan {
    #[new]
    fn new(checks: Vec<Bound<'_, PyTuple>>) -> PyResult<Plan> {
        let mut plan = core::Plan::default();
        for check in &checks {
            let made = one_check(check, &mut plan.answers)?;
            plan.checks.push(made);
        }
        Ok(Plan(plan))
    }
}

fn one_check(check: &Bound<'_, PyTuple>, answers: &mut Vec<Box<[u8]>>) -> PyResult<Check> {
    let name: String = check.get_item(0)?.extract()?;
    let mut answer = |at: usize| -> PyResult<u32> {
        let body: Vec<u8> = check.get_item(at)?.extract()?;
        answers.push(body.into());
        Ok(answers.len() as u32 - 1)
    };
    let number = |at: usize| -> PyResult<u64> { check.get_item(at)?.extract() };
    let bytes = |at: usize| -> PyResult<Box<[u8]>> { Ok(check.get_item(at)?.extract::<Vec<u8>>()?.into()) };
    Ok(match name.as_str() {
        "closed" => Check::Closed(answer(1)?),
        "size_max" => Check::SizeMax(number(1)? as usize, answer(2)?),
        "headers_max" => Check::HeadersMax(number(1)? as usize, answer(2)?),
        "python" => {
            let names: Vec<Vec<u8>> = check.get_item(1)?.extract()?;
            Check::Python(names.into_iter().map(Into::into).collect())
        }
        "forbidden" => Check::Forbidden(bytes(1)?, answer(2)?),
        "expected_stream" => Check::ExpectedStream(bytes(1)?, answer(2)?),
        "expected_subject_sequence" => Check::ExpectedSubjectSequence(answer(1)?),
        "expected_last_sequence" => Check::ExpectedLastSequence(answer(1)?),
        "duplicate" => Check::Duplicate,
        "expected_msg_id" => Check::ExpectedMsgId,
        "room" => Check::Room { msgs: number(1)?, bytes: number(2)? },
        other => return Err(bad_input(format!("no check {other:?}"))),
    })
}

#[pyclass(module = "headrace._core")]
pub struct Window(pub core::Window);

#[pymethods]
impl Window {
    #[new]
    fn new(span_ns: i64) -> Window {
        Window(core::Window::new(span_ns))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn set_span(&mut self, span_ns: i64) {
        self.0.set_span(span_ns);
    }

    fn find(&mut self, id: &[u8], now_ns: i64) -> Option<u64> {
        self.0.find(id, now_ns)
    }

    fn accepted(&mut self, id: &[u8], sequence: u64, time_ns: i64) {
        self.0.accepted(id, sequence, time_ns);
    }

    fn prune(&mut self, now_ns: i64) {
        self.0.prune(now_ns);
    }

    fn forget_from(&mut self, sequence: u64) {
        self.0.forget_from(sequence);
    }

    #[getter]
    fn last_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.last_id())
    }

    fn set_last_id(&mut self, id: &[u8]) {
        self.0.set_last_id(id);
    }

    fn export<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, u64, i64)> {
        self.0.export().map(|(id, sequence, time)| (PyBytes::new(py, id), sequence, time)).collect()
    }
}
