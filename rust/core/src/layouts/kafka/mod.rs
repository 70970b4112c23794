//! Kafka's log segments: message formats 0, 1 and 2, the sparse indexes, and what transactions leave in them.
//!
//! ```text
//! header     one batch: its fields, its checksum            records    the messages inside, decoded
//! codec      gzip, snappy, lz4, zstd, each with a limit     encode     messages → batches
//! walk       batch by batch through a file, past damage     survey     a whole segment: counts, indexes, findings
//! index      the rule by which .index and .timeindex grow   producers  idempotent and transactional producers
//! reader     messages from a position on                    writer     the active segment
//! ```

pub mod codec;
pub mod encode;
pub mod header;
pub mod index;
pub mod producers;
pub mod reader;
pub mod records;
pub mod survey;
pub mod walk;
pub mod writer;
