//! The pull requests of one consumer that wait for messages, served one message each in rotation.

use std::collections::VecDeque;

/// A request whose time is over is answered this much later: clients stop their own clock a little after the one they
/// name, and one that is answered before asks again, for nobody.
pub const LATE_NS: i64 = 2_000_000;

/// What a request asks for. Times are monotonic nanoseconds; 0 is "none".
#[derive(Debug, Clone, Copy, Default)]
pub struct PullLimits {
    pub msgs: u64,
    /// 0 for no limit.
    pub bytes: u64,
    pub expires: i64,
    pub heartbeat: i64,
    pub no_wait: bool,
    /// For consumers that keep several kinds of requests apart (priority groups).
    pub tag: u64,
}

#[derive(Debug, Clone)]
pub struct Pull {
    pub reply: Box<[u8]>,
    pub limits: PullLimits,
    pub msgs_left: u64,
    pub bytes_left: u64,
    pub last_active: i64,
    pub delivered: u64,
}

#[derive(Debug, Default)]
pub struct Waiting {
    pub(super) queue: VecDeque<Pull>,
}

impl Waiting {
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn add(&mut self, reply: &[u8], limits: PullLimits, now: i64) {
        self.queue.push_back(Pull {
            reply: reply.into(),
            msgs_left: limits.msgs,
            bytes_left: limits.bytes,
            last_active: now,
            delivered: 0,
            limits,
        });
    }

    /// Messages that all requests together still ask for.
    pub fn wanted(&self) -> u64 {
        self.queue.iter().map(|pull| pull.msgs_left).fold(0, u64::saturating_add)
    }

    /// When the next request expires or is due a heartbeat.
    pub fn next_deadline(&self) -> Option<i64> {
        self.queue.iter().flat_map(Pull::deadlines).min()
    }

    /// Takes out what has expired.
    pub fn expire(&mut self, now: i64) -> Vec<Pull> {
        self.take(|pull| pull.limits.expires > 0 && pull.limits.expires.saturating_add(LATE_NS) <= now)
    }

    /// Replies that are due a heartbeat; their clock starts again.
    pub fn heartbeats(&mut self, now: i64) -> Vec<Box<[u8]>> {
        let is_due = |p: &Pull| p.limits.heartbeat > 0 && p.last_active + p.limits.heartbeat <= now && !p.is_over(now);
        let due = self.queue.iter_mut().filter(|pull| is_due(pull));
        due.map(|pull| {
            pull.last_active = now;
            pull.reply.clone()
        })
        .collect()
    }

    /// Takes out everything that `gone` names.
    pub fn take(&mut self, mut gone: impl FnMut(&Pull) -> bool) -> Vec<Pull> {
        if !self.queue.iter().any(&mut gone) {
            return Vec::new();
        }
        let mut taken = Vec::new();
        let kept = std::mem::take(&mut self.queue);
        for pull in kept {
            if gone(&pull) { taken.push(pull) } else { self.queue.push_back(pull) }
        }
        taken
    }
}

impl Pull {
    /// Its time is over; nothing more may be sent to it.
    pub(super) fn is_over(&self, now: i64) -> bool {
        self.limits.expires > 0 && self.limits.expires <= now
    }

    /// A heartbeat that would come when the time is over is none: the request ends instead.
    fn deadlines(&self) -> impl Iterator<Item = i64> {
        let limits = &self.limits;
        let expires = (limits.expires > 0).then(|| limits.expires.saturating_add(LATE_NS));
        let heartbeat = (limits.heartbeat > 0).then(|| self.last_active.saturating_add(limits.heartbeat));
        expires.into_iter().chain(heartbeat.filter(|at| limits.expires == 0 || *at < limits.expires))
    }
}
