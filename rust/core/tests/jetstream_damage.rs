//! The tolerant scanner on blocks with random damage: what it serves was written, whatever happened around it.

use std::collections::HashMap;

use headrace_core::layouts::jetstream::block::block_key;
use headrace_core::layouts::jetstream::guard::Guard;
use headrace_core::layouts::jetstream::record::{
    self, Fields, HASH_SIZE, RECORD_BYTES_MIN, SEQUENCE_MASK, TOMBSTONE_BIT, View,
};
use headrace_core::layouts::jetstream::scan::{FindingKind, Hints, Scan, scan};
use proptest::collection::vec;
use proptest::prelude::*;

const HEADERS: &[u8] = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n";

/// Sequence (with its flags), time, subject + headers + payload: what the hash covers.
type Hashed = (i64, Vec<u8>);

/// Subject, headers, payload.
type Parts = (Vec<u8>, Option<Vec<u8>>, Vec<u8>);

struct Written {
    block: Vec<u8>,
    records: HashMap<u64, Hashed>,
    /// … and with their boundaries.
    parts: HashMap<u64, Parts>,
    guard: Vec<u8>,
}

/// Messages of many sizes with tombstones and placeholders between them.
fn write(kinds: &[(u8, usize)]) -> Written {
    let key = block_key(b"S", 1);
    let (mut block, mut guard) = (Vec::new(), Guard::default());
    for (at, (kind, size)) in kinds.iter().enumerate() {
        let (sequence, time, start) = (at as u64 * 2 + 10, 1_700_000_000 + at as i64, block.len());
        let subject = ["a", "b.cd", "orders.eu", "x.y.z"][size % 4].as_bytes();
        match kind {
            0 => record::encode_tombstone(&mut block, &key, sequence / 2, time),
            1 => record::encode_placeholder(&mut block, &key, sequence, time),
            kind => {
                let headers = (kind % 2 == 0).then_some(HEADERS);
                let data: Vec<u8> = (0..*size).map(|n| (n * 7 + at) as u8).collect();
                record::encode(
                    &mut block,
                    &key,
                    &Fields { raw_sequence: sequence, time, subject, headers, data: &data },
                );
            }
        }
        guard.push(&View::parse(&block, start).unwrap());
    }
    let guard = guard.encode(&block[block.len() - HASH_SIZE..]);
    let (mut records, mut parts) = (HashMap::new(), HashMap::new());
    let mut at = 0;
    while at < block.len() {
        let view = View::checked(&block, at, &key).unwrap();
        records.insert(view.raw_sequence, hashed(&block, &view));
        let headers = view.headers(&block).map(<[u8]>::to_vec);
        parts.insert(view.raw_sequence, (view.subject(&block).to_vec(), headers, view.data(&block).to_vec()));
        at = view.end();
    }
    Written { block, records, parts, guard }
}

fn hashed(block: &[u8], view: &View) -> Hashed {
    let headers = view.headers(block).unwrap_or_default();
    (view.time, [view.subject(block), headers, view.data(block)].concat())
}

#[derive(Debug, Clone)]
enum Damage {
    Flip(usize, u8),
    Zero(usize, usize),
    Noise(usize, Vec<u8>),
    Cut(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => (any::<usize>(), 0u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        1 => (any::<usize>(), 1usize..600).prop_map(|(at, len)| Damage::Zero(at, len)),
        1 => (any::<usize>(), vec(any::<u8>(), 1..80)).prop_map(|(at, noise)| Damage::Noise(at, noise)),
        1 => any::<usize>().prop_map(Damage::Cut),
    ]
}

fn apply(block: &mut Vec<u8>, damage: &Damage) {
    let len = block.len().max(1);
    match damage {
        Damage::Flip(at, bit) if !block.is_empty() => block[at % len] ^= 1 << bit,
        Damage::Zero(at, count) => block.iter_mut().skip(at % len).take(*count).for_each(|byte| *byte = 0),
        Damage::Noise(at, noise) => {
            block.iter_mut().skip(at % len).zip(noise).for_each(|(byte, noise)| *byte = *noise);
        }
        Damage::Cut(at) => block.truncate(at % len),
        Damage::Flip(..) => {}
    }
}

/// Every record that is served was written so; `exactly`: with its boundaries.
fn check_served(written: &Written, block: &[u8], found: &Scan, exactly: bool) -> Result<(), TestCaseError> {
    let mut last = 0;
    for served in &found.records {
        let view = View::parse(block, served.offset as usize).unwrap();
        prop_assert_eq!(view.raw_sequence, served.raw_sequence);
        prop_assert_eq!(Some(&hashed(block, &view)), written.records.get(&served.raw_sequence));
        if exactly {
            let parts =
                (view.subject(block).to_vec(), view.headers(block).map(<[u8]>::to_vec), view.data(block).to_vec());
            prop_assert_eq!(Some(&parts), written.parts.get(&served.raw_sequence));
        }
        if served.raw_sequence & TOMBSTONE_BIT == 0 {
            prop_assert!(served.raw_sequence & SEQUENCE_MASK > last, "sequences grow");
            last = served.raw_sequence & SEQUENCE_MASK;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn what_is_served_was_written(
        kinds in vec((0u8..6, 0usize..700), 1..25),
        damages in vec(damage(), 0..6),
        guarded in any::<bool>(),
    ) {
        let written = write(&kinds);
        let mut block = written.block.clone();
        for each in &damages {
            apply(&mut block, each);
        }
        let damaged = block.clone();
        let guard = guarded.then(|| Guard::decode(&written.guard, &block)).flatten();
        let found = scan(&mut block, &block_key(b"S", 1), &Hints { guard: guard.as_ref() });
        check_served(&written, &block, &found, guard.is_some())?;
        if found.records.len() < written.records.len() && damaged.len() == written.block.len() {
            prop_assert!(!found.findings.is_empty(), "records are missing and nothing is said");
        }
        for finding in &found.findings {
            prop_assert!(finding.offset + finding.len <= damaged.len() as u64);
        }
    }

    #[test]
    fn one_flip_costs_one_record_at_most(kinds in vec((0u8..6, 0usize..700), 1..25), at in any::<usize>(), bit in 0u8..8) {
        let written = write(&kinds);
        let mut block = written.block.clone();
        apply(&mut block, &Damage::Flip(at, bit));
        let found = scan(&mut block, &block_key(b"S", 1), &Hints::default());
        check_served(&written, &block, &found, false)?;
        prop_assert!(found.records.len() + 1 >= written.records.len());
    }

    #[test]
    fn a_cut_costs_what_was_cut_and_no_sequence(kinds in vec((2u8..6, 0usize..300), 1..20), at in any::<usize>()) {
        let written = write(&kinds);
        let cut = at % written.block.len();
        let mut block = written.block[..cut].to_vec();
        let found = scan(&mut block, &block_key(b"S", 1), &Hints::default());
        let whole = found.records.last().map_or(0, |last| View::parse(&block, last.offset as usize).unwrap().end());
        prop_assert_eq!(found.sound_end, whole);
        let torn = cut - whole;
        prop_assert_eq!(torn > 0, found.findings.iter().any(|f| f.kind == FindingKind::UnsoundTail));
        let last = found.records.last().map_or(0, |last| last.raw_sequence & SEQUENCE_MASK);
        let possible = if torn == 0 { 0 } else { (torn / RECORD_BYTES_MIN).max(1) as u64 };
        prop_assert!(found.highest_plausible >= last + possible);
    }
}
