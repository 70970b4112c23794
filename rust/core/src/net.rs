//! The sockets of plain clients of all protocols, in one epoll set: bytes from them to their front end and back.
//!
//! ```text
//!   epoll ─ readable ─→ recv ─→ front end.feed     one recv per client and round: nobody starves the others
//!         ─ writable ─→ send what waits            watched only while something waits
//!         ─ woken    ─→ the caller has news of its own (a sync is done)
//!   flush ─ front end.send_output ─→ send; what the socket does not take waits here
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

use crate::front_end::{Fed, FrontEnd, KEPT_BYTES};

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

/// A connection: the number of its front end, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conn {
    pub front_end: u32,
    pub slot: u32,
}

impl Conn {
    fn key(self) -> EventData {
        EventData::new_u64(u64::from(self.front_end) << 32 | u64::from(self.slot))
    }

    fn of(key: u64) -> Conn {
        Conn { front_end: (key >> 32) as u32, slot: key as u32 }
    }
}

pub type Notices = Vec<(Conn, Notice)>;
/// The protocols, by number.
pub type FrontEnds<'a, 'b> = &'a mut [&'b mut dyn FrontEnd];
/// Who is ready, and for what.
pub type Events = Vec<(u64, EventFlags)>;

/// What is ready now; false when nothing is.
fn gather(epoll: impl AsFd, events: &mut Events) -> bool {
    let mut found = [MaybeUninit::uninit(); EVENTS_MAX];
    events.clear();
    // An interrupted wait is no error: there is a next time.
    if let Ok((found, _)) = epoll::wait(epoll, &mut found[..], Some(&Timespec::default())) {
        events.extend(found.iter().map(|event| (event.data.u64(), event.flags)));
    }
    !events.is_empty()
}

struct Socket {
    fd: OwnedFd,
    waiting: Vec<u8>,
    sent: usize,
    reading: bool,
    /// The front end takes no more bytes for now.
    full: bool,
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
    /// By front end, then by its number of the connection.
    sockets: Vec<Vec<Option<Socket>>>,
    buffer: Box<[u8]>,
}

