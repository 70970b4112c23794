//! Everything that changed since somebody asked, in as few bytes as it takes: what the journal keeps.
//!
//! ```text
//! uvarint consumer seq, stream seq      delivered so far, before the first change
//! 1 sent       n, seq, time             n messages in a row, one time
//! 2 acked      n, seq                   acked, terminated or gone from the stream, one by one
//! 3 up to      seq, consumer seq        everything at or below
//! 4 late       seq, consumer seq        an ack of a message that was given up
//! 5 moved      seq, time                the clock of a pending message
//! 6 given up   n, seq                   delivered often enough
//! 7 below      seq, 0 or 1              gone from the stream; 1 = nothing below is delivered any more
//! ```
//! `seq` is a varint relative to what would continue the last change (7: a plain uvarint); `time` a varint
//! relative to the time before it.

use super::Ledger;
use crate::layouts::jetstream::decode::{DecodeError, Reader};
use crate::varint::{put_uvarint, put_varint};

const SENT: u8 = 1;
const ACKED: u8 = 2;
const UP_TO: u8 = 3;
const LATE: u8 = 4;
const MOVED: u8 = 5;
const GIVEN_UP: u8 = 6;
const BELOW: u8 = 7;
/// More than a consumer can have pending: a record that claims more is not ours.
const RUN_MAX: u64 = 1 << 32;

/// A run that may still grow.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    kind: u8,
    first: u64,
    next: u64,
    time: i64,
}

#[derive(Clone, Debug, Default)]
pub struct Changes {
    bytes: Vec<u8>,
    open: Run,
    /// What the next sequence and time are relative to.
    expected: u64,
    time: i64,
}

impl Changes {
    /// Bytes so far, about.
    pub fn len(&self) -> usize {
        self.bytes.len() + if self.open.kind == 0 { 0 } else { 16 }
    }

    /// Starts a record when there is none. `delivered` is the state before the change.
    #[inline]
    fn begin(&mut self, delivered: (u64, u64)) {
        if self.bytes.is_empty() {
            put_uvarint(&mut self.bytes, delivered.0);
            put_uvarint(&mut self.bytes, delivered.1);
        }
    }

    #[inline]
    fn extend(&mut self, kind: u8, seq: u64, time: i64, delivered: (u64, u64)) {
        if self.open.kind == kind && self.open.next == seq && self.open.time == time {
            self.open.next += 1;
            return;
        }
        self.begin(delivered);
        self.close();
        self.open = Run { kind, first: seq, next: seq + 1, time };
    }

    #[inline]
    pub fn sent(&mut self, seq: u64, time: i64, delivered: (u64, u64)) {
        self.extend(SENT, seq, time, delivered);
    }

    #[inline]
    pub fn acked(&mut self, seq: u64, delivered: (u64, u64)) {
        self.extend(ACKED, seq, 0, delivered);
    }

    pub fn given_up(&mut self, seq: u64, delivered: (u64, u64)) {
        self.extend(GIVEN_UP, seq, 0, delivered);
    }

    pub fn up_to(&mut self, seq: u64, consumer_seq: u64, delivered: (u64, u64)) {
        self.single(UP_TO, seq, delivered);
        put_uvarint(&mut self.bytes, consumer_seq);
    }

    pub fn late(&mut self, seq: u64, consumer_seq: u64, delivered: (u64, u64)) {
        self.single(LATE, seq, delivered);
        put_uvarint(&mut self.bytes, consumer_seq);
    }

    pub fn moved(&mut self, seq: u64, time: i64, delivered: (u64, u64)) {
        self.single(MOVED, seq, delivered);
        self.put_time(time);
    }

    pub fn below(&mut self, seq: u64, moves_on: bool, delivered: (u64, u64)) {
        self.begin(delivered);
        self.close();
        self.bytes.push(BELOW);
        put_uvarint(&mut self.bytes, seq);
        self.bytes.push(u8::from(moves_on));
    }

    fn single(&mut self, kind: u8, seq: u64, delivered: (u64, u64)) {
        self.begin(delivered);
        self.close();
        self.bytes.push(kind);
        self.put_seq(seq, seq.wrapping_add(1));
    }

    fn close(&mut self) {
        let run = std::mem::take(&mut self.open);
        if run.kind == 0 {
            return;
        }
        self.bytes.push(run.kind);
        put_uvarint(&mut self.bytes, run.next - run.first);
        self.put_seq(run.first, run.next);
        if run.kind == SENT {
            self.put_time(run.time);
        }
    }

