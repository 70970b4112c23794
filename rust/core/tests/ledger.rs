//! The ledger against a model that keeps plain maps, and its journal against itself.

use std::collections::BTreeMap;

use headrace_core::ledger::{AckKind, AckPolicy, AckRun, Ledger, Rules};
use proptest::prelude::*;

const WAIT: i64 = 1_000;

fn rules(policy: AckPolicy, max_deliver: u32) -> Rules {
    Rules { policy, max_deliver, ack_wait_ns: WAIT, backoff_ns: Vec::new() }
}

/// The rules once more, with nothing clever.
#[derive(Clone, Debug)]
struct Model {
    rules: Rules,
    delivered: (u64, u64),
    floor: (u64, u64),
    /// seq → (first consumer seq, time, deliveries)
    pending: BTreeMap<u64, (u64, i64, u32)>,
    given_up: BTreeMap<u64, u32>,
    queue: Vec<u64>,
    exceeded: Vec<(u64, u32)>,
}

impl Model {
    fn new(rules: Rules) -> Model {
        let (pending, given_up) = (BTreeMap::new(), BTreeMap::new());
        Model { rules, delivered: (0, 0), floor: (0, 0), pending, given_up, queue: vec![], exceeded: vec![] }
    }

    fn sent(&mut self, seq: u64, now: i64) -> (u64, u64) {
        self.delivered = (self.delivered.0 + 1, self.delivered.1.max(seq));
        if self.rules.policy == AckPolicy::None {
            self.floor = self.delivered;
            return (self.delivered.0, 1);
        }
        self.queue.retain(|queued| *queued != seq);
        let known = self.pending.get(&seq).copied();
        let deliveries = known.map_or_else(|| self.given_up.remove(&seq).unwrap_or(0), |k| k.2) + 1;
        self.pending.insert(seq, (known.map_or(self.delivered.0, |k| k.0), now, deliveries));
        (self.delivered.0, u64::from(deliveries))
    }

    fn forget(&mut self, seq: u64) -> Option<(u64, i64, u32)> {
        self.queue.retain(|queued| *queued != seq);
        self.pending.remove(&seq)
    }

    fn ack_one(&mut self, seq: u64) -> bool {
        let Some((consumer_seq, ..)) = self.forget(seq) else { return false };
        self.raise(consumer_seq, seq);
        true
    }

    fn raise(&mut self, consumer_seq: u64, seq: u64) {
        if self.pending.is_empty() {
            self.floor = self.delivered;
        } else if consumer_seq == self.floor.0 + 1 {
            if let Some((next, (first, ..))) = self.pending.range(seq + 1..).next() {
                self.floor = (first - 1, next - 1);
            }
        }
    }

    fn ack(&mut self, seq: u64, consumer_seq: u64) {
        match self.rules.policy {
            AckPolicy::None => {}
            AckPolicy::Explicit => {
                if !self.ack_one(seq) && self.given_up.remove(&seq).is_some() {
                    self.raise(consumer_seq, seq);
                }
            }
            AckPolicy::All => {
                // The stream sequence decides, whatever number its delivery had.
                if seq > self.floor.1 && seq <= self.delivered.1 {
                    self.floor = (consumer_seq.clamp(self.floor.0, self.delivered.0), seq);
                    self.pending.retain(|s, _| *s > seq);
                    self.given_up.retain(|s, _| *s > seq);
                    self.queue.retain(|s| *s > seq);
                }
            }
        }
    }

    fn expire(&mut self, now: i64) {
        let due: Vec<u64> = self
            .pending
            .iter()
            .filter(|(seq, (_, time, _))| time + WAIT <= now && !self.queue.contains(seq))
            .map(|(seq, _)| *seq)
            .collect();
        for seq in due {
            let deliveries = self.pending[&seq].2;
            if self.rules.max_deliver > 0 && deliveries >= self.rules.max_deliver {
                self.give_up(seq);
            } else {
                self.queue.push(seq);
            }
        }
    }

    fn give_up(&mut self, seq: u64) {
        let (_, _, deliveries) = self.forget(seq).unwrap();
        self.given_up.insert(seq, deliveries);
        self.exceeded.push((seq, deliveries));
    }

    fn due(&mut self, max: usize) -> Vec<u64> {
        let mut due = Vec::new();
        for seq in self.queue.clone() {
            if due.len() == max {
                break;
            }
            if self.rules.max_deliver > 0 && self.pending[&seq].2 >= self.rules.max_deliver {
                self.give_up(seq);
            } else {
                due.push(seq);
            }
        }
        due
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// New messages in a row, behind a gap.
    New {
        gap: u64,
        count: u64,
    },
    Again(usize),
    Ack(u64),
    Nak(u64, i64),
    Progress(u64),
    Removed(u64),
    Wait(i64),
    Journal,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (prop_oneof![9 => 0u64..3, 1 => 0u64..20_000], 1u64..8).prop_map(|(gap, count)| Step::New { gap, count }),
        2 => (1usize..6).prop_map(Step::Again),
        6 => (0u64..60).prop_map(Step::Ack),
        2 => ((0u64..60), prop_oneof![Just(0i64), 1i64..3_000]).prop_map(|(at, delay)| Step::Nak(at, delay)),
        1 => (0u64..60).prop_map(Step::Progress),
        1 => (0u64..60).prop_map(Step::Removed),
        2 => (1i64..1_500).prop_map(Step::Wait),
        1 => Just(Step::Journal),
    ]
}

