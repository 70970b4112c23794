//! Taking messages out: one by one (with tombstones), behind a sequence (truncate), and rewriting blocks without what
//! is gone or lost. Limits are `evict`.

use super::block::Loaded;
use super::log::{BlockLog, Inner, LogError, LogResult, Writer};
use super::record::{
    self, Fields, HASH_SIZE, RECORD_BYTES_MIN, SEQUENCE_MASK, TOMBSTONE_BIT, View, encode_erased, encode_placeholder,
    encode_tombstone,
};

pub struct Removed {
    pub sequence: u64,
    pub time: i64,
    pub bytes: u64,
}

pub struct Truncation {
    pub removed: u64,
    /// The block that is cut, and what is to be its content; `None` when nothing of it changes.
    pub cut: Option<(u64, Vec<u8>)>,
    /// Tombstones of the part that goes, for messages that stay removed.
    pub tombstones: Vec<(u64, i64)>,
}

impl BlockLog {
    /// Removes live messages, tombstones first: nothing changes in memory unless they were written.
    pub fn remove(&self, sequences: &[u64]) -> LogResult<(Vec<Removed>, u64)> {
        self.check_sound()?;
        let mut wanted: Vec<u64> = sequences.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        // All blocks are looked into before anything changes: one that is not in memory has it begin again.
        self.reading(|inner| inner.remove(&wanted))
    }

    /// The bytes that overwrite a message in place: (block, offset in file, bytes). `None` if the block is
    /// packed (its file holds no plain record) or the message is gone.
    pub fn erasure(&self, sequence: u64, random: &[u8]) -> LogResult<Option<(u64, u64, Vec<u8>)>> {
        let mut inner = self.lock();
        let Some(index) = inner.block_at(sequence).filter(|i| inner.blocks[*i].is_live(sequence)) else {
            return Ok(None);
        };
        let (number, key) = (inner.blocks[index].number, inner.blocks[index].key);
        if inner.blocks[index].cipher.is_some() {
            return Ok(None);
        }
        let erased = inner.with_record(index, sequence, |_, view| (view.offset, encode_erased(&key, view, random)))?;
        Ok(erased.map(|(offset, bytes)| (number, offset as u64, bytes)))
    }

    /// The file was changed under the cache: the newest block's copy is patched, others are read again.
    pub fn patched(&self, number: u64, offset: u64, bytes: &[u8]) {
        let mut inner = self.lock();
        inner.cache.forget(number);
        let hash: Option<[u8; HASH_SIZE]> = bytes[bytes.len() - HASH_SIZE..].try_into().ok();
        let mut end_len = 0;
        if let Some(writer) = inner.writer.as_mut().filter(|w| w.number == number) {
            let start = offset as usize;
            writer.data[start..start + bytes.len()].copy_from_slice(bytes);
            end_len = writer.data.len();
        }
        let file_len = inner.blocks.iter().find(|b| b.number == number).map_or(0, |b| b.file_len);
        let at_end = offset as usize + bytes.len() == end_len.max(file_len as usize);
        if let (true, Some(hash), Some(block)) = (at_end, hash, inner.blocks.iter_mut().find(|b| b.number == number)) {
            block.last_hash = hash;
        }
    }

    /// Removes everything above `sequence` in memory and says what the files must become.
    pub fn truncate_after(&self, sequence: u64) -> LogResult<Truncation> {
        self.lock().truncate_after(sequence)
    }

    /// A sealed block without its dead records: holes stay holes, tombstones stay while they refer to blocks
    /// that are there.
    pub fn compacted(&self, number: u64) -> LogResult<Vec<u8>> {
        let _held = self.hold(number, &[])?;
        let mut inner = self.lock();
        let index = inner.index_of(number)?;
        let loaded = inner.loaded(index)?;
        let oldest = inner.blocks.first().map_or(0, |b| b.file_first);
        let mut out = Vec::new();
        for view in views(&loaded) {
            let block = &inner.blocks[index];
            let keep = match (view.is_tombstone(), view.is_message()) {
                (true, _) => view.sequence() >= oldest && view.sequence() < block.first,
                (_, true) => block.is_live(view.sequence()),
                _ => false,
            };
            if keep {
                out.extend_from_slice(&loaded.data[view.offset..view.end()]);
            }
        }
        Ok(out)
    }

