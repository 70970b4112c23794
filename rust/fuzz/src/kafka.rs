//! Kafka's segments: any bytes as a log file, as frames and as indexes.

use std::sync::Arc;

use headrace_core::batch::{Batch, BatchBuilder, HeaderCodec, Message};
use headrace_core::disk::{Disk, MemoryDisk, OpenMode};
use headrace_core::layouts::kafka::codec::Codec;
use headrace_core::layouts::kafka::encode::{EncodeRules, encode, from_frames};
use headrace_core::layouts::kafka::index;
use headrace_core::layouts::kafka::producers::Producers;
use headrace_core::layouts::kafka::reader::{BatchPosition, SegmentReader, Want};
use headrace_core::layouts::kafka::survey::{SurveyRules, survey};

const INFLATED_MAX: usize = 1 << 20;

pub fn read_segment(input: &[u8]) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    disk.create_dir_all("/d").expect("memory");
    disk.open("/d/0.log", OpenMode::Write).and_then(|file| file.write_at(0, input)).expect("memory");
    let rules = SurveyRules {
        base: 0,
        ceiling: None,
        interval: 50,
        from: 0,
        last: -1,
        deep: true,
        inflated_max: INFLATED_MAX,
        anchors: input.to_vec(),
        limit: u64::MAX,
    };
    let found = survey(&disk, "/d/0.log", &rules, &mut Producers::default()).expect("memory");
    let lost: u64 = found.bad.iter().map(|bad| bad.to - bad.from).sum();
    assert_eq!(found.sound_bytes + lost, input.len() as u64);
    let reader = SegmentReader::new(&disk, "/d/0.log", 0, None, b"t", INFLATED_MAX).expect("memory");
    let limit = input.len() as u64;
    let want = Want { first: 0, next: i64::MAX, messages_max: 50, bytes_max: 700, control: true, aborted: &[], limit };
    let mut place = BatchPosition { position: 0, last: -1 };
    for _ in 0..input.len() + 1 {
        let read = reader.read(place, &want).expect("memory");
        assert!(read.place.position >= place.position);
        place = read.place;
        if read.ended {
            break;
        }
    }
    let _ = reader.find_time(5, 0, Some((input, input)), limit);
    let _ = reader.read_raw(BatchPosition { position: 0, last: -1 }, 3, 500, limit);
    let _ = from_frames(input, 7, false, 1, INFLATED_MAX);
    let _ = (index::lookup(input, 0, 9), index::lookup_time(input, 0, 9));
}

/// Segments of every format and codec.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut builder = BatchBuilder::with_capacity(20, 0, HeaderCodec::Kafka);
    for n in 0..20i64 {
        let data = vec![n as u8; n as usize * 3];
        let (position, time) = (n as u64, n * 1_000_000);
        let headers = (n % 3 == 0).then_some(&b"\x02\x02a\x02b"[..]);
        let message = Message { position, time, subject: b"t", key: Some(b"k"), headers, data: Some(&data), flags: 0 };
        builder.push(message).expect("small");
    }
    let with_headers = builder.finish();
    let plain = |magic: u8| if magic == 2 { with_headers.clone() } else { without_headers() };
    let kinds = (0..3).flat_map(|magic| Codec::ALL.map(|codec| (magic, codec)));
    kinds
        .filter(|(magic, codec)| *magic == 2 || *codec != Codec::Zstd)
        .map(|(magic, codec)| {
            let rules = EncodeRules {
                first: 0,
                keep_positions: false,
                now_ms: 1,
                magic,
                codec,
                level: None,
                batch_bytes: 200,
                message_bytes_max: 1 << 20,
                leader_epoch: 0,
                append_time: false,
            };
            encode(&plain(magic), &rules).expect("sound messages").bytes
        })
        .collect()
}

fn without_headers() -> Batch {
    let mut builder = BatchBuilder::with_capacity(9, 0, HeaderCodec::Kafka);
    for n in 0..9 {
        let message =
            Message { position: n, time: 1, subject: b"t", key: None, headers: None, data: Some(b"old"), flags: 0 };
        builder.push(message).expect("small");
    }
    builder.finish()
}
