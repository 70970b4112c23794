//! Who gets what: random subscriptions and messages of several clients, against a list that is searched one by one.

use std::collections::{BTreeMap, BTreeSet};

use headrace_core::exchange::{ConnectFlags, Exchange, Fed, MessageRef, Permissions, Rule};
use headrace_core::wire::nats::Limits;
use proptest::prelude::*;

const LIMITS: Limits = Limits { control_line: 4096, payload: 1 << 16 };
const CLIENTS: usize = 4;
/// By client: one that is ordinary, one without echo, one that may not do everything, one of the old kind.
const QUIET: usize = 1;
const LIMITED: usize = 2;
const OLD: usize = 3;
const MAY_SUBSCRIBE: [&str; 3] = ["a.>", "b.*", "r.>"];
const MAY_NOT_SUBSCRIBE: [&str; 2] = ["a.b", "b.c"];
const MAY_NOT_PUBLISH: [&str; 2] = ["c.>", "a.*.c"];
const BLOCK: &str = "NATS/1.0\r\nK: v\r\n\r\n";

#[derive(Debug, Clone)]
enum Step {
    Sub { who: usize, sid: u8, filter: String, queue: Option<u8> },
    Unsub { who: usize, sid: u8, max: Option<u64> },
    Pub { who: usize, subject: String, reply: Option<String>, headers: bool },
    Server { subject: String },
    Again { who: usize },
}

#[derive(Debug, Clone)]
struct Sub {
    who: usize,
    sid: String,
    filter: String,
    queue: Option<String>,
    max: u64,
    delivered: u64,
}

fn matches(filter: &str, subject: &str) -> bool {
    let (filter, subject): (Vec<_>, Vec<_>) = (filter.split('.').collect(), subject.split('.').collect());
    if subject.contains(&"") {
        return false;
    }
    for (at, part) in filter.iter().enumerate() {
        match (*part, subject.get(at)) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (part, Some(token)) if part == *token => {}
            _ => return false,
        }
    }
    filter.len() == subject.len()
}

/// All subjects that can make a difference: z stands for every other word.
fn universe() -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut level: Vec<String> = vec![String::new()];
    for _ in 0..4 {
        let longer = |head: &String| -> Vec<String> {
            ["a", "b", "c", "r", "z"]
                .iter()
                .map(|word| if head.is_empty() { (*word).to_string() } else { format!("{head}.{word}") })
                .collect()
        };
        level = level.iter().flat_map(longer).collect();
        all.extend(level.iter().cloned());
    }
    all
}

fn inside(filter: &str, rules: &[&str], universe: &[String]) -> bool {
    rules.iter().any(|rule| universe.iter().filter(|subject| matches(filter, subject)).all(|s| matches(rule, s)))
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![5 => Just("a"), 4 => Just("b"), 3 => Just("c")].prop_map(str::to_string)
}

fn filter() -> impl Strategy<Value = String> {
    let part = prop_oneof![4 => word(), 1 => Just("*".to_string())];
    let plain = (proptest::collection::vec(part, 1..4), 0..4u8)
        .prop_map(|(parts, open)| if open == 0 { format!("{}.>", parts.join(".")) } else { parts.join(".") });
    prop_oneof![12 => plain, 1 => Just(">".to_string()), 2 => Just("r.*".to_string()), 1 => Just("r.>".to_string())]
}

fn subject() -> impl Strategy<Value = String> {
    let plain = proptest::collection::vec(word(), 1..4).prop_map(|parts| parts.join("."));
    prop_oneof![12 => plain, 1 => Just("a.*".to_string()), 1 => Just("a..b".to_string()), 1 => Just("r.9".to_string())]
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..CLIENTS;
    let sid = || 0..5u8;
    prop_oneof![
        8 => (who(), sid(), filter(), proptest::option::weighted(0.4, 0..2u8))
            .prop_map(|(who, sid, filter, queue)| Step::Sub { who, sid, filter, queue }),
        3 => (who(), sid(), proptest::option::weighted(0.7, 0..4u64))
            .prop_map(|(who, sid, max)| Step::Unsub { who, sid, max }),
        10 => (who(), subject(), proptest::option::weighted(0.5, 0..3u8), any::<bool>()).prop_map(
            |(who, subject, reply, headers)| Step::Pub { who, subject, reply: reply.map(|n| format!("r.{n}")), headers }
        ),
        3 => subject().prop_map(|subject| Step::Server { subject }),
        1 => who().prop_map(|who| Step::Again { who }),
    ]
}

