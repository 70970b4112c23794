//! NATS Streaming's files: the input is a slice's data, its index, or a small file of records.

use std::sync::Arc;

use headrace_core::batch::{BatchBuilder, HeaderCodec, Message};
use headrace_core::disk::{Disk, DiskFile, MemoryDisk, OpenMode};
use headrace_core::layouts::nats_streaming::crc::{Crc, IEEE};
use headrace_core::layouts::nats_streaming::frames::{self, Reading};
use headrace_core::layouts::nats_streaming::mend::{Bounds, mend};
use headrace_core::layouts::nats_streaming::read::{Slice, Sums, Wanted, read};
use headrace_core::layouts::nats_streaming::record::{EncodeRules, encode};
use headrace_core::layouts::nats_streaming::{index, subs};

const CHANNEL: &[u8] = b"a.b";

fn file(bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = MemoryDisk::new().open("/f", OpenMode::Write).expect("memory");
    file.write_at(0, bytes).expect("memory");
    file
}

pub fn mend_slice(input: &[u8]) {
    let crc = Crc::new(IEEE);
    let sums = Sums { crc: &crc, strict: true };
    let (data, entries) = slice();
    for (data, index) in [(input, None), (input, Some(&entries[..])), (&data[..], Some(input))] {
        let (data, index) = (file(data), index.map(file));
        let found = mend(&*data, index.as_deref(), CHANNEL, &sums, &Bounds::default()).expect("memory");
        let mut last = 0;
        let mut image = vec![1, 0, 0, 0];
        for entry in &found.entries {
            assert!(entry.sequence > last && entry.end() <= data.len().expect("memory"));
            last = entry.sequence;
            entry.encode(&mut image, &crc);
        }
        let index = file(&image);
        let first = found.entries.first().map_or(0, |entry| entry.sequence);
        let slice = Slice { data: &*data, index: &*index, count: found.entries.len() as u64, first };
        let want = Wanted { first: 0, below: u64::MAX, msgs: 1 << 16, bytes: 1 << 30 };
        let read = read(&slice, &want, &sums, None).expect("memory");
        assert_eq!(read.batch.len(), found.entries.len(), "what is counted can be read");
        let _ = index::summarize(&*index, &crc, false).expect("memory");
    }
}

pub fn walk_records(input: &[u8]) {
    let crc = Crc::new(IEEE);
    for (types, tolerant) in [(0, true), (2, false), (5, true)] {
        let walk = frames::walk(input, &Reading { crc: &crc, strict: true, types, tolerant });
        let _ = subs::load(input, &walk.frames);
        assert!(walk.sound_end <= input.len());
    }
}

fn slice() -> (Vec<u8>, Vec<u8>) {
    let mut builder = BatchBuilder::with_capacity(8, 64, HeaderCodec::Nats);
    for n in 0..8u8 {
        let data = vec![n; n as usize * 9];
        let message =
            Message { position: 0, time: 0, subject: b"", key: None, headers: None, data: Some(&data), flags: 0 };
        builder.push(message).expect("small");
    }
    let rules = EncodeRules {
        channel: CHANNEL,
        next: 1,
        keep_positions: false,
        now: 5,
        not_before: 0,
        offset: 4,
        msgs_left: u64::MAX,
        bytes_left: u64::MAX,
        lossy: false,
    };
    let made = encode(&builder.finish(), 0, &rules, &Crc::new(IEEE), None).expect("small");
    let head = [1, 0, 0, 0];
    ([&head[..], &made.data].concat(), [&head[..], &made.index].concat())
}

/// Sound inputs.
pub fn corpus() -> Vec<Vec<u8>> {
    let (crc, mut records) = (Crc::new(IEEE), vec![1, 0, 0, 0]);
    frames::encode(&mut records, subs::NEW, &[0x08, 1, 0x12, 1, b'c', 0x30, 9], &crc);
    subs::updates(&mut records, subs::SENT, 1, &[1, 2, 3], &crc);
    subs::updates(&mut records, subs::ACK, 1, &[2], &crc);
    let (data, entries) = slice();
    vec![data, entries, records]
}
