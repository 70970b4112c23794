//! Through any broker's headers and back, a message says the same; random bytes never panic.

use headrace_core::batch::{Batch, BatchBuilder, HeaderCodec, Message, flags};
use headrace_core::recast::{Carry, Digest, Plain, Rules, Subject, parts, recast};
use proptest::prelude::*;

const ALL: u8 = parts::POSITION | parts::TIME | parts::KEY | parts::HEADERS | parts::SUBJECT | parts::NULL;

fn rules(to: HeaderCodec) -> Rules<'static> {
    let keys = to != HeaderCodec::Nats;
    Rules {
        to,
        keys,
        nulls: to == HeaderCodec::Kafka,
        subject: Subject::Fixed(b"fixed"),
        restore: true,
        carry: Carry::Header,
        usual: b"\xffusual",
        subject_max: usize::MAX,
        shift: 0,
        time: 7,
    }
}

type Given = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Option<Vec<u8>>)>);

fn varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Kafka's headers can say everything: any bytes, nulls, repetitions.
fn kafka(messages: &[Given]) -> Batch {
    let mut builder = BatchBuilder::with_capacity(messages.len(), 0, HeaderCodec::Kafka);
    for (at, (subject, key, data, pairs)) in messages.iter().enumerate() {
        let mut block = Vec::new();
        varint(&mut block, pairs.len() as i64);
        for (name, value) in pairs {
            varint(&mut block, name.len() as i64);
            block.extend_from_slice(name.as_bytes());
            varint(&mut block, value.as_ref().map_or(-1, |value| value.len() as i64));
            block.extend_from_slice(value.as_deref().unwrap_or_default());
        }
        builder
            .push(Message {
                position: at as u64,
                time: at as i64,
                subject,
                key: key.as_deref(),
                headers: (!pairs.is_empty()).then_some(&block),
                data: data.as_deref(),
                flags: 0,
            })
            .unwrap();
    }
    builder.finish()
}

fn digest(batch: &Batch, which: u8) -> (u64, u64) {
    let mut digest = Digest::default();
    digest.add(batch, which, 0, 7, 1);
    (digest.count, digest.value())
}

fn plains(batch: &Batch) -> Vec<Plain<'_>> {
    batch.entries().iter().map(|entry| Plain::of(batch, entry)).collect()
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        "[a-z.]{1,12}".prop_map(String::into_bytes),
        "[ -~]{0,9}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..9),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[A-Za-z-]{1,9}", "[ -~]{0,6}", ".{0,4}", Just("KEYS".to_owned()), Just("x-key".to_owned()),]
}

fn given() -> impl Strategy<Value = Given> {
    let pairs = proptest::collection::vec((name(), proptest::option::of(text())), 0..4);
    (text(), proptest::option::of(text()), proptest::option::of(text()), pairs)
}

proptest! {
    #[test]
    fn there_and_back(messages in proptest::collection::vec(given(), 0..6)) {
        let source = kafka(&messages);
        for by in [HeaderCodec::Nats, HeaderCodec::RocketMq, HeaderCodec::Kafka] {
            let there = recast(&source, &rules(by)).unwrap();
            prop_assert_eq!(there.codec(), by);
            // RocketMQ's own reader takes the key from its property; here the column says it.
            prop_assert_eq!(digest(&there, ALL), digest(&source, ALL), "{}", by.name());
            let back = recast(&there, &rules(HeaderCodec::Kafka)).unwrap();
            let (was, is) = (plains(&source), plains(&back));
            for (was, is) in was.iter().zip(&is) {
                prop_assert_eq!(&was.key, &is.key);
                prop_assert_eq!(was.null, is.null);
                prop_assert_eq!(&was.pairs, &is.pairs);
                prop_assert_eq!(&was.subject, &is.subject);
            }
            prop_assert_eq!(was.len(), is.len());
        }
    }

    #[test]
    fn a_difference_is_seen(messages in proptest::collection::vec(given(), 1..5), at in any::<usize>(), what in 0..4) {
        let source = kafka(&messages);
        let mut other = messages.clone();
        let at = at % other.len();
        let message = &mut other[at];
        match what {
            0 => message.0.push(b'x'),
            1 => message.1.get_or_insert_default().push(b'x'),
            2 => message.2.get_or_insert_default().push(b'x'),
            _ => message.3.push(("another".to_owned(), None)),
        }
        prop_assert_ne!(digest(&source, ALL), digest(&kafka(&other), ALL));
    }

    #[test]
    fn random_bytes_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..60), codec in 0..5usize) {
        let codec = [HeaderCodec::None, HeaderCodec::Nats, HeaderCodec::Kafka, HeaderCodec::Amqp, HeaderCodec::RocketMq][codec];
        let mut builder = BatchBuilder::with_capacity(1, 64, codec);
        let message =
            Message { position: 1, time: 0, subject: b"s", key: None, headers: Some(&raw), data: Some(b"d"), flags: 0 };
        builder.push(message).unwrap();
        let batch = builder.finish();
        for to in [HeaderCodec::Nats, HeaderCodec::RocketMq, HeaderCodec::Kafka] {
            let there = recast(&batch, &rules(to)).unwrap();
            prop_assert_eq!(there.len(), 1);
            prop_assert_eq!(there.entries()[0].time, 7);
        }
        digest(&batch, ALL);
    }
}

#[test]
fn control_records_are_no_messages() {
    let mut builder = BatchBuilder::with_capacity(2, 0, HeaderCodec::Kafka);
    for flags in [flags::CONTROL, 0] {
        let message =
            Message { position: 1, time: 1, subject: b"s", key: None, headers: None, data: Some(b"d"), flags };
        builder.push(message).unwrap();
    }
    let batch = builder.finish();
    assert_eq!(recast(&batch, &rules(HeaderCodec::Nats)).unwrap().len(), 1);
    assert_eq!(digest(&batch, ALL).0, 1);
}

#[test]
fn subjects_that_hold_the_own_one() {
    assert_eq!(Subject::parse(None), Subject::Own);
    assert_eq!(Subject::parse(Some(b"copy")), Subject::Fixed(b"copy"));
    let within = Subject::parse(Some(b"copy.{subject}.x"));
    assert_eq!(within, Subject::Within(b"copy.", b".x"));
    let given: Vec<Given> = ["a", "b.c"].iter().map(|text| (text.as_bytes().to_vec(), None, None, vec![])).collect();
    let there = recast(&kafka(&given), &rules(HeaderCodec::Nats)).unwrap();
    // A subject that was carried in a header is the own one.
    for batch in [&kafka(&given), &there] {
        let made = recast(batch, &Rules { subject: within, ..rules(HeaderCodec::Nats) }).unwrap();
        let subjects: Vec<&[u8]> = made.entries().iter().map(|entry| made.bytes(entry.subject)).collect();
        assert_eq!(subjects, [&b"copy.a.x"[..], b"copy.b.c.x"]);
    }
}
