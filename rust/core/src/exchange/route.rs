//! The way of one message: from a publisher to everybody who wants it.

use std::sync::Arc;

use super::runs::{Call, kind};
use super::subs::{Match, SubId};
use super::trace::Trace;
use super::{AccountId, Exchange};
use crate::batch::Message;
use crate::ledger::AckKind;
use crate::subjects;
use crate::wire::nats::Publish;

const ACK_PREFIX: &[u8] = b"$JS.ACK.";
const CONSUMER_API: &[u8] = b"$JS.API.CONSUMER.";
const PULL_API: &[u8] = b"$JS.API.CONSUMER.MSG.NEXT.";
/// `$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>`
const ACK_TOKENS: usize = 9;
/// The same with domain and account hash before the stream.
const LONG_ACK_TOKENS: usize = 11;

/// A message as it is fanned out.
#[derive(Clone, Copy)]
pub struct MessageRef<'a> {
    pub subject: &'a [u8],
    pub reply: Option<&'a [u8]>,
    pub headers: Option<&'a [u8]>,
    pub payload: &'a [u8],
}

impl MessageRef<'_> {
    fn size(&self) -> usize {
        self.headers.map_or(0, <[u8]>::len) + self.payload.len()
    }
}

impl Exchange {
    pub(super) fn publish_from(&mut self, slot: u32, publish: &Publish<'_>) {
        let Publish { subject, reply, headers, payload } = *publish;
        let message = MessageRef { subject, reply, headers, payload };
        let now = self.now_ns;
        let Some(conn) = self.conns[slot as usize].as_mut() else { return };
        let size = message.size() as u64;
        conn.traffic.in_msgs += 1;
        conn.traffic.in_bytes += size;
        self.totals.in_msgs += 1;
        self.totals.in_bytes += size;
        if let Some(permissions) = &mut conn.permissions {
            if !permissions.may_publish(subject, now) {
                let named = String::from_utf8_lossy(subject).into_owned();
                self.error(slot, &format!("Permissions Violation for Publish to \"{named}\""));
                return;
            }
        }
        let flags = conn.flags;
        if flags.pedantic && !subjects::valid_literal(subject) {
            self.error(slot, "Invalid Publish Subject");
        }
        if flags.verbose {
            self.write(slot, b"+OK\r\n");
        }
        let Some(conn) = self.conns[slot as usize].as_mut() else { return };
        let account_id = conn.account;
        let account = &mut self.accounts[account_id as usize];
        if subject.starts_with(ACK_PREFIX) && !account.acks.is_empty() {
            self.ack(account_id, Some(slot), &message);
            return;
        }
        let memo = &mut conn.memo;
        let found = match &memo.found {
            Some(found) if memo.generation == account.subs.generation && memo.subject == subject => found.clone(),
            _ => {
                let found = account.subs.find(subject);
                memo.subject.clear();
                memo.subject.extend_from_slice(subject);
                memo.generation = account.subs.generation;
                memo.found = found.is_small().then(|| found.clone());
                found
            }
        };
        let count = match headers.and_then(Trace::of) {
            Some(trace) => self.fan_out_traced(account_id, &found, slot, &message, &trace),
            None => self.fan_out(account_id, &found, Some(slot), &message),
        };
        if count == 0 && flags.no_responders && !self.is_unknown_call(account_id, subject) {
            if let Some(reply) = reply {
                self.nobody(slot, account_id, subject, reply);
            }
        }
    }

    /// A message of the server itself; returns how many got it.
    pub fn publish(&mut self, account: AccountId, message: &MessageRef<'_>) -> usize {
        let found = self.accounts[account as usize].subs.find_reply(message.subject);
        self.fan_out(account, &found, None, message)
    }

    /// A call below CONSUMER that the API does not know. nats-server says nothing to these; who pulls from a consumer that
    /// is not there gets that answer. All others that nobody knows reach the API, which is silent by itself.
    fn is_unknown_call(&self, account: AccountId, subject: &[u8]) -> bool {
        subject.starts_with(CONSUMER_API)
            && !subject.starts_with(PULL_API)
            && self.accounts[account as usize].serves_api
    }

    /// Answers a waiting publisher that nobody is there.
    fn nobody(&mut self, slot: u32, account: AccountId, subject: &[u8], reply: &[u8]) {
        let found = self.accounts[account as usize].subs.find_reply(reply);
        let own = found.plain.iter().chain(found.queues.iter().flat_map(|(_, members)| members));
        let Some(sub) = own.copied().find(|id| self.subs[*id as usize].conn == slot) else { return };
        let status = [b"NATS/1.0 503\r\nNats-Subject: ", subject, b"\r\n\r\n"].concat();
        self.send(sub, None, &MessageRef { subject: reply, reply: None, headers: Some(&status), payload: b"" });
        self.drop_ended();
    }

