//! Connections that send requests with a length in front and want the answers in the order of the requests (Kafka's way).
//!
//! ```text
//!   feed(connection, bytes) ─ whole requests ─→ take(bytes_max)   in order of arrival, a bounded share per turn
//!   answer(connection, number, bytes) ─ waits for the answers before it ─→ send_output
//! ```
//! A connection with `in_flight_max` requests that are not answered is `Full`: nothing more is read from it. What was
//! read stays here, at most one read of the socket beyond a whole request.

use std::collections::VecDeque;

use crate::front_end::{Fed, FrontEnd, KEPT_BYTES};
use crate::wire::sized;

#[derive(Debug, Clone, Copy)]
pub struct RequestLimits {
    /// A longer request closes the connection; the limit before `accept` and after it.
    pub stranger_bytes_max: usize,
    pub request_bytes_max: usize,
    /// Requests of one connection that are not answered yet; their bytes together may reach `request_bytes_max`.
    pub in_flight_max: usize,
    pub pending_max: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub slot: u32,
    /// Of this connection, from 0 on.
    pub number: u64,
    pub body: Vec<u8>,
}

/// An answer in its place: not there yet (its request has so many bytes), there, or none wanted.
enum Answer {
    Awaited(usize),
    Ready(Vec<u8>),
    None,
}

struct Connection {
    unread: Vec<u8>,
    known: bool,
    full: bool,
    closing: bool,
    /// Number of the request whose answer is the first of `answers`.
    first_open: u64,
    answers: VecDeque<Answer>,
    /// Bytes of the requests that are not answered.
    open_bytes: usize,
    out: Vec<u8>,
}

impl Connection {
    fn may_send(&self, limits: &RequestLimits) -> bool {
        self.answers.len() < limits.in_flight_max && self.open_bytes < limits.request_bytes_max.max(1)
    }

    /// Answers whose turn has come go to the output.
    fn release(&mut self) {
        while let Some(first) = self.answers.front() {
            match first {
                Answer::Awaited(_) => return,
                Answer::Ready(answer) => sized::write(&mut self.out, answer),
                Answer::None => {}
            }
            self.answers.pop_front();
            self.first_open += 1;
        }
    }
}

pub struct Requests {
    limits: RequestLimits,
    conns: Vec<Option<Connection>>,
    free: Vec<u32>,
    /// Numbers of closed connections: not given out again before what they sent was taken.
    resting: Vec<u32>,
    arrived: VecDeque<Request>,
    dirty: Vec<u32>,
    resumed: Vec<u32>,
}

impl Requests {
    pub fn new(limits: RequestLimits) -> Requests {
        Requests {
            limits,
            conns: Vec::new(),
            free: Vec::new(),
            resting: Vec::new(),
            arrived: VecDeque::new(),
            dirty: Vec::new(),
            resumed: Vec::new(),
        }
    }

    fn conn(&mut self, slot: u32) -> Option<&mut Connection> {
        self.conns.get_mut(slot as usize).and_then(Option::as_mut)
    }

    /// A new connection; `known` if it may send requests of full size at once.
    pub fn open(&mut self, known: bool) -> u32 {
        let conn = Connection {
            unread: Vec::new(),
            known,
            full: false,
            closing: false,
            first_open: 0,
            answers: VecDeque::new(),
            open_bytes: 0,
            out: Vec::new(),
        };
        if let Some(slot) = self.free.pop() {
            self.conns[slot as usize] = Some(conn);
            return slot;
        }
        self.conns.push(Some(conn));
        self.conns.len() as u32 - 1
    }

    /// It said who it is.
    pub fn accept(&mut self, slot: u32) {
        if let Some(conn) = self.conn(slot) {
            conn.known = true;
        }
    }

    pub fn close(&mut self, slot: u32) {
        if self.conns.get_mut(slot as usize).and_then(Option::take).is_some() {
            self.arrived.retain(|request| request.slot != slot);
            self.dirty.retain(|dirty| *dirty != slot);
            self.resumed.retain(|resumed| *resumed != slot);
            self.resting.push(slot);
        }
    }

