//! Two protocols over one set of sockets, and requests with a length in front against a plain model.
#![cfg(target_os = "linux")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use headrace_core::exchange::Exchange;
use headrace_core::front_end::{Fed, FrontEnd};
use headrace_core::net::{Conn, Notice, Notices, Sockets};
use headrace_core::requests::{RequestLimits, Requests};
use headrace_core::wire::nats::Limits;
use proptest::prelude::*;

const NATS: u32 = 0;
const SIZED: u32 = 1;
const LIMITS: RequestLimits =
    RequestLimits { stranger_bytes_max: 16, request_bytes_max: 1000, in_flight_max: 4, pending_max: 1 << 20 };

fn sized(body: &[u8]) -> Vec<u8> {
    [&(body.len() as i32).to_be_bytes()[..], body].concat()
}

struct Scene {
    sockets: Sockets,
    exchange: Exchange,
    requests: Requests,
    notices: Notices,
}

impl Scene {
    fn new() -> Scene {
        let mut exchange = Exchange::new(Limits { control_line: 4096, payload: 1 << 20 }, 100, 7);
        exchange.account("$G");
        let (sockets, requests) = (Sockets::new().unwrap(), Requests::new(LIMITS));
        Scene { sockets, exchange, requests, notices: Notices::new() }
    }

    fn connect(&mut self, front_end: u32) -> (u32, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let slot = if front_end == NATS { self.exchange.open(0, false) } else { self.requests.open(true) };
        self.sockets.add(Conn { front_end, slot }, OwnedFd::from(ours)).unwrap();
        (slot, theirs)
    }

    fn pump(&mut self) {
        let front_ends: &mut [&mut dyn FrontEnd] = &mut [&mut self.exchange, &mut self.requests];
        self.sockets.pump(front_ends, 1, &mut self.notices);
    }

    /// Pumps until `count` requests are there.
    fn take(&mut self, count: usize) -> Vec<headrace_core::requests::Request> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut taken = Vec::new();
        while taken.len() < count && Instant::now() < deadline {
            self.pump();
            taken.extend(self.requests.take(usize::MAX));
        }
        assert_eq!(taken.len(), count);
        taken
    }

    fn flush(&mut self) {
        let front_ends: &mut [&mut dyn FrontEnd] = &mut [&mut self.exchange, &mut self.requests];
        assert!(!self.sockets.flush(front_ends, &mut self.notices));
    }
}

fn receive(from: &mut UnixStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn both_protocols_are_served_and_slots_do_not_meet() {
    let mut scene = Scene::new();
    let (nats_slot, mut nats) = scene.connect(NATS);
    let (sized_slot, mut other) = scene.connect(SIZED);
    assert_eq!(nats_slot, sized_slot, "each protocol numbers its own connections");
    nats.write_all(b"PING\r\n").unwrap();
    other.write_all(&[sized(b"one"), sized(b"two")].concat()).unwrap();
    let taken = scene.take(2);
    assert_eq!(taken.iter().map(|request| &request.body[..]).collect::<Vec<_>>(), [b"one", b"two"]);
    // Answered in the wrong order, sent in the right one.
    assert_eq!(scene.requests.answer(sized_slot, 1, Some(b"second")), Fed::Fine);
    scene.flush();
    assert_eq!(receive(&mut nats, 6), b"PONG\r\n");
    assert_eq!(scene.requests.answer(sized_slot, 0, Some(b"first")), Fed::Fine);
    scene.flush();
    assert_eq!(receive(&mut other, 19), [sized(b"first"), sized(b"second")].concat());
    assert!(scene.notices.is_empty());
    // One leaves: the notice names it, and not the one with the same number.
    drop(other);
    scene.pump();
    assert_eq!(scene.notices, [(Conn { front_end: SIZED, slot: sized_slot }, Notice::Gone)]);
}

#[test]
fn a_full_connection_is_not_read_until_it_gets_answers() {
    let mut scene = Scene::new();
    let (slot, mut client) = scene.connect(SIZED);
    for number in 0..10u8 {
        client.write_all(&sized(&[number])).unwrap();
    }
    assert_eq!(scene.take(4).len(), 4, "as many as may be in flight");
    client.write_all(&sized(&[10])).unwrap();
    scene.pump();
    assert!(!scene.requests.has_arrived());
    for number in 0..11 {
        scene.requests.answer(slot, number, Some(&[number as u8]));
        scene.flush();
        assert_eq!(receive(&mut client, 5), sized(&[number as u8]));
        scene.pump();
        scene.requests.take(usize::MAX);
    }
    assert!(scene.notices.is_empty());
}

#[test]
fn a_length_that_may_not_be_ends_the_connection() {
    for length in [-1i32, 1001, i32::MAX, i32::MIN] {
        let mut requests = Requests::new(LIMITS);
        let slot = requests.open(true);
        assert_eq!(requests.feed(slot, &length.to_be_bytes()), Fed::Close, "{length}");
        assert_eq!(requests.feed(slot, &sized(b"fine")), Fed::Close, "nothing more is taken");
        assert!(!requests.has_arrived());
    }
    let mut requests = Requests::new(LIMITS);
    let stranger = requests.open(false);
    assert_eq!(requests.feed(stranger, &sized(&[0; 16])), Fed::Fine);
    requests.accept(stranger);
    assert_eq!(requests.feed(stranger, &sized(&[0; 900])), Fed::Fine);
    let other = requests.open(false);
    assert_eq!(requests.feed(other, &sized(&[0; 17])), Fed::Close);
}

#[derive(Debug, Clone)]
enum Step {
    Feed(usize, usize),
    Answer(usize, bool),
    Take(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3usize, 1..60usize).prop_map(|(who, bytes)| Step::Feed(who, bytes)),
        (any::<usize>(), any::<bool>()).prop_map(|(which, wanted)| Step::Answer(which, wanted)),
        (1..200usize).prop_map(Step::Take),
    ]
}

