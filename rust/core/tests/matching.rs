//! Reading and counting by filter, past blocks without a match, against a look at every message.

use std::sync::Arc;

use headrace_core::batch::{BatchBuilder, HeaderCodec, Message};
use headrace_core::disk::{Disk, MemoryDisk, OpenMode};
use headrace_core::layouts::jetstream::log::{AppendRules, BlockLog};
use headrace_core::layouts::jetstream::query::ReadLimits;
use headrace_core::subjects::Filter;
use proptest::prelude::*;

const BLOCK_BYTES: usize = 2_000;

fn store(subjects: &[String]) -> BlockLog {
    store_on(&Arc::new(MemoryDisk::new()), subjects)
}

/// Every third block gets its guard, as a sealed one does.
fn store_on(disk: &Arc<MemoryDisk>, subjects: &[String]) -> BlockLog {
    disk.create_dir_all("/m").unwrap();
    disk.create_dir_all("/g").unwrap();
    let log = BlockLog::new(disk.clone(), "/m", "/g", b"S", 4_096);
    log.start_writer(1).unwrap();
    let mut builder = BatchBuilder::with_capacity(subjects.len(), 0, HeaderCodec::Nats);
    for subject in subjects {
        let (headers, key, data) = (None, None, Some(&b"0123456789"[..]));
        let subject = subject.as_bytes();
        builder.push(Message { position: 0, time: 1, subject, key, headers, data, flags: 0 }).unwrap();
    }
    let batch = builder.finish();
    let rules = AppendRules { now: 1, keep_positions: false, block_bytes_max: BLOCK_BYTES, per_subject_max: 0 };
    let (mut at, mut number) = (0, 1);
    while at < batch.len() {
        at += log.append(&batch, at, &rules).unwrap().stored;
        if at < batch.len() {
            number += 1;
            log.start_writer(number).unwrap();
            if number % 3 == 0 {
                let guard = log.guard_of(number - 1).unwrap();
                let file = disk.open(&format!("/g/{}.guard", number - 1), OpenMode::Write).unwrap();
                file.write_at(0, &guard).unwrap();
            }
        }
    }
    log
}

fn read_all(log: &BlockLog, filters: &[Filter], step: usize, loads: usize) -> Vec<u64> {
    let (mut at, mut found) = (1, Vec::new());
    let last = log.state().unwrap().last;
    for _ in 0..100_000 {
        let limits = ReadLimits { msgs: step, bytes: 700, filters, below: u64::MAX };
        let (batch, next) = log.read_matching(at, &limits, loads).unwrap();
        assert!(next > at || at > last, "it goes on");
        assert!(batch.entries().iter().all(|e| e.position >= at && e.position < next));
        found.extend(batch.entries().iter().map(|entry| entry.position));
        at = next;
        if at > last {
            return found;
        }
    }
    panic!("no end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_missed_and_nothing_is_counted_twice(
        picks in prop::collection::vec(0u32..700, 1..600),
        wanted in prop::collection::vec(0u32..700, 0..4),
        wildcard in any::<bool>(),
        removed in prop::collection::vec(1u64..600, 0..40),
        from in 0u64..600,
        step in 1usize..40,
    ) {
        let subjects: Vec<String> = picks.iter().map(|n| format!("s.{}.{}", n % 7, n)).collect();
        let log = store(&subjects);
        let mut texts: Vec<String> = wanted.iter().map(|n| format!("s.{}.{}", n % 7, n)).collect();
        if wildcard {
            texts.push("s.3.*".into());
        }
        texts.sort();
        texts.dedup();
        let filters: Vec<Filter> = texts.iter().map(|text| Filter::new(text.as_bytes())).collect();
        for pass in 0..3 {
            if pass == 1 {
                log.remove(&removed).unwrap();
            }
            let live: Vec<u64> = (1..=subjects.len() as u64)
                .filter(|seq| pass == 0 || !removed.contains(seq))
                .filter(|seq| {
                    let subject = subjects[*seq as usize - 1].as_bytes();
                    filters.is_empty() || filters.iter().any(|filter| filter.matches(subject))
                })
                .collect();
            prop_assert_eq!(&read_all(&log, &filters, step, 1), &live);
            for below in [from + 50, u64::MAX] {
                let expected = live.iter().filter(|seq| **seq >= from && **seq < below).count() as u64;
                prop_assert_eq!(log.count_matching(from, below, &filters).unwrap(), expected);
            }
            for filter in &filters {
                let state = log.filtered_state(from, filter).unwrap();
                let matching = |seq: &&u64| **seq >= from && filter.matches(subjects[**seq as usize - 1].as_bytes());
                let expected: Vec<u64> = live.iter().filter(matching).copied().collect();
                prop_assert_eq!(state.msgs, expected.len() as u64);
                prop_assert_eq!(state.first, expected.first().copied().unwrap_or(0));
                prop_assert_eq!(state.last, expected.last().copied().unwrap_or(0));
            }
        }
        let all: Vec<u64> = (0..700).collect();
        let left: Vec<u64> = all.iter().copied()
            .filter(|seq| *seq >= 1 && *seq <= subjects.len() as u64 && !removed.contains(seq)).collect();
        prop_assert_eq!(log.live_among(&all), left);
    }
}

