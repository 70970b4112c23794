//! `headrace-load`: drives a NATS server with plain protocol and prints one line of JSON.
//!
//! ```text
//!   headrace-load pub   ADDR SUBJECT --conns 4 --window 1000 --msgs 1000000 --size 128 [--ids] [--rate N]
//!   headrace-load fetch ADDR STREAM CONSUMER --conns 1 --batch 500 --msgs 1000000 [--no-ack]
//!   headrace-load push  ADDR SUBJECT --msgs 1000000 --start SUBJECT:PAYLOAD…   (see push.rs)
//!   headrace-load core  ADDR SUBJECT --conns 1 --subs 4 --msgs 1000000 --size 128
//!   headrace-load req   ADDR SUBJECT --msgs 10000 --size 128                   request and reply over two connections
//! ```
//! It trusts nobody: every pub-ack must name the next sequences and no error, every fetched message must be the
//! next one of its stream, and what does not come within the time limit ends the run with exit code 1.

mod args;
mod link;
mod modes;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match args::Args::from_env() {
        Ok(args) => args,
        Err(problem) => {
            eprintln!("headrace-load: {problem}");
            return ExitCode::from(2);
        }
    };
    match modes::run(&args) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("headrace-load: {problem}");
            ExitCode::FAILURE
        }
    }
}
