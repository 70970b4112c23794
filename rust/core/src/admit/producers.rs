//! What producers have done already: for each of them the set of its numbers (`numbers.rs`).
//!
//! ```text
//! app/ORDERS   0 ──────── 41 │ 44 ── 60 │ 90        everything below 42 is done, so are 44 to 60, and 90
//! ```
//!
//! A set, and not one highest number: several tasks of a producer publish interleaved, in any order, and a filter
//! leaves gaps. What a run adds stays unsure until its messages are in the store, and can be taken back.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::headers::Headers;
use super::numbers::{Numbers, Shown};
use crate::batch::Batch;

const NAME_BYTES_MAX: usize = 256;
/// How many numbers one message may stand for.
pub const WIDTH_MAX: u64 = 1 << 20;
/// Sizes are computed anew when what came since may have added this much.
const RECOUNT_BYTES: usize = 2 << 20;
const SOURCE: &[u8] = b"Nats-Stream-Source";

struct Marks {
    name: Arc<[u8]>,
    done: Numbers,
    /// No number above this was ever done: mostly the next one is above, and nothing has to be looked up.
    highest: Option<u64>,
    used_ns: i64,
    /// As of the last count.
    bytes: usize,
    changed: bool,
}

impl Marks {
    fn has_done(&self, number: u64) -> bool {
        self.highest.is_some_and(|highest| number <= highest) && self.done.contains(number)
    }
}

/// Numbers that a message of a run added and that may have to go again.
struct Unsure {
    sequence: u64,
    name: Arc<[u8]>,
    first: u64,
    last: u64,
    /// Only these of them; None: all.
    added: Option<Box<Numbers>>,
}

impl Unsure {
    fn take_from(&self, done: &mut Numbers) {
        match &self.added {
            None => done.cut(self.first, self.last),
            Some(added) => done.subtract(added),
        }
    }
}

/// What the two headers of a message mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// Not done yet; these numbers belong to it.
    Fresh(u64, u64),
    Done,
    Malformed,
    TooManyBytes,
    TooManyProducers,
}

/// A producer as it is saved: name, last use, floor and bitmaps.
pub type Saved<'a> = (&'a [u8], i64, u64, Vec<u8>);

pub struct Producers {
    /// Whether numbers are taken; before the first one somebody has to note that there are any.
    pub open: bool,
    /// How often numbers were added: says whether something is new.
    pub changes: u64,
    known: HashMap<Arc<[u8]>, Marks, RandomState>,
    bytes: usize,
    /// At most this was added since `bytes` was counted.
    uncounted: usize,
    producers_max: usize,
    bytes_max: usize,
    unsure: Vec<Unsure>,
}

impl Producers {
    pub fn new(producers_max: usize, bytes_max: usize) -> Self {
        let (known, unsure) = (HashMap::default(), Vec::new());
        Producers { open: false, changes: 0, known, bytes: 0, uncounted: 0, producers_max, bytes_max, unsure }
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub fn judge(&self, name: Option<&[u8]>, numbers: Option<&[u8]>) -> Judged {
        let numbers = numbers.and_then(parse).filter(|(first, last)| last - first < WIDTH_MAX);
        let (Some(name), Some((first, last))) = (name.filter(|name| is_name(name)), numbers) else {
            return Judged::Malformed;
        };
        match self.known.get(name) {
            Some(marks) if marks.has_done(last) => Judged::Done,
            None if self.known.len() >= self.producers_max => Judged::TooManyProducers,
            _ if self.bytes >= self.bytes_max => Judged::TooManyBytes,
            _ => Judged::Fresh(first, last),
        }
    }

    /// `[first, last]` is done by the message that is to get `sequence`; unsure until it is stored.
    pub fn join(&mut self, name: &[u8], first: u64, last: u64, sequence: u64, now_ns: i64) {
        if !self.known.contains_key(name) {
            self.change(name, |_| ());
        }
        let marks = self.known.get_mut(name).expect("made above if it was not there");
        let added = if first == last && !marks.has_done(last) { None } else { marks.done.missing(first, last) };
        let added = added.map(Box::new);
        self.unsure.push(Unsure { sequence, name: marks.name.clone(), first, last, added });
        marks.done.add(first, last);
        marks.highest = marks.highest.max(Some(last));
        marks.used_ns = marks.used_ns.max(now_ns);
        marks.changed = true;
        self.changes += 1;
        self.added(first, last);
    }

    /// The marks of a producer, made if it has none.
    fn change(&mut self, name: &[u8], change: impl FnOnce(&mut Marks)) {
        let name: Arc<[u8]> = self.known.get(name).map_or_else(|| name.into(), |marks| marks.name.clone());
        let marks = self.known.entry(name.clone()).or_insert_with(|| Marks {
            name,
            done: Numbers::default(),
            highest: None,
            used_ns: 0,
            bytes: 0,
            changed: false,
        });
        change(marks);
        marks.highest = marks.highest.max(marks.done.highest());
        marks.changed = true;
    }

    /// Counts again before much can have come: never less than the bytes that `[first, last]` takes.
    fn added(&mut self, first: u64, last: u64) {
        let containers = ((last >> 16) - (first >> 16)) as usize + 1;
        // A range in a container that has others turns it into bits, until it is optimized.
        let bits = if first == last { 0 } else { (2 * (last - first)).min(8192) as usize * containers.min(2) };
        self.grown(containers.saturating_mul(32).saturating_add(bits));
    }

    fn grown(&mut self, bytes: usize) {
        self.uncounted = self.uncounted.saturating_add(bytes);
        if self.uncounted >= RECOUNT_BYTES.min(self.bytes_max / 8) {
            self.count();
        }
    }

    fn count(&mut self) {
        for marks in self.known.values_mut().filter(|marks| marks.changed) {
            if self.unsure.is_empty() {
                marks.done.absorb();
            }
            marks.done.optimize();
            let bytes = marks.done.bytes();
            self.bytes = self.bytes - marks.bytes + bytes;
            (marks.bytes, marks.changed) = (bytes, false);
        }
        self.uncounted = 0;
    }

    /// What the numbers of all producers take: what is limited.
    pub fn bytes(&mut self) -> usize {
        self.count();
        self.bytes
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
            let Some(marks) = self.known.get_mut(&unsure.name) else { continue };
            unsure.take_from(&mut marks.done);
            marks.changed = true;
            if marks.done.is_empty() {
                self.drop_marks(&unsure.name);
            }
        }
        self.changes += 1;
        self.count();
    }

