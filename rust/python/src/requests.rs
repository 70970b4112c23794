//! `Requests` for Python: requests with a length in front, answers in their order.

use headrace_core::front_end::{Fed, FrontEnd};
use headrace_core::requests::{self, RequestLimits};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// 0: fine, 1: a decision is wanted, 2: send what is left and close, 3: read nothing more for now.
pub fn fed_number(fed: Fed) -> u8 {
    match fed {
        Fed::Fine => 0,
        Fed::Asking => 1,
        Fed::Close => 2,
        Fed::Full => 3,
    }
}

#[pyclass(module = "headrace._core")]
pub struct Requests(pub requests::Requests);

#[pymethods]
impl Requests {
    #[new]
    fn new(stranger_bytes_max: usize, request_bytes_max: usize, in_flight_max: usize, pending_max: usize) -> Requests {
        let limits = RequestLimits { stranger_bytes_max, request_bytes_max, in_flight_max, pending_max };
        Requests(requests::Requests::new(limits))
    }

    fn open(&mut self, known: bool) -> u32 {
        self.0.open(known)
    }

    fn accept(&mut self, conn: u32) {
        self.0.accept(conn);
    }

    fn close(&mut self, conn: u32) {
        self.0.close(conn);
    }

    fn feed(&mut self, conn: u32, data: &[u8]) -> u8 {
        fed_number(self.0.feed(conn, data))
    }

    fn take(&mut self, bytes_max: usize) -> Vec<Request> {
        self.0.take(bytes_max).into_iter().map(Request).collect()
    }

    #[getter]
    fn has_arrived(&self) -> bool {
        self.0.has_arrived()
    }

    #[pyo3(signature = (conn, number, answer=None))]
    fn answer(&mut self, conn: u32, number: u64, answer: Option<&[u8]>) -> u8 {
        fed_number(self.0.answer(conn, number, answer))
    }
}

#[pyclass(module = "headrace._core", frozen)]
pub struct Request(requests::Request);

#[pymethods]
impl Request {
    #[getter]
    fn conn(&self) -> u32 {
        self.0.slot
    }

    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.body)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Requests>()?;
    module.add_class::<Request>()
}
