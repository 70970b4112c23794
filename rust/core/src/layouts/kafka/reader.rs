//! Messages and raw batches of one segment, from an offset on: index, then scan, past damage.

use std::sync::Arc;

use super::header::{HEADER_V2, Header};
use super::index;
use super::records::{self, Sink, time_ns};
use super::walk::{Step, Walker};
use crate::batch::{Batch, Entry, HeaderCodec, Span, flags};
use crate::disk::{Disk, DiskFile, DiskResult, Mapped, OpenMode, Window};

const LOOKUP_BYTES: usize = 16 << 10;
/// Entries that may be wrong before a search begins at the segment's first byte.
const ENTRIES_TRIED: usize = 16;

pub struct SegmentReader {
    file: Arc<dyn DiskFile>,
    base: i64,
    ceiling: Option<i64>,
    subject: Vec<u8>,
    index: Mapped,
    times: Mapped,
    inflated_max: usize,
}

/// Where a reader stands: a byte position at which a batch begins, and the last offset before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPosition {
    pub position: u64,
    pub last: i64,
}

pub struct Want<'a> {
    /// Half-open.
    pub first: i64,
    pub next: i64,
    pub messages_max: usize,
    pub bytes_max: usize,
    pub control: bool,
    /// Aborted transactions to leave out: (producer, first offset, marker's offset).
    pub aborted: &'a [(i64, i64, i64)],
    /// Bytes of the file that count.
    pub limit: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub kind: &'static str,
    pub offset: u64,
    pub len: u64,
    pub sequences: Option<(i64, i64)>,
    pub detail: String,
}

pub struct Read {
    pub batch: Batch,
    pub place: BatchPosition,
    pub ended: bool,
    pub findings: Vec<Finding>,
}

/// Batches as they are stored.
#[derive(Default)]
pub struct RawRun {
    pub bytes: Vec<u8>,
    pub first: i64,
    pub next: i64,
    pub count: u64,
    pub max_time: i64,
}

impl SegmentReader {
    pub fn new(
        disk: &Arc<dyn Disk>,
        log_path: &str,
        base: i64,
        ceiling: Option<i64>,
        subject: &[u8],
        inflated_max: usize,
    ) -> DiskResult<SegmentReader> {
        let file = disk.open(log_path, OpenMode::Read)?;
        let (index, times) = (Mapped::default(), Mapped::default());
        Ok(SegmentReader { file, base, ceiling, subject: subject.to_vec(), index, times, inflated_max })
    }

    /// The indexes of a segment that nobody writes to any more, mapped.
    pub fn map_indexes(&mut self, disk: &Arc<dyn Disk>, index_path: &str, times_path: &str) -> DiskResult<()> {
        self.index = disk.open(index_path, OpenMode::Read)?.map()?;
        self.times = disk.open(times_path, OpenMode::Read)?.map()?;
        Ok(())
    }

    /// Indexes that were made in memory.
    pub fn set_indexes(&mut self, index: Vec<u8>, times: Vec<u8>) {
        (self.index, self.times) = (index.into(), times.into());
    }

    pub fn len(&self) -> DiskResult<u64> {
        self.file.len()
    }

    pub fn is_empty(&self) -> DiskResult<bool> {
        self.file.is_empty()
    }

    /// Where to begin scanning for `offset`, and whether the index was right. An entry that does not lead to a batch
    /// with its offset is not followed; the one before it is tried.
    pub fn locate(&self, offset: i64, entries: Option<&[u8]>) -> DiskResult<(BatchPosition, bool)> {
        let entries = entries.unwrap_or(&self.index);
        let count = index::lookup(entries, self.base, offset);
        let mut right = true;
        for at in (0..count).rev().take(ENTRIES_TRIED) {
            let Some((last, position)) = index::entry_at(entries, self.base, at) else { break };
            let header = Header::parse(&self.file.read_at(position, HEADER_V2)?);
            match header {
                Ok(header) if header.last == last && last <= offset && header.base >= self.base => {
                    return Ok((BatchPosition { position, last: header.base - 1 }, right));
                }
                _ => right = false,
            }
        }
        Ok((BatchPosition { position: 0, last: self.base - 1 }, right))
    }

