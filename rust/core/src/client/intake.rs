//! What a server sends, taken apart. Messages of a pull land in a batch, acks in their table, the rest are events.
//!
//! ```text
//!   INFO {json}␍␊   PING␍␊   PONG␍␊   +OK␍␊   -ERR 'text'␍␊
//!   MSG subject sid [reply] #bytes␍␊payload␍␊
//!   HMSG subject sid [reply] #header #total␍␊header block, payload␍␊
//!
//!   reply of a stored message:  $JS.ACK.[domain.account.]stream.consumer.delivered.SEQ.cseq.TIME.PENDING[.token]
//! ```
//! Batches point into the received bytes; nothing is copied but what is left of an unfinished message.

use std::sync::Arc;

use memchr::memchr;

use super::acks::{Acks, Answer, is_from, parse_ack};
use crate::batch::{Batch, Entry, HeaderCodec, Span};

/// A line of a server: INFO with the addresses of a large cluster is the longest.
const LINE_MAX: usize = 1 << 20;
/// Nobody's max_payload is above this.
const PAYLOAD_MAX: usize = 256 << 20;
/// Spans are 32 bits; a batch is taken long before.
const BUFFER_MAX: usize = 1 << 31;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IntakeError {
    #[error("the server sent a line of more than {LINE_MAX} bytes")]
    LineTooLong,
    #[error("the server sent a message of {0} bytes, the limit is {PAYLOAD_MAX}")]
    TooLarge(usize),
    #[error("the server sent what is not the NATS protocol: {0:?}")]
    Malformed(String),
    #[error("more than {BUFFER_MAX} bytes were received and not taken")]
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Info(Vec<u8>),
    Error(Vec<u8>),
    Ping,
    Pong,
    Message { sid: u64, subject: Vec<u8>, reply: Vec<u8>, headers: Vec<u8>, payload: Vec<u8> },
}

#[derive(Default)]
pub struct Intake {
    pub(super) buffer: Vec<u8>,
    parsed: usize,
    entries: Vec<Entry>,
    events: Vec<Event>,
    /// The subscription whose messages go into the batch, and the one of the acks.
    pub data_sid: Option<u64>,
    pub ack_sid: Option<u64>,
    /// Keep the reply of each message, which an ack goes to, as its key.
    pub keep_replies: bool,
    pub acks: Acks,
    /// The stream that is to take the publishes, in every spelling that JSON has for it. The ack of another one is an event.
    pub ack_streams: Vec<Vec<u8>>,
    /// What the last message of the batch said was still to come.
    pub pending: u64,
}

