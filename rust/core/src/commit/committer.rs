//! Commits off the caller's thread, without the interpreter: groups of targets, one group after the other.
//!
//! ```text
//! submit(7, [(log, mark), (journal, mark)])  →  thread: commit each  →  finished: (7, errors)  →  wake
//! ```
//! The targets of a group are committed in their order; one that fails keeps none of the others from being tried.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{CommitError, Commits};

struct Submitted {
    number: u64,
    targets: Vec<(Arc<dyn Commits>, u64)>,
}

/// A group whose targets are durable, but for those that failed.
pub struct Finished {
    pub number: u64,
    /// (place among the targets, why).
    pub errors: Vec<(usize, CommitError)>,
}

pub struct Committer {
    groups: Option<Sender<Submitted>>,
    finished: Arc<Mutex<Vec<Finished>>>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// `wake` is called on the thread when `take` has something.
    pub fn new(wake: impl Fn() + Send + 'static) -> std::io::Result<Committer> {
        let (groups, submitted) = channel();
        let finished = Arc::new(Mutex::new(Vec::new()));
        let results = finished.clone();
        let thread = std::thread::Builder::new()
            .name("headrace-commit".into())
            .spawn(move || run(&submitted, &results, &wake))?;
        Ok(Committer { groups: Some(groups), finished, thread: Some(thread) })
    }

    /// False after `close`.
    pub fn submit(&self, number: u64, targets: Vec<(Arc<dyn Commits>, u64)>) -> bool {
        self.groups.as_ref().is_some_and(|groups| groups.send(Submitted { number, targets }).is_ok())
    }

    /// What was finished since the last call, in order.
    pub fn take(&self) -> Vec<Finished> {
        std::mem::take(&mut *self.finished.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Finishes what was submitted and ends the thread.
    pub fn close(&mut self) {
        self.groups = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.close();
    }
}

fn run(submitted: &Receiver<Submitted>, finished: &Mutex<Vec<Finished>>, wake: &dyn Fn()) {
    let mut wait = Wait::default();
    while let Some(group) = wait.next(submitted) {
        let targets = group.targets.iter().enumerate();
        let errors = targets.filter_map(|(at, (target, mark))| Some((at, commit(&**target, *mark).err()?))).collect();
        let done = Finished { number: group.number, errors };
        finished.lock().unwrap_or_else(PoisonError::into_inner).push(done);
        wake();
    }
}

/// A client with one durable publish in flight sends the next some tens of microseconds after our answer; being woken for it
/// takes nearly as long. So the thread looks busily for a moment, as long as that pays: after some misses it sleeps at once
/// until a group comes soon after another.
#[derive(Default)]
struct Wait {
    misses: u32,
}

const LOOK: Duration = Duration::from_micros(120);
const MISSES_MAX: u32 = 4;

impl Wait {
    fn next(&mut self, submitted: &Receiver<Submitted>) -> Option<Submitted> {
        let began = Instant::now();
        while self.misses < MISSES_MAX {
            match submitted.try_recv() {
                Ok(group) => {
                    self.misses = 0;
                    return Some(group);
                }
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if began.elapsed() >= LOOK => self.misses += 1,
                Err(TryRecvError::Empty) => {
                    std::thread::yield_now();
                    continue;
                }
            }
            break;
        }
        let group = submitted.recv().ok()?;
        if began.elapsed() < 2 * LOOK {
            self.misses = 0;
        }
        Some(group)
    }
}

/// A fault of ours in one target must not end the thread that all others wait for.
fn commit(target: &dyn Commits, mark: u64) -> Result<(), CommitError> {
    let outcome = catch_unwind(AssertUnwindSafe(|| target.commit_to(mark)));
    outcome.unwrap_or_else(|_| Err(CommitError::Poisoned("a fault in headrace itself stopped the commit".into())))
}