    /// A block with its sound records, and a placeholder for every sequence that is known to be lost: one between
    /// its neighbours, for a number read out of unsound bytes proves nothing.
    pub fn sound_copy(&self, number: u64) -> LogResult<Vec<u8>> {
        let mut inner = self.lock();
        let index = inner.index_of(number)?;
        let mut lost: Vec<u64> = inner
            .findings
            .iter()
            .filter(|(n, f)| *n == number && f.kind == super::scan::FindingKind::BadRecord)
            .filter_map(|(_, f)| f.sequences.map(|s| s.0))
            .collect();
        lost.sort_unstable();
        lost.dedup();
        let loaded = inner.loaded(index)?;
        let key = inner.blocks[index].key;
        let mut out = Vec::with_capacity(loaded.data.len());
        let mut last = inner.blocks[..index].iter().map(|block| block.last).max().unwrap_or(0);
        for view in views(&loaded) {
            if !view.is_tombstone() {
                for sequence in lost.iter().filter(|s| **s > last && **s < view.sequence()) {
                    encode_placeholder(&mut out, &key, *sequence, view.time);
                }
                last = last.max(view.sequence());
            }
            out.extend_from_slice(&loaded.data[view.offset..view.end()]);
        }
        let next = inner.blocks[index + 1..].iter().find(|block| block.last > last).map(|block| block.first);
        for sequence in lost.iter().filter(|s| **s > last && next.is_some_and(|next| **s < next)) {
            encode_placeholder(&mut out, &key, *sequence, 0);
        }
        Ok(out)
    }

    /// A block's file was replaced: take its new size, read its bytes again when needed.
    pub fn replaced(&self, number: u64, file_len: u64) -> LogResult<()> {
        let mut inner = self.lock();
        inner.cache.forget(number);
        inner.findings.retain(|(n, _)| *n != number);
        let index = inner.index_of(number)?;
        inner.blocks[index].file_len = file_len;
        drop(inner);
        let Some(loaded) = self.hold(number, &[])? else { return Ok(()) };
        let mut inner = self.lock();
        if let (Ok(index), Some(hash)) = (inner.index_of(number), loaded.data.last_chunk::<HASH_SIZE>()) {
            inner.blocks[index].last_hash = *hash;
        }
        Ok(())
    }

    /// Tombstones of a block that still matter: for messages in blocks that stay. And whether it has any at all:
    /// such a file may go only when the older ones that it speaks of are gone for good.
    pub fn tombstones_of(&self, number: u64) -> LogResult<(Vec<(u64, i64)>, bool)> {
        let known = self.lock().dead_tombstones.remove(&number);
        let all = known.map_or_else(|| self.read_tombstones(number), Ok)?;
        let inner = self.lock();
        let matters = |tombstone: &&(u64, i64)| {
            let target = inner.block_at(tombstone.0).map(|i| &inner.blocks[i]);
            target.is_some_and(|b| b.number < number && b.file_first <= tombstone.0)
        };
        Ok((all.iter().filter(matters).copied().collect(), !all.is_empty()))
    }

    fn read_tombstones(&self, number: u64) -> LogResult<Vec<(u64, i64)>> {
        let inner = self.lock();
        let block = super::block::Block::new(number, &inner.stream, None);
        let (disk, path, guard_path) = (inner.disk.clone(), inner.block_path(number), inner.guard_path(number));
        drop(inner);
        let guard = disk.read(&guard_path, 1 << 30).ok();
        let (data, _, scan) = super::block::load(disk.as_ref(), &path, &block, guard.as_deref())?;
        let tombstones = scan.records.iter().filter(|record| record.raw_sequence & TOMBSTONE_BIT != 0);
        let time = |offset: u32| View::parse(&data, offset as usize).map_or(0, |view| view.time);
        Ok(tombstones.map(|record| (record.raw_sequence & SEQUENCE_MASK, time(record.offset))).collect())
    }

