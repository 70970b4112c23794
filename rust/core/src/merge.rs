//! Several logs into one: which log gives the next message, and the messages in that order.
//!
//! ```text
//!   log 0   time 1 3 3 9 …
//!   log 1   time 2 3 4 …        origins  0 1 0 0 1 1 …      equal times: the lower log first
//! ```
//! A message's key is the greatest time that its log has shown so far, so that no log overtakes itself, and what has no
//! time goes with what stands before it. A round goes as far as is certain: up to the least last key of all logs that
//! have more to give. So the order is the same however the logs are cut into batches.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::batch::{Batch, BatchBuilder, Entry, HeaderCodec, Message, Span, TooLarge, flags};

/// One round of a merge.
#[derive(Debug, PartialEq, Eq)]
pub struct Round {
    /// The log of each message, in order.
    pub origins: Vec<u32>,
    /// How many entries of each batch are used up; those that are no messages are among them.
    pub taken: Vec<usize>,
    /// The key that each log has reached.
    pub keys: Vec<i64>,
}

#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error("{0} batches, {1} keys and {2} ends: one of each for every log")]
    Uneven(usize, usize, usize),
    #[error("log {0} has more to give and an empty batch")]
    Empty(usize),
    #[error("message {0} is of log {1}, which has no more")]
    Missing(usize, u32),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

fn is_message(entry: &Entry) -> bool {
    entry.flags & (flags::CONTROL | flags::PLACEHOLDER) == 0
}

fn key_after(key: i64, entry: &Entry) -> i64 {
    if is_message(entry) { key.max(entry.time) } else { key }
}

/// The next messages of all logs. `keys` are those of the round before, `ended` says whose batch is its last. With `by_time`
/// off the logs follow each other.
pub fn next_round(batches: &[Batch], keys: &[i64], ended: &[bool], by_time: bool) -> Result<Round, MergeError> {
    if batches.len() != keys.len() || batches.len() != ended.len() {
        return Err(MergeError::Uneven(batches.len(), keys.len(), ended.len()));
    }
    let step = |key: i64, entry: &Entry| if by_time { key_after(key, entry) } else { key };
    let mut bound = (i64::MAX, usize::MAX);
    for (at, batch) in batches.iter().enumerate().filter(|(at, _)| !ended[*at]) {
        if batch.is_empty() {
            return Err(MergeError::Empty(at));
        }
        bound = bound.min((batch.entries().iter().fold(keys[at], step), at));
    }
    let mut round = Round { origins: Vec::new(), taken: vec![0; batches.len()], keys: keys.to_vec() };
    let mut heads = BinaryHeap::new();
    for (at, batch) in batches.iter().enumerate() {
        if let Some(entry) = batch.entries().first() {
            heads.push(Reverse((step(keys[at], entry), at)));
        }
    }
    while let Some(Reverse((key, at))) = heads.pop() {
        if (key, at) > bound {
            break;
        }
        let (entries, used) = (batches[at].entries(), round.taken[at]);
        if is_message(&entries[used]) {
            round.origins.push(at as u32);
        }
        (round.keys[at], round.taken[at]) = (key, used + 1);
        if let Some(entry) = entries.get(used + 1) {
            heads.push(Reverse((step(key, entry), at)));
        }
    }
    Ok(round)
}

/// The messages of all parts, each in its part's order, as the origins say.
pub fn interleave(parts: &[Batch], origins: &[u32]) -> Result<Batch, MergeError> {
    let codec = parts.first().map_or(HeaderCodec::None, Batch::codec);
    let bytes = parts.iter().map(|part| part.payload_bytes() as usize).sum();
    let mut builder = BatchBuilder::with_capacity(origins.len(), bytes, codec);
    let mut used = vec![0; parts.len()];
    for (at, origin) in origins.iter().enumerate() {
        let missing = MergeError::Missing(at, *origin);
        let Some(part) = parts.get(*origin as usize) else { return Err(missing) };
        let Some(entry) = part.entries().get(used[*origin as usize]) else { return Err(missing) };
        used[*origin as usize] += 1;
        let optional = |span: Span| (!span.is_null()).then(|| part.bytes(span));
        builder.push(Message {
            position: entry.position,
            time: entry.time,
            subject: part.bytes(entry.subject),
            key: optional(entry.key),
            headers: optional(entry.headers),
            data: optional(entry.data),
            flags: entry.flags,
        })?;
    }
    Ok(builder.finish())
}

