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
    log: Arc<dyn DiskFile>,
    /// Opened with their first entry: a thousand small logs are a thousand files, not three thousand.
    index_file: Option<Arc<dyn DiskFile>>,
    times_file: Option<Arc<dyn DiskFile>>,
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
            log: disk.open(&format!("{stem}.log"), OpenMode::Write)?,
            index_file: None,
            times_file: None,
            size,
            first_batch_time,
            index,
            index_written: 0,
            times_written: 0,
        };
        // An index of the broker may have room at its end that was not used.
        for (ending, len) in [("index", writer.index.index.len()), ("timeindex", writer.index.times.len())] {
            let path = format!("{stem}.{ending}");
            if disk.entry(&path)?.is_some_and(|entry| entry.len != len as u64) {
                disk.open(&path, OpenMode::Write)?.set_len(len as u64)?;
            }
        }
        writer.flush_index()?;
        Ok(writer)
    }

    /// Writes pieces from `from` on while the segment stays within `bytes_max` (one at least into an empty segment);
    /// returns how many.
    pub fn append(&mut self, encoded: &Encoded, from: usize, bytes_max: u64) -> DiskResult<usize> {
        let pieces = &encoded.pieces[from..];
        let Some(first) = pieces.first() else { return Ok(0) };
        let room = bytes_max.saturating_sub(self.size) as usize;
        let end_of = |count: usize| pieces[count - 1].at + pieces[count - 1].header.size;
        let mut taken = pieces.partition_point(|piece| piece.at + piece.header.size - first.at <= room);
        if taken == 0 && self.size == 0 {
            taken = 1;
        }
        if taken == 0 {
            return Ok(0);
        }
        let bytes = &encoded.bytes[first.at..end_of(taken)];
        if let Err(error) = self.log.write_at(self.size, bytes) {
            // If the cut fails too, the next write covers the same bytes.
            let _ = self.log.set_len(self.size);
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
            self.index_written = self.index.index.len();
        }
        if self.times_written < self.index.times.len() {
            let file = opened(&mut self.times_file, &self.disk, &self.stem, "timeindex")?;
            file.write_at(self.times_written as u64, &self.index.times[self.times_written..])?;
            self.times_written = self.index.times.len();
        }
        Ok(())
    }

    pub fn log_file(&self) -> Arc<dyn DiskFile> {
        self.log.clone()
    }

    /// Entries in the two indexes.
    pub fn entries(&self) -> (usize, usize) {
        (self.index.index.len() / ENTRY_BYTES, self.index.times.len() / TIME_ENTRY_BYTES)
    }

    /// The last entry of the time index, then everything on disk.
    pub fn close(&mut self) -> DiskResult<()> {
        self.index.close();
        self.flush_index()?;
        opened(&mut self.index_file, &self.disk, &self.stem, "index")?.sync_data()?;
        opened(&mut self.times_file, &self.disk, &self.stem, "timeindex")?.sync_data()?;
        self.log.sync_data()
    }
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
