//! Large buffers. Going over tens of megabytes record by record, most of the time is spent on finding pages:
//! 4 KiB ones are too many for the processor's table of them. Asking for large pages halves the time of a scan.
//!
//! A few that were given back wait for the next one who needs such a buffer: blocks that are read one after the other
//! by changing threads would otherwise each be put into memory that the kernel must clear first (the first pass of a
//! push consumer over cold blocks: 0.34 us a message instead of 0.42).

use std::sync::{Arc, Mutex, PoisonError};

/// What is smaller is not worth the trouble.
const LARGE: usize = 4 << 20;
const KEPT_MAX: usize = 3;
const KEPT_BYTES_MAX: usize = 32 << 20;

static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

fn kept() -> std::sync::MutexGuard<'static, Vec<Vec<u8>>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An empty buffer that will be filled up to `capacity`.
pub fn with_capacity(capacity: usize) -> Vec<u8> {
    if capacity >= LARGE {
        let mut kept = kept();
        // Not one that is mostly too large: what it has too much would be lost while it is in use.
        let fits = |buffer: &Vec<u8>| (capacity..=capacity + capacity / 4).contains(&buffer.capacity());
        if let Some(at) = kept.iter().position(fits) {
            return kept.swap_remove(at);
        }
    }
    #[allow(unused_mut)] // only where large pages can be asked for
    let mut buffer: Vec<u8> = Vec::with_capacity(capacity);
    #[cfg(target_os = "linux")]
    large_pages(&mut buffer);
    buffer
}

/// The same for one that several may use: the last of them gives it back.
pub fn give_back_shared(buffer: &mut Arc<Vec<u8>>) {
    if let Some(only) = Arc::get_mut(buffer) {
        give_back(std::mem::take(only));
    }
}

/// A buffer that its user needs no more.
pub fn give_back(mut buffer: Vec<u8>) {
    if buffer.capacity() < LARGE {
        return;
    }
    let mut kept = kept();
    let others: usize = kept.iter().map(Vec::capacity).sum();
    if kept.len() < KEPT_MAX && others + buffer.capacity() <= KEPT_BYTES_MAX {
        buffer.clear();
        kept.push(buffer);
    }
}

/// Nobody has needed one for a while: the memory goes back.
pub fn release() {
    kept().clear();
}

#[cfg(target_os = "linux")]
fn large_pages(buffer: &mut Vec<u8>) {
    use rustix::mm::{Advice, madvise};

    const LARGE_PAGE: usize = 2 << 20;
    let (start, capacity) = (buffer.as_mut_ptr() as usize, buffer.capacity());
    let (first, end) = (start.next_multiple_of(LARGE_PAGE), (start + capacity) / LARGE_PAGE * LARGE_PAGE);
    if capacity >= LARGE && first < end {
        // SAFETY: the range lies inside memory that this vector owns; the advice changes no byte of it. A kernel that
        // knows no large pages says no, and nothing is lost.
        let _ = unsafe { madvise(buffer.as_mut_ptr().add(first - start).cast(), end - first, Advice::LinuxHugepage) };
    }
}
