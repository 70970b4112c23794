//! RabbitMQ's bytes: what is written is read back, and no bytes at all make a reader panic or loop.

use std::sync::Arc;

use headrace_core::batch::{BatchBuilder, HeaderCodec, Message as Row};
use headrace_core::disk::{Disk, MemoryDisk, OpenMode};
use headrace_core::layouts::rabbitmq::etf::{Message, NewMessage};
use headrace_core::layouts::rabbitmq::props::{self, Block, Envelope, Given};
use headrace_core::layouts::rabbitmq::queue::{QueueIndex, Rules, rewritten};
use headrace_core::layouts::rabbitmq::read::ReadLimits;
use headrace_core::layouts::rabbitmq::record::{Action, walk_journal, walk_segment};
use headrace_core::layouts::rabbitmq::store::{MessageStore, put_record, walk_store};
use proptest::prelude::*;

fn rules<'a>() -> Rules<'a> {
    Rules {
        vhost: b"/",
        queue: b"q",
        now_ns: 1_700_000_000_000_000_000,
        keep_positions: false,
        embed_below: 4096,
        deliver: true,
        ids: &[],
        store_bytes: 0,
        store_limit: 1 << 24,
    }
}

fn written(bodies: &[Vec<u8>], count: u64) -> (Vec<u8>, Vec<u8>) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    disk.create_dir_all("/q").expect("memory");
    let mut store = MessageStore::new(disk.clone(), "/p", "/t");
    let mut queue = QueueIndex::new(count, (1, 2));
    let mut builder = BatchBuilder::with_capacity(bodies.len(), 0, HeaderCodec::None);
    for body in bodies {
        let row = Row { position: 0, time: 0, subject: b"key", key: None, headers: None, data: Some(body), flags: 0 };
        builder.push(row).expect("small");
    }
    let write = queue.stage_publish(&builder.finish(), &rules(), &store).expect("sound");
    let journal = disk.open("/q/journal.jif", OpenMode::Write).expect("memory");
    queue.write_journal(write.journal, &*journal, 0).expect("memory");
    queue.apply();
    let segment = disk.open("/q/0.idx", OpenMode::Write).expect("memory");
    queue.flush_segment(0, &*segment, 0).expect("memory");
    queue.flushed();
    let bytes =
        (disk.read("/q/journal.jif", 1 << 30).expect("memory"), disk.read("/q/0.idx", 1 << 30).expect("memory"));
    queue.set_file_bytes(0, bytes.1.len() as u64);
    let limits = ReadLimits { max_msgs: 10_000, max_bytes: 1 << 30, below: u64::MAX >> 2 };
    let found = queue.read(&*disk, "/q", &mut store, 0, &limits).expect("sound");
    let got: Vec<Vec<u8>> =
        found.batches.iter().flat_map(|b| b.entries().iter().map(|e| b.bytes(e.data).to_vec())).collect();
    assert_eq!(got, bodies);
    bytes
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..60)) {
        let (journal, segment) = written(&bodies, 64);
        let mut publishes = 0;
        prop_assert!(walk_journal(&journal, |action| publishes += u64::from(matches!(action, Action::Publish(_)))).is_empty());
        let found = walk_segment(&segment, 64, |action| publishes += u64::from(matches!(action, Action::Publish(_))));
        prop_assert!(found.is_empty(), "{:?}", found.iter().map(|f| (f.kind, f.offset, f.len, &f.detail)).collect::<Vec<_>>());
        prop_assert_eq!(publishes, 2 * bodies.len() as u64);
        let (again, contradicted) = rewritten(&segment, 0, 64, &journal);
        prop_assert!(!contradicted);
        prop_assert_eq!(again.len(), segment.len());
    }

    #[test]
    fn random_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        walk_journal(&data, |_| ());
        walk_segment(&data, 2048, |_| ());
        walk_store(&data, |_| ());
        let _ = Message::parse(&data, 0);
        let _ = props::encode_decoded(&data);
        let _ = Envelope::parse(&data);
        if let Some(block) = Block::parse(&data) { let _ = block.facts(&data); }
        props::each_text(&data, |_, _| Ok::<(), ()>(())).expect("never refused");
        let mut queue = QueueIndex::new(64, (0, 0));
        queue.load_segment(0, &data);
        queue.load_journal(data);
        let _ = (queue.totals(), queue.plan_flush(), queue.next_after_flush());
    }

    #[test]
    fn bent_files_never_panic(cut in 0usize..4000, at in 0usize..4000, bits in any::<[u8; 6]>()) {
        let bodies: Vec<Vec<u8>> = (0..12).map(|n| vec![n; 100 + usize::from(n)]).collect();
        let (mut journal, mut segment) = written(&bodies, 16);
        for data in [&mut journal, &mut segment] {
            for (number, bit) in bits.iter().enumerate() {
                let place = (at + number * 7) % data.len();
                data[place] ^= bit;
            }
            let keep = data.len() - cut.min(data.len() / 2);
            data.truncate(keep);
        }
        let mut queue = QueueIndex::new(16, (0, 0));
        queue.load_segment(0, &segment);
        queue.load_journal(journal.clone());
        rewritten(&segment, 0, 16, &journal);
    }

    #[test]
    fn terms_blocks_and_records_fit(body in prop::collection::vec(any::<u8>(), 0..300), time in 1i64..1 << 61, key in any::<Option<[u8; 5]>>()) {
        let mut block = Vec::new();
        let given = Given { time_ns: time, key: key.as_ref().map(|k| &k[..]), headers: vec![(b"a", b"1"), (b"a", b"2")], ..Given::default() };
        props::write_block(&given, &mut block);
        let parsed = Block::parse(&block).expect("ours");
        prop_assert_eq!(parsed.end, block.len());
        prop_assert_eq!(parsed.facts(&block).time_ns, time);
        let id = [7; 16];
        let message = NewMessage { vhost: b"v", exchange: b"x", keys: &[b"k", b"cc"], block: &block, body: &body, id: &id };
        let mut bytes = Vec::new();
        let total = put_record(&mut bytes, &id, |out| message.write(out));
        prop_assert_eq!(total, message.size() + 25);
        let mut found = Vec::new();
        prop_assert!(walk_store(&bytes, |place| found.push(place)).is_empty());
        prop_assert_eq!(found.len(), 1);
        let read = Message::parse(&bytes, 24).expect("ours");
        let mut again = Vec::new();
        read.copy_body(&bytes, &mut again);
        prop_assert_eq!(again, body);
        prop_assert_eq!(read.more_keys(&bytes), vec![b"cc"]);
    }
}

#[test]
fn bodies_of_zeros_are_sound() {
    // Every length, so that the last record ends at every place of a sector.
    for len in (0..1100).chain([1500, 3000]) {
        for before in 0..3 {
            let mut bodies = vec![vec![7u8; 61]; before];
            bodies.push(vec![0u8; len]);
            let (journal, segment) = written(&bodies, 64);
            assert!(walk_journal(&journal, |_| ()).is_empty(), "journal, {len} after {before}");
            let found = walk_segment(&segment, 64, |_| ());
            assert!(
                found.is_empty(),
                "segment, {len} after {before}: {:?}",
                found.iter().map(|f| (f.kind, f.offset, &f.detail)).collect::<Vec<_>>()
            );
        }
    }
}
