//! The numbers of producers against plain sets.

use std::collections::BTreeSet;

use headrace_core::admit::{Judged, Numbers, Producers};
use proptest::prelude::*;

const NAMES: [&[u8]; 3] = [b"a", b"app/ORDERS", b"\xc3\xa9"];
/// Where numbers begin: at all, before the end of a container, before the end of a bitmap.
const BASES: [u64; 3] = [0, 3 * 65536 - 30, (5 << 32) - 30];
const SPAN: u64 = 70;
const BYTES_MAX: usize = 1 << 20;

/// What is surely done from a base on.
fn plain(producers: &mut Producers, name: &[u8], base: u64) -> BTreeSet<u64> {
    let found = producers.export();
    let saved = found.iter().find(|(known, ..)| *known == name);
    let numbers = saved.map(|(_, _, floor, raw)| Numbers::read(*floor, raw).unwrap()).unwrap_or_default();
    (base..base + SPAN).filter(|number| numbers.contains(*number)).collect()
}

/// The same from what is shown to users, which must be in order and whole.
fn seen(producers: &Producers, name: &[u8], base: u64) -> BTreeSet<u64> {
    let Some((_, shown)) = producers.shown(name, 1000) else { return BTreeSet::new() };
    let ranges = &shown.ranges;
    assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{ranges:?}");
    assert!(ranges.first().is_none_or(|(first, _)| *first > shown.floor), "{shown:?}");
    assert_eq!(shown.count, ranges.iter().map(|(first, last)| last - first + 1).sum::<u64>());
    let above = ranges.iter().flat_map(|(first, last)| *first..=*last);
    above.chain(base..shown.floor.max(base)).collect()
}

