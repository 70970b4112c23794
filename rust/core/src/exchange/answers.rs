//! Answers to publishers (pub-acks) and to those who confirm (double acks), formatted for a whole run at once.

use std::sync::Arc;

use super::Exchange;
use super::route::{MessageRef, write_message};
use super::runs::{PublishRun, Verdict};
use super::subs::Match;
use crate::ledger::AckRun;

impl Exchange {
    /// Answer every message of a run that asked for it. `head` is `{"stream":"S"` and `tail` what follows the
    /// sequence (`}` or a domain).
    pub fn answer(&mut self, run: &PublishRun, head: &[u8], tail: &[u8]) {
        let mut body = Vec::with_capacity(head.len() + tail.len() + 32);
        let mut verdicts = run.verdicts.iter().peekable();
        let mut stored = run.stored.iter().peekable();
        let mut next_seq = 0;
        let mut last: (usize, usize, Option<Arc<Match>>) = (0, 0, None);
        for (at, reply) in run.replies.iter().enumerate() {
            if let Some((_, first)) = stored.next_if(|(from, _)| *from as usize <= at) {
                next_seq = *first;
            }
            let verdict = verdicts.next_if(|(of, _)| *of as usize == at).map(|(_, verdict)| *verdict);
            let sequence = next_seq;
            if verdict.is_none() {
                next_seq += 1;
            }
            if reply.is_null() {
                continue;
            }
            body.clear();
            match verdict {
                None => stored_body(&mut body, head, sequence, tail, false),
                Some(Verdict::Duplicate(sequence)) => stored_body(&mut body, head, sequence, tail, true),
                Some(Verdict::Refused(text, value)) => refusal(&mut body, &run.answers[text as usize], value),
                Some(Verdict::Answered(Some(text))) => body.extend_from_slice(&run.answers[text as usize]),
                Some(Verdict::Answered(None)) => continue,
            }
            let start = reply.offset as usize;
            let subject = &run.texts[start..start + reply.len as usize];
            let prefix = memchr::memrchr(b'.', subject).unwrap_or(0);
            let same = last.2.is_some() && run.texts[last.0..last.0 + last.1] == subject[..prefix] && prefix > 0;
            if !same {
                let found = self.accounts[run.account as usize].subs.find_reply(subject);
                last = (start, prefix, Some(found));
            }
            let Some(found) = last.2.clone() else { continue };
            self.answer_one(run.account, &found, subject, &body);
        }
    }

    fn answer_one(&mut self, account: u32, found: &Arc<Match>, subject: &[u8], body: &[u8]) {
        if let ([only], true, true) = (&found.plain[..], found.queues.is_empty(), found.listeners.is_empty()) {
            let sub = &mut self.subs[*only as usize];
            if sub.live && sub.max == 0 {
                if let Some(conn) = self.conns[sub.conn as usize].as_mut().filter(|c| c.permissions.is_none()) {
                    sub.delivered += 1;
                    if conn.out.is_empty() {
                        self.dirty.push(sub.conn);
                    }
                    conn.traffic.out_msgs += 1;
                    conn.traffic.out_bytes += body.len() as u64;
                    self.totals.out_msgs += 1;
                    self.totals.out_bytes += body.len() as u64;
                    write_message(&mut conn.out, subject, &sub.sid, None, None, body);
                    return;
                }
            }
            // A subscription that ended since the lookup is looked for again.
            let found = self.accounts[account as usize].subs.find_reply(subject);
            self.fan_out(account, &found, None, &MessageRef { subject, reply: None, headers: None, payload: body });
            return;
        }
        self.fan_out(account, found, None, &MessageRef { subject, reply: None, headers: None, payload: body });
    }

    /// The empty message that a double ack waits for, to every reply of the run that may have one: `delivered` is the
    /// highest stream sequence that the consumer had handed out when the run was applied.
    pub fn confirm(&mut self, account: u32, run: &AckRun, delivered: u64) {
        for ack in run.acks.iter().filter(|ack| ack.is_confirmed(delivered)) {
            if let Some(subject) = run.reply(ack) {
                self.publish(account, &MessageRef { subject, reply: None, headers: None, payload: b"" });
            }
        }
    }
}

fn stored_body(out: &mut Vec<u8>, head: &[u8], sequence: u64, tail: &[u8], duplicate: bool) {
    out.extend_from_slice(head);
    out.extend_from_slice(b",\"seq\":");
    out.extend_from_slice(itoa::Buffer::new().format(sequence).as_bytes());
    if duplicate {
        out.extend_from_slice(b",\"duplicate\": true");
    }
    out.extend_from_slice(tail);
}

/// `{}` in the text stands for the value.
fn refusal(out: &mut Vec<u8>, text: &[u8], value: u64) {
    match memchr::memmem::find(text, b"{}") {
        Some(at) => {
            out.extend_from_slice(&text[..at]);
            out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
            out.extend_from_slice(&text[at + 2..]);
        }
        None => out.extend_from_slice(text),
    }
}