fn flags(who: usize) -> ConnectFlags {
    let old = who == OLD;
    ConnectFlags { verbose: old, pedantic: false, echo: who != QUIET, headers: !old, no_responders: !old }
}

fn permissions(who: usize) -> Option<Permissions> {
    let rules = |filters: &[&str]| -> Vec<Rule> {
        filters.iter().map(|filter| Rule { filter: filter.as_bytes().into(), queue: None }).collect()
    };
    (who == LIMITED).then(|| {
        let mut made = Permissions::default();
        made.subscribe_allow = Some(rules(&MAY_SUBSCRIBE));
        made.subscribe_deny = rules(&MAY_NOT_SUBSCRIBE);
        made.publish_deny = rules(&MAY_NOT_PUBLISH);
        made
    })
}

/// The exchange beside the list.
struct Pair {
    exchange: Exchange,
    account: u32,
    slots: Vec<u32>,
    subs: Vec<Sub>,
    universe: Vec<String>,
    sent: u64,
}

/// (sid, the rest of the line, body) of each message, and the other lines.
type Received = (Vec<(String, String, String)>, Vec<String>);

impl Pair {
    fn new(seed: u64) -> Self {
        let mut exchange = Exchange::new(LIMITS, 1000, seed);
        let account = exchange.account("$G");
        let mut pair = Pair { exchange, account, slots: Vec::new(), subs: Vec::new(), universe: universe(), sent: 0 };
        pair.slots = (0..CLIENTS).map(|who| pair.connect(who)).collect();
        pair
    }

    fn connect(&mut self, who: usize) -> u32 {
        let slot = self.exchange.open(self.account, true);
        assert_eq!(self.exchange.feed(slot, b"CONNECT {}\r\n"), Fed::Asking);
        self.exchange.accept(slot, self.account, flags(who), permissions(who));
        assert_eq!(self.exchange.feed(slot, b""), Fed::Fine);
        self.exchange.take_output();
        slot
    }

    fn feed(&mut self, who: usize, text: &str) {
        assert_eq!(self.exchange.feed(self.slots[who], text.as_bytes()), Fed::Fine);
    }

    fn received(&mut self) -> Vec<Received> {
        let mut all: Vec<Received> = vec![Received::default(); CLIENTS];
        for (slot, out) in self.exchange.take_output() {
            let who = self.slots.iter().position(|each| *each == slot).expect("a connection that is there");
            let text = String::from_utf8(out).expect("what was sent is text");
            let mut rest = text.as_str();
            while let Some((line, after)) = rest.split_once("\r\n") {
                rest = after;
                let words: Vec<&str> = line.split(' ').collect();
                if !["MSG", "HMSG"].contains(&words[0]) {
                    all[who].1.push(line.to_string());
                    continue;
                }
                let size: usize = words[words.len() - 1].parse().expect("a size");
                let named = format!("{} {} {}", words[0], words[1], words[3..].join(" "));
                all[who].0.push((words[2].to_string(), named, rest[..size].to_string()));
                rest = rest[size..].strip_prefix("\r\n").expect("a body ends in CRLF");
            }
            assert_eq!(rest, "");
        }
        all
    }

    fn expect_said(&mut self, who: usize, error: Option<String>) {
        let said = std::mem::take(&mut self.received()[who].1);
        let ok = error.is_none() && flags(who).verbose;
        assert_eq!(said, error.into_iter().chain(ok.then(|| "+OK".to_string())).collect::<Vec<_>>());
    }

    fn run(&mut self, step: &Step) {
        match step.clone() {
            Step::Sub { who, sid, filter, queue } => self.subscribe(who, sid, filter, queue),
            Step::Unsub { who, sid, max } => {
                let sid = format!("n{sid}");
                self.feed(who, &format!("UNSUB {sid}{}\r\n", max.map_or(String::new(), |max| format!(" {max}"))));
                let max = max.unwrap_or(0);
                if let Some(at) = self.subs.iter().position(|sub| sub.who == who && sub.sid == sid) {
                    self.subs[at].max = max;
                    if max == 0 || self.subs[at].delivered >= max {
                        self.subs.remove(at);
                    }
                }
                self.expect_said(who, None);
            }
            Step::Pub { who, subject, reply, headers } => self.publish(who, &subject, reply.as_deref(), headers),
            Step::Server { subject } => {
                let message = MessageRef { subject: subject.as_bytes(), reply: None, headers: None, payload: b"own" };
                let count = self.exchange.publish(self.account, &message);
                let received = self.received();
                assert_eq!(received.iter().map(|(messages, _)| messages.len()).sum::<usize>(), count);
                self.check_delivery(None, &subject, received, |_| (format!("MSG {subject} 3"), "own".to_string()));
            }
            Step::Again { who } => {
                self.exchange.close(self.slots[who]);
                self.subs.retain(|sub| sub.who != who);
                self.exchange.drain();
                self.slots[who] = self.connect(who);
            }
        }
        let counted = self.exchange.statistics()[self.account as usize].1;
        assert_eq!(counted, self.subs.len() as u64, "as many subscriptions as the list has");
    }

