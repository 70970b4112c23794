//! Messages that ask to be traced: who got them, or would have.
//!
//! ```text
//! Nats-Trace-Dest: <subject>      where the report goes
//! Nats-Trace-Only: true           the message itself goes nowhere
//! ```
//! The report is a call to whoever `set_tracer` named: the destination as its reply subject, and a line for each receiver:
//! `client <slot> <subscription> [<queue>]`, `stream <id>`. A stream keeps the message with `trace disabled` as its destination:
//! delivered or sent on from there it is not traced a second time.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use memchr::memmem::Finder;

use super::route::MessageRef;
use super::runs::{Call, kind};
use super::subs::{Match, SubId};
use super::{AccountId, Exchange};
use crate::subjects;

/// Made once: making a finder takes longer than searching the headers of a message.
static DEST: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"Nats-Trace-Dest:"));
static ONLY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"Nats-Trace-Only:"));
/// What a message carries that was traced already.
const DISABLED: &[u8] = b"trace disabled";

pub struct Trace<'a> {
    pub dest: &'a [u8],
    pub only: bool,
}

impl<'a> Trace<'a> {
    pub fn of(headers: &'a [u8]) -> Option<Trace<'a>> {
        let dest = value(headers, &DEST)?;
        if dest == DISABLED || !subjects::valid_literal(dest) {
            return None;
        }
        let only = value(headers, &ONLY)
            .is_some_and(|text| [&b"1"[..], b"true", b"on"].iter().any(|yes| text.eq_ignore_ascii_case(yes)));
        Some(Trace { dest, only })
    }
}

fn value<'a>(headers: &'a [u8], name: &Finder<'_>) -> Option<&'a [u8]> {
    Some(headers[span(headers, name)?].trim_ascii())
}

/// Where the value of a header stands, with the blanks around it.
fn span(headers: &[u8], name: &Finder<'_>) -> Option<Range<usize>> {
    let at = name.find(headers)?;
    if at < 2 || &headers[at - 2..at] != b"\r\n" {
        return None;
    }
    let from = at + name.needle().len();
    let length = memchr::memchr(b'\r', &headers[from..])?;
    Some(from..from + length)
}

/// The headers as a stream keeps them.
fn disabled(headers: &[u8]) -> Vec<u8> {
    let Some(place) = span(headers, &DEST) else { return headers.to_vec() };
    [&headers[..place.start], b" ", DISABLED, &headers[place.end..]].concat()
}

impl Exchange {
    /// Who is notified of traced messages.
    pub fn set_tracer(&mut self, id: u64) {
        self.tracer = Some(id);
    }

    /// Hands a traced message round, unless the trace is all that is wanted; returns how many got it, or would have.
    pub(super) fn fan_out_traced(
        &mut self,
        account: AccountId,
        found: &Arc<Match>,
        from: u32,
        message: &MessageRef<'_>,
        trace: &Trace<'_>,
    ) -> usize {
        let mut receivers: Vec<SubId> = found.plain.iter().copied().filter(|sub| self.takes(*sub, from)).collect();
        for (_, members) in &found.queues {
            receivers.extend(members.iter().copied().find(|sub| self.takes(*sub, from)));
        }
        let streams = found.listeners.iter().filter(|listener| listener.kind == kind::INGEST);
        let mut report = Vec::new();
        for id in &receivers {
            let sub = &self.subs[*id as usize];
            let line = [format!("client {} ", sub.conn).as_bytes(), &sub.subject].concat();
            report.extend_from_slice(&line);
            if let Some(queue) = &sub.queue {
                report.push(b' ');
                report.extend_from_slice(queue);
            }
            report.push(b'\n');
        }
        let mut count = receivers.len();
        for listener in streams {
            report.extend_from_slice(format!("stream {}\n", listener.id).as_bytes());
            count += 1;
        }
        if !trace.only {
            let headers = message.headers.map(disabled);
            let stored = MessageRef { headers: headers.as_deref(), ..*message };
            count = self.fan_out_with(account, found, Some(from), message, &stored);
        }
        if let Some(id) = self.tracer {
            let mut data = format!("{}\n", message.headers.map_or(0, <[u8]>::len) + message.payload.len()).into_bytes();
            data.extend_from_slice(&report);
            let call = Call {
                conn: Some(from),
                account,
                subject: message.subject.to_vec(),
                reply: Some(trace.dest.to_vec()),
                headers: message.headers.map(<[u8]>::to_vec),
                data,
            };
            self.gathering.call(id, call);
        }
        count
    }

    fn takes(&self, id: SubId, from: u32) -> bool {
        let sub = &self.subs[id as usize];
        let conn = self.conn(sub.conn);
        sub.live && conn.is_some_and(|conn| sub.conn != from || conn.flags.echo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_keeps_it_without_its_destination() {
        let kept = disabled(b"NATS/1.0\r\nA: b\r\nNats-Trace-Dest:x.y\r\nC: d\r\n\r\n");
        assert_eq!(kept, b"NATS/1.0\r\nA: b\r\nNats-Trace-Dest: trace disabled\r\nC: d\r\n\r\n");
        assert!(Trace::of(&kept).is_none());
    }

    #[test]
    fn only_whole_header_lines_ask_for_a_trace() {
        let of = |text: &'static [u8]| Trace::of(text).map(|trace| (trace.dest, trace.only));
        assert_eq!(of(b"NATS/1.0\r\nNats-Trace-Dest: a.b\r\n\r\n"), Some((&b"a.b"[..], false)));
        let only = of(b"NATS/1.0\r\nNats-Trace-Only: True\r\nNats-Trace-Dest:a\r\n\r\n");
        assert_eq!(only, Some((&b"a"[..], true)));
        assert_eq!(of(b"NATS/1.0\r\nNats-Trace-Dest: trace disabled\r\n\r\n"), None);
        assert_eq!(of(b"NATS/1.0\r\nX-Nats-Trace-Dest: a\r\n\r\n"), None);
        assert_eq!(of(b"NATS/1.0\r\nNats-Trace-Dest: a"), None);
        assert_eq!(of(b"NATS/1.0\r\nNats-Trace-Only: true\r\n\r\n"), None);
    }
}
