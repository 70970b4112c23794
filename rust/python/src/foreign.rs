//! A read-only disk over a Python object: object stores and other file systems that Python packages open.
//!
//! ```text
//! place.entry(path) → (is_dir, bytes, time_ns) or None      place.list(path) → [(name, is_dir, bytes)]
//! place.open(path)  → (file, bytes)                          file.read_at(count, offset) → bytes
//! ```
//!
//! A request takes milliseconds: whole files and large pieces are asked for at once, small pieces are cut out of
//! blocks, of which the disk keeps the last few. No lock is held during a call into Python.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};

use headrace_core::disk::{DirEntry, Disk, DiskError, DiskFile, DiskLock, DiskResult, LockHolder, OpenMode, parent};
use pyo3::exceptions::{PyFileNotFoundError, PyNotADirectoryError, PyPermissionError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const BLOCK_BYTES: u64 = 4 << 20;
const BLOCKS_MAX: usize = 16;

/// (path, number of the block, its bytes), the one used last at the end.
type Blocks = Vec<(Arc<str>, u64, Arc<Vec<u8>>)>;

pub struct ForeignDisk {
    place: Py<PyAny>,
    blocks: Arc<Mutex<Blocks>>,
}

struct ForeignFile {
    path: Arc<str>,
    len: u64,
    file: Py<PyAny>,
    blocks: Arc<Mutex<Blocks>>,
}

fn failed(op: &'static str, path: &str, source: io::Error) -> DiskError {
    DiskError { op, path: path.to_owned(), source }
}

fn refused<T>(op: &'static str, path: &str) -> DiskResult<T> {
    let text = "remote places are only read; to write, copy the directory to a local disk";
    Err(failed(op, path, io::Error::new(ErrorKind::ReadOnlyFilesystem, text)))
}

/// One call into Python; whatever it raises becomes an error that names the path, in one line.
fn ask<T>(op: &'static str, path: &str, call: impl FnOnce(Python<'_>) -> PyResult<T>) -> DiskResult<T> {
    Python::attach(|py| {
        call(py).map_err(|error| {
            let kind = if error.is_instance_of::<PyFileNotFoundError>(py) {
                ErrorKind::NotFound
            } else if error.is_instance_of::<PyNotADirectoryError>(py) {
                ErrorKind::NotADirectory
            } else if error.is_instance_of::<PyPermissionError>(py) {
                ErrorKind::PermissionDenied
            } else {
                ErrorKind::Other
            };
            let text = error.value(py).to_string();
            let text = if text.is_empty() { error.to_string() } else { text };
            failed(op, path, io::Error::new(kind, text.split_whitespace().collect::<Vec<_>>().join(" ")))
        })
    })
}

impl ForeignDisk {
    pub fn new(place: Py<PyAny>) -> Self {
        ForeignDisk { place, blocks: Arc::default() }
    }

    fn about(&self, path: &str) -> DiskResult<Option<(bool, u64, i64)>> {
        ask("stat", path, |py| self.place.call_method1(py, "entry", (path,))?.extract(py))
    }
}

impl ForeignFile {
    fn fetch(&self, offset: u64, len: u64) -> DiskResult<Vec<u8>> {
        let bytes = ask("read", &self.path, |py| {
            let read = self.file.call_method1(py, "read_at", (len, offset))?;
            Ok(read.bind(py).cast::<PyBytes>()?.as_bytes().to_vec())
        })?;
        if bytes.len() as u64 == len {
            return Ok(bytes);
        }
        let text = format!("{} bytes came instead of {len} at {offset}: the file was changed", bytes.len());
        Err(failed("read", &self.path, io::Error::new(ErrorKind::UnexpectedEof, text)))
    }

    fn block(&self, number: u64) -> DiskResult<Arc<Vec<u8>>> {
        let hold = || self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = hold();
        if let Some(at) = held.iter().position(|(path, other, _)| *other == number && **path == *self.path) {
            let found = held.remove(at);
            held.push(found);
            return Ok(held[held.len() - 1].2.clone());
        }
        drop(held);
        let start = number * BLOCK_BYTES;
        let made = Arc::new(self.fetch(start, BLOCK_BYTES.min(self.len - start))?);
        let mut held = hold();
        if held.len() >= BLOCKS_MAX {
            held.remove(0);
        }
        held.push((self.path.clone(), number, made.clone()));
        Ok(made)
    }
}

