//! Hostile clients: the wire parser, and an exchange with several connections that all get bent sessions.
//!
//! The bytes of an input also choose the cuts and who is next, so that one saved input repeats everything.

use headrace_core::exchange::runs::{Item, kind};
use headrace_core::exchange::{ConnectFlags, Exchange, Fed, Listener, Permissions, Rule};
use headrace_core::front_end::FrontEnd;
use headrace_core::hash::HashKey;
use headrace_core::requests::{RequestLimits, Requests};
use headrace_core::wire::nats::{self, Limits, Op};
use headrace_core::wire::sized::{self, LENGTH_BYTES};

use crate::mutate::Random;

const LIMITS: Limits = Limits { control_line: 200, payload: 1000 };
const CHUNK_MAX: usize = 300;
const PENDING_MAX: usize = 1 << 20;
const CONNECTIONS: usize = 3;
const STEPS_MAX: usize = 3000;

fn random_of(input: &[u8]) -> Random {
    Random::new(HashKey::from_text(b"cuts").hash(input))
}

/// Whatever comes: no panic, progress, every part inside the input, and the same however it is cut.
pub fn parse_wire(input: &[u8]) {
    let whole = operations(input, &[input.len()]);
    let mut random = random_of(input);
    let mut ends = Vec::new();
    while ends.last().is_none_or(|end| *end < input.len()) {
        let end: usize = ends.last().copied().unwrap_or(0);
        ends.push((end + 1 + random.below(CHUNK_MAX)).min(input.len()));
    }
    assert_eq!(operations(input, &ends), whole, "cuts do not matter");
}

/// What is found when the bytes come in parts that end there.
fn operations(input: &[u8], ends: &[usize]) -> Vec<String> {
    let (mut found, mut at) = (Vec::new(), 0);
    for end in ends {
        loop {
            match nats::next(&input[at..*end], &LIMITS) {
                Ok(None) => {
                    assert!(end - at <= LIMITS.control_line + LIMITS.payload + 4, "what waits is bounded");
                    break;
                }
                Ok(Some((op, taken))) => {
                    assert!(taken > 0 && at + taken <= *end);
                    if let Op::Pub(publish) = &op {
                        let size = publish.headers.map_or(0, <[u8]>::len) + publish.payload.len();
                        assert!(size <= LIMITS.payload && taken > size);
                    }
                    found.push(format!("{op:?}"));
                    at += taken;
                }
                Err(fault) => {
                    found.push(format!("{fault:?}"));
                    return found;
                }
            }
        }
    }
    found
}

