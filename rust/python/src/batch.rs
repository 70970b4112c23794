//! `Batch` and `Buffer` for Python.

use std::ffi::{c_int, c_void};

use headrace_core::admit::value_of;
use headrace_core::batch::{self as core, BatchBuilder, Entry, HeaderCodec, Message, flags};
use headrace_core::columns;
use headrace_core::subjects::Filter;
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple, PyType};

use crate::errors::bad_input;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Buffer>()?;
    module.add_class::<Batch>()
}

/// Bytes made by the core, handed over without a copy.
#[pyclass(frozen, module = "headrace._core")]
pub struct Buffer(pub Vec<u8>);

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// CPython calls this with a valid view to fill; the bytes live as long as `slf`, which the view holds.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view was given"));
        }
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("the bytes are read-only"));
        }
        let bytes = &slf.get().0;
        let length = bytes.len() as isize;
        let start = bytes.as_ptr() as *mut c_void;
        // Safety: `view` is valid (above); `PyBuffer_FillInfo` takes its own reference to `slf`.
        let outcome = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) };
        if outcome == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

#[pyclass(frozen, module = "headrace._core")]
pub struct Batch(pub core::Batch);

/// `headrace.record.Record`, imported once.
fn record_class<'py>(py: Python<'py>) -> PyResult<&'py Bound<'py, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "headrace.record", "Record")
}

pub fn record<'py>(py: Python<'py>, batch: &core::Batch, entry: &Entry) -> PyResult<Bound<'py, PyAny>> {
    let optional = |span: core::Span| (!span.is_null()).then(|| PyBytes::new(py, batch.bytes(span)));
    let subject = text(py, batch.bytes(entry.subject));
    let fields = (
        entry.position,
        entry.time,
        subject,
        optional(entry.data),
        optional(entry.headers),
        optional(entry.key),
        entry.flags,
        batch.codec().name(),
    );
    record_of(py, fields)
}

/// A `Record` of its first fields, in their order.
pub fn record_of<'py>(py: Python<'py>, fields: impl pyo3::call::PyCallArgs<'py>) -> PyResult<Bound<'py, PyAny>> {
    record_class(py)?.call1(fields)
}

pub fn text<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    PyString::new(py, &String::from_utf8_lossy(bytes))
}

/// Text or bytes, borrowed from the Python object.
fn subject_bytes<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_str()?.as_bytes());
    }
    value.extract::<&[u8]>().map_err(|_| bad_input("a subject is text or bytes"))
}

fn optional_at<'py>(list: &Option<Bound<'py, PyAny>>, at: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
    match list {
        Some(list) => Ok(Some(list.get_item(at)?).filter(|item| !item.is_none())),
        None => Ok(None),
    }
}

/// Columns by their names, each as a tuple of buffers for Arrow.
pub fn column_buffers<'py>(py: Python<'py>, names: &[String], made: Vec<Vec<Vec<u8>>>) -> PyResult<Bound<'py, PyDict>> {
    let result = PyDict::new(py);
    for (name, buffers) in names.iter().zip(made) {
        let wrapped: PyResult<Vec<_>> = buffers.into_iter().map(|b| Py::new(py, Buffer(b))).collect();
        result.set_item(name, PyTuple::new(py, wrapped?)?)?;
    }
    Ok(result)
}

#[pymethods]
impl Batch {
    #[staticmethod]
    #[pyo3(signature = (subjects, data, headers=None, times=None, positions=None, keys=None, flags=None, header_codec="nats"))]
    #[allow(clippy::too_many_arguments)] // one per column
    fn build(
        subjects: Bound<'_, PyAny>,
        data: Bound<'_, PyAny>,
        headers: Option<Bound<'_, PyAny>>,
        times: Option<Vec<i64>>,
        positions: Option<Vec<u64>>,
        keys: Option<Bound<'_, PyAny>>,
        flags: Option<Vec<u8>>,
        header_codec: &str,
    ) -> PyResult<Batch> {
        let codec = HeaderCodec::from_name(header_codec)
            .ok_or_else(|| bad_input(format!("header codec {header_codec:?}; known: none nats kafka amqp rocketmq")))?;
        let count = data.len()?;
        let one_subject = subjects.is_instance_of::<PyString>() || subjects.is_instance_of::<PyBytes>();
        let lengths = [
            (!one_subject).then(|| subjects.len()).transpose()?,
            headers.as_ref().map(|l| l.len()).transpose()?,
            times.as_ref().map(Vec::len),
            positions.as_ref().map(Vec::len),
            keys.as_ref().map(|l| l.len()).transpose()?,
            flags.as_ref().map(Vec::len),
        ];
        if let Some(other) = lengths.into_iter().flatten().find(|length| *length != count) {
            return Err(bad_input(format!("columns of {count} and {other} messages; all must have the same length")));
        }
        let mut builder = BatchBuilder::with_capacity(count, count * 64, codec);
        for at in 0..count {
            let own_subject = if one_subject { None } else { Some(subjects.get_item(at)?) };
            let (item, key) = (data.get_item(at)?, optional_at(&keys, at)?);
            let header = optional_at(&headers, at)?;
            let bytes = |value: &Bound<'_, PyAny>| value.cast::<PyBytes>().is_ok();
            if !(item.is_none() || bytes(&item))
                || header.as_ref().is_some_and(|h| !bytes(h))
                || key.as_ref().is_some_and(|k| !bytes(k))
            {
                return Err(bad_input(format!("message {at}: data, headers and keys are bytes or None")));
            }
            let message = Message {
                position: positions.as_ref().map_or(0, |p| p[at]),
                time: times.as_ref().map_or(0, |t| t[at]),
                subject: subject_bytes(own_subject.as_ref().unwrap_or(&subjects))?,
                key: key.as_ref().map(|k| k.extract()).transpose()?,
                headers: header.as_ref().map(|h| h.extract()).transpose()?,
                data: if item.is_none() { None } else { Some(item.extract()?) },
                flags: flags.as_ref().map_or(0, |f| f[at]),
            };
            builder.push(message).map_err(|error| bad_input(error.to_string()))?;
        }
        Ok(Batch(builder.finish()))
    }

