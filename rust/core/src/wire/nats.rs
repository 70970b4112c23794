//! The NATS client protocol: one call takes one operation off the front of a buffer.
//!
//! ```text
//!   CONNECT {json}␍␊   PING␍␊   PONG␍␊   +OK␍␊   -ERR …␍␊   INFO …␍␊
//!   SUB subject [queue] sid␍␊          UNSUB sid [max]␍␊
//!   PUB subject [reply] #bytes␍␊payload␍␊
//!   HPUB subject [reply] #header #total␍␊header block, payload␍␊
//! ```
//! Names are case-insensitive, fields are separated by runs of blanks and tabs, a bare line feed ends a line
//! too. A payload is counted and must be followed by CRLF.

use memchr::memchr;

/// The limits of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub control_line: usize,
    pub payload: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Op<'a> {
    Connect(&'a [u8]),
    Ping,
    Pong,
    Pub(Publish<'a>),
    Sub {
        subject: &'a [u8],
        queue: Option<&'a [u8]>,
        sid: &'a [u8],
    },
    Unsub {
        sid: &'a [u8],
        max: Option<u64>,
    },
    /// `+OK` and `INFO` from a client: nothing to do.
    Ignored,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    pub subject: &'a [u8],
    pub reply: Option<&'a [u8]>,
    pub headers: Option<&'a [u8]>,
    pub payload: &'a [u8],
}

/// Why a connection must be closed. Those without a text are closed in silence, as nats-server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    UnknownOperation,
    PayloadTooLarge,
    LineTooLong,
    Malformed,
}

impl Fault {
    pub fn text(self) -> Option<&'static str> {
        match self {
            Fault::UnknownOperation => Some("Unknown Protocol Operation"),
            Fault::PayloadTooLarge => Some("Maximum Payload Violation"),
            Fault::LineTooLong => Some("maximum control line exceeded"),
            Fault::Malformed => None,
        }
    }
}

/// The longest name of an operation and a blank.
const NAME_MAX: usize = 8;

/// The first operation of `buffer` and how many bytes it took; None while it is not complete.
pub fn next<'a>(buffer: &'a [u8], limits: &Limits) -> Result<Option<(Op<'a>, usize)>, Fault> {
    // The limit is for what follows the name.
    let window = limits.control_line + NAME_MAX + 2;
    let Some(end) = memchr(b'\n', &buffer[..buffer.len().min(window)]) else {
        let nothing_yet = early(buffer)?;
        let too_long = buffer.len() >= window || arguments_len(buffer) > limits.control_line;
        return if too_long { Err(Fault::LineTooLong) } else { Ok(nothing_yet) };
    };
    let after = end + 1;
    let line = buffer[..end].strip_suffix(b"\r").unwrap_or(&buffer[..end]);
    if arguments_len(line) > limits.control_line {
        return early(buffer).and(Err(Fault::LineTooLong));
    }
    let (word, rest) = split_word(line);
    if rest.is_empty() && [&b"PUB"[..], b"HPUB", b"SUB", b"UNSUB"].iter().any(|name| word.eq_ignore_ascii_case(name)) {
        return Err(Fault::UnknownOperation);
    }
    let op = match word.len() {
        3 if word.eq_ignore_ascii_case(b"PUB") => return publish(buffer, rest, after, false, limits),
        4 if word.eq_ignore_ascii_case(b"HPUB") => return publish(buffer, rest, after, true, limits),
        4 if word.eq_ignore_ascii_case(b"PING") => Op::Ping,
        4 if word.eq_ignore_ascii_case(b"PONG") => Op::Pong,
        3 if word.eq_ignore_ascii_case(b"SUB") => subscribe(rest)?,
        5 if word.eq_ignore_ascii_case(b"UNSUB") => unsubscribe(rest)?,
        7 if word.eq_ignore_ascii_case(b"CONNECT") => Op::Connect(trim(rest)),
        3 if word.eq_ignore_ascii_case(b"+OK") => Op::Ignored,
        4 if word.eq_ignore_ascii_case(b"INFO") => Op::Ignored,
        4 if word.eq_ignore_ascii_case(b"-ERR") => return Err(Fault::Malformed),
        _ => return Err(Fault::UnknownOperation),
    };
    Ok(Some((op, after)))
}

