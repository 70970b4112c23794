//! Batches as publishes that want an answer.
//!
//! ```text
//!   HPUB subject inbox.NUMBER #header #total␍␊
//!   NATS/1.0␍␊ own headers … Nats-Expected-Stream: STREAM␍␊ Nats-Msg-Id: ID␍␊
//!   Headrace-Producer: NAME␍␊ Headrace-Producer-Seq: POSITION␍␊␍␊ payload␍␊
//! ```
//! The id is the message's key (a text of the caller), or a prefix and its position. Of two headers with one name a server
//! takes the first: an own header that one of these replaces is left out.

use crate::batch::{Batch, Entry, HeaderCodec};

pub struct Rules<'a> {
    /// Answers come to `inbox.<number>`.
    pub inbox: &'a [u8],
    /// Ids are this and the position; a message with a key has that as its id.
    pub id_prefix: Option<&'a [u8]>,
    /// Name for the marks of producers; the position is the number.
    pub producer: Option<&'a [u8]>,
    /// Any other stream refuses the message.
    pub stream: Option<&'a [u8]>,
    /// Own headers that are left out: conditions on another stream, say.
    pub without: &'a [&'a [u8]],
    pub max_payload: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("message {0}: the subject {1:?} cannot be published to: no blanks, no wildcards, no empty tokens")]
    Subject(usize, String),
    #[error("message {0}: {1} bytes with its headers, the server takes {2}")]
    TooLarge(usize, usize, usize),
    #[error("message {0}: headers that are not NATS headers; recast the batch first")]
    Headers(usize),
    #[error("message {0}: a message id with a line break, or empty")]
    Id(usize),
}

const VERSION: &[u8] = b"NATS/1.0\r\n";
const EXPECTED_STREAM: &[u8] = b"Nats-Expected-Stream";
const MESSAGE_ID: &[u8] = b"Nats-Msg-Id";
const PRODUCER: &[u8] = b"Headrace-Producer";
const PRODUCER_SEQ: &[u8] = b"Headrace-Producer-Seq";

/// The message's own headers, but for those that the rules replace, and the ones that they add.
#[inline]
fn write_headers(
    batch: &Batch,
    at: usize,
    entry: &Entry,
    rules: &Rules<'_>,
    header: &mut Vec<u8>,
) -> Result<(), PublishError> {
    let mut digits = itoa::Buffer::new();
    header.clear();
    if entry.headers.size() > 0 {
        let ours = batch.codec() == HeaderCodec::Nats;
        let raw = batch.bytes(entry.headers);
        let inner = raw.strip_suffix(b"\r\n").filter(|inner| ours && inner.starts_with(VERSION));
        let inner = inner.ok_or(PublishError::Headers(at))?;
        let has_id = !entry.key.is_null() || rules.id_prefix.is_some();
        copy_headers(inner, header, |name| rules.replaces(name, has_id));
    } else {
        header.extend_from_slice(VERSION);
    }
    if let Some(stream) = rules.stream {
        for part in [EXPECTED_STREAM, b": ", stream, b"\r\n"] {
            header.extend_from_slice(part);
        }
    }
    let id: Option<(&[u8], bool)> = match (entry.key.is_null(), rules.id_prefix) {
        (false, _) => Some((batch.bytes(entry.key), false)),
        (true, Some(prefix)) => Some((prefix, true)),
        (true, None) => None,
    };
    if let Some((id, numbered)) = id {
        if id.is_empty() || id.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
            return Err(PublishError::Id(at));
        }
        for part in [MESSAGE_ID, b": ", id] {
            header.extend_from_slice(part);
        }
        if numbered {
            header.extend_from_slice(digits.format(entry.position).as_bytes());
        }
        header.extend_from_slice(b"\r\n");
    }
    if let Some(producer) = rules.producer {
        for part in [PRODUCER, b": ", producer, b"\r\n", PRODUCER_SEQ, b": "] {
            header.extend_from_slice(part);
        }
        header.extend_from_slice(digits.format(entry.position).as_bytes());
        header.extend_from_slice(b"\r\n");
    }
    Ok(())
}

