//! Reading: by sequence, by range and filter, by subject, by time; and the state.

use std::sync::Arc;

use super::block::{Block, Loaded, TIME_UNKNOWN};
use super::index_db::{BlockEntry, IndexDb, SubjectEntry};
use super::log::{BlockLog, Inner, LogResult};
use super::matching::{BlockSubjects, records};
use super::record::{SUBJECT, View};
use super::subject_state::SubjectState;
use crate::batch::{Batch, Entry, HeaderCodec, Span};
use crate::hash::HashKey;
use crate::subjects::{Filter, Matcher};

/// One message, owned.
pub struct Found {
    pub sequence: u64,
    pub time: i64,
    pub subject: Vec<u8>,
    pub headers: Option<Vec<u8>>,
    pub data: Vec<u8>,
}

#[derive(Debug, Clone, Default)]
pub struct State {
    pub msgs: u64,
    pub bytes: u64,
    pub first: u64,
    pub first_time: Option<i64>,
    pub last: u64,
    pub last_time: i64,
    pub subjects: u64,
    pub deleted: u64,
    pub file_bytes: u64,
}

/// What a reader may see of a range.
pub struct ReadLimits<'a> {
    pub msgs: usize,
    pub bytes: usize,
    /// One of them must match; none = everything.
    pub filters: &'a [Filter],
    /// Nothing at or above this sequence.
    pub below: u64,
}

impl BlockLog {
    pub fn load(&self, sequence: u64) -> LogResult<Option<Found>> {
        self.reading(|inner| {
            let Some(index) = inner.block_at(sequence).filter(|i| inner.blocks[*i].is_live(sequence)) else {
                return Ok(None);
            };
            inner.with_record(index, sequence, found)
        })
    }

    /// Many at once, in the order asked, until they have `bytes_max`; absent ones are left out.
    pub fn load_many(&self, sequences: &[u64], bytes_max: usize) -> LogResult<Batch> {
        self.reading(|inner| Ok(inner.load_many(sequences, bytes_max, false)?.0))
    }

    /// The same as far as their blocks are in memory, and how many of the sequences were looked at: the next one lies in
    /// a block that is not, or there was enough.
    pub fn load_warm(&self, sequences: &[u64], bytes_max: usize) -> LogResult<(Batch, usize)> {
        self.lock().load_many(sequences, bytes_max, true)
    }

    /// Live messages from `first` on; empty only when there are none left below the bound.
    pub fn read(&self, first: u64, limits: &ReadLimits<'_>) -> LogResult<Batch> {
        self.reading(|inner| Ok(inner.read_matching(first, limits, usize::MAX)?.0))
    }

    pub fn next_match(&self, filter: &Filter, from: u64) -> LogResult<Option<Found>> {
        let filters = std::slice::from_ref(filter);
        let limits = ReadLimits { msgs: 1, bytes: usize::MAX, filters, below: u64::MAX };
        let batch = self.read(from, &limits)?;
        Ok(batch.entries().first().map(|entry| Found {
            sequence: entry.position,
            time: entry.time,
            subject: batch.bytes(entry.subject).to_vec(),
            headers: (!entry.headers.is_null()).then(|| batch.bytes(entry.headers).to_vec()),
            data: batch.bytes(entry.data).to_vec(),
        }))
    }

    /// The sequence of the newest message that matches.
    pub fn last_seq_of(&self, filter: &Filter) -> LogResult<Option<u64>> {
        self.reading(|inner| inner.last_sequence_of(filter))
    }

    pub fn last_match(&self, filter: &Filter) -> LogResult<Option<Found>> {
        self.reading(|inner| {
            let Some(sequence) = inner.last_sequence_of(filter)? else { return Ok(None) };
            let Some(index) = inner.block_at(sequence) else { return Ok(None) };
            inner.with_record(index, sequence, found)
        })
    }

    /// The newest message on a subject below a sequence.
    pub fn last_before(&self, subject: &[u8], sequence: u64) -> LogResult<Option<u64>> {
        self.reading(|inner| inner.last_before(subject, sequence))
    }

    pub fn seq_from_time(&self, time: i64) -> LogResult<u64> {
        self.reading(|inner| inner.seq_from_time(time))
    }

    pub fn state(&self) -> LogResult<State> {
        self.reading(Inner::state)
    }