    /// The batch that holds `offset`, by headers alone; (place, header, batches passed).
    pub fn find(&self, offset: i64, from: BatchPosition) -> DiskResult<Option<(BatchPosition, Header, u64)>> {
        let mut window = Window::new(self.file.clone(), self.file.len()?, LOOKUP_BYTES);
        let (mut place, mut passed) = (from, 0);
        loop {
            let Ok(header) = Header::parse(window.upto(place.position, HEADER_V2)?) else { return Ok(None) };
            if header.last >= offset {
                return Ok(Some((place, header, passed)));
            }
            place = BatchPosition { position: place.position + header.size as u64, last: header.last };
            passed += 1;
        }
    }

    /// One run of messages over one buffer, `bytes_max` of the file at most but one batch at least.
    pub fn read(&self, from: BatchPosition, want: &Want<'_>) -> DiskResult<Read> {
        let mut run = Run::new(self, from, want);
        while !run.ended && run.entries.is_empty() {
            run.chunk()?;
        }
        Ok(run.finish())
    }

    /// Whole batches as they are stored, checked but not opened, from the one that holds `first` on.
    pub fn read_raw(
        &self,
        from: BatchPosition,
        first: i64,
        bytes_max: usize,
        limit: u64,
    ) -> DiskResult<(RawRun, BatchPosition)> {
        let mut walker = self.walker(from, limit);
        let mut run = RawRun { first: -1, next: first, max_time: -1, ..RawRun::default() };
        loop {
            let before = BatchPosition { position: walker.position, last: walker.last };
            let (header, patch) = match walker.step()? {
                Step::End => return Ok((run, before)),
                Step::Bad(_) if run.count == 0 && run.bytes.is_empty() => continue,
                Step::Bad(_) => return Ok((run, before)),
                Step::Repaired(header, at, bytes, _) => (header, Some((at, bytes))),
                Step::Sound(header) => (header, None),
            };
            if header.last < first {
                continue;
            }
            if !run.bytes.is_empty() && run.bytes.len() + header.size > bytes_max {
                return Ok((run, before));
            }
            let start = run.bytes.len();
            run.bytes.extend_from_slice(walker.batch(&header)?);
            if let Some((at, bytes)) = patch {
                let at = start + (at - before.position) as usize;
                run.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            if run.first < 0 {
                run.first = header.base;
            }
            run.next = header.last + 1;
            run.count += header.count.max(0) as u64;
            run.max_time = run.max_time.max(header.max_time);
        }
    }

    /// The first message at or after `time_ms` (and at or above `first`): its offset.
    pub fn find_time(
        &self,
        time_ms: i64,
        first: i64,
        entries: Option<(&[u8], &[u8])>,
        limit: u64,
    ) -> DiskResult<Option<i64>> {
        let times = entries.map_or(&self.times[..], |(_, times)| times);
        let offset = index::lookup_time(times, self.base, time_ms.saturating_sub(1)).max(self.base);
        let (place, _) = self.locate(offset, entries.map(|(index, _)| index))?;
        let mut walker = self.walker(place, limit);
        loop {
            let header = match walker.step()? {
                Step::End => return Ok(None),
                Step::Bad(_) => continue,
                Step::Sound(header) | Step::Repaired(header, ..) => header,
            };
            if header.max_time < time_ms || header.last < first || header.is_control() {
                continue;
            }
            let (mut buffer, mut entries) = (walker.batch(&header)?.to_vec(), Vec::new());
            let mut sink = Sink {
                buffer: &mut buffer,
                entries: &mut entries,
                subject: Span::NULL,
                inflated_max: self.inflated_max,
            };
            if records::decode(&mut sink, 0, &header).is_err() {
                continue;
            }
            let hit = entries.iter().find(|e| e.time >= time_ns(time_ms) && e.position as i64 >= first);
            if let Some(entry) = hit {
                return Ok(Some(entry.position as i64));
            }
        }
    }

    fn walker(&self, from: BatchPosition, limit: u64) -> Walker {
        let mut walker = Walker::new(self.file.clone(), limit, self.base, self.ceiling, self.index.to_vec());
        walker.resume(from.position, from.last);
        walker
    }
}

/// One call of `read`: a chunk of the file, and the messages found in it.
struct Run<'a> {
    reader: &'a SegmentReader,
    want: &'a Want<'a>,
    start: BatchPosition,
    place: BatchPosition,
    /// Batches below `first` are passed by their headers alone, until one of those turns out to be wrong.
    strict: bool,
    ended: bool,
    buffer: Vec<u8>,
    entries: Vec<Entry>,
    findings: Vec<Finding>,
}

