//! `admit`: which messages of a run may be stored, by a plan of checks that Python made from the configuration.
//!
//! The kernel walks the run message by message; each accepted one is visible to the next (as if it were stored
//! already). Every rule about a publish is here, once. The walk ends before a message that needs something which is
//! not the kernel's: the prefix is decided, `Stopped` says what is needed, and the message is asked for again then.

mod headers;
mod numbers;
pub mod producers;
mod window;

pub use headers::{Headers, NO_HEADERS, value_of};
pub use numbers::{Numbers, Shown};
pub use producers::{Judged, Producers};
pub use window::Window;

use std::collections::HashMap;
use std::sync::MutexGuard;

use crate::batch::Entry;
use crate::exchange::runs::{PublishRun, Verdict};
use crate::layouts::jetstream::log::{AppendRules, Appended, BlockLog, Inner, LogResult};
use crate::layouts::jetstream::record::record_bytes;
use crate::subjects::Filter;

/// The number of a text in the plan that answers a refusal. `{}` in it stands for the value seen.
pub type Answer = u32;

/// One check, in the order in which a message meets them.
#[derive(Debug, Clone)]
pub enum Check {
    /// Nothing is taken at all.
    Closed(Answer),
    /// Headers and payload together.
    SizeMax(usize, Answer),
    HeadersMax(usize, Answer),
    /// No message may have one of these headers.
    Forbidden(Vec<(Box<[u8]>, Answer)>),
    ExpectedStream(Box<[u8]>, Answer),
    ExpectedSubjectSequence {
        wrong: Answer,
        /// Another subject is named, and no sequence.
        incomplete: Answer,
        /// A message may be gone before the next one is looked at: what is accepted is to be stored first.
        stored_first: bool,
    },
    ExpectedLastSequence(Answer),
    Duplicate,
    /// A number that its producer has done already.
    Producer,
    ExpectedMsgId,
    /// A message with one of these headers is stored alone, by Python.
    Alone(Vec<Box<[u8]>>),
    /// The same where the store might refuse (discard new).
    StoreLimits {
        msgs: u64,
        bytes: u64,
    },
}

#[derive(Debug, Default, Clone)]
pub struct Plan {
    pub checks: Vec<Check>,
    pub answers: Vec<Box<[u8]>>,
}

/// What the message at which the walk ended needs before it can be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// That the accepted ones before it are stored.
    StoreFirst,
    /// That a number of its producer can be taken: the first of a stream, too many producers, or no number at all.
    Producer,
    /// It is refused, with an answer that has the last id in it.
    WrongLastId,
    /// Nothing more, and it is stored alone (`Walk::Alone`).
    Alone,
}

impl Stopped {
    pub fn name(self) -> &'static str {
        match self {
            Stopped::StoreFirst => "store_first",
            Stopped::Producer => "producer",
            Stopped::WrongLastId => "wrong_last_id",
            Stopped::Alone => "alone",
        }
    }
}

pub struct Admitted {
    pub next: usize,
    pub accepted: usize,
    /// None: the whole run was decided.
    pub stopped: Option<Stopped>,
}

/// Which messages of a run are walked.
#[derive(Debug, Clone, Copy)]
pub enum Walk {
    From(usize),
    /// This one, which the caller stores alone.
    Alone(usize),
}

enum Fate {
    Accept,
    Refuse(Verdict),
    Stop(Stopped),
}

pub const MSG_ID: &[u8] = b"Nats-Msg-Id";
const EXPECTED_STREAM: &[u8] = b"Nats-Expected-Stream";
const EXPECTED_LAST: &[u8] = b"Nats-Expected-Last-Sequence";
const EXPECTED_SUBJECT: &[u8] = b"Nats-Expected-Last-Subject-Sequence";
const EXPECTED_SUBJECT_OF: &[u8] = b"Nats-Expected-Last-Subject-Sequence-Subject";
const EXPECTED_ID: &[u8] = b"Nats-Expected-Last-Msg-Id";

struct State<'a> {
    log: MutexGuard<'a, Inner>,
    last: u64,
    start: usize,
    alone: bool,
    accepted: u64,
    accepted_bytes: u64,
    /// Accepted in this run, newest per subject; filled from the first message on that asks.
    recent: Option<HashMap<Vec<u8>, u64>>,
    /// What the message at hand adds to the numbers of its producer.
    numbers: Option<(u64, u64)>,
    verdicts: Vec<(u32, Verdict)>,
}

