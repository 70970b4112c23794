//! The exchange: all connections and subscriptions of a server, sans I/O.
//!
//! ```text
//!   feed(connection, bytes) ─ parse ─┬─ SUB, UNSUB, PING: done at once
//!                                    ├─ PUB → who wants it? clients: formatted into their `out`
//!                                    │                      the server itself: gathered into runs
//!                                    └─ CONNECT: parsing stops until `accept`
//!   drain()        the runs of all connections since the last time, in order
//!   take_output()  (connection, bytes) of everybody who has something to be sent
//! ```
//! It decides nothing about streams: a room asks for subjects with `listen`, gets runs, and answers.

mod answers;
mod connection;
mod deliver;
mod feed;
mod permissions;
mod route;
pub mod runs;
mod subs;
mod trace;
mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

pub use connection::{ConnectFlags, Stage, Traffic};
pub use deliver::{Delivery, Ended};
use foldhash::fast::RandomState;
pub use permissions::{Permissions, Responses, Rule};
pub use route::MessageRef;
use runs::{Gathering, Item};
pub use subs::Listener;
use subs::{Match, Member, SubId, Subscriptions};
pub use waiting::{Pull, PullLimits, Waiting};

pub use crate::front_end::Fed;
use crate::front_end::{FrontEnd, KEPT_BYTES};
use crate::subjects;
use crate::wire::nats::Limits;
use connection::Connection;

pub type AccountId = u32;
const SPARES_MAX: usize = 4;
const SPARE_BYTES_MAX: usize = 16 << 20;

fn keep_spare(spare: &mut Vec<Vec<u8>>, buffer: Vec<u8>) {
    if spare.len() < SPARES_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
        spare.push(buffer);
    }
}

/// (subject, queue, sid, delivered, max)
pub type SubscriptionFacts<'a> = (&'a [u8], Option<&'a [u8]>, &'a [u8], u64, u64);

pub(crate) struct Subscription {
    pub conn: u32,
    pub sid: Box<[u8]>,
    pub subject: Box<[u8]>,
    pub queue: Option<Box<[u8]>>,
    pub max: u64,
    pub delivered: u64,
    pub live: bool,
    pub checked: bool,
}

#[derive(Default)]
pub(crate) struct Account {
    pub name: String,
    pub subs: Subscriptions,
    /// `<stream>.<consumer>` → who takes its acks.
    pub acks: HashMap<Box<[u8]>, u64, RandomState>,
    /// Who else listens to acks, if that is the same for all of them; valid for one generation.
    pub ack_listeners: Option<(u64, Option<Arc<Match>>)>,
    pub watches: Vec<Watch>,
    /// Filters that came or went since the watches were looked at.
    pub changed: Vec<Box<[u8]>>,
    pub client_subs: u64,
    /// Somebody listens below `$JS.API.`.
    pub serves_api: bool,
}

pub(crate) struct Watch {
    token: u64,
    subject: Box<[u8]>,
    queue: Option<Box<[u8]>>,
    id: u64,
    some: bool,
}

struct Listening {
    account: AccountId,
    filter: Box<[u8]>,
    listener: Listener,
}

pub struct Exchange {
    pub limits: Limits,
    /// More subscriptions than this a connection cannot have.
    pub subs_max: usize,
    /// A client for whom more than this waits to be sent is too slow.
    pub pending_max: usize,
    accounts: Vec<Account>,
    names: HashMap<String, AccountId>,
    conns: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    /// Numbers of closed connections: not given out again before the runs that may name them were drained.
    resting: Vec<u32>,
    subs: Vec<Subscription>,
    free_subs: Vec<SubId>,
    listening: HashMap<u64, Listening>,
    next_token: u64,
    gathering: Gathering,
    dirty: Vec<u32>,
    /// Large output buffers that are not in use: making one costs more than filling it.
    spare: Vec<Vec<u8>>,
    ended_subs: Vec<SubId>,
    tracer: Option<u64>,
    chance: u64,
    pub now_ns: i64,
    pub totals: Traffic,
}