    fn put_seq(&mut self, seq: u64, next: u64) {
        put_varint(&mut self.bytes, seq.wrapping_sub(self.expected) as i64);
        self.expected = next;
    }

    fn put_time(&mut self, time: i64) {
        put_varint(&mut self.bytes, time.wrapping_sub(self.time));
        self.time = time;
    }

    /// The record, if there is anything to record; the next change starts another.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.close();
        (self.expected, self.time) = (0, 0);
        (!self.bytes.is_empty()).then(|| std::mem::take(&mut self.bytes))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("the record continues delivered {0:?}, the consumer stands at {1:?}")]
    NotNext((u64, u64), (u64, u64)),
    #[error("no change has the number {0}")]
    UnknownKind(u8),
    #[error("a run of {0} messages")]
    TooLong(u64),
    #[error(transparent)]
    Cut(#[from] DecodeError),
}

/// One change, read back. A run is (first sequence, count).
enum Change {
    Sent((u64, u64), i64),
    Acked((u64, u64)),
    UpTo { seq: u64, consumer_seq: u64 },
    Late { seq: u64, consumer_seq: u64 },
    Moved { seq: u64, time: i64 },
    GivenUp((u64, u64)),
    Below { seq: u64, moves_on: bool },
}

/// Calls `act` for every change of a record, up to the first that cannot be read.
fn walk(reader: &mut Reader<'_>, mut act: impl FnMut(Change)) -> Result<(), ReplayError> {
    let (mut expected, mut time) = (0u64, 0i64);
    while reader.left() > 0 {
        let kind = reader.byte()?;
        if kind == BELOW {
            act(Change::Below { seq: reader.uvarint()?, moves_on: reader.byte()? != 0 });
            continue;
        }
        let count = if matches!(kind, SENT | ACKED | GIVEN_UP) { reader.uvarint()? } else { 1 };
        if count > RUN_MAX {
            return Err(ReplayError::TooLong(count));
        }
        let seq = expected.wrapping_add(reader.varint()? as u64);
        expected = seq.wrapping_add(count);
        if matches!(kind, SENT | MOVED) {
            time = time.wrapping_add(reader.varint()?);
        }
        act(match kind {
            SENT => Change::Sent((seq, count), time),
            ACKED => Change::Acked((seq, count)),
            UP_TO => Change::UpTo { seq, consumer_seq: reader.uvarint()? },
            LATE => Change::Late { seq, consumer_seq: reader.uvarint()? },
            MOVED => Change::Moved { seq, time },
            GIVEN_UP => Change::GivenUp((seq, count)),
            other => return Err(ReplayError::UnknownKind(other)),
        });
    }
    Ok(())
}

/// The highest sequence that a record says was handed out; 0 if it cannot be read at all.
pub fn highest_sent(record: &[u8]) -> u64 {
    let mut reader = Reader::new(record);
    let (Ok(_), Ok(mut highest)) = (reader.uvarint(), reader.uvarint()) else { return 0 };
    _ = walk(&mut reader, |change| {
        if let Change::Sent((first, count), _) = change {
            highest = highest.max(first.saturating_add(count.saturating_sub(1)));
        }
    });
    highest
}

/// Does to `ledger` what the record says. After an error the part before it was done.
pub fn replay(ledger: &mut Ledger, record: &[u8]) -> Result<(), ReplayError> {
    let mut reader = Reader::new(record);
    let from = (reader.uvarint()?, reader.uvarint()?);
    if from != ledger.delivered {
        return Err(ReplayError::NotNext(from, ledger.delivered));
    }
    walk(&mut reader, |change| {
        let each = |(first, count): (u64, u64)| (0..count).map(move |n| first.wrapping_add(n));
        match change {
            Change::Sent(run, time) => each(run).for_each(|seq| _ = ledger.sent(seq, time)),
            Change::Acked(run) => each(run).for_each(|seq| _ = ledger.ack_one(seq)),
            Change::UpTo { seq, consumer_seq } => ledger.ack_up_to(seq, consumer_seq, None),
            Change::Late { seq, consumer_seq } => _ = ledger.ack_late(seq, consumer_seq),
            Change::Moved { seq, time } => _ = ledger.set_time(seq, time),
            Change::GivenUp(run) => each(run).for_each(|seq| ledger.give_up(seq)),
            Change::Below { seq, moves_on } => _ = ledger.removed_below(seq, moves_on),
        }
    })
}