/// A line that is not complete: refuse at once what cannot become an operation.
fn early<'a>(buffer: &'a [u8]) -> Result<Option<(Op<'a>, usize)>, Fault> {
    let possible =
        |byte: u8| matches!(byte.to_ascii_uppercase(), b'C' | b'P' | b'S' | b'U' | b'H' | b'I' | b'+' | b'-');
    match buffer.first() {
        Some(first) if !possible(*first) && *first != b'\r' => Err(Fault::UnknownOperation),
        _ => Ok(None),
    }
}

fn arguments_len(line: &[u8]) -> usize {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (_, rest) = split_word(line);
    rest.iter().position(|byte| !is_blank(*byte)).map_or(0, |start| rest.len() - start)
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes {
        if !is_blank(*first) {
            break;
        }
        bytes = rest;
    }
    while let [rest @ .., last] = bytes {
        if !is_blank(*last) && *last != b'\r' {
            break;
        }
        bytes = rest;
    }
    bytes
}

fn split_word(line: &[u8]) -> (&[u8], &[u8]) {
    let end = line.iter().position(|byte| is_blank(*byte)).unwrap_or(line.len());
    (&line[..end], &line[end..])
}

/// Up to five fields, and how many there are.
fn fields(line: &[u8]) -> ([&[u8]; 5], usize) {
    let mut found: [&[u8]; 5] = [b""; 5];
    let mut count = 0;
    for field in line.split(|byte| is_blank(*byte) || *byte == b'\r').filter(|field| !field.is_empty()) {
        if count < found.len() {
            found[count] = field;
        }
        count += 1;
    }
    (found, count)
}

/// A decimal number of at most nine digits: sizes are limited far below.
fn size(field: &[u8]) -> Option<usize> {
    if field.is_empty() || field.len() > 9 {
        return None;
    }
    field.iter().try_fold(0usize, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + usize::from(byte - b'0')))
}

fn publish<'a>(
    buffer: &'a [u8],
    arguments: &'a [u8],
    after: usize,
    with_headers: bool,
    limits: &Limits,
) -> Result<Option<(Op<'a>, usize)>, Fault> {
    let (field, count) = fields(arguments);
    let sizes = if with_headers { 2 } else { 1 };
    let reply = match count - count.min(sizes) {
        1 => None,
        2 => Some(field[1]),
        _ => return Err(Fault::Malformed),
    };
    let total = size(field[count - 1]).ok_or(Fault::Malformed)?;
    let header = if with_headers { size(field[count - 2]).ok_or(Fault::Malformed)? } else { 0 };
    if header > total {
        return Err(Fault::Malformed);
    }
    if total > limits.payload {
        return Err(Fault::PayloadTooLarge);
    }
    let end = after + total;
    let Some(tail) = buffer.get(end..end + 2) else { return Ok(None) };
    if tail != b"\r\n" {
        return Err(Fault::UnknownOperation);
    }
    let headers = (header > 0).then(|| &buffer[after..after + header]);
    let publish = Publish { subject: field[0], reply, headers, payload: &buffer[after + header..end] };
    Ok(Some((Op::Pub(publish), end + 2)))
}

fn subscribe(arguments: &[u8]) -> Result<Op<'_>, Fault> {
    let (field, count) = fields(arguments);
    match count {
        2 => Ok(Op::Sub { subject: field[0], queue: None, sid: field[1] }),
        3 => Ok(Op::Sub { subject: field[0], queue: Some(field[1]), sid: field[2] }),
        _ => Err(Fault::Malformed),
    }
}

