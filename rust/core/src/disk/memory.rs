//! A disk in memory that knows what a power cut would leave.
//!
//! ```text
//!   file   bytes now   |AAAA|BbbB|CCCC|dddd|dd          page = 512 bytes
//!          durable len  --------------^                 what the last sync_data covered
//!          undo              |BBBB|                     durable bytes of pages changed since
//!   names  each directory has its names now and its durable names; what changed since the
//!          last sync_dir waits in one list, in order
//! ```
//! So a sync costs nothing but forgetting, and sequential appends save one page at most.
//! `crash` makes the disk that a machine would find after the power came back.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::crashed::{Random, survivor};
use super::names::{Directory, Names, Node};
use super::{
    DirEntry, Disk, DiskError, DiskFile, DiskLock, DiskResult, LockHolder, OpenMode, failed, stamp_of, too_large,
};

pub(super) const PAGE_BYTES: usize = 512;
/// Far above any test; a wild offset must be an error, not an allocation.
const FILE_BYTES_MAX: u64 = 1 << 36;

/// What a power cut spares of that which was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Only what was synced: the strictest disk.
    None,
    /// Everything that was written: a killed process on a living machine.
    All,
    /// Each page, length and name by its own toss: torn writes, any order.
    Random,
}

impl Keep {
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Keep::None),
            "all" => Some(Keep::All),
            "random" => Some(Keep::Random),
            _ => None,
        }
    }
}

/// Clones are the same disk.
#[derive(Clone)]
pub struct MemoryDisk(Arc<Shared>);

struct Shared {
    names: Mutex<Names>,
    power: Mutex<Power>,
    locks: Mutex<HashMap<Vec<String>, LockHolder>>,
}

#[derive(Default)]
struct Power {
    sync_points: u64,
    cut_at: Option<u64>,
    off: bool,
}

/// The state is plain data that no panic leaves half changed, so a poisoned lock is usable.
fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
pub struct Bytes {
    now: Vec<u8>,
    durable_len: usize,
    undo: BTreeMap<usize, Box<[u8]>>,
}

impl Bytes {
    pub(super) fn synced(now: Vec<u8>) -> Self {
        Bytes { durable_len: now.len(), now, undo: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.now.len()
    }

    pub(super) fn now(&self) -> &[u8] {
        &self.now
    }

    pub(super) fn durable_len(&self) -> usize {
        self.durable_len
    }

    /// The durable bytes of one page (shorter, or empty, at the durable end).
    pub(super) fn durable_page(&self, page: usize) -> &[u8] {
        if let Some(saved) = self.undo.get(&page) {
            return saved;
        }
        let start = (page * PAGE_BYTES).min(self.durable_len);
        &self.now[start..(start + PAGE_BYTES).min(self.durable_len)]
    }

    /// Whether the page may differ from what is durable.
    pub(super) fn is_unsynced(&self, page: usize) -> bool {
        self.undo.contains_key(&page) || (page + 1) * PAGE_BYTES > self.durable_len
    }

    /// To be called before the bytes `[start, end)` change.
    fn save(&mut self, start: usize, end: usize) {
        let end = end.min(self.durable_len);
        if start >= end {
            return;
        }
        for page in start / PAGE_BYTES..=(end - 1) / PAGE_BYTES {
            if !self.undo.contains_key(&page) {
                let saved = self.durable_page(page).into();
                self.undo.insert(page, saved);
            }
        }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        self.save(offset, end);
        if self.now.len() < end {
            self.now.resize(offset.max(self.now.len()), 0);
            let overwritten = self.now.len() - offset;
            self.now[offset..].copy_from_slice(&data[..overwritten]);
            self.now.extend_from_slice(&data[overwritten..]);
        } else {
            self.now[offset..end].copy_from_slice(data);
        }
    }

    fn set_len(&mut self, len: usize) {
        self.save(len, self.now.len());
        self.now.resize(len, 0);
    }

    fn sync(&mut self) {
        self.durable_len = self.now.len();
        self.undo.clear();
    }

    fn flip(&mut self, offset: usize, mask: u8) {
        self.now[offset] ^= mask;
        let saved = self.undo.get_mut(&(offset / PAGE_BYTES));
        if let Some(byte) = saved.and_then(|page| page.get_mut(offset % PAGE_BYTES)) {
            *byte ^= mask;
        }
    }
}

impl Default for MemoryDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryDisk {
    pub fn new() -> Self {
        Self::with_root(Arc::new(Directory::default()))
    }

