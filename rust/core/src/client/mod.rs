//! The client's half of the NATS protocol: what a server sends becomes batches, batches become publishes.
//!
//! `intake` knows no socket, `pump` moves bytes between one and an intake, `publish` writes what is to be sent.

pub mod acks;
pub mod intake;
pub mod publish;
pub mod pump;