pub fn encode(batch: &Batch, rules: &Rules<'_>, first: u64, out: &mut Vec<u8>) -> Result<(), PublishError> {
    let mut header = Vec::new();
    let mut digits = itoa::Buffer::new();
    let mut checked: &[u8] = b"";
    out.reserve(batch.payload_bytes() as usize + batch.len() * 160);
    for (at, entry) in batch.entries().iter().enumerate() {
        let subject = batch.bytes(entry.subject);
        if subject != checked || subject.is_empty() {
            if !publishable(subject) {
                return Err(PublishError::Subject(at, String::from_utf8_lossy(subject).into_owned()));
            }
            checked = subject;
        }
        write_headers(batch, at, entry, rules, &mut header)?;
        let plain = header.len() == VERSION.len();
        if plain {
            header.clear();
        } else {
            header.extend_from_slice(b"\r\n");
        }
        let data = batch.bytes(entry.data);
        let total = header.len() + data.len();
        if total > rules.max_payload {
            return Err(PublishError::TooLarge(at, total, rules.max_payload));
        }
        out.extend_from_slice(if plain { b"PUB " } else { b"HPUB " });
        out.extend_from_slice(subject);
        out.push(b' ');
        out.extend_from_slice(rules.inbox);
        out.push(b'.');
        out.extend_from_slice(digits.format(first + at as u64).as_bytes());
        out.push(b' ');
        if !plain {
            out.extend_from_slice(digits.format(header.len()).as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(digits.format(total).as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&header);
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    }
    Ok(())
}

impl Rules<'_> {
    /// Whether an own header of this name is left out.
    fn replaces(&self, name: &[u8], has_id: bool) -> bool {
        (self.stream.is_some() && name == EXPECTED_STREAM)
            || (has_id && name == MESSAGE_ID)
            || (self.producer.is_some() && (name == PRODUCER || name == PRODUCER_SEQ))
            || self.without.contains(&name)
    }
}

/// The lines of a header block whose names are not dropped; the first line has none.
fn copy_headers(block: &[u8], out: &mut Vec<u8>, dropped: impl Fn(&[u8]) -> bool) {
    for (at, line) in block.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let name = memchr::memchr(b':', line).map_or(&b""[..], |end| line[..end].trim_ascii());
        if at == 0 || !dropped(name) {
            out.extend_from_slice(line);
        }
    }
}

