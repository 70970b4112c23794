//! The disk, behind one small trait, so that every byte the product writes can be lost, torn,
//! flipped or refused in a test. Three disks: `real`, `memory` (keeps what was synced apart from
//! what was only written), `faulty` (wraps another one and fails on demand).
//!
//! What is assumed of a real disk (docs/internals/durability.md argues from these):
//! 1. data written before a successful `sync_data` of the file survives a power cut;
//! 2. a name created, renamed or removed survives once `sync_dir` of its directory returned;
//! 3. anything else may survive wholly, partly (in pages) or not at all, in any order.

mod crashed;
mod faulty;
mod mapped;
mod memory;
mod names;
mod real;
mod window;

pub use faulty::{Fault, FaultErrno, FaultPlan, FaultyDisk};
pub use mapped::Mapped;
pub use memory::{Keep, MemoryDisk};
pub use real::RealDisk;
pub use window::{BEGINS_WITH_ZEROS, Window};

use std::io;
use std::sync::Arc;

/// An I/O failure that names the file and the operation.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {op} failed: {source}")]
pub struct DiskError {
    pub op: &'static str,
    pub path: String,
    pub source: io::Error,
}

pub type DiskResult<T> = Result<T, DiskError>;

/// For `map_err`: the failure of `op` on `path`.
fn failed<'a>(op: &'static str, path: &'a str) -> impl FnOnce(io::Error) -> DiskError + use<'a> {
    move |source| DiskError { op, path: path.to_owned(), source }
}

fn too_large(path: &str, len: u64, max: u64) -> DiskError {
    let text = format!("the file has {len} bytes, more than the {max} allowed here");
    failed("read", path)(io::Error::new(io::ErrorKind::InvalidData, text))
}

fn stamp_of(bytes: &[u8]) -> u64 {
    crate::hash::HashKey::new(&[0; 32]).hash(bytes)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist; no writes.
    Read,
    /// Created when absent, kept when present.
    Write,
    /// Created; an existing file is an error.
    CreateNew,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    pub name: String,
    pub is_dir: bool,
    pub len: u64,
}

/// What holds a lock: shown to the person whose open was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    pub pid: u32,
    pub note: String,
}

impl LockHolder {
    fn of_this_process(note: &str) -> Self {
        LockHolder { pid: std::process::id(), note: note.replace(['\n', '\r'], " ") }
    }

    /// The content of a lock file: `pid note\n`.
    fn to_text(&self) -> String {
        format!("{} {}\n", self.pid, self.note)
    }

    /// Tolerant: the file may be half written or not ours. Pid 0 says that it is not known.
    fn from_text(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let line = text.lines().next().unwrap_or("");
        let (pid, note) = line.split_once(' ').unwrap_or((line, ""));
        LockHolder { pid: pid.parse().unwrap_or(0), note: note.to_owned() }
    }
}

/// Released on drop.
pub trait DiskLock: Send + Sync {}

pub trait DiskFile: Send + Sync {
    fn len(&self) -> DiskResult<u64>;
    fn is_empty(&self) -> DiskResult<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads up to `len` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: usize) -> DiskResult<Vec<u8>>;
    /// Writes all of `data` or fails; after a failure any prefix may be there.
    fn write_at(&self, offset: u64, data: &[u8]) -> DiskResult<()>;
    fn set_len(&self, len: u64) -> DiskResult<()>;
    /// fdatasync (F_FULLFSYNC on macOS).
    fn sync_data(&self) -> DiskResult<()>;
    fn path(&self) -> &str;
    /// The first byte at or behind `offset` that is not in a hole, as far as the disk knows; the length if there is none.
    fn next_data(&self, offset: u64) -> DiskResult<u64> {
        Ok(offset)
    }
    /// All bytes of a file that nobody changes any more (see `Mapped`).
    fn map(&self) -> DiskResult<Mapped> {
        let len = usize::try_from(self.len()?).unwrap_or(usize::MAX);
        self.read_at(0, len).map(Mapped::from)
    }
}

/// Paths are `/`-separated UTF-8. New files get mode 0600, new directories 0700, as nats-server's.
pub trait Disk: Send + Sync {
    fn open(&self, path: &str, mode: OpenMode) -> DiskResult<Arc<dyn DiskFile>>;
    /// The whole file; an error (not a panic, not an allocation) above `max` bytes.
    fn read(&self, path: &str, max: u64) -> DiskResult<Vec<u8>>;
    /// Sorted by name.
    fn list(&self, path: &str) -> DiskResult<Vec<DirEntry>>;
    fn entry(&self, path: &str) -> DiskResult<Option<DirEntry>>;
    /// Another number once the file was changed or replaced: made of its length, times and inode (in memory: of its
    /// bytes). It says whether somebody wrote, not whether the bytes are sound.
    fn stamp(&self, path: &str) -> DiskResult<u64>;
    /// With parents; existing ones are fine. Returns the directories that were made, outermost first,
    /// so that the caller can sync each one's parent.
    fn create_dir_all(&self, path: &str) -> DiskResult<Vec<String>>;
    fn rename(&self, from: &str, to: &str) -> DiskResult<()>;
    fn remove_file(&self, path: &str) -> DiskResult<()>;
    fn remove_dir_all(&self, path: &str) -> DiskResult<()>;
    fn sync_dir(&self, path: &str) -> DiskResult<()>;
    /// Exclusive, non-blocking; `Ok(Err(holder))` when somebody else (this process included) has it.
    /// The file stays when the lock is dropped.
    fn lock(&self, path: &str, note: &str) -> DiskResult<Result<Box<dyn DiskLock>, LockHolder>>;
    /// Who has the lock now, without taking or changing anything.
    fn lock_holder(&self, path: &str) -> DiskResult<Option<LockHolder>>;
}