impl Intake {
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), IntakeError> {
        self.buffer.extend_from_slice(bytes);
        self.parse()
    }

    pub fn messages(&self) -> usize {
        self.entries.len()
    }

    /// Bytes that the batch would hold.
    pub fn batch_bytes(&self) -> usize {
        if self.entries.is_empty() { 0 } else { self.parsed }
    }

    /// Is there an event, a batch of this size, or a floor of the acks that high (0: none is waited for)?
    pub fn ready(&self, messages: usize, bytes: usize, floor: u64) -> bool {
        let full = self.messages() >= messages.max(1) || self.batch_bytes() >= bytes.max(1);
        full || self.has_events() || (floor > 0 && self.acks.floor() >= floor)
    }

    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// The messages so far.
    pub fn take_batch(&mut self) -> Batch {
        if self.entries.is_empty() {
            return Batch::empty(HeaderCodec::Nats);
        }
        let rest = self.buffer[self.parsed..].to_vec();
        let mut taken = std::mem::replace(&mut self.buffer, rest);
        taken.truncate(self.parsed);
        self.parsed = 0;
        Batch::new(Arc::new(taken), std::mem::take(&mut self.entries), HeaderCodec::Nats)
    }

    /// Everything about the connection is forgotten, the open publishes are not.
    pub fn reset(&mut self) {
        self.buffer.clear();
        (self.parsed, self.pending) = (0, 0);
        (self.data_sid, self.ack_sid) = (None, None);
        self.entries.clear();
        self.events.clear();
    }

    pub(super) fn parse(&mut self) -> Result<(), IntakeError> {
        let buffer = std::mem::take(&mut self.buffer);
        let mut at = self.parsed;
        let outcome = loop {
            match self.one(&buffer, at) {
                Ok(Some(next)) => at = next,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.buffer = buffer;
        self.parsed = at;
        if self.entries.is_empty() && at > 0 {
            self.buffer.drain(..at);
            self.parsed = 0;
        }
        if self.buffer.len() > BUFFER_MAX {
            return Err(IntakeError::Full);
        }
        outcome
    }

    /// The operation at `at`; where the next one begins, or None while it is not complete.
    fn one(&mut self, buffer: &[u8], at: usize) -> Result<Option<usize>, IntakeError> {
        let rest = &buffer[at..];
        let Some(end) = memchr(b'\n', &rest[..rest.len().min(LINE_MAX)]) else {
            return if rest.len() >= LINE_MAX { Err(IntakeError::LineTooLong) } else { Ok(None) };
        };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let after = at + end + 1;
        let word_end = memchr(b' ', line).unwrap_or(line.len());
        let (word, arguments) = (&line[..word_end], line[word_end..].trim_ascii());
        match word {
            b"MSG" => self.message(buffer, line, arguments, after, false),
            b"HMSG" => self.message(buffer, line, arguments, after, true),
            b"PING" => self.event(Event::Ping, after),
            b"PONG" => self.event(Event::Pong, after),
            b"+OK" => Ok(Some(after)),
            b"-ERR" => {
                let text = arguments.strip_prefix(b"'").and_then(|text| text.strip_suffix(b"'")).unwrap_or(arguments);
                self.event(Event::Error(text.to_vec()), after)
            }
            b"INFO" => self.event(Event::Info(arguments.to_vec()), after),
            _ => Err(malformed(line)),
        }
    }

    fn event(&mut self, event: Event, after: usize) -> Result<Option<usize>, IntakeError> {
        self.events.push(event);
        Ok(Some(after))
    }

    fn message(
        &mut self,
        buffer: &[u8],
        line: &[u8],
        arguments: &[u8],
        after: usize,
        with_headers: bool,
    ) -> Result<Option<usize>, IntakeError> {
        let mut field: [&[u8]; 5] = [b""; 5];
        let mut count = 0;
        for part in arguments.split(|byte| matches!(byte, b' ' | b'\t')).filter(|part| !part.is_empty()) {
            if count == field.len() {
                return Err(malformed(line));
            }
            field[count] = part;
            count += 1;
        }
        let sizes = if with_headers { 2 } else { 1 };
        if count < 2 + sizes || count > 3 + sizes {
            return Err(malformed(line));
        }
        let reply = if count == 3 + sizes { field[2] } else { &b""[..] };
        let number = |text: &[u8]| number(text).ok_or_else(|| malformed(line));
        let (sid, total) = (number(field[1])?, number(field[count - 1])? as usize);
        let header = if with_headers { number(field[count - 2])? as usize } else { 0 };
        if total > PAYLOAD_MAX {
            return Err(IntakeError::TooLarge(total));
        }
        if header > total {
            return Err(malformed(line));
        }
        let end = after + total;
        let Some(tail) = buffer.get(end..end + 2) else { return Ok(None) };
        if tail != b"\r\n" {
            return Err(malformed(line));
        }
        let subject = field[0];
        let (headers, payload) = (&buffer[after..after + header], &buffer[after + header..end]);
        if Some(sid) == self.data_sid {
            if let Some((position, time, pending)) = stored(reply) {
                let span = |part: &[u8]| Span {
                    offset: (part.as_ptr() as usize - buffer.as_ptr() as usize) as u32,
                    len: part.len() as u32,
                };
                self.entries.push(Entry {
                    position,
                    time,
                    subject: span(subject),
                    key: if self.keep_replies { span(reply) } else { Span::NULL },
                    headers: if header > 0 { span(headers) } else { Span::NULL },
                    data: span(payload),
                    flags: 0,
                });
                self.pending = pending;
                return Ok(Some(end + 2));
            }
        } else if Some(sid) == self.ack_sid && header == 0 {
            let last = subject.rsplit(|byte| *byte == b'.').next().unwrap_or(b"");
            // The answer to the ack of a message is empty.
            let answer = if payload.is_empty() { Some(Answer::Stored(0)) } else { self.answer(payload) };
            if let (Some(number), Some(answer)) = (self::number(last), answer) {
                self.acks.resolve(number, answer);
                return Ok(Some(end + 2));
            }
        }
        let event = Event::Message {
            sid,
            subject: subject.to_vec(),
            reply: reply.to_vec(),
            headers: headers.to_vec(),
            payload: payload.to_vec(),
        };
        self.event(event, end + 2)
    }

    /// A pub-ack of the stream that it was asked of.
    fn answer(&self, payload: &[u8]) -> Option<Answer> {
        let named = self.ack_streams.is_empty() || self.ack_streams.iter().any(|name| is_from(payload, name));
        named.then(|| parse_ack(payload)).flatten()
    }
}

fn malformed(line: &[u8]) -> IntakeError {
    IntakeError::Malformed(String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned())
}

fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    text.iter().try_fold(0u64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0')))
}

/// Sequence, time and what is still to come, out of the reply of a stored message.
fn stored(reply: &[u8]) -> Option<(u64, i64, u64)> {
    let rest = reply.strip_prefix(b"$JS.ACK.")?;
    let mut tokens: [&[u8]; 10] = [b""; 10];
    let mut count = 0;
    for token in rest.split(|byte| *byte == b'.') {
        if count == tokens.len() {
            return None;
        }
        tokens[count] = token;
        count += 1;
    }
    // Old form: stream and consumer first. New form: domain and account before them, perhaps a token at the end.
    let at = match count {
        7 => 3,
        9 | 10 => 5,
        _ => return None,
    };
    Some((number(tokens[at])?, number(tokens[at + 2])? as i64, number(tokens[at + 3])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TALK: &[u8] = b"INFO {\"a\":1}\r\nMSG o.1 7 $JS.ACK.S.C.1.41.1.99.1 2\r\nab\r\nPING\r\n\
        HMSG o.2 7 $JS.ACK._.H.S.C.1.42.2.100.0.x 12 13\r\nNATS/1.0\r\n\r\nc\r\n\
        HMSG in 7 16 16\r\nNATS/1.0 404\r\n\r\n\r\nMSG in.0 8 22\r\n{\"stream\":\"S\",\"seq\":5}\r\n+OK\r\n-ERR 'Bad'\r\nPONG\r\n";

    fn intake() -> Intake {
        let mut intake = Intake { data_sid: Some(7), ack_sid: Some(8), ..Default::default() };
        intake.acks.open(1);
        intake
    }

    #[test]
    fn a_talk_is_taken_apart() {
        let mut intake = intake();
        intake.feed(TALK).unwrap();
        let batch = intake.take_batch();
        let seen: Vec<_> = batch.entries().iter().map(|e| (e.position, e.time, batch.bytes(e.data))).collect();
        assert_eq!(seen, [(41, 99, &b"ab"[..]), (42, 100, b"c")]);
        assert_eq!(batch.bytes(batch.entries()[1].headers), b"NATS/1.0\r\n\r\n");
        assert_eq!((intake.pending, intake.acks.floor(), intake.acks.last_sequence), (0, 1, 5));
        let events = intake.take_events();
        assert_eq!(events[..2], [Event::Info(b"{\"a\":1}".to_vec()), Event::Ping]);
        assert!(matches!(&events[2], Event::Message { sid: 7, headers, .. } if headers.starts_with(b"NATS/1.0 404")));
        assert_eq!(events[3..], [Event::Error(b"Bad".to_vec()), Event::Pong]);
    }

    #[test]
    fn an_ack_of_another_stream_is_no_ack() {
        let mut intake = Intake { ack_streams: vec![b"OTHER".to_vec()], ..intake() };
        intake.feed(b"MSG in.0 8 22\r\n{\"stream\":\"S\",\"seq\":5}\r\n").unwrap();
        assert_eq!((intake.acks.floor(), intake.take_events().len()), (0, 1));
        intake.ack_streams.push(b"S".to_vec());
        intake.feed(b"MSG in.0 8 22\r\n{\"stream\":\"S\",\"seq\":5}\r\n").unwrap();
        assert_eq!((intake.acks.floor(), intake.take_events().len()), (1, 0));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in
            [&b"HTTP/1.1 200 OK\r\n"[..], b"MSG a 1\r\n", b"MSG a x 1\r\n", b"HMSG a 1 5 2\r\n", b"MSG a 1 1\r\nabc"]
        {
            assert!(matches!(Intake::default().feed(bad), Err(IntakeError::Malformed(_))), "{bad:?}");
        }
        assert_eq!(Intake::default().feed(b"MSG a 1 999999999\r\n"), Err(IntakeError::TooLarge(999999999)));
    }

    proptest! {
        /// Cut anywhere, the same comes out; random bytes never panic.
        #[test]
        fn cuts_do_not_matter(cut in 0usize..150) {
            let text = b"MSG o.1 7 $JS.ACK.S.C.1.41.1.99.1 2\r\nab\r\nPING\r\nHMSG o.2 7 $JS.ACK.S.C.1.42.2.100.0 12 13\r\nNATS/1.0\r\n\r\nc\r\n-ERR 'x'\r\n";
            let mut intake = intake();
            let cut = cut.min(text.len());
            intake.feed(&text[..cut]).unwrap();
            let before = intake.take_batch();
            intake.feed(&text[cut..]).unwrap();
            let after = intake.take_batch();
            let positions: Vec<u64> = [before, after].iter().flat_map(|b| b.entries().iter().map(|e| e.position).collect::<Vec<_>>()).collect();
            prop_assert_eq!(positions, vec![41, 42]);
            prop_assert_eq!(intake.take_events(), vec![Event::Ping, Event::Error(b"x".to_vec())]);
        }

        #[test]
        fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..40) {
            let mut talk = b"MSG a 7 $JS.ACK.S.C.1.41.1.99.1 2\r\nab\r\n".to_vec();
            talk.splice(at..at, bytes);
            let mut intake = intake();
            let _ = intake.feed(&talk);
            let batch = intake.take_batch();
            for entry in batch.entries() { batch.bytes(entry.data); }
        }
    }
}