impl<'a> Run<'a> {
    fn new(reader: &'a SegmentReader, from: BatchPosition, want: &'a Want<'a>) -> Self {
        let (buffer, entries, findings) = (Vec::new(), Vec::new(), Vec::new());
        Run { reader, want, start: from, place: from, strict: false, ended: false, buffer, entries, findings }
    }

    fn chunk(&mut self) -> DiskResult<()> {
        let left = self.want.limit.saturating_sub(self.place.position);
        if left == 0 {
            self.ended = true;
            return Ok(());
        }
        let wanted = (self.want.bytes_max as u64).max(HEADER_V2 as u64).min(left) as usize;
        self.buffer = self.reader.file.read_at(self.place.position, wanted)?;
        if let Ok(header) = Header::parse(&self.buffer) {
            if header.size > self.buffer.len() && header.size as u64 <= left {
                self.buffer = self.reader.file.read_at(self.place.position, header.size)?;
            }
        }
        let (chunk_start, chunk_len) = (self.place.position, self.buffer.len());
        let subject = Span { offset: chunk_len as u32, len: self.reader.subject.len() as u32 };
        self.buffer.extend_from_slice(&self.reader.subject);
        loop {
            let at = (self.place.position - chunk_start) as usize;
            if at >= chunk_len {
                self.ended |= self.place.position >= self.want.limit;
                return Ok(());
            }
            let bytes = &self.buffer[at..chunk_len];
            let parsed = Header::parse(bytes);
            let fits = parsed.is_ok_and(|h| h.base > self.place.last && h.size <= bytes.len());
            // The chunk ends within a batch that the file has whole: the next chunk begins with it.
            let in_file = self.want.limit - self.place.position;
            let cut = match parsed {
                Ok(header) => header.size > bytes.len() && header.size as u64 <= in_file,
                Err(_) => (bytes.len() as u64) < in_file && bytes.len() < HEADER_V2,
            };
            if cut && at > 0 {
                return Ok(());
            }
            if let Some(header) = parsed.as_ref().ok().filter(|_| fits) {
                if !self.strict && header.last < self.want.first {
                    self.pass(header);
                    continue;
                }
                let plain = self.is_plain(at, header, chunk_len);
                if plain && header.is_intact(&self.buffer[at..at + header.size]) {
                    if header.base >= self.want.next {
                        self.ended = true;
                        return Ok(());
                    }
                    if !self.take(at, *header, subject) {
                        return Ok(());
                    }
                    continue;
                }
            }
            if !self.strict && self.place != self.start && self.findings.is_empty() && self.entries.is_empty() {
                // Something on the way here may have been wrong: go again and look at everything.
                (self.strict, self.place) = (true, self.start);
                return Ok(());
            }
            if !self.stumble(at, subject)? {
                return Ok(());
            }
        }
    }

    /// The offset is covered by no checksum: it must follow its predecessor, or leave a gap that its successor allows.
    fn is_plain(&self, at: usize, header: &Header, chunk_len: usize) -> bool {
        let end = at + header.size;
        let next = Header::parse(&self.buffer[end..chunk_len]);
        let apart = next.is_ok_and(|next| next.base > header.last) || end as u64 == self.want.limit;
        header.last < self.reader.ceiling.unwrap_or(i64::MAX) && (header.base == self.place.last + 1 || apart)
    }

    fn pass(&mut self, header: &Header) {
        self.place = BatchPosition { position: self.place.position + header.size as u64, last: header.last };
    }

