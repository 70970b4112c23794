//! One client: what it said in CONNECT, its subscriptions, what is still to be parsed and to be sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use foldhash::fast::RandomState;

use super::AccountId;
use super::permissions::Permissions;
use super::subs::{Match, SubId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// No CONNECT yet, and nothing else is taken before it.
    Locked,
    /// CONNECT came; the answer of whoever checks it is awaited.
    Asking,
    Open,
    /// An error was sent, or the client is to go: nothing more is taken.
    Closing,
}

/// What CONNECT says. The defaults are those of the protocol for what is left out.
#[derive(Debug, Clone, Copy)]
pub struct ConnectFlags {
    pub verbose: bool,
    pub pedantic: bool,
    pub echo: bool,
    pub headers: bool,
    pub no_responders: bool,
}

impl Default for ConnectFlags {
    fn default() -> Self {
        ConnectFlags { verbose: true, pedantic: true, echo: true, headers: false, no_responders: false }
    }
}

#[derive(Debug, Default, Clone, Copy)]
pub struct Traffic {
    pub in_msgs: u64,
    pub in_bytes: u64,
    pub out_msgs: u64,
    pub out_bytes: u64,
}

pub struct Connection {
    pub stage: Stage,
    pub account: AccountId,
    pub flags: ConnectFlags,
    pub permissions: Option<Box<Permissions>>,
    pub subs: HashMap<Box<[u8]>, SubId, RandomState>,
    pub subs_max: usize,
    /// Bytes that came and are not a whole operation yet, or wait behind a CONNECT.
    pub unread: Vec<u8>,
    pub out: Vec<u8>,
    /// More waits for it than may: nothing is added, and it is to go.
    pub overrun: bool,
    pub traffic: Traffic,
    pub connect: Vec<u8>,
    pub pongs: u64,
    /// When it was sent the PING that is not answered yet.
    pub pinged: Option<Instant>,
    pub rtt_ns: u64,
    /// It does not read what it has: nothing more is delivered to its requests meanwhile.
    pub congested: bool,
    pub memo: Memo,
}

/// Who got the last message of this connection: the next one often has the same subject.
#[derive(Default)]
pub struct Memo {
    pub subject: Vec<u8>,
    pub generation: u64,
    pub found: Option<Arc<Match>>,
}

impl Connection {
    pub fn new(stage: Stage, account: AccountId, subs_max: usize) -> Self {
        Connection {
            stage,
            account,
            flags: ConnectFlags::default(),
            permissions: None,
            subs: HashMap::default(),
            subs_max,
            unread: Vec::new(),
            out: Vec::new(),
            overrun: false,
            traffic: Traffic::default(),
            connect: Vec::new(),
            pongs: 0,
            pinged: None,
            rtt_ns: 0,
            congested: false,
            memo: Memo::default(),
        }
    }
}
