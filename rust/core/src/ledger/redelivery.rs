//! When a pending message is due again: deadlines, naks, the queue, the end of all attempts.
//!
//! The deadline of a message is its time plus the wait after that many deliveries. No heap is kept: a lower
//! bound of all deadlines says when to look through the pending ones again, once for all that are due.

use super::{AckPolicy, Ledger};

/// A look at one pending message takes a few nanoseconds. A deadline is put off by this much for each of them, so
/// that looking takes a few per cent of the time even when every look finds only one that is due.
const SLACK_NS_EACH: i64 = 100;

impl Ledger {
    /// Queues everything that is due, in sequence order; gives up what was delivered often enough.
    /// Returns how many were queued.
    pub fn expire(&mut self, now_ns: i64) -> usize {
        if now_ns < self.next_check {
            return 0;
        }
        let rules = &self.rules;
        let (mut next, mut spent, mut due) = (i64::MAX, Vec::new(), Vec::new());
        for (seq, slot) in self.pending.iter().filter(|(_, slot)| !slot.queued()) {
            let deadline = slot.time.saturating_add(rules.wait(slot.deliveries));
            if deadline > now_ns {
                next = next.min(deadline);
            } else if rules.max_deliver > 0 && slot.deliveries >= rules.max_deliver {
                spent.push(seq);
            } else {
                due.push(seq);
            }
        }
        self.next_check = next;
        spent.into_iter().for_each(|seq| self.give_up(seq));
        due.iter().for_each(|seq| self.enqueue(*seq));
        due.len()
    }

    fn enqueue(&mut self, seq: u64) {
        let Some(slot) = self.pending.get_mut(seq).filter(|slot| !slot.queued()) else { return };
        self.last_ticket = self.last_ticket.wrapping_add(1).max(1);
        slot.ticket = self.last_ticket;
        self.queue.push_back((seq, slot.ticket));
        self.queued += 1;
    }

    /// When to call `expire` next; `None` while nothing can become due.
    pub fn next_deadline(&self) -> Option<i64> {
        let waiting = self.pending.len() - self.queued;
        let slack = SLACK_NS_EACH * waiting as i64;
        (waiting > 0 && self.next_check < i64::MAX).then(|| self.next_check.saturating_add(slack))
    }

    /// Delivered often enough: no longer pending, but not acked either, so that the floor stays.
    pub(super) fn give_up(&mut self, seq: u64) {
        let Some(slot) = self.pending.remove(seq) else { return };
        if self.recording {
            self.changes.given_up(seq, self.delivered);
        }
        self.pending_again -= usize::from(slot.deliveries > 1);
        self.queued -= usize::from(slot.queued());
        self.given_up.insert(seq, slot.deliveries);
        self.exceeded.push((seq, slot.deliveries));
    }

    /// What was given up since the last call, each with its deliveries: reported once.
    pub fn take_exceeded(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.exceeded)
    }

    /// The next sequences to deliver again, at most `max`. They stay queued until they are sent or acked.
    pub fn due(&mut self, max: usize) -> Vec<u64> {
        let mut due = Vec::new();
        if self.queued == 0 {
            self.queue.clear();
            return due;
        }
        let mut at = 0;
        while at < self.queue.len() && due.len() < max {
            let (seq, ticket) = self.queue[at];
            let Some(slot) = self.pending.get(seq).copied().filter(|slot| slot.ticket == ticket) else {
                self.drop_queued(at);
                continue;
            };
            if self.rules.max_deliver > 0 && slot.deliveries >= self.rules.max_deliver {
                self.give_up(seq);
                self.drop_queued(at);
                continue;
            }
            due.push(seq);
            at += 1;
        }
        due
    }

    /// Nearly always the first one: what was sent is dropped from the front.
    fn drop_queued(&mut self, at: usize) {
        if at == 0 {
            self.queue.pop_front();
        } else {
            self.queue.remove(at);
        }
    }

    /// How many wait to be delivered again.
    pub fn num_due(&self) -> usize {
        self.queued
    }

    /// The client wants it again, at once or after `delay_ns`. False if it is not pending.
    pub fn nak(&mut self, seq: u64, delay_ns: i64, now_ns: i64) -> bool {
        let Some(slot) = self.pending.get_mut(seq) else { return false };
        if delay_ns <= 0 {
            self.enqueue(seq);
            return true;
        }
        self.queued -= usize::from(slot.queued());
        slot.ticket = 0;
        let due = now_ns.saturating_add(delay_ns);
        let time = due.saturating_sub(self.rules.wait(slot.deliveries));
        self.set_time(seq, time);
        true
    }

    /// The client needs more time: the whole wait begins again. False if it is not pending.
    pub fn progress(&mut self, seq: u64, now_ns: i64) -> bool {
        self.rules.policy != AckPolicy::None && self.set_time(seq, now_ns)
    }

    /// Every pending message is due now, as when its receiver is known to be gone.
    pub fn queue_all(&mut self) -> usize {
        let all: Vec<u64> = self.pending.iter().filter(|(_, slot)| !slot.queued()).map(|(seq, _)| seq).collect();
        all.iter().for_each(|seq| self.enqueue(*seq));
        all.len()
    }

    pub(super) fn set_time(&mut self, seq: u64, time: i64) -> bool {
        let Some(slot) = self.pending.get_mut(seq) else { return false };
        slot.time = time;
        let deadline = time.saturating_add(self.rules.wait(slot.deliveries));
        self.next_check = self.next_check.min(deadline);
        if self.recording {
            self.changes.moved(seq, time, self.delivered);
        }
        true
    }
}
