//! `Sockets` for Python. Only where there is epoll: elsewhere `SOCKETS` is false and asyncio's transports serve.

#[cfg(target_os = "linux")]
mod epoll {
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::sync::Arc;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use headrace_core::net::{self, Events, Notices};
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    use crate::exchange::Exchange;

    type Told = Vec<(u32, u8)>;

    #[pyclass(module = "headrace._core")]
    pub struct Sockets {
        core: net::Sockets,
        /// Copies that need no lock: one to look, one to wake.
        set: Arc<OwnedFd>,
        alarm: OwnedFd,
        notices: Notices,
        events: Events,
    }

    impl Sockets {
        /// A handle of its own that wakes whoever waits for the sockets.
        pub fn alarm(&self) -> std::io::Result<OwnedFd> {
            self.alarm.try_clone()
        }

        fn told(&mut self) -> Option<Told> {
            if self.notices.is_empty() {
                return None;
            }
            Some(self.notices.drain(..).map(|(slot, notice)| (slot, notice as u8)).collect())
        }
    }

    #[pymethods]
    impl Sockets {
        #[new]
        fn new() -> PyResult<Sockets> {
            let core = net::Sockets::new()?;
            let (set, alarm) = (Arc::new(core.set()?), core.alarm()?);
            Ok(Sockets { core, set, alarm, notices: Notices::new(), events: Events::new() })
        }

        fn fileno(&self) -> i32 {
            self.core.fd()
        }

        /// Takes the descriptor over.
        fn add(&mut self, slot: u32, fd: i32) -> PyResult<()> {
            if fd < 0 {
                return Err(PyValueError::new_err(format!("{fd} is no file descriptor")));
            }
            // SAFETY: the caller detached the descriptor from its socket object: it is open and nobody else closes it.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            Ok(self.core.add(slot, fd)?)
        }

        fn set_reading(&mut self, slot: u32, reading: bool) {
            self.core.set_reading(slot, reading);
        }

        fn active_ns(&self, slot: u32) -> i64 {
            self.core.active(slot)
        }

        fn waiting_bytes(&self, slot: u32) -> usize {
            self.core.waiting_bytes(slot)
        }

        fn end(&mut self, slot: u32) -> bool {
            self.core.end(slot)
        }

        fn remove(&mut self, slot: u32) {
            self.core.remove(slot);
        }

        fn write(&mut self, slot: u32, data: &[u8], pending_max: usize) -> Option<Told> {
            self.core.write(slot, &mut data.to_vec(), pending_max, &mut self.notices);
            self.told()
        }

        fn pump(&mut self, exchange: &mut Exchange, now_ns: i64) -> (bool, Option<Told>) {
            let alarm = self.core.pump(&mut exchange.0, now_ns, &mut self.notices);
            (alarm, self.told())
        }

        fn flush(&mut self, exchange: &mut Exchange) -> (bool, Option<Told>) {
            self.core.flush(&mut exchange.0, &mut self.notices);
            (exchange.0.has_output(), self.told())
        }

        /// Other threads run meanwhile. None: nothing came.
        fn seek<'py>(
            slf: &Bound<'py, Self>,
            py: Python<'py>,
            exchange: &Bound<'py, Exchange>,
            spin_ns: u64,
        ) -> Option<(bool, Option<Told>)> {
            let (set, mut events) = {
                let mut sockets = slf.borrow_mut();
                (sockets.set.clone(), std::mem::take(&mut sockets.events))
            };
            let spin = Duration::from_nanos(spin_ns);
            let found = py.detach(|| net::Sockets::look(&*set, spin, &mut events));
            let mut guard = slf.borrow_mut();
            let sockets = &mut *guard;
            let answer = found.then(|| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
                let alarm = sockets.core.handle(&events, &mut exchange.borrow_mut().0, now, &mut sockets.notices);
                (alarm, sockets.told())
            });
            sockets.events = events;
            answer
        }
    }
}

#[cfg(target_os = "linux")]
pub use epoll::Sockets;
use pyo3::prelude::*;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOCKETS", cfg!(target_os = "linux"))?;
    #[cfg(target_os = "linux")]
    module.add_class::<epoll::Sockets>()?;
    Ok(())
}
