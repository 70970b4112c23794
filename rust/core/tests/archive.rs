//! The NATSARC1 codec: whatever the cut, the messages come back; random bytes never panic.

use headrace_core::batch::{Batch, BatchBuilder, HeaderCodec, Message};
use headrace_core::layouts::jetstream::archive::*;
use headrace_core::varint::put_uvarint;
use proptest::prelude::*;

type Made = (String, Option<Vec<u8>>, Vec<u8>);

fn batch(messages: &[Made]) -> Batch {
    let mut builder = BatchBuilder::with_capacity(0, 0, HeaderCodec::Nats);
    for (i, (subject, headers, data)) in messages.iter().enumerate() {
        let message = Message {
            position: i as u64 * 3 + 1,
            time: 1_700_000_000_000_000_000 - i as i64,
            subject: subject.as_bytes(),
            key: None,
            headers: headers.as_deref().filter(|h| !h.is_empty()),
            data: Some(data),
            flags: 0,
        };
        builder.push(message).unwrap();
    }
    builder.finish()
}

proptest! {
    #[test]
    fn comes_back_whatever_the_cut(
        messages in proptest::collection::vec(("[a-z.]{1,20}", any::<Option<Vec<u8>>>(), any::<Vec<u8>>()), 0..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let original = batch(&messages);
        let mut bytes = encode(&original);
        bytes.extend_from_slice(&[0; 5]);
        let cut = cut.index(bytes.len());
        let (first, next, stop) = decode(&bytes[..cut], 0, usize::MAX);
        prop_assert_eq!(stop, Stop::More);
        let (second, end, stop) = decode(&bytes, next, usize::MAX);
        prop_assert_eq!((end, stop), (bytes.len(), Stop::End));
        let again = Batch::concat(&[first, second]).unwrap();
        prop_assert_eq!(again.len(), original.len());
        bytes.truncate(bytes.len() - 5);
        prop_assert_eq!(encode(&again), bytes);
    }

    #[test]
    fn random_bytes_never_panic(data in any::<Vec<u8>>(), offset in 0usize..300, max in 0usize..10) {
        let (found, next, _) = decode(&data, offset, max);
        prop_assert!(found.len() <= max && next >= offset);
    }
}

#[test]
fn hostile_lengths_are_refused_before_anything_is_allocated() {
    let mut bytes = Vec::new();
    for value in [3, 0, 1, 0, u64::MAX] {
        put_uvarint(&mut bytes, value);
    }
    assert!(matches!(decode(&bytes, 0, 1), (_, 0, Stop::Malformed(_))));
}