    fn subscribe(&mut self, who: usize, sid: u8, filter: String, queue: Option<u8>) {
        let (sid, queue) = (format!("n{sid}"), queue.map(|queue| format!("q{queue}")));
        let group = queue.as_ref().map_or(String::new(), |queue| format!("{queue} "));
        self.feed(who, &format!("SUB {filter} {group}{sid}\r\n"));
        if who == LIMITED
            && (!inside(&filter, &MAY_SUBSCRIBE, &self.universe) || inside(&filter, &MAY_NOT_SUBSCRIBE, &self.universe))
        {
            let using = queue.map_or(String::new(), |queue| format!(" using queue \"{queue}\""));
            let text = format!("-ERR 'Permissions Violation for Subscription to \"{filter}\"{using}'");
            return self.expect_said(who, Some(text));
        }
        if !self.subs.iter().any(|sub| sub.who == who && sub.sid == sid) {
            self.subs.push(Sub { who, sid, filter, queue, max: 0, delivered: 0 });
        }
        self.expect_said(who, None);
    }

    fn publish(&mut self, who: usize, subject: &str, reply: Option<&str>, headers: bool) {
        self.sent += 1;
        let (body, with_headers) = (format!("message {}", self.sent), headers && who != OLD);
        let to = reply.map_or(String::new(), |reply| format!(" {reply}"));
        if with_headers {
            let sizes = format!("{} {}", BLOCK.len(), BLOCK.len() + body.len());
            self.feed(who, &format!("HPUB {subject}{to} {sizes}\r\n{BLOCK}{body}\r\n"));
        } else {
            self.feed(who, &format!("PUB {subject}{to} {}\r\n{body}\r\n", body.len()));
        }
        if who == LIMITED && MAY_NOT_PUBLISH.iter().any(|rule| matches(rule, subject)) {
            let text = format!("-ERR 'Permissions Violation for Publish to \"{subject}\"'");
            return self.expect_said(who, Some(text));
        }
        let mut received = self.received();
        let said = std::mem::take(&mut received[who].1);
        assert_eq!(said, if flags(who).verbose { vec!["+OK"] } else { vec![] });
        let nobody =
            received.iter().all(|(messages, _)| messages.iter().all(|(_, _, body)| body.starts_with("NATS/1.0 503")));
        if nobody {
            let answers: Vec<_> = received.iter_mut().flat_map(|(messages, _)| std::mem::take(messages)).collect();
            self.check_no_responders(who, subject, reply, &answers);
        }
        self.check_delivery(Some(who), subject, received, |receiver| {
            if with_headers && receiver != OLD {
                let sizes = format!("{} {}", BLOCK.len(), BLOCK.len() + body.len());
                (format!("HMSG {subject}{to} {sizes}"), format!("{BLOCK}{body}"))
            } else {
                (format!("MSG {subject}{to} {}", body.len()), body.clone())
            }
        });
    }

    /// Nobody got it: a publisher that asked for it and waits for the reply is answered, once.
    fn check_no_responders(
        &mut self,
        who: usize,
        subject: &str,
        reply: Option<&str>,
        got: &[(String, String, String)],
    ) {
        let may_notify = |reply: &str| who != LIMITED || !denied_at_delivery(reply);
        let waits = |sub: &&mut Sub| {
            reply.is_some_and(|reply| sub.who == who && matches(&sub.filter, reply) && may_notify(reply))
        };
        let notified: Vec<&mut Sub> = self.subs.iter_mut().filter(waits).collect();
        if !flags(who).no_responders || notified.is_empty() {
            return assert!(got.is_empty(), "{got:?}");
        }
        let [(sid, named, body)] = got else { panic!("answered {} times", got.len()) };
        let status = format!("NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n");
        assert_eq!((named, body), (&format!("HMSG {} {n} {n}", reply.unwrap_or(""), n = status.len()), &status));
        let sub = notified.into_iter().find(|sub| sub.sid == *sid).expect("one of its subscriptions on the reply");
        sub.delivered += 1;
        self.subs.retain(|sub| sub.max == 0 || sub.delivered < sub.max);
    }