/// Several clients send the input, each cut elsewhere, to an exchange with listeners as in a server.
pub fn drive_exchange(input: &[u8]) {
    let mut random = random_of(input);
    let mut exchange = Exchange::new(LIMITS, 40, random.next());
    exchange.pending_max = PENDING_MAX;
    let account = exchange.account("$G");
    let other = exchange.account("other");
    exchange.listen(account, b"s.>", Listener { kind: kind::INGEST, id: 1 });
    exchange.listen(account, b"$JS.API.CONSUMER.MSG.NEXT.>", Listener { kind: kind::PULLS, id: 2 });
    let calls = exchange.listen(account, b"$JS.API.*.*", Listener { kind: kind::CALL, id: 3 });
    exchange.take_acks(account, b"S", b"C", 4);
    exchange.watch(account, b"a.b", None, 5);

    let mut clients: Vec<(u32, usize)> = Vec::new();
    for number in 0..CONNECTIONS {
        clients.push((exchange.open(account, number == 0), 0));
    }
    for step in 0..STEPS_MAX {
        let who = random.below(CONNECTIONS);
        let (slot, at) = clients[who];
        if at >= input.len() && clients.iter().all(|(_, at)| *at >= input.len()) {
            break;
        }
        let end = (at + 1 + random.below(CHUNK_MAX)).min(input.len());
        let mut fed = exchange.feed(slot, &input[at.min(end)..end]);
        clients[who].1 = end;
        while fed == Fed::Asking {
            let bits = random.next();
            let flags = ConnectFlags {
                verbose: bits & 1 != 0,
                pedantic: bits & 2 != 0,
                echo: bits & 4 != 0,
                headers: bits & 8 != 0,
                no_responders: bits & 16 != 0,
            };
            let permissions = (bits & 32 != 0).then(some_permissions);
            exchange.accept(slot, if bits & 0xc0 == 0 { other } else { account }, flags, permissions);
            fed = exchange.feed(slot, b"");
        }
        let held = exchange.unread_bytes(slot);
        assert!(
            held <= 4 * (LIMITS.control_line + LIMITS.payload + CHUNK_MAX),
            "{held} bytes of unread input are held"
        );
        if fed == Fed::Close || random.below(200) == 0 {
            check_output(&mut exchange);
            exchange.close(slot);
            clients[who].0 = exchange.open(account, random.below(2) == 0);
        }
        if random.below(4) == 0 {
            check_output(&mut exchange);
        }
        if random.below(8) == 0 {
            check_runs(&mut exchange);
        }
        if step == 100 {
            exchange.unlisten(calls);
        }
    }
    check_output(&mut exchange);
    check_runs(&mut exchange);
    for (slot, _) in clients {
        exchange.close(slot);
    }
    let left: u64 = exchange.statistics().iter().map(|(_, count, ..)| count).sum();
    assert_eq!(left, 0, "subscriptions without a client");
}

/// The input in pieces as requests with a length in front; all that arrives is answered, in any order.
pub fn drive_requests(input: &[u8]) {
    let mut random = random_of(input);
    let limits =
        RequestLimits { stranger_bytes_max: 64, request_bytes_max: 4096, in_flight_max: 5, pending_max: PENDING_MAX };
    let mut requests = Requests::new(limits);
    let slot = requests.open(random.below(2) == 0);
    let (mut at, mut sent, mut answered) = (0, 0, 0);
    let mut open = Vec::new();
    while at < input.len() {
        let end = (at + 1 + random.below(CHUNK_MAX)).min(input.len());
        let mut fed = requests.feed(slot, &input[at..end]);
        at = end;
        while fed == Fed::Full || random.below(3) == 0 {
            for request in requests.take(1 + random.below(5000)) {
                assert!(request.body.len() <= limits.request_bytes_max);
                open.push(request);
            }
            if open.is_empty() {
                break;
            }
            let request = open.swap_remove(random.below(open.len()));
            answered += LENGTH_BYTES + request.body.len();
            fed = requests.answer(slot, request.number, Some(&request.body));
        }
        requests.send_output(&mut |_, out, _| {
            sent += out.len();
            out.clear();
            true
        });
        assert!(sent <= answered);
        if fed == Fed::Close {
            break;
        }
    }
    requests.close(slot);
    assert!(!requests.has_arrived() && !requests.has_output());
}

fn some_permissions() -> Permissions {
    let rules = |filter: &[u8]| vec![Rule { filter: filter.into(), queue: None }];
    let mut permissions = Permissions::default();
    permissions.publish_deny = rules(b"a.secret.>");
    permissions.subscribe_deny = rules(b"*.secret");
    permissions
}

fn check_runs(exchange: &mut Exchange) {
    for item in exchange.drain() {
        match item {
            Item::Publish(id, run) => assert!(id == 1 && run.batch.len() == run.replies.len()),
            Item::Pulls(id, run) => {
                let replies: usize = (0..run.groups.len()).map(|group| run.replies_of(group).count()).sum();
                assert!(id == 2 && replies == run.replies.len());
            }
            Item::Call(id, call) => assert!(id == 3 && call.subject.starts_with(b"$JS.API.")),
            Item::Acks(id, run) => assert!(id == 4 && run.acks.iter().all(|ack| run.body(ack).len() <= LIMITS.payload)),
            Item::Interest(id, _) => assert_eq!(id, 5),
        }
    }
}

