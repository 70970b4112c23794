//! Bytes of clients: cut into operations, what is not complete is kept for the next time.

use super::connection::Stage;
use super::{Exchange, Fed};
use crate::wire::nats::{self, Fault, Op};

/// A buffer that once held a large message is given back when it is empty: most clients send small ones.
const UNREAD_KEPT_BYTES: usize = 16 << 10;

impl Exchange {
    pub fn feed(&mut self, slot: u32, bytes: &[u8]) -> Fed {
        let Some(conn) = self.conns.get_mut(slot as usize).and_then(Option::as_mut) else { return Fed::Close };
        match conn.stage {
            Stage::Closing => return Fed::Close,
            Stage::Asking => {
                conn.unread.extend_from_slice(bytes);
                let flood = conn.unread.len() > self.limits.payload + self.limits.control_line;
                return if flood { Fed::Close } else { Fed::Asking };
            }
            _ => {}
        }
        if conn.unread.is_empty() {
            let (taken, fed) = self.parse(slot, bytes);
            if taken < bytes.len() && fed != Fed::Close {
                if let Some(conn) = self.conn_mut(slot) {
                    conn.unread.extend_from_slice(&bytes[taken..]);
                }
            }
            return fed;
        }
        let mut unread = std::mem::take(&mut conn.unread);
        unread.extend_from_slice(bytes);
        let (taken, fed) = self.parse(slot, &unread);
        if taken == unread.len() {
            unread.clear();
            unread.shrink_to(UNREAD_KEPT_BYTES);
        } else {
            unread.drain(..taken);
        }
        if let Some(conn) = self.conn_mut(slot) {
            conn.unread = unread;
        }
        fed
    }

    /// Memory that is held for what a client sent and what is not a whole operation yet.
    pub fn unread_bytes(&self, slot: u32) -> usize {
        self.conn(slot).map_or(0, |conn| conn.unread.capacity())
    }

    fn parse(&mut self, slot: u32, bytes: &[u8]) -> (usize, Fed) {
        let mut at = 0;
        let limits = self.limits;
        let locked = self.conn(slot).is_some_and(|conn| conn.stage == Stage::Locked);
        while at < bytes.len() {
            // Before it is known who is there: CONNECT, or the end with the first message of something else.
            if locked && !bytes[at].eq_ignore_ascii_case(&b'C') {
                self.refuse(slot, "Authorization Violation");
                return (at, Fed::Close);
            }
            let (op, taken) = match nats::next(&bytes[at..], &limits) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(fault) => return (at, self.fault(slot, fault)),
            };
            at += taken;
            match self.operate(slot, op) {
                Fed::Fine => {}
                other => return (at, other),
            }
        }
        (at, Fed::Fine)
    }

    fn fault(&mut self, slot: u32, fault: Fault) -> Fed {
        if let Some(text) = fault.text() {
            self.error(slot, text);
        }
        if let Some(conn) = self.conn_mut(slot) {
            conn.stage = Stage::Closing;
        }
        Fed::Close
    }

    fn operate(&mut self, slot: u32, op: Op<'_>) -> Fed {
        let Some(conn) = self.conn_mut(slot) else { return Fed::Close };
        match op {
            Op::Pub(publish) => {
                if publish.headers.is_some() && !conn.flags.headers {
                    conn.stage = Stage::Closing;
                    return Fed::Close;
                }
                self.publish_from(slot, &publish);
            }
            Op::Sub { subject, queue, sid } => self.subscribe(slot, subject, queue, sid),
            Op::Unsub { sid, max } => self.unsubscribe(slot, sid, max),
            Op::Ping => self.write(slot, b"PONG\r\n"),
            Op::Pong => {
                conn.pongs += 1;
                if let Some(since) = conn.pinged.take() {
                    conn.rtt_ns = since.elapsed().as_nanos().max(1) as u64;
                }
            }
            Op::Ignored => {}
            Op::Connect(text) => {
                conn.connect = text.to_vec();
                conn.stage = Stage::Asking;
                return Fed::Asking;
            }
        }
        Fed::Fine
    }
}