impl Exchange {
    pub fn new(limits: Limits, subs_max: usize, seed: u64) -> Self {
        Exchange {
            limits,
            subs_max,
            pending_max: usize::MAX,
            accounts: Vec::new(),
            names: HashMap::new(),
            conns: Vec::new(),
            free: Vec::new(),
            resting: Vec::new(),
            subs: Vec::new(),
            free_subs: Vec::new(),
            listening: HashMap::new(),
            next_token: 1,
            gathering: Gathering::default(),
            dirty: Vec::new(),
            spare: Vec::new(),
            ended_subs: Vec::new(),
            tracer: None,
            chance: seed | 1,
            now_ns: 0,
            totals: Traffic::default(),
        }
    }

    pub fn account(&mut self, name: &str) -> AccountId {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        let id = self.accounts.len() as AccountId;
        self.accounts.push(Account { name: name.to_owned(), ..Account::default() });
        self.names.insert(name.to_owned(), id);
        id
    }

    // Connections

    pub fn open(&mut self, account: AccountId, locked: bool) -> u32 {
        let stage = if locked { Stage::Locked } else { Stage::Open };
        let conn = Box::new(Connection::new(stage, account, self.subs_max));
        match self.free.pop() {
            Some(slot) => {
                self.conns[slot as usize] = Some(conn);
                slot
            }
            None => {
                self.conns.push(Some(conn));
                self.conns.len() as u32 - 1
            }
        }
    }

