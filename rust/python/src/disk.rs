//! `Disk`, `DiskFile`, `DiskLock`, `FaultPlan`: the core's disks for Python. Every call that may
//! block lets other Python threads run.

use std::sync::{Arc, Mutex, PoisonError};

use headrace_core::disk::{self as core, Fault, FaultErrno, Keep, MemoryDisk, OpenMode, RealDisk};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{bad_input, disk_error, raise};
use crate::foreign::ForeignDisk;

#[pyclass(frozen, name = "DiskFile", module = "headrace._core")]
pub struct DiskFile(Arc<dyn core::DiskFile>);

impl DiskFile {
    pub fn inner(&self) -> &dyn core::DiskFile {
        &*self.0
    }

    pub fn shared(&self) -> Arc<dyn core::DiskFile> {
        self.0.clone()
    }
}

#[pymethods]
impl DiskFile {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        py.detach(|| self.0.len()).map(|len| len as usize).map_err(disk_error)
    }

    fn read_at<'py>(&self, py: Python<'py>, offset: u64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.read_at(offset, length)).map_err(disk_error)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn write_at(&self, py: Python<'_>, offset: u64, data: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.write_at(offset, data)).map_err(disk_error)
    }

    fn set_len(&self, py: Python<'_>, length: u64) -> PyResult<()> {
        py.detach(|| self.0.set_len(length)).map_err(disk_error)
    }

    fn sync_data(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.sync_data()).map_err(disk_error)
    }
}

#[pyclass(frozen, name = "DiskLock", module = "headrace._core")]
pub struct DiskLock(Mutex<Option<Box<dyn core::DiskLock>>>);

#[pymethods]
impl DiskLock {
    fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

#[pyclass(frozen, name = "FaultPlan", module = "headrace._core")]
pub struct FaultPlan(core::FaultPlan);

fn errno(name: &str) -> PyResult<FaultErrno> {
    FaultErrno::from_name(name)
        .ok_or_else(|| bad_input(format!("unknown error {name:?}: use ENOSPC, EDQUOT, EIO or EROFS")))
}

#[pymethods]
impl FaultPlan {
    #[new]
    #[pyo3(signature = (
        *, fail_sync_at=None, fail_write_at=None, write_error="ENOSPC", sync_error="EIO",
        short_write_bytes=0, sticky=false, path_contains=String::new(),
    ))]
    fn new(
        fail_sync_at: Option<u64>,
        fail_write_at: Option<u64>,
        write_error: &str,
        sync_error: &str,
        short_write_bytes: usize,
        sticky: bool,
        path_contains: String,
    ) -> PyResult<Self> {
        let (write_error, sync_error) = (errno(write_error)?, errno(sync_error)?);
        Ok(FaultPlan(core::FaultPlan::new(Fault {
            fail_sync_at,
            fail_write_at,
            write_error,
            sync_error,
            short_write_bytes,
            sticky,
            path_contains,
        })))
    }

    fn clear(&self) {
        self.0.clear();
    }

    #[getter]
    fn writes(&self) -> u64 {
        self.0.writes()
    }

    #[getter]
    fn syncs(&self) -> u64 {
        self.0.syncs()
    }

    #[getter]
    fn read_bytes(&self) -> u64 {
        self.0.read_bytes()
    }

    #[getter]
    fn fail_sync_at(&self) -> Option<u64> {
        self.0.fault().fail_sync_at
    }

    #[setter]
    fn set_fail_sync_at(&self, number: Option<u64>) {
        self.0.update(|fault| fault.fail_sync_at = number);
    }

    #[getter]
    fn fail_write_at(&self) -> Option<u64> {
        self.0.fault().fail_write_at
    }

    #[setter]
    fn set_fail_write_at(&self, number: Option<u64>) {
        self.0.update(|fault| fault.fail_write_at = number);
    }

    #[getter]
    fn write_error(&self) -> &'static str {
        self.0.fault().write_error.name()
    }

    #[setter]
    fn set_write_error(&self, name: &str) -> PyResult<()> {
        let chosen = errno(name)?;
        self.0.update(|fault| fault.write_error = chosen);
        Ok(())
    }

    #[getter]
    fn sync_error(&self) -> &'static str {
        self.0.fault().sync_error.name()
    }

    #[setter]
    fn set_sync_error(&self, name: &str) -> PyResult<()> {
        let chosen = errno(name)?;
        self.0.update(|fault| fault.sync_error = chosen);
        Ok(())
    }

    #[getter]
    fn short_write_bytes(&self) -> usize {
        self.0.fault().short_write_bytes
    }

    #[setter]
    fn set_short_write_bytes(&self, bytes: usize) {
        self.0.update(|fault| fault.short_write_bytes = bytes);
    }

    #[getter]
    fn sticky(&self) -> bool {
        self.0.fault().sticky
    }

    #[setter]
    fn set_sticky(&self, sticky: bool) {
        self.0.update(|fault| fault.sticky = sticky);
    }

    #[getter]
    fn path_contains(&self) -> String {
        self.0.fault().path_contains
    }

    #[setter]
    fn set_path_contains(&self, text: String) {
        self.0.update(|fault| fault.path_contains = text);
    }
}