#[test]
fn blocks_without_a_match_are_not_loaded() {
    let mut subjects: Vec<String> = (0..4_000).map(|n| format!("many.{n}")).collect();
    subjects[10] = "rare".into();
    subjects[3_500] = "rare".into();
    let log = store(&subjects);
    let rare = [Filter::new(b"rare")];
    assert_eq!(read_all(&log, &rare, 10, usize::MAX), [11, 3_501]);
    // Now every block is known. Both matches with two loads, nothing else from disk.
    let limits = ReadLimits { msgs: 10, bytes: usize::MAX, filters: &rare, below: u64::MAX };
    let (batch, next) = log.read_matching(1, &limits, 2).unwrap();
    assert_eq!((batch.len(), next), (2, 4_001));
    let nothing = [Filter::new(b"absent")];
    let limits = ReadLimits { filters: &nothing, ..limits };
    assert_eq!(log.read_matching(1, &limits, 0).unwrap().1, 4_001);
}

#[test]
fn a_subject_of_two_overlapping_filters_is_counted_once() {
    let subjects: Vec<String> = (0..600).map(|n| format!("s.{}", n % 3)).collect();
    let log = store(&subjects);
    let both = [Filter::new(b"s.*"), Filter::new(b"s.1")];
    // The first pass learns what each block holds, the second counts by it; the end is open and not.
    for _ in 0..2 {
        assert_eq!(read_all(&log, &both, 100, usize::MAX).len(), 600);
        assert_eq!(log.count_matching(1, 500, &both).unwrap(), 499);
        assert_eq!(log.count_matching(1, u64::MAX, &both).unwrap(), 600);
    }
}

/// A sealed block with one match in it is not loaded to find it, and damage to it is found all the same.
#[test]
fn a_flipped_bit_in_a_rare_match_is_reported_and_costs_only_that_message() {
    let mut subjects: Vec<String> = (0..400).map(|_| "common".into()).collect();
    (subjects[60], subjects[300]) = ("rare".into(), "rare".into());
    let rare = [Filter::new(b"rare")];
    let disk = Arc::new(MemoryDisk::new());
    store_on(&disk, &subjects);
    let (path, sound) = (0..)
        .find_map(|number| {
            let path = format!("/m/{number}.blk");
            let bytes = disk.read(&path, 1 << 20).ok()?;
            memchr_rare(&bytes).map(|_| (path, bytes))
        })
        .unwrap();
    let subject_at = memchr_rare(&sound).unwrap();
    for (at, what) in [
        (subject_at, "subject"),
        (subject_at + 5, "payload"),
        (subject_at - 22, "length"),
        (subject_at - 2, "subject length"),
    ] {
        for bit in 0..8 {
            let disk = Arc::new(MemoryDisk::new());
            let log = store_on(&disk, &subjects);
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << bit;
            disk.open(&path, OpenMode::Write).unwrap().write_at(0, &bytes).unwrap();
            let found = read_all(&log, &rare, 10, usize::MAX);
            assert!(found == [61, 301] || found == [301], "{what}, bit {bit}: {found:?}");
            assert!(!log.lock().findings.is_empty(), "{what}, bit {bit}: not reported");
        }
    }
}

fn memchr_rare(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"rare")
}