    /// Every sequence between first and last without a message, up to `max` of them.
    pub fn deleted(&self, max: usize) -> Vec<u64> {
        let inner = self.lock();
        let mut found = Vec::new();
        let mut at = inner.first();
        for block in inner.blocks.iter().filter(|b| b.msgs > 0) {
            found.extend((at..block.first).take(max.saturating_sub(found.len())));
            found.extend(block.deleted.iter().take(max.saturating_sub(found.len())));
            at = block.last + 1;
        }
        if inner.msgs > 0 {
            found.extend((at..=inner.last).take(max.saturating_sub(found.len())));
        }
        found
    }

    /// The same as JSON: `[sequence,…]`
    pub fn deleted_json(&self, max: usize) -> Vec<u8> {
        let mut json = vec![b'['];
        for sequence in self.deleted(max) {
            if json.len() > 1 {
                json.push(b',');
            }
            json.extend_from_slice(sequence.to_string().as_bytes());
        }
        json.push(b']');
        json
    }

    pub fn blocks(&self) -> Vec<Block> {
        self.lock().blocks.clone()
    }

    pub fn record_bytes_of(&self, sequence: u64) -> LogResult<Option<usize>> {
        self.reading(|inner| {
            let Some(index) = inner.block_at(sequence).filter(|i| inner.blocks[*i].is_live(sequence)) else {
                return Ok(None);
            };
            inner.with_record(index, sequence, |_, view| view.len)
        })
    }

    /// Whether a block's file holds its records as they are.
    pub fn is_plain(&self, number: u64) -> LogResult<bool> {
        self.reading(|inner| {
            let index = inner.index_of(number)?;
            let len = inner.loaded(index)?.data.len() as u64;
            Ok(inner.blocks[index].cipher.is_none() && len == inner.blocks[index].file_len)
        })
    }

    /// The plain bytes of a block, as they are in memory.
    pub fn plain_bytes(&self, number: u64) -> LogResult<Vec<u8>> {
        let inner = self.lock();
        if let Some(writer) = inner.writer.as_ref().filter(|w| w.number == number) {
            return Ok(writer.data.clone());
        }
        drop(inner);
        let loaded = self.reading(|inner| inner.index_of(number).and_then(|index| inner.loaded(index)))?;
        Ok(loaded.data.to_vec())
    }

    /// The guard of a block: the boundaries of all its records, up to the first that cannot be parsed.
    pub fn guard_of(&self, number: u64) -> LogResult<Vec<u8>> {
        let inner = self.lock();
        if let Some(writer) = inner.writer.as_ref().filter(|w| w.number == number) {
            return Ok(guard_and_subjects(&writer.data).0);
        }
        drop(inner);
        let loaded = self.reading(|inner| inner.index_of(number).and_then(|index| inner.loaded(index)))?;
        let (guard, subjects) = guard_and_subjects(&loaded.data);
        self.note_subjects(number, subjects);
        Ok(guard)
    }

    /// The checkpoint: `index.db` version 4 of what is in memory.
    pub fn encode_index(&self) -> LogResult<Vec<u8>> {
        let unknown = |block: &&Block| block.msgs > 0 && block.first_time == TIME_UNKNOWN;
        let unknown: Vec<u64> = self.lock().blocks.iter().filter(unknown).map(|block| block.number).collect();
        for number in unknown {
            self.reading(|inner| inner.index_of(number).map_or(Ok(0), |index| inner.first_time_of(index)))?;
        }
        let mut inner = self.lock();
        for index in 0..inner.blocks.len() {
            if inner.blocks[index].msgs > 0 {
                inner.first_time_of(index)?;
            }
        }
        let first_live = inner.blocks.iter().find(|b| b.msgs > 0);
        let (first, first_time) = first_live.map_or((inner.last + 1, 0), |b| (b.first, b.first_time));
        let mut subjects = Vec::with_capacity(inner.subjects.len());
        let mut names: Vec<(Vec<u8>, SubjectState)> = Vec::with_capacity(inner.subjects.len());
        inner.subjects.for_each_match(&Filter::all(), |subject, state| names.push((subject.to_vec(), *state)));
        let number_at = |sequence: u64| inner.block_at(sequence).map_or(0, |i| inner.blocks[i].number);
        for (subject, state) in &names {
            let (first_block, last_block) = (number_at(state.first), number_at(state.last));
            subjects.push(SubjectEntry { subject, total: state.msgs, first_block, last_block });
        }
        let mut blocks: Vec<BlockEntry> = inner
            .blocks
            .iter()
            .map(|b| BlockEntry {
                number: b.number,
                bytes: b.bytes,
                first: b.first,
                first_time: if b.msgs > 0 { b.first_time } else { first_time },
                last: b.last,
                last_time: b.last_time,
                deleted: b.deleted.clone(),
                ttls: b.ttls,
                schedules: b.schedules,
            })
            .collect();
        cover_last(blocks.last_mut(), inner.last);
        let newest = inner.blocks.last();
        let index = IndexDb {
            version: super::index_db::VERSION,
            msgs: inner.msgs,
            bytes: inner.bytes,
            first,
            first_time,
            last: inner.last,
            last_time: inner.last_time,
            subjects,
            blocks,
            newest: newest.map_or(0, |b| b.number),
            last_hash: newest.map_or([0; 8], |b| b.last_hash),
        };
        Ok(index.encode(&HashKey::from_text(&inner.stream)))
    }
}

