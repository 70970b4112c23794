//! Messages of a stream on their way to a consumer's clients.
//!
//! Each goes out on its own subject, to the subscription on the inbox (or deliver subject), with the ack subject as
//! its reply: `<prefix><deliveries>.<stream seq>.<consumer seq>.<time>.<pending>`.

use std::sync::Arc;

use super::route::{MessageRef, write_message};
use super::subs::{Match, SubId};
use super::waiting::{Pull, Waiting};
use super::{AccountId, Exchange};
use crate::batch::{Batch, Entry};
use crate::ledger::Ledger;

/// How a consumer hands out messages.
pub struct Delivery<'a> {
    pub account: AccountId,
    /// `$JS.ACK.<stream>.<consumer>.`; None for consumers without acks that want no reply subject.
    pub ack_prefix: &'a [u8],
    /// Messages that were never delivered, before this batch. Each first delivery takes one off.
    pub pending: u64,
    /// The batch is a redelivery: nothing is taken off.
    pub again: bool,
    pub wall_ns: i64,
    pub now: i64,
    pub headers_only: bool,
    /// Requests with another tag are passed over.
    pub tag: Option<u64>,
}

/// A request that ended in the course of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All messages were sent.
    Filled,
    /// The next message is larger than what is left of its bytes.
    TooLarge,
    /// The batch is complete by bytes: some were asked for with a limit, and it is reached.
    Bytes,
    /// Nobody listens for its answers any more.
    Deserted,
}

impl Exchange {
    /// Serve waiting requests in rotation; returns how many messages went out, and which requests ended.
    pub fn deliver_pull(
        &mut self,
        delivery: &Delivery<'_>,
        ledger: &mut Ledger,
        waiting: &mut Waiting,
        batch: &Batch,
    ) -> (usize, Vec<(Pull, Ended)>) {
        let mut ended = Vec::new();
        let mut ack = Vec::with_capacity(delivery.ack_prefix.len() + 80);
        let mut header = Vec::new();
        let mut routes: Vec<(Box<[u8]>, Option<SubId>)> = Vec::new();
        for (taken, entry) in batch.entries().iter().enumerate() {
            let subject = batch.bytes(entry.subject);
            let mut passed = 0;
            loop {
                if passed >= waiting.queue.len() {
                    return (taken, ended);
                }
                let Some(mut pull) = waiting.queue.pop_front() else { return (taken, ended) };
                if pull.is_over(delivery.now) || delivery.tag.is_some_and(|tag| tag != pull.limits.tag) {
                    waiting.queue.push_back(pull);
                    passed += 1;
                    continue;
                }
                let Some(sub) = self.route_of(delivery.account, &pull.reply, &mut routes) else {
                    ended.push((pull, Ended::Deserted));
                    continue;
                };
                if self.conn(self.subs[sub as usize].conn).is_some_and(|conn| conn.congested) {
                    waiting.queue.push_back(pull);
                    passed += 1;
                    continue;
                }
                let pending = delivery.pending.saturating_sub(if delivery.again { 0 } else { taken as u64 + 1 });
                if pull.limits.bytes > 0 {
                    // Subject, reply, headers and payload count; the reply as it will be if the message goes out.
                    let deliveries = ledger.pending_of(entry.position).map_or(1, |known| u64::from(known.2) + 1);
                    let own = ledger.delivered().0 + 1;
                    let numbers = [deliveries, entry.position, own, entry.time as u64, pending];
                    ack_subject(&mut ack, delivery.ack_prefix, numbers);
                    let size = subject.len() + ack.len() + entry.headers.size() + entry.data.size();
                    if size as u64 > pull.bytes_left {
                        ended.push((pull, Ended::TooLarge));
                        continue;
                    }
                }
                let sent = ledger.sent(entry.position, delivery.wall_ns);
                let numbers = [sent.deliveries, entry.position, sent.consumer_seq, entry.time as u64, pending];
                ack_subject(&mut ack, delivery.ack_prefix, numbers);
                let size = self.write_entry(sub, delivery, batch, entry, &ack, &mut header);
                pull.msgs_left -= 1;
                pull.delivered += 1;
                pull.last_active = delivery.now;
                if pull.limits.bytes > 0 {
                    pull.bytes_left = pull.bytes_left.saturating_sub(size as u64);
                }
                if pull.msgs_left == 0 {
                    ended.push((pull, Ended::Filled));
                } else if pull.limits.bytes > 0 && pull.bytes_left == 0 {
                    ended.push((pull, Ended::Bytes));
                } else {
                    waiting.queue.push_back(pull);
                }
                break;
            }
        }
        (batch.len(), ended)
    }

    /// Send the whole batch to a deliver subject. Returns (messages, bytes); (0, 0) when nobody is there.
    pub fn deliver_push(
        &mut self,
        delivery: &Delivery<'_>,
        ledger: &mut Ledger,
        subject: &[u8],
        group: Option<&[u8]>,
        batch: &Batch,
    ) -> (usize, u64) {
        let found = self.accounts[delivery.account as usize].subs.find(subject);
        let (mut ack, mut header, mut total) = (Vec::with_capacity(delivery.ack_prefix.len() + 80), Vec::new(), 0);
        // Without groups everybody gets every message: who that is, is asked once.
        let everybody = found.queues.is_empty().then(|| found.plain.clone());
        for (taken, entry) in batch.entries().iter().enumerate() {
            let chosen;
            let targets = match &everybody {
                Some(all) if group.is_none() => all,
                _ => {
                    chosen = self.push_targets(&found, group);
                    &chosen
                }
            };
            if targets.is_empty() {
                return (taken, total);
            }
            let sent = ledger.sent(entry.position, delivery.wall_ns);
            let pending = delivery.pending.saturating_sub(if delivery.again { 0 } else { taken as u64 + 1 });
            let numbers = [sent.deliveries, entry.position, sent.consumer_seq, entry.time as u64, pending];
            ack_subject(&mut ack, delivery.ack_prefix, numbers);
            for sub in targets {
                total += self.write_entry(*sub, delivery, batch, entry, &ack, &mut header) as u64;
            }
        }
        (batch.len(), total)
    }

