//! NATS Streaming's file store: message slices with their index, and the typed records of subscriptions and clients.
//!
//! ```text
//! every file    version u32 = 1 | records
//! record        size u32 | CRC-32 of the payload | payload (protobuf)       msgs.N.dat, server.dat
//!               in clients.dat and subs.dat the high byte of the size word is the record's type
//! index entry   sequence u64 | offset u64 | time i64 | payload size u32 | CRC-32 of the 28 bytes before
//! ```
//! The index says which records are live: a crash between the two writes leaves a record that was never
//! acknowledged, and its sequence is given out again behind it.

pub mod crc;
pub mod frames;
pub mod index;
pub mod mend;
pub mod read;
pub mod record;
pub mod seal;
pub mod subs;

pub const VERSION: u32 = 1;
/// The version word at the start of every file.
pub const FILE_HEAD: u64 = 4;
/// Size and CRC before each payload.
pub const FRAME: usize = 8;
/// What a message counts beside its payload, for limits and slices: the frame and the index entry.
pub const COUNTED: u64 = (FRAME + index::ENTRY) as u64;
/// No message may be larger: a damaged size must not make a reader allocate.
pub const PAYLOAD_MAX: usize = 512 << 20;

/// Which file of a slice a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Data,
    Index,
}

/// Bytes that are not what they should be, and what became of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub part: Part,
    /// As `Damage.kind` in Python.
    pub kind: &'static str,
    pub offset: u64,
    pub len: u64,
    pub sequences: Option<(u64, u64)>,
    pub detail: String,
}