    /// Requests in order of arrival, until their bytes reach `bytes_max`; at least one if there is one.
    pub fn take(&mut self, bytes_max: usize) -> Vec<Request> {
        self.free.append(&mut self.resting);
        let mut bytes = 0;
        let mut taken = Vec::new();
        while bytes < bytes_max {
            let Some(request) = self.arrived.pop_front() else { break };
            bytes += request.body.len().max(1);
            taken.push(request);
        }
        taken
    }

    pub fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// The answer to a request, None for one that wants none. It leaves when those before it have left.
    /// What the connection is to do next, as after `feed`: its place may let requests in that were read already.
    pub fn answer(&mut self, slot: u32, number: u64, answer: Option<&[u8]>) -> Fed {
        let Some(conn) = self.conn(slot) else { return Fed::Fine };
        let place = number.checked_sub(conn.first_open).map(|at| at as usize);
        let Some(waiting) = place.and_then(|at| conn.answers.get_mut(at)) else { return Fed::Fine };
        let Answer::Awaited(bytes) = waiting else { return Fed::Fine }; // answered before
        conn.open_bytes -= *bytes;
        *waiting = answer.map_or(Answer::None, |bytes| Answer::Ready(bytes.to_vec()));
        let was_empty = conn.out.is_empty();
        conn.release();
        if was_empty && !conn.out.is_empty() {
            self.dirty.push(slot);
        }
        self.go_on(slot)
    }

    /// A full connection that has a free place takes what was read before, and perhaps bytes again.
    fn go_on(&mut self, slot: u32) -> Fed {
        let limits = self.limits;
        let Some(conn) = self.conn(slot).filter(|conn| conn.full && conn.may_send(&limits)) else { return Fed::Fine };
        conn.full = false;
        let fed = self.parse(slot);
        if fed == Fed::Fine {
            self.resumed.push(slot);
        }
        fed
    }

    fn parse(&mut self, slot: u32) -> Fed {
        let limits = self.limits;
        let Some(conn) = self.conns.get_mut(slot as usize).and_then(Option::as_mut) else { return Fed::Close };
        let length_max = if conn.known { limits.request_bytes_max } else { limits.stranger_bytes_max };
        let mut at = 0;
        let fed = loop {
            if !conn.may_send(&limits) {
                conn.full = true;
                break Fed::Full;
            }
            match sized::next(&conn.unread[at..], length_max) {
                Ok(Some((request, taken))) => {
                    let number = conn.first_open + conn.answers.len() as u64;
                    conn.answers.push_back(Answer::Awaited(request.len()));
                    conn.open_bytes += request.len();
                    self.arrived.push_back(Request { slot, number, body: request.to_vec() });
                    at += taken;
                }
                Ok(None) => break Fed::Fine,
                Err(_) => {
                    conn.closing = true;
                    break Fed::Close;
                }
            }
        };
        conn.unread.drain(..at);
        if conn.unread.is_empty() {
            conn.unread.shrink_to(KEPT_BYTES);
        }
        fed
    }
}

impl FrontEnd for Requests {
    fn feed(&mut self, slot: u32, bytes: &[u8]) -> Fed {
        let Some(conn) = self.conn(slot).filter(|conn| !conn.closing) else { return Fed::Close };
        conn.unread.extend_from_slice(bytes);
        if conn.full { Fed::Full } else { self.parse(slot) }
    }

    fn send_output(&mut self, send: &mut dyn FnMut(u32, &mut Vec<u8>, bool) -> bool) {
        let (conns, pending_max) = (&mut self.conns, self.limits.pending_max);
        self.dirty.retain(|slot| {
            let Some(conn) = conns[*slot as usize].as_mut() else { return false };
            let overrun = conn.out.len() > pending_max;
            let sent = send(*slot, &mut conn.out, overrun);
            if sent {
                conn.out.shrink_to(KEPT_BYTES);
            }
            !sent
        });
    }

    fn has_output(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn pending_max(&self) -> usize {
        self.limits.pending_max
    }

    fn next_resumed(&mut self) -> Option<u32> {
        self.resumed.pop()
    }
}
