//! `Sockets` for Python. Only where there is epoll: elsewhere `SOCKETS` is false and asyncio's transports serve.

#[cfg(target_os = "linux")]
mod epoll {
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::sync::Arc;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use headrace_core::front_end::FrontEnd;
    use headrace_core::net::{self, Conn, Events, Notices};
    use pyo3::exceptions::{PyTypeError, PyValueError};
    use pyo3::prelude::*;

    use crate::exchange::Exchange;
    use crate::requests::Requests;

    /// (front end, connection, kind of notice)
    type NoticeList = Vec<(u32, u32, u8)>;

    /// A protocol's state, as Python holds it.
    enum Protocol {
        Nats(Py<Exchange>),
        Requests(Py<Requests>),
    }

    enum Borrowed<'py> {
        Nats(PyRefMut<'py, Exchange>),
        Requests(PyRefMut<'py, Requests>),
    }

    impl Protocol {
        fn borrow<'py>(&self, py: Python<'py>) -> Borrowed<'py> {
            match self {
                Protocol::Nats(exchange) => Borrowed::Nats(exchange.bind(py).borrow_mut()),
                Protocol::Requests(requests) => Borrowed::Requests(requests.bind(py).borrow_mut()),
            }
        }
    }

    impl Borrowed<'_> {
        fn front_end(&mut self) -> &mut dyn FrontEnd {
            match self {
                Borrowed::Nats(exchange) => &mut exchange.0,
                Borrowed::Requests(requests) => &mut requests.0,
            }
        }
    }

    #[pyclass(module = "headrace._core")]
    pub struct Sockets {
        core: net::Sockets,
        protocols: Vec<Protocol>,
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

        fn take_notices(&mut self) -> Option<NoticeList> {
            if self.notices.is_empty() {
                return None;
            }
            let list = self.notices.drain(..).map(|(conn, notice)| (conn.front_end, conn.slot, notice as u8));
            Some(list.collect())
        }

        /// One call of the core, with all front ends at hand.
        fn with_front_ends<R>(
            &mut self,
            py: Python<'_>,
            call: impl FnOnce(&mut net::Sockets, net::FrontEnds<'_, '_>, &mut Notices) -> R,
        ) -> R {
            let mut borrowed: Vec<Borrowed<'_>> = self.protocols.iter().map(|protocol| protocol.borrow(py)).collect();
            let mut front_ends: Vec<&mut dyn FrontEnd> = borrowed.iter_mut().map(Borrowed::front_end).collect();
            call(&mut self.core, &mut front_ends, &mut self.notices)
        }
    }

    #[pymethods]
    impl Sockets {
        #[new]
        fn new() -> PyResult<Sockets> {
            let core = net::Sockets::new()?;
            let (set, alarm) = (Arc::new(core.set()?), core.alarm()?);
            let (notices, events) = (Notices::new(), Events::new());
            Ok(Sockets { core, protocols: Vec::new(), set, alarm, notices, events })
        }

        fn fileno(&self) -> i32 {
            self.core.fd()
        }

        /// The number under which its connections are known here.
        fn add_front_end(&mut self, front_end: &Bound<'_, PyAny>) -> PyResult<u32> {
            let protocol = if let Ok(exchange) = front_end.cast::<Exchange>() {
                Protocol::Nats(exchange.clone().unbind())
            } else if let Ok(requests) = front_end.cast::<Requests>() {
                Protocol::Requests(requests.clone().unbind())
            } else {
                return Err(PyTypeError::new_err(format!("{front_end} is no front end of the core")));
            };
            self.protocols.push(protocol);
            Ok(self.protocols.len() as u32 - 1)
        }

        /// Takes the descriptor over.
        fn add(&mut self, front_end: u32, slot: u32, fd: i32) -> PyResult<()> {
            if fd < 0 {
                return Err(PyValueError::new_err(format!("{fd} is no file descriptor")));
            }
            if front_end as usize >= self.protocols.len() {
                return Err(PyValueError::new_err(format!("there is no front end {front_end}")));
            }
            // SAFETY: the caller detached the descriptor from its socket object: it is open and nobody else closes it.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            Ok(self.core.add(Conn { front_end, slot }, fd)?)
        }

        fn set_reading(&mut self, front_end: u32, slot: u32, reading: bool) {
            self.core.set_reading(Conn { front_end, slot }, reading);
        }

        fn active_ns(&self, front_end: u32, slot: u32) -> i64 {
            self.core.active(Conn { front_end, slot })
        }

        fn waiting_bytes(&self, front_end: u32, slot: u32) -> usize {
            self.core.waiting_bytes(Conn { front_end, slot })
        }

        fn end(&mut self, front_end: u32, slot: u32) -> bool {
            self.core.end(Conn { front_end, slot })
        }

        fn remove(&mut self, front_end: u32, slot: u32) {
            self.core.remove(Conn { front_end, slot });
        }

        fn write(&mut self, front_end: u32, slot: u32, data: &[u8], pending_max: usize) -> Option<NoticeList> {
            self.core.write(Conn { front_end, slot }, &mut data.to_vec(), pending_max, &mut self.notices);
            self.take_notices()
        }

        fn pump(&mut self, py: Python<'_>, now_ns: i64) -> (bool, Option<NoticeList>) {
            let alarm = self.with_front_ends(py, |core, front_ends, notices| core.pump(front_ends, now_ns, notices));
            (alarm, self.take_notices())
        }

        fn flush(&mut self, py: Python<'_>) -> (bool, Option<NoticeList>) {
            let left = self.with_front_ends(py, |core, front_ends, notices| core.flush(front_ends, notices));
            (left, self.take_notices())
        }

        /// Other threads run meanwhile. None: nothing came.
        fn seek(slf: &Bound<'_, Self>, py: Python<'_>, spin_ns: u64) -> Option<(bool, Option<NoticeList>)> {
            let (set, mut events) = {
                let mut sockets = slf.borrow_mut();
                (sockets.set.clone(), std::mem::take(&mut sockets.events))
            };
            let spin = Duration::from_nanos(spin_ns);
            let found = py.detach(|| net::Sockets::look(&*set, spin, &mut events));
            let mut sockets = slf.borrow_mut();
            let answer = found.then(|| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
                let alarm = sockets
                    .with_front_ends(py, |core, front_ends, notices| core.handle(&events, front_ends, now, notices));
                (alarm, sockets.take_notices())
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