impl DiskFile for ForeignFile {
    fn len(&self) -> DiskResult<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, len: usize) -> DiskResult<Vec<u8>> {
        let end = offset.saturating_add(len as u64).min(self.len);
        if offset >= end {
            return Ok(Vec::new());
        }
        if end - offset >= BLOCK_BYTES {
            return self.fetch(offset, end - offset);
        }
        let mut bytes = Vec::with_capacity((end - offset) as usize);
        for number in offset / BLOCK_BYTES..=(end - 1) / BLOCK_BYTES {
            let (block, start) = (self.block(number)?, number * BLOCK_BYTES);
            let (from, to) = (offset.max(start) - start, (end - start).min(BLOCK_BYTES));
            bytes.extend_from_slice(&block[from as usize..to as usize]);
        }
        Ok(bytes)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> DiskResult<()> {
        refused("write", &self.path)
    }

    fn set_len(&self, _: u64) -> DiskResult<()> {
        refused("truncate", &self.path)
    }

    fn sync_data(&self) -> DiskResult<()> {
        refused("sync", &self.path)
    }

    fn path(&self) -> &str {
        &self.path
    }
}

impl Disk for ForeignDisk {
    fn open(&self, path: &str, mode: OpenMode) -> DiskResult<Arc<dyn DiskFile>> {
        if mode != OpenMode::Read {
            return refused("open for writing", path);
        }
        let (file, len) = ask("open", path, |py| self.place.call_method1(py, "open", (path,))?.extract(py))?;
        Ok(Arc::new(ForeignFile { path: path.into(), len, file, blocks: self.blocks.clone() }))
    }

    fn read(&self, path: &str, max: u64) -> DiskResult<Vec<u8>> {
        let file = self.open(path, OpenMode::Read)?;
        let len = file.len()?;
        if len > max {
            let text = format!("the file has {len} bytes, more than the {max} allowed here");
            return Err(failed("read", path, io::Error::new(ErrorKind::InvalidData, text)));
        }
        file.read_at(0, len as usize)
    }

    fn list(&self, path: &str) -> DiskResult<Vec<DirEntry>> {
        let found: Vec<(String, bool, u64)> =
            ask("list", path, |py| self.place.call_method1(py, "list", (path,))?.extract(py))?;
        let entry = |(name, is_dir, len)| DirEntry { name, is_dir, len };
        let mut entries: Vec<DirEntry> = found.into_iter().map(entry).collect();
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn entry(&self, path: &str) -> DiskResult<Option<DirEntry>> {
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
        Ok(self.about(path)?.map(|(is_dir, len, _)| DirEntry { name: name.to_owned(), is_dir, len }))
    }

    fn stamp(&self, path: &str) -> DiskResult<u64> {
        let (_, len, time) =
            self.about(path)?.ok_or_else(|| failed("stat", path, io::Error::from(ErrorKind::NotFound)))?;
        Ok((time as u64).rotate_left(24) ^ len)
    }

    fn create_dir_all(&self, path: &str) -> DiskResult<Vec<String>> {
        refused("mkdir", path)
    }

    fn rename(&self, from: &str, _: &str) -> DiskResult<()> {
        refused("rename", from)
    }

    fn remove_file(&self, path: &str) -> DiskResult<()> {
        refused("remove", path)
    }

    fn remove_dir_all(&self, path: &str) -> DiskResult<()> {
        refused("remove", path)
    }

    fn sync_dir(&self, path: &str) -> DiskResult<()> {
        refused("sync directory", path)
    }

    fn lock(&self, path: &str, _: &str) -> DiskResult<Result<Box<dyn DiskLock>, LockHolder>> {
        refused("lock", parent(path))
    }

    /// A copy has no writer.
    fn lock_holder(&self, _: &str) -> DiskResult<Option<LockHolder>> {
        Ok(None)
    }
}
