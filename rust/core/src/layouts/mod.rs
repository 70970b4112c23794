//! One codec per layout: tolerant scan, encode, index lookup.

pub mod jetstream;
pub mod kafka;
pub mod nats_streaming;
pub mod rabbitmq;
pub mod rocketmq;
pub mod search;
