//! Subjects against the plain rules, the tree against a BTreeMap.

use std::collections::BTreeMap;
use std::time::Instant;

use headrace_core::subjects::{
    Filter, PatternSet, STEPS_MAX, SubjectTree, TooManySteps, first_pair, matches, overlap, valid_filter, valid_literal,
};
use proptest::prelude::*;

/// The rule, token by token, with no thought of speed.
fn plain_match(filter: &str, subject: &str) -> bool {
    let wanted: Vec<_> = filter.split('.').collect();
    let tokens: Vec<_> = subject.split('.').collect();
    if filter.is_empty() {
        return true;
    }
    for (at, want) in wanted.iter().enumerate() {
        if *want == ">" && at + 1 == wanted.len() {
            return tokens.len() > at;
        }
        if at >= tokens.len() || (*want != "*" && *want != tokens[at]) {
            return false;
        }
    }
    wanted.len() == tokens.len()
}

fn subject() -> impl Strategy<Value = String> {
    "(a|b|ab|aa|ba|c\\*|key|orders-eu-west|orders-eu-north)(\\.(a|b|ab|aa|1|12|123|long-token-of-text|long-token-of-time)){0,5}"
}

fn filter() -> impl Strategy<Value = String> {
    prop_oneof![
        "(a|b|ab|\\*|c\\*|orders-eu-west)(\\.(a|b|ab|\\*|1|12|long-token-of-text)){0,5}(\\.>)?",
        Just(">".to_owned()),
        Just(String::new()),
        subject(),
    ]
}

#[test]
fn grammar() {
    for good in ["a", "a.b", "foo*.bar", "a>b", "ä.ö", "$JS.API.x"] {
        assert!(valid_literal(good.as_bytes()) && valid_filter(good.as_bytes()), "{good}");
    }
    for wild in ["*", ">", "a.*", "a.>", "*.*.>", "*.a"] {
        assert!(!valid_literal(wild.as_bytes()) && valid_filter(wild.as_bytes()), "{wild}");
    }
    for bad in ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r", "a\nb", "a\0", ">.a", "a.>.b", "a.>.", "*..>"] {
        assert!(!valid_literal(bad.as_bytes()) && !valid_filter(bad.as_bytes()), "{bad:?}");
    }
}

#[test]
fn matching() {
    let cases = [
        (">", "a", true),
        ("", "a.b", true),
        ("a.>", "a", false),
        ("a.>", "a.b.c", true),
        ("*", "a.b", false),
        ("a.*", "a.b", true),
        ("a.*", "a", false),
        ("a.*.c", "a.b.c", true),
        ("a*", "ab", false),
        ("a*", "a*", true),
        ("*.b", "a.b.c", false),
    ];
    for (filter, subject, expected) in cases {
        assert_eq!(matches(filter.as_bytes(), subject.as_bytes()), expected, "{filter} {subject}");
    }
    assert!(Filter::new(b"a.b").is_literal() && !Filter::new(b"a.*").is_literal() && !Filter::new(b"").is_literal());
    assert!(Filter::new(b">").takes_all() && Filter::all().takes_all() && !Filter::new(b"a.>").takes_all());
}

#[test]
fn overlapping() {
    let cases =
        [("a.*", "*.b", true), ("a.>", "a", false), ("a.>", "*.b.c", true), ("a.b", "a.c", false), ("", "x", true)];
    for (a, b, expected) in cases {
        assert_eq!(overlap(a.as_bytes(), b.as_bytes()), expected, "{a} {b}");
        assert_eq!(overlap(b.as_bytes(), a.as_bytes()), expected, "{b} {a}");
    }
}

#[derive(Debug, Clone)]
enum Act {
    Put(String),
    Remove(String),
    Find(String),
    Match(String),
}

fn check(tree: &mut SubjectTree<u32>, model: &BTreeMap<String, u32>, filter: &str) {
    let compiled = Filter::new(filter.as_bytes());
    let expected: Vec<_> =
        model.iter().filter(|(s, _)| plain_match(filter, s)).map(|(s, v)| (s.clone().into_bytes(), *v)).collect();
    let mut found = Vec::new();
    tree.for_each_match(&compiled, |subject, value| found.push((subject.to_vec(), *value)));
    assert_eq!(found, expected, "{filter}");
    found.clear();
    tree.for_each_match_mut(&compiled, |subject, value| found.push((subject.to_vec(), *value)));
    assert_eq!(found, expected, "{filter}");
    for subject in model.keys() {
        assert_eq!(compiled.matches(subject.as_bytes()), plain_match(filter, subject), "{filter} {subject}");
    }
}

