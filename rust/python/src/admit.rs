//! `Plan`, `Window` and `Producers` for Python: the checks that a publish meets, the ids of the last minutes, and the
//! numbers that producers have done.

use headrace_core::admit::{self as core, Check};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::batch::Batch;
use crate::errors::bad_input;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Judged>()?;
    module.add_class::<Plan>()?;
    module.add_class::<Producers>()?;
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
    let mut numbered = |body: Vec<u8>| -> u32 {
        answers.push(body.into());
        answers.len() as u32 - 1
    };
    let body = |at: usize| -> PyResult<Vec<u8>> { check.get_item(at)?.extract() };
    let number = |at: usize| -> PyResult<u64> { check.get_item(at)?.extract() };
    Ok(match name.as_str() {
        "closed" => Check::Closed(numbered(body(1)?)),
        "size_max" => Check::SizeMax(number(1)? as usize, numbered(body(2)?)),
        "headers_max" => Check::HeadersMax(number(1)? as usize, numbered(body(2)?)),
        "alone" => {
            let names: Vec<Vec<u8>> = check.get_item(1)?.extract()?;
            Check::Alone(names.into_iter().map(Into::into).collect())
        }
        "forbidden" => {
            let pairs: Vec<(Vec<u8>, Vec<u8>)> = check.get_item(1)?.extract()?;
            Check::Forbidden(pairs.into_iter().map(|(name, body)| (name.into(), numbered(body))).collect())
        }
        "expected_stream" => Check::ExpectedStream(body(1)?.into(), numbered(body(2)?)),
        "expected_subject_sequence" => Check::ExpectedSubjectSequence {
            wrong: numbered(body(1)?),
            incomplete: numbered(body(2)?),
            stored_first: check.get_item(3)?.extract()?,
        },
        "expected_last_sequence" => Check::ExpectedLastSequence(numbered(body(1)?)),
        "duplicate" => Check::Duplicate,
        "producer" => Check::Producer,
        "expected_msg_id" => Check::ExpectedMsgId,
        "limits" => Check::StoreLimits { msgs: number(1)?, bytes: number(2)? },
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

/// What becomes of a producer's numbers; `first` and `last` of those that are fresh.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct Judged {
    pub verdict: &'static str,
    pub first: u64,
    pub last: u64,
}

#[pyclass(module = "headrace._core")]
pub struct Producers(pub core::Producers);

type Ranges = Vec<(u64, u64)>;
type Saved<'py> = (String, i64, u64, Bound<'py, PyBytes>);

#[pymethods]
impl Producers {
    #[new]
    fn new(producers_max: usize, bytes_max: usize) -> Producers {
        Producers(core::Producers::new(producers_max, bytes_max))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn is_open(&self) -> bool {
        self.0.open
    }

    fn open(&mut self) {
        self.0.open = true;
    }

    #[getter]
    fn changes(&self) -> u64 {
        self.0.changes
    }

    fn judge(&self, name: Option<&[u8]>, numbers: Option<&[u8]>) -> Judged {
        let refused = |verdict| Judged { verdict, first: 0, last: 0 };
        match self.0.judge(name, numbers) {
            core::Judged::Fresh(first, last) => Judged { verdict: "fresh", first, last },
            core::Judged::Done => refused("done"),
            core::Judged::Malformed => refused("malformed"),
            core::Judged::TooManyBytes => refused("bytes"),
            core::Judged::TooManyProducers => refused("producers"),
        }
    }

    fn stored(&mut self, sequence: u64) {
        self.0.stored(sequence);
    }

    #[getter]
    fn unsure_from(&self) -> Option<u64> {
        self.0.unsure_from()
    }

    fn forget(&mut self) {
        self.0.forget();
    }

    fn drop_closed(&mut self, before_ns: i64) -> usize {
        self.0.drop_closed(before_ns)
    }

    fn raise_floor(&mut self, name: &[u8], below: u64, now_ns: i64) {
        self.0.raise_floor(name, below, now_ns);
    }

    fn put(&mut self, name: &[u8], ranges: Ranges, used_ns: i64) {
        self.0.put(name, &ranges, used_ns);
    }

    fn remove(&mut self, name: &[u8]) -> bool {
        self.0.remove(name)
    }

    fn take(&mut self, batch: &Batch, above: u64) {
        self.0.take(&batch.0, above);
    }

    fn load(&mut self, name: &[u8], used_ns: i64, floor: u64, raw: &[u8]) -> PyResult<()> {
        self.0.load((name, used_ns, floor, raw)).map_err(|error| bad_input(format!("bitmaps of a producer: {error}")))
    }

    #[getter]
    fn size_bytes(&mut self) -> usize {
        self.0.bytes()
    }

    fn names(&self) -> Vec<String> {
        self.0.names().into_iter().map(text).collect()
    }

    fn shown(&self, name: &[u8], ranges_max: usize) -> Option<(i64, u64, u64, Ranges)> {
        let (used_ns, shown) = self.0.shown(name, ranges_max)?;
        Some((used_ns, shown.floor, shown.count, shown.ranges))
    }

    fn saved<'py>(&self, py: Python<'py>, name: &[u8]) -> Option<Saved<'py>> {
        self.0.saved(name).map(|saved| to_python(py, saved))
    }

    fn export<'py>(&mut self, py: Python<'py>) -> Vec<Saved<'py>> {
        self.0.export().into_iter().map(|saved| to_python(py, saved)).collect()
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn to_python<'py>(py: Python<'py>, (name, used_ns, floor, raw): core::producers::Saved<'_>) -> Saved<'py> {
    (text(name), used_ns, floor, PyBytes::new(py, &raw))
}
