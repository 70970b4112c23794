//! Kafka's codecs: what is encoded is decoded, random and bent bytes never panic and never yield what nobody wrote.

use std::collections::HashSet;
use std::sync::Arc;

use headrace_core::batch::{Batch, BatchBuilder, HeaderCodec, Message};
use headrace_core::disk::{Disk, MemoryDisk, OpenMode};
use headrace_core::layouts::kafka::codec::{self, Codec};
use headrace_core::layouts::kafka::encode::{EncodeRules, Encoded, encode, from_frames};
use headrace_core::layouts::kafka::header::Header;
use headrace_core::layouts::kafka::index;
use headrace_core::layouts::kafka::producers::Producers;
use headrace_core::layouts::kafka::reader::{BatchPosition, SegmentReader, Want};
use headrace_core::layouts::kafka::survey::{SurveyRules, survey};
use headrace_core::varint;
use proptest::prelude::*;

type Row = (u64, i64, Option<Vec<u8>>, Option<Vec<u8>>);
type Given = (Option<Vec<u8>>, Option<Vec<u8>>, i64);
type Content = (Option<Vec<u8>>, Option<Vec<u8>>);

fn messages() -> impl Strategy<Value = Vec<Given>> {
    let bytes = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..60));
    proptest::collection::vec((bytes(), bytes(), 1..4_000_000_000_000i64), 1..40)
}

fn batch_of(given: &[Given]) -> Batch {
    let mut builder = BatchBuilder::with_capacity(given.len(), 0, HeaderCodec::Kafka);
    for (key, data, ms) in given {
        let (key, data, time) = (key.as_deref(), data.as_deref(), ms * 1_000_000);
        builder.push(Message { position: 0, time, subject: b"t", key, headers: None, data, flags: 0 }).unwrap();
    }
    builder.finish()
}

fn rules(magic: u8, codec: Codec) -> EncodeRules {
    EncodeRules {
        first: 100,
        keep_positions: false,
        now_ms: 5,
        magic,
        codec,
        level: None,
        batch_bytes: 300,
        message_bytes_max: 1 << 20,
        leader_epoch: 3,
        append_time: false,
    }
}

fn segment(bytes: &[u8]) -> (Arc<dyn Disk>, String) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    disk.create_dir_all("/d").unwrap();
    let path = "/d/00000000000000000100.log".to_string();
    disk.open(&path, OpenMode::Write).unwrap().write_at(0, bytes).unwrap();
    (disk, path)
}

fn read_all(bytes: &[u8]) -> Vec<Row> {
    let (disk, path) = segment(bytes);
    let reader = SegmentReader::new(&disk, &path, 100, None, b"t", 1 << 20).unwrap();
    let (mut place, mut rows) = (BatchPosition { position: 0, last: 99 }, Vec::new());
    let mut first = 0;
    loop {
        let want = Want {
            first,
            next: i64::MAX,
            messages_max: 7,
            bytes_max: 500,
            control: true,
            aborted: &[],
            limit: bytes.len() as u64,
        };
        let read = reader.read(place, &want).unwrap();
        for entry in read.batch.entries() {
            let optional = |span| Some(read.batch.bytes(span).to_vec());
            let key = if entry.key.is_null() { None } else { optional(entry.key) };
            let data = if entry.data.is_null() { None } else { optional(entry.data) };
            rows.push((entry.position, entry.time, key, data));
        }
        first = rows.last().map_or(0, |row: &Row| row.0 as i64 + 1);
        place = read.place;
        if read.ended {
            return rows;
        }
    }
}

fn encoded(given: &[Given], magic: u8, codec: Codec) -> Encoded {
    encode(&batch_of(given), &rules(magic, codec)).unwrap()
}

fn expected(given: &[Given], magic: u8) -> Vec<Row> {
    let row = |(at, (key, data, ms)): (usize, &Given)| {
        let time = if magic == 0 { 0 } else { ms * 1_000_000 };
        (100 + at as u64, time, key.clone(), data.clone())
    };
    given.iter().enumerate().map(row).collect()
}

fn survey_rules() -> SurveyRules {
    SurveyRules {
        base: 100,
        ceiling: None,
        interval: 64,
        from: 0,
        last: 99,
        deep: true,
        inflated_max: 1 << 20,
        anchors: Vec::new(),
        limit: u64::MAX,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn varints_come_back(value in any::<i64>()) {
        let mut bytes = Vec::new();
        varint::put_varint(&mut bytes, value);
        prop_assert_eq!(varint::varint_size(value), bytes.len());
        let mut at = 0;
        prop_assert_eq!(varint::get_varint(&bytes, &mut at), Ok(value));
        prop_assert_eq!(at, bytes.len());
    }

    #[test]
    fn every_format_and_codec_comes_back(given in messages()) {
        for magic in 0..3 {
            for codec in Codec::ALL {
                if magic < 2 && codec == Codec::Zstd {
                    continue;
                }
                let made = encoded(&given, magic, codec);
                prop_assert_eq!(read_all(&made.bytes), expected(&given, magic));
                let again = from_frames(&made.bytes, 100, true, 3, 1 << 20).unwrap();
                prop_assert_eq!(again.messages, given.len() as u64);
                prop_assert_eq!(&again.bytes, &made.bytes);
                let (disk, path) = segment(&made.bytes);
                let found = survey(&disk, &path, &survey_rules(), &mut Producers::default()).unwrap();
                prop_assert_eq!(found.messages, given.len() as u64);
                prop_assert!(found.bad.is_empty() && found.malformed.is_empty());
            }
        }
    }

    #[test]
    fn bent_bytes_yield_only_what_was_written(
        given in messages(),
        bends in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
        codec in 0..5usize,
    ) {
        let mut bytes = encoded(&given, 2, Codec::ALL[codec]).bytes;
        for (at, value) in bends {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let written: HashSet<Content> =
            given.iter().map(|(key, data, _)| (key.clone(), data.clone())).collect();
        for (_, _, key, data) in read_all(&bytes) {
            prop_assert!(written.contains(&(key, data)));
        }
        let (disk, path) = segment(&bytes);
        let found = survey(&disk, &path, &survey_rules(), &mut Producers::default()).unwrap();
        let lost: u64 = found.bad.iter().map(|bad| bad.to - bad.from).sum();
        prop_assert_eq!(found.sound_bytes + lost, bytes.len() as u64);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Header::parse(&bytes);
        read_all(&bytes);
        let _ = from_frames(&bytes, 0, false, 0, 1 << 16);
        for codec in Codec::ALL {
            for magic in 0..3 {
                let out = codec::decompress(codec, &bytes, magic, 1000);
                prop_assert!(out.is_err() || out.unwrap().len() <= 1000);
            }
        }
        let entries = index::lookup(&bytes, 0, 77);
        prop_assert!(entries <= bytes.len() / 8);
        index::lookup_time(&bytes, 0, 77);
    }

    #[test]
    fn the_output_limit_holds(size in 1000..20_000usize) {
        for codec in Codec::ALL {
            let packed = codec::compress(codec, &vec![7; size], 2, None).unwrap();
            prop_assert!(codec::decompress(codec, &packed, 2, size - 1).is_err());
            prop_assert_eq!(codec::decompress(codec, &packed, 2, size).unwrap().len(), size);
        }
    }
}
