//! What is driven, and the sound inputs that mutation starts from.

use std::collections::HashMap;
use std::sync::Arc;

use headrace_core::compress;
use headrace_core::disk::{Disk, MemoryDisk, OpenMode};
use headrace_core::hash::HashKey;
use headrace_core::layouts::jetstream::archive;
use headrace_core::layouts::jetstream::block::{block_key, compress_block};
use headrace_core::layouts::jetstream::decode::Reader;
use headrace_core::layouts::jetstream::guard::Guard;
use headrace_core::layouts::jetstream::idx::Idx;
use headrace_core::layouts::jetstream::index_db::IndexDb;
use headrace_core::layouts::jetstream::log::BlockLog;
use headrace_core::layouts::jetstream::query::ReadLimits;
use headrace_core::layouts::jetstream::record::{self, Fields, View};
use headrace_core::layouts::jetstream::scan::{Hints, scan};
use headrace_core::layouts::jetstream::seqset::SeqSet;
use headrace_core::subjects::Filter;

use crate::{kafka, protocol, rabbitmq, rocketmq, streaming};

pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

pub const ALL: &[Target] = &[
    Target { name: "record", run: parse_everywhere },
    Target { name: "scan", run: scan_block },
    Target { name: "guard", run: scan_guarded },
    Target { name: "idx", run: decode_idx },
    Target { name: "seqset", run: decode_seqset },
    Target { name: "index", run: decode_index },
    Target { name: "archive", run: decode_archive },
    Target { name: "s2", run: decompress },
    Target { name: "open", run: open_store },
    Target { name: "rabbitmq", run: rabbitmq::read_files },
    Target { name: "wire", run: protocol::parse_wire },
    Target { name: "exchange", run: protocol::drive_exchange },
    Target { name: "requests", run: protocol::drive_requests },
    Target { name: "streaming-slice", run: streaming::mend_slice },
    Target { name: "streaming-records", run: streaming::walk_records },
    Target { name: "kafka", run: kafka::read_segment },
    Target { name: "rocketmq", run: rocketmq::read_store },
];

fn key() -> HashKey {
    block_key(b"S", 1)
}

fn parse_everywhere(input: &[u8]) {
    for offset in 0..input.len().min(256) + 2 {
        if let Ok(view) = View::parse(input, offset) {
            assert!(view.end() <= input.len() && view.data_start() <= view.end());
            let _ = (view.subject(input), view.headers(input), view.data(input), view.hash(input, &key()));
        }
    }
}

fn scan_block(input: &[u8]) {
    let mut block = input.to_vec();
    let found = scan(&mut block, &key(), &Hints::default());
    let mut last = 0;
    for served in &found.records {
        let view = View::checked(&block, served.offset as usize, &key()).expect("served records are sound");
        assert!(view.is_tombstone() || view.sequence() > last, "sequences grow");
        last = if view.is_tombstone() { last } else { view.sequence() };
    }
    assert!(found.sound_end <= block.len());
    assert!(found.findings.iter().all(|f| f.offset + f.len <= block.len() as u64));
}

/// The input is a guard and then a block, so that both can be bent.
fn scan_guarded(input: &[u8]) {
    let sample = block();
    let cut = guard_of(&sample).len().min(input.len());
    for block in [&sample[..], &input[cut..]] {
        if let Some(guard) = Guard::decode(&input[..cut], block) {
            assert!(guard.covered <= block.len());
            let mut block = block.to_vec();
            scan(&mut block, &key(), &Hints { guard: Some(&guard) });
        }
    }
}

fn decode_idx(input: &[u8]) {
    if let Ok(idx) = Idx::decode(input) {
        let _ = idx.fits(input);
    }
}

fn decode_seqset(input: &[u8]) {
    if let Ok(set) = SeqSet::decode(&mut Reader::new(input)) {
        let mut again = Vec::new();
        set.encode(&mut again);
        assert_eq!(SeqSet::decode(&mut Reader::new(&again)).as_ref(), Ok(&set));
        let _ = set.count_between(5, u64::MAX);
    }
}

/// Behind a hash that is made to fit: otherwise nothing but the hash would be tested.
fn decode_index(input: &[u8]) {
    let key = HashKey::from_text(b"S");
    let body = &input[..input.len().saturating_sub(8)];
    let bytes = [body, &key.hash(body).to_le_bytes()].concat();
    if let Ok(index) = IndexDb::decode(&bytes, &key) {
        let sound = index.adds_up();
        let log = BlockLog::new(Arc::new(MemoryDisk::new()), "/m", "/g", b"S", 1 << 20);
        let opened = log.open_by_index(&index, &HashMap::new());
        if sound && opened.is_ok() {
            let _ = (log.state(), log.deleted(100));
        }
    }
}

