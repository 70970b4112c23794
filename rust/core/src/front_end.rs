//! What a protocol is to the sockets: bytes of its connections in, bytes for them out. No I/O.
//!
//! ```text
//!   socket set ─ bytes ─→ feed         one implementation per protocol: `exchange` (NATS), `requests` (a length in front)
//!              ←─ bytes ─ send_output  what waits for each connection
//! ```
//! A protocol numbers its connections itself (`slot`); the socket set keeps the sockets of each protocol apart.

/// Output buffers larger than this do not stay with their connection when they are empty.
pub const KEPT_BYTES: usize = 64 << 10;

/// What `feed` wants of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fed {
    Fine,
    /// The connection waits for a decision of the caller, such as who it is.
    Asking,
    /// Send what is left, then close.
    Close,
    /// Read nothing more from it until `next_resumed` names it.
    Full,
}

pub trait FrontEnd {
    /// Bytes that a connection sent.
    fn feed(&mut self, slot: u32, bytes: &[u8]) -> Fed;

    /// Hands the output of each connection that has some to `send` (connection, bytes, overrun), which empties it,
    /// or says with `false` that the connection is not its: then the output stays.
    fn send_output(&mut self, send: &mut dyn FnMut(u32, &mut Vec<u8>, bool) -> bool);

    /// Whether output is left for connections that `send_output` did not serve.
    fn has_output(&self) -> bool;

    /// A connection for which more than this waits to be sent is too slow.
    fn pending_max(&self) -> usize;

    /// A connection that was `Full` and takes bytes again.
    fn next_resumed(&mut self) -> Option<u32> {
        None
    }

    /// A large buffer that is empty now, for whoever needs one next.
    fn give_back(&mut self, _buffer: Vec<u8>) {}
}
