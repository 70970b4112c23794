//! The sockets of plain clients, all in one epoll set: bytes from them to the exchange and back, without a detour.
//!
//! ```text
//!   epoll ─ readable ─→ recv ─→ exchange.feed      one recv per client and round: nobody starves the others
//!         ─ writable ─→ send what waits            asked for only while something waits
//!         ─ woken    ─→ the caller has news of its own (a sync is done)
//!   flush ─ exchange.out ─→ send; what the socket does not take waits here
//! ```
//! What needs a decision comes back as `Notice`s. Clients with TLS or WebSocket are served by the caller's transports.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{Errno, read, write};
use rustix::net::{SendFlags, Shutdown, send, shutdown};

use crate::exchange::{Exchange, Fed, KEPT_BYTES};

const READ_BYTES: usize = 256 << 10;
const EVENTS_MAX: usize = 256;
/// Above this much waiting output a client counts as stalled, until it is down to a quarter.
const STALLED_BYTES: usize = 1 << 20;
const WAKE: u64 = u64::MAX;

/// What the caller must decide or know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A CONNECT waits.
    Asking = 1,
    /// What it sent was refused: send what is left and close.
    Refused = 2,
    /// The connection is over: the other side closed, it broke, or everything was sent after `end`.
    Gone = 3,
    /// It does not read what it gets.
    Stalled = 4,
    /// It has caught up.
    Flowing = 5,
    /// More waits for it than may.
    Overrun = 6,
}

pub type Notices = Vec<(u32, Notice)>;
/// Who is ready, and for what.
pub type Events = Vec<(u64, EventFlags)>;

/// What is ready now; false when nothing is.
fn gather(epoll: impl AsFd, events: &mut Events) -> bool {
    let mut room = [MaybeUninit::uninit(); EVENTS_MAX];
    events.clear();
    // An interrupted wait is no error: there is a next time.
    if let Ok((found, _)) = epoll::wait(epoll, &mut room[..], Some(&Timespec::default())) {
        events.extend(found.iter().map(|event| (event.data.u64(), event.flags)));
    }
    !events.is_empty()
}

struct Socket {
    fd: OwnedFd,
    waiting: Vec<u8>,
    sent: usize,
    reading: bool,
    writing: bool,
    stalled: bool,
    /// Nothing more is added; when all is sent, it is over.
    ending: bool,
    /// Wall clock of the last bytes, ns.
    active: i64,
}

impl Socket {
    fn left(&self) -> usize {
        self.waiting.len() - self.sent
    }

    /// Sends from `bytes` what the socket takes at once; None when the connection is broken.
    fn send(&self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            match send(&self.fd, &bytes[at..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(taken) => at += taken,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return None,
            }
        }
        Some(at)
    }
}

pub struct Sockets {
    epoll: OwnedFd,
    alarm: OwnedFd,
    /// By the exchange's number of the connection.
    sockets: Vec<Option<Socket>>,
    buffer: Box<[u8]>,
}

fn flags(socket: &Socket) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, socket.reading);
    flags.set(EventFlags::OUT, socket.writing);
    flags
}