/// A server takes the index only if its newest block reaches the last sequence: what a tombstone pinned behind
/// the block's records counts as deleted. Too wide a range is left out; then the server scans.
fn cover_last(newest: Option<&mut BlockEntry>, last: u64) {
    const WIDE: u64 = 1 << 20;
    let Some(block) = newest.filter(|block| block.last < last) else { return };
    if block.first > block.last {
        (block.first, block.last) = (last + 1, last);
    } else if last - block.last <= WIDE {
        block.deleted.insert_range(block.last + 1..last + 1);
        block.last = last;
    }
}

/// Both in one walk: a block is larger than what the processor keeps at hand.
fn guard_and_subjects(data: &[u8]) -> (Vec<u8>, BlockSubjects) {
    let mut guard = super::guard::Guard::default();
    let subjects = BlockSubjects::of(records(data).map(|view| {
        guard.push(&view);
        view.subject(data)
    }));
    let hash_at = guard.covered.saturating_sub(super::record::HASH_SIZE);
    (guard.encode(&data[hash_at..guard.covered]), subjects)
}

fn covers(block: &Block, sequence: u64) -> bool {
    sequence >= block.first && sequence <= block.last
}

fn found(data: &[u8], view: &View) -> Found {
    Found {
        sequence: view.sequence(),
        time: view.time,
        subject: view.subject(data).to_vec(),
        headers: view.headers(data).map(<[u8]>::to_vec),
        data: view.data(data).to_vec(),
    }
}

/// A batch entry over the block's own bytes.
pub fn entry_of(view: &View, base: usize) -> Entry {
    let span = |start: usize, len: usize| Span { offset: (start - base) as u32, len: len as u32 };
    let subject = view.offset + SUBJECT;
    let headers = match view.header_len {
        Some(len) => span(subject + view.subject_len + super::record::HEADER_LENGTH_SIZE, len),
        None => Span::NULL,
    };
    let data = view.data_start();
    Entry {
        position: view.sequence(),
        time: view.time,
        subject: span(subject, view.subject_len),
        key: Span::NULL,
        headers,
        data: span(data, view.end() - super::record::HASH_SIZE - data),
        flags: 0,
    }
}

/// So many subjects whose newest message is not known are looked up, before all messages are gone through instead.
const DOUBTFUL_MAX: usize = 16;

impl Inner {
    fn load_many(&mut self, sequences: &[u64], bytes_max: usize, warm_only: bool) -> LogResult<(Batch, usize)> {
        let mut builder =
            crate::batch::BatchBuilder::with_capacity(sequences.len(), sequences.len() * 160, HeaderCodec::Nats);
        let (mut previous, mut bytes): (Option<usize>, usize) = (None, 0);
        for (at, sequence) in sequences.iter().enumerate() {
            let sequence = *sequence;
            // Neighbours in the request mostly lie in one block.
            let index = match previous.filter(|i| covers(&self.blocks[*i], sequence)) {
                Some(index) => index,
                None => match self.block_at(sequence) {
                    Some(index) => index,
                    None => continue,
                },
            };
            if !self.blocks[index].is_live(sequence) {
                continue;
            }
            if previous != Some(index) && warm_only && self.must_load(index) {
                return Ok((builder.finish(), at));
            }
            previous = Some(index);
            let pushed = self.with_record(index, sequence, |data, view| {
                bytes += view.len;
                builder.push(crate::batch::Message {
                    position: sequence,
                    time: view.time,
                    subject: view.subject(data),
                    key: None,
                    headers: view.headers(data),
                    data: Some(view.data(data)),
                    flags: 0,
                })
            })?;
            if matches!(pushed, Some(Err(_))) || bytes >= bytes_max {
                return Ok((builder.finish(), at + 1));
            }
        }
        Ok((builder.finish(), sequences.len()))
    }

