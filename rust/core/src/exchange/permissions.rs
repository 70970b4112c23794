//! What a connection may publish and subscribe to.
//!
//! A subscription must lie inside one of the allowed filters; where some of those name queue groups, a queue subscription
//! needs one of these groups. One that a denied filter matches, token by token, is refused; one that only overlaps it is
//! taken, and what is denied is held back at delivery. All of it as nats-server does, but for one hole that is closed:
//! there, an allowed `foo.*` lets a client subscribe to `foo.>` as well.

use std::collections::HashMap;

use crate::subjects;

const KEPT_MAX: usize = 1024;
const REPLIES_MAX: usize = 4096;

/// A filter, for queue subscriptions perhaps with the group it is for.
#[derive(Debug, Clone)]
pub struct Rule {
    pub filter: Box<[u8]>,
    pub queue: Option<Box<[u8]>>,
}

impl Rule {
    fn takes_queue(&self, queue: Option<&[u8]>) -> bool {
        match (&self.queue, queue) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(wanted), Some(given)) => subjects::matches(wanted, given),
        }
    }
}

/// How many messages may be sent to the reply subject of a message that was received, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Responses {
    pub max: u64,
    pub ttl_ns: i64,
}

#[derive(Debug, Default, Clone)]
pub struct Permissions {
    pub publish_allow: Option<Vec<Rule>>,
    pub publish_deny: Vec<Rule>,
    pub subscribe_allow: Option<Vec<Rule>>,
    pub subscribe_deny: Vec<Rule>,
    pub responses: Option<Responses>,
    kept: HashMap<Box<[u8]>, bool>,
    replies: HashMap<Box<[u8]>, (i64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    Yes,
    /// Yes, but each delivery is to be checked.
    Checked,
    No,
}

impl Permissions {
    pub fn may_publish(&mut self, subject: &[u8], now_ns: i64) -> bool {
        let kept = self.kept.get(subject).copied();
        let allowed = kept.unwrap_or_else(|| {
            let hit = |rules: &[Rule]| rules.iter().any(|rule| subjects::matches(&rule.filter, subject));
            let allowed = self.publish_allow.as_deref().is_none_or(hit) && !hit(&self.publish_deny);
            if self.kept.len() >= KEPT_MAX {
                self.kept.clear();
            }
            self.kept.insert(subject.into(), allowed);
            allowed
        });
        allowed || self.may_respond(subject, now_ns)
    }

    fn may_respond(&mut self, subject: &[u8], now_ns: i64) -> bool {
        let Some((until, left)) = self.replies.get_mut(subject) else { return false };
        let fine = *until >= now_ns && *left > 0;
        *left = left.saturating_sub(1);
        if !fine || *left == 0 {
            self.replies.remove(subject);
        }
        fine
    }

    /// A message with this reply subject goes out to the connection.
    pub fn note_reply(&mut self, reply: &[u8], now_ns: i64) {
        let Some(responses) = self.responses else { return };
        if self.replies.len() >= REPLIES_MAX {
            self.replies.retain(|_, (until, _)| *until >= now_ns);
            if self.replies.len() >= REPLIES_MAX {
                self.replies.clear();
            }
        }
        let until = now_ns.saturating_add(responses.ttl_ns);
        self.replies.insert(reply.into(), (until, responses.max));
    }

    pub fn may_subscribe(&self, filter: &[u8], queue: Option<&[u8]>) -> Allowed {
        if self.subscribe_allow.as_ref().is_some_and(|rules| !is_inside(rules, filter, queue)) {
            return Allowed::No;
        }
        let denies = |rule: &Rule| rule.takes_queue(queue) && subjects::matches(&rule.filter, filter);
        if self.subscribe_deny.iter().any(denies) {
            return Allowed::No;
        }
        let touched = |rule: &Rule| rule.queue.is_none() && subjects::overlap(filter, &rule.filter);
        if self.subscribe_deny.iter().any(touched) { Allowed::Checked } else { Allowed::Yes }
    }

