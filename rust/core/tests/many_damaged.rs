//! Many damaged records in one file: k of them cost at most k, and a hostile file takes bounded time.

mod random;

use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_core::batch::{Batch, BatchBuilder, HeaderCodec, Message};
use headrace_core::disk::{Disk, MemoryDisk, OpenMode};
use headrace_core::layouts::jetstream::block::block_key;
use headrace_core::layouts::jetstream::record::{self, Fields, SUBJECT, SUBJECT_LENGTH, View};
use headrace_core::layouts::jetstream::scan::{Hints, scan};
use proptest::prelude::*;
use random::Random;

/// Linear searches end in a fraction of this, quadratic ones take minutes to hours.
const BOUND: Duration = Duration::from_secs(30);

/// Records of equal sizes (wrong lengths then lead to other records) or of mixed ones.
fn sizes(random: &mut Random, size_max: usize, equal: bool, count: usize) -> Vec<usize> {
    (0..count).map(|_| if equal { size_max } else { 10 + random.below(size_max - 9) }).collect()
}

fn shapes() -> impl Strategy<Value = (u64, usize, usize, bool)> {
    let size = prop_oneof![10usize..100, 100usize..3_000, 3_000usize..65_536];
    (any::<u64>(), 1usize..=50, size, any::<bool>())
}

/// Enough for 50 damaged ones, and not much more than a block.
fn count_of(size: usize) -> usize {
    (2_000_000 / size).clamp(60, 2_000)
}

mod jetstream {
    use super::*;

    fn block_of(random: &mut Random, sizes: &[usize], first: u64) -> (Vec<u8>, Vec<View>) {
        let key = block_key(b"S", 1);
        let (mut block, mut views) = (Vec::new(), Vec::new());
        for (at, size) in sizes.iter().enumerate() {
            let (start, data) = (block.len(), random.bytes(*size));
            let headers = (at % 3 == 0).then_some(&b"NATS/1.0\r\nA: b\r\n\r\n"[..]);
            let fields = Fields {
                raw_sequence: first + at as u64,
                time: at as i64,
                subject: b"orders.eu",
                headers,
                data: &data,
            };
            record::encode(&mut block, &key, &fields);
            views.push(View::parse(&block, start).unwrap());
        }
        (block, views)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn damaged_records_cost_no_others((seed, k, size, equal) in shapes(), far in any::<bool>()) {
            let mut random = Random(seed);
            let sizes = sizes(&mut random, size, equal, count_of(size));
            let (whole, views) = block_of(&mut random, &sizes, if far { 1 << 40 } else { 1 });
            let mut block = whole.clone();
            let chosen = random.choose(k, views.len());
            for at in &chosen {
                random.damage(&mut block[views[*at].offset..views[*at].end()]);
            }
            let found = scan(&mut block, &block_key(b"S", 1), &Hints::default());
            let served: std::collections::HashMap<u64, u32> =
                found.records.iter().map(|record| (record.raw_sequence, record.offset)).collect();
            for (at, view) in views.iter().enumerate().filter(|(at, _)| !chosen.contains(at)) {
                let offset = served.get(&view.raw_sequence).copied();
                prop_assert_eq!(offset, Some(view.offset as u32), "record {} of {}", at, views.len());
                prop_assert!(block[view.offset..view.end()] == whole[view.offset..view.end()]);
            }
        }
    }

    /// What was measured on a block of the real server: one bit late in each of k records of 1,900 bytes.
    #[test]
    fn a_full_block_with_flips_late_in_its_records() {
        let mut random = Random(7);
        let (whole, views) = block_of(&mut random, &[1_800; 4_000], 1);
        for k in [1, 2, 4, 50, 1_000, 4_000] {
            let mut block = whole.clone();
            for at in random.choose(k, views.len()) {
                block[views[at].end() - 60] ^= 1;
            }
            let found = scan(&mut block, &block_key(b"S", 1), &Hints::default());
            assert!(found.records.len() >= views.len() - k, "{k} cost {}", views.len() - found.records.len());
        }
    }

    fn header(out: &mut Vec<u8>, length: usize, sequence: u64) {
        let start = out.len();
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(&sequence.to_le_bytes());
        out.resize(start + SUBJECT_LENGTH, 0);
        out.extend_from_slice(&4u16.to_le_bytes());
        assert_eq!(out.len() - start, SUBJECT);
        out.extend_from_slice(b"a.bc");
    }

