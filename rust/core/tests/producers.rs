//! The numbers of producers against plain sets.

use std::collections::BTreeSet;

use headrace_core::admit::{Judged, Producers};
use proptest::prelude::*;

const NAMES: [&[u8]; 3] = [b"a", b"app/ORDERS", b"\xc3\xa9"];

fn plain(producers: &Producers, name: &[u8]) -> BTreeSet<u64> {
    let found = producers.export();
    let of = found.iter().filter(|(known, ..)| *known == name);
    of.flat_map(|(_, _, ranges)| ranges.iter().flat_map(|(first, last)| first..=last).collect::<Vec<_>>()).collect()
}

proptest! {
    #[test]
    fn as_plain_sets(steps in proptest::collection::vec((0usize..3, 0u64..60, 0u64..6, 0u8..10), 0..150)) {
        let mut producers = Producers::new(100, 100);
        let mut sure: [BTreeSet<u64>; 3] = Default::default();
        let mut all = sure.clone();
        let mut sequence = 0;
        for (which, last, left_out, action) in steps {
            let (name, first) = (NAMES[which], last.saturating_sub(left_out));
            let text = if left_out == 0 { format!("{last}") } else { format!("{first}-{last}") };
            match action {
                0 => {
                    producers.forget();
                    all = sure.clone();
                }
                1 => {
                    producers.settle(name, last, 7);
                    sure[which].extend(0..last);
                    all[which].extend(0..last);
                }
                2 => {
                    producers.remove(name);
                    sure[which].clear();
                    all[which].clear();
                }
                3 | 4 => {
                    producers.stored(sequence);
                    sure = all.clone();
                }
                _ => {
                    let done = all[which].contains(&last);
                    let wanted = if done { Judged::Done } else { Judged::Fresh(first, last) };
                    prop_assert_eq!(producers.judge(Some(name), Some(text.as_bytes())), wanted);
                    if !done {
                        sequence += 1;
                        producers.join(name, first, last, sequence, 9);
                        all[which].extend(first..=last);
                    }
                }
            }
            for (at, name) in NAMES.iter().enumerate() {
                prop_assert_eq!(plain(&producers, name), sure[at].clone());
            }
            if producers.unsure_from().is_none() {
                let all = producers.export();
                prop_assert_eq!(producers.ranges(), all.iter().map(|(_, _, ranges)| ranges.len()).sum::<usize>());
                for (_, _, ranges) in all {
                    let ranges: Vec<_> = ranges.iter().collect();
                    prop_assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", ranges);
                }
            }
        }
    }
}

#[test]
fn headers_that_mean_nothing() {
    let producers = Producers::new(10, 10);
    let long = [b'a'; 257];
    let names: [&[u8]; 5] = [b"", b"a\tb", b"\xff", b"\xc2\x85", &long];
    for name in names {
        assert_eq!(producers.judge(Some(name), Some(b"1")), Judged::Malformed);
    }
    let numbers: [&[u8]; 9] = [b"", b"x", b"-1", b"+1", b"1-", b"3-2", b"1-2-3", b"1 ", b"18446744073709551616"];
    for number in numbers {
        assert_eq!(producers.judge(Some(b"a"), Some(number)), Judged::Malformed);
    }
    assert_eq!(producers.judge(None, Some(b"1")), Judged::Malformed);
    assert_eq!(producers.judge(Some(b"a"), None), Judged::Malformed);
    let all = producers.judge(Some(&long[1..]), Some(b"0-18446744073709551615"));
    assert_eq!(all, Judged::Fresh(0, u64::MAX));
}

#[test]
fn the_ends_of_the_numbers_and_the_limits() {
    let mut producers = Producers::new(2, 3);
    producers.join(b"a", 0, u64::MAX, 1, 0);
    assert_eq!(producers.judge(Some(b"a"), Some(b"5")), Judged::Done);
    producers.forget();
    assert!(producers.is_empty());
    for (at, name) in [(0, b"a"), (2, b"a"), (4, b"b")] {
        assert_eq!(producers.judge(Some(name), Some(at.to_string().as_bytes())), Judged::Fresh(at, at));
        producers.join(name, at, at, 1, 0);
    }
    assert_eq!(producers.judge(Some(b"c"), Some(b"1")), Judged::TooManyProducers);
    assert_eq!(producers.judge(Some(b"a"), Some(b"9")), Judged::TooManyRanges);
    assert_eq!(producers.judge(Some(b"b"), Some(b"6")), Judged::TooManyRanges);
    assert_eq!(producers.judge(Some(b"a"), Some(b"1")), Judged::Fresh(1, 1), "it joins two: there is room");
    assert_eq!(producers.judge(Some(b"b"), Some(b"5")), Judged::Fresh(5, 5));
    producers.settle(b"a", 3, 0);
    assert_eq!(producers.judge(Some(b"a"), Some(b"9")), Judged::Fresh(9, 9), "ranges collapsed");
}
