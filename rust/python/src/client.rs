//! The client's half of the NATS protocol, and Arrow buffers as batches, for Python.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use headrace_core::batch::HeaderCodec;
use headrace_core::client::intake::{self, Event};
use headrace_core::client::publish::{self, Rules};
use headrace_core::client::pump::{self, PumpError};
use headrace_core::from_columns::{self, Column, Columns, HeaderColumns, Headers};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::batch::Batch;
use crate::errors::{bad_input, raise};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Intake>()?;
    module.add_class::<PublishAcks>()?;
    module.add_function(wrap_pyfunction!(encode_publishes, module)?)?;
    module.add_function(wrap_pyfunction!(encode_acks, module)?)?;
    module.add_function(wrap_pyfunction!(batch_from_columns, module)?)
}

/// How far publishes are answered: all below `floor` are, `next` is the number of the next one.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct PublishAcks {
    pub floor: u64,
    pub next: u64,
    pub stored: u64,
    pub duplicates: u64,
    pub last_seq: u64,
}

#[pyclass(module = "headrace._core")]
#[derive(Default)]
pub struct Intake(intake::Intake);

/// The descriptor of a socket that Python holds open.
fn borrowed<'a>(fd: RawFd) -> PyResult<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(raise("ConnectionLost", "the connection is closed".into()));
    }
    // Safety: not -1 (above); the caller's socket object outlives the call that it makes.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn lost(error: PumpError) -> PyErr {
    raise("ConnectionLost", error.to_string())
}

fn seconds(timeout: f64) -> Duration {
    Duration::try_from_secs_f64(timeout.clamp(0.0, 86_400.0)).unwrap_or_default()
}

#[pymethods]
impl Intake {
    #[new]
    fn new() -> Intake {
        Intake::default()
    }

    fn feed(&mut self, bytes: &[u8]) -> PyResult<()> {
        self.0.feed(bytes).map_err(|error| raise("ConnectionLost", error.to_string()))
    }

    fn receive(
        &mut self,
        py: Python<'_>,
        fd: RawFd,
        messages: usize,
        bytes: usize,
        floor: u64,
        timeout: f64,
    ) -> PyResult<bool> {
        let (fd, intake) = (borrowed(fd)?, &mut self.0);
        py.detach(|| pump::receive(fd, intake, messages, bytes, floor, seconds(timeout))).map_err(lost)
    }

    fn ready(&self, messages: usize, bytes: usize, floor: u64) -> bool {
        self.0.ready(messages, bytes, floor)
    }

    fn send(&mut self, py: Python<'_>, fd: RawFd, bytes: &[u8], timeout: f64) -> PyResult<()> {
        let (fd, intake) = (borrowed(fd)?, &mut self.0);
        py.detach(|| pump::send_all(fd, intake, bytes, seconds(timeout))).map_err(lost)
    }

    /// (kind, sid, subject, reply, headers, payload); the text of INFO and -ERR is the payload.
    fn events<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
        let one = |event: Event| match event {
            Event::Message { sid, subject, reply, headers, payload } => {
                ("MSG", sid, bytes(&subject), bytes(&reply), bytes(&headers), bytes(&payload)).into_pyobject(py)
            }
            Event::Info(text) => ("INFO", 0, bytes(b""), bytes(b""), bytes(b""), bytes(&text)).into_pyobject(py),
            Event::Error(text) => ("ERR", 0, bytes(b""), bytes(b""), bytes(b""), bytes(&text)).into_pyobject(py),
            Event::Ping => ("PING", 0, bytes(b""), bytes(b""), bytes(b""), bytes(b"")).into_pyobject(py),
            Event::Pong => ("PONG", 0, bytes(b""), bytes(b""), bytes(b""), bytes(b"")).into_pyobject(py),
        };
        self.0.take_events().into_iter().map(one).collect()
    }

    fn batch(&mut self) -> Batch {
        Batch(self.0.take_batch())
    }

    #[getter]
    fn messages(&self) -> usize {
        self.0.messages()
    }

    #[getter]
    fn pending(&self) -> u64 {
        self.0.pending
    }

    #[pyo3(signature = (sid, keep_replies=false))]
    fn expect_data(&mut self, sid: Option<u64>, keep_replies: bool) {
        (self.0.data_sid, self.0.keep_replies) = (sid, keep_replies);
    }

    fn expect_acks(&mut self, sid: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.0.ack_sid, sid)
    }

    /// The stream that acks must name, in each spelling of JSON; none: any.
    fn expect_stream(&mut self, spellings: Vec<Vec<u8>>) {
        self.0.ack_streams = spellings;
    }

    fn open(&mut self, count: usize) -> u64 {
        self.0.acks.open(count)
    }

    fn acks(&self) -> PublishAcks {
        let acks = &self.0.acks;
        PublishAcks {
            floor: acks.floor(),
            next: acks.next(),
            stored: acks.stored,
            duplicates: acks.duplicates,
            last_seq: acks.last_sequence,
        }
    }

    fn reset(&mut self) {
        self.0.reset();
    }
}