/// A file or directory.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct DiskEntry {
    pub is_dir: bool,
    pub size: u64,
}

/// Who has a lock.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct LockHolder {
    pub pid: u32,
    pub note: String,
}

#[pyclass(frozen, name = "Disk", module = "headrace._core")]
pub struct Disk {
    inner: Arc<dyn core::Disk>,
    /// The memory disk at the bottom, if there is one: only it can crash.
    memory: Option<MemoryDisk>,
}

impl Disk {
    pub fn inner(&self) -> Arc<dyn core::Disk> {
        self.inner.clone()
    }

    fn of_memory(memory: MemoryDisk) -> Self {
        Disk { inner: Arc::new(memory.clone()), memory: Some(memory) }
    }

    fn need_memory(&self) -> PyResult<&MemoryDisk> {
        self.memory.as_ref().ok_or_else(|| bad_input("only a memory disk can lose its power: use Disk.memory()"))
    }

    /// Runs one disk call without the interpreter's lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&dyn core::Disk) -> core::DiskResult<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| act(&*self.inner)).map_err(disk_error)
    }
}

#[pymethods]
impl Disk {
    #[staticmethod]
    #[pyo3(signature = (root=None))]
    fn real(root: Option<&str>) -> Self {
        let disk = root.map_or_else(RealDisk::default, RealDisk::below);
        Disk { inner: Arc::new(disk), memory: None }
    }

    #[staticmethod]
    fn memory() -> Self {
        Self::of_memory(MemoryDisk::new())
    }

    #[staticmethod]
    fn foreign(place: Py<PyAny>) -> Self {
        Disk { inner: Arc::new(ForeignDisk::new(place)), memory: None }
    }

    #[staticmethod]
    fn faulty(inner: &Disk, plan: &FaultPlan) -> Self {
        let faulty = core::FaultyDisk::new(inner.inner(), plan.0.clone());
        Disk { inner: Arc::new(faulty), memory: inner.memory.clone() }
    }

    #[pyo3(signature = (path, mode="read"))]
    fn open(&self, py: Python<'_>, path: &str, mode: &str) -> PyResult<DiskFile> {
        let mode = match mode {
            "read" => OpenMode::Read,
            "write" => OpenMode::Write,
            "create_new" => OpenMode::CreateNew,
            _ => return Err(bad_input(format!("unknown mode {mode:?}: use read, write or create_new"))),
        };
        self.call(py, |disk| disk.open(path, mode)).map(DiskFile)
    }

    #[pyo3(signature = (path, max_bytes=1_073_741_824))]
    fn read<'py>(&self, py: Python<'py>, path: &str, max_bytes: u64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.call(py, |disk| disk.read(path, max_bytes))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn list(&self, py: Python<'_>, path: &str) -> PyResult<Vec<(String, bool, u64)>> {
        let entries = self.call(py, |disk| disk.list(path))?;
        Ok(entries.into_iter().map(|entry| (entry.name, entry.is_dir, entry.len)).collect())
    }

    fn entry(&self, py: Python<'_>, path: &str) -> PyResult<Option<DiskEntry>> {
        let entry = self.call(py, |disk| disk.entry(path))?;
        Ok(entry.map(|entry| DiskEntry { is_dir: entry.is_dir, size: entry.len }))
    }

