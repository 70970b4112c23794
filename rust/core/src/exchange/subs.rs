//! The subscriptions of one account: who wants a subject.
//!
//! ```text
//!   root ─ orders ─ *  ─ (3)          3, 7, 9: numbers of subscriptions
//!              │    └ new ─ (7)       found for orders.1.new: 3? no; 7 … walks literal and `*` branches,
//!              └ > (9)                takes every `>` on the way
//! ```
//! Answers are kept by subject until a subscription changes. For subjects that are all different (reply
//! inboxes, acks) `rest` and `last_token` answer for a whole prefix, where the tree allows it.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

pub type SubId = u32;
type FastMap<K, V> = HashMap<K, V, RandomState>;

/// Deep subjects cost memory and time: nobody subscribes to more tokens than this.
pub const TOKENS_MAX: usize = 128;
const KEPT_MAX: usize = 4096;
/// Subscriptions in all answers that are kept: a few MiB.
const KEPT_WEIGHT_MAX: usize = 1 << 20;
const SMALL: usize = 1024;
/// Longer lists of members are found by a table.
const SCANNED_MAX: usize = 32;

/// Everybody who wants a subject. Listeners are the server's own.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Match {
    pub plain: Vec<SubId>,
    /// One of each group gets the message.
    pub queues: Vec<(Box<[u8]>, Vec<SubId>)>,
    pub listeners: Vec<Listener>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    pub kind: u8,
    pub id: u64,
}

impl Match {
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.queues.is_empty() && self.listeners.is_empty()
    }

    /// Small enough to be kept by each connection that asked for it.
    pub fn is_small(&self) -> bool {
        self.weight() <= SMALL
    }

    fn weight(&self) -> usize {
        self.plain.len() + self.queues.iter().map(|(_, members)| members.len() + 8).sum::<usize>()
    }
}

/// An answer while it is put together.
#[derive(Default)]
struct Finding {
    found: Match,
    /// Where the groups are in `found`, once they are many.
    groups: FastMap<Box<[u8]>, usize>,
}

impl Finding {
    fn take(&mut self, members: &Members) {
        for member in &members.list {
            match member {
                Member::Plain(id) => self.found.plain.push(*id),
                Member::Listener(listener) => self.found.listeners.push(*listener),
                Member::Queue(name, id) => match self.group(name) {
                    Some(at) => self.found.queues[at].1.push(*id),
                    None => self.found.queues.push((name.clone(), vec![*id])),
                },
            }
        }
    }

    fn group(&mut self, name: &[u8]) -> Option<usize> {
        let queues = &self.found.queues;
        if queues.len() <= SCANNED_MAX {
            return queues.iter().position(|(queue, _)| **queue == *name);
        }
        for (at, (queue, _)) in queues.iter().enumerate().skip(self.groups.len()) {
            self.groups.insert(queue.clone(), at);
        }
        self.groups.get(name).copied()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    Plain(SubId),
    Queue(Box<[u8]>, SubId),
    Listener(Listener),
}

/// Those who subscribe to the same filter.
#[derive(Default)]
struct Members {
    list: Vec<Member>,
    /// Where a subscription is in the list, once that is long.
    places: Option<Box<FastMap<SubId, u32>>>,
}

impl Members {
    fn push(&mut self, member: Member) {
        let place = self.list.len() as u32;
        if let (Some(places), Some(id)) = (&mut self.places, member.id()) {
            places.insert(id, place);
        }
        self.list.push(member);
        if self.list.len() > SCANNED_MAX && self.places.is_none() {
            let numbered = (0..).zip(&self.list);
            self.places = Some(Box::new(numbered.filter_map(|(at, member)| Some((member.id()?, at))).collect()));
        }
    }