#[pyfunction]
#[allow(clippy::too_many_arguments)] // the rules, one by one
fn encode_publishes(
    py: Python<'_>,
    batch: &Batch,
    inbox: &[u8],
    id_prefix: Option<&[u8]>,
    producer: Option<&[u8]>,
    stream: Option<&[u8]>,
    without: Vec<Vec<u8>>,
    first: u64,
    max_payload: usize,
) -> PyResult<Py<PyBytes>> {
    let without: Vec<&[u8]> = without.iter().map(Vec::as_slice).collect();
    let rules = Rules { inbox, id_prefix, producer, stream, without: &without, max_payload };
    let mut out = Vec::new();
    let source = &batch.0;
    py.detach(|| publish::encode(source, &rules, first, &mut out)).map_err(|error| bad_input(error.to_string()))?;
    Ok(PyBytes::new(py, &out).unbind())
}

#[pyfunction]
fn encode_acks(py: Python<'_>, batch: &Batch, word: &[u8], inbox: &[u8], first: u64) -> PyResult<Py<PyBytes>> {
    let (mut out, source) = (Vec::new(), &batch.0);
    py.detach(|| publish::encode_acks(source, word, inbox, first, &mut out))
        .map_err(|error| bad_input(error.to_string()))?;
    Ok(PyBytes::new(py, &out).unbind())
}

/// (validity or None, offsets, bytes, first row), each of the first three anything with the buffer protocol.
type Parts<'py> = (Option<PyBuffer<u8>>, PyBuffer<u8>, Option<PyBuffer<u8>>, usize);

struct Copied {
    validity: Option<Vec<u8>>,
    offsets: Vec<u8>,
    bytes: Vec<u8>,
    start: usize,
}

impl Copied {
    /// One copy each: Arrow's memory may not change under a batch, and Python gives no promise of that.
    fn new(py: Python<'_>, parts: Parts<'_>) -> PyResult<Copied> {
        let (validity, offsets, bytes, start) = parts;
        Ok(Copied {
            validity: validity.map(|buffer| buffer.to_vec(py)).transpose()?,
            offsets: offsets.to_vec(py)?,
            bytes: bytes.map(|buffer| buffer.to_vec(py)).transpose()?.unwrap_or_default(),
            start,
        })
    }

    fn column(&self, name: &'static str) -> Column<'_> {
        Column {
            name,
            validity: self.validity.as_deref(),
            offsets: &self.offsets,
            bytes: &self.bytes,
            start: self.start,
        }
    }
}

#[pyfunction]
#[pyo3(signature = (rows, subject, data, key, headers, positions, times, blocks=None))]
#[allow(clippy::too_many_arguments)] // one per column
fn batch_from_columns(
    py: Python<'_>,
    rows: usize,
    subject: Bound<'_, PyAny>,
    data: Option<Parts<'_>>,
    key: Option<Parts<'_>>,
    headers: Option<(Parts<'_>, Parts<'_>, Parts<'_>, Parts<'_>)>,
    positions: Option<PyBuffer<u8>>,
    times: Option<PyBuffer<u8>>,
    blocks: Option<(Parts<'_>, String)>,
) -> PyResult<Batch> {
    let copied = |parts: Option<Parts<'_>>| parts.map(|parts| Copied::new(py, parts)).transpose();
    let one_subject: Option<Vec<u8>> = subject.extract::<&[u8]>().ok().map(<[u8]>::to_vec);
    let subjects = if one_subject.is_none() { Some(Copied::new(py, subject.extract()?)?) } else { None };
    let (data, key) = (copied(data)?, copied(key)?);
    let headers = match headers {
        None => None,
        Some((maps, names, lists, values)) => {
            Some((Copied::new(py, maps)?, Copied::new(py, names)?, Copied::new(py, lists)?, Copied::new(py, values)?))
        }
    };
    let blocks = match blocks {
        None => None,
        Some((parts, name)) => {
            let codec = HeaderCodec::from_name(&name).ok_or_else(|| bad_input(format!("no header codec {name:?}")))?;
            Some((Copied::new(py, parts)?, codec))
        }
    };
    let numbers = |buffer: Option<PyBuffer<u8>>| buffer.map(|buffer| buffer.to_vec(py)).transpose();
    let (positions, times) = (numbers(positions)?, numbers(times)?);
    let columns = Columns {
        subject: subjects.as_ref().map(|parts| parts.column("subject")).ok_or(one_subject.as_deref().unwrap_or(b"")),
        data: data.as_ref().map(|parts| parts.column("data")),
        key: key.as_ref().map(|parts| parts.column("key")),
        headers: match (&headers, &blocks) {
            (_, Some((parts, codec))) => Headers::Blocks(parts.column("headers_raw"), *codec),
            (Some((maps, names, lists, values)), None) => Headers::Maps(Box::new(HeaderColumns {
                maps: maps.column("headers"),
                names: names.column("headers"),
                lists: lists.column("headers"),
                values: values.column("headers"),
            })),
            (None, None) => Headers::None,
        },
        positions: positions.as_deref(),
        times: times.as_deref(),
    };
    py.detach(|| from_columns::build(rows, &columns)).map(Batch).map_err(|error| bad_input(error.to_string()))
}