    /// Thousands of headers that claim the rest of the block, between sound records or not.
    #[test]
    fn hostile_headers_take_bounded_time() {
        let key = block_key(b"S", 1);
        for sound_between in [false, true] {
            let (mut block, total) = (Vec::new(), 8 << 20);
            let mut sequence = 0;
            while block.len() < total {
                sequence += 2;
                let claim = total + 4_096 - block.len() - block.len() % 1_000;
                header(&mut block, claim, sequence);
                if sound_between {
                    let fields =
                        Fields { raw_sequence: sequence + 1, time: 1, subject: b"a", headers: None, data: b"" };
                    record::encode(&mut block, &key, &fields);
                }
            }
            // Behind them: records that anybody can see are sound.
            block.resize(total + 8_192, b' ');
            let fields =
                |at: u64| Fields { raw_sequence: sequence + at, time: 1, subject: b"last", headers: None, data: b"x" };
            (2..12).for_each(|at| record::encode(&mut block, &key, &fields(at)));
            let started = Instant::now();
            let found = scan(&mut block, &key, &Hints::default());
            assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
            let last = found.records.last().map(|record| record.raw_sequence);
            assert_eq!(last, Some(sequence + 11));
        }
    }
}

/// Messages with random bodies, and where each of their records lies in the file.
struct File {
    bytes: Vec<u8>,
    records: Vec<std::ops::Range<usize>>,
}

impl File {
    /// Damages k of the records; which ones are left.
    fn damage(&mut self, random: &mut Random, k: usize) -> Vec<usize> {
        let chosen = random.choose(k, self.records.len());
        for at in &chosen {
            random.damage(&mut self.bytes[self.records[*at].clone()]);
        }
        (0..self.records.len()).filter(|at| !chosen.contains(at)).collect()
    }
}

fn batch_of(bodies: &[Vec<u8>], codec: HeaderCodec) -> Batch {
    let mut builder = BatchBuilder::with_capacity(bodies.len(), 0, codec);
    for data in bodies {
        let data = Some(&data[..]);
        let subject: &[u8] = if codec == HeaderCodec::Nats { b"" } else { b"t" };
        builder.push(Message { position: 0, time: 1, subject, key: None, headers: None, data, flags: 0 }).unwrap();
    }
    builder.finish()
}

fn disk_with(bytes: &[u8]) -> Arc<dyn Disk> {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    disk.open("/f", OpenMode::Write).unwrap().write_at(0, bytes).unwrap();
    disk
}

mod nats_streaming {
    use super::*;
    use headrace_core::layouts::nats_streaming::crc::{self, Crc};
    use headrace_core::layouts::nats_streaming::frames::{self, Reading};
    use headrace_core::layouts::nats_streaming::mend::{Bounds, mend};
    use headrace_core::layouts::nats_streaming::read::Sums;
    use headrace_core::layouts::nats_streaming::record::{EncodeRules, encode};

    const CHANNEL: &[u8] = b"orders";

    fn slice_of(random: &mut Random, sizes: &[usize]) -> File {
        let bodies: Vec<Vec<u8>> = sizes.iter().map(|size| random.bytes(*size)).collect();
        let rules = EncodeRules {
            channel: CHANNEL,
            next: 1,
            keep_positions: false,
            now: 1_700_000_000_000_000_000,
            not_before: 0,
            offset: 4,
            msgs_left: u64::MAX,
            bytes_left: u64::MAX,
            lossy: false,
        };
        let made = encode(&batch_of(&bodies, HeaderCodec::Nats), 0, &rules, &Crc::new(crc::IEEE), None).unwrap();
        let bytes = [&1u32.to_le_bytes()[..], &made.data].concat();
        let (mut records, mut at) = (Vec::new(), 4);
        while at < bytes.len() {
            let size = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize + 8;
            records.push(at..at + size);
            at += size;
        }
        File { bytes, records }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn damaged_records_cost_no_others((seed, k, size, equal) in shapes()) {
            let mut random = Random(seed);
            let sizes = sizes(&mut random, size, equal, count_of(size));
            let mut file = slice_of(&mut random, &sizes);
            let left = file.damage(&mut random, k);
            let data = disk_with(&file.bytes).open("/f", OpenMode::Read).unwrap();
            let sums = Sums { crc: &Crc::new(crc::IEEE), strict: true };
            let found = mend(&*data, None, CHANNEL, &sums, &Bounds::default()).unwrap();
            for at in left {
                let entry = found.entries.iter().find(|entry| entry.sequence == at as u64 + 1);
                prop_assert_eq!(entry.map(|entry| entry.offset as usize), Some(file.records[at].start));
            }
        }

        #[test]
        fn damaged_small_records_cost_no_others((seed, k, size, equal) in shapes(), types in 0u8..8) {
            let (mut random, crc) = (Random(seed), Crc::new(crc::IEEE));
            let mut file = File { bytes: 1u32.to_le_bytes().to_vec(), records: Vec::new() };
            for size in sizes(&mut random, size, equal, count_of(size)) {
                let start = file.bytes.len();
                let kind = if types == 0 { 0 } else { 1 + random.below(usize::from(types)) as u8 };
                frames::encode(&mut file.bytes, kind, &random.bytes(size), &crc);
                file.records.push(start..file.bytes.len());
            }
            let left = file.damage(&mut random, k);
            let found = frames::walk(&file.bytes, &Reading { crc: &crc, strict: true, types, tolerant: true });
            let sound: std::collections::HashSet<usize> = found.frames.iter().map(|frame| frame.offset).collect();
            for at in left {
                prop_assert!(sound.contains(&file.records[at].start), "record {} of {}", at, file.records.len());
            }
        }
    }

