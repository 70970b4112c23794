//! One sans-I/O parser per protocol: bytes in, operations out. No socket, no state of the server.

pub mod nats;
pub mod sized;