    /// The connections that listen on a subject.
    pub fn listeners_of(&mut self, account: AccountId, subject: &[u8]) -> Vec<u32> {
        let found = self.accounts[account as usize].subs.find(subject);
        let all = found.plain.iter().chain(found.queues.iter().flat_map(|(_, members)| members));
        all.map(|id| self.subs[*id as usize].conn).collect()
    }

    pub fn has_listener(&mut self, account: AccountId, subject: &[u8]) -> bool {
        let found = self.accounts[account as usize].subs.find_reply(subject);
        !found.plain.is_empty() || !found.queues.is_empty()
    }

    fn push_targets(&mut self, found: &Arc<Match>, group: Option<&[u8]>) -> Vec<SubId> {
        let one_of = |members: &[SubId], chance: usize| members[chance % members.len()];
        match group {
            Some(group) => {
                let members = found.queues.iter().find(|(name, _)| **name == *group);
                members.map(|(_, members)| one_of(members, self.random() as usize)).into_iter().collect()
            }
            None => {
                let mut targets = found.plain.clone();
                for (_, members) in &found.queues {
                    targets.push(one_of(members, self.random() as usize));
                }
                targets
            }
        }
    }

    /// The subscription that answers of a request go to, looked up once per delivery.
    fn route_of(
        &mut self,
        account: AccountId,
        reply: &[u8],
        routes: &mut Vec<(Box<[u8]>, Option<SubId>)>,
    ) -> Option<SubId> {
        const ROUTES_MAX: usize = 16;
        if let Some((_, sub)) = routes.iter().find(|(known, _)| **known == *reply) {
            if sub.is_none_or(|sub| self.subs[sub as usize].live) {
                return *sub;
            }
        }
        let found = self.accounts[account as usize].subs.find_reply(reply);
        let live = |id: &&SubId| self.subs[**id as usize].live;
        let sub = found.plain.iter().find(live).or_else(|| {
            let members = found.queues.first().map(|(_, members)| members);
            members.and_then(|members| members.iter().find(live))
        });
        let sub = sub.copied();
        if routes.len() < ROUTES_MAX {
            routes.push((reply.into(), sub));
        }
        sub
    }

    fn write_entry(
        &mut self,
        id: SubId,
        delivery: &Delivery<'_>,
        batch: &Batch,
        entry: &Entry,
        ack: &[u8],
        scratch: &mut Vec<u8>,
    ) -> usize {
        let subject = batch.bytes(entry.subject);
        let mut headers = (!entry.headers.is_null()).then(|| batch.bytes(entry.headers));
        let mut payload = batch.bytes(entry.data);
        if delivery.headers_only {
            with_size(scratch, headers, payload.len());
            (headers, payload) = (Some(scratch.as_slice()), b"");
        }
        let size = subject.len() + ack.len() + headers.map_or(0, <[u8]>::len) + payload.len();
        let message = MessageRef { subject, reply: Some(ack), headers, payload };
        if self.send_plain(id, &message) {
            return size;
        }
        self.send(id, None, &message);
        if !self.ended_subs.is_empty() {
            self.drop_ended();
        }
        size
    }

    /// The usual subscriber: no limit, no permissions to look at.
    fn send_plain(&mut self, id: SubId, message: &MessageRef<'_>) -> bool {
        let sub = &mut self.subs[id as usize];
        if !sub.live || sub.max > 0 {
            return false;
        }
        let Some(conn) = self.conns[sub.conn as usize].as_mut() else { return false };
        if conn.permissions.is_some() || !conn.flags.headers {
            return false;
        }
        sub.delivered += 1;
        if conn.out.is_empty() {
            self.dirty.push(sub.conn);
            if conn.out.capacity() == 0 {
                conn.out = self.spare.pop().unwrap_or_default();
            }
        }
        let size = (message.headers.map_or(0, <[u8]>::len) + message.payload.len()) as u64;
        conn.traffic.out_msgs += 1;
        conn.traffic.out_bytes += size;
        self.totals.out_msgs += 1;
        self.totals.out_bytes += size;
        write_message(&mut conn.out, message.subject, &sub.sid, message.reply, message.headers, message.payload);
        true
    }
}

fn ack_subject(out: &mut Vec<u8>, prefix: &[u8], numbers: [u64; 5]) {
    out.clear();
    out.extend_from_slice(prefix);
    let mut text = itoa::Buffer::new();
    for (at, number) in numbers.into_iter().enumerate() {
        if at > 0 {
            out.push(b'.');
        }
        out.extend_from_slice(text.format(number).as_bytes());
    }
}

/// The headers with `Nats-Msg-Size` added.
fn with_size(out: &mut Vec<u8>, headers: Option<&[u8]>, size: usize) {
    out.clear();
    let headers = headers.unwrap_or(b"NATS/1.0\r\n\r\n");
    out.extend_from_slice(headers.strip_suffix(b"\r\n").unwrap_or(headers));
    out.extend_from_slice(b"Nats-Msg-Size: ");
    out.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
}
