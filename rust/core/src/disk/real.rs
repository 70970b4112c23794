//! The operating system's disk: positional reads and writes, fdatasync, flock.
//!
//! Below its root a disk follows no symbolic link, at no place of a path: the root may be named through links, they were
//! resolved when the disk was made, but a link inside a store may lead anywhere. Outside of a root (a disk without one, or
//! another folder) only the last name of a path is looked at. What is opened as a file must be one: a FIFO in its place would
//! keep the reader waiting for ever.
//!
//! Descriptors are close-on-exec. A lock file stays after its holder is gone and says in text who
//! took it last (`pid note\n`); only the flock on it counts, so a stale file locks nobody out.

use std::borrow::Cow;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::{
    DirEntry, Disk, DiskError, DiskFile, DiskLock, DiskResult, LockHolder, Mapped, OpenMode, failed, stamp_of,
    too_large,
};
use crate::large_buffer;

const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// More than any note we write: a foreign file of any size must not be read whole.
const HOLDER_TEXT_MAX: u64 = 4096;
/// Brokers make room in advance, up to 2 GiB at once. A terabyte of nothing is an accident, or meant to keep readers busy.
const HOLES_MAX: u64 = 4 << 30;
const HOLES_COUNTED_MAX: usize = 100_000;

#[derive(Debug, Clone, Default)]
pub struct RealDisk {
    root: Option<Root>,
}

#[derive(Debug, Clone)]
struct Root {
    /// As it is written in paths, without a slash at its end.
    given: String,
    /// The same without links. It may be no UTF-8.
    real: PathBuf,
}

/// A path as the system gets it.
struct At<'a> {
    path: Cow<'a, Path>,
    in_root: bool,
}

impl RealDisk {
    /// A disk that follows no links below `root`, which need not be there yet.
    pub fn below(root: &str) -> RealDisk {
        let given = root.trim_end_matches('/');
        let real = without_links(Path::new(if given.is_empty() { "/" } else { given }));
        RealDisk { root: Some(Root { given: given.to_owned(), real }) }
    }

    fn at<'a>(&self, path: &'a str) -> At<'a> {
        let below = self.root.as_ref().and_then(|root| {
            let rest = path.strip_prefix(&root.given)?;
            // To join nothing would put a slash behind a root that is a file: a task reads one, and knows no other.
            let names = rest.trim_start_matches('/');
            let at = || if names.is_empty() { root.real.clone() } else { root.real.join(names) };
            (rest.is_empty() || rest.starts_with('/')).then(at)
        });
        match below {
            Some(path) => At { path: Cow::Owned(path), in_root: true },
            None => At { path: Cow::Borrowed(Path::new(path)), in_root: false },
        }
    }
}

/// The part that exists without links, the rest as it is.
fn without_links(path: &Path) -> PathBuf {
    let mut rest = Vec::new();
    let mut there = path;
    loop {
        let name = if there.as_os_str().is_empty() { Path::new(".") } else { there };
        if let Ok(real) = fs::canonicalize(name) {
            return rest.into_iter().rev().fold(real, |path: PathBuf, name| path.join(name));
        }
        match (there.file_name(), there.parent()) {
            (Some(name), Some(parent)) => {
                rest.push(name);
                there = parent;
            }
            _ => return path.to_owned(),
        }
    }
}

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
        let mut bytes = large_buffer::with_capacity(len);
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

    #[cfg(target_os = "linux")]
    fn next_data(&self, offset: u64) -> DiskResult<u64> {
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(found) => Ok(found),
            Err(Errno::NXIO) => self.len().map(|len| len.max(offset)),
            // A file system that knows no holes.
            Err(_) => Ok(offset),
        }
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
        // A failure cannot be reported here, and the close that follows releases as well.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl At<'_> {
    fn open(&self, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(FILE_MODE) } else { Mode::empty() };
        #[cfg(target_os = "linux")]
        if self.in_root {
            use rustix::fs::{ResolveFlags, openat2};
            match rustix::io::retry_on_intr(|| openat2(CWD, &*self.path, flags, mode, ResolveFlags::NO_SYMLINKS)) {
                // Kernels before 5.6, and sandboxes that do not know the call.
                Err(Errno::NOSYS | Errno::PERM) => {}
                Err(Errno::LOOP) => return Err(is_link()),
                opened => return Ok(File::from(opened?)),
            }
        }
        match rustix::io::retry_on_intr(|| rustix::fs::openat(CWD, &*self.path, flags, mode)) {
            Err(Errno::LOOP) => Err(is_link()),
            opened => Ok(File::from(opened?)),
        }
    }

    fn open_file(&self, flags: OFlags) -> io::Result<File> {
        let file = self.open(flags)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(wrong_kind(&meta));
        }
        if meta.len() > HOLES_MAX && holes(&file, meta.len()) > HOLES_MAX {
            return Err(too_sparse(meta.len()));
        }
        Ok(file)
    }

    /// A link in the place of a file is there, as itself: what only looks whether there is something can go on, and who
    /// opens it hears that it is a link. One in the place of a folder is an error: a whole log may lie behind it.
    fn entry_metadata(&self) -> io::Result<Metadata> {
        if !self.in_root {
            return fs::metadata(&self.path);
        }
        let meta = fs::symlink_metadata(&self.path)?;
        let leads_to_folder = || fs::metadata(&self.path).is_ok_and(|target| target.is_dir());
        if meta.is_symlink() && leads_to_folder() { Err(is_link()) } else { Ok(meta) }
    }

    /// In a root a link is an error.
    fn metadata(&self) -> io::Result<Metadata> {
        if !self.in_root {
            return fs::metadata(&self.path);
        }
        let meta = fs::symlink_metadata(&self.path)?;
        if meta.is_symlink() { Err(is_link()) } else { Ok(meta) }
    }
}