    #[staticmethod]
    fn concat(batches: Vec<PyRef<'_, Batch>>) -> PyResult<Batch> {
        let all: Vec<core::Batch> = batches.iter().map(|batch| batch.0.clone()).collect();
        core::Batch::concat(&all).map(Batch).map_err(|error| bad_input(error.to_string()))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let records: PyResult<Vec<_>> = self.0.entries().iter().map(|entry| record(py, &self.0, entry)).collect();
        PyList::new(py, records?)?.call_method0("__iter__")
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let count = self.0.len() as isize;
        let at = if index < 0 { index + count } else { index };
        if !(0..count).contains(&at) {
            return Err(PyIndexError::new_err(format!("message {index} of a batch of {count}")));
        }
        record(py, &self.0, &self.0.entries()[at as usize])
    }

    fn with_header<'py>(&self, py: Python<'py>, name: &[u8]) -> Vec<(u64, i64, Bound<'py, PyBytes>)> {
        // A header that is not there is an empty span.
        let found = |entry: &Entry| value_of(self.0.bytes(entry.headers), name);
        let entries = self.0.entries().iter();
        entries.filter_map(|e| found(e).map(|value| (e.position, e.time, PyBytes::new(py, value)))).collect()
    }

    fn slice(&self, start: usize, stop: usize) -> Batch {
        Batch(self.0.slice(start..stop.max(start)))
    }

    fn select(&self, mask: &[u8]) -> PyResult<Batch> {
        if mask.len() != self.0.len() {
            return Err(bad_input(format!("a mask of {} bytes for {} messages", mask.len(), self.0.len())));
        }
        Ok(Batch(self.0.select(mask)))
    }

    fn filter(
        &self,
        first: Option<u64>,
        next: Option<u64>,
        since_ns: Option<i64>,
        until_ns: Option<i64>,
        subjects: Vec<String>,
    ) -> Batch {
        let filters: Vec<Filter> = subjects.iter().map(|s| Filter::new(s.as_bytes())).collect();
        Batch(self.0.filtered(first, next, since_ns, until_ns, &filters))
    }

    fn without(&self, positions: Vec<u64>) -> Batch {
        Batch(self.0.without(&positions))
    }

    fn renumbered(&self, positions: &[u8]) -> PyResult<Batch> {
        if positions.len() != self.0.len() * 8 {
            return Err(bad_input(format!("{} bytes of positions for {} messages", positions.len(), self.0.len())));
        }
        let words = positions.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        Ok(Batch(self.0.renumbered(words)))
    }

    fn subjects<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.0.subjects().into_iter().map(|subject| PyBytes::new(py, subject)).collect()
    }

    fn content_hashes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let made = py.detach(|| self.0.content_hashes().into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
        PyBytes::new(py, &made)
    }

    fn positions(&self) -> Vec<u64> {
        self.0.entries().iter().map(|entry| entry.position).collect()
    }

    fn position_runs(&self, py: Python<'_>) -> Vec<(u64, u64)> {
        py.detach(|| self.0.position_runs())
    }

    fn in_time_order(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.in_time_order())
    }

    fn times(&self) -> Vec<i64> {
        self.0.entries().iter().map(|entry| entry.time).collect()
    }

    fn arrow_columns<'py>(&self, py: Python<'py>, names: Vec<String>) -> PyResult<Bound<'py, PyDict>> {
        let made = py.detach(|| columns::of_batch(&self.0, &names)).map_err(|error| bad_input(error.to_string()))?;
        column_buffers(py, &names, made)
    }

    #[getter]
    fn first_position(&self) -> u64 {
        self.0.entries().first().map_or(0, |entry| entry.position)
    }

    #[getter]
    fn last_position(&self) -> u64 {
        self.0.entries().last().map_or(0, |entry| entry.position)
    }

    #[getter]
    fn payload_bytes(&self) -> u64 {
        self.0.payload_bytes()
    }

    #[getter]
    fn header_codec(&self) -> &'static str {
        self.0.codec().name()
    }

    fn __repr__(&self) -> String {
        let entries = self.0.entries();
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return "<Batch: empty>".to_owned();
        };
        let plural = if entries.len() == 1 { "" } else { "s" };
        let placeholders = match entries.iter().filter(|e| e.flags & flags::PLACEHOLDER != 0).count() {
            0 => String::new(),
            count => format!(", {count} of them placeholders"),
        };
        // Without positions (not stored yet) all of them are 0.
        let positions = match last.position {
            0 => String::new(),
            last => format!(", positions {}..{last}", first.position),
        };
        format!("<Batch: {} message{plural}{positions}, {} bytes{placeholders}>", entries.len(), self.0.payload_bytes())
    }
}
