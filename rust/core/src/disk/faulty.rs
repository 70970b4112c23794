//! A disk that fails on demand: the k-th write or sync on matching paths, once or from then on.
//! The plan is shared with the test, which reads its counters and changes it while the disk is used.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::{DirEntry, Disk, DiskFile, DiskLock, DiskResult, LockHolder, OpenMode, failed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultErrno {
    NoSpace,
    Quota,
    Io,
    ReadOnly,
}

impl FaultErrno {
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "ENOSPC" => Some(FaultErrno::NoSpace),
            "EDQUOT" => Some(FaultErrno::Quota),
            "EIO" => Some(FaultErrno::Io),
            "EROFS" => Some(FaultErrno::ReadOnly),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            FaultErrno::NoSpace => "ENOSPC",
            FaultErrno::Quota => "EDQUOT",
            FaultErrno::Io => "EIO",
            FaultErrno::ReadOnly => "EROFS",
        }
    }

    fn error(self) -> io::Error {
        match self {
            FaultErrno::NoSpace => Errno::NOSPC,
            FaultErrno::Quota => Errno::DQUOT,
            FaultErrno::Io => Errno::IO,
            FaultErrno::ReadOnly => Errno::ROFS,
        }
        .into()
    }

    fn is_lack_of_space(self) -> bool {
        matches!(self, FaultErrno::NoSpace | FaultErrno::Quota)
    }
}

/// What shall fail. `None` for a kind of call means that none of them does.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The number of the sync (of a file or a directory) that fails, from 0.
    pub fail_sync_at: Option<u64>,
    /// The number of the write (`write_at`, `set_len`, making a file) that fails, from 0.
    pub fail_write_at: Option<u64>,
    pub write_error: FaultErrno,
    pub sync_error: FaultErrno,
    /// How much of the failing `write_at` reaches the disk all the same.
    pub short_write_bytes: usize,
    /// Every later call fails too, until the plan is changed.
    pub sticky: bool,
    /// Only calls on paths with this text count and fail.
    pub path_contains: String,
}

impl Default for Fault {
    fn default() -> Self {
        Fault {
            fail_sync_at: None,
            fail_write_at: None,
            write_error: FaultErrno::NoSpace,
            sync_error: FaultErrno::Io,
            short_write_bytes: 0,
            sticky: false,
            path_contains: String::new(),
        }
    }
}

#[derive(Default)]
struct Plan {
    fault: Fault,
    writes: u64,
    syncs: u64,
    read_bytes: u64,
}

/// Clones are the same plan.
#[derive(Clone, Default)]
pub struct FaultPlan(Arc<Mutex<Plan>>);

impl FaultPlan {
    pub fn new(fault: Fault) -> Self {
        FaultPlan(Arc::new(Mutex::new(Plan { fault, ..Plan::default() })))
    }

    /// Nothing fails any more, and the counters begin at 0 again.
    pub fn clear(&self) {
        let mut plan = self.hold();
        plan.fault.fail_sync_at = None;
        plan.fault.fail_write_at = None;
        (plan.writes, plan.syncs, plan.read_bytes) = (0, 0, 0);
    }

    /// Changes what fails; the counters go on.
    pub fn update(&self, change: impl FnOnce(&mut Fault)) {
        change(&mut self.hold().fault);
    }

    pub fn fault(&self) -> Fault {
        self.hold().fault.clone()
    }

    /// Matching writes so far, the failed ones too.
    pub fn writes(&self) -> u64 {
        self.hold().writes
    }

    /// Matching syncs so far, the failed ones too.
    pub fn syncs(&self) -> u64 {
        self.hold().syncs
    }

    /// Bytes that were read from matching paths so far.
    pub fn read_bytes(&self) -> u64 {
        self.hold().read_bytes
    }

    fn count_read(&self, path: &str, bytes: &[u8]) {
        let mut plan = self.hold();
        if path.contains(&plan.fault.path_contains) {
            plan.read_bytes += bytes.len() as u64;
        }
    }

