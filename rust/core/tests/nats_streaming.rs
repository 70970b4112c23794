//! NATS Streaming's kernels against any bytes: encode and read back, mend what was bent, never panic.

use std::sync::Arc;

use headrace_core::batch::{Batch, BatchBuilder, HeaderCodec, Message};
use headrace_core::disk::{Disk, DiskFile, MemoryDisk, OpenMode};
use headrace_core::layouts::nats_streaming::crc::{self, Crc};
use headrace_core::layouts::nats_streaming::frames::{self, Reading};
use headrace_core::layouts::nats_streaming::mend::{Bounds, Mended, mend};
use headrace_core::layouts::nats_streaming::read::{Slice, Sums, Wanted, read};
use headrace_core::layouts::nats_streaming::record::{EncodeRules, Encoded, encode};
use headrace_core::layouts::nats_streaming::{index, subs};
use proptest::prelude::*;

const CHANNEL: &[u8] = b"orders.new";
const ALL: u64 = u64::MAX;

fn batch(payloads: &[Vec<u8>]) -> Batch {
    let mut builder = BatchBuilder::with_capacity(payloads.len(), 0, HeaderCodec::Nats);
    for data in payloads {
        let message =
            Message { position: 0, time: 0, subject: b"", key: None, headers: None, data: Some(data), flags: 0 };
        builder.push(message).unwrap();
    }
    builder.finish()
}

fn rules(next: u64) -> EncodeRules<'static> {
    EncodeRules {
        channel: CHANNEL,
        next,
        keep_positions: false,
        now: 1_700_000_000_000_000_000,
        not_before: 0,
        offset: 4,
        msgs_left: ALL,
        bytes_left: ALL,
        lossy: false,
    }
}

fn encoded(payloads: &[Vec<u8>], next: u64) -> Encoded {
    encode(&batch(payloads), 0, &rules(next), &Crc::new(crc::IEEE), None).unwrap()
}

fn file(bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = MemoryDisk::new().open("/f", OpenMode::Write).unwrap();
    file.write_at(0, bytes).unwrap();
    file
}

fn with_head(bytes: &[u8]) -> Vec<u8> {
    [&1u32.to_le_bytes(), bytes].concat()
}

fn mended(data: &[u8], index: Option<&[u8]>) -> Mended {
    let (data, index) = (file(data), index.map(file));
    let sums = Sums { crc: &Crc::new(crc::IEEE), strict: true };
    mend(&*data, index.as_deref(), CHANNEL, &sums, &Bounds::default()).unwrap()
}

fn read_all(data: &[u8], index: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let (data, index) = (file(data), file(index));
    let (crc, count) = (Crc::new(crc::IEEE), (index.len().unwrap().saturating_sub(4)) / 32);
    let slice = Slice { data: &*data, index: &*index, count, first: 1 };
    let want = Wanted { first: 0, below: ALL, msgs: 1 << 16, bytes: 1 << 30 };
    let found = read(&slice, &want, &Sums { crc: &crc, strict: true }, None).unwrap();
    found.batch.entries().iter().map(|e| (e.position, found.batch.bytes(e.data).to_vec())).collect()
}

