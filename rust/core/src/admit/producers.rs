//! What producers have done already: for each of them the set of its numbers, as ranges that never touch.
//!
//! ```text
//! app/ORDERS   0 ──────── 41 │ 44 ── 60 │ 90        everything below 42 is done, so are 44 to 60, and 90
//! ```
//!
//! Ranges, and not one highest number: several tasks of a producer publish interleaved, in any order. What a run adds
//! stays unsure until its messages are in the store, and can be taken back piece by piece.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::headers::Headers;
use crate::batch::Batch;

const NAME_BYTES_MAX: usize = 256;
const SOURCE: &[u8] = b"Nats-Stream-Source";

/// Numbers as ranges: first → last, both inside, no two of them neighbours.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    /// Whether a range that ends or begins here grows when `[first, last]` comes.
    fn touches(&self, first: u64, last: u64) -> bool {
        let below = self.0.range(..=last.saturating_add(1)).next_back();
        below.is_some_and(|(_, end)| *end >= first.saturating_sub(1))
    }

    /// The parts of `[first, last]` that are not there.
    fn missing(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let (mut found, mut at) = (Vec::new(), first);
        let from = self.0.range(..=first).next_back().map_or(first, |(start, _)| *start);
        for (start, end) in self.0.range(from..=last) {
            if *start > at {
                found.push((at, *start - 1));
            }
            if *end >= last {
                return found;
            }
            at = at.max(*end + 1);
        }
        found.push((at, last));
        found
    }

    pub fn add(&mut self, mut first: u64, mut last: u64) {
        if let Some(mut newest) = self.0.last_entry() {
            if newest.get().checked_add(1) == Some(first) {
                newest.insert(last);
                return;
            }
        }
        while let Some((start, end)) = self.0.range(..=last.saturating_add(1)).next_back().map(|(a, b)| (*a, *b)) {
            if end < first.saturating_sub(1) {
                break;
            }
            self.0.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        self.0.insert(first, last);
    }

    /// Takes numbers out again.
    fn cut(&mut self, first: u64, last: u64) {
        while let Some((start, end)) = self.0.range(..=last).next_back().map(|(a, b)| (*a, *b)) {
            if end < first {
                break;
            }
            self.0.remove(&start);
            if end > last {
                self.0.insert(last + 1, end);
            }
            if start < first {
                self.0.insert(start, first - 1);
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(first, last)| (*first, *last))
    }
}

#[derive(Debug, Default, Clone)]
struct Marks {
    done: Ranges,
    used_ns: i64,
}

/// Numbers that a message of a run added and that may have to go again.
struct Unsure {
    sequence: u64,
    name: Arc<[u8]>,
    first: u64,
    last: u64,
}

/// What the two headers of a message mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// Not done yet; these numbers belong to it.
    Fresh(u64, u64),
    Done,
    Malformed,
    TooManyRanges,
    TooManyProducers,
}

pub struct Producers {
    /// Whether numbers are taken; before the first one somebody has to note that there are any.
    pub open: bool,
    /// How often numbers were added: tells whether something is new.
    pub changes: u64,
    known: HashMap<Arc<[u8]>, Marks, RandomState>,
    ranges: usize,
    producers_max: usize,
    ranges_max: usize,
    unsure: Vec<Unsure>,
}