    #[test]
    fn hostile_sizes_take_bounded_time() {
        let (crc, total) = (Crc::new(crc::IEEE), 4 << 20);
        // Every place is the start of a record that claims the rest, in the shape of a message of the channel.
        let mut bytes = 1u32.to_le_bytes().to_vec();
        while bytes.len() < total {
            let size = (total - bytes.len() + 1_000) as u32;
            bytes.extend_from_slice(&size.to_le_bytes());
            bytes.extend_from_slice(&[7, 7, 7, 7, 0x08, 0x01, 0x12, CHANNEL.len() as u8]);
            bytes.extend_from_slice(CHANNEL);
        }
        bytes.resize(total + 2_000, 7);
        let start = bytes.len();
        bytes.extend_from_slice(&slice_of(&mut Random(1), &[50; 20]).bytes[4..]);
        let started = Instant::now();
        let data = disk_with(&bytes).open("/f", OpenMode::Read).unwrap();
        let found = mend(&*data, None, CHANNEL, &Sums { crc: &crc, strict: true }, &Bounds::default()).unwrap();
        assert!(found.entries.iter().filter(|entry| entry.offset as usize >= start).count() >= 19);
        let found = frames::walk(&bytes, &Reading { crc: &crc, strict: true, types: 0, tolerant: true });
        assert!(found.frames.iter().filter(|frame| frame.offset >= start).count() >= 19);
        assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    }
}

mod kafka {
    use super::*;
    use headrace_core::layouts::kafka::codec::Codec;
    use headrace_core::layouts::kafka::encode::{EncodeRules, encode};
    use headrace_core::layouts::kafka::walk::{Step, Walker};

    fn segment_of(random: &mut Random, sizes: &[usize]) -> File {
        let mut file = File { bytes: Vec::new(), records: Vec::new() };
        for (at, size) in sizes.iter().enumerate() {
            let rules = EncodeRules {
                first: 100 + at as i64,
                keep_positions: false,
                now_ms: 5,
                magic: 2,
                codec: Codec::None,
                level: None,
                batch_bytes: 1,
                message_bytes_max: 1 << 20,
                leader_epoch: 3,
                append_time: false,
            };
            let made = encode(&batch_of(&[random.bytes(*size)], HeaderCodec::Kafka), &rules).unwrap();
            file.records.push(file.bytes.len()..file.bytes.len() + made.bytes.len());
            file.bytes.extend_from_slice(&made.bytes);
        }
        file
    }

