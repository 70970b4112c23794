//! Bytes between a socket and an intake. The socket stays the caller's; nothing here waits longer than the caller says.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::net::{SendFlags, send};

use super::intake::{Intake, IntakeError};

const READ_BYTES: usize = 512 << 10;

#[derive(Debug, thiserror::Error)]
pub enum PumpError {
    #[error("the server closed the connection")]
    Closed,
    #[error("nothing was sent or received for too long")]
    TimedOut,
    #[error("{0}")]
    Socket(#[from] Errno),
    #[error("{0}")]
    Protocol(#[from] IntakeError),
}

/// Receives until there is an event, a batch of this size, or the floor of the acks has moved to `floor`.
/// False when the time was over first.
pub fn receive(
    fd: BorrowedFd<'_>,
    intake: &mut Intake,
    messages: usize,
    bytes: usize,
    floor: u64,
    timeout: Duration,
) -> Result<bool, PumpError> {
    let until = Instant::now() + timeout;
    loop {
        if intake.ready(messages, bytes, floor) {
            return Ok(true);
        }
        if !wait(fd, PollFlags::IN, until)?.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return Ok(false);
        }
        take(fd, intake)?;
    }
}

/// Sends all of it and takes what comes meanwhile: a server that cannot write stops reading.
pub fn send_all(fd: BorrowedFd<'_>, intake: &mut Intake, bytes: &[u8], timeout: Duration) -> Result<(), PumpError> {
    let mut at = 0;
    let mut until = Instant::now() + timeout;
    while at < bytes.len() {
        match send(fd, &bytes[at..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => {
                at += sent;
                until = Instant::now() + timeout;
                continue;
            }
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = wait(fd, PollFlags::IN | PollFlags::OUT, until)?;
        if ready.is_empty() {
            return Err(PumpError::TimedOut);
        }
        if ready.contains(PollFlags::IN) {
            take(fd, intake)?;
        }
    }
    Ok(())
}

fn take(fd: BorrowedFd<'_>, intake: &mut Intake) -> Result<(), PumpError> {
    intake.buffer.reserve(READ_BYTES);
    match read(fd, spare_capacity(&mut intake.buffer)) {
        Ok(0) => Err(PumpError::Closed),
        Ok(_) => Ok(intake.parse()?),
        Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(Errno::CONNRESET) => Err(PumpError::Closed),
        Err(error) => Err(error.into()),
    }
}

fn wait(fd: BorrowedFd<'_>, flags: PollFlags, until: Instant) -> Result<PollFlags, PumpError> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut polled = [PollFd::from_borrowed_fd(fd, flags)];
        match poll(&mut polled, Some(&time)) {
            Ok(_) => return Ok(polled[0].revents()),
            Err(Errno::INTR) if !left.is_zero() => {}
            Err(Errno::INTR) => return Ok(PollFlags::empty()),
            Err(error) => return Err(error.into()),
        }
    }
}
