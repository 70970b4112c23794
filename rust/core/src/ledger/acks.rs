//! Acknowledgements as they arrive: a run of them over one buffer, for one consumer and one turn.

/// What a client said about a message it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckKind {
    Ack,
    Nak,
    Progress,
    Next,
    Term,
    /// Bytes that mean nothing known.
    Other,
}

impl AckKind {
    /// The name that Python sees.
    pub fn name(self) -> &'static str {
        match self {
            AckKind::Ack => "ack",
            AckKind::Nak => "nak",
            AckKind::Progress => "progress",
            AckKind::Next => "next",
            AckKind::Term => "term",
            AckKind::Other => "other",
        }
    }

    /// The inverse of `name`.
    pub fn from_name(name: &str) -> Option<AckKind> {
        let all = [AckKind::Ack, AckKind::Nak, AckKind::Progress, AckKind::Next, AckKind::Term, AckKind::Other];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// Length of a span that is not there.
pub const NO_BYTES: u32 = u32::MAX;

/// One acknowledgement. `body` and `reply` are (offset, length) in `AckRun::bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    pub kind: AckKind,
    pub deliveries: u64,
    pub stream_seq: u64,
    pub consumer_seq: u64,
    pub body: (u32, u32),
    pub reply: (u32, u32),
}

impl Ack {
    /// Whether a client that asks for an answer gets one. An ack of what was never handed out is not recorded (a delivery
    /// may have been forgotten in a crash), so it is not confirmed either; `+NXT` is answered with messages alone.
    pub fn is_confirmed(&self, delivered: u64) -> bool {
        let is_final = matches!(self.kind, AckKind::Ack | AckKind::Term);
        self.kind != AckKind::Next && self.stream_seq != 0 && !(is_final && self.stream_seq > delivered)
    }
}

/// Acknowledgements of one consumer in the order of their arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AckRun {
    pub acks: Vec<Ack>,
    pub bytes: Vec<u8>,
    replies: usize,
}

impl AckRun {
    pub fn new() -> AckRun {
        AckRun::default()
    }

    /// Append one. A run holds less than 4 GiB of bytes: the caller ends it long before.
    pub fn push(
        &mut self,
        kind: AckKind,
        deliveries: u64,
        stream_seq: u64,
        consumer_seq: u64,
        body: &[u8],
        reply: Option<&[u8]>,
    ) {
        let body = if body.is_empty() { (0, 0) } else { self.keep(body) };
        let reply = match reply {
            Some(reply) => {
                self.replies += 1;
                self.keep(reply)
            }
            None => (0, NO_BYTES),
        };
        self.acks.push(Ack { kind, deliveries, stream_seq, consumer_seq, body, reply });
    }

    pub fn len(&self) -> usize {
        self.acks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.acks.is_empty()
    }

    /// Whether somebody waits for an answer to at least one of them (a double ack).
    pub fn has_replies(&self) -> bool {
        self.replies > 0
    }

    pub fn body(&self, ack: &Ack) -> &[u8] {
        self.span(ack.body)
    }

    pub fn reply(&self, ack: &Ack) -> Option<&[u8]> {
        (ack.reply.1 != NO_BYTES).then(|| self.span(ack.reply))
    }

    fn keep(&mut self, bytes: &[u8]) -> (u32, u32) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        (start, bytes.len() as u32)
    }

    fn span(&self, (start, length): (u32, u32)) -> &[u8] {
        &self.bytes[start as usize..start as usize + length as usize]
    }
}