    /// To all plain subscribers, one of each queue group, and the server's own listeners.
    pub(super) fn fan_out(
        &mut self,
        account: AccountId,
        found: &Arc<Match>,
        from: Option<u32>,
        message: &MessageRef<'_>,
    ) -> usize {
        self.fan_out_with(account, found, from, message, message)
    }

    /// The same; the listeners get what is to be stored of it.
    pub(super) fn fan_out_with(
        &mut self,
        account: AccountId,
        found: &Arc<Match>,
        from: Option<u32>,
        message: &MessageRef<'_>,
        stored: &MessageRef<'_>,
    ) -> usize {
        let mut count = found.listeners.len();
        for sub in &found.plain {
            count += usize::from(self.send(*sub, from, message));
        }
        for (_, members) in &found.queues {
            let start = if members.len() > 1 { self.random() as usize % members.len() } else { 0 };
            let order = members[start..].iter().chain(&members[..start]);
            for sub in order {
                if self.send(*sub, from, message) {
                    count += 1;
                    break;
                }
            }
        }
        for listener in &found.listeners {
            self.gather(listener.kind, listener.id, account, from, stored);
        }
        if !self.ended_subs.is_empty() {
            self.drop_ended();
        }
        count
    }

    fn gather(&mut self, what: u8, id: u64, account: AccountId, from: Option<u32>, message: &MessageRef<'_>) {
        match what {
            kind::INGEST => {
                let stored = Message {
                    position: 0,
                    time: 0,
                    subject: message.subject,
                    key: None,
                    headers: message.headers,
                    data: Some(message.payload),
                    flags: 0,
                };
                self.gathering.publish(id, account, stored, message.reply);
            }
            kind::PULLS => {
                if let Some(reply) = message.reply {
                    self.gathering.pull(id, account, message.payload, reply);
                }
            }
            _ => self.gathering.call(
                id,
                Call {
                    conn: from,
                    account,
                    subject: message.subject.to_vec(),
                    reply: message.reply.map(<[u8]>::to_vec),
                    headers: message.headers.map(<[u8]>::to_vec),
                    data: message.payload.to_vec(),
                },
            ),
        }
    }

    /// An ack goes into its consumer's run, and to those who listen to such subjects like to any other.
    fn ack(&mut self, account_id: AccountId, from: Option<u32>, message: &MessageRef<'_>) {
        let account = &mut self.accounts[account_id as usize];
        if let Some((consumer, numbers)) = ack_address(message.subject) {
            if let Some(id) = account.acks.get(consumer) {
                let kind = ack_kind(message.payload);
                let body = if kind == AckKind::Ack { b"" } else { message.payload };
                let [deliveries, stream_seq, consumer_seq] = numbers;
                self.gathering.acks(*id).push(kind, deliveries, stream_seq, consumer_seq, body, message.reply);
            }
        }
        let generation = account.subs.generation;
        if account.ack_listeners.as_ref().is_none_or(|(known, _)| *known != generation) {
            account.ack_listeners = Some((generation, account.subs.rest(b"$JS.ACK").map(Arc::new)));
        }
        let found = match &account.ack_listeners {
            Some((_, Some(found))) if found.is_empty() => return,
            Some((_, Some(found))) => found.clone(),
            _ => Arc::new(account.subs.find_once(message.subject)),
        };
        self.fan_out(account_id, &found, from, message);
    }

    /// To one subscription. False if it may not have it.
    pub(super) fn send(&mut self, id: SubId, from: Option<u32>, message: &MessageRef<'_>) -> bool {
        let sub = &mut self.subs[id as usize];
        if !sub.live || (sub.max > 0 && sub.delivered >= sub.max) {
            return false;
        }
        let Some(conn) = self.conns[sub.conn as usize].as_mut() else { return false };
        if from == Some(sub.conn) && !conn.flags.echo {
            return false;
        }
        if let Some(permissions) = &mut conn.permissions {
            if sub.checked && !permissions.may_receive(message.subject) {
                return false;
            }
            if let Some(reply) = message.reply {
                permissions.note_reply(reply, self.now_ns);
            }
        }
        if conn.out.len() > self.pending_max {
            conn.overrun = true;
            return false;
        }
        sub.delivered += 1;
        if sub.max > 0 && sub.delivered >= sub.max {
            self.ended_subs.push(id);
        }
        if conn.out.is_empty() {
            self.dirty.push(sub.conn);
            if conn.out.capacity() == 0 {
                conn.out = self.spare.pop().unwrap_or_default();
            }
        }
        let size = message.size() as u64;
        conn.traffic.out_msgs += 1;
        conn.traffic.out_bytes += size;
        self.totals.out_msgs += 1;
        self.totals.out_bytes += size;
        let headers = message.headers.filter(|_| conn.flags.headers);
        write_message(&mut conn.out, message.subject, &sub.sid, message.reply, headers, message.payload);
        true
    }