    /// Blocks that are out of the list and wait to be unlinked.
    pub fn take_dead(&self) -> Vec<u64> {
        std::mem::take(&mut self.lock().dead)
    }

    /// Forgets everything but the last sequence and its time (purge).
    pub fn clear(&self) -> (u64, u64) {
        let mut inner = self.lock();
        let gone = (inner.msgs, inner.bytes);
        inner.blocks.clear();
        inner.subjects.clear();
        inner.chain = None;
        inner.evicted.saved();
        inner.cache.clear();
        inner.writer = None;
        inner.unsynced.clear();
        inner.findings.clear();
        (inner.msgs, inner.bytes) = (0, 0);
        inner.dead.clear();
        inner.dead_tombstones.clear();
        gone
    }
}

/// The sound records of a loaded block in file order.
fn views(loaded: &Loaded) -> Vec<View> {
    let data = &loaded.data;
    let Some(others) = &loaded.others else {
        let mut at = 0;
        return std::iter::from_fn(|| {
            let view = View::parse(data, at).ok()?;
            at = view.end();
            Some(view)
        })
        .collect();
    };
    let mut offsets = loaded.lookup.offsets();
    offsets.extend_from_slice(others);
    offsets.sort_unstable();
    offsets.into_iter().filter_map(|offset| View::parse(data, offset as usize).ok()).collect()
}

impl Inner {
    pub fn index_of(&self, number: u64) -> LogResult<usize> {
        self.blocks.iter().position(|b| b.number == number).ok_or(LogError::NoBlock(number))
    }

    fn remove(&mut self, sequences: &[u64]) -> LogResult<(Vec<Removed>, u64)> {
        let (mut found, mut subjects) = (Vec::with_capacity(sequences.len()), Vec::with_capacity(sequences.len()));
        for sequence in sequences.iter().copied() {
            let Some(index) = self.block_at(sequence).filter(|i| self.blocks[*i].is_live(sequence)) else { continue };
            let as_memory = self.counts_as_memory;
            let seen = self.with_record(index, sequence, |data, view| {
                (view.time, view.counted(as_memory), Some(view.subject(data).to_vec()))
            })?;
            let (time, bytes, subject) = seen.unwrap_or((0, 0, None));
            found.push(Removed { sequence, time, bytes });
            subjects.push(subject);
        }
        let tombstones: Vec<(u64, i64)> = found.iter().map(|r| (r.sequence, r.time)).collect();
        let mark = self.write_tombstones(&tombstones)?;
        for (removed, subject) in found.iter().zip(subjects) {
            if let Some(subject) = subject {
                self.remove_from_subject(&subject, removed.sequence);
            }
            if let Some(index) = self.block_at(removed.sequence) {
                self.take_out(index, removed.sequence, removed.bytes);
            }
        }
        Ok((found, mark))
    }

    /// Takes one live message out of all counts. Its record stays where it is.
    pub fn remove_live(&mut self, sequence: u64) -> LogResult<Option<u64>> {
        let Some(index) = self.block_at(sequence).filter(|i| self.blocks[*i].is_live(sequence)) else {
            return Ok(None);
        };
        let as_memory = self.counts_as_memory;
        let seen =
            self.with_record(index, sequence, |data, view| (view.subject(data).to_vec(), view.counted(as_memory)))?;
        let bytes = seen.as_ref().map_or(0, |s| s.1);
        if let Some((subject, _)) = &seen {
            self.remove_from_subject(subject, sequence);
        }
        self.take_out(index, sequence, bytes);
        Ok(Some(bytes))
    }

    pub fn remove_from_subject(&mut self, subject: &[u8], sequence: u64) {
        if let Some(state) = self.subjects.get_mut(subject)
            && !state.removed(sequence)
        {
            self.subjects.remove(subject);
        }
    }