    fn with_root(root: Arc<Directory>) -> Self {
        MemoryDisk(Arc::new(Shared {
            names: Mutex::new(Names::new(root)),
            power: Mutex::default(),
            locks: Mutex::default(),
        }))
    }

    /// How many `sync_data` and `sync_dir` calls have succeeded since the disk was made.
    pub fn sync_points(&self) -> u64 {
        hold(&self.0.power).sync_points
    }

    /// Lets exactly `k` syncs (counted from the disk's creation) succeed. The next one fails before
    /// it does anything, and from then on every operation does: the power is off.
    pub fn power_cut_at(&self, k: u64) {
        let mut power = hold(&self.0.power);
        power.off = k < power.sync_points;
        power.cut_at = Some(k);
    }

    /// The disk as the machine finds it when the power went off now. No locks are held on it, all of
    /// it is durable, its sync points start at 0. This disk is left as it is, so one state can be
    /// crashed many times with different seeds.
    pub fn crash(&self, seed: u64, keep: Keep) -> MemoryDisk {
        let root = survivor(&hold(&self.0.names), &mut Random::new(seed), keep);
        MemoryDisk::with_root(root)
    }

    /// Inverts one bit in what is written and in what is durable. No sync point.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u8) -> DiskResult<()> {
        self.powered("flip a bit", path)?;
        let file = hold(&self.0.names).file(path).map_err(failed("flip a bit", path))?;
        let mut bytes = hold(&file);
        let at = usize::try_from(offset).ok().filter(|at| *at < bytes.len());
        let at = at.ok_or_else(|| failed("flip a bit", path)(io::ErrorKind::UnexpectedEof.into()))?;
        bytes.flip(at, 1 << (bit & 7));
        Ok(())
    }

    fn powered(&self, op: &'static str, path: &str) -> DiskResult<()> {
        if hold(&self.0.power).off { Err(failed(op, path)(power_is_off())) } else { Ok(()) }
    }

    /// Runs `sync` as the next sync point, unless the power goes off here.
    fn sync_point(&self, op: &'static str, path: &str, sync: impl FnOnce() -> io::Result<()>) -> DiskResult<()> {
        // Held over the sync, so that the points of several threads have one order.
        let mut power = hold(&self.0.power);
        power.off |= power.cut_at == Some(power.sync_points);
        if power.off {
            return Err(failed(op, path)(power_is_off()));
        }
        sync().map_err(failed(op, path))?;
        power.sync_points += 1;
        Ok(())
    }

    fn names<T>(&self, op: &'static str, path: &str, act: impl FnOnce(&mut Names) -> io::Result<T>) -> DiskResult<T> {
        self.powered(op, path)?;
        act(&mut hold(&self.0.names)).map_err(failed(op, path))
    }
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off (a simulated power cut)")
}

struct MemoryFile {
    disk: MemoryDisk,
    bytes: Arc<Mutex<Bytes>>,
    path: String,
    writable: bool,
}

