//! RabbitMQ's classic queue storage, version 1 (3.8 to 3.13): queue index and shared message store.
//!
//! ```text
//! etf     the Erlang terms that occur here: read with limits, written as OTP 25 does
//! props   the AMQP property block: its end, its time, its fields as text; made from what other layouts have
//! record  journal.jif and N.idx: one definition of each record, tolerant walkers
//! queue   one queue in memory: the segment map with publish, deliver and ack actions
//! change  staging and applying publishes, delivers, acks        flush   what the segment files lack
//! cold    segments known by their numbers only                  stamp   did anybody write since?
//! read    a queue's messages as batches
//! store   N.rdq: where each message lies, how often it is referenced, what a merge keeps
//! ```

pub mod change;
pub mod cold;
pub mod etf;
pub mod flush;
pub mod props;
pub mod queue;
pub mod read;
pub mod record;
pub mod stamp;
pub mod store;

/// A message's id: 16 bytes that nobody else uses.
pub type MessageId = [u8; 16];

/// Something in a file that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub kind: &'static str,
    pub offset: u64,
    pub len: u64,
    /// The sequence numbers concerned, half-open.
    pub sequences: Option<(u64, u64)>,
    pub detail: String,
}

impl Finding {
    pub fn new(kind: &'static str, offset: usize, len: usize, detail: impl Into<String>) -> Finding {
        Finding { kind, offset: offset as u64, len: len as u64, sequences: None, detail: detail.into() }
    }

    pub fn about(mut self, sequence: u64) -> Finding {
        self.sequences = Some((sequence, sequence + 1));
        self
    }
}
