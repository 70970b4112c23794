//! The workloads. Each is one loop over all its connections: write what the window allows, wait, read, count.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::args::Args;
use crate::link::{Link, number};

const SILENCE_MAX: Duration = Duration::from_secs(30);

pub fn run(args: &Args) -> Result<String, String> {
    match args.mode.as_str() {
        "pub" => publish(args),
        "fetch" => fetch(args),
        "push" => push(args),
        "core" => core(args),
        "req" => request(args),
        other => Err(format!("{other}: not a mode; there are pub, fetch, push, core, req")),
    }
}

/// Waits until one of the links can be read (or written, where something waits to be).
fn wait(links: &[Link], limit: Duration) -> Result<Vec<bool>, String> {
    let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(links.len());
    for link in links {
        let flags = if link.waiting() > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        polled.push(PollFd::from_borrowed_fd(link.stream.as_fd(), flags));
    }
    let limit = rustix::event::Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    let count = poll(&mut polled, Some(&limit)).map_err(|error| error.to_string())?;
    let ready = polled.iter().map(|each| !each.revents().is_empty()).collect();
    if count == 0 { Ok(vec![false; links.len()]) } else { Ok(ready) }
}

fn open(address: &str, count: u64) -> Result<Vec<Link>, String> {
    (0..count).map(|_| Link::open(address)).collect()
}

fn report(name: &str, msgs: u64, took: Duration, latencies: &mut [u64]) -> String {
    latencies.sort_unstable();
    let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or(0);
    let seconds = took.as_secs_f64();
    format!(
        "{{\"mode\":\"{name}\",\"msgs\":{msgs},\"seconds\":{seconds:.6},\"rate\":{:.1},\"p50_us\":{:.1},\"p99_us\":{:.1}}}",
        msgs as f64 / seconds,
        at(0.5) as f64 / 1e3,
        at(0.99) as f64 / 1e3
    )
}

struct Publisher {
    sent: u64,
    acked: u64,
    times: std::collections::VecDeque<Instant>,
}

fn publish(args: &Args) -> Result<String, String> {
    let (address, subject) = (args.word(0, "an address")?, args.word(1, "a subject")?);
    let conns = args.number("conns", 1)?;
    let window = args.number("window", 1000)?;
    let total = args.number("msgs", 100_000)? / conns * conns;
    let size = args.number("size", 128)? as usize;
    let (with_ids, rate) = (args.flag("ids"), args.number("rate", 0)?);
    let salt = args.text("salt").unwrap_or("x").to_owned();
    let measured = window == 1 || rate > 0;
    let each = total / conns;
    let payload = vec![b'x'; size];
    let mut links = open(address, conns)?;
    let mut states: Vec<Publisher> = Vec::new();
    for (at, link) in links.iter_mut().enumerate() {
        link.out.extend_from_slice(format!("SUB _INBOX.load{at}.* 1\r\n").as_bytes());
        states.push(Publisher { sent: 0, acked: 0, times: Default::default() });
    }
    let mut latencies = Vec::new();
    let (start, mut last) = (Instant::now(), Instant::now());
    let mut done = 0;
    while done < total {
        for (at, (link, state)) in links.iter_mut().zip(&mut states).enumerate() {
            let due =
                if rate > 0 { (start.elapsed().as_secs_f64() * rate as f64 / conns as f64) as u64 + 1 } else { each };
            let until = each.min(state.acked + window).min(due);
            while state.sent < until && link.waiting() < 1 << 20 {
                let id = state.sent;
                if with_ids {
                    let headers = format!("NATS/1.0\r\nNats-Msg-Id: {salt}-{at}-{id}\r\n\r\n");
                    let (h, t) = (headers.len(), headers.len() + size);
                    link.out.extend_from_slice(
                        format!("HPUB {subject} _INBOX.load{at}.{id} {h} {t}\r\n{headers}").as_bytes(),
                    );
                } else {
                    link.out.extend_from_slice(b"PUB ");
                    link.out.extend_from_slice(subject.as_bytes());
                    link.out.extend_from_slice(format!(" _INBOX.load{at}.{id} {size}\r\n").as_bytes());
                }
                link.out.extend_from_slice(&payload);
                link.out.extend_from_slice(b"\r\n");
                state.sent += 1;
                if measured {
                    state.times.push_back(Instant::now());
                }
            }
            link.flush()?;
        }
        let limit = if rate > 0 { Duration::from_micros(200) } else { SILENCE_MAX };
        let ready = wait(&links, limit)?;
        for (at, (link, state)) in links.iter_mut().zip(&mut states).enumerate() {
            if !ready[at] || !link.fill()? {
                continue;
            }
            last = Instant::now();
            while let Some(frame) = link.next()? {
                let stored = memchr::memmem::find(frame.payload, b"\"seq\":").is_some();
                if !stored || frame.payload.starts_with(b"{\"error\"") || !frame.headers.is_empty() {
                    let text = String::from_utf8_lossy(frame.payload).into_owned();
                    return Err(format!("not an ack: {text} {}", String::from_utf8_lossy(frame.headers)));
                }
                state.acked += 1;
                done += 1;
                if let Some(time) = state.times.pop_front() {
                    latencies.push(time.elapsed().as_nanos() as u64);
                }
            }
        }
        if last.elapsed() > SILENCE_MAX {
            return Err(format!("silence after {done} of {total} acks"));
        }
    }
    Ok(report("pub", done, start.elapsed(), &mut latencies))
}

