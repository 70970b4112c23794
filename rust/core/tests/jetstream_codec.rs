//! The codecs of the JetStream layout: what is written is read back, and random bytes never panic.

use headrace_core::hash::HashKey;
use headrace_core::layouts::jetstream::block::block_key;
use headrace_core::layouts::jetstream::decode::Reader;
use headrace_core::layouts::jetstream::guard::Guard;
use headrace_core::layouts::jetstream::idx::Idx;
use headrace_core::layouts::jetstream::index_db::{BlockEntry, IndexDb, SubjectEntry, VERSION};
use headrace_core::layouts::jetstream::record::{self, Fields, SEQUENCE_MASK, View};
use headrace_core::layouts::jetstream::scan::{Hints, scan};
use headrace_core::layouts::jetstream::seqset::SeqSet;
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;

fn key() -> HashKey {
    block_key(b"S", 1)
}

proptest! {
    #[test]
    fn a_record_comes_back(
        sequence in 1u64..SEQUENCE_MASK,
        time in any::<i64>(),
        subject in "[a-z]{1,8}(\\.[a-z0-9]{1,5}){0,3}",
        headers in option::of("NATS/1\\.0\r\n([A-Z][a-z]{1,5}: [a-z]{0,9}\r\n){1,3}\r\n"),
        data in vec(any::<u8>(), 0..300),
    ) {
        let headers = headers.as_deref().map(str::as_bytes);
        let mut block = Vec::new();
        let fields = Fields { raw_sequence: sequence, time, subject: subject.as_bytes(), headers, data: &data };
        record::encode(&mut block, &key(), &fields);
        let view = View::checked(&block, 0, &key()).unwrap();
        prop_assert_eq!(view.len, record::record_bytes(subject.len(), headers.map(<[u8]>::len), data.len()));
        prop_assert_eq!((view.sequence(), view.time, view.end()), (sequence, time, block.len()));
        prop_assert_eq!(view.subject(&block), subject.as_bytes());
        prop_assert_eq!(view.headers(&block), headers);
        prop_assert_eq!(view.data(&block), &data[..]);

        let found = scan(&mut block.clone(), &key(), &Hints::default());
        prop_assert_eq!((found.records.len(), found.findings.len()), (1, 0));
        let mut guard = Guard::default();
        guard.push(&view);
        let bytes = guard.encode(&block[block.len() - 8..]);
        prop_assert_eq!(Guard::decode(&bytes, &block).unwrap().covered, block.len());
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..2000), offset in 0usize..2100, beginning in 0usize..6) {
        // The first bytes that each decoder wants to see, so that the rest of it is reached too.
        let magic: &[&[u8]] = &[b"", b"HRGUARD1", &[22, 1], &[22, 2], &[11, 4], b"cmp\x01"];
        let bytes = [magic[beginning], &bytes].concat();
        let _ = View::parse(&bytes, offset);
        let _ = Guard::decode(&bytes, &bytes);
        let _ = Idx::decode(&bytes).map(|idx| idx.fits(&bytes));
        let _ = SeqSet::decode(&mut Reader::new(&bytes));
        let _ = IndexDb::decode(&bytes, &key());
        let found = scan(&mut bytes.clone(), &key(), &Hints::default());
        prop_assert!(found.records.is_empty(), "nothing in random bytes is a record");
    }

    #[test]
    fn index_db_never_panics_behind_a_good_hash(mut bytes in vec(any::<u8>(), 30..600), version in 1u8..5) {
        (bytes[0], bytes[1]) = (11, version);
        let hash = key().hash(&bytes);
        bytes.extend_from_slice(&hash.to_le_bytes());
        if let Ok(index) = IndexDb::decode(&bytes, &key()) {
            let _ = index.adds_up();
        }
    }

    #[test]
    fn a_sequence_set_comes_back(seqs in btree_set(prop_oneof![0u64..6000, 1u64 << 40..(1 << 40) + 9000], 0..300)) {
        let set: SeqSet = seqs.iter().copied().collect();
        prop_assert!(set.iter().eq(seqs.iter().copied()));
        let mut bytes = Vec::new();
        set.encode(&mut bytes);
        prop_assert_eq!(SeqSet::decode(&mut Reader::new(&bytes)).unwrap(), set.clone());
        prop_assert_eq!(SeqSet::decode(&mut Reader::new(&version_1(&seqs))).unwrap(), set);
    }

    #[test]
    fn a_sequence_set_is_a_set(
        moves in vec((0u64..5000, any::<bool>()), 0..200),
        below in 0u64..5000,
        (from, to) in (0u64..5000, 0u64..5000),
    ) {
        let (mut set, mut model) = (SeqSet::default(), std::collections::BTreeSet::new());
        for (seq, put) in moves {
            let changed = if put { (set.insert(seq), model.insert(seq)) } else { (set.remove(seq), model.remove(&seq)) };
            prop_assert_eq!(changed.0, changed.1);
        }
        let between = if from <= to { model.range(from..=to).count() as u64 } else { 0 };
        prop_assert_eq!(set.count_between(from, to), between);
        set.remove_below(below);
        model.retain(|seq| *seq >= below);
        prop_assert_eq!(set.len(), model.len());
        prop_assert!(set.iter().eq(model.iter().copied()));
    }

    #[test]
    fn an_index_comes_back(
        subjects in vec(("[a-z.]{1,9}", 1u64..50, 1u64..9), 0..5),
        blocks in vec((1u64..1000, 0u64..500, any::<i32>(), vec(0u64..400, 0..4)), 0..4),
        last_hash in any::<[u8; 8]>(),
    ) {
        let blocks: Vec<BlockEntry> = blocks
            .iter()
            .enumerate()
            .map(|(at, (first, more, time, deleted))| BlockEntry {
                number: at as u64 + 1,
                bytes: more * 40,
                first: *first,
                first_time: i64::from(*time),
                last: first + more + 500,
                last_time: i64::from(*time) + 5,
                deleted: deleted.iter().map(|d| first + d).collect(),
                ttls: 0,
                schedules: 0,
            })
            .collect();
        let entries = subjects.iter().map(|(subject, total, block)| SubjectEntry {
            subject: subject.as_bytes(),
            total: *total,
            first_block: *block,
            last_block: *block,
        });
        let index = IndexDb {
            version: VERSION,
            msgs: 7,
            bytes: 300,
            first: 1,
            first_time: 1_700_000_000_000_000_000,
            last: 9,
            last_time: 1_700_000_000_000_000_009,
            subjects: entries.collect(),
            newest: blocks.last().map_or(1, |b| b.number),
            blocks,
            last_hash,
        };
        let bytes = index.encode(&key());
        prop_assert_eq!(IndexDb::decode(&bytes, &key()).unwrap(), index.clone());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            prop_assert!(IndexDb::decode(&damaged, &key()).is_err(), "byte {} may change unnoticed", at);
        }
    }
}

/// The older form: 4096 sequences a node.
fn version_1(seqs: &std::collections::BTreeSet<u64>) -> Vec<u8> {
    let mut nodes: std::collections::BTreeMap<u64, [u64; 64]> = std::collections::BTreeMap::new();
    for seq in seqs {
        let node = nodes.entry(seq / 4096 * 4096).or_insert([0; 64]);
        node[(seq % 4096 / 64) as usize] |= 1 << (seq % 64);
    }
    let mut out = vec![22, 1];
    out.extend_from_slice(&(nodes.len() as u32).to_le_bytes());
    out.extend_from_slice(&(seqs.len() as u32).to_le_bytes());
    for (base, buckets) in nodes {
        out.extend_from_slice(&base.to_le_bytes());
        for bucket in buckets {
            out.extend_from_slice(&bucket.to_le_bytes());
        }
        out.extend_from_slice(&1u16.to_le_bytes());
    }
    out
}
