//! One codec per layout: tolerant scan, encode, index lookup.

pub mod jetstream;
pub mod rabbitmq;