impl Sockets {
    pub fn new() -> io::Result<Sockets> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &alarm, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Sockets { epoll, alarm, sockets: Vec::new(), buffer: vec![0; READ_BYTES].into() })
    }

    /// Readable when `pump` has something to do.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// A handle that wakes whoever waits, from any thread.
    pub fn alarm(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::dup(&self.alarm)?)
    }

    /// A connected socket, for a connection that the exchange has opened.
    pub fn add(&mut self, slot: u32, fd: OwnedFd) -> io::Result<()> {
        let at = slot as usize;
        if self.sockets.len() <= at {
            self.sockets.resize_with(at + 1, || None);
        }
        let (waiting, active) = (Vec::new(), 0);
        let (reading, writing, stalled, ending) = (true, false, false, false);
        let socket = Socket { fd, waiting, sent: 0, reading, writing, stalled, ending, active };
        epoll::add(&self.epoll, &socket.fd, EventData::new_u64(u64::from(slot)), flags(&socket))?;
        self.sockets[at] = Some(socket);
        Ok(())
    }

    fn get(&mut self, slot: u32) -> Option<&mut Socket> {
        self.sockets.get_mut(slot as usize)?.as_mut()
    }

    fn ask(&mut self, slot: u32, change: impl FnOnce(&mut Socket)) {
        let Some(socket) = self.sockets.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        change(socket);
        // It fails only for a socket that is not in the set, and each of ours is.
        let _ = epoll::modify(&self.epoll, &socket.fd, EventData::new_u64(u64::from(slot)), flags(socket));
    }

    /// Whether bytes are taken from the client.
    pub fn set_reading(&mut self, slot: u32, reading: bool) {
        self.ask(slot, |socket| socket.reading = reading);
    }

    pub fn active(&self, slot: u32) -> i64 {
        self.sockets.get(slot as usize).and_then(Option::as_ref).map_or(0, |socket| socket.active)
    }

    /// Bytes that the client has not taken yet.
    pub fn waiting_bytes(&self, slot: u32) -> usize {
        self.sockets.get(slot as usize).and_then(Option::as_ref).map_or(0, Socket::left)
    }

    /// Close at once; what waits is dropped.
    pub fn remove(&mut self, slot: u32) {
        if let Some(place) = self.sockets.get_mut(slot as usize) {
            *place = None;
        }
    }

    /// No more bytes from it, none added for it; true when nothing waits and it can be removed.
    pub fn end(&mut self, slot: u32) -> bool {
        self.ask(slot, |socket| (socket.reading, socket.ending) = (false, true));
        let Some(socket) = self.get(slot) else { return true };
        if socket.left() == 0 {
            let _ = shutdown(&socket.fd, Shutdown::Write); // it may be gone already
        }
        socket.left() == 0
    }

    /// Bytes for a client, behind what waits. They are taken out of `bytes`; what is left of its room is for reuse.
    pub fn write(&mut self, slot: u32, bytes: &mut Vec<u8>, pending_max: usize, notices: &mut Notices) {
        let Some(socket) = self.get(slot).filter(|socket| !socket.ending) else { return bytes.clear() };
        let taken = match socket.left() {
            0 => socket.send(bytes),
            _ => Some(0),
        };
        let Some(taken) = taken else {
            bytes.clear();
            return self.broken(slot, notices);
        };
        if taken == bytes.len() {
            return bytes.clear();
        }
        if socket.left() == 0 {
            std::mem::swap(&mut socket.waiting, bytes);
            socket.sent = taken;
        } else {
            socket.waiting.extend_from_slice(bytes);
        }
        bytes.clear();
        let left = socket.left();
        if !socket.stalled && left > STALLED_BYTES {
            socket.stalled = true;
            notices.push((slot, Notice::Stalled));
        }
        if left > pending_max {
            notices.push((slot, Notice::Overrun));
        }
        if !socket.writing {
            self.ask(slot, |socket| socket.writing = true);
        }
    }

    /// Said once: afterwards nothing is read from it and nothing written to it.
    fn broken(&mut self, slot: u32, notices: &mut Notices) {
        let Some(socket) = self.sockets.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let _ = epoll::delete(&self.epoll, &socket.fd);
        (socket.ending, socket.sent) = (true, socket.waiting.len());
        notices.push((slot, Notice::Gone));
    }

    /// Busily looks for up to `spin` for something to `handle`. No sleep: for answers that are on their way.
    pub fn look(epoll: impl AsFd, spin: Duration, events: &mut Events) -> bool {
        let end = Instant::now() + spin;
        loop {
            if gather(&epoll, events) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            // The client that was just answered may wait for this very core.
            std::thread::yield_now();
        }
    }

    /// The set, to `look` without holding this.
    pub fn set(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::dup(&self.epoll)?)
    }

    /// Takes in what clients sent and sends what waits for those who can take it. True when there was an alarm.
    pub fn pump(&mut self, exchange: &mut Exchange, now: i64, notices: &mut Notices) -> bool {
        let mut events = Events::new();
        gather(&self.epoll, &mut events);
        self.handle(&events, exchange, now, notices)
    }

    /// `pump`, for what a look has found.
    pub fn handle(
        &mut self,
        events: &[(u64, EventFlags)],
        exchange: &mut Exchange,
        now: i64,
        notices: &mut Notices,
    ) -> bool {
        let mut alarm = false;
        for (key, flags) in events.iter().copied() {
            if key == WAKE {
                let mut count = [0; 8];
                alarm = read(&self.alarm, &mut count).is_ok();
                continue;
            }
            let slot = key as u32;
            if flags.contains(EventFlags::OUT) {
                self.send_waiting(slot, exchange, notices);
            }
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                self.receive(slot, exchange, now, notices);
            }
        }
        alarm
    }

    fn receive(&mut self, slot: u32, exchange: &mut Exchange, now: i64, notices: &mut Notices) {
        let Some(socket) = self.sockets.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        if !socket.reading {
            // Nobody reads from it, so this is an end or an error, not bytes.
            return self.broken(slot, notices);
        }
        match read(&socket.fd, &mut self.buffer[..]) {
            Ok(0) => self.broken(slot, notices),
            Ok(taken) => {
                socket.active = now;
                match exchange.feed(slot, &self.buffer[..taken]) {
                    Fed::Fine => {}
                    Fed::Asking => notices.push((slot, Notice::Asking)),
                    Fed::Close => notices.push((slot, Notice::Refused)),
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.broken(slot, notices),
        }
    }

    fn send_waiting(&mut self, slot: u32, exchange: &mut Exchange, notices: &mut Notices) {
        let Some(socket) = self.get(slot) else { return };
        let Some(taken) = socket.send(&socket.waiting[socket.sent..]) else {
            return self.broken(slot, notices);
        };
        socket.sent += taken;
        let left = socket.left();
        if socket.stalled && left <= STALLED_BYTES / 4 {
            socket.stalled = false;
            notices.push((slot, Notice::Flowing));
        }
        if left > 0 {
            return;
        }
        socket.sent = 0;
        socket.waiting.clear();
        if socket.waiting.capacity() > KEPT_BYTES {
            exchange.give_back(std::mem::take(&mut socket.waiting));
        }
        if socket.ending {
            let _ = shutdown(&socket.fd, Shutdown::Write);
            return self.broken(slot, notices);
        }
        self.ask(slot, |socket| socket.writing = false);
    }

    /// Sends what the exchange has for our clients; the others' output is left for `Exchange::take_output`.
    pub fn flush(&mut self, exchange: &mut Exchange, notices: &mut Notices) {
        let pending_max = exchange.pending_max;
        exchange.send_output(|slot, out, overrun| {
            if self.get(slot).is_none() {
                return false;
            }
            if overrun {
                notices.push((slot, Notice::Overrun));
                out.clear();
            } else {
                self.write(slot, out, pending_max, notices);
            }
            true
        });
    }
}

/// Wakes whoever waits for the set.
pub fn wake(alarm: impl AsFd) {
    // It fails when the counter is full: then it is awake anyway.
    let _ = write(alarm, &1u64.to_ne_bytes());
}