/// Bytes of the file that were never written, counted until there are too many.
#[cfg(target_os = "linux")]
fn holes(file: &File, len: u64) -> u64 {
    use rustix::fs::{SeekFrom, seek};
    let (mut at, mut total) = (0, 0);
    for _ in 0..HOLES_COUNTED_MAX {
        let Ok(hole) = seek(file, SeekFrom::Hole(at)) else { break };
        // No data behind it: the rest of the file is one hole.
        at = seek(file, SeekFrom::Data(hole)).unwrap_or(len);
        total += at - hole;
        if total > HOLES_MAX || at >= len {
            break;
        }
    }
    total
}

#[cfg(not(target_os = "linux"))]
fn holes(_: &File, _: u64) -> u64 {
    0
}

fn too_sparse(len: u64) -> io::Error {
    let text = format!(
        "the file is {len} bytes long, and over {HOLES_MAX} of them are holes that nobody wrote: no broker leaves such a file, \
         and reading it would take hours; cut it to the part that holds data"
    );
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn is_link() -> io::Error {
    let text = "it is a symbolic link, or lies behind one; links inside a store are not followed: put the file or folder \
                itself there, or mount it there";
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn wrong_kind(meta: &Metadata) -> io::Error {
    let kind = meta.file_type();
    let what = match () {
        () if kind.is_dir() => return io::Error::from(io::ErrorKind::IsADirectory),
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, not a file; move it out of the store"))
}

impl Disk for RealDisk {
    fn open(&self, path: &str, mode: OpenMode) -> DiskResult<Arc<dyn DiskFile>> {
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::RDWR | OFlags::CREATE,
            OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let file = self.at(path).open_file(flags).map_err(failed("open", path))?;
        Ok(Arc::new(RealFile { file, path: path.to_owned() }))
    }

    fn read(&self, path: &str, max: u64) -> DiskResult<Vec<u8>> {
        let file = self.at(path).open_file(OFlags::RDONLY).map_err(failed("open", path))?;
        let len = file.metadata().map_err(failed("stat", path))?.len();
        if len > max {
            return Err(too_large(path, len, max));
        }
        let mut bytes = large_buffer::with_capacity(len as usize);
        // One byte above the limit distinguishes a file that grew since the stat from one that fits.
        file.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(failed("read", path))?;
        if bytes.len() as u64 > max {
            return Err(too_large(path, bytes.len() as u64, max));
        }
        Ok(bytes)
    }

    fn list(&self, path: &str) -> DiskResult<Vec<DirEntry>> {
        let mut entries = Vec::new();
        let at = self.at(path);
        at.metadata().map_err(failed("list", path))?;
        for item in fs::read_dir(&at.path).map_err(failed("list", path))? {
            let item = item.map_err(failed("list", path))?;
            let named = |error| failed("stat", &item.path().to_string_lossy())(error);
            // A file removed meanwhile is not listed.
            let mut meta = match item.metadata() {
                Ok(meta) => meta,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(named(error)),
            };
            if meta.is_symlink() {
                match fs::metadata(item.path()) {
                    // A folder behind a link may be a whole log: it is not passed over in silence.
                    Ok(target) if target.is_dir() && at.in_root => return Err(named(is_link())),
                    Ok(target) if !at.in_root => meta = target,
                    // Listed as itself; whoever opens it hears that it is a link.
                    _ => {}
                }
            }
            let name = item.file_name().to_string_lossy().into_owned();
            entries.push(DirEntry { name, is_dir: meta.is_dir(), len: meta.len() });
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn entry(&self, path: &str) -> DiskResult<Option<DirEntry>> {
        match self.at(path).entry_metadata() {
            Ok(meta) => {
                let name = Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy());
                Ok(Some(DirEntry { name: name.into_owned(), is_dir: meta.is_dir(), len: meta.len() }))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(failed("stat", path)(error)),
        }
    }

    fn stamp(&self, path: &str) -> DiskResult<u64> {
        let meta = self.at(path).entry_metadata().map_err(failed("stat", path))?;
        let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()].map(i64::to_le_bytes);
        let rest = [meta.len(), meta.ino()].map(u64::to_le_bytes);
        Ok(stamp_of(&[times.concat(), rest.concat()].concat()))
    }

    fn create_dir_all(&self, path: &str) -> DiskResult<Vec<String>> {
        let mut missing = Vec::new();
        let mut next = path.trim_end_matches('/');
        while !next.is_empty() {
            match self.at(next).metadata() {
                Ok(meta) if meta.is_dir() => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("mkdir", next)(error)),
            }
            missing.push(next);
            next = next.rfind('/').map_or("", |at| &next[..at]).trim_end_matches('/');
        }
        let mut made = Vec::new();
        for directory in missing.into_iter().rev() {
            let at = self.at(directory);
            match DirBuilder::new().mode(DIRECTORY_MODE).create(&at.path) {
                Ok(()) => made.push(directory.to_owned()),
                // Somebody else was faster; a file of that name is still an error.
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists
                        && at.metadata().is_ok_and(|meta| meta.is_dir()) => {}
                Err(error) => return Err(failed("mkdir", directory)(error)),
            }
        }
        Ok(made)
    }

    fn rename(&self, from: &str, to: &str) -> DiskResult<()> {
        let renamed = fs::rename(&self.at(from).path, &self.at(to).path);
        renamed.map_err(|source| DiskError { op: "rename", path: format!("{from} -> {to}"), source })
    }

    /// A link goes itself, what it leads to stays: so too in `remove_dir_all`.
    fn remove_file(&self, path: &str) -> DiskResult<()> {
        fs::remove_file(&self.at(path).path).map_err(failed("remove", path))
    }

    fn remove_dir_all(&self, path: &str) -> DiskResult<()> {
        fs::remove_dir_all(&self.at(path).path).map_err(failed("remove", path))
    }

    fn sync_dir(&self, path: &str) -> DiskResult<()> {
        // An empty parent ("" of a bare file name) is the working directory.
        let at = self.at(if path.is_empty() { "." } else { path });
        let opened = if at.in_root { at.open(OFlags::RDONLY | OFlags::DIRECTORY) } else { File::open(&at.path) };
        opened.and_then(|file| file.sync_all()).map_err(failed("sync directory", path))
    }

    fn lock(&self, path: &str, note: &str) -> DiskResult<Result<Box<dyn DiskLock>, LockHolder>> {
        let file = self.at(path).open_file(OFlags::RDWR | OFlags::CREATE).map_err(failed("open lock", path))?;
        if file.metadata().map_err(failed("stat", path))?.nlink() > 1 {
            let text = "the file has another name (a hard link) and would be overwritten there, too; remove this one";
            return Err(failed("open lock", path)(io::Error::other(text)));
        }
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

    /// A shared lock for an instant says whether somebody has the exclusive one; the file is only read.
    fn lock_holder(&self, path: &str) -> DiskResult<Option<LockHolder>> {
        let file = match self.at(path).open_file(OFlags::RDONLY) {
            Ok(file) => file,
            // A link, a FIFO or a folder of that name is no lock of ours: whoever wants to write hears of it.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory
                ) =>
            {
                return Ok(None);
            }
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