    /// All plain subscriptions that match, and one of each group.
    fn check_delivery(
        &mut self,
        from: Option<usize>,
        subject: &str,
        received: Vec<Received>,
        expected: impl Fn(usize) -> (String, String),
    ) {
        let mut got: BTreeSet<(usize, String)> = BTreeSet::new();
        for (who, (messages, said)) in received.into_iter().enumerate() {
            assert!(said.is_empty(), "{said:?}");
            for (sid, named, body) in messages {
                assert_eq!((named, body), expected(who));
                assert!(got.insert((who, sid)), "twice to the same subscription");
            }
        }
        let mut plain: BTreeSet<(usize, String)> = BTreeSet::new();
        let mut groups: BTreeMap<&str, BTreeSet<(usize, String)>> = BTreeMap::new();
        for sub in &self.subs {
            let echo = from != Some(sub.who) || flags(sub.who).echo;
            let denied = sub.who == LIMITED && denied_at_delivery(subject);
            if matches(&sub.filter, subject) && echo && !denied {
                let member = (sub.who, sub.sid.clone());
                match &sub.queue {
                    None => plain.insert(member),
                    Some(queue) => groups.entry(queue).or_default().insert(member),
                };
            }
        }
        let (to_plain, to_groups): (BTreeSet<_>, BTreeSet<_>) =
            got.iter().cloned().partition(|each| plain.contains(each));
        assert_eq!(to_plain, plain, "on {subject} from {from:?}");
        assert_eq!(to_groups.len(), groups.len(), "one per group: {to_groups:?} of {groups:?}");
        for (queue, members) in &groups {
            assert_eq!(members.intersection(&to_groups).count(), 1, "one of {queue}");
        }
        for sub in &mut self.subs {
            sub.delivered += u64::from(got.contains(&(sub.who, sub.sid.clone())));
        }
        self.subs.retain(|sub| sub.max == 0 || sub.delivered < sub.max);
    }
}

fn denied_at_delivery(subject: &str) -> bool {
    MAY_NOT_SUBSCRIBE.iter().any(|rule| matches(rule, subject))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn everybody_gets_what_a_plain_list_says(steps in proptest::collection::vec(step(), 1..80), seed in any::<u64>()) {
        let mut pair = Pair::new(seed);
        for step in &steps {
            pair.run(step);
        }
    }
}

#[test]
fn members_of_a_group_share_the_work() {
    let mut pair = Pair::new(7);
    for sid in 0..4u8 {
        pair.run(&Step::Sub { who: 0, sid, filter: "a.b".to_string(), queue: Some(0) });
    }
    for _ in 0..1000 {
        pair.run(&Step::Pub { who: QUIET, subject: "a.b".to_string(), reply: None, headers: false });
    }
    assert!(pair.subs.iter().all(|sub| (150..350).contains(&sub.delivered)), "{:?}", pair.subs);
}

/// What a client could do to the tables: many on one subject, many groups, many subjects with many subscribers.
#[test]
fn a_hundred_thousand_subscriptions_come_and_go() {
    let began = std::time::Instant::now();
    let mut exchange = Exchange::new(LIMITS, usize::MAX, 1);
    exchange.pending_max = 1 << 20;
    let account = exchange.account("$G");
    let (many, one) = (exchange.open(account, false), exchange.open(account, false));
    let mut text = String::new();
    for sid in 0..100_000 {
        let queue = if sid % 2 == 0 { format!("g{sid} ") } else { String::new() };
        text.push_str(&format!("SUB > {queue}{sid}\r\n"));
    }
    assert_eq!(exchange.feed(many, text.as_bytes()), Fed::Fine);
    exchange.take_output();
    for number in 0..50 {
        exchange.feed(one, format!("PUB subject.{number} 2000\r\n{}\r\n", "x".repeat(2000)).as_bytes());
        let out = exchange.take_output();
        let behind = out.iter().find(|(slot, _)| *slot == many).expect("something for the many");
        assert!(behind.1.is_empty(), "nothing is sent to a client that is too far behind");
    }
    exchange.close(many);
    assert_eq!(exchange.statistics()[0].1, 0);
    assert!(began.elapsed().as_secs() < 20, "took {:?}", began.elapsed());
}