/// The directory part of a path ("." when there is none).
pub fn parent(path: &str) -> &str {
    match path.trim_end_matches('/').rfind('/') {
        Some(0) => "/",
        Some(at) => &path[..at],
        None => ".",
    }
}

/// Copies a file or a directory with all below it, from one disk to another, and syncs the copy.
pub fn copy_tree(from: &dyn Disk, source: &str, to: &dyn Disk, target: &str) -> DiskResult<()> {
    let missing = || failed("copy", source)(io::ErrorKind::NotFound.into());
    if !from.entry(source)?.ok_or_else(missing)?.is_dir {
        copy_file(from, source, to, target)?;
        return to.sync_dir(parent(target));
    }
    for made in to.create_dir_all(target)? {
        to.sync_dir(parent(&made))?;
    }
    for entry in from.list(source)? {
        let (source, target) = (format!("{source}/{}", entry.name), format!("{target}/{}", entry.name));
        let copy = if entry.is_dir { copy_tree } else { copy_file };
        copy(from, &source, to, &target)?;
    }
    to.sync_dir(target)
}

/// In pieces: a store may be larger than memory.
fn copy_file(from: &dyn Disk, source: &str, to: &dyn Disk, target: &str) -> DiskResult<()> {
    const PIECE_BYTES: usize = 1 << 20;
    let input = from.open(source, OpenMode::Read)?;
    let output = to.open(target, OpenMode::Write)?;
    output.set_len(0)?;
    let mut offset = 0;
    loop {
        let piece = input.read_at(offset, PIECE_BYTES)?;
        if piece.is_empty() {
            return output.sync_data();
        }
        output.write_at(offset, &piece)?;
        offset += piece.len() as u64;
    }
}

/// Inverts one bit of a file, as a bad medium would.
pub fn flip_bit(disk: &dyn Disk, path: &str, offset: u64, bit: u8) -> DiskResult<()> {
    // Opened for reading first: opening for writing would create a missing file.
    let byte = disk.open(path, OpenMode::Read)?.read_at(offset, 1)?;
    let [byte] = byte[..] else {
        return Err(failed("flip a bit", path)(io::ErrorKind::UnexpectedEof.into()));
    };
    let file = disk.open(path, OpenMode::Write)?;
    file.write_at(offset, &[byte ^ (1 << (bit & 7))])?;
    file.sync_data()
}

/// A directory (made if need be) with these files; nothing is synced.
pub fn write_files(disk: &dyn Disk, directory: &str, files: &[(String, Vec<u8>)]) -> DiskResult<()> {
    disk.create_dir_all(directory)?;
    for (name, content) in files {
        let file = disk.open(&format!("{directory}/{name}"), OpenMode::Write)?;
        file.set_len(0)?;
        file.write_at(0, content)?;
    }
    Ok(())
}

/// Files and their names in a directory on disk; the directory's own name is the caller's to sync.
pub fn sync_files(disk: &dyn Disk, directory: &str, names: &[String]) -> DiskResult<()> {
    for name in names {
        disk.open(&format!("{directory}/{name}"), OpenMode::Write)?.sync_data()?;
    }
    disk.sync_dir(directory)
}

/// New files in a directory, each whole under its name or not there under it; the directory is synced, its own name is not.
pub fn create_files(disk: &dyn Disk, directory: &str, files: &[(String, Vec<u8>)]) -> DiskResult<()> {
    for (name, content) in files {
        let file = disk.open(&format!("{directory}/{name}.tmp"), OpenMode::Write)?;
        file.set_len(0)?;
        file.write_at(0, content)?;
        file.sync_data()?;
    }
    // Else one name might be there after a power cut and another lost between its old and its new one.
    disk.sync_dir(directory)?;
    for (name, _) in files {
        disk.rename(&format!("{directory}/{name}.tmp"), &format!("{directory}/{name}"))?;
    }
    disk.sync_dir(directory)
}

/// Writes a file so that a crash leaves the old content or the new one: temporary file, sync,
/// rename, sync of the directory.
pub fn replace_file(disk: &dyn Disk, path: &str, data: &[u8]) -> DiskResult<()> {
    let temporary = format!("{path}.tmp");
    let file = disk.open(&temporary, OpenMode::Write)?;
    file.set_len(0)?;
    file.write_at(0, data)?;
    file.sync_data()?;
    drop(file);
    disk.rename(&temporary, path)?;
    disk.sync_dir(parent(path))
}
