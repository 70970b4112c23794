//! RocketMQ's store: any bytes as a file of the commit log, as entries of a queue and as an index.

use std::sync::Arc;

use headrace_core::batch::{BatchBuilder, HeaderCodec, Message};
use headrace_core::disk::{Disk, MemoryDisk, OpenMode};
use headrace_core::layouts::rocketmq::encode::{EncodeRules, encode};
use headrace_core::layouts::rocketmq::index::IndexFile;
use headrace_core::layouts::rocketmq::message::{self, Parsed};
use headrace_core::layouts::rocketmq::reader::CommitLogReader;
use headrace_core::layouts::rocketmq::scan::{ENTRY, scan};

const LOG: &str = "/c/00000000000000000000";
const INFLATED_MAX: usize = 1 << 20;
const SLOTS: u32 = 7;
const ENTRIES: u32 = 9;

pub fn read_store(input: &[u8]) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    disk.create_dir_all("/c").expect("memory");
    disk.open(LOG, OpenMode::Write).and_then(|file| file.write_at(0, input)).expect("memory");
    let found = scan(&disk, LOG, 0, 0, true).expect("memory");
    assert!(found.end <= input.len() as u64 && found.queued <= found.messages);
    let mut before = 0;
    for bad in &found.bad {
        assert!(before <= bad.from && bad.from < bad.to && bad.to <= input.len() as u64, "findings are in order");
        before = bad.to;
    }
    let reader = CommitLogReader::new(&disk, &[(0, LOG.to_owned())]).expect("memory");
    let mut listed = 0;
    for ((topic, queue), runs) in &found.queues {
        for run in runs {
            listed += (run.entries.len() / ENTRY) as u64;
            let count = follow(&reader, topic, *queue, run.first, &run.entries);
            assert!(count <= run.entries.len() / ENTRY);
        }
    }
    assert_eq!(listed, found.queued, "every queued message has an entry");
    // Entries that nobody wrote: the input itself, in the queue of the first message.
    if let Ok(Parsed::Message(view)) = message::parse(input, 0) {
        follow(&reader, &input[view.topic.clone()], view.queue, view.queue_offset, input);
    }
    index_of(&disk, input);
}

/// Every message that is served is one that a parse at its place gives too.
fn follow(reader: &CommitLogReader, topic: &[u8], queue: i32, first: i64, entries: &[u8]) -> usize {
    let total = entries.len() / ENTRY;
    let (mut at, mut served) = (0, 0);
    while at < total {
        let (batch, used, findings) = reader
            .read(topic, queue, first.wrapping_add(at as i64), &entries[at * ENTRY..], 700, INFLATED_MAX)
            .expect("memory");
        assert!(used > 0 && batch.len() + findings.len() == used, "each entry is served or reported");
        assert!(batch.entries().iter().all(|entry| batch.bytes(entry.subject) == topic));
        (at, served) = (at + used, served + batch.len());
    }
    served
}

fn index_of(disk: &Arc<dyn Disk>, input: &[u8]) {
    let file = disk.open("/c/index", OpenMode::Write).expect("memory");
    file.write_at(0, input).expect("memory");
    file.set_len(40 + u64::from(SLOTS) * 4 + u64::from(ENTRIES) * 20).expect("memory");
    if let Ok(mut index) = IndexFile::open(file, SLOTS, ENTRIES) {
        let hits = index.find(b"t#k", 20).expect("memory");
        assert!(hits.len() <= 20);
        let _ = index.put(&[(b"t#k".to_vec(), 5, 6)]);
    }
}

/// A log with keys, tags, a blank at the end of a file's room, and without the checksum over all.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut builder = BatchBuilder::with_capacity(12, 0, HeaderCodec::RocketMq);
    for n in 0..12u64 {
        let data = vec![n as u8; n as usize * 9];
        let headers = (n % 3 == 0).then_some(&b"TAGS\x01red\x02KEYS\x01a b\x02"[..]);
        let message = Message {
            position: n,
            time: n as i64 * 1_000_000,
            subject: b"t",
            key: None,
            headers,
            data: Some(&data),
            flags: 0,
        };
        builder.push(message).expect("small");
    }
    let batch = builder.finish();
    [true, false]
        .map(|property_crc| {
            let rules = EncodeRules {
                topic: b"t",
                queue: 0,
                first: 0,
                keep_positions: false,
                address: 0,
                file_bytes: if property_crc { 1500 } else { 1 << 20 },
                now_ms: 1,
                body_max: 1 << 20,
                store_host: [127, 0, 0, 1, 0, 0, 42, 159],
                property_crc,
            };
            encode(&batch, &rules).expect("sound messages").bytes
        })
        .to_vec()
}
