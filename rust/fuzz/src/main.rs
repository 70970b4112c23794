//! Hostile bytes for everything that reads files or sockets: no input may panic, hang, or make a reader serve what nobody wrote.
//!
//! ```text
//! HEADRACE_FUZZ_SECONDS=60   how long (default 60)
//! HEADRACE_FUZZ_SEED=…       repeat a run; the seed is printed
//! headrace-fuzz FILE         one saved input again, through every target
//! ```
//! Seeds are blocks, guards, indexes and archives that the product's own encoders write, and sessions of clients; a
//! small mutator bends them.
//! An input that fails is saved in the working directory, and the exit code is 1.

mod kafka;
mod mutate;
mod protocol;
mod rabbitmq;
mod rocketmq;
mod streaming;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mutate::Random;

/// One input may take this long; more is a way to stop a server.
const INPUT_SECONDS_MAX: f64 = 5.0;

fn main() -> ExitCode {
    if let Some(file) = std::env::args().nth(1) {
        let input = std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        for target in targets::ALL {
            println!("{}", target.name);
            (target.run)(&input);
        }
        return ExitCode::SUCCESS;
    }
    let seconds = number("HEADRACE_FUZZ_SECONDS").unwrap_or(60);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
    let seed = number("HEADRACE_FUZZ_SEED").unwrap_or(now);
    println!("headrace-fuzz: seed {seed}, {seconds} s (repeat with HEADRACE_FUZZ_SEED={seed})");

    let mut random = Random::new(seed);
    let corpus = targets::corpus();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut inputs = 0u64;
    while Instant::now() < end {
        let input = mutate::mutated(&mut random, &corpus);
        for target in targets::ALL {
            let began = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
            let took = began.elapsed().as_secs_f64();
            if outcome.is_err() || took > INPUT_SECONDS_MAX {
                let path = format!("fuzz-{}-{seed}-{inputs}.bin", target.name);
                let saved = std::fs::write(&path, &input).map_or_else(|error| error.to_string(), |()| path);
                eprintln!("headrace-fuzz: {} failed after {took:.1} s; input: {saved}", target.name);
                return ExitCode::FAILURE;
            }
        }
        inputs += 1;
    }
    println!("headrace-fuzz: {inputs} inputs through {} targets, no panic", targets::ALL.len());
    ExitCode::SUCCESS
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