fn flags(socket: &Socket) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, socket.reading && !socket.full);
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

    /// A connected socket, for a connection that its front end has opened.
    pub fn add(&mut self, conn: Conn, fd: OwnedFd) -> io::Result<()> {
        let (front_end, at) = (conn.front_end as usize, conn.slot as usize);
        if self.sockets.len() <= front_end {
            self.sockets.resize_with(front_end + 1, Vec::new);
        }
        let sockets = &mut self.sockets[front_end];
        if sockets.len() <= at {
            sockets.resize_with(at + 1, || None);
        }
        let (waiting, sent, active) = (Vec::new(), 0, 0);
        let (reading, full, writing, stalled, ending) = (true, false, false, false, false);
        let socket = Socket { fd, waiting, sent, reading, full, writing, stalled, ending, active };
        epoll::add(&self.epoll, &socket.fd, conn.key(), flags(&socket))?;
        sockets[at] = Some(socket);
        Ok(())
    }

    fn get(&self, conn: Conn) -> Option<&Socket> {
        self.sockets.get(conn.front_end as usize)?.get(conn.slot as usize)?.as_ref()
    }

    fn get_mut(&mut self, conn: Conn) -> Option<&mut Socket> {
        self.sockets.get_mut(conn.front_end as usize)?.get_mut(conn.slot as usize)?.as_mut()
    }

    /// Changes a socket, and what epoll watches of it.
    fn watch(&mut self, conn: Conn, change: impl FnOnce(&mut Socket)) {
        let Some(sockets) = self.sockets.get_mut(conn.front_end as usize) else { return };
        let Some(socket) = sockets.get_mut(conn.slot as usize).and_then(Option::as_mut) else { return };
        change(socket);
        // It fails only for a socket that is not in the set, and each of ours is.
        let _ = epoll::modify(&self.epoll, &socket.fd, conn.key(), flags(socket));
    }

    /// Whether bytes are taken from the client.
    pub fn set_reading(&mut self, conn: Conn, reading: bool) {
        self.watch(conn, |socket| socket.reading = reading);
    }

    pub fn active(&self, conn: Conn) -> i64 {
        self.get(conn).map_or(0, |socket| socket.active)
    }

    /// Bytes that the client has not taken yet.
    pub fn waiting_bytes(&self, conn: Conn) -> usize {
        self.get(conn).map_or(0, Socket::left)
    }

    /// Close at once; what waits is dropped.
    pub fn remove(&mut self, conn: Conn) {
        let sockets = self.sockets.get_mut(conn.front_end as usize);
        if let Some(socket) = sockets.and_then(|sockets| sockets.get_mut(conn.slot as usize)) {
            *socket = None;
        }
    }

    /// No more bytes from it, none added for it; true when nothing waits and it can be removed.
    pub fn end(&mut self, conn: Conn) -> bool {
        self.watch(conn, |socket| (socket.reading, socket.ending) = (false, true));
        let Some(socket) = self.get(conn) else { return true };
        if socket.left() == 0 {
            let _ = shutdown(&socket.fd, Shutdown::Write); // it may be gone already
        }
        socket.left() == 0
    }

    /// Bytes for a client, behind what waits. They are taken out of `bytes`; its capacity is for reuse.
    pub fn write(&mut self, conn: Conn, bytes: &mut Vec<u8>, pending_max: usize, notices: &mut Notices) {
        let Some(socket) = self.get_mut(conn).filter(|socket| !socket.ending) else { return bytes.clear() };
        let taken = match socket.left() {
            0 => socket.send(bytes),
            _ => Some(0),
        };
        let Some(taken) = taken else {
            bytes.clear();
            return self.broken(conn, notices);
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
            notices.push((conn, Notice::Stalled));
        }
        if left > pending_max {
            notices.push((conn, Notice::Overrun));
        }
        if !socket.writing {
            self.watch(conn, |socket| socket.writing = true);
        }
    }

    /// Said once: afterwards nothing is read from it and nothing written to it.
    fn broken(&mut self, conn: Conn, notices: &mut Notices) {
        let Some(sockets) = self.sockets.get_mut(conn.front_end as usize) else { return };
        let Some(socket) = sockets.get_mut(conn.slot as usize).and_then(Option::as_mut) else { return };
        let _ = epoll::delete(&self.epoll, &socket.fd);
        (socket.ending, socket.sent) = (true, socket.waiting.len());
        notices.push((conn, Notice::Gone));
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
    pub fn pump(&mut self, front_ends: FrontEnds<'_, '_>, now: i64, notices: &mut Notices) -> bool {
        let mut events = Events::new();
        gather(&self.epoll, &mut events);
        self.handle(&events, front_ends, now, notices)
    }

    /// `pump`, for what a look has found.
    pub fn handle(
        &mut self,
        events: &[(u64, EventFlags)],
        front_ends: FrontEnds<'_, '_>,
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
            let conn = Conn::of(key);
            let Some(front_end) = front_ends.get_mut(conn.front_end as usize) else { continue };
            if flags.contains(EventFlags::OUT) {
                self.send_waiting(conn, *front_end, notices);
            }
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                self.receive(conn, *front_end, now, notices);
            }
        }
        alarm
    }

    fn receive(&mut self, conn: Conn, front_end: &mut dyn FrontEnd, now: i64, notices: &mut Notices) {
        let Some(sockets) = self.sockets.get_mut(conn.front_end as usize) else { return };
        let Some(socket) = sockets.get_mut(conn.slot as usize).and_then(Option::as_mut) else { return };
        if !socket.reading || socket.full {
            // Nobody reads from it, so this is an end or an error, not bytes.
            return self.broken(conn, notices);
        }
        match read(&socket.fd, &mut self.buffer[..]) {
            Ok(0) => self.broken(conn, notices),
            Ok(taken) => {
                socket.active = now;
                match front_end.feed(conn.slot, &self.buffer[..taken]) {
                    Fed::Fine => {}
                    Fed::Asking => notices.push((conn, Notice::Asking)),
                    Fed::Close => notices.push((conn, Notice::Refused)),
                    Fed::Full => self.watch(conn, |socket| socket.full = true),
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.broken(conn, notices),
        }
    }

    fn send_waiting(&mut self, conn: Conn, front_end: &mut dyn FrontEnd, notices: &mut Notices) {
        let Some(socket) = self.get_mut(conn) else { return };
        let Some(taken) = socket.send(&socket.waiting[socket.sent..]) else {
            return self.broken(conn, notices);
        };
        socket.sent += taken;
        let left = socket.left();
        if socket.stalled && left <= STALLED_BYTES / 4 {
            socket.stalled = false;
            notices.push((conn, Notice::Flowing));
        }
        if left > 0 {
            return;
        }
        socket.sent = 0;
        socket.waiting.clear();
        if socket.waiting.capacity() > KEPT_BYTES {
            front_end.give_back(std::mem::take(&mut socket.waiting));
        }
        if socket.ending {
            let _ = shutdown(&socket.fd, Shutdown::Write);
            return self.broken(conn, notices);
        }
        self.watch(conn, |socket| socket.writing = false);
    }

    /// Sends what the front ends have for our clients, and reads again from those that were full. True when output is
    /// left for clients whose sockets are not here.
    pub fn flush(&mut self, front_ends: FrontEnds<'_, '_>, notices: &mut Notices) -> bool {
        let mut left = false;
        for (number, front_end) in (0..).zip(front_ends.iter_mut()) {
            let pending_max = front_end.pending_max();
            front_end.send_output(&mut |slot, out, overrun| {
                let conn = Conn { front_end: number, slot };
                if self.get(conn).is_none() {
                    return false;
                }
                if overrun {
                    notices.push((conn, Notice::Overrun));
                    out.clear();
                } else {
                    self.write(conn, out, pending_max, notices);
                }
                true
            });
            while let Some(slot) = front_end.next_resumed() {
                self.watch(Conn { front_end: number, slot }, |socket| socket.full = false);
            }
            left |= front_end.has_output();
        }
        left
    }
}

/// Wakes whoever waits for the set.
pub fn wake(alarm: impl AsFd) {
    // It fails when the counter is full: then it is awake anyway.
    let _ = write(alarm, &1u64.to_ne_bytes());
}