    fn sound(bytes: &[u8]) -> std::collections::HashSet<u64> {
        let file = disk_with(bytes).open("/f", OpenMode::Read).unwrap();
        let mut walker = Walker::new(file, bytes.len() as u64, 100, None, Vec::new());
        let mut found = std::collections::HashSet::new();
        loop {
            let at = walker.position;
            match walker.step().unwrap() {
                Step::Sound(_) | Step::Repaired(..) => found.extend([at]),
                Step::Bad(_) => {}
                Step::End => return found,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        /// Anywhere but in the first offset, which no checksum covers.
        #[test]
        fn damaged_batches_cost_no_others((seed, k, size, equal) in shapes()) {
            let mut random = Random(seed);
            let sizes = sizes(&mut random, size, equal, count_of(size));
            let mut file = segment_of(&mut random, &sizes);
            let covered = file.records.iter().map(|record| record.start + 8..record.end).collect();
            let records = std::mem::replace(&mut file.records, covered);
            let left = file.damage(&mut random, k);
            let found = sound(&file.bytes);
            for at in left {
                prop_assert!(found.contains(&(records[at].start as u64)), "batch {} of {}", at, records.len());
            }
        }

        /// The neighbours show the first offset, where they are sound.
        #[test]
        fn damaged_offsets_cost_no_others((seed, _, size, equal) in shapes()) {
            let mut random = Random(seed);
            let sizes = sizes(&mut random, size, equal, count_of(size));
            let mut file = segment_of(&mut random, &sizes);
            for at in (5..file.records.len() - 5).step_by(10) {
                let start = file.records[at].start;
                random.damage(&mut file.bytes[start..start + 8]);
            }
            let found = sound(&file.bytes);
            for at in (0..file.records.len()).filter(|at| at % 10 != 5) {
                prop_assert!(found.contains(&(file.records[at].start as u64)), "batch {} of {}", at, sizes.len());
            }
        }
    }

    #[test]
    fn destroyed_headers_cost_what_lies_between_them_at_most() {
        let mut random = Random(3);
        let mut file = segment_of(&mut random, &[500; 1_000]);
        for at in (50..1_000).step_by(100) {
            let start = file.records[at].start;
            file.bytes[start..start + 40].fill(0xff);
        }
        assert_eq!(sound(&file.bytes).len(), 990);
    }

    #[test]
    fn hostile_headers_take_bounded_time() {
        let (mut bytes, total) = (Vec::new(), 8 << 20);
        let whole = segment_of(&mut Random(1), &[50; 40]);
        while bytes.len() < total {
            let start = bytes.len();
            bytes.extend_from_slice(&whole.bytes[..61]);
            bytes[start + 8..start + 12].copy_from_slice(&((total - start) as u32).to_be_bytes());
        }
        bytes.resize(total + 4_096, 7);
        let behind = bytes.len() as u64;
        bytes.extend_from_slice(&whole.bytes);
        let started = Instant::now();
        let found = sound(&bytes);
        assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
        assert!(found.iter().filter(|at| **at >= behind).count() >= 39);
    }
}

mod rocketmq {
    use super::*;
    use headrace_core::layouts::rocketmq::encode::{EncodeRules, encode};
    use headrace_core::layouts::rocketmq::scan::scan;

    fn log_of(random: &mut Random, sizes: &[usize]) -> File {
        let bodies: Vec<Vec<u8>> = sizes.iter().map(|size| random.bytes(*size)).collect();
        let rules = EncodeRules {
            topic: b"T",
            queue: 2,
            first: 0,
            keep_positions: false,
            address: 0,
            file_bytes: 1 << 30,
            now_ms: 77,
            body_max: 1 << 20,
            store_host: [127, 0, 0, 1, 0, 0, 0, 9],
            property_crc: true,
        };
        let made = encode(&batch_of(&bodies, HeaderCodec::RocketMq), &rules).unwrap();
        let (mut records, mut at) = (Vec::new(), 0);
        while at < made.bytes.len() {
            let size = u32::from_be_bytes(made.bytes[at..at + 4].try_into().unwrap()) as usize;
            records.push(at..at + size);
            at += size;
        }
        File { bytes: made.bytes, records }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn damaged_messages_cost_no_others((seed, k, size, equal) in shapes()) {
            let mut random = Random(seed);
            let sizes = sizes(&mut random, size, equal, count_of(size));
            let mut file = log_of(&mut random, &sizes);
            let left = file.damage(&mut random, k);
            let found = scan(&disk_with(&file.bytes), "/f", 0, 0, false).unwrap();
            let entries = found.queues.values().flatten().flat_map(|run| run.entries.chunks(20));
            let sound: std::collections::HashSet<u64> =
                entries.map(|entry| u64::from_be_bytes(entry[..8].try_into().unwrap())).collect();
            for at in left {
                prop_assert!(sound.contains(&(file.records[at].start as u64)), "message {} of {}", at, sizes.len());
            }
        }
    }

    #[test]
    fn hostile_sizes_take_bounded_time() {
        let whole = log_of(&mut Random(1), &[50; 2]);
        let (mut bytes, total) = (Vec::new(), 16 << 20);
        let head = whole.records[0].len();
        while bytes.len() < total {
            // Messages that name their own address and claim the rest, all lengths adding up.
            let start = bytes.len();
            bytes.extend_from_slice(&whole.bytes[..head - 60]);
            let size = (total - start) as u32;
            bytes[start..start + 4].copy_from_slice(&size.to_be_bytes());
            bytes[start + 28..start + 36].copy_from_slice(&(start as u64).to_be_bytes());
        }
        let started = Instant::now();
        scan(&disk_with(&bytes), "/f", 0, 0, false).unwrap();
        assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    }
}

mod rabbitmq {
    use super::*;
    use headrace_core::layouts::rabbitmq::etf::NewMessage;
    use headrace_core::layouts::rabbitmq::store::{put_record, walk_store};

    fn store_of(random: &mut Random, sizes: &[usize]) -> File {
        let mut file = File { bytes: Vec::new(), records: Vec::new() };
        for (at, size) in sizes.iter().enumerate() {
            let (start, body) = (file.bytes.len(), random.bytes(*size));
            let mut id = [7; 16];
            id[..8].copy_from_slice(&(at as u64).to_be_bytes());
            let block = [0, 0];
            let message = NewMessage { vhost: b"/", exchange: b"", keys: &[b"q"], block: &block, body: &body, id: &id };
            put_record(&mut file.bytes, &id, |out| message.write(out));
            file.records.push(start..file.bytes.len());
        }
        file
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn damaged_messages_cost_no_others((seed, k, size, equal) in shapes()) {
            let mut random = Random(seed);
            let sizes = sizes(&mut random, size, equal, count_of(size));
            let mut file = store_of(&mut random, &sizes);
            let left = file.damage(&mut random, k);
            let mut sound = std::collections::HashSet::new();
            walk_store(&file.bytes, |place| sound.extend([place.offset as usize]));
            for at in left {
                prop_assert!(sound.contains(&file.records[at].start), "message {} of {}", at, sizes.len());
            }
        }
    }

    /// A body length that ends at another 255: behind the next records (whose last then gives its id), or inside its
    /// own body.
    #[test]
    fn a_damaged_length_inside_a_message_costs_that_message_only() {
        let whole = store_of(&mut Random(1), &[300; 8]);
        let stride = whole.records[1].len() as i64;
        for shift in [stride, 3 * stride, -100] {
            let mut bytes = whole.bytes.clone();
            let record = whole.records[2].clone();
            let old = 300u32.to_be_bytes();
            let length = record.start + memchr::memmem::find(&bytes[record.clone()], &old).unwrap();
            bytes[length..length + 4].copy_from_slice(&((300 + shift) as u32).to_be_bytes());
            // Where the term then ends, in its own body: behind the body come the end of the term and the mark.
            if shift < 0 {
                bytes[(record.end as i64 - 1 + shift) as usize] = 255;
                let tail: Vec<u8> = bytes[length + 4 + 300..record.end - 1].to_vec();
                let at = (length as i64 + 4 + 300 + shift) as usize;
                bytes[at..at + tail.len()].copy_from_slice(&tail);
            } else {
                let last = whole.records[2 + (shift / stride) as usize].start;
                let id = bytes[last + 8..last + 24].to_vec();
                bytes[record.start + 8..record.start + 24].copy_from_slice(&id);
            }
            let mut found = Vec::new();
            walk_store(&bytes, |place| found.push(place.offset as usize));
            let others: Vec<usize> =
                whole.records.iter().map(|record| record.start).filter(|at| *at != record.start).collect();
            assert_eq!(found, others, "{shift}");
        }
    }

    /// Terms whose lists have the rest of the file for elements, one inside the other.
    #[test]
    fn hostile_lists_take_bounded_time() {
        let (mut bytes, total) = (Vec::new(), 16 << 20);
        while bytes.len() < total {
            let mut term = vec![0; 24];
            term.extend_from_slice(
                b"\x83h\x06d\x00\x0dbasic_messageh\x04d\x00\x08resourcem\x00\x00\x00\x01/d\x00\x08exchange",
            );
            term.extend_from_slice(b"m\x00\x00\x00\x00l");
            term.extend_from_slice(&((total / 90) as u32).to_be_bytes());
            bytes.push(b'm');
            bytes.extend_from_slice(&(term.len() as u32).to_be_bytes());
            bytes.extend_from_slice(&term);
        }
        let behind = bytes.len();
        bytes.extend_from_slice(&store_of(&mut Random(1), &[50; 20]).bytes);
        let (started, mut found) = (Instant::now(), 0);
        walk_store(&bytes, |place| found += usize::from(place.offset as usize >= behind));
        assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
        assert!(found >= 19, "{found}");
    }
}