    fn remove(&mut self, member: &Member) -> bool {
        let place = match (&mut self.places, member.id()) {
            (Some(places), Some(id)) => places.remove(&id).map(|place| place as usize),
            _ => self.list.iter().position(|each| each == member),
        };
        let Some(place) = place else { return false };
        self.list.swap_remove(place);
        if let (Some(places), Some(id)) = (&mut self.places, self.list.get(place).and_then(Member::id)) {
            places.insert(id, place as u32);
        }
        true
    }
}

impl Member {
    fn id(&self) -> Option<SubId> {
        match self {
            Member::Plain(id) | Member::Queue(_, id) => Some(*id),
            Member::Listener(_) => None,
        }
    }
}

#[derive(Default)]
struct Node {
    literal: FastMap<Box<[u8]>, Box<Node>>,
    star: Option<Box<Node>>,
    /// `>` below this node.
    rest: Members,
    here: Members,
}

impl Node {
    fn is_empty(&self) -> bool {
        let nobody = self.rest.list.is_empty() && self.here.list.is_empty();
        nobody && self.literal.is_empty() && self.star.is_none()
    }
}

#[derive(Default)]
pub struct Subscriptions {
    root: Node,
    kept: FastMap<Box<[u8]>, Arc<Match>>,
    /// By prefix: who gets `<prefix>.<token>`; None where it depends on the token.
    kept_prefixes: FastMap<Box<[u8]>, Option<Arc<Match>>>,
    kept_weight: usize,
    /// Moves with every change: what was looked up before is then void.
    pub generation: u64,
    pub count: u64,
    pub inserts: u64,
    pub removes: u64,
    pub matches: u64,
    pub hits: u64,
}

fn tokens(subject: &[u8]) -> std::slice::Split<'_, u8, fn(&u8) -> bool> {
    subject.split(|byte| *byte == b'.')
}

impl Subscriptions {
    pub fn insert(&mut self, filter: &[u8], member: Member) {
        self.changed();
        self.inserts += 1;
        self.count += 1;
        let mut node = &mut self.root;
        let mut parts = tokens(filter).peekable();
        while let Some(token) = parts.next() {
            if token == b">" && parts.peek().is_none() {
                node.rest.push(member);
                return;
            }
            node = if token == b"*" {
                node.star.get_or_insert_default()
            } else {
                node.literal.entry(token.into()).or_default()
            };
        }
        node.here.push(member);
    }

    /// False if there was no such member.
    pub fn remove(&mut self, filter: &[u8], member: &Member) -> bool {
        let parts: Vec<&[u8]> = tokens(filter).collect();
        let removed = remove_below(&mut self.root, &parts, member);
        if removed {
            self.changed();
            self.removes += 1;
            self.count -= 1;
        }
        removed
    }

    fn changed(&mut self) {
        self.generation += 1;
        self.forget();
    }

    fn forget(&mut self) {
        self.kept.clear();
        self.kept_prefixes.clear();
        self.kept_weight = 0;
    }

    /// Room for one more answer.
    fn grow(&mut self, found: &Match) {
        self.kept_weight += found.weight();
        if self.kept.len().max(self.kept_prefixes.len()) >= KEPT_MAX || self.kept_weight > KEPT_WEIGHT_MAX {
            self.forget();
            self.kept_weight = found.weight();
        }
    }

    /// For reply subjects, whose last token is new each time: answered by prefix where that is possible.
    pub fn find_reply(&mut self, subject: &[u8]) -> Arc<Match> {
        let Some(dot) = memchr::memrchr(b'.', subject).filter(|dot| dot + 1 < subject.len()) else {
            return self.find(subject);
        };
        let prefix = &subject[..dot];
        if let Some(kept) = self.kept_prefixes.get(prefix) {
            self.matches += 1;
            self.hits += 1;
            return kept.clone().unwrap_or_else(|| Arc::new(self.find_once(subject)));
        }
        let found = if valid_tokens(subject) { self.last_token(prefix).map(Arc::new) } else { None };
        self.grow(found.as_deref().unwrap_or(&Match::default()));
        self.kept_prefixes.insert(prefix.into(), found.clone());
        found.unwrap_or_else(|| Arc::new(self.find_once(subject)))
    }

    pub fn find(&mut self, subject: &[u8]) -> Arc<Match> {
        self.matches += 1;
        if let Some(kept) = self.kept.get(subject) {
            self.hits += 1;
            return kept.clone();
        }
        let found = Arc::new(self.look_up(subject));
        self.grow(&found);
        self.kept.insert(subject.into(), found.clone());
        found
    }

    /// For subjects that will not come again: as `find`, nothing kept.
    pub fn find_once(&mut self, subject: &[u8]) -> Match {
        self.matches += 1;
        self.look_up(subject)
    }

    fn look_up(&self, subject: &[u8]) -> Match {
        let mut finding = Finding::default();
        if valid_tokens(subject) {
            collect(&self.root, Some(subject), &mut finding);
        }
        finding.found
    }

    /// Who gets every subject `<prefix>.<token>` of one more token, if that does not depend on the token.
    pub fn last_token(&self, prefix: &[u8]) -> Option<Match> {
        self.below(prefix, |node, found| {
            if !node.literal.is_empty() {
                return false;
            }
            found.take(&node.rest);
            if let Some(star) = &node.star {
                found.take(&star.here);
            }
            true
        })
    }