/// What a reader that has acked the first `acked` messages of each log has not acked: places in the order, and the
/// place of the last one that it has. Logs that it does not read (None) do not count.
pub fn unacked(origins: &[u32], acked: &[Option<usize>]) -> (Vec<u64>, Option<u64>) {
    let (mut seen, mut open, mut last) = (vec![0; acked.len()], Vec::new(), None);
    for (place, origin) in origins.iter().enumerate() {
        let at = *origin as usize;
        let Some(Some(count)) = acked.get(at) else { continue };
        if seen[at] < *count {
            last = Some(place as u64);
        } else {
            open.push(place as u64);
        }
        seen[at] += 1;
    }
    (open, last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log(times: &[(i64, u8)], first: u64) -> Batch {
        let mut builder = BatchBuilder::with_capacity(times.len(), 0, HeaderCodec::Nats);
        for (at, (time, flags)) in times.iter().enumerate() {
            let data = format!("{}", first + at as u64).into_bytes();
            let position = first + at as u64;
            let message = Message {
                position,
                time: *time,
                subject: b"s",
                key: None,
                headers: None,
                data: Some(&data),
                flags: *flags,
            };
            builder.push(message).unwrap();
        }
        builder.finish()
    }

    fn plain(times: &[i64]) -> Vec<(i64, u8)> {
        times.iter().map(|time| (*time, 0)).collect()
    }

    /// All rounds, with the logs cut into batches of that many entries.
    fn merged(logs: &[Vec<(i64, u8)>], cut: usize, by_time: bool) -> Vec<u32> {
        let mut rest: Vec<Vec<Batch>> = logs
            .iter()
            .map(|times| times.chunks(cut).enumerate().map(|(n, part)| log(part, (n * cut) as u64)).rev().collect())
            .collect();
        let mut held: Vec<Batch> =
            rest.iter_mut().map(|parts| parts.pop().unwrap_or(Batch::empty(HeaderCodec::Nats))).collect();
        let (mut keys, mut found) = (vec![0; logs.len()], Vec::new());
        loop {
            for (batch, parts) in held.iter_mut().zip(&mut rest) {
                while batch.is_empty() && !parts.is_empty() {
                    *batch = parts.pop().unwrap();
                }
            }
            let ended: Vec<bool> = rest.iter().map(Vec::is_empty).collect();
            if held.iter().all(Batch::is_empty) {
                return found;
            }
            let round = next_round(&held, &keys, &ended, by_time).unwrap();
            assert!(round.taken.iter().any(|taken| *taken > 0), "a round moves on");
            keys = round.keys;
            for (batch, taken) in held.iter_mut().zip(&round.taken) {
                *batch = batch.slice(*taken..batch.len());
            }
            found.extend(round.origins);
        }
    }

    #[test]
    fn by_time_and_by_log() {
        let logs = [plain(&[1, 3, 3, 9]), plain(&[2, 3, 4]), vec![]];
        assert_eq!(merged(&logs, 2, true), [0, 1, 0, 0, 1, 1, 0]);
        assert_eq!(merged(&logs, 2, false), [0, 0, 0, 0, 1, 1, 1]);
        // A time that goes back, and none at all, go with what stands before them.
        assert_eq!(merged(&[plain(&[5, 2, 0, 6]), plain(&[4, 5, 7])], 9, true), [1, 0, 0, 0, 1, 0, 1]);
        // Control records are no messages, whatever their time.
        assert_eq!(merged(&[vec![(1, 0), (99, flags::CONTROL), (2, 0)], plain(&[3])], 9, true), [0, 0, 1]);
    }

    #[test]
    fn what_a_reader_has_not_acked() {
        let origins = [0, 1, 0, 2, 1, 0];
        assert_eq!(unacked(&origins, &[Some(2), Some(1), None]), (vec![4, 5], Some(2)));
        assert_eq!(unacked(&origins, &[Some(0), Some(2), None]), (vec![0, 2, 5], Some(4)));
        assert_eq!(unacked(&origins, &[None, None, Some(0)]), (vec![3], None));
    }

    proptest! {
        #[test]
        fn the_cuts_do_not_matter(logs in proptest::collection::vec(proptest::collection::vec((0..6i64, prop_oneof![Just(0u8), Just(flags::CONTROL)]), 0..12), 1..4), cut in 1usize..5) {
            let order = merged(&logs, 99, true);
            prop_assert_eq!(&merged(&logs, cut, true), &order);
            let parts: Vec<Batch> = logs.iter().map(|times| log(&times.iter().filter(|(_, flags)| *flags == 0).copied().collect::<Vec<_>>(), 0)).collect();
            let joined = interleave(&parts, &order).unwrap();
            prop_assert_eq!(joined.len(), parts.iter().map(Batch::len).sum::<usize>());
            for (part, back) in parts.iter().zip(joined.split(&order, parts.len())) {
                let texts = |batch: &Batch| batch.entries().iter().map(|e| batch.bytes(e.data).to_vec()).collect::<Vec<_>>();
                prop_assert_eq!(texts(part), texts(&back));
            }
        }
    }
}