    fn hold(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a write; the error it must give, and how many bytes go through before.
    fn write(&self, path: &str) -> Option<(FaultErrno, usize)> {
        let mut plan = self.hold();
        if !path.contains(&plan.fault.path_contains) {
            return None;
        }
        let number = plan.writes;
        plan.writes += 1;
        let fault = &plan.fault;
        due(number, fault.fail_write_at, fault.sticky).then_some((fault.write_error, fault.short_write_bytes))
    }

    fn sync(&self, path: &str) -> Result<(), io::Error> {
        let mut plan = self.hold();
        if !path.contains(&plan.fault.path_contains) {
            return Ok(());
        }
        let number = plan.syncs;
        plan.syncs += 1;
        if due(number, plan.fault.fail_sync_at, plan.fault.sticky) {
            Err(plan.fault.sync_error.error())
        } else {
            Ok(())
        }
    }
}

fn due(number: u64, at: Option<u64>, sticky: bool) -> bool {
    at.is_some_and(|at| number == at || (sticky && number > at))
}

#[derive(Clone)]
pub struct FaultyDisk {
    inner: Arc<dyn Disk>,
    plan: FaultPlan,
}

impl FaultyDisk {
    pub fn new(inner: Arc<dyn Disk>, plan: FaultPlan) -> Self {
        FaultyDisk { inner, plan }
    }
}

struct FaultyFile {
    inner: Arc<dyn DiskFile>,
    plan: FaultPlan,
}

impl DiskFile for FaultyFile {
    fn len(&self) -> DiskResult<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, len: usize) -> DiskResult<Vec<u8>> {
        self.inner.read_at(offset, len).inspect(|bytes| self.plan.count_read(self.path(), bytes))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> DiskResult<()> {
        let Some((errno, short)) = self.plan.write(self.path()) else {
            return self.inner.write_at(offset, data);
        };
        self.inner.write_at(offset, &data[..short.min(data.len())])?;
        Err(failed("write", self.path())(errno.error()))
    }

    fn set_len(&self, len: u64) -> DiskResult<()> {
        match self.plan.write(self.path()) {
            // A full disk refuses to grow a file, never to shrink one.
            Some((errno, _)) if !errno.is_lack_of_space() || len > self.inner.len()? => {
                Err(failed("truncate", self.path())(errno.error()))
            }
            _ => self.inner.set_len(len),
        }
    }

    fn sync_data(&self) -> DiskResult<()> {
        self.plan.sync(self.path()).map_err(failed("sync", self.path()))?;
        self.inner.sync_data()
    }

    fn path(&self) -> &str {
        self.inner.path()
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &str, mode: OpenMode) -> DiskResult<Arc<dyn DiskFile>> {
        if mode != OpenMode::Read && self.inner.entry(path)?.is_none() {
            if let Some((errno, _)) = self.plan.write(path) {
                return Err(failed("open", path)(errno.error()));
            }
        }
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(FaultyFile { inner, plan: self.plan.clone() }))
    }

    fn read(&self, path: &str, max: u64) -> DiskResult<Vec<u8>> {
        self.inner.read(path, max).inspect(|bytes| self.plan.count_read(path, bytes))
    }

    fn list(&self, path: &str) -> DiskResult<Vec<DirEntry>> {
        self.inner.list(path)
    }

    fn entry(&self, path: &str) -> DiskResult<Option<DirEntry>> {
        self.inner.entry(path)
    }

    fn stamp(&self, path: &str) -> DiskResult<u64> {
        self.inner.stamp(path)
    }

    fn create_dir_all(&self, path: &str) -> DiskResult<Vec<String>> {
        self.inner.create_dir_all(path)
    }

    fn rename(&self, from: &str, to: &str) -> DiskResult<()> {
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &str) -> DiskResult<()> {
        self.inner.remove_file(path)
    }

    fn remove_dir_all(&self, path: &str) -> DiskResult<()> {
        self.inner.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &str) -> DiskResult<()> {
        self.plan.sync(path).map_err(failed("sync directory", path))?;
        self.inner.sync_dir(path)
    }

    fn lock(&self, path: &str, note: &str) -> DiskResult<Result<Box<dyn DiskLock>, LockHolder>> {
        self.inner.lock(path, note)
    }

    fn lock_holder(&self, path: &str) -> DiskResult<Option<LockHolder>> {
        self.inner.lock_holder(path)
    }
}