fn payloads() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_is_read(payloads in payloads()) {
        let made = encoded(&payloads, 1);
        let wanted: Vec<(u64, Vec<u8>)> = (1..).zip(payloads.clone()).collect();
        prop_assert_eq!(read_all(&with_head(&made.data), &with_head(&made.index)), wanted);
        let whole = mended(&with_head(&made.data), None);
        prop_assert_eq!(whole.entries.len(), payloads.len());
        prop_assert!(whole.findings.is_empty());
    }

    #[test]
    fn a_bent_slice_gives_only_originals(
        payloads in payloads(), at in any::<prop::sample::Index>(), noise in prop::collection::vec(any::<u8>(), 1..60),
        lost_index in any::<bool>(), cut in any::<bool>(),
    ) {
        let made = encoded(&payloads, 1);
        let (mut data, idx) = (with_head(&made.data), with_head(&made.index));
        let from = 4 + at.index(data.len() - 4);
        let to = (from + noise.len()).min(data.len());
        if cut { data.truncate(from) } else { data[from..to].copy_from_slice(&noise[..to - from]) }
        let hit = |entry: &index::Entry| entry.offset < to as u64 && entry.end() > from as u64;
        let sound = mended(&with_head(&made.data), None);
        let found = mended(&data, (!lost_index).then_some(&idx[..]));
        let gone = |entry: &&index::Entry| if cut { entry.end() > from as u64 } else { hit(entry) };
        let untouched = sound.entries.iter().filter(|entry| !gone(entry)).count();
        prop_assert!(found.entries.iter().all(|entry| sound.entries.contains(entry)), "only what was written");
        prop_assert!(found.entries.len() >= untouched, "{} of {}", found.entries.len(), untouched);
        if found.entries.len() < payloads.len() && !(cut && lost_index) {
            prop_assert!(!found.findings.is_empty(), "a loss is reported");
        }
        let mut image = Vec::new();
        found.entries.iter().for_each(|entry| entry.encode(&mut image, &Crc::new(crc::IEEE)));
        for (sequence, data) in read_all(&data, &with_head(&image)) {
            prop_assert_eq!(&payloads[sequence as usize - 1], &data);
        }
    }

    #[test]
    fn random_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..600), idx in prop::collection::vec(any::<u8>(), 0..200)) {
        let found = mended(&data, Some(&idx));
        prop_assert!(found.sound_end <= data.len().max(4) as u64);
        let _ = read_all(&data, &idx);
        for types in [0, 2, 5] {
            for tolerant in [false, true] {
                let crc = Crc::new(crc::CASTAGNOLI);
                let walk = frames::walk(&data, &Reading { crc: &crc, strict: data.len() % 2 == 0, types, tolerant });
                let _ = subs::load(&data, &walk.frames);
                prop_assert!(walk.sound_end <= data.len());
            }
        }
    }

    #[test]
    fn acks_and_deliveries_fold(steps in prop::collection::vec((1u64..4, 1u64..50, any::<bool>()), 0..200)) {
        let crc = Crc::new(crc::IEEE);
        let (mut live, mut bytes) = (subs::Subs::default(), 1u32.to_le_bytes().to_vec());
        for id in 1..4u64 {
            let state = [0x08, id as u8, 0x12, 1, b'c', 0x30, 9];
            live.put(subs::NEW, id, &state, 0);
            frames::encode(&mut bytes, subs::NEW, &state, &crc);
        }
        for (id, sequence, ack) in steps {
            let kind = if ack { subs::ACK } else { subs::SENT };
            let changed = if ack { live.acked(id, &[sequence]) } else { live.sent(id, &[sequence]) };
            subs::updates(&mut bytes, kind, id, &changed, &crc);
        }
        let reading = Reading { crc: &crc, strict: true, types: subs::SENT, tolerant: false };
        let walk = frames::walk(&bytes, &reading);
        let (folded, bad) = subs::load(&bytes, &walk.frames);
        prop_assert!(bad.is_empty() && walk.problems.is_empty());
        for (id, sub) in &live.subs {
            prop_assert_eq!(&folded.subs[id].pending, &sub.pending);
            prop_assert_eq!(folded.subs[id].last_sent, sub.last_sent);
        }
    }
}

#[test]
fn a_sequence_that_was_given_out_twice_counts_once() {
    let (old, new) = (encoded(&[b"1".to_vec(), b"2".to_vec(), b"orphan".to_vec()], 1), encoded(&[b"3".to_vec()], 3));
    let data = with_head(&[&old.data[..], &new.data].concat());
    let without_index = mended(&data, None);
    assert_eq!(without_index.entries.iter().map(|e| e.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(without_index.entries[2].offset, 4 + old.data.len() as u64, "the later one");
    let mut entries = old.index[..64].to_vec();
    without_index.entries[2].encode(&mut entries, &Crc::new(crc::IEEE));
    let with_index = mended(&data, Some(&with_head(&entries)));
    assert_eq!(with_index.entries, without_index.entries);
    assert_eq!(with_index.findings.iter().map(|f| f.kind).collect::<Vec<_>>(), ["superseded"]);
}

#[test]
fn a_record_inside_a_payload_is_not_served() {
    let inner = encoded(&[b"forged".to_vec()], 9);
    let made = encoded(&[b"a".to_vec(), inner.data.clone(), b"c".to_vec()], 1);
    let mut data = with_head(&made.data);
    let second = mended(&data, None).entries[1];
    data[second.offset as usize + 5] ^= 0xff; // more than a bit of the CRC: the record cannot be repaired
    for index in [None, Some(with_head(&made.index))] {
        let found = mended(&data, index.as_deref());
        assert_eq!(found.entries.iter().map(|e| e.sequence).collect::<Vec<_>>(), [1, 3]);
    }
}