/// Acks (or other words) to messages whose keys are their replies; answered when they are safe.
pub fn encode_acks(
    batch: &Batch,
    word: &[u8],
    inbox: &[u8],
    first: u64,
    out: &mut Vec<u8>,
) -> Result<(), PublishError> {
    let mut digits = itoa::Buffer::new();
    for (at, entry) in batch.entries().iter().enumerate() {
        let reply = batch.bytes(entry.key);
        if !publishable(reply) {
            return Err(PublishError::Subject(at, String::from_utf8_lossy(reply).into_owned()));
        }
        out.extend_from_slice(b"PUB ");
        out.extend_from_slice(reply);
        out.push(b' ');
        out.extend_from_slice(inbox);
        out.push(b'.');
        out.extend_from_slice(digits.format(first + at as u64).as_bytes());
        out.push(b' ');
        out.extend_from_slice(itoa::Buffer::new().format(word.len()).as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    Ok(())
}

fn publishable(subject: &[u8]) -> bool {
    let token = |token: &[u8]| !token.is_empty() && token != b"*" && token != b">";
    let byte = |byte: &u8| *byte > b' ' && *byte != 127;
    !subject.is_empty() && subject.iter().all(byte) && subject.split(|byte| *byte == b'.').all(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchBuilder, Message};

    fn batch(subject: &[u8], key: Option<&[u8]>, headers: Option<&[u8]>) -> Batch {
        let mut builder = BatchBuilder::with_capacity(1, 64, HeaderCodec::Nats);
        let message = Message { position: 41, time: 0, subject, key, headers, data: Some(b"hi"), flags: 0 };
        builder.push(message).unwrap();
        builder.finish()
    }

    fn rules<'a>(id_prefix: Option<&'a [u8]>, producer: Option<&'a [u8]>) -> Rules<'a> {
        Rules { inbox: b"in", id_prefix, producer, stream: None, without: &[], max_payload: 200 }
    }

    fn encoded(batch: &Batch, rules: &Rules<'_>) -> Result<String, PublishError> {
        let mut out = Vec::new();
        encode(batch, rules, 7, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn text(batch: &Batch, id_prefix: Option<&[u8]>, producer: Option<&[u8]>) -> Result<String, PublishError> {
        encoded(batch, &rules(id_prefix, producer))
    }

    #[test]
    fn in_every_form() {
        assert_eq!(text(&batch(b"a.b", None, None), None, None).unwrap(), "PUB a.b in.7 2\r\nhi\r\n");
        let own = batch(b"a", None, Some(b"NATS/1.0\r\nX: y\r\n\r\n"));
        assert_eq!(
            text(&own, Some(b"app:S:"), Some(b"app/S")).unwrap(),
            "HPUB a in.7 94 96\r\nNATS/1.0\r\nX: y\r\nNats-Msg-Id: app:S:41\r\nHeadrace-Producer: app/S\r\nHeadrace-Producer-Seq: 41\r\n\r\nhi\r\n"
        );
        let keyed = batch(b"a", Some(b"mine"), None);
        assert_eq!(
            text(&keyed, Some(b"x"), None).unwrap(),
            "HPUB a in.7 31 33\r\nNATS/1.0\r\nNats-Msg-Id: mine\r\n\r\nhi\r\n"
        );
    }

    #[test]
    fn a_named_stream_and_headers_that_are_replaced() {
        let rules = Rules { stream: Some(b"S"), without: &[b"Gone"], ..rules(None, None) };
        let bare = batch(b"a", None, None);
        assert_eq!(
            encoded(&bare, &rules).unwrap(),
            "HPUB a in.7 37 39\r\nNATS/1.0\r\nNats-Expected-Stream: S\r\n\r\nhi\r\n"
        );
        let block = b"NATS/1.0\r\nNats-Expected-Stream: OLD\r\nGone: 1\r\nNats-Msg-Id: own\r\nX: y\r\n\r\n";
        let wanted = "NATS/1.0\r\nNats-Msg-Id: own\r\nX: y\r\nNats-Expected-Stream: S\r\n\r\nhi\r\n";
        assert!(encoded(&batch(b"a", None, Some(block)), &rules).unwrap().ends_with(wanted));
        let keyed = encoded(&batch(b"a", Some(b"new"), Some(block)), &rules).unwrap();
        assert!(keyed.contains("Nats-Msg-Id: new") && !keyed.contains("own"), "{keyed}");
    }

    #[test]
    fn what_cannot_be_sent() {
        for bad in [&b""[..], b"a b", b"a..b", b"a.*", b">", b"a\r\nPUB x 0"] {
            assert!(matches!(text(&batch(bad, None, None), None, None), Err(PublishError::Subject(0, _))), "{bad:?}");
        }
        assert!(matches!(text(&batch(b"a", Some(b"x\r\ny"), None), None, None), Err(PublishError::Id(0))));
        assert!(matches!(text(&batch(b"a", None, Some(b"nonsense")), None, None), Err(PublishError::Headers(0))));
        let long = batch(b"a", None, None);
        assert!(matches!(text(&long, Some(&[b'x'; 200]), None), Err(PublishError::TooLarge(0, ..))));
    }
}
