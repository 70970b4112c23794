//! Locks that are taken while the interpreter is held. Whoever has the lock may be reading a foreign disk, for which
//! it needs the interpreter: so nobody waits for a lock without giving that up.

use std::sync::{LockResult, Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;

pub fn held<T: Send>(mutex: &Mutex<T>) -> LockResult<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
            Err(TryLockError::WouldBlock) => Python::attach(|py| py.detach(|| drop(mutex.lock()))),
        }
    }
}