/// What goes out is whole and well formed, whatever came in.
fn check_output(exchange: &mut Exchange) {
    for (_, out) in exchange.take_output() {
        assert!(out.len() <= PENDING_MAX + CHUNK_MAX * 60);
        let mut rest = &out[..];
        while !rest.is_empty() {
            let end = rest.windows(2).position(|pair| pair == b"\r\n").expect("lines end in CRLF");
            let (line, after) = (&rest[..end], &rest[end + 2..]);
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            let size = |at: usize| -> usize {
                let text = fields.get(at).and_then(|field| std::str::from_utf8(field).ok());
                text.and_then(|text| text.parse().ok()).expect("a size")
            };
            let payload = match fields[0] {
                b"PONG" | b"+OK" => 0,
                b"-ERR" => {
                    assert!(line.ends_with(b"'") && fields.len() > 1 && fields[1].starts_with(b"'"));
                    0
                }
                b"MSG" => {
                    assert!((4..=5).contains(&fields.len()));
                    size(fields.len() - 1) + 2
                }
                b"HMSG" => {
                    assert!((5..=6).contains(&fields.len()) && size(fields.len() - 2) <= size(fields.len() - 1));
                    size(fields.len() - 1) + 2
                }
                _ => panic!("sent {:?}", String::from_utf8_lossy(line)),
            };
            assert!(payload == 0 || &after[payload - 2..payload] == b"\r\n");
            rest = &after[payload..];
        }
    }
}

/// Sessions of well-behaved clients.
pub fn sessions() -> Vec<Vec<u8>> {
    let greeting = "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nPING\r\nPONG\r\n";
    let mixed = "SUB a.* 1\r\nSUB a.> q 2\r\nSUB > q 3\r\nSUB _INBOX.x.* 4\r\nPUB a.b 5\r\nhello\r\nUNSUB 1 2\r\n\
                 PUB a.secret _INBOX.x.1 0\r\n\r\nHPUB a.b _INBOX.x.2 12 14\r\nNATS/1.0\r\n\r\nhi\r\nUNSUB 2\r\nPUB b c 1\r\nx\r\n";
    let streams = "PUB s.one _INBOX.x.3 4\r\ndata\r\nHPUB s.two _INBOX.x.4 31 31\r\nNATS/1.0\r\nNats-Msg-Id: a\r\n\r\n\r\n\r\n\
                   PUB $JS.API.CONSUMER.MSG.NEXT.S.C _INBOX.x.5 1\r\n5\r\nPUB $JS.API.STREAM.NAMES _INBOX.x.6 0\r\n\r\n\
                   PUB $JS.ACK.S.C.1.2.3.4.5 4\r\n+ACK\r\nPUB $JS.ACK._.x.S.C.1.2.3.4.5 _INBOX.x.7 4\r\n-NAK\r\n";
    let odd = "sub\tb..c 9\r\nSUB a.b  9\nPUB\ta..b\t0\r\n\r\n+OK\r\nINFO {}\r\nPUB a.* 2\r\n\r\n\r\nSUB \u{ff}\u{fe}.\u{0} 7\r\nUNSUB 99\r\n";
    let mut many = String::from(greeting);
    for number in 0..30 {
        many.push_str(&format!(
            "SUB a.{}.> g{} n{number}\r\nPUB a.{}.x 3\r\nabc\r\n",
            number % 7,
            number % 3,
            number % 7
        ));
    }
    let together = [greeting, mixed, streams, odd].concat();
    let texts = [greeting, mixed, streams, odd, &many, &together];
    let mut sessions: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    let mut requests = Vec::new();
    for length in [0, 1, 40, 60, 300, 4096, 7] {
        sized::write(&mut requests, &vec![b'r'; length]);
    }
    sessions.push(requests);
    sessions
}