    /// The messages of one block, and where to go on.
    pub fn read_block(&mut self, index: usize, from: u64, limits: &ReadLimits<'_>) -> LogResult<(Batch, u64)> {
        let writing = self.writer.as_ref().is_some_and(|w| w.number == self.blocks[index].number);
        if writing {
            let (block, writer) = (&self.blocks[index], self.writer.as_ref().expect("checked"));
            let (views, next) = pick(block, &writer.data, |s| writer.lookup.get(s), from, limits);
            let (Some(first), Some(last)) = (views.first(), views.last()) else {
                return Ok((Batch::empty(HeaderCodec::Nats), next));
            };
            // The newest block's buffer grows: readers get a copy of their part.
            let (base, end) = (first.offset, last.end());
            let entries = views.iter().map(|view| entry_of(view, base)).collect();
            let batch = Batch::new(Arc::new(writer.data[base..end].to_vec()), entries, HeaderCodec::Nats);
            return Ok((batch, next));
        }
        let loaded = self.loaded(index)?;
        Ok(self.read_loaded(index, &loaded, from, limits))
    }

    /// The same from bytes that are at hand.
    pub fn read_loaded(&self, index: usize, loaded: &Loaded, from: u64, limits: &ReadLimits<'_>) -> (Batch, u64) {
        let (views, next) = pick(&self.blocks[index], &loaded.data, |s| loaded.lookup.get(s), from, limits);
        let entries = views.iter().map(|view| entry_of(view, 0)).collect();
        (Batch::new(loaded.data.clone(), entries, HeaderCodec::Nats), next)
    }

    fn seq_from_time(&mut self, time: i64) -> LogResult<u64> {
        for index in 0..self.blocks.len() {
            if self.blocks[index].last_time < time {
                continue;
            }
            let mut at = self.blocks[index].first;
            while let Some(sequence) = self.blocks[index].next_live(at) {
                let seen = self.with_record(index, sequence, |_, view| view.time)?;
                if seen.is_some_and(|seen| seen >= time) {
                    return Ok(sequence);
                }
                at = sequence + 1;
            }
        }
        Ok(self.last + 1)
    }

    fn state(&mut self) -> LogResult<State> {
        let first = self.first();
        let first_time = match self.blocks.iter().position(|b| b.msgs > 0) {
            Some(index) => Some(self.first_time_of(index)?),
            None => None,
        };
        let deleted = if self.msgs == 0 { 0 } else { self.last + 1 - first - self.msgs };
        Ok(State {
            msgs: self.msgs,
            bytes: self.bytes,
            first,
            first_time,
            last: self.last,
            last_time: self.last_time,
            subjects: self.subjects.len() as u64,
            deleted,
            file_bytes: self.blocks.iter().map(|b| b.file_len).sum(),
        })
    }

    pub fn first_time_of(&mut self, index: usize) -> LogResult<i64> {
        if self.blocks[index].first_time == TIME_UNKNOWN {
            let first = self.blocks[index].first;
            let time = self.with_record(index, first, |_, view| view.time)?;
            self.blocks[index].first_time = time.unwrap_or(self.blocks[index].last_time);
        }
        Ok(self.blocks[index].first_time)
    }

    /// The first live message on a literal subject; makes the subject's state exact.
    pub fn first_on_subject(&mut self, subject: &[u8]) -> LogResult<Option<u64>> {
        let Some(state) = self.subjects.get(subject).copied() else { return Ok(None) };
        if state.first_exact {
            return Ok(Some(state.first));
        }
        let mut start = state.first;
        while let Some(index) = self.block_at(start) {
            let block = self.blocks[index].clone();
            let mut at = start;
            while let Some(sequence) = block.next_live(at) {
                let as_memory = self.counts_as_memory;
                let size = self.with_record(index, sequence, |data, view| {
                    (view.subject(data) == subject).then_some(view.counted(as_memory) as u32)
                })?;
                if let Some(Some(size)) = size {
                    if let Some(state) = self.subjects.get_mut(subject) {
                        (state.first, state.first_bytes, state.first_exact) = (sequence, size, true);
                    }
                    return Ok(Some(sequence));
                }
                at = sequence + 1;
            }
            start = block.last + 1;
            if self.block_at(start).is_some_and(|next| next <= index) {
                break;
            }
        }
        Ok(None)
    }