    fn drop_marks(&mut self, name: &[u8]) -> bool {
        let gone = self.known.remove(name);
        self.bytes -= gone.as_ref().map_or(0, |marks| marks.bytes);
        gone.is_some()
    }

    /// Everything below a number is done.
    pub fn raise_floor(&mut self, name: &[u8], below: u64, now_ns: i64) {
        self.change(name, |marks| {
            marks.used_ns = now_ns;
            marks.done.raise_floor(below);
        });
        for unsure in self.unsure.iter_mut().filter(|unsure| *unsure.name == *name) {
            unsure.first = unsure.first.max(below);
        }
        self.unsure.retain(|unsure| unsure.first <= unsure.last);
        self.changes += 1;
        self.count();
    }

    /// Numbers of a producer that are known from elsewhere.
    pub fn put(&mut self, name: &[u8], ranges: &[(u64, u64)], used_ns: i64) {
        self.change(name, |marks| marks.used_ns = marks.used_ns.max(used_ns));
        for (first, last) in ranges.iter().copied().filter(|(first, last)| first <= last) {
            self.change(name, |marks| match first {
                0 if last < u64::MAX => marks.done.raise_floor(last + 1),
                _ => marks.done.add(first, last),
            });
            self.added(first, last);
        }
    }

    /// The same as they were saved.
    pub fn load(&mut self, (name, used_ns, floor, raw): (&[u8], i64, u64, &[u8])) -> io::Result<()> {
        let numbers = Numbers::read(floor, raw)?;
        self.change(name, |marks| {
            marks.used_ns = marks.used_ns.max(used_ns);
            marks.done.merge(numbers);
        });
        self.grown(raw.len());
        Ok(())
    }

    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.unsure.retain(|unsure| *unsure.name != *name);
        self.changes += 1;
        self.drop_marks(name)
    }

    /// Makes room: producers that are closed (everything below the last number is done, so that nothing of theirs can be
    /// stored any more) and were last used before a time. How many went.
    pub fn drop_closed(&mut self, before_ns: i64) -> usize {
        let closed = |marks: &&Marks| marks.done.floor() == u64::MAX && marks.used_ns < before_ns;
        let names: Vec<_> = self.known.values().filter(closed).map(|marks| marks.name.clone()).collect();
        for name in &names {
            self.remove(name);
        }
        names.len()
    }

    pub fn names(&self) -> Vec<&[u8]> {
        let mut names: Vec<_> = self.known.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }

    /// The numbers of a producer without what is unsure.
    fn surely<'a>(&self, marks: &'a Marks) -> Cow<'a, Numbers> {
        let mut done = Cow::Borrowed(&marks.done);
        for unsure in self.unsure.iter().filter(|unsure| unsure.name == marks.name) {
            unsure.take_from(done.to_mut());
        }
        done
    }

    /// Last use, and what to see of a producer's numbers, without what is unsure.
    pub fn shown(&self, name: &[u8], ranges_max: usize) -> Option<(i64, Shown)> {
        let marks = self.known.get(name)?;
        Some((marks.used_ns, self.surely(marks).shown(ranges_max)))
    }

    /// What is to be saved of a producer, without what is unsure.
    pub fn saved(&self, name: &[u8]) -> Option<Saved<'_>> {
        let marks = self.known.get(name)?;
        let done = self.surely(marks);
        Some((&marks.name, marks.used_ns, done.floor(), done.write()))
    }

    /// The same of all producers.
    pub fn export(&mut self) -> Vec<Saved<'_>> {
        self.count();
        self.names().into_iter().filter_map(|name| self.saved(name)).collect()
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
                // Another server takes any width. The message itself is number `last`.
                self.put(name, &[(first.max(last.saturating_sub(WIDTH_MAX - 1)), last)], entry.time);
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