    /// Another number once the file was changed or replaced.
    fn stamp(&self, py: Python<'_>, path: &str) -> PyResult<u64> {
        self.call(py, |disk| disk.stamp(path))
    }

    fn create_dir_all(&self, py: Python<'_>, path: &str) -> PyResult<Vec<String>> {
        self.call(py, |disk| disk.create_dir_all(path))
    }

    fn rename(&self, py: Python<'_>, source: &str, target: &str) -> PyResult<()> {
        self.call(py, |disk| disk.rename(source, target))
    }

    fn remove_file(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        self.call(py, |disk| disk.remove_file(path))
    }

    fn remove_dir_all(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        self.call(py, |disk| disk.remove_dir_all(path))
    }

    fn sync_dir(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        self.call(py, |disk| disk.sync_dir(path))
    }

    fn replace_file(&self, py: Python<'_>, path: &str, data: &[u8]) -> PyResult<()> {
        self.call(py, |disk| core::replace_file(disk, path, data))
    }

    fn write_files(&self, py: Python<'_>, directory: &str, files: Vec<(String, Vec<u8>)>) -> PyResult<()> {
        self.call(py, |disk| core::write_files(disk, directory, &files))
    }

    fn create_files(&self, py: Python<'_>, directory: &str, files: Vec<(String, Vec<u8>)>) -> PyResult<()> {
        self.call(py, |disk| core::create_files(disk, directory, &files))
    }

    fn sync_files(&self, py: Python<'_>, directory: &str, names: Vec<String>) -> PyResult<()> {
        self.call(py, |disk| core::sync_files(disk, directory, &names))
    }

    fn lock(&self, py: Python<'_>, path: &str, note: &str) -> PyResult<DiskLock> {
        match self.call(py, |disk| disk.lock(path, note))? {
            Ok(lock) => Ok(DiskLock(Mutex::new(Some(lock)))),
            Err(holder) => Err(raise(
                "StoreLocked",
                format!(
                    "{path}: locked by process {} ({}); stop it, or open the store for reading only",
                    holder.pid, holder.note
                ),
            )),
        }
    }

    fn lock_holder(&self, py: Python<'_>, path: &str) -> PyResult<Option<LockHolder>> {
        let holder = self.call(py, |disk| disk.lock_holder(path))?;
        Ok(holder.map(|holder| LockHolder { pid: holder.pid, note: holder.note }))
    }

    fn sync_points(&self) -> PyResult<u64> {
        Ok(self.need_memory()?.sync_points())
    }

    fn power_cut_at(&self, k: u64) -> PyResult<()> {
        self.need_memory()?.power_cut_at(k);
        Ok(())
    }

    #[pyo3(signature = (seed, keep="random"))]
    fn crash(&self, py: Python<'_>, seed: u64, keep: &str) -> PyResult<Disk> {
        let chosen = Keep::from_name(keep)
            .ok_or_else(|| bad_input(format!("unknown keep {keep:?}: use none, all or random")))?;
        let memory = self.need_memory()?;
        Ok(Self::of_memory(py.detach(|| memory.crash(seed, chosen))))
    }

    fn flip_bit(&self, py: Python<'_>, path: &str, offset: u64, bit: u8) -> PyResult<()> {
        self.call(py, |disk| match &self.memory {
            Some(memory) => memory.flip_bit(path, offset, bit),
            None => core::flip_bit(disk, path, offset, bit),
        })
    }

    fn copy_tree_in(&self, py: Python<'_>, source: &str, target: &str) -> PyResult<()> {
        self.call(py, |disk| core::copy_tree(&RealDisk::default(), source, disk, target))
    }

    fn copy_tree_out(&self, py: Python<'_>, source: &str, target: &str) -> PyResult<()> {
        self.call(py, |disk| core::copy_tree(disk, source, &RealDisk::default(), target))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Disk>()?;
    module.add_class::<DiskEntry>()?;
    module.add_class::<DiskFile>()?;
    module.add_class::<DiskLock>()?;
    module.add_class::<LockHolder>()?;
    module.add_class::<FaultPlan>()
}