    pub fn take_out(&mut self, index: usize, sequence: u64, bytes: u64) {
        self.blocks[index].removed(sequence, bytes);
        if let Some(chain) = self.chain.as_mut() {
            chain.unlink(sequence);
        }
        self.msgs -= 1;
        self.bytes -= bytes.min(self.bytes);
        self.drop_if_dead(index);
    }

    /// A second copy of a message that is live in a later block: only the counts go back.
    pub fn remove_copy(&mut self, index: usize, sequence: u64) -> LogResult<()> {
        let as_memory = self.counts_as_memory;
        let seen =
            self.with_record(index, sequence, |data, view| (view.subject(data).to_vec(), view.counted(as_memory)))?;
        let Some((subject, bytes)) = seen else { return Ok(()) };
        if let Some(state) = self.subjects.get_mut(&subject) {
            state.msgs -= 1;
        }
        self.blocks[index].removed(sequence, bytes);
        self.msgs -= 1;
        self.bytes -= bytes;
        Ok(())
    }

    /// A sealed block without live messages leaves the list; its file goes when the caller says so.
    fn drop_if_dead(&mut self, index: usize) {
        let number = self.blocks[index].number;
        let writing = self.writer.as_ref().is_some_and(|w| w.number == number);
        if self.writer.is_some() && !writing && self.blocks[index].msgs == 0 {
            if let Some(loaded) = self.cache.get(number) {
                let tombstones = views(&loaded).into_iter().filter(View::is_tombstone);
                let tombstones = tombstones.map(|view| (view.sequence(), view.time)).collect();
                self.dead_tombstones.insert(number, tombstones);
            }
            self.blocks.remove(index);
            self.cache.forget(number);
            self.dead.push(number);
        }
    }

    /// Blocks that were found without live messages when the log was opened.
    pub fn drop_dead_blocks(&mut self) {
        for index in (0..self.blocks.len()).rev() {
            self.drop_if_dead(index);
        }
    }

    fn truncate_after(&mut self, sequence: u64) -> LogResult<Truncation> {
        let before = self.msgs;
        self.chain = None;
        let mut tombstones = Vec::new();
        let mut cut = None;
        // Every block stays in the list until all its messages were taken out of the counts.
        let writer = self.writer.take();
        if let Some(writer) = writer {
            let data = std::sync::Arc::new(writer.data);
            let loaded = Loaded { data, lookup: writer.lookup, others: None };
            self.cache.put(writer.number, std::sync::Arc::new(loaded));
        }
        for index in (0..self.blocks.len()).rev() {
            let number = self.blocks[index].number;
            let loaded = self.loaded(index)?;
            let all = views(&loaded);
            let above = |view: &View| view.sequence() > sequence;
            let end = all.iter().find(|v| !v.is_tombstone() && above(v)).map(|v| v.offset);
            let gone: Vec<u64> =
                (sequence + 1..=self.blocks[index].last).filter(|s| self.blocks[index].is_live(*s)).collect();
            for one in gone.into_iter().rev() {
                self.remove_live(one)?;
            }
            // A block without a record that stays goes as a whole: what it knows of others is written again.
            let stays = all.iter().any(|v| !v.is_tombstone() && !above(v));
            let from = if stays { end.unwrap_or(loaded.data.len()) } else { 0 };
            let behind = |view: &&View| view.offset >= from && view.is_tombstone() && !above(view);
            tombstones.extend(all.iter().filter(behind).map(|v| (v.sequence(), v.time)));
            if !stays {
                self.blocks.remove(index);
                self.cache.forget(number);
                self.dead.push(number);
                continue;
            }
            let kept = all.iter().filter(|v| v.offset < from && !(v.is_tombstone() && above(v)));
            let time = kept.clone().filter(|v| !v.is_tombstone()).map(|v| v.time).max();
            let data: Vec<u8> = kept.flat_map(|v| &loaded.data[v.offset..v.end()]).copied().collect();
            let block = &mut self.blocks[index];
            block.last_time = time.unwrap_or(block.last_time);
            block.last = sequence.min(block.last);
            block.first = block.first.min(block.last + 1);
            block.deleted = block.deleted.iter().filter(|s| *s <= sequence).collect();
            block.subjects = None;
            if data.len() != loaded.data.len() {
                cut = Some((number, data));
                self.cache.forget(number);
            }
            break;
        }
        self.last = sequence;
        self.last_time = match self.blocks.iter().position(|b| b.is_live(sequence)) {
            Some(index) => self.with_record(index, sequence, |_, view| view.time)?.unwrap_or(0),
            None => {
                let removed = tombstones.iter().map(|t: &(u64, i64)| t.1).max();
                removed.max(self.blocks.last().map(|b| b.last_time)).unwrap_or(0)
            }
        };
        Ok(Truncation { removed: before - self.msgs, cut, tombstones })
    }

