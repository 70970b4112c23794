//! The operating system's disk: positional reads and writes, fdatasync, flock.
//!
//! Descriptors are close-on-exec. A lock file stays after its holder is gone and says in text who
//! took it last (`pid note\n`); only the flock on it counts, so a stale file locks nobody out.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::fs::{FlockOperation, flock};

use super::{
    DirEntry, Disk, DiskError, DiskFile, DiskLock, DiskResult, LockHolder, Mapped, OpenMode, failed, stamp_of,
    too_large,
};
use crate::room;

const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// More than any note we write: a foreign file of any size must not be read whole.
const HOLDER_TEXT_MAX: u64 = 4096;

#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

struct RealFile {
    file: File,
    path: String,
}

impl DiskFile for RealFile {
    fn len(&self) -> DiskResult<u64> {
        self.file.metadata().map(|meta| meta.len()).map_err(failed("stat", &self.path))
    }

    fn read_at(&self, offset: u64, len: usize) -> DiskResult<Vec<u8>> {
        // The caller's `len` may come from a damaged file: allocate what is there, not what is asked.
        let there = self.len()?.saturating_sub(offset);
        let len = len.min(usize::try_from(there).unwrap_or(usize::MAX));
        let mut bytes = room::with_capacity(len);
        while bytes.len() < len {
            let at = offset + bytes.len() as u64;
            let got = rustix::io::retry_on_intr(|| rustix::io::pread(&self.file, spare_capacity(&mut bytes), at))
                .map_err(|errno| failed("read", &self.path)(errno.into()))?;
            if got == 0 {
                break;
            }
        }
        // The allocator may have given more room than asked for, and the file may have grown.
        bytes.truncate(len);
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> DiskResult<()> {
        self.file.write_all_at(data, offset).map_err(failed("write", &self.path))
    }

    fn set_len(&self, len: u64) -> DiskResult<()> {
        self.file.set_len(len).map_err(failed("truncate", &self.path))
    }

    fn sync_data(&self) -> DiskResult<()> {
        // The standard library asks macOS for F_FULLFSYNC here.
        self.file.sync_data().map_err(failed("sync", &self.path))
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn map(&self) -> DiskResult<Mapped> {
        Mapped::of_file(&self.file, &self.path)
    }
}

struct RealLock(File);

impl DiskLock for RealLock {}

impl Drop for RealLock {
    fn drop(&mut self) {
        // Closing is not enough: a forked child shares the description and would keep the lock.
        // A failure cannot be told to anybody here, and the close that follows releases as well.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &str, mode: OpenMode) -> DiskResult<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).mode(FILE_MODE);
        match mode {
            OpenMode::Read => &mut options,
            OpenMode::Write => options.write(true).create(true),
            OpenMode::CreateNew => options.write(true).create_new(true),
        };
        let file = options.open(path).map_err(failed("open", path))?;
        Ok(Arc::new(RealFile { file, path: path.to_owned() }))
    }

    fn read(&self, path: &str, max: u64) -> DiskResult<Vec<u8>> {
        let file = File::open(path).map_err(failed("open", path))?;
        let len = file.metadata().map_err(failed("stat", path))?.len();
        if len > max {
            return Err(too_large(path, len, max));
        }
        let mut bytes = room::with_capacity(len as usize);
        // One byte above the limit tells a file that grew since the stat from one that fits.
        file.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(failed("read", path))?;
        if bytes.len() as u64 > max {
            return Err(too_large(path, bytes.len() as u64, max));
        }
        Ok(bytes)
    }

    fn list(&self, path: &str) -> DiskResult<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for item in fs::read_dir(path).map_err(failed("list", path))? {
            let item = item.map_err(failed("list", path))?;
            // A link that leads nowhere is listed as itself; a file removed meanwhile is not listed.
            let meta = match fs::metadata(item.path()).or_else(|_| item.metadata()) {
                Ok(meta) => meta,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("stat", &item.path().to_string_lossy())(error)),
            };
            let name = item.file_name().to_string_lossy().into_owned();
            entries.push(DirEntry { name, is_dir: meta.is_dir(), len: meta.len() });
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn entry(&self, path: &str) -> DiskResult<Option<DirEntry>> {
        match fs::metadata(path) {
            Ok(meta) => {
                let name = Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy());
                Ok(Some(DirEntry { name: name.into_owned(), is_dir: meta.is_dir(), len: meta.len() }))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(failed("stat", path)(error)),
        }
    }

    fn stamp(&self, path: &str) -> DiskResult<u64> {
        let meta = fs::metadata(path).map_err(failed("stat", path))?;
        let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()].map(i64::to_le_bytes);
        let rest = [meta.len(), meta.ino()].map(u64::to_le_bytes);
        Ok(stamp_of(&[times.concat(), rest.concat()].concat()))
    }

    fn create_dir_all(&self, path: &str) -> DiskResult<Vec<String>> {
        let mut missing = Vec::new();
        let mut next = Some(Path::new(path));
        while let Some(directory) = next {
            if directory.as_os_str().is_empty() || directory.is_dir() {
                break;
            }
            missing.push(directory.to_string_lossy().into_owned());
            next = directory.parent();
        }
        let mut made = Vec::new();
        for directory in missing.into_iter().rev() {
            match DirBuilder::new().mode(DIRECTORY_MODE).create(&directory) {
                Ok(()) => made.push(directory),
                // Somebody else was faster; a file of that name is still an error.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && Path::new(&directory).is_dir() => {}
                Err(error) => return Err(failed("mkdir", &directory)(error)),
            }
        }
        Ok(made)
    }

    fn rename(&self, from: &str, to: &str) -> DiskResult<()> {
        fs::rename(from, to).map_err(|source| DiskError { op: "rename", path: format!("{from} -> {to}"), source })
    }

    fn remove_file(&self, path: &str) -> DiskResult<()> {
        fs::remove_file(path).map_err(failed("remove", path))
    }

    fn remove_dir_all(&self, path: &str) -> DiskResult<()> {
        fs::remove_dir_all(path).map_err(failed("remove", path))
    }

    fn sync_dir(&self, path: &str) -> DiskResult<()> {
        // An empty parent ("" of a bare file name) is the working directory.
        let directory = if path.is_empty() { "." } else { path };
        File::open(directory).and_then(|file| file.sync_all()).map_err(failed("sync directory", path))
    }

    fn lock(&self, path: &str, note: &str) -> DiskResult<Result<Box<dyn DiskLock>, LockHolder>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.open(path).map_err(failed("open lock", path))?;
        match rustix::io::retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => {
                let text = LockHolder::of_this_process(note).to_text();
                file.set_len(0)
                    .and_then(|()| file.write_all_at(text.as_bytes(), 0))
                    .map_err(failed("write lock", path))?;
                Ok(Ok(Box::new(RealLock(file))))
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = Vec::new();
                file.take(HOLDER_TEXT_MAX).read_to_end(&mut text).map_err(failed("read lock", path))?;
                Ok(Err(LockHolder::from_text(&text)))
            }
            Err(errno) => Err(failed("lock", path)(errno.into())),
        }
    }

    /// A shared lock for an instant tells whether somebody has the exclusive one; the file is only read.
    fn lock_holder(&self, path: &str) -> DiskResult<Option<LockHolder>> {
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open lock", path)(error)),
        };
        match rustix::io::retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockShared)) {
            Ok(()) => Ok(None),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = Vec::new();
                file.take(HOLDER_TEXT_MAX).read_to_end(&mut text).map_err(failed("read lock", path))?;
                Ok(Some(LockHolder::from_text(&text)))
            }
            Err(errno) => Err(failed("lock", path)(errno.into())),
        }
    }
}