    /// Not plainly sound: the walker says what it is. False when this chunk is over.
    fn stumble(&mut self, at: usize, subject: Span) -> DiskResult<bool> {
        let mut walker = self.reader.walker(self.place, self.want.limit);
        let position = self.place.position;
        match walker.step()? {
            Step::End => {
                self.ended = true;
                Ok(false)
            }
            Step::Sound(header) | Step::Repaired(header, ..) if header.base >= self.want.next => {
                self.ended = true;
                Ok(false)
            }
            Step::Sound(header) => {
                if at + header.size > subject.offset as usize {
                    return Ok(false);
                }
                Ok(self.take(at, header, subject))
            }
            Step::Repaired(header, patch_at, bytes, what) => {
                if at + header.size > subject.offset as usize {
                    // Only a first batch can be larger than its chunk, and this one's length was not known before.
                    self.buffer.truncate(subject.offset as usize);
                    let whole = self.reader.file.read_at(position, header.size)?;
                    self.buffer = whole;
                    let subject = Span { offset: self.buffer.len() as u32, len: subject.len };
                    self.buffer.extend_from_slice(&self.reader.subject);
                    if !self.entries.is_empty() {
                        self.ended = true;
                        return Ok(false);
                    }
                    return self.patched(0, header, subject, position, patch_at, &bytes, what);
                }
                self.patched(at, header, subject, position, patch_at, &bytes, what)
            }
            Step::Bad(bad) => {
                self.place = BatchPosition { position: bad.to, last: walker.last };
                if bad.zeros {
                    self.ended = true;
                    return Ok(false);
                }
                self.findings.push(Finding {
                    kind: if bad.tail { "unsound-tail" } else { "bad-record" },
                    offset: bad.from,
                    len: bad.to - bad.from,
                    sequences: bad.claim,
                    detail: bad.why.to_owned(),
                });
                Ok(true)
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // where it lies, and what is put right
    fn patched(
        &mut self,
        at: usize,
        header: Header,
        subject: Span,
        position: u64,
        patch_at: u64,
        bytes: &[u8],
        what: &str,
    ) -> DiskResult<bool> {
        let inside = at + (patch_at - position) as usize;
        self.buffer[inside..inside + bytes.len()].copy_from_slice(bytes);
        self.findings.push(Finding {
            kind: "repaired",
            offset: patch_at,
            len: bytes.len() as u64,
            sequences: Some((header.base, header.last + 1)),
            detail: what.to_owned(),
        });
        Ok(self.take(at, header, subject))
    }

    /// Decodes a sound batch. False when enough is there, or when it is to be read again from its beginning.
    fn take(&mut self, at: usize, header: Header, subject: Span) -> bool {
        let before = self.entries.len();
        let mut sink = Sink {
            buffer: &mut self.buffer,
            entries: &mut self.entries,
            subject,
            inflated_max: self.reader.inflated_max,
        };
        if let Err(why) = records::decode(&mut sink, at, &header) {
            self.findings.push(Finding {
                kind: "bad-record",
                offset: self.place.position,
                len: header.size as u64,
                sequences: Some((header.base, header.last + 1)),
                detail: why.to_string(),
            });
        }
        let want = self.want;
        let gone = header.is_control() && !want.control || self.is_aborted(&header);
        if gone {
            self.entries.truncate(before);
        } else if header.base < want.first || header.last >= want.next || header.magic < 2 {
            let within = |e: &Entry| (want.first..want.next).contains(&(e.position as i64));
            let kept: Vec<Entry> = self.entries.drain(before..).filter(within).collect();
            self.entries.extend(kept);
        }
        if self.entries.len() > want.messages_max {
            // The rest of this batch comes with the next call, from the same place.
            self.entries.truncate(want.messages_max);
            return false;
        }
        self.pass(&header);
        self.entries.len() < want.messages_max && self.buffer.len() < (1 << 30).max(want.bytes_max)
    }

    fn is_aborted(&self, header: &Header) -> bool {
        let hit = |(producer, first, last): &(i64, i64, i64)| {
            *producer == header.producer_id && (*first..=*last).contains(&header.base)
        };
        header.is_transactional() && !header.is_control() && self.want.aborted.iter().any(hit)
    }

    fn finish(self) -> Read {
        let batch = Batch::new(Arc::new(self.buffer), self.entries, HeaderCodec::Kafka);
        debug_assert!(batch.entries().iter().all(|e| e.flags & flags::PLACEHOLDER == 0));
        Read { batch, place: self.place, ended: self.ended, findings: self.findings }
    }
}