/// What has to be remembered of the messages before.
pub struct Memory<'a> {
    pub window: &'a mut Window,
    pub producers: &'a mut Producers,
}

pub fn admit(
    run: &mut PublishRun,
    plan: &Plan,
    memory: &mut Memory<'_>,
    log: &BlockLog,
    walk: Walk,
    now_ns: i64,
) -> LogResult<Admitted> {
    let (start, total, alone) = match walk {
        Walk::From(start) => (start, run.batch.len(), false),
        Walk::Alone(at) => (at, run.batch.len().min(at + 1), true),
    };
    let log = log.lock();
    let last = log.last;
    let (accepted, accepted_bytes) = (0, 0);
    let mut state =
        State { log, last, start, alone, accepted, accepted_bytes, recent: None, numbers: None, verdicts: Vec::new() };
    memory.producers.sure();
    if run.answers.is_empty() {
        run.answers.clone_from(&plan.answers);
    }
    let counts_bytes = plan.checks.iter().any(|check| matches!(check, Check::StoreLimits { .. }));
    let mut parsed = Headers::default();
    let mut next = start;
    let mut stopped = None;
    while next < total {
        let entry = run.batch.entries()[next];
        let headers = if entry.headers.is_null() {
            &NO_HEADERS
        } else {
            parsed.read(run.batch.bytes(entry.headers));
            &parsed
        };
        match decide(run, next, headers, plan, memory, &mut state, now_ns)? {
            Fate::Accept => {
                state.accepted += 1;
                let sequence = state.last + state.accepted;
                if counts_bytes {
                    state.accepted_bytes += size_of(&entry) as u64;
                }
                let id = headers.get(MSG_ID).unwrap_or(b"");
                if let (Some((first, last)), Some(name)) = (state.numbers.take(), headers.producer) {
                    // Its number is remembered, in a bit and for ever: its id, in a hundred bytes, need not be.
                    memory.window.set_last_id(id);
                    memory.producers.join(name, first, last, sequence, now_ns);
                } else {
                    memory.window.accepted(id, sequence, now_ns);
                }
                if let Some(recent) = &mut state.recent {
                    recent.insert(run.batch.bytes(entry.subject).to_vec(), sequence);
                }
            }
            Fate::Refuse(verdict) => state.verdicts.push((next as u32, verdict)),
            Fate::Stop(why) => {
                stopped = Some(why);
                break;
            }
        }
        next += 1;
    }
    run.verdicts.append(&mut state.verdicts);
    Ok(Admitted { next, accepted: state.accepted as usize, stopped })
}

/// `admit` from the first message on; if all are accepted and the newest block has room for them, they are stored too.
pub fn admit_and_append(
    run: &mut PublishRun,
    plan: &Plan,
    memory: &mut Memory<'_>,
    log: &BlockLog,
    now_ns: i64,
    block_bytes_max: usize,
) -> LogResult<(Admitted, Option<Appended>)> {
    let admitted = admit(run, plan, memory, log, Walk::From(0), now_ns)?;
    if admitted.accepted < run.batch.len() {
        return Ok((admitted, None));
    }
    let rules = AppendRules { now: now_ns, keep_positions: false, block_bytes_max, per_subject_max: 0 };
    let appended = log.append_whole(&run.batch, &rules)?;
    if let Some(appended) = &appended {
        run.stored.push((0, appended.first));
    }
    Ok((admitted, appended))
}

/// What the record takes in the store.
fn size_of(entry: &Entry) -> usize {
    let headers = (!entry.headers.is_null()).then(|| entry.headers.size());
    record_bytes(entry.subject.size(), headers, entry.data.size())
}