impl MemoryFile {
    fn writable(&self, op: &'static str, end: Option<u64>) -> DiskResult<()> {
        self.disk.powered(op, &self.path)?;
        if !self.writable {
            return Err(failed(op, &self.path)(io::ErrorKind::PermissionDenied.into()));
        }
        match end {
            Some(end) if end <= FILE_BYTES_MAX => Ok(()),
            _ => Err(failed(op, &self.path)(io::ErrorKind::FileTooLarge.into())),
        }
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> DiskResult<u64> {
        self.disk.powered("stat", &self.path)?;
        Ok(hold(&self.bytes).len() as u64)
    }

    fn read_at(&self, offset: u64, len: usize) -> DiskResult<Vec<u8>> {
        self.disk.powered("read", &self.path)?;
        let bytes = hold(&self.bytes);
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = start.saturating_add(len).min(bytes.len());
        Ok(bytes.now()[start..end].to_vec())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> DiskResult<()> {
        self.writable("write", offset.checked_add(data.len() as u64))?;
        if !data.is_empty() {
            hold(&self.bytes).write(offset as usize, data);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> DiskResult<()> {
        self.writable("truncate", Some(len))?;
        hold(&self.bytes).set_len(len as usize);
        Ok(())
    }

    fn sync_data(&self) -> DiskResult<()> {
        self.disk.sync_point("sync", &self.path, || {
            hold(&self.bytes).sync();
            Ok(())
        })
    }

    fn path(&self) -> &str {
        &self.path
    }
}

struct MemoryLock {
    disk: MemoryDisk,
    key: Vec<String>,
}

impl DiskLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        hold(&self.disk.0.locks).remove(&self.key);
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &str, mode: OpenMode) -> DiskResult<Arc<dyn DiskFile>> {
        let bytes = self.names("open", path, |names| names.open(path, mode))?;
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(MemoryFile { disk: self.clone(), bytes, path: path.to_owned(), writable }))
    }

    fn read(&self, path: &str, max: u64) -> DiskResult<Vec<u8>> {
        let bytes = self.names("read", path, |names| names.file(path))?;
        let bytes = hold(&bytes);
        if bytes.len() as u64 > max {
            return Err(too_large(path, bytes.len() as u64, max));
        }
        Ok(bytes.now().to_vec())
    }

    fn list(&self, path: &str) -> DiskResult<Vec<DirEntry>> {
        self.names("list", path, |names| {
            let directory = names.directory(path)?;
            Ok(directory.now().iter().map(|(name, node)| entry_of(name, node)).collect())
        })
    }

    fn entry(&self, path: &str) -> DiskResult<Option<DirEntry>> {
        self.names("stat", path, |names| match names.node(path) {
            Ok(node) => Ok(Some(entry_of(path.trim_end_matches('/').rsplit('/').next().unwrap_or(path), &node))),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn stamp(&self, path: &str) -> DiskResult<u64> {
        let bytes = self.names("stat", path, |names| names.file(path))?;
        let stamp = stamp_of(hold(&bytes).now());
        Ok(stamp)
    }

    fn create_dir_all(&self, path: &str) -> DiskResult<Vec<String>> {
        self.names("mkdir", path, |names| names.create_dir_all(path))
    }

    fn rename(&self, from: &str, to: &str) -> DiskResult<()> {
        self.powered("rename", from)?;
        let renamed = hold(&self.0.names).rename(from, to);
        renamed.map_err(|source| DiskError { op: "rename", path: format!("{from} -> {to}"), source })
    }

    fn remove_file(&self, path: &str) -> DiskResult<()> {
        self.names("remove", path, |names| names.remove_file(path))
    }

    fn remove_dir_all(&self, path: &str) -> DiskResult<()> {
        self.names("remove", path, |names| names.remove_dir_all(path))
    }

    fn sync_dir(&self, path: &str) -> DiskResult<()> {
        self.sync_point("sync directory", path, || hold(&self.0.names).sync_dir(path))
    }

    fn lock(&self, path: &str, note: &str) -> DiskResult<Result<Box<dyn DiskLock>, LockHolder>> {
        let file = self.open(path, OpenMode::Write)?;
        let key = super::names::components(path);
        let mut locks = hold(&self.0.locks);
        if let Some(holder) = locks.get(&key) {
            return Ok(Err(holder.clone()));
        }
        let holder = LockHolder::of_this_process(note);
        file.set_len(0)?;
        file.write_at(0, holder.to_text().as_bytes())?;
        locks.insert(key.clone(), holder);
        Ok(Ok(Box::new(MemoryLock { disk: self.clone(), key })))
    }

    fn lock_holder(&self, path: &str) -> DiskResult<Option<LockHolder>> {
        Ok(hold(&self.0.locks).get(&super::names::components(path)).cloned())
    }
}

fn entry_of(name: &str, node: &Node) -> DirEntry {
    match node {
        Node::File(bytes) => DirEntry { name: name.to_owned(), is_dir: false, len: hold(bytes).len() as u64 },
        Node::Directory(_) => DirEntry { name: name.to_owned(), is_dir: true, len: 0 },
    }
}
