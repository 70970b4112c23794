//! The rule of group commit.
//!
//! ```text
//! write ─→ mark 7        the log says how far it has written
//! commit(7)              nobody syncs: I do, for everything written so far; who comes meanwhile waits for the next
//!                        round, which one of them starts as soon as mine is over
//! durable ≥ 7            return
//! ```
//! One `GroupCommit` for each set of files that is synced together. A failed sync poisons it: what the kernel threw away
//! cannot be synced again, so nothing is confirmed until the owner has written it anew (`healed`).

use std::sync::{Condvar, Mutex, MutexGuard};

use super::CommitError;

/// How far a round got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    pub mark: u64,
    /// The last sequence or position at that mark.
    pub last: u64,
}

/// A round that did not get to its end.
#[derive(Debug)]
pub enum RoundError {
    /// The sync failed, for this reason.
    Sync(String),
    /// It failed before anything was synced, and may be tried again.
    Before(CommitError),
}

#[derive(Default)]
struct State {
    durable: Reached,
    syncing: bool,
    poison: Option<String>,
}

#[derive(Default)]
pub struct GroupCommit {
    state: Mutex<State>,
    over: Condvar,
}

impl GroupCommit {
    /// Returns once everything up to `mark` is durable. `round` syncs everything written so far, at least up to `mark`.
    pub fn commit(&self, mark: u64, mut round: impl FnMut() -> Result<Reached, RoundError>) -> Result<(), CommitError> {
        let mut state = self.lock();
        loop {
            if let Some(reason) = &state.poison {
                return Err(CommitError::Poisoned(reason.clone()));
            }
            if state.durable.mark >= mark {
                return Ok(());
            }
            if state.syncing {
                state = self.over.wait(state).expect("commit lock");
                continue;
            }
            state.syncing = true;
            drop(state);
            let outcome = round();
            state = self.lock();
            state.syncing = false;
            self.over.notify_all();
            match outcome {
                Ok(reached) => state.reach(reached),
                Err(RoundError::Sync(reason)) => state.poison = Some(reason),
                Err(RoundError::Before(error)) => return Err(error),
            }
        }
    }

    /// Waits until nobody syncs, and keeps it so until `release`: for changes of the files themselves.
    pub fn hold(&self) -> Result<(), CommitError> {
        let mut state = self.lock();
        while state.syncing {
            state = self.over.wait(state).expect("commit lock");
        }
        if let Some(reason) = &state.poison {
            return Err(CommitError::Poisoned(reason.clone()));
        }
        state.syncing = true;
        Ok(())
    }

    /// The end of `hold`; what became durable meanwhile.
    pub fn release(&self, reached: Option<Reached>) {
        let mut state = self.lock();
        state.syncing = false;
        if let Some(reached) = reached {
            state.reach(reached);
        }
        self.over.notify_all();
    }

    pub fn durable(&self) -> Reached {
        self.lock().durable
    }

    pub fn poison(&self) -> Option<String> {
        self.lock().poison.clone()
    }

    pub fn set_poison(&self, reason: String) {
        self.lock().poison = Some(reason);
        self.over.notify_all();
    }

    /// Everything up to there is durable, whatever was said before: after opening, or when the doubtful part was written
    /// anew.
    pub fn healed(&self, reached: Reached) {
        let mut state = self.lock();
        (state.durable, state.poison) = (reached, None);
        self.over.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("commit lock")
    }
}

impl State {
    fn reach(&mut self, reached: Reached) {
        if reached.mark >= self.durable.mark {
            self.durable = reached;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::disk::DiskError;

    #[test]
    fn those_who_wait_share_a_round() {
        let (group, rounds, written) = (GroupCommit::default(), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mark = written.fetch_add(1, Ordering::SeqCst) + 1;
                        let round = || {
                            rounds.fetch_add(1, Ordering::SeqCst);
                            let mark = written.load(Ordering::SeqCst);
                            std::thread::sleep(Duration::from_micros(200));
                            Ok(Reached { mark, last: mark })
                        };
                        group.commit(mark, round).expect("durable");
                        assert!(group.durable().mark >= mark);
                    }
                });
            }
        });
        assert_eq!(group.durable().mark, 400);
        assert!(rounds.load(Ordering::SeqCst) < 300, "{rounds:?} rounds for 400 commits of 8 threads");
    }

    #[test]
    fn a_failed_sync_stops_everybody_until_it_is_healed() {
        let group = Arc::new(GroupCommit::default());
        let broken = || Err(RoundError::Sync("1.blk: sync failed".into()));
        assert!(matches!(group.commit(3, broken), Err(CommitError::Poisoned(_))));
        let sound = || Ok(Reached { mark: 9, last: 9 });
        assert!(matches!(group.commit(3, sound), Err(CommitError::Poisoned(_))));
        group.healed(Reached { mark: 4, last: 4 });
        group.commit(5, sound).expect("healed");
        assert_eq!(group.durable(), Reached { mark: 9, last: 9 });
    }

    #[test]
    fn what_failed_before_the_sync_is_tried_again_by_the_next() {
        let group = GroupCommit::default();
        let full = || {
            let source = std::io::Error::from_raw_os_error(28);
            Err(RoundError::Before(DiskError { op: "write", path: "j".into(), source }.into()))
        };
        assert!(matches!(group.commit(1, full), Err(CommitError::Disk(_))));
        group.commit(1, || Ok(Reached { mark: 1, last: 1 })).expect("not poisoned");
    }
}