proptest! {
    /// Three clients send numbered requests in any pieces; they are answered in any order. Each gets the answers that it
    /// wants, once, in the order of its requests, and never has more in flight than it may.
    #[test]
    fn answers_come_in_the_order_of_the_requests(steps in prop::collection::vec(step(), 1..300)) {
        let mut requests = Requests::new(LIMITS);
        let slots: Vec<u32> = (0..3).map(|_| requests.open(true)).collect();
        let mut unsent: Vec<VecDeque<u8>> = vec![VecDeque::new(); 3];
        let mut made = [0u32; 3];
        let mut full = [false; 3];
        let mut open: Vec<(usize, u64, u32)> = Vec::new();
        let mut wanted: Vec<Vec<(u64, Vec<u8>)>> = vec![Vec::new(); 3];
        let mut got: Vec<Vec<u8>> = vec![Vec::new(); 3];
        let mut seen = [0u64; 3];
        for step in steps {
            match step {
                Step::Feed(who, bytes) if !full[who] => {
                    while unsent[who].len() < bytes {
                        let body = [&made[who].to_be_bytes()[..], &vec![7; made[who] as usize % 90]].concat();
                        unsent[who].extend(sized(&body));
                        made[who] += 1;
                    }
                    let piece: Vec<u8> = unsent[who].drain(..bytes).collect();
                    let fed = requests.feed(slots[who], &piece);
                    prop_assert!(matches!(fed, Fed::Fine | Fed::Full));
                    full[who] = fed == Fed::Full;
                }
                Step::Feed(..) => {}
                Step::Take(bytes) => {
                    for request in requests.take(bytes) {
                        let who = slots.iter().position(|slot| *slot == request.slot).unwrap();
                        let content = u32::from_be_bytes(*request.body.first_chunk().unwrap());
                        prop_assert_eq!((request.number, u64::from(content)), (seen[who], seen[who]));
                        seen[who] += 1;
                        open.push((who, request.number, content));
                        let in_flight = open.iter().filter(|(of, ..)| *of == who).count();
                        prop_assert!(in_flight <= LIMITS.in_flight_max);
                    }
                }
                Step::Answer(which, wants) if !open.is_empty() => {
                    let (who, number, content) = open.swap_remove(which % open.len());
                    let answer = content.to_be_bytes();
                    requests.answer(slots[who], number, wants.then_some(&answer[..]));
                    // A second answer to the same request is none.
                    requests.answer(slots[who], number, Some(b"again"));
                    if wants {
                        wanted[who].push((number, sized(&answer)));
                    }
                }
                Step::Answer(..) => {}
            }
            while let Some(slot) = requests.next_resumed() {
                full[slots.iter().position(|known| *known == slot).unwrap()] = false;
            }
            requests.send_output(&mut |slot, out, overrun| {
                assert!(!overrun);
                got[slots.iter().position(|known| *known == slot).unwrap()].append(out);
                true
            });
        }
        // Everything that is left is answered too: nothing waits for ever.
        for _ in 0..1000 {
            for request in requests.take(usize::MAX) {
                let who = slots.iter().position(|slot| *slot == request.slot).unwrap();
                open.push((who, request.number, u32::from_be_bytes(*request.body.first_chunk().unwrap())));
            }
            let Some((who, number, content)) = open.pop() else { break };
            let answer = content.to_be_bytes();
            requests.answer(slots[who], number, Some(&answer));
            wanted[who].push((number, sized(&answer)));
        }
        requests.send_output(&mut |slot, out, _| {
            got[slots.iter().position(|known| *known == slot).unwrap()].append(out);
            true
        });
        for who in 0..3 {
            wanted[who].sort();
            let expected: Vec<u8> = wanted[who].iter().flat_map(|(_, answer)| answer.clone()).collect();
            prop_assert_eq!(&got[who], &expected);
        }
    }
}