    pub fn last_on_subject(&mut self, subject: &[u8]) -> LogResult<Option<u64>> {
        let Some(state) = self.subjects.get(subject).copied() else { return Ok(None) };
        if state.last_exact {
            return Ok(Some(state.last));
        }
        let found = self.walk_back(state.last, |seen| seen == subject)?;
        if let (Some((sequence, size)), Some(state)) = (found, self.subjects.get_mut(subject)) {
            (state.last, state.last_bytes, state.last_exact) = (sequence, size, true);
        }
        Ok(found.map(|f| f.0))
    }

    /// The highest live sequence at or below `from` whose subject is wanted.
    fn walk_back(&mut self, from: u64, wanted: impl Fn(&[u8]) -> bool) -> LogResult<Option<(u64, u32)>> {
        let Some(mut index) = self.block_at(from).or(self.blocks.len().checked_sub(1)) else { return Ok(None) };
        let mut upper = from;
        loop {
            let block = self.blocks[index].clone();
            let mut sequence = upper.min(block.last);
            while block.msgs > 0 && sequence >= block.first {
                if !block.deleted.contains(sequence) {
                    let as_memory = self.counts_as_memory;
                    let hit = self.with_record(index, sequence, |data, view| {
                        wanted(view.subject(data)).then_some(view.counted(as_memory) as u32)
                    })?;
                    if let Some(Some(size)) = hit {
                        return Ok(Some((sequence, size)));
                    }
                }
                sequence -= 1;
            }
            if index == 0 {
                return Ok(None);
            }
            index -= 1;
            upper = u64::MAX;
        }
    }

    /// The newest message on a subject below a sequence.
    pub fn last_before(&mut self, subject: &[u8], sequence: u64) -> LogResult<Option<u64>> {
        let others = self.subjects.get(subject).is_some_and(|state| state.msgs > 1 || state.last < sequence);
        if !others || sequence == 0 {
            return Ok(None);
        }
        Ok(self.walk_back(sequence - 1, |other| other == subject)?.map(|found| found.0))
    }

    pub fn last_sequence_of(&mut self, filter: &Filter) -> LogResult<Option<u64>> {
        if filter.is_literal() {
            return self.last_on_subject(filter.text());
        }
        if self.subjects.all_match(filter) {
            return Ok(self.walk_back(self.last, |_| true)?.map(|found| found.0));
        }
        let (mut bound, mut exact, mut doubtful) = (None, None, Vec::new());
        self.subjects.for_each_match(filter, |subject, state| {
            bound = bound.max(Some(state.last));
            if state.last_exact {
                exact = exact.max(Some(state.last));
            } else if doubtful.len() <= DOUBTFUL_MAX {
                doubtful.push((state.last, subject.to_vec()));
            }
        });
        let Some(bound) = bound else { return Ok(None) };
        // Nearly always the subjects themselves know; a few that do not are asked one by one.
        if doubtful.len() <= DOUBTFUL_MAX {
            for (last, subject) in &doubtful {
                if exact.is_none_or(|known| *last > known) {
                    exact = exact.max(self.last_on_subject(subject)?);
                }
            }
            return Ok(exact);
        }
        Ok(self.walk_back(bound, |subject| filter.matches(subject))?.map(|f| f.0))
    }
}

/// The live, matching records of a block from a sequence on, within the limits (at least one if any); and the first
/// sequence that was not looked at.
fn pick(
    block: &Block,
    data: &[u8],
    place: impl Fn(u64) -> Option<usize>,
    from: u64,
    limits: &ReadLimits<'_>,
) -> (Vec<View>, u64) {
    let mut views = Vec::new();
    let mut bytes = 0usize;
    let mut memo: (&[u8], bool) = (b"", false);
    let matcher = Matcher::new(limits.filters);
    let end = block.last.min(limits.below.saturating_sub(1));
    let whole = block.deleted.is_empty();
    let mut sequence = from.max(block.first);
    while block.msgs > 0 && sequence <= end && views.len() < limits.msgs {
        let here = sequence;
        sequence += 1;
        if !whole && block.deleted.contains(here) {
            continue;
        }
        let Some(view) = place(here).and_then(|offset| View::parse(data, offset).ok()) else { continue };
        if !limits.filters.is_empty() {
            let subject = view.subject(data);
            if subject != memo.0 || memo.0.is_empty() {
                memo = (subject, matcher.matches(subject));
            }
            if !memo.1 {
                continue;
            }
        }
        bytes += view.len;
        if bytes > limits.bytes && !views.is_empty() {
            return (views, here);
        }
        views.push(view);
    }
    (views, sequence)
}