fn check(ledger: &mut Ledger, model: &Model) {
    assert_eq!(ledger.delivered(), model.delivered);
    assert_eq!(ledger.floor(), model.floor);
    let state = ledger.state();
    let expected: Vec<_> = model.pending.iter().map(|(seq, (c, t, _))| (*seq, *c, *t)).collect();
    assert_eq!(state.pending, expected);
    let again = model.pending.iter().filter(|(_, p)| p.2 > 1).map(|(seq, p)| (*seq, u64::from(p.2) - 1));
    let lost = model.given_up.iter().map(|(seq, n)| (*seq, u64::from(*n).max(2) - 1));
    let mut redelivered: Vec<_> = again.chain(lost).collect();
    redelivered.sort_unstable();
    assert_eq!(state.redelivered, redelivered);
    assert_eq!((ledger.num_pending(), ledger.num_redelivered()), (state.pending.len(), redelivered.len()));
    assert_eq!(ledger.num_due(), model.queue.len());
    if let Some(deadline) =
        model.pending.iter().filter(|(s, _)| !model.queue.contains(s)).map(|(_, p)| p.1 + WAIT).min()
    {
        assert!(ledger.next_deadline().unwrap() <= deadline + 100 * model.pending.len() as i64);
    }
    let everything: Vec<u64> = (1..model.delivered.1 + 3).rev().take(200).collect();
    let acked: Vec<u64> = everything
        .iter()
        .copied()
        .filter(|s| *s <= model.delivered.1 && !model.pending.contains_key(s) && !model.given_up.contains_key(s))
        .collect();
    assert_eq!(ledger.acked_among(&everything), acked);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn moves_as_the_model_and_replays_as_it_moved(
        policy in prop_oneof![Just(AckPolicy::Explicit), Just(AckPolicy::Explicit), Just(AckPolicy::All), Just(AckPolicy::None)],
        max_deliver in 0u32..4,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut ledger = Ledger::new(rules(policy, max_deliver), 0);
        ledger.record(true);
        let mut copy = ledger.clone();
        let mut model = Model::new(rules(policy, max_deliver));
        let mut now = 10 * WAIT;
        for step in steps {
            match step {
                Step::New { gap, count } => {
                    let first = model.delivered.1 + 1 + gap;
                    for seq in first..first + count {
                        let sent = ledger.sent(seq, now);
                        prop_assert_eq!((sent.consumer_seq, sent.deliveries), model.sent(seq, now));
                    }
                }
                Step::Again(max) => {
                    let due = ledger.due(max);
                    prop_assert_eq!(&due, &model.due(max));
                    for seq in due {
                        let sent = ledger.sent(seq, now);
                        prop_assert_eq!((sent.consumer_seq, sent.deliveries), model.sent(seq, now));
                    }
                }
                Step::Ack(back) => {
                    let seq = (model.delivered.1 + 2).saturating_sub(back);
                    let consumer_seq = model.pending.get(&seq).map_or(model.delivered.0, |p| p.0);
                    let mut run = AckRun::new();
                    run.push(AckKind::Ack, 1, seq, consumer_seq, b"", None);
                    run.push(AckKind::Other, 1, seq, consumer_seq, b"what", None);
                    let mut acked = Vec::new();
                    let before = model.pending.len() + model.given_up.len();
                    let done = ledger.apply(&run, 0, now, Some(&mut acked));
                    model.ack(seq, consumer_seq);
                    prop_assert_eq!(done.next, 2);
                    prop_assert_eq!(done.acked, before - model.pending.len() - model.given_up.len());
                    prop_assert_eq!(acked.len(), done.acked);
                }
                Step::Nak(back, delay) => {
                    let seq = (model.delivered.1 + 2).saturating_sub(back);
                    prop_assert_eq!(ledger.nak(seq, delay, now), model.pending.contains_key(&seq));
                    if let Some(entry) = model.pending.get_mut(&seq) {
                        if delay > 0 {
                            entry.1 = now + delay - WAIT;
                            model.queue.retain(|queued| *queued != seq);
                        } else if !model.queue.contains(&seq) {
                            model.queue.push(seq);
                        }
                    }
                }
                Step::Progress(back) => {
                    let seq = (model.delivered.1 + 2).saturating_sub(back);
                    prop_assert_eq!(ledger.progress(seq, now), model.pending.contains_key(&seq));
                    if let Some(entry) = model.pending.get_mut(&seq) {
                        entry.1 = now;
                    }
                }
                Step::Removed(back) => {
                    let seq = (model.delivered.1 + 2).saturating_sub(back);
                    let gone = ledger.removed(&[seq]);
                    prop_assert_eq!(gone.len(), usize::from(model.pending.contains_key(&seq)));
                    if !model.ack_one(seq) && model.given_up.remove(&seq).is_some() {
                        model.raise(0, seq);
                    }
                }
                Step::Wait(time) => {
                    now += time;
                    ledger.expire(now);
                    model.expire(now);
                }
                Step::Journal => {
                    if let Some(record) = ledger.take_changes() {
                        copy.replay(&record).unwrap();
                    }
                    prop_assert_eq!(copy.state(), ledger.state());
                    let again = Ledger::from_state(rules(policy, max_deliver), &ledger.state());
                    prop_assert_eq!(again.state(), ledger.state());
                }
            }
            check(&mut ledger, &model);
            prop_assert_eq!(ledger.take_exceeded(), std::mem::take(&mut model.exceeded));
        }
        if let Some(record) = ledger.take_changes() {
            copy.replay(&record).unwrap();
        }
        prop_assert_eq!(copy.state(), ledger.state());
    }

    #[test]
    fn a_strange_record_is_refused_not_followed(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        // Long runs are legal; keep the ones that would only take time out of the way.
        let runs = bytes.len() < 4 || bytes[3] < 0x80;
        prop_assume!(runs);
        let mut ledger = Ledger::new(rules(AckPolicy::Explicit, 2), 0);
        let _ = ledger.replay(&bytes[..bytes.len().min(6)]);
    }
}