    /// The records behind the old block's durable part, for the block that was just started.
    pub fn encode_tail(&self, old: &Writer) -> Vec<u8> {
        let key = self.blocks[self.blocks.len() - 1].key;
        let mut out = Vec::new();
        for view in tail_views(old) {
            let fields = Fields {
                raw_sequence: view.raw_sequence,
                time: view.time,
                subject: view.subject(&old.data),
                headers: view.headers(&old.data),
                data: view.data(&old.data),
            };
            record::encode(&mut out, &key, &fields);
        }
        let last_is_live = self.block_at(self.last).is_some_and(|index| self.blocks[index].is_live(self.last));
        if out.is_empty() && !last_is_live {
            // The last sequence must not hang on a block that may go.
            encode_tombstone(&mut out, &key, self.last, self.last_time);
        }
        out
    }

    /// The records of `encode_tail` are on disk: from now on they are the new block's.
    pub fn adopt_tail(&mut self, old: &Writer) {
        let (new, old_index) = (self.blocks.len() - 1, self.blocks.len() - 2);
        let mut moved: Vec<(View, u32, bool)> = Vec::new();
        let mut offset = 0;
        for view in tail_views(old) {
            let live = view.is_message() && self.blocks[old_index].is_live(view.sequence());
            moved.push((view, offset, live));
            offset += view.len as u32;
        }
        self.blocks[old_index].file_len = old.durable_len as u64;
        if old.durable_len >= HASH_SIZE {
            let end = old.durable_len;
            self.blocks[old_index].last_hash = old.data[end - HASH_SIZE..end].try_into().expect("eight bytes");
        }
        let cut = moved.iter().filter(|m| !m.0.is_tombstone()).map(|m| m.0.sequence()).min();
        let Some(cut) = cut else { return };
        (self.blocks[new].first, self.blocks[new].last) = (cut, cut - 1);
        self.blocks[new].file_first = cut;
        for (view, offset, live) in moved.iter().filter(|m| !m.0.is_tombstone()) {
            let (sequence, bytes) = (view.raw_sequence & SEQUENCE_MASK, view.counted(self.counts_as_memory));
            if *live {
                self.blocks[old_index].removed(sequence, bytes);
                self.blocks[new].stored(sequence, view.time, bytes);
            } else {
                self.blocks[new].skipped(sequence);
            }
            if view.is_message()
                && let Some(writer) = self.writer.as_mut()
            {
                writer.lookup.push(sequence, *offset);
            }
        }
        let block = &mut self.blocks[old_index];
        block.last = cut - 1;
        block.first = block.first.min(cut);
        block.deleted = block.deleted.iter().filter(|s| *s < cut).collect();
        self.drop_if_dead(old_index);
    }
}

/// What a writer holds behind its durable part.
fn tail_views(writer: &Writer) -> impl Iterator<Item = View> + '_ {
    let mut at = writer.durable_len;
    std::iter::from_fn(move || {
        let view = View::parse(&writer.data, at).ok()?;
        at = view.end();
        Some(view)
    })
}

/// One tombstone as a whole block: what a purge leaves.
pub fn tombstone_block(stream: &[u8], number: u64, sequence: u64, time: i64) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECORD_BYTES_MIN);
    encode_tombstone(&mut out, &super::block::block_key(stream, number), sequence, time);
    debug_assert!(record::u64_at(&out, record::SEQUENCE) & TOMBSTONE_BIT != 0);
    out
}