    pub fn close(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot as usize).and_then(Option::take) else { return };
        for sub in conn.subs.values() {
            self.drop_sub(*sub, conn.account);
        }
        self.resting.push(slot);
    }

    /// The CONNECT was found good.
    pub fn accept(&mut self, slot: u32, account: AccountId, flags: ConnectFlags, permissions: Option<Permissions>) {
        let Some(conn) = self.conn_mut(slot) else { return };
        if conn.account != account && !conn.subs.is_empty() {
            let subs: Vec<SubId> = conn.subs.drain().map(|(_, sub)| sub).collect();
            let before = conn.account;
            subs.into_iter().for_each(|sub| self.drop_sub(sub, before));
        }
        let Some(conn) = self.conn_mut(slot) else { return };
        conn.account = account;
        conn.flags = flags;
        conn.permissions = permissions.map(Box::new);
        conn.stage = Stage::Open;
        conn.memo = Default::default();
        if flags.verbose {
            self.write(slot, b"+OK\r\n");
        }
    }

    /// New permissions for a connection that stays (a reload). Subscriptions that are not allowed any more go.
    pub fn permit(&mut self, slot: u32, permissions: Option<Permissions>) -> Vec<Vec<u8>> {
        let Some(conn) = self.conns.get_mut(slot as usize).and_then(Option::as_mut) else { return Vec::new() };
        let account = conn.account;
        let mut gone = Vec::new();
        if let Some(permissions) = &permissions {
            for (sid, sub) in &conn.subs {
                let known = &self.subs[*sub as usize];
                if permissions.may_subscribe(&known.subject, known.queue.as_deref()) == permissions::Allowed::No {
                    gone.push((sid.clone(), *sub, known.subject.to_vec()));
                }
            }
        }
        conn.permissions = permissions.map(Box::new);
        for (sid, sub, _) in &gone {
            conn.subs.remove(sid);
            let _ = sub;
        }
        gone.iter().for_each(|(_, sub, _)| self.drop_sub(*sub, account));
        gone.into_iter().map(|(_, _, subject)| subject).collect()
    }

    pub fn connect_text(&self, slot: u32) -> &[u8] {
        self.conn(slot).map_or(b"", |conn| &conn.connect)
    }

    /// Say why and take nothing more.
    pub fn refuse(&mut self, slot: u32, text: &str) {
        self.error(slot, text);
        if let Some(conn) = self.conn_mut(slot) {
            conn.stage = Stage::Closing;
        }
    }

    pub fn error(&mut self, slot: u32, text: &str) {
        self.write(slot, format!("-ERR '{text}'\r\n").as_bytes());
    }

    pub fn set_congested(&mut self, slot: u32, congested: bool) {
        if let Some(conn) = self.conn_mut(slot) {
            conn.congested = congested;
        }
    }

    pub fn pongs(&self, slot: u32) -> u64 {
        self.conn(slot).map_or(0, |conn| conn.pongs)
    }

    /// Asks whether a client is there; `rtt_ns` says how long its answer took.
    pub fn ping(&mut self, slot: u32) {
        if let Some(conn) = self.conn_mut(slot) {
            conn.pinged = Some(Instant::now());
        }
        self.write(slot, b"PING\r\n");
    }

    pub fn rtt_ns(&self, slot: u32) -> u64 {
        self.conn(slot).map_or(0, |conn| conn.rtt_ns)
    }

    pub fn traffic(&self, slot: u32) -> (Traffic, usize) {
        self.conn(slot).map_or_else(Default::default, |conn| (conn.traffic, conn.subs.len()))
    }

    /// (subject, queue, sid, delivered, max) of everything that a connection subscribes to.
    pub fn subscriptions_of(&self, slot: u32, skip: usize, count: usize) -> Vec<SubscriptionFacts<'_>> {
        let Some(conn) = self.conn(slot) else { return Vec::new() };
        let one = |id: &SubId| {
            let sub = &self.subs[*id as usize];
            (&*sub.subject, sub.queue.as_deref(), &*sub.sid, sub.delivered, sub.max)
        };
        conn.subs.values().skip(skip).take(count).map(one).collect()
    }

    /// (account, subscriptions of clients, inserts, removes, matches, hits in what was kept)
    pub fn statistics(&self) -> Vec<(&str, u64, u64, u64, u64, u64)> {
        let mut found = Vec::with_capacity(self.accounts.len());
        for account in &self.accounts {
            let subs = &account.subs;
            let counts = (subs.inserts, subs.removes, subs.matches, subs.hits);
            found.push((account.name.as_str(), account.client_subs, counts.0, counts.1, counts.2, counts.3));
        }
        found
    }

    pub(crate) fn conn(&self, slot: u32) -> Option<&Connection> {
        self.conns.get(slot as usize).and_then(Option::as_deref)
    }

    pub(crate) fn conn_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.conns.get_mut(slot as usize).and_then(Option::as_deref_mut)
    }

    /// Bytes to a client, as they are.
    pub fn write(&mut self, slot: u32, bytes: &[u8]) {
        let Some(conn) = self.conns.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        if conn.out.is_empty() {
            self.dirty.push(slot);
        }
        conn.out.extend_from_slice(bytes);
    }

    /// Everybody who has something to be sent, with it; nothing for those who are so far behind that they must go.
    pub fn take_output(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut taken = Vec::with_capacity(self.dirty.len());
        for slot in self.dirty.drain(..) {
            if let Some(conn) = self.conns[slot as usize].as_mut() {
                if !conn.out.is_empty() {
                    let out = std::mem::take(&mut conn.out);
                    taken.push((slot, if conn.overrun { Vec::new() } else { out }));
                }
            }
        }
        taken
    }

    // Subscriptions of clients

    fn subscribe(&mut self, slot: u32, subject: &[u8], queue: Option<&[u8]>, sid: &[u8]) {
        let Some(conn) = self.conns[slot as usize].as_mut() else { return };
        let depth = memchr::memchr_iter(b'.', subject).count();
        if !subjects::valid_filter(subject) || depth >= subs::TOKENS_MAX {
            self.error(slot, "Invalid Subject");
            return;
        }
        let mut checked = false;
        if let Some(permissions) = &conn.permissions {
            match permissions.may_subscribe(subject, queue) {
                permissions::Allowed::Yes => {}
                permissions::Allowed::Checked => checked = true,
                permissions::Allowed::No => {
                    let named = String::from_utf8_lossy(subject).into_owned();
                    let with = queue.map(|q| format!(" using queue \"{}\"", String::from_utf8_lossy(q)));
                    let with = with.unwrap_or_default();
                    self.error(slot, &format!("Permissions Violation for Subscription to \"{named}\"{with}"));
                    return;
                }
            }
        }
        let verbose = conn.flags.verbose;
        if !conn.subs.contains_key(sid) {
            if conn.subs.len() >= conn.subs_max {
                self.error(slot, "maximum subscriptions exceeded");
                return;
            }
            let account = conn.account;
            let sub = Subscription {
                conn: slot,
                sid: sid.into(),
                subject: subject.into(),
                queue: queue.map(Into::into),
                max: 0,
                delivered: 0,
                live: true,
                checked,
            };
            let id = match self.free_subs.pop() {
                Some(id) => {
                    self.subs[id as usize] = sub;
                    id
                }
                None => {
                    self.subs.push(sub);
                    self.subs.len() as SubId - 1
                }
            };
            conn.subs.insert(sid.into(), id);
            let member = member_of(id, queue);
            let account = &mut self.accounts[account as usize];
            account.subs.insert(subject, member);
            account.client_subs += 1;
            account.note_change(subject);
        }
        if verbose {
            self.write(slot, b"+OK\r\n");
        }
    }

    fn unsubscribe(&mut self, slot: u32, sid: &[u8], max: Option<u64>) {
        let Some(conn) = self.conns[slot as usize].as_mut() else { return };
        let (verbose, account) = (conn.flags.verbose, conn.account);
        if let Some(id) = conn.subs.get(sid).copied() {
            let sub = &mut self.subs[id as usize];
            sub.max = max.unwrap_or(0);
            if sub.max == 0 || sub.delivered >= sub.max {
                conn.subs.remove(sid);
                self.drop_sub(id, account);
            }
        }
        if verbose {
            self.write(slot, b"+OK\r\n");
        }
    }

    /// Takes a subscription out of the account's tree. Its connection has forgotten it already.
    fn drop_sub(&mut self, id: SubId, account: AccountId) {
        let sub = &mut self.subs[id as usize];
        if !std::mem::take(&mut sub.live) {
            return;
        }
        let account = &mut self.accounts[account as usize];
        account.subs.remove(&sub.subject, &member_of(id, sub.queue.as_deref()));
        account.client_subs -= 1;
        account.note_change(&sub.subject);
        self.free_subs.push(id);
    }

    /// Subscriptions that reached their maximum while a message was fanned out.
    fn drop_ended(&mut self) {
        while let Some(id) = self.ended_subs.pop() {
            let sub = &self.subs[id as usize];
            if !sub.live {
                continue;
            }
            let (slot, sid) = (sub.conn, sub.sid.clone());
            let Some(conn) = self.conns[slot as usize].as_mut() else { continue };
            conn.subs.remove(&sid);
            let account = conn.account;
            self.drop_sub(id, account);
        }
    }

    // Rooms of the server

    pub fn listen(&mut self, account: AccountId, filter: &[u8], listener: Listener) -> u64 {
        let token = self.token();
        let found = &mut self.accounts[account as usize];
        found.serves_api |= filter.starts_with(b"$JS.API.");
        found.subs.insert(filter, Member::Listener(listener));
        self.listening.insert(token, Listening { account, filter: filter.into(), listener });
        token
    }

    pub fn unlisten(&mut self, token: u64) {
        if let Some(Listening { account, filter, listener }) = self.listening.remove(&token) {
            self.accounts[account as usize].subs.remove(&filter, &Member::Listener(listener));
        }
    }

    /// The acks of one consumer come as runs with this id.
    pub fn take_acks(&mut self, account: AccountId, stream: &[u8], consumer: &[u8], id: u64) {
        self.accounts[account as usize].acks.insert([stream, b".", consumer].concat().into(), id);
    }

    pub fn leave_acks(&mut self, account: AccountId, stream: &[u8], consumer: &[u8]) {
        self.accounts[account as usize].acks.remove(&[stream, b".", consumer].concat()[..]);
    }

    /// Make `drain` report when a subject gets its first subscriber or loses its last.
    pub fn watch(&mut self, account: AccountId, subject: &[u8], queue: Option<&[u8]>, id: u64) -> u64 {
        let token = self.token();
        let watch = Watch { token, subject: subject.into(), queue: queue.map(Into::into), id, some: false };
        let account = &mut self.accounts[account as usize];
        account.watches.push(watch);
        account.changed.push(subject.into());
        token
    }

    pub fn unwatch(&mut self, token: u64) {
        for account in &mut self.accounts {
            account.watches.retain(|watch| watch.token != token);
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// How many subscriptions of clients would get a message on the subject (with a queue: of that group).
    pub fn interest(&mut self, account: AccountId, subject: &[u8], queue: Option<&[u8]>) -> usize {
        self.accounts[account as usize].interest(subject, queue)
    }

    /// The runs since the last time.
    pub fn drain(&mut self) -> Vec<Item> {
        self.free.append(&mut self.resting);
        for account in &mut self.accounts {
            account.look_at_watches(&mut self.gathering);
        }
        if self.gathering.is_empty() { Vec::new() } else { self.gathering.take() }
    }
}

fn member_of(id: SubId, queue: Option<&[u8]>) -> Member {
    match queue {
        Some(queue) => Member::Queue(queue.into(), id),
        None => Member::Plain(id),
    }
}

/// Above this many changes every watch is looked at.
const CHANGES_MAX: usize = 256;

impl Account {
    fn note_change(&mut self, filter: &[u8]) {
        if !self.watches.is_empty() && self.changed.len() <= CHANGES_MAX {
            self.changed.push(filter.into());
        }
    }

    fn interest(&mut self, subject: &[u8], queue: Option<&[u8]>) -> usize {
        let found = self.subs.find_once(subject);
        match queue {
            Some(queue) => found.queues.iter().find(|(name, _)| **name == *queue).map_or(0, |(_, subs)| subs.len()),
            None => found.plain.len() + found.queues.len(),
        }
    }

    fn look_at_watches(&mut self, gathering: &mut Gathering) {
        if self.changed.is_empty() {
            return;
        }
        let changed = std::mem::take(&mut self.changed);
        let all = changed.len() > CHANGES_MAX;
        for at in 0..self.watches.len() {
            let watch = &self.watches[at];
            if !all && !changed.iter().any(|filter| subjects::matches(filter, &watch.subject)) {
                continue;
            }
            let (subject, queue) = (watch.subject.clone(), watch.queue.clone());
            let some = self.interest(&subject, queue.as_deref()) > 0;
            let watch = &mut self.watches[at];
            if some != watch.some {
                watch.some = some;
                gathering.interest(watch.id, some);
            }
        }
    }
}

impl FrontEnd for Exchange {
    fn feed(&mut self, slot: u32, bytes: &[u8]) -> Fed {
        Exchange::feed(self, slot, bytes)
    }

    fn send_output(&mut self, send: &mut dyn FnMut(u32, &mut Vec<u8>, bool) -> bool) {
        let (conns, spare) = (&mut self.conns, &mut self.spare);
        self.dirty.retain(|slot| {
            let Some(conn) = conns[*slot as usize].as_mut().filter(|conn| !conn.out.is_empty()) else { return false };
            let sent = send(*slot, &mut conn.out, conn.overrun);
            if sent && conn.out.capacity() > KEPT_BYTES {
                keep_spare(spare, std::mem::take(&mut conn.out));
            }
            !sent
        });
    }

    fn has_output(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn pending_max(&self) -> usize {
        self.pending_max
    }

    fn give_back(&mut self, buffer: Vec<u8>) {
        keep_spare(&mut self.spare, buffer);
    }
}
