//! The active segment: batches at its end, index entries beside it.
//!
//! The indexes are kept in memory too (they are small) and written without a sync: they can be made again from the
//! log. A write of the log that fails leaves nothing behind.

use std::sync::Arc;

use super::encode::Encoded;
use super::index::{ENTRY_BYTES, IndexBuilder, TIME_ENTRY_BYTES};
use crate::disk::{Disk, DiskFile, DiskResult, OpenMode};

pub struct SegmentWriter {
    disk: Arc<dyn Disk>,
    stem: String,
    /// Opened when needed, and again after `release_files`.
    log: Option<Arc<dyn DiskFile>>,
    /// Opened with their first entry: a thousand small logs are a thousand files, not three thousand.
    index_file: Option<Arc<dyn DiskFile>>,
    times_file: Option<Arc<dyn DiskFile>>,
    /// Entries were written since the files were opened for this segment.
    index_dirty: bool,
    times_dirty: bool,
    pub size: u64,
    /// The largest time of the first batch; −1 before it.
    pub first_batch_time: i64,
    pub index: IndexBuilder,
    index_written: usize,
    times_written: usize,
}

impl SegmentWriter {
    /// `stem` is the path without its ending. The index files must be as `index` has them, or are made so.
    pub fn open(
        disk: &Arc<dyn Disk>,
        stem: &str,
        size: u64,
        first_batch_time: i64,
        index: IndexBuilder,
    ) -> DiskResult<Self> {
        let mut writer = SegmentWriter {
            disk: disk.clone(),
            stem: stem.to_owned(),
            log: Some(disk.open(&format!("{stem}.log"), OpenMode::Write)?),
            index_file: None,
            times_file: None,
            index_dirty: false,
            times_dirty: false,
            size,
            first_batch_time,
            index,
            index_written: 0,
            times_written: 0,
        };
        // An index of the broker may have room at its end that was not used.
        let lengths = (writer.index.index.len() as u64, writer.index.times.len() as u64);
        writer.index_dirty = cut(disk, &format!("{stem}.index"), lengths.0)?;
        writer.times_dirty = cut(disk, &format!("{stem}.timeindex"), lengths.1)?;
        writer.flush_index()?;
        Ok(writer)
    }

    /// Writes pieces from `from` on while the segment stays within `bytes_max` (one at least into an empty segment);
    /// returns how many.
    pub fn append(&mut self, encoded: &Encoded, from: usize, bytes_max: u64) -> DiskResult<usize> {
        let pieces = &encoded.pieces[from..];
        let Some(first) = pieces.first() else { return Ok(0) };
        let left = bytes_max.saturating_sub(self.size) as usize;
        let end_of = |count: usize| pieces[count - 1].at + pieces[count - 1].header.size;
        let mut taken = pieces.partition_point(|piece| piece.at + piece.header.size - first.at <= left);
        if taken == 0 && self.size == 0 {
            taken = 1;
        }
        if taken == 0 {
            return Ok(0);
        }
        let bytes = &encoded.bytes[first.at..end_of(taken)];
        let log = opened(&mut self.log, &self.disk, &self.stem, "log")?;
        if let Err(error) = log.write_at(self.size, bytes) {
            // If the cut fails too, the next write covers the same bytes.
            let _ = log.set_len(self.size);
            return Err(error);
        }
        for piece in &pieces[..taken] {
            let position = self.size + (piece.at - first.at) as u64;
            if position == 0 {
                self.first_batch_time = piece.header.max_time;
            }
            self.index.batch(position, piece.header.size, piece.header.last, piece.header.max_time);
        }
        self.size += bytes.len() as u64;
        // A full disk refuses the index too; the log is written, and the next append tries again.
        let _ = self.flush_index();
        Ok(taken)
    }

    fn flush_index(&mut self) -> DiskResult<()> {
        if self.index_written < self.index.index.len() {
            let file = opened(&mut self.index_file, &self.disk, &self.stem, "index")?;
            file.write_at(self.index_written as u64, &self.index.index[self.index_written..])?;
            (self.index_written, self.index_dirty) = (self.index.index.len(), true);
        }
        if self.times_written < self.index.times.len() {
            let file = opened(&mut self.times_file, &self.disk, &self.stem, "timeindex")?;
            file.write_at(self.times_written as u64, &self.index.times[self.times_written..])?;
            (self.times_written, self.times_dirty) = (self.index.times.len(), true);
        }
        Ok(())
    }

    /// What a sync is asked of; None when the file is not open: then it was synced before it was closed.
    pub fn log_file(&self) -> Option<Arc<dyn DiskFile>> {
        self.log.clone()
    }

    /// Give the descriptors up until the next append. The caller has synced the log: an error of the disk is reported to
    /// those who have the file open.
    pub fn release_files(&mut self) {
        (self.log, self.index_file, self.times_file) = (None, None, None);
    }

    /// Entries in the two indexes.
    pub fn entries(&self) -> (usize, usize) {
        (self.index.index.len() / ENTRY_BYTES, self.index.times.len() / TIME_ENTRY_BYTES)
    }

    /// The last entry of the time index, then everything on disk.
    pub fn close(&mut self) -> DiskResult<()> {
        self.index.close();
        self.flush_index()?;
        // Both must be there, also empty; what was not written needs no sync.
        let index = opened(&mut self.index_file, &self.disk, &self.stem, "index")?;
        if std::mem::take(&mut self.index_dirty) {
            index.sync_data()?;
        }
        let times = opened(&mut self.times_file, &self.disk, &self.stem, "timeindex")?;
        if std::mem::take(&mut self.times_dirty) {
            times.sync_data()?;
        }
        opened(&mut self.log, &self.disk, &self.stem, "log")?.sync_data()
    }
}

/// Whether the file had to be given that length.
fn cut(disk: &Arc<dyn Disk>, path: &str, len: u64) -> DiskResult<bool> {
    let differs = disk.entry(path)?.is_some_and(|entry| entry.len != len);
    if differs {
        disk.open(path, OpenMode::Write)?.set_len(len)?;
    }
    Ok(differs)
}

fn opened<'a>(
    slot: &'a mut Option<Arc<dyn DiskFile>>,
    disk: &Arc<dyn Disk>,
    stem: &str,
    ending: &str,
) -> DiskResult<&'a Arc<dyn DiskFile>> {
    if slot.is_none() {
        *slot = Some(disk.open(&format!("{stem}.{ending}"), OpenMode::Write)?);
    }
    Ok(slot.as_ref().expect("just opened"))
}