fn fetch(args: &Args) -> Result<String, String> {
    let (address, stream, consumer) =
        (args.word(0, "an address")?, args.word(1, "a stream")?, args.word(2, "a consumer")?);
    let (total, batch) = (args.number("msgs", 100_000)?, args.number("batch", 500)?);
    let conns = args.number("conns", 1)?;
    let depth = args.number("depth", if batch == 1 { 1 } else { 2 })?;
    let (with_acks, in_order) = (!args.flag("no-ack"), conns == 1);
    let mut links = open(address, conns)?;
    let mut requested: Vec<u64> = vec![0; links.len()];
    for (at, link) in links.iter_mut().enumerate() {
        link.out.extend_from_slice(format!("SUB _INBOX.fetch{at}.* 1\r\n").as_bytes());
    }
    let mut pulls = 0u64;
    let mut latencies = Vec::new();
    let mut begun = Instant::now();
    let (start, mut last) = (Instant::now(), Instant::now());
    let (mut done, mut next) = (0u64, 0u64);
    while done < total {
        for (at, link) in links.iter_mut().enumerate() {
            while requested[at] + batch <= batch * depth && done + requested.iter().sum::<u64>() < total {
                pulls += 1;
                let body = if batch == 1 { String::new() } else { format!("{{\"batch\":{batch}}}") };
                let request = format!(
                    "PUB $JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer} _INBOX.fetch{at}.{pulls} {}\r\n{body}\r\n",
                    body.len()
                );
                link.out.extend_from_slice(request.as_bytes());
                requested[at] += batch;
                begun = Instant::now();
            }
            link.flush()?;
        }
        let ready = wait(&links, SILENCE_MAX)?;
        for at in 0..links.len() {
            if !ready[at] || !links[at].fill()? {
                continue;
            }
            last = Instant::now();
            let mut acks: Vec<u8> = Vec::new();
            let link = &mut links[at];
            while let Some(frame) = link.next()? {
                if frame.reply.is_empty() {
                    return Err(format!("a status: {}", String::from_utf8_lossy(frame.headers)));
                }
                let sequence = frame.reply.split(|byte| *byte == b'.').nth(5).map_or(0, number);
                if in_order && sequence != next + 1 {
                    return Err(format!("message {sequence} after {next}"));
                }
                next = sequence;
                done += 1;
                requested[at] = requested[at].saturating_sub(1);
                if batch == 1 && conns == 1 {
                    latencies.push(begun.elapsed().as_nanos() as u64);
                }
                if with_acks {
                    acks.extend_from_slice(b"PUB ");
                    acks.extend_from_slice(frame.reply);
                    acks.extend_from_slice(b" 4\r\n+ACK\r\n");
                }
            }
            link.out.extend_from_slice(&acks);
            link.flush()?;
        }
        if last.elapsed() > SILENCE_MAX {
            return Err(format!("silence after {done} of {total} messages"));
        }
    }
    // The last acks must have left before the clock stops.
    for link in &mut links {
        link.out.extend_from_slice(b"PING\r\n");
        while link.waiting() > 0 {
            link.flush()?;
        }
    }
    Ok(report("fetch", done, start.elapsed(), &mut latencies))
}

/// Subscribes, sends `--request subject --body text` (a consumer create), counts what is pushed.
fn push(args: &Args) -> Result<String, String> {
    let (address, subject) = (args.word(0, "an address")?, args.word(1, "a deliver subject")?);
    let total = args.number("msgs", 100_000)?;
    let request = args.text("request").ok_or("push needs --request")?;
    let body = args.text("body").ok_or("push needs --body")?;
    let mut links = open(address, 1)?;
    let text = format!("SUB {subject} 1\r\nPUB {request} _none {}\r\n{body}\r\n", body.len());
    links[0].out.extend_from_slice(text.as_bytes());
    let (start, mut last, mut done) = (Instant::now(), Instant::now(), 0u64);
    while done < total {
        links[0].flush()?;
        wait(&links, SILENCE_MAX)?;
        if links[0].fill()? {
            last = Instant::now();
        }
        let mut flow = Vec::new();
        while let Some(frame) = links[0].next()? {
            if frame.headers.starts_with(b"NATS/1.0 100") {
                if !frame.reply.is_empty() {
                    flow.extend_from_slice(b"PUB ");
                    flow.extend_from_slice(frame.reply);
                    flow.extend_from_slice(b" 0\r\n\r\n");
                }
                continue;
            }
            let sequence = frame.reply.split(|byte| *byte == b'.').nth(5).map_or(0, number);
            if sequence != done + 1 {
                return Err(format!("message {sequence} after {done}"));
            }
            done += 1;
        }
        links[0].out.extend_from_slice(&flow);
        if last.elapsed() > SILENCE_MAX {
            return Err(format!("silence after {done} of {total} messages"));
        }
    }
    Ok(report("push", done, start.elapsed(), &mut []))
}