fn decide(
    run: &PublishRun,
    at: usize,
    headers: &Headers<'_>,
    plan: &Plan,
    memory: &mut Memory<'_>,
    state: &mut State<'_>,
    now_ns: i64,
) -> LogResult<Fate> {
    let entry = &run.batch.entries()[at];
    state.numbers = None;
    let refuse = |answer: Answer, value: u64| Ok(Fate::Refuse(Verdict::Refused(answer, value)));
    for check in &plan.checks {
        match check {
            Check::Closed(answer) => return refuse(*answer, 0),
            Check::SizeMax(max, answer) => {
                if entry.headers.size() + entry.data.size() > *max {
                    return refuse(*answer, 0);
                }
            }
            Check::StoreLimits { msgs, bytes } => {
                let msgs_then = state.log.msgs + state.accepted + 1;
                let bytes_then = state.log.bytes + state.accepted_bytes + size_of(entry) as u64;
                if (msgs_then > *msgs || bytes_then > *bytes) && !state.alone {
                    return Ok(Fate::Stop(Stopped::Alone));
                }
            }
            _ if headers.is_empty() && !matches!(check, Check::HeadersMax(..)) => {}
            Check::HeadersMax(max, answer) => {
                if entry.headers.size() > *max {
                    return refuse(*answer, 0);
                }
            }
            Check::Alone(names) => {
                if !state.alone && names.iter().any(|name| headers.get(name).is_some()) {
                    return Ok(Fate::Stop(Stopped::Alone));
                }
            }
            Check::Forbidden(names) => {
                if let Some((_, answer)) = names.iter().find(|(name, _)| headers.get(name).is_some()) {
                    return refuse(*answer, 0);
                }
            }
            Check::ExpectedStream(name, answer) => {
                if headers.get(EXPECTED_STREAM).is_some_and(|wanted| *wanted != **name) {
                    return refuse(*answer, 0);
                }
            }
            Check::ExpectedSubjectSequence { wrong, incomplete, stored_first } => {
                let elsewhere = headers.get(EXPECTED_SUBJECT_OF);
                if let Some(wanted) = headers.get(EXPECTED_SUBJECT) {
                    if state.accepted > 0 && (*stored_first || elsewhere.is_some()) {
                        return Ok(Fate::Stop(Stopped::StoreFirst));
                    }
                    let seen = match elsewhere {
                        Some(filter) => state.log.last_sequence_of(&Filter::new(filter))?.unwrap_or(0),
                        None => state.last_on(run, at)?,
                    };
                    if number(wanted) != Some(seen) {
                        return refuse(*wrong, seen);
                    }
                } else if elsewhere.is_some() {
                    return refuse(*incomplete, 0);
                }
            }
            Check::ExpectedLastSequence(answer) => {
                if let Some(wanted) = headers.get(EXPECTED_LAST) {
                    let seen = state.last + state.accepted;
                    if number(wanted) != Some(seen) {
                        return refuse(*answer, seen);
                    }
                }
            }
            Check::Duplicate => {
                if let Some(id) = headers.get(MSG_ID) {
                    if let Some(sequence) = memory.window.find(id, now_ns) {
                        return Ok(Fate::Refuse(Verdict::Duplicate(sequence)));
                    }
                }
            }
            Check::Producer => {
                if headers.names_producer() {
                    let judged = memory.producers.judge(headers.producer, headers.producer_numbers);
                    state.numbers = match judged {
                        Judged::Done => return Ok(Fate::Refuse(Verdict::Duplicate(0))),
                        Judged::Fresh(first, last) if memory.producers.open => Some((first, last)),
                        _ => return Ok(Fate::Stop(Stopped::Producer)),
                    };
                }
            }
            Check::ExpectedMsgId => {
                if headers.get(EXPECTED_ID).is_some_and(|wanted| wanted != memory.window.last_id()) {
                    return Ok(Fate::Stop(Stopped::WrongLastId));
                }
            }
        }
    }
    Ok(Fate::Accept)
}

impl State<'_> {
    /// The newest sequence on the subject of a message, those before it in the run included; 0 for none.
    fn last_on(&mut self, run: &PublishRun, at: usize) -> LogResult<u64> {
        let subject_of = |at: usize| run.batch.bytes(run.batch.entries()[at].subject);
        if self.recent.is_none() {
            let refused = |at: &usize| self.verdicts.binary_search_by_key(&(*at as u32), |(of, _)| *of).is_ok();
            let accepted = (self.start..at).filter(|at| !refused(at));
            let numbered = accepted.zip(self.last + 1..);
            self.recent = Some(numbered.map(|(at, sequence)| (subject_of(at).to_vec(), sequence)).collect());
        }
        if let Some(seen) = self.recent.as_ref().and_then(|recent| recent.get(subject_of(at))) {
            return Ok(*seen);
        }
        Ok(self.log.last_sequence_of(&Filter::new(subject_of(at)))?.unwrap_or(0))
    }
}

/// Digits and nothing else.
fn number(text: &[u8]) -> Option<u64> {
    let all = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| all)?.parse().ok()
}