    /// Who gets every subject `<prefix>.<one or more tokens>`, if that does not depend on them.
    pub fn rest(&self, prefix: &[u8]) -> Option<Match> {
        self.below(prefix, |node, found| {
            found.take(&node.rest);
            node.literal.is_empty() && node.star.is_none()
        })
    }

    fn below(&self, prefix: &[u8], take: impl Fn(&Node, &mut Finding) -> bool) -> Option<Match> {
        let mut found = Finding::default();
        let mut level = vec![&self.root];
        for token in tokens(prefix) {
            let mut next = Vec::new();
            for node in level {
                found.take(&node.rest);
                next.extend(node.star.as_deref());
                next.extend(node.literal.get(token).map(|node| &**node));
            }
            level = next;
        }
        level.iter().all(|node| take(node, &mut found)).then_some(found.found)
    }
}

/// A subject with an empty token matches nobody.
fn valid_tokens(subject: &[u8]) -> bool {
    !subject.is_empty() && tokens(subject).all(|token| !token.is_empty())
}

fn collect(node: &Node, subject: Option<&[u8]>, found: &mut Finding) {
    let Some(subject) = subject else {
        found.take(&node.here);
        return;
    };
    found.take(&node.rest);
    let (token, rest) = match memchr::memchr(b'.', subject) {
        Some(at) => (&subject[..at], Some(&subject[at + 1..])),
        None => (subject, None),
    };
    if let Some(star) = &node.star {
        collect(star, rest, found);
    }
    if !node.literal.is_empty() {
        if let Some(next) = node.literal.get(token) {
            collect(next, rest, found);
        }
    }
}

fn remove_below(node: &mut Node, parts: &[&[u8]], member: &Member) -> bool {
    match parts {
        [] => node.here.remove(member),
        [b">"] => node.rest.remove(member),
        [b"*", rest @ ..] => {
            let Some(star) = &mut node.star else { return false };
            let removed = remove_below(star, rest, member);
            if star.is_empty() {
                node.star = None;
            }
            removed
        }
        [token, rest @ ..] => {
            let Some(next) = node.literal.get_mut(*token) else { return false };
            let removed = remove_below(next, rest, member);
            if next.is_empty() {
                node.literal.remove(*token);
            }
            removed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subjects;
    use proptest::prelude::*;

    fn word() -> impl Strategy<Value = String> {
        prop_oneof![Just("a".to_string()), Just("b".to_string()), Just("c".to_string())]
    }

    fn filter() -> impl Strategy<Value = String> {
        let part = prop_oneof![3 => word(), 1 => Just("*".to_string())];
        (proptest::collection::vec(part, 1..4), any::<bool>())
            .prop_map(|(parts, open)| if open { format!("{}.>", parts.join(".")) } else { parts.join(".") })
    }

    proptest! {
        #[test]
        fn same_as_matching_one_by_one(
            filters in proptest::collection::vec(filter(), 0..20),
            gone in proptest::collection::vec(any::<bool>(), 20),
            subject in proptest::collection::vec(word(), 1..5),
        ) {
            let mut subs = Subscriptions::default();
            for (id, filter) in filters.iter().enumerate() {
                subs.insert(filter.as_bytes(), Member::Plain(id as u32));
            }
            for (id, filter) in filters.iter().enumerate().filter(|(id, _)| gone[*id]) {
                prop_assert!(subs.remove(filter.as_bytes(), &Member::Plain(id as u32)));
            }
            let subject = subject.join(".");
            let mut wanted: Vec<u32> = (0..filters.len() as u32)
                .filter(|id| !gone[*id as usize] && subjects::matches(filters[*id as usize].as_bytes(), subject.as_bytes()))
                .collect();
            let mut found = subs.find(subject.as_bytes()).plain.clone();
            found.sort_unstable();
            wanted.sort_unstable();
            prop_assert_eq!(&found, &wanted);
            // The answers for a prefix hold for each subject below it, when they are given.
            if let Some((prefix, _)) = subject.rsplit_once('.') {
                for answer in [subs.last_token(prefix.as_bytes()), subs.rest(prefix.as_bytes())].into_iter().flatten() {
                    let mut plain = answer.plain;
                    plain.sort_unstable();
                    prop_assert_eq!(&plain, &wanted);
                }
            }
        }
    }
}