proptest! {
    #[test]
    fn matching_is_the_plain_rule(filter in filter(), subject in subject()) {
        prop_assert_eq!(matches(filter.as_bytes(), subject.as_bytes()), plain_match(&filter, &subject));
    }

    #[test]
    fn filters_that_share_a_subject_overlap(a in filter(), b in filter(), subject in subject()) {
        if plain_match(&a, &subject) && plain_match(&b, &subject) {
            prop_assert!(overlap(a.as_bytes(), b.as_bytes()));
        }
    }

    #[test]
    fn any_bytes_are_fine(a: Vec<u8>, b: Vec<u8>) {
        let _ = (matches(&a, &b), overlap(&a, &b), valid_literal(&a), valid_filter(&a));
        let mut tree = SubjectTree::new();
        *tree.get_or_insert_with(&a, || 1) = 1;
        *tree.get_or_insert_with(&b, || 2) = 2;
        prop_assert_eq!(tree.get_mut(&b), Some(&mut 2));
        tree.for_each_match(&Filter::new(&a), |_, _| ());
    }

    #[test]
    fn the_tree_is_a_map(acts in proptest::collection::vec(prop_oneof![
        6 => subject().prop_map(Act::Put),
        3 => subject().prop_map(Act::Remove),
        1 => subject().prop_map(Act::Find),
        1 => filter().prop_map(Act::Match),
    ], 0..200)) {
        let mut tree = SubjectTree::new();
        let mut model = BTreeMap::new();
        for (number, act) in acts.into_iter().enumerate() {
            match act {
                Act::Put(subject) => {
                    let value = *tree.get_or_insert_with(subject.as_bytes(), || number as u32);
                    prop_assert_eq!(value, *model.entry(subject).or_insert(number as u32));
                }
                Act::Remove(subject) => prop_assert_eq!(tree.remove(subject.as_bytes()), model.remove(&subject)),
                Act::Find(subject) => {
                    prop_assert_eq!(tree.get(subject.as_bytes()), model.get(&subject));
                    prop_assert_eq!(tree.get_mut(subject.as_bytes()).copied(), model.get(&subject).copied());
                }
                Act::Match(filter) => check(&mut tree, &model, &filter),
            }
            prop_assert_eq!(tree.len(), model.len());
        }
        check(&mut tree, &model, "");
        let listed: Vec<_> = tree.iter().map(|(subject, value)| (String::from_utf8(subject).unwrap(), *value)).collect();
        prop_assert_eq!(listed, model.clone().into_iter().collect::<Vec<_>>());
        for subject in model.keys() {
            prop_assert!(tree.remove(subject.as_bytes()).is_some());
        }
        prop_assert!(tree.is_empty() && tree.heap_bytes() == 0);
    }
}

#[test]
fn nested_subjects_of_great_depth_need_no_stack() {
    let mut tree = SubjectTree::new();
    let longest = vec![b'a'; 20_000];
    for len in 1..=longest.len() {
        *tree.get_or_insert_with(&longest[..len], || len) += 0;
    }
    let mut seen = 0;
    tree.for_each_match(&Filter::new(b"*"), |subject, len| {
        assert_eq!(subject.len(), *len);
        seen += 1;
    });
    assert_eq!(seen, longest.len());
}

#[test]
fn removed_text_is_won_back() {
    let mut tree = SubjectTree::new();
    let subject = |round: usize, n: usize| format!("round.{round}.{n}.{}", "x".repeat(200));
    for round in 0..20 {
        for n in 0..2000 {
            tree.get_or_insert_with(subject(round, n).as_bytes(), || n);
        }
        if round > 0 {
            for n in 0..2000 {
                assert_eq!(tree.remove(subject(round - 1, n).as_bytes()), Some(n));
            }
        }
    }
    assert_eq!(tree.len(), 2000);
    assert!(tree.heap_bytes() < 4_000_000, "{}", tree.heap_bytes());
}

/// Numbers from 0 to 999,999 in an order that jumps.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |n| n * 611_953 % count)
}

