//! Which of the numbered publishes were answered.
//!
//! ```text
//!   base ─┬─────────────── window ───────────────┬─ next
//!         │ answered │ not yet │ answered │ … │     numbers are given out in order, answers come in any
//! ```

use std::collections::VecDeque;

use memchr::memmem;

/// What a server said to one publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Stored(u64),
    Duplicate,
}

#[derive(Default)]
pub struct Acks {
    base: u64,
    answered: VecDeque<bool>,
    pub stored: u64,
    pub duplicates: u64,
    pub last_sequence: u64,
}

impl Acks {
    /// Numbers for `count` more publishes; the first of them.
    pub fn open(&mut self, count: usize) -> u64 {
        let first = self.next();
        self.answered.resize(self.answered.len() + count, false);
        first
    }

    pub fn next(&self) -> u64 {
        self.base + self.answered.len() as u64
    }

    /// Everything below was answered.
    pub fn floor(&self) -> u64 {
        self.base
    }

    /// How many are between the first one without an answer and the newest.
    pub fn open_count(&self) -> usize {
        self.answered.len()
    }

    /// An answer; false for a number that nobody waits for (it was sent twice and answered twice).
    pub fn resolve(&mut self, number: u64, answer: Answer) -> bool {
        let Some(slot) = number.checked_sub(self.base).and_then(|at| self.answered.get_mut(at as usize)) else {
            return false;
        };
        if std::mem::replace(slot, true) {
            return false;
        }
        match answer {
            Answer::Stored(sequence) => {
                self.stored += 1;
                self.last_sequence = self.last_sequence.max(sequence);
            }
            Answer::Duplicate => self.duplicates += 1,
        }
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.base += 1;
        }
        true
    }
}

/// A pub-ack in the form that servers write it; None for all else (errors above all): the caller reads that itself.
pub fn parse_ack(payload: &[u8]) -> Option<Answer> {
    if let Some(sequence) = plain_ack(payload) {
        return Some(Answer::Stored(sequence));
    }
    if !payload.starts_with(b"{\"stream\":\"") || memmem::find(payload, b"\"error\"").is_some() {
        return None;
    }
    if value(payload, b"\"duplicate\":").is_some_and(|value| value.starts_with(b"true")) {
        return Some(Answer::Duplicate);
    }
    let digits = value(payload, b"\"seq\":")?.iter().take_while(|byte| byte.is_ascii_digit());
    let mut sequence = None;
    for digit in digits.take(19) {
        sequence = Some(sequence.unwrap_or(0) * 10 + u64::from(digit - b'0'));
    }
    sequence.map(Answer::Stored)
}

/// Whether a pub-ack names this stream. `name` is written as in JSON.
pub fn is_from(payload: &[u8], name: &[u8]) -> bool {
    let rest = payload.strip_prefix(b"{\"stream\":\"").and_then(|rest| rest.strip_prefix(name));
    rest.is_some_and(|rest| rest.starts_with(b"\""))
}

/// `{"stream":"NAME","seq":7}`, with or without a blank: nearly all of them, read without a search.
fn plain_ack(payload: &[u8]) -> Option<u64> {
    let name = payload.strip_prefix(b"{\"stream\":\"")?;
    let rest = name[memchr::memchr(b'"', name)? + 1..].strip_prefix(b",")?.trim_ascii_start();
    let digits = rest.strip_prefix(b"\"seq\":")?.trim_ascii_start().strip_suffix(b"}")?;
    if digits.is_empty() || digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// What follows a field's name; servers write a blank there or none.
fn value<'a>(payload: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let at = memmem::find(payload, name)? + name.len();
    Some(payload[at..].trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_in_any_order() {
        let mut acks = Acks::default();
        assert_eq!(acks.open(3), 0);
        assert!(acks.resolve(2, Answer::Stored(9)));
        assert!(!acks.resolve(2, Answer::Stored(9)), "answered twice");
        assert_eq!((acks.floor(), acks.open_count()), (0, 3));
        assert!(acks.resolve(0, Answer::Stored(7)) && acks.resolve(1, Answer::Duplicate));
        assert_eq!((acks.floor(), acks.open_count(), acks.stored, acks.duplicates), (3, 0, 2, 1));
        assert!(!acks.resolve(1, Answer::Duplicate) && !acks.resolve(3, Answer::Duplicate), "nobody waits");
        assert_eq!((acks.open(1), acks.last_sequence), (3, 9));
    }

    #[test]
    fn acks_as_servers_write_them() {
        assert_eq!(parse_ack(br#"{"stream":"S","seq":12}"#), Some(Answer::Stored(12)));
        assert_eq!(parse_ack(br#"{"stream":"S", "seq": 3,"domain":"d"}"#), Some(Answer::Stored(3)));
        assert_eq!(parse_ack(br#"{"stream":"S","seq":12,"duplicate":true}"#), Some(Answer::Duplicate));
        assert_eq!(parse_ack(br#"{"stream":"S","seq":12,"duplicate": true}"#), Some(Answer::Duplicate));
        assert_eq!(parse_ack(br#"{"error":{"code":503},"stream":"S","seq":0}"#), None);
        assert_eq!(parse_ack(br#"{"stream":"S","seq":}"#), None);
        assert_eq!(parse_ack(b""), None);
        assert!(is_from(br#"{"stream":"S","seq":12}"#, b"S"));
        assert!(!is_from(br#"{"stream":"ST","seq":12}"#, b"S") && !is_from(br#"{"error":{}}"#, b"S"));
    }
}