fn decode_archive(input: &[u8]) {
    let (mut offset, mut turns) = (0, 0);
    loop {
        let (batch, next, _) = archive::decode(input, offset, 100);
        turns += 1;
        if batch.is_empty() || next <= offset || turns > 1000 {
            return;
        }
        offset = next;
    }
}

fn decompress(input: &[u8]) {
    let _ = compress::s2_decompress_stream(input, 1 << 20);
    let (plain, bad) = compress::s2_decompress_stream_tolerant(input, 4096, 4096);
    assert!(bad.iter().all(|chunk| chunk.in_offset + chunk.in_len <= input.len()));
    assert!(plain.len() <= (1 << 20) + input.len() * 256);
}

/// A store whose newest block is the input: opened, read, searched, appended to nothing.
fn open_store(input: &[u8]) {
    let disk = MemoryDisk::new();
    disk.create_dir_all("/m").expect("memory");
    for (number, bytes) in [(1, &block()[..]), (2, input)] {
        let file = disk.open(&format!("/m/{number}.blk"), OpenMode::Write).expect("memory");
        file.write_at(0, bytes).expect("memory");
    }
    let log = BlockLog::new(Arc::new(disk), "/m", "/g", b"S", 1 << 20);
    log.open_by_scan(&[1, 2], &HashMap::new(), 1).expect("a damaged block is no reason not to open");
    let state = log.state().expect("state");
    let (mut from, mut seen) = (0, 0);
    loop {
        let limits = ReadLimits { msgs: 1000, bytes: usize::MAX, filters: &[], below: u64::MAX };
        let batch = log.read(from, &limits).expect("read");
        let Some(last) = batch.entries().last() else { break };
        (from, seen) = (last.position + 1, seen + batch.len() as u64);
    }
    assert_eq!(seen, state.msgs, "what is counted can be read");
    let _ = log.filtered_state(0, &Filter::all()).expect("filtered state");
    let _ = log.deleted(1000);
    let _ = log.sound_copy(2);
    let _ = log.encode_index().expect("index");
}

fn block() -> Vec<u8> {
    let (key, mut out) = (key(), Vec::new());
    for n in 1..20u64 {
        let headers: Option<&[u8]> = (n % 3 == 0).then_some(b"NATS/1.0\r\nA: b\r\n\r\n");
        let subject: &[u8] = [&b"a"[..], b"b.c", b"orders.eu.west"][n as usize % 3];
        let data = vec![n as u8; n as usize * 5];
        record::encode(&mut out, &key, &Fields { raw_sequence: n * 2, time: n as i64, subject, headers, data: &data });
        match n % 5 {
            0 => record::encode_tombstone(&mut out, &key, n, 5),
            1 => record::encode_placeholder(&mut out, &key, n * 2 + 1, 5),
            _ => {}
        }
    }
    out
}

fn guard_of(block: &[u8]) -> Vec<u8> {
    let (mut guard, mut at) = (Guard::default(), 0);
    while let Ok(view) = View::parse(block, at) {
        guard.push(&view);
        at = view.end();
    }
    guard.encode(&block[block.len() - record::HASH_SIZE..])
}

/// Sound inputs of every kind.
pub fn corpus() -> Vec<Vec<u8>> {
    let block = block();
    let guard = guard_of(&block);
    let idx = Idx { msgs: 3, bytes: 90, first: 1, last: 9, deleted: [3, 4, 8].into_iter().collect(), ..Idx::default() };
    let set: SeqSet = (1..500).chain(9000..9100).chain([1 << 40]).collect();
    let mut set_bytes = Vec::new();
    set.encode(&mut set_bytes);
    let disk = MemoryDisk::new();
    disk.create_dir_all("/m").expect("memory");
    disk.open("/m/1.blk", OpenMode::Write).and_then(|file| file.write_at(0, &block)).expect("memory");
    let log = BlockLog::new(Arc::new(disk), "/m", "/g", b"S", 1 << 20);
    log.open_by_scan(&[1], &HashMap::new(), 1).expect("a sound block");
    let all = ReadLimits { msgs: 1000, bytes: usize::MAX, filters: &[], below: u64::MAX };
    let messages = log.read(0, &all).expect("a sound block");
    let mut corpus = vec![
        rabbitmq::sample(),
        [&guard[..], &block].concat(),
        compress_block(&block),
        compress::s2_compress_stream(&block),
        idx.encode(),
        set_bytes,
        log.encode_index().expect("an index"),
        archive::encode(&messages),
        Vec::new(),
        block,
    ];
    corpus.extend(protocol::sessions());
    corpus.extend(streaming::corpus());
    corpus.extend(kafka::seeds());
    corpus.extend(rocketmq::seeds());
    corpus
}
