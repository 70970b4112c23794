//! Requests for messages for Python: a run of them as it came, and those of one consumer that wait.

use headrace_core::exchange::runs;
use headrace_core::exchange::{self as core, Pull, PullLimits};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::bad_input;
use crate::exchange::Exchange;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PullRun>()?;
    module.add_class::<EndedPull>()?;
    module.add_class::<Waiting>()
}

#[pyclass(module = "headrace._core")]
pub struct PullRun(pub runs::PullRun);

#[pymethods]
impl PullRun {
    /// (payload, how many requests with it) in order.
    fn groups<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, usize)> {
        self.0.groups.iter().map(|(payload, first, next)| (PyBytes::new(py, payload), next - first)).collect()
    }

    fn replies<'py>(&self, py: Python<'py>, group: usize) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        if group >= self.0.groups.len() {
            return Err(bad_input(format!("group {group} of {}", self.0.groups.len())));
        }
        Ok(self.0.replies_of(group).map(|reply| PyBytes::new(py, reply)).collect())
    }
}

#[pyclass(module = "headrace._core")]
pub struct Waiting(pub core::Waiting);

/// A request for messages that has ended.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct EndedPull {
    pub reply: Py<PyBytes>,
    pub msgs_left: u64,
    pub bytes_left: u64,
    pub no_wait: bool,
    pub delivered: u64,
    pub tag: u64,
}

fn pulls(py: Python<'_>, list: Vec<Pull>) -> Vec<EndedPull> {
    let one = |pull: Pull| EndedPull {
        reply: PyBytes::new(py, &pull.reply).unbind(),
        msgs_left: pull.msgs_left,
        bytes_left: pull.bytes_left,
        no_wait: pull.limits.no_wait,
        delivered: pull.delivered,
        tag: pull.limits.tag,
    };
    list.into_iter().map(one).collect()
}

#[pymethods]
impl Waiting {
    #[new]
    fn new() -> Waiting {
        Waiting(core::Waiting::default())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[pyo3(signature = (reply, now, msgs, bytes=0, expires=0, heartbeat=0, no_wait=false, tag=0))]
    #[allow(clippy::too_many_arguments)] // the fields of a pull request
    fn add(
        &mut self,
        reply: &[u8],
        now: i64,
        msgs: u64,
        bytes: u64,
        expires: i64,
        heartbeat: i64,
        no_wait: bool,
        tag: u64,
    ) {
        self.0.add(reply, PullLimits { msgs, bytes, expires, heartbeat, no_wait, tag }, now);
    }

    fn wanted(&self) -> u64 {
        self.0.wanted()
    }

    fn next_deadline(&self) -> Option<i64> {
        self.0.next_deadline()
    }

    /// Takes out the requests whose time is over.
    fn expire(&mut self, py: Python<'_>, now: i64) -> Vec<EndedPull> {
        pulls(py, self.0.expire(now))
    }

    fn heartbeats<'py>(&mut self, py: Python<'py>, now: i64) -> Vec<Bound<'py, PyBytes>> {
        self.0.heartbeats(now).iter().map(|reply| PyBytes::new(py, reply)).collect()
    }

    /// Takes out the requests that do not wait (any more: with a time limit they wait for a first message).
    fn take_no_wait(&mut self, py: Python<'_>) -> Vec<EndedPull> {
        pulls(py, self.0.take(|pull| pull.limits.no_wait && (pull.limits.expires == 0 || pull.delivered > 0)))
    }

    /// Takes out everything, or everything with one tag.
    #[pyo3(signature = (tag=None))]
    fn take_all(&mut self, py: Python<'_>, tag: Option<u64>) -> Vec<EndedPull> {
        pulls(py, self.0.take(|pull| tag.is_none_or(|tag| tag == pull.limits.tag)))
    }

    /// Takes out the requests of one client: those whose reply subject it listens to.
    fn take_of(&mut self, py: Python<'_>, exchange: &mut Exchange, account: u32, conn: u32) -> Vec<EndedPull> {
        pulls(py, self.0.take(|pull| exchange.0.listeners_of(account, &pull.reply).contains(&conn)))
    }

    /// Takes out the requests whose reply subject nobody listens to.
    fn drop_deserted(&mut self, exchange: &mut Exchange, account: u32) -> usize {
        self.0.take(|pull| !exchange.0.has_listener(account, &pull.reply)).len()
    }
}
