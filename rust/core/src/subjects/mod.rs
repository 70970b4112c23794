//! Subjects and filters by the rules of NATS, and the tree that keeps state per subject.
//!
//! A subject is tokens joined by dots. In a filter the token `*` stands for one token, `>` as the last
//! one for one or more. Stars inside a longer token are plain letters.

mod arena;
mod matcher;
mod patterns;
mod tree;

pub use matcher::Matcher;
pub use patterns::{PatternSet, STEPS_MAX, TooManySteps, first_pair};
pub use tree::{Iter, SubjectTree};

use memchr::memchr;

const SEPARATOR: u8 = b'.';

fn tokens(subject: &[u8]) -> impl Iterator<Item = &[u8]> {
    subject.split(|byte| *byte == SEPARATOR)
}

fn valid_bytes(subject: &[u8]) -> bool {
    !subject.iter().any(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b'\x0c' | 0))
}

/// A subject that a message can have: no wildcard, no empty token, no blank.
pub fn valid_literal(subject: &[u8]) -> bool {
    valid_bytes(subject) && tokens(subject).all(|token| !matches!(token, b"" | b"*" | b">"))
}

/// A subject that can be subscribed to.
pub fn valid_filter(filter: &[u8]) -> bool {
    let open_end = filter == b">" || filter.ends_with(b".>");
    let last = if open_end { filter.len() - 1 } else { filter.len() };
    valid_bytes(filter)
        && tokens(filter).all(|token| !token.is_empty())
        && tokens(&filter[..last]).all(|token| token != b">")
}

/// Whether `filter` (the empty one takes all) selects `subject`.
pub fn matches(filter: &[u8], subject: &[u8]) -> bool {
    let (mut filter, mut subject) = (filter, subject);
    if filter.is_empty() {
        return true;
    }
    loop {
        let wanted_end = memchr(SEPARATOR, filter).unwrap_or(filter.len());
        let end = memchr(SEPARATOR, subject).unwrap_or(subject.len());
        let (wanted, token) = (&filter[..wanted_end], &subject[..end]);
        if wanted == b">" && wanted_end == filter.len() {
            return !subject.is_empty();
        }
        if wanted != token && (wanted != b"*" || token.is_empty()) {
            return false;
        }
        match (wanted_end == filter.len(), end == subject.len()) {
            (true, ends) => return ends,
            (false, true) => return false,
            (false, false) => {}
        }
        filter = &filter[wanted_end + 1..];
        subject = &subject[end + 1..];
    }
}

/// Whether some subject is selected by both filters.
pub fn overlap(a: &[u8], b: &[u8]) -> bool {
    if a.is_empty() || b.is_empty() {
        return true;
    }
    let (mut left, mut right) = (tokens(a), tokens(b));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (None, _) | (_, None) => return false,
            (Some(b">"), _) | (_, Some(b">")) => return true,
            (Some(x), Some(y)) if x == y || x == b"*" || y == b"*" => {}
            _ => return false,
        }
    }
}

/// One element of a filter: a byte, or one of the wildcards.
type Element = u16;
const ONE_TOKEN: Element = 256;
const REST: Element = 257;

/// A filter made ready for many subjects. `""` and `">"` take all.
#[derive(Debug, Clone)]
pub struct Filter {
    text: Box<[u8]>,
    elements: Box<[Element]>,
    literal: bool,
}

impl Filter {
    pub fn new(filter: &[u8]) -> Self {
        let mut elements = Vec::with_capacity(filter.len());
        let mut literal = !filter.is_empty();
        let count = tokens(filter).count();
        for (number, token) in tokens(filter).enumerate() {
            if number > 0 {
                elements.push(Element::from(SEPARATOR));
            }
            match token {
                b"*" => elements.push(ONE_TOKEN),
                b">" if number + 1 == count => elements.push(REST),
                token => elements.extend(token.iter().map(|byte| Element::from(*byte))),
            }
            literal &= !matches!(token, b"*" | b">");
        }
        Filter { text: filter.into(), elements: elements.into(), literal }
    }

    pub fn all() -> Self {
        Filter::new(b"")
    }

    pub fn text(&self) -> &[u8] {
        &self.text
    }

    pub fn takes_all(&self) -> bool {
        matches!(&*self.text, b"" | b">")
    }

    pub fn is_literal(&self) -> bool {
        self.literal
    }

    pub fn matches(&self, subject: &[u8]) -> bool {
        if self.literal { *self.text == *subject } else { matches(&self.text, subject) }
    }

    fn start(&self) -> Progress {
        if self.takes_all() { Progress::ANY } else { Progress { at: 0, inside: false } }
    }

    fn step(&self, from: Progress, byte: u8) -> Option<Progress> {
        if from.takes_any() {
            return Some(from);
        }
        match *self.elements.get(from.at)? {
            REST => Some(Progress::ANY),
            ONE_TOKEN if byte != SEPARATOR => Some(Progress { at: from.at, inside: true }),
            ONE_TOKEN => {
                let goes_on = from.inside && self.elements.get(from.at + 1) == Some(&Element::from(SEPARATOR));
                goes_on.then_some(Progress { at: from.at + 2, inside: false })
            }
            message => (message == Element::from(byte)).then_some(Progress { at: from.at + 1, inside: false }),
        }
    }

    fn advance(&self, from: Progress, bytes: &[u8]) -> Option<Progress> {
        if from.takes_any() {
            return Some(from);
        }
        bytes.iter().try_fold(from, |progress, byte| self.step(progress, *byte))
    }

    /// The only byte that leads on from here, if there is only one.
    fn only_byte(&self, from: Progress) -> Option<u8> {
        u8::try_from(*self.elements.get(from.at)?).ok()
    }

    fn is_complete(&self, at: Progress) -> bool {
        let in_last_token = at.inside && at.at + 1 == self.elements.len();
        at.takes_any() || in_last_token || at.at == self.elements.len()
    }
}

/// How far into a filter the bytes seen so far lead. One token wildcard is consumed byte by byte, so
/// the tree can stop in the middle of a token.
#[derive(Clone, Copy)]
struct Progress {
    at: usize,
    /// At least one byte of the wildcard token was seen.
    inside: bool,
}

impl Progress {
    const ANY: Progress = Progress { at: usize::MAX, inside: false };

    fn takes_any(self) -> bool {
        self.at == usize::MAX
    }
}
