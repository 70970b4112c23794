//! RocketMQ's store: one commit log for all topics, and queues that point into it.
//!
//! ```text
//! message    one message of the commit log: fields, checks, resynchronising
//! scan       a commit-log file from a position on: what each queue gets, what is not sound
//! encode     messages → bytes for the log, entries for the queue
//! reader     messages by queue entries         index   lookup by key
//! ```

pub mod encode;
pub mod index;
pub mod message;
pub mod reader;
pub mod scan;