    pub fn may_receive(&self, subject: &[u8]) -> bool {
        !self.subscribe_deny.iter().any(|rule| rule.queue.is_none() && subjects::matches(&rule.filter, subject))
    }
}

/// Whether an allow list takes a subscription.
fn is_inside(rules: &[Rule], filter: &[u8], queue: Option<&[u8]>) -> bool {
    let around = || rules.iter().filter(|rule| subset(filter, &rule.filter));
    let mut groups = around().filter_map(|rule| rule.queue.as_deref()).peekable();
    match queue {
        Some(queue) if groups.peek().is_some() => groups.any(|group| subjects::matches(group, queue)),
        _ => around().any(|rule| rule.queue.is_none()),
    }
}

/// Whether everything that `inner` selects is selected by `outer` too.
pub fn subset(inner: &[u8], outer: &[u8]) -> bool {
    let mut inner = inner.split(|byte| *byte == b'.');
    let mut outer = outer.split(|byte| *byte == b'.');
    loop {
        match (inner.next(), outer.next()) {
            (None, None) => return true,
            (Some(_), Some(b">")) => return true,
            (Some(b">"), _) | (None, _) | (_, None) => return false,
            (Some(a), Some(b)) if a == b || b == b"*" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(filters: &[&str]) -> Vec<Rule> {
        filters.iter().map(|filter| Rule { filter: filter.as_bytes().into(), queue: None }).collect()
    }

    #[test]
    fn publishing() {
        let mut permissions = Permissions {
            publish_allow: Some(rules(&["orders.>"])),
            publish_deny: rules(&["orders.secret"]),
            responses: Some(Responses { max: 2, ttl_ns: 100 }),
            ..Default::default()
        };
        assert!(permissions.may_publish(b"orders.new", 0) && !permissions.may_publish(b"orders.secret", 0));
        assert!(!permissions.may_publish(b"reply.1", 0));
        permissions.note_reply(b"reply.1", 0);
        assert!(permissions.may_publish(b"reply.1", 50) && permissions.may_publish(b"reply.1", 60));
        assert!(!permissions.may_publish(b"reply.1", 70), "two answers are allowed");
        permissions.note_reply(b"reply.2", 0);
        assert!(!permissions.may_publish(b"reply.2", 101), "too late");
    }

    #[test]
    fn subscribing() {
        let permissions = Permissions {
            subscribe_allow: Some(rules(&["a.>", "b.*"])),
            subscribe_deny: rules(&["a.secret.>"]),
            ..Default::default()
        };
        assert_eq!(permissions.may_subscribe(b"a.x", None), Allowed::Yes);
        assert_eq!(permissions.may_subscribe(b"a.*.x", None), Allowed::Checked);
        assert_eq!(permissions.may_subscribe(b"a.secret.x", None), Allowed::No);
        assert_eq!(permissions.may_subscribe(b"b.*", None), Allowed::Yes);
        assert_eq!(permissions.may_subscribe(b"b.>", None), Allowed::No);
        assert_eq!(permissions.may_subscribe(b">", None), Allowed::No);
        assert!(!permissions.may_receive(b"a.secret.x") && permissions.may_receive(b"a.x"));
        let only_group = Permissions {
            subscribe_allow: Some(vec![Rule { filter: b"q".as_slice().into(), queue: Some(b"dev".as_slice().into()) }]),
            ..Default::default()
        };
        assert_eq!(only_group.may_subscribe(b"q", Some(b"dev")), Allowed::Yes);
        assert_eq!(only_group.may_subscribe(b"q", Some(b"prod")), Allowed::No);
        assert_eq!(only_group.may_subscribe(b"q", None), Allowed::No);
    }

    #[test]
    fn groups_beside_the_plain_subject_bind_queue_subscriptions() {
        let group = |queue: &str| Rule { filter: b"bar".as_slice().into(), queue: Some(queue.as_bytes().into()) };
        let allowed = [rules(&["bar", "foo.>"]), vec![group("q1")]].concat();
        let permissions = Permissions {
            subscribe_allow: Some(allowed),
            subscribe_deny: [rules(&["foo.*"]), vec![group("bad.*")]].concat(),
            ..Default::default()
        };
        assert_eq!(permissions.may_subscribe(b"bar", None), Allowed::Yes);
        assert_eq!(permissions.may_subscribe(b"bar", Some(b"q1")), Allowed::Yes);
        assert_eq!(permissions.may_subscribe(b"bar", Some(b"q2")), Allowed::No, "a group that is not named");
        assert_eq!(permissions.may_subscribe(b"foo.a.b", Some(b"any")), Allowed::Yes, "no group is named for it");
        assert_eq!(permissions.may_subscribe(b"foo.>", None), Allowed::No, "`*` of a deny takes the token `>`");
        assert_eq!(permissions.may_subscribe(b"foo.*.x", None), Allowed::Yes);
    }
}