    pub(super) fn random(&mut self) -> u64 {
        // xorshift: which member of a queue group is next needs no better chance.
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance >> 11
    }
}

/// `MSG subject sid [reply] n` or `HMSG subject sid [reply] header total`, and the bytes.
pub(super) fn write_message(
    out: &mut Vec<u8>,
    subject: &[u8],
    sid: &[u8],
    reply: Option<&[u8]>,
    headers: Option<&[u8]>,
    payload: &[u8],
) {
    let header_len = headers.map_or(0, <[u8]>::len);
    out.reserve(subject.len() + sid.len() + reply.map_or(0, <[u8]>::len) + header_len + payload.len() + 48);
    out.extend_from_slice(if headers.is_some() { b"HMSG " } else { b"MSG " });
    out.extend_from_slice(subject);
    out.push(b' ');
    out.extend_from_slice(sid);
    out.push(b' ');
    if let Some(reply) = reply {
        out.extend_from_slice(reply);
        out.push(b' ');
    }
    let mut number = itoa::Buffer::new();
    if let Some(headers) = headers {
        out.extend_from_slice(number.format(headers.len()).as_bytes());
        out.push(b' ');
        out.extend_from_slice(number.format(headers.len() + payload.len()).as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(headers);
    } else {
        out.extend_from_slice(number.format(payload.len()).as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

fn ack_kind(body: &[u8]) -> AckKind {
    match body {
        b"" | b"+ACK" | b"+OK" => AckKind::Ack,
        [b'-', b'N', b'A', b'K', ..] => AckKind::Nak,
        b"+WPI" => AckKind::Progress,
        [b'+', b'N', b'X', b'T', ..] => AckKind::Next,
        [b'+', b'T', b'E', b'R', b'M', ..] => AckKind::Term,
        _ => AckKind::Other,
    }
}

/// (`stream.consumer`, [deliveries, stream sequence, consumer sequence]) of an ack subject of either form.
fn ack_address(subject: &[u8]) -> Option<(&[u8], [u64; 3])> {
    let mut dots = [0usize; LONG_ACK_TOKENS - 1];
    let mut count = 0;
    for at in memchr::memchr_iter(b'.', subject) {
        if count < dots.len() {
            dots[count] = at;
        }
        count += 1;
    }
    let first = match count + 1 {
        ACK_TOKENS => 1,
        n if n >= LONG_ACK_TOKENS => 3,
        _ => return None,
    };
    let number = |token: usize| {
        let text = &subject[dots[token - 1] + 1..dots[token]];
        if text.is_empty() || text.len() > 19 {
            return None;
        }
        text.iter().try_fold(0u64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0')))
    };
    let consumer = &subject[dots[first] + 1..dots[first + 2]];
    Some((consumer, [number(first + 3)?, number(first + 4)?, number(first + 5)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_ack_subject() {
        let short = ack_address(b"$JS.ACK.ORDERS.C1.2.10.11.1700000000000000000.5");
        assert_eq!(short, Some((&b"ORDERS.C1"[..], [2, 10, 11])));
        let long = ack_address(b"$JS.ACK._.szMpdrwD.ORDERS.C1.2.10.11.1700000000000000000.5");
        assert_eq!(long, Some((&b"ORDERS.C1"[..], [2, 10, 11])));
        let longer = ack_address(b"$JS.ACK._.szMpdrwD.ORDERS.C1.2.10.11.1700000000000000000.5.x.y");
        assert_eq!(longer, Some((&b"ORDERS.C1"[..], [2, 10, 11])));
        assert_eq!(ack_address(b"$JS.ACK.ORDERS.C1"), None);
        assert_eq!(ack_address(b"$JS.ACK.ORDERS.C1.x.10.11.1700000000000000000.5"), None);
    }
}