#[test]
fn a_million_subjects() {
    const COUNT: u64 = 1_000_000;
    let subjects: Vec<_> = shuffled(COUNT).map(|n| format!("kv.key.{n}")).collect();
    let mut tree = SubjectTree::new();
    let each = |started: Instant| started.elapsed().as_nanos() as u64 / COUNT;
    let started = Instant::now();
    for (n, subject) in subjects.iter().enumerate() {
        tree.get_or_insert_with(subject.as_bytes(), || n as u64);
    }
    let insert_ns = each(started);
    let started = Instant::now();
    for (n, subject) in subjects.iter().enumerate().rev() {
        assert_eq!(tree.get_mut(subject.as_bytes()), Some(&mut (n as u64)));
    }
    let find_ns = each(started);
    let overhead = tree.heap_bytes() as u64 / COUNT;
    let started = Instant::now();
    let mut matched = 0;
    tree.for_each_match(&Filter::new(b"kv.*.*"), |_, _| matched += 1);
    let match_ns = each(started);
    println!(
        "insert {insert_ns} ns, find {find_ns} ns, walk {match_ns} ns, {overhead} bytes each with an 8-byte value"
    );
    assert_eq!((tree.len() as u64, matched), (COUNT, COUNT));
    assert!(overhead <= 100, "{overhead} bytes per subject");

    let mut previous = Vec::new();
    for (subject, _) in tree.iter() {
        assert!(previous < subject);
        previous = subject;
    }
    let started = Instant::now();
    for (n, subject) in subjects.iter().enumerate().filter(|(n, _)| n % 2 == 0) {
        assert_eq!(tree.remove(subject.as_bytes()), Some(n as u64));
    }
    println!("remove {} ns", 2 * each(started));
    for (n, subject) in subjects.iter().enumerate() {
        assert_eq!(tree.get(subject.as_bytes()).is_some(), n % 2 == 1);
    }
}

/// A few tokens, so that many pairs overlap.
fn pattern() -> impl Strategy<Value = String> {
    "(a|b|\\*)(\\.(a|b|c|\\*)){0,3}(\\.>)?"
}

proptest! {
    #[test]
    fn pattern_sets_find_what_pairs_do(patterns in prop::collection::vec(pattern(), 0..20), wanted in pattern(), gone in 0usize..20) {
        let mut set = PatternSet::default();
        let bytes: Vec<&[u8]> = patterns.iter().map(String::as_bytes).collect();
        for (label, pattern) in bytes.iter().enumerate() {
            set.insert(pattern, label as u64);
        }
        let there = |without: Option<usize>| -> Vec<u64> {
            let touching = (0..bytes.len()).filter(|at| Some(*at) != without && overlap(bytes[*at], wanted.as_bytes()));
            touching.map(|at| at as u64).collect()
        };
        let found = |set: &PatternSet| {
            let mut labels = Vec::new();
            set.overlaps(wanted.as_bytes(), &mut STEPS_MAX.clone(), |label| { labels.push(label); true }).unwrap();
            labels.sort_unstable();
            labels
        };
        prop_assert_eq!(found(&set), there(None));
        if gone < bytes.len() {
            prop_assert!(set.remove(bytes[gone], gone as u64));
            prop_assert!(!set.remove(bytes[gone], gone as u64));
            prop_assert_eq!(found(&set), there(Some(gone)));
            prop_assert_eq!(set.len(), bytes.len() - 1);
            let lowest = set.first_overlap(wanted.as_bytes(), None, &mut STEPS_MAX.clone()).unwrap();
            prop_assert_eq!(lowest, there(Some(gone)).first().copied());
        }
        let pairs = (0..bytes.len()).flat_map(|later| (0..later).map(move |earlier| (earlier, later)));
        let expected = pairs.into_iter().find(|(earlier, later)| overlap(bytes[*earlier], bytes[*later]));
        prop_assert_eq!(first_pair(&bytes).unwrap(), expected);
    }
}

#[test]
fn many_patterns_are_compared_in_no_time_and_too_many_wildcards_are_refused() {
    let plain: Vec<String> = (0..60_000).map(|n| format!("w.*.{n}")).collect();
    let bytes: Vec<&[u8]> = plain.iter().map(String::as_bytes).collect();
    assert_eq!(first_pair(&bytes), Ok(None));
    // Every `*.n` has to look at every `n.x` there is.
    let hostile: Vec<String> = (0..20_000).flat_map(|n| [format!("{n}.x"), format!("*.{n}")]).collect();
    let bytes: Vec<&[u8]> = hostile.iter().map(String::as_bytes).collect();
    assert_eq!(first_pair(&bytes), Err(TooManySteps));
}
