//! RocketMQ's codec: what is encoded is scanned and read back; bent and random bytes never panic and never lie.

use std::collections::HashSet;
use std::sync::Arc;

use headrace_core::batch::{Batch, BatchBuilder, HeaderCodec, Message};
use headrace_core::disk::{Disk, MemoryDisk, OpenMode};
use headrace_core::layouts::rocketmq::encode::{EncodeRules, Encoded, encode};
use headrace_core::layouts::rocketmq::index::IndexFile;
use headrace_core::layouts::rocketmq::message;
use headrace_core::layouts::rocketmq::reader::CommitLogReader;
use headrace_core::layouts::rocketmq::scan::scan;
use proptest::prelude::*;

const FILE: u64 = 2048;

fn batch_of(bodies: &[Vec<u8>]) -> Batch {
    let mut builder = BatchBuilder::with_capacity(bodies.len(), 0, HeaderCodec::RocketMq);
    for body in bodies {
        let (key, headers, data) = (Some(&b"k"[..]), Some(&b"TAGS\x01t\x02"[..]), Some(&body[..]));
        builder.push(Message { position: 0, time: 0, subject: b"T", key, headers, data, flags: 0 }).unwrap();
    }
    builder.finish()
}

fn encoded(bodies: &[Vec<u8>]) -> Encoded {
    let rules = EncodeRules {
        topic: b"T",
        queue: 2,
        first: 0,
        keep_positions: false,
        address: 0,
        file_bytes: FILE,
        now_ms: 77,
        body_max: 1000,
        store_host: [127, 0, 0, 1, 0, 0, 0, 9],
        property_crc: true,
    };
    encode(&batch_of(bodies), &rules).unwrap()
}

/// The files as they are on disk.
fn files_of(made: &Encoded) -> Vec<Vec<u8>> {
    let mut files = vec![vec![0; FILE as usize]; (made.next_address / FILE + 1) as usize];
    for piece in &made.pieces {
        let (file, at) = ((piece.address / FILE) as usize, (piece.address % FILE) as usize);
        files[file][at..at + piece.len].copy_from_slice(&made.bytes[piece.at..piece.at + piece.len]);
    }
    files
}

fn on_disk(files: &[Vec<u8>]) -> (Arc<dyn Disk>, Vec<(u64, String)>) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    disk.create_dir_all("/c").unwrap();
    let mut names = Vec::new();
    for (number, bytes) in files.iter().enumerate() {
        let path = format!("/c/{number}");
        disk.open(&path, OpenMode::Write).unwrap().write_at(0, bytes).unwrap();
        names.push((number as u64 * FILE, path));
    }
    (disk, names)
}

fn bodies() -> impl Strategy<Value = Vec<Vec<u8>>> {
    proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn messages_come_back(given in bodies()) {
        let made = encoded(&given);
        let (disk, names) = on_disk(&files_of(&made));
        let mut entries = Vec::new();
        for (start, path) in &names {
            let found = scan(&disk, path, *start, 0, true).unwrap();
            prop_assert!(found.bad.is_empty());
            for runs in found.queues.values() {
                runs.iter().for_each(|run| entries.extend_from_slice(&run.entries));
            }
        }
        prop_assert_eq!(&entries, &made.entries);
        let reader = CommitLogReader::new(&disk, &names).unwrap();
        let (batch, used, lost) = reader.read(b"T", 2, 0, &entries, usize::MAX, 1 << 20).unwrap();
        prop_assert!(lost.is_empty() && used == given.len());
        let found: Vec<Vec<u8>> = batch.entries().iter().map(|e| batch.bytes(e.data).to_vec()).collect();
        prop_assert_eq!(found, given);
    }

    #[test]
    fn bent_bytes_yield_only_what_was_written(
        given in bodies(),
        bends in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let made = encoded(&given);
        let mut files = files_of(&made);
        for (at, value) in bends {
            let at = at.index(files.len() * FILE as usize);
            files[at / FILE as usize][at % FILE as usize] = value;
        }
        let (disk, names) = on_disk(&files);
        let written: HashSet<&[u8]> = given.iter().map(|body| &body[..]).collect();
        let reader = CommitLogReader::new(&disk, &names).unwrap();
        let (batch, _, lost) = reader.read(b"T", 2, 0, &made.entries, usize::MAX, 1 << 20).unwrap();
        prop_assert_eq!(batch.len() + lost.len(), given.len());
        for entry in batch.entries() {
            prop_assert!(written.contains(batch.bytes(entry.data)));
        }
        for (start, path) in &names {
            scan(&disk, path, *start, 0, true).unwrap();
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = message::parse(&bytes, 0);
        let (disk, names) = on_disk(std::slice::from_ref(&bytes));
        scan(&disk, &names[0].1, 0, 0, true).unwrap();
        let reader = CommitLogReader::new(&disk, &names).unwrap();
        let _ = reader.read(b"T", 0, 0, &bytes, 4096, 1 << 16).unwrap();
        let index = IndexFile::open(disk.open(&names[0].1, OpenMode::Read).unwrap(), 10, 20).unwrap();
        index.find(b"T#k", 10).unwrap();
    }
}