fn core(args: &Args) -> Result<String, String> {
    let (address, subject) = (args.word(0, "an address")?, args.word(1, "a subject")?);
    let (total, size, subs) =
        (args.number("msgs", 100_000)?, args.number("size", 128)? as usize, args.number("subs", 1)?);
    let mut readers = open(address, subs)?;
    for link in &mut readers {
        link.out.extend_from_slice(format!("SUB {subject} 1\r\nPING\r\n").as_bytes());
        link.flush()?;
    }
    std::thread::sleep(Duration::from_millis(100));
    let writer_address = address.to_owned();
    let line = format!("PUB {subject} {size}\r\n{}\r\n", "x".repeat(size)).into_bytes();
    let start = Instant::now();
    let writer = std::thread::spawn(move || -> Result<(), String> {
        let mut links = open(&writer_address, 1)?;
        let mut sent = 0;
        while sent < total || links[0].waiting() > 0 {
            while sent < total && links[0].waiting() < 1 << 18 {
                links[0].out.extend_from_slice(&line);
                sent += 1;
            }
            links[0].flush()?;
            if links[0].waiting() > 0 {
                wait(&links, SILENCE_MAX)?;
            }
            if links[0].fill()? {
                while links[0].next()?.is_some() {}
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        Ok(())
    });
    let (mut last, mut done) = (Instant::now(), 0u64);
    while done < total * subs {
        let ready = wait(&readers, SILENCE_MAX)?;
        for (link, ready) in readers.iter_mut().zip(ready) {
            if !ready || !link.fill()? {
                continue;
            }
            last = Instant::now();
            while link.next()?.is_some() {
                done += 1;
            }
            link.flush()?;
        }
        if last.elapsed() > SILENCE_MAX {
            return Err(format!("silence after {done} of {} messages", total * subs));
        }
    }
    let took = start.elapsed();
    writer.join().map_err(|_| "the writer ended badly")??;
    Ok(report("core", done, took, &mut []))
}

/// One requests, another answers: the round trip through the server, one in flight.
fn request(args: &Args) -> Result<String, String> {
    let (address, subject) = (args.word(0, "an address")?, args.word(1, "a subject")?);
    let (total, size) = (args.number("msgs", 10_000)?, args.number("size", 128)? as usize);
    let mut links = open(address, 2)?;
    links[0].out.extend_from_slice(b"SUB _INBOX.req.* 1\r\n");
    links[1].out.extend_from_slice(format!("SUB {subject} 1\r\n").as_bytes());
    links[1].flush()?;
    std::thread::sleep(Duration::from_millis(100));
    let payload = "x".repeat(size);
    let mut latencies = Vec::with_capacity(total as usize);
    let (start, mut done, mut sent) = (Instant::now(), 0u64, 0u64);
    let mut begun = Instant::now();
    while done < total {
        if sent == done {
            begun = Instant::now();
            links[0]
                .out
                .extend_from_slice(format!("PUB {subject} _INBOX.req.{sent} {size}\r\n{payload}\r\n").as_bytes());
            sent += 1;
        }
        links[0].flush()?;
        links[1].flush()?;
        let ready = wait(&links, SILENCE_MAX)?;
        if !ready.iter().any(|each| *each) {
            return Err(format!("silence after {done} of {total}"));
        }
        if ready[1] && links[1].fill()? {
            let mut answers = Vec::new();
            while let Some(frame) = links[1].next()? {
                answers.extend_from_slice(b"PUB ");
                answers.extend_from_slice(frame.reply);
                answers.extend_from_slice(b" 2\r\nok\r\n");
            }
            links[1].out.extend_from_slice(&answers);
            links[1].flush()?;
        }
        if ready[0] && links[0].fill()? {
            while links[0].next()?.is_some() {
                done += 1;
                latencies.push(begun.elapsed().as_nanos() as u64);
            }
        }
    }
    Ok(report("req", done, start.elapsed(), &mut latencies))
}
