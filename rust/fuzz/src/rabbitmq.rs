//! RabbitMQ's journal, segments and store files.

use headrace_core::layouts::rabbitmq::queue::{QueueIndex, rewritten};
use headrace_core::layouts::rabbitmq::record::{walk_journal, walk_segment};
use headrace_core::layouts::rabbitmq::store::{put_record, walk_store};
use headrace_core::layouts::rabbitmq::{etf::NewMessage, props};

/// The input as each kind of file; what it holds is served, so every span must lie inside.
pub fn read_files(input: &[u8]) {
    walk_journal(input, |_| ());
    let findings = walk_segment(input, 2048, |_| ());
    assert!(findings.iter().all(|f| f.offset + f.len <= input.len() as u64));
    walk_store(input, |place| assert!(place.offset + u64::from(place.total) <= input.len() as u64));
    let (sound, _) = rewritten(input, 0, 2048, input);
    assert!(walk_segment(&sound, 2048, |_| ()).is_empty(), "what was rewritten is sound");
    let mut queue = QueueIndex::new(2048, (0, 0));
    queue.load_segment(0, input);
    queue.load_journal(input.to_vec());
    props::each_text(input, |_, _| Ok::<(), ()>(())).expect("never refused");
}

/// A store record, which also holds an embedded term.
pub fn sample() -> Vec<u8> {
    let mut bytes = Vec::new();
    let message =
        NewMessage { vhost: b"/", exchange: b"x", keys: &[b"k"], block: &props::PLAIN, body: b"body", id: &[9; 16] };
    put_record(&mut bytes, &[9; 16], |out| message.write(out));
    bytes
}