#[test]
fn acks_out_of_order_leave_the_floor_until_the_gap_closes() {
    let mut ledger = Ledger::new(rules(AckPolicy::Explicit, 0), 0);
    (1..=6).for_each(|seq| _ = ledger.sent(seq, 0));
    for seq in [2, 3, 5] {
        ledger.ack(seq, seq, None);
        assert_eq!(ledger.floor(), (0, 0));
    }
    ledger.ack(1, 1, None);
    assert_eq!(ledger.floor(), (3, 3));
    ledger.ack(4, 4, None);
    assert_eq!(ledger.floor(), (5, 5));
    ledger.ack(6, 6, None);
    assert_eq!(ledger.floor(), ledger.delivered());
}

#[test]
fn a_purge_moves_everything_behind_it() {
    let mut ledger = Ledger::new(rules(AckPolicy::Explicit, 0), 0);
    (1..=5).for_each(|seq| _ = ledger.sent(seq, 0));
    assert_eq!(ledger.removed_below(11, true), 5);
    assert_eq!((ledger.delivered(), ledger.floor(), ledger.num_pending()), ((5, 10), (5, 10), 0));
    (11..=14).for_each(|seq| _ = ledger.sent(seq, 0));
    assert_eq!(ledger.removed_below(13, false), 2, "limits took the two oldest");
    assert_eq!((ledger.delivered(), ledger.floor()), ((9, 14), (7, 12)));
}

#[test]
fn backoff_stretches_and_the_last_value_repeats() {
    let mut ledger = Ledger::new(Rules { backoff_ns: vec![200, 400], ..rules(AckPolicy::Explicit, 0) }, 0);
    let mut times = vec![];
    let mut now = 0;
    ledger.sent(1, now);
    for _ in 0..4 {
        while ledger.expire(now) == 0 {
            now += 10;
        }
        times.push(now);
        assert_eq!(ledger.due(9), [1]);
        ledger.sent(1, now);
    }
    assert_eq!(times, [200, 600, 1000, 1400]);
}

#[test]
fn a_straggler_does_not_widen_the_window() {
    let mut ledger = Ledger::new(rules(AckPolicy::Explicit, 0), 0);
    ledger.sent(1, 0);
    for seq in 2..1_000_000 {
        ledger.sent(seq, 0);
        ledger.ack(seq, seq, None);
    }
    assert_eq!((ledger.num_pending(), ledger.floor()), (1, (0, 0)));
    ledger.ack(1, 1, None);
    assert_eq!(ledger.floor(), (999_999, 999_999));
}

#[test]
#[ignore = "prints times; run it with --release --ignored --nocapture"]
fn nanoseconds_per_message() {
    const N: u64 = 4_000_000;
    for window in [1u64, 500, 100_000, 1_000_000] {
        let mut ledger = Ledger::new(rules(AckPolicy::Explicit, 0), 0);
        ledger.record(true);
        let started = std::time::Instant::now();
        let mut bytes = 0;
        let mut at = 0;
        while at < N {
            let end = (at + window).min(N);
            (at + 1..=end).for_each(|seq| _ = ledger.sent(seq, at as i64));
            (at + 1..=end).for_each(|seq| _ = ledger.ack(seq, seq, None));
            bytes += ledger.take_changes().map_or(0, |record| record.len());
            at = end;
        }
        let each = started.elapsed().as_nanos() as f64 / N as f64;
        println!("window {window}: {each:.1} ns for sent + ack, journal {:.3} bytes each", bytes as f64 / N as f64);
    }
}