proptest! {
    #[test]
    fn as_plain_sets(
        base in proptest::sample::select(&BASES[..]),
        steps in proptest::collection::vec((0usize..3, 0u64..60, 0u64..6, 0u8..11), 0..150),
    ) {
        let mut producers = Producers::new(100, BYTES_MAX);
        let mut sure: [BTreeSet<u64>; 3] = Default::default();
        let mut all = sure.clone();
        let mut sequence = 0;
        for (which, last, left_out, action) in steps {
            let name = NAMES[which];
            let (first, last) = (base + last.saturating_sub(left_out), base + last);
            let text = if left_out == 0 { format!("{last}") } else { format!("{first}-{last}") };
            match action {
                0 => {
                    producers.forget();
                    all = sure.clone();
                }
                1 => {
                    producers.raise_floor(name, last, 7);
                    sure[which].extend(base..last);
                    all[which].extend(base..last);
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
                5 => {
                    // A restart: what is saved is what is sure, and nothing else comes back.
                    let mut again = Producers::new(100, BYTES_MAX);
                    for (name, used_ns, floor, raw) in producers.export() {
                        again.load((name, used_ns, floor, &raw)).unwrap();
                    }
                    producers = again;
                    all = sure.clone();
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
                prop_assert_eq!(seen(&producers, name, base), sure[at].clone());
                prop_assert_eq!(plain(&mut producers, name, base), sure[at].clone());
            }
        }
    }
}

#[test]
fn headers_that_mean_nothing() {
    let producers = Producers::new(10, BYTES_MAX);
    let long = [b'a'; 257];
    let names: [&[u8]; 5] = [b"", b"a\tb", b"\xff", b"\xc2\x85", &long];
    for name in names {
        assert_eq!(producers.judge(Some(name), Some(b"1")), Judged::Malformed);
    }
    let numbers: [&[u8]; 11] = [
        b"",
        b"x",
        b"-1",
        b"+1",
        b"1-",
        b"3-2",
        b"1-2-3",
        b"1 ",
        b"18446744073709551616",
        b"0-18446744073709551615",
        b"7-1048583",
    ];
    for number in numbers {
        assert_eq!(producers.judge(Some(b"a"), Some(number)), Judged::Malformed);
    }
    assert_eq!(producers.judge(None, Some(b"1")), Judged::Malformed);
    assert_eq!(producers.judge(Some(b"a"), None), Judged::Malformed);
    let widest = producers.judge(Some(&long[1..]), Some(b"7-1048582"));
    assert_eq!(widest, Judged::Fresh(7, 1_048_582));
    let last = producers.judge(Some(b"a"), Some(b"18446744073709551615"));
    assert_eq!(last, Judged::Fresh(u64::MAX, u64::MAX));
}

#[test]
fn the_ends_of_the_numbers() {
    let mut producers = Producers::new(2, BYTES_MAX);
    producers.join(b"a", u64::MAX - 9, u64::MAX, 1, 0);
    assert_eq!(producers.judge(Some(b"a"), Some(b"18446744073709551615")), Judged::Done);
    assert_eq!(producers.shown(b"a", 9).unwrap().1.count, 0, "unsure");
    producers.sure();
    assert_eq!(producers.shown(b"a", 9).unwrap().1.ranges, [(u64::MAX - 9, u64::MAX)]);
    producers.raise_floor(b"a", u64::MAX, 0);
    let shown = producers.shown(b"a", 9).unwrap().1;
    assert_eq!((shown.floor, shown.ranges), (u64::MAX, vec![(u64::MAX, u64::MAX)]));
    producers.join(b"b", 0, 0, 2, 0);
    producers.forget();
    assert_eq!(producers.len(), 1, "nothing is known of the other one");
}

#[test]
fn the_limits_and_what_frees_space() {
    let mut producers = Producers::new(2, 4096);
    let (mut taken, mut judged) = (0u64, Judged::Fresh(0, 0));
    while judged == Judged::Fresh(taken << 16, taken << 16) {
        producers.join(b"a", taken << 16, taken << 16, taken + 1, 0);
        taken += 1;
        judged = producers.judge(Some(b"a"), Some((taken << 16).to_string().as_bytes()));
    }
    assert_eq!(judged, Judged::TooManyBytes);
    assert!((50..100).contains(&taken), "{taken} numbers far from each other in 4096 bytes");
    assert_eq!(producers.judge(Some(b"a"), Some(b"65536")), Judged::Done);
    producers.sure();
    producers.raise_floor(b"a", 1 << 50, 0);
    assert_eq!(producers.bytes(), 0, "a floor costs nothing");
    assert_eq!(producers.judge(Some(b"a"), Some(b"1125899906842623")), Judged::Done);
    assert_eq!(producers.judge(Some(b"a"), Some(b"1125899906842624")), Judged::Fresh(1 << 50, 1 << 50));
    producers.join(b"b", 4, 4, 1, 0);
    assert_eq!(producers.judge(Some(b"c"), Some(b"1")), Judged::TooManyProducers);
}

#[test]
fn a_filter_that_lets_every_third_through() {
    let mut producers = Producers::new(10, 64 << 20);
    for number in 0..2_000_000u64 {
        producers.join(b"a", number * 3, number * 3, number + 1, 0);
        if number % 1000 == 0 {
            producers.sure();
        }
    }
    producers.sure();
    assert!(producers.bytes() < 1_000_000, "{} bytes", producers.bytes());
    let saved: usize = producers.export().iter().map(|(_, _, _, raw)| raw.len()).sum();
    assert!(saved < 1_000_000, "{saved} bytes");
    let shown = producers.shown(b"a", 3).unwrap().1;
    assert_eq!((shown.floor, shown.count), (1, 1_999_999));
    assert_eq!(shown.ranges, [(3, 3), (6, 6), (9, 9)]);
    for number in 0..2_000_000u64 {
        producers.join(b"b", 5 << 32 | number, 5 << 32 | number, number + 1, 0);
        if number % 1000 == 0 {
            producers.sure();
        }
    }
    producers.sure();
    producers.remove(b"a");
    assert!(producers.bytes() < 10_000, "runs: {} bytes", producers.bytes());
}

#[test]
fn what_cannot_be_read_is_said() {
    let mut producers = Producers::new(2, BYTES_MAX);
    producers.put(b"a", &[(0, 4), (70, 90), (1 << 40, 1 << 40)], 3);
    let (_, _, floor, raw) = producers.saved(b"a").unwrap();
    assert_eq!(floor, 5);
    for end in 0..raw.len() {
        assert!(Numbers::read(floor, &raw[..end]).is_err(), "{end} of {} bytes", raw.len());
    }
    let more = [&raw[..], b"x"].concat();
    assert!(producers.load((b"b", 0, 0, &more)).is_err() && producers.len() == 1);
    // Bits below the floor are not kept.
    let above = Numbers::read(80, &raw).unwrap().shown(9);
    assert_eq!((above.floor, above.ranges), (91, vec![(1 << 40, 1 << 40)]));
}
