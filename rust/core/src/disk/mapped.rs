//! A file's bytes in memory: mapped on a real disk, copied on the others.

use std::ops::Deref;

use super::{DiskResult, failed};

/// Read-only. The file must not be cut while this lives: reading beyond its new end would end the process. So only
/// files that nobody changes any more are mapped.
#[derive(Default)]
pub enum Mapped {
    #[default]
    Empty,
    Bytes(Vec<u8>),
    Map(Map),
}

pub struct Map {
    start: *mut std::ffi::c_void,
    len: usize,
}

// Safety: the mapping is private to this value, read-only, and lives until it is dropped.
unsafe impl Send for Map {}
// Safety: as above; nobody writes through it.
unsafe impl Sync for Map {}

impl Drop for Map {
    fn drop(&mut self) {
        // Safety: `start` and `len` are what mmap gave. A failure leaves the mapping, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.start, self.len) };
    }
}

impl Mapped {
    pub(super) fn of_file(file: &std::fs::File, path: &str) -> DiskResult<Mapped> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let len = file.metadata().map_err(failed("stat", path))?.len() as usize;
        if len == 0 {
            return Ok(Mapped::Empty);
        }
        // Safety: a new mapping at an address of the kernel's choice; nothing of ours is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        let start = start.map_err(|errno| failed("map", path)(errno.into()))?;
        Ok(Mapped::Map(Map { start, len }))
    }
}

impl From<Vec<u8>> for Mapped {
    fn from(bytes: Vec<u8>) -> Mapped {
        Mapped::Bytes(bytes)
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Mapped::Empty => &[],
            Mapped::Bytes(bytes) => bytes,
            // Safety: the mapping has `len` readable bytes as long as `self` lives (see the type's own words).
            Mapped::Map(map) => unsafe { std::slice::from_raw_parts(map.start.cast(), map.len) },
        }
    }
}
