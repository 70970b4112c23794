//! Group commit for Python: `GroupCommit` (the rule, with callables), `JournalWriter`, and `Committer`, the thread that
//! commits logs and journals without the interpreter.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use headrace_core::commit::committer::{self, Finished};
use headrace_core::commit::group::{self, Reached, RoundError};
use headrace_core::commit::{CommitError, Commits, journal};
use pyo3::prelude::*;

use crate::disk::DiskFile;
use crate::errors::{bad_input, disk_error, raise};

const RECORD_BYTES_MAX: usize = 16 << 20;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("JOURNAL_RECORD_BYTES_MAX", RECORD_BYTES_MAX)?;
    module.add_class::<CommitHandle>()?;
    module.add_class::<GroupCommit>()?;
    module.add_class::<JournalWriter>()?;
    module.add_class::<Committed>()?;
    module.add_class::<Committer>()
}

fn commit_error(error: CommitError) -> PyErr {
    match error {
        CommitError::Disk(error) => disk_error(error),
        CommitError::Poisoned(text) => raise("StorePoisoned", text),
        CommitError::Closed(text) => raise("StoreClosed", text),
    }
}

/// What a `Committer` commits: a log's or a journal's files. Nothing can be done with it but handing it over.
#[pyclass(frozen, module = "headrace._core")]
pub struct CommitHandle(Arc<dyn Commits>);

impl CommitHandle {
    pub fn new(target: Arc<dyn Commits>) -> CommitHandle {
        CommitHandle(target)
    }
}

#[pymethods]
impl CommitHandle {
    /// On the caller's thread.
    fn commit(&self, py: Python<'_>, mark: u64) -> PyResult<()> {
        py.detach(|| self.0.commit_to(mark)).map_err(commit_error)
    }
}

/// The rule of group commit around a Python function that syncs.
#[pyclass(frozen, module = "headrace._core")]
pub struct GroupCommit(group::GroupCommit);

#[pymethods]
impl GroupCommit {
    #[new]
    fn new() -> GroupCommit {
        GroupCommit(group::GroupCommit::default())
    }

    fn commit(&self, py: Python<'_>, mark: u64, round: Py<PyAny>) -> PyResult<()> {
        let failure: Mutex<Option<PyErr>> = Mutex::new(None);
        let outcome = py.detach(|| {
            self.0.commit(mark, || match Python::attach(|py| round.call0(py)?.extract::<u64>(py)) {
                Ok(mark) => Ok(Reached { mark, last: mark }),
                Err(error) => {
                    let reason = Python::attach(|py| error.value(py).to_string());
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    Err(RoundError::Sync(reason))
                }
            })
        });
        // Who synced gets the error as it was raised, the others hear that it failed.
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => outcome.map_err(commit_error),
        }
    }

    #[getter]
    fn durable(&self) -> u64 {
        self.0.durable().mark
    }

    #[getter]
    fn poison(&self) -> Option<String> {
        self.0.poison()
    }

    fn raise_durable(&self, mark: u64) {
        let durable = self.0.durable();
        if mark > durable.mark {
            self.0.healed(Reached { mark, last: mark });
        }
    }

    fn healed(&self) {
        self.0.healed(self.0.durable());
    }
}

#[pyclass(frozen, module = "headrace._core")]
pub struct JournalWriter(Arc<journal::JournalWriter>);

#[pymethods]
impl JournalWriter {
    #[new]
    fn new(name: &str) -> JournalWriter {
        JournalWriter(Arc::new(journal::JournalWriter::new(name)))
    }

    fn start(&self, file: &DiskFile, offset: u64, position: u64) {
        self.0.start(file.shared(), offset, position);
    }

    fn append(&self, kind: i64, payload: &[u8]) -> PyResult<u64> {
        let Ok(kind) = u8::try_from(kind) else { return Err(bad_record()) };
        if payload.len() >= RECORD_BYTES_MAX {
            return Err(bad_record());
        }
        self.0.append(kind, payload).map_err(commit_error)
    }

    fn write(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.write()).map_err(commit_error)
    }

    fn commit(&self, py: Python<'_>, position: u64) -> PyResult<()> {
        py.detach(|| self.0.commit_to(position)).map_err(commit_error)
    }

    fn commit_handle(&self) -> CommitHandle {
        CommitHandle::new(self.0.clone())
    }

    fn hold(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.0.hold()).map_err(commit_error)
    }

    #[pyo3(signature = (position, file=None, offset=0))]
    fn release(&self, position: u64, file: Option<&DiskFile>, offset: u64) {
        self.0.release(file.map(|file| (file.shared(), offset)), position);
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn check(&self) -> PyResult<()> {
        self.0.check().map_err(commit_error)
    }

    fn poison(&self, reason: String) {
        self.0.poison(reason);
    }

    #[getter]
    fn position(&self) -> u64 {
        self.0.position()
    }

    #[getter]
    fn size(&self) -> u64 {
        self.0.size()
    }
}

fn bad_record() -> PyErr {
    bad_input(format!("a journal record has a kind of 0..255 and under {RECORD_BYTES_MAX} bytes"))
}

/// A group that was committed.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct Committed {
    number: u64,
    /// Place among the group's targets → the error that it met.
    errors: Vec<(usize, Py<PyAny>)>,
}

#[pyclass(module = "headrace._core")]
pub struct Committer {
    core: committer::Committer,
    /// Readable when there is something to take, where no sockets are woken instead.
    bell: Option<UnixStream>,
}

#[pymethods]
impl Committer {
    /// With the sockets of a server these are woken when `take` has something; else `fileno` is readable.
    #[new]
    #[pyo3(signature = (sockets=None))]
    fn new(sockets: Option<&Bound<'_, PyAny>>) -> PyResult<Committer> {
        #[cfg(target_os = "linux")]
        if let Some(sockets) = sockets {
            let alarm = sockets.cast::<crate::net::Sockets>()?.borrow().alarm()?;
            let core = committer::Committer::new(move || headrace_core::net::wake(&alarm))?;
            return Ok(Committer { core, bell: None });
        }
        if sockets.is_some() {
            return Err(bad_input("there are no sockets to wake on this system"));
        }
        let (bell, ring) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ring.set_nonblocking(true)?;
        // It fails when nobody has listened for long: then it is ringing already.
        let core = committer::Committer::new(move || drop((&ring).write(&[1])))?;
        Ok(Committer { core, bell: Some(bell) })
    }

    fn fileno(&self) -> Option<i32> {
        self.bell.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// What was finished since the last call, in order.
    fn take(&self, py: Python<'_>) -> Vec<Committed> {
        if let Some(mut bell) = self.bell.as_ref() {
            let mut rung = [0; 64];
            while bell.read(&mut rung).is_ok_and(|count| count == rung.len()) {}
        }
        self.core.take().into_iter().map(|done| committed(py, done)).collect()
    }

    fn submit(&self, number: u64, targets: Vec<(PyRef<'_, CommitHandle>, u64)>) -> bool {
        let targets = targets.into_iter().map(|(handle, mark)| (handle.0.clone(), mark)).collect();
        self.core.submit(number, targets)
    }

    fn close(&mut self, py: Python<'_>) {
        let core = &mut self.core;
        py.detach(|| core.close());
    }
}

fn committed(py: Python<'_>, done: Finished) -> Committed {
    let error = |(at, error)| (at, commit_error(error).into_value(py).into_any());
    Committed { number: done.number, errors: done.errors.into_iter().map(error).collect() }
}