impl Producers {
    pub fn new(producers_max: usize, ranges_max: usize) -> Self {
        let known = HashMap::default();
        Producers { open: false, changes: 0, known, ranges: 0, producers_max, ranges_max, unsure: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub fn judge(&self, name: Option<&[u8]>, numbers: Option<&[u8]>) -> Judged {
        let (Some(name), Some((first, last))) = (name.filter(|name| is_name(name)), numbers.and_then(parse)) else {
            return Judged::Malformed;
        };
        match self.known.get(name) {
            Some(marks) if marks.done.contains(last) => Judged::Done,
            Some(marks) if self.ranges < self.ranges_max || marks.done.touches(first, last) => {
                Judged::Fresh(first, last)
            }
            None if self.known.len() >= self.producers_max => Judged::TooManyProducers,
            None if self.ranges < self.ranges_max => Judged::Fresh(first, last),
            _ => Judged::TooManyRanges,
        }
    }

    /// `[first, last]` is done by the message that is to get `sequence`; unsure until it is stored.
    pub fn join(&mut self, name: &[u8], first: u64, last: u64, sequence: u64, now_ns: i64) {
        let name = self.name(name);
        let (ranges, unsure) = (&mut self.ranges, &mut self.unsure);
        let marks = self.known.entry(name.clone()).or_default();
        for (first, last) in marks.done.missing(first, last) {
            unsure.push(Unsure { sequence, name: name.clone(), first, last });
        }
        let before = marks.done.len();
        marks.done.add(first, last);
        marks.used_ns = marks.used_ns.max(now_ns);
        *ranges = *ranges + marks.done.len() - before;
        self.changes += 1;
    }

    fn name(&self, name: &[u8]) -> Arc<[u8]> {
        self.known.get_key_value(name).map_or_else(|| name.into(), |(known, _)| known.clone())
    }

    /// All ranges of all producers: what is limited.
    pub fn ranges(&self) -> usize {
        self.ranges
    }

    /// Everything so far is in the store.
    pub fn sure(&mut self) {
        self.unsure.clear();
    }

    /// Messages up to this sequence are in the store.
    pub fn stored(&mut self, sequence: u64) {
        self.unsure.retain(|unsure| unsure.sequence > sequence);
    }

    /// The first sequence that may not be in the store.
    pub fn unsure_from(&self) -> Option<u64> {
        self.unsure.iter().map(|unsure| unsure.sequence).min()
    }

    /// Takes back what is unsure.
    pub fn forget(&mut self) {
        for unsure in std::mem::take(&mut self.unsure) {
            self.change(&unsure.name, |marks| marks.done.cut(unsure.first, unsure.last));
            if self.known.get(&unsure.name).is_some_and(|marks| marks.done.is_empty()) {
                self.known.remove(&unsure.name);
            }
        }
        self.changes += 1;
    }

    fn change(&mut self, name: &[u8], change: impl FnOnce(&mut Marks)) {
        if let Some(marks) = self.known.get_mut(name) {
            let before = marks.done.len();
            change(marks);
            self.ranges = self.ranges + marks.done.len() - before;
        }
    }

    /// Everything below a number is done.
    pub fn settle(&mut self, name: &[u8], below: u64, now_ns: i64) {
        let name = self.name(name);
        self.known.entry(name.clone()).or_default().used_ns = now_ns;
        if below > 0 {
            self.change(&name, |marks| marks.done.add(0, below - 1));
            for unsure in &mut self.unsure {
                if unsure.name == name {
                    unsure.first = unsure.first.max(below);
                }
            }
            self.unsure.retain(|unsure| unsure.first <= unsure.last);
        }
        self.changes += 1;
    }

    /// Numbers of a producer that are known from elsewhere.
    pub fn put(&mut self, name: &[u8], ranges: &[(u64, u64)], used_ns: i64) {
        let name = self.name(name);
        let marks = self.known.entry(name.clone()).or_default();
        marks.used_ns = marks.used_ns.max(used_ns);
        self.change(&name, |marks| {
            for (first, last) in ranges.iter().filter(|(first, last)| first <= last) {
                marks.done.add(*first, *last);
            }
        });
    }

    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.unsure.retain(|unsure| *unsure.name != *name);
        self.changes += 1;
        let gone = self.known.remove(name);
        self.ranges -= gone.as_ref().map_or(0, |marks| marks.done.len());
        gone.is_some()
    }

    /// (name, last use, ranges) of each producer, without what is unsure.
    pub fn export(&self) -> Vec<(&[u8], i64, Ranges)> {
        let mut found: Vec<_> =
            self.known.iter().map(|(name, marks)| (&**name, marks.used_ns, marks.done.clone())).collect();
        found.sort_unstable_by_key(|(name, ..)| *name);
        for unsure in &self.unsure {
            if let Ok(at) = found.binary_search_by_key(&&*unsure.name, |(name, ..)| *name) {
                found[at].2.cut(unsure.first, unsure.last);
            }
        }
        found
    }

    /// Adds the numbers of stored messages behind a sequence. What came from another stream was not checked here.
    pub fn take(&mut self, batch: &Batch, above: u64) {
        for entry in batch.entries().iter().filter(|entry| entry.position > above && !entry.headers.is_null()) {
            let headers = Headers::parse(batch.bytes(entry.headers));
            if headers.producer.is_none() || headers.get(SOURCE).is_some() {
                continue;
            }
            let name = headers.producer.filter(|name| is_name(name));
            if let (Some(name), Some((first, last))) = (name, headers.producer_numbers.and_then(parse)) {
                self.put(name, &[(first, last)], entry.time);
            }
        }
    }
}

pub fn is_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && std::str::from_utf8(name).is_ok_and(|text| !text.chars().any(char::is_control))
}

/// `n`, or `p-n` with p ≤ n.
fn parse(text: &[u8]) -> Option<(u64, u64)> {
    let number = |digits: &[u8]| -> Option<u64> {
        let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(digits).ok().filter(|_| all)?.parse().ok()
    };
    match memchr::memchr(b'-', text) {
        None => number(text).map(|last| (last, last)),
        Some(at) => {
            let (first, last) = (number(&text[..at])?, number(&text[at + 1..])?);
            (first <= last).then_some((first, last))
        }
    }
}