fn unsubscribe(arguments: &[u8]) -> Result<Op<'_>, Fault> {
    let (field, count) = fields(arguments);
    match count {
        1 => Ok(Op::Unsub { sid: field[0], max: None }),
        2 => Ok(Op::Unsub { sid: field[0], max: size(field[1]).map(|max| max as u64) }),
        _ => Err(Fault::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { control_line: 4096, payload: 1024 };

    fn one(text: &[u8]) -> Result<Option<(Op<'_>, usize)>, Fault> {
        next(text, &LIMITS)
    }

    #[test]
    fn publishes_in_all_forms() {
        let plain = Publish { subject: b"a.b", reply: None, headers: None, payload: b"hello" };
        assert_eq!(one(b"PUB a.b 5\r\nhello\r\nPING\r\n"), Ok(Some((Op::Pub(plain), 18))));
        let full = Publish { subject: b"a", reply: Some(b"r"), headers: Some(b"NATS/1.0\r\n\r\n"), payload: b"" };
        assert_eq!(one(b"hpub\ta  r 12 12\r\nNATS/1.0\r\n\r\n\r\n"), Ok(Some((Op::Pub(full), 31))));
        assert_eq!(one(b"PUB a 5\r\nhell"), Ok(None));
        assert_eq!(one(b"PUB a 5\r\nhelloxx"), Err(Fault::UnknownOperation));
        assert_eq!(one(b"PUB a 1025\r\n"), Err(Fault::PayloadTooLarge));
        for bad in
            [&b"PUB a xx\r\n"[..], b"PUB a\r\n", b"PUB a -1\r\n", b"HPUB a 10 5\r\n", b"PUB a b c 1\r\n", b"PUB \r\n"]
        {
            assert_eq!(one(bad), Err(Fault::Malformed), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn subscribes_and_small_talk() {
        assert_eq!(one(b"SUB a.* q 7\r\n"), Ok(Some((Op::Sub { subject: b"a.*", queue: Some(b"q"), sid: b"7" }, 13))));
        assert_eq!(one(b"UNSUB 7 3\n"), Ok(Some((Op::Unsub { sid: b"7", max: Some(3) }, 10))));
        assert_eq!(one(b"UNSUB\r\n"), Err(Fault::UnknownOperation));
        assert_eq!(one(b"\r\n"), Err(Fault::UnknownOperation));
        assert_eq!(one(b"SUB a\r\n"), Err(Fault::Malformed));
        assert_eq!(one(b"SUB a q 1 2\r\n"), Err(Fault::Malformed));
        assert_eq!(one(b"CONNECT  {\"a\":1} \r\n"), Ok(Some((Op::Connect(b"{\"a\":1}"), 19))));
        assert_eq!(one(b"GET / HTTP/1.1"), Err(Fault::UnknownOperation));
        assert_eq!(one(&[b"SUB ", &vec![b'x'; 4097][..]].concat()), Err(Fault::LineTooLong));
        assert_eq!(one(&[b"SUB ", &vec![b'x'; 4096][..]].concat()), Ok(None));
        assert_eq!(one(&[b"PING", &vec![b' '; 4106][..]].concat()), Err(Fault::LineTooLong));
    }

    proptest! {
        /// Cut anywhere, the operations are the same; random bytes never panic.
        #[test]
        fn cuts_do_not_matter(cut in 0usize..60) {
            let text = b"PUB a.b 5\r\nhello\r\nSUB x 1\r\nHPUB a 12 13\r\nNATS/1.0\r\n\r\nx\r\n";
            let mut at = 0;
            while let Ok(Some((_, taken))) = one(&text[at..cut.min(text.len())]) { at += taken; }
            while let Ok(Some((_, taken))) = one(&text[at..]) { at += taken; }
            prop_assert_eq!(at, text.len());
        }

        #[test]
        fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut at = 0;
            while let Ok(Some((_, taken))) = one(&bytes[at..]) { at += taken; prop_assert!(taken > 0); }
        }
    }
}
