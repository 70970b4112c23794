//! The rule by which the broker fills `.index` and `.timeindex`, and the lookups in them.
//!
//! ```text
//! .index      (last offset of a batch − base: i32, position of its first byte: i32)*      sparse
//! .timeindex  (largest time so far: i64, last offset of the batch that had it − base: i32)*
//! ```
//! Once more than `interval` bytes lie since the last entry, the next batch gets one: never the first of a segment.

pub const ENTRY_BYTES: usize = 8;
pub const TIME_ENTRY_BYTES: usize = 12;

#[derive(Debug, Clone)]
pub struct IndexBuilder {
    pub base: i64,
    pub interval: u64,
    /// Bytes since the last entry.
    pub since: u64,
    pub max_time: i64,
    pub max_time_offset: i64,
    pub last_time_entry: i64,
    pub index: Vec<u8>,
    pub times: Vec<u8>,
}

impl IndexBuilder {
    pub fn new(base: i64, interval: u64) -> Self {
        let (index, times) = (Vec::new(), Vec::new());
        IndexBuilder {
            base,
            interval,
            since: 0,
            max_time: -1,
            max_time_offset: base,
            last_time_entry: -1,
            index,
            times,
        }
    }

    /// Goes on where an index ends that is there already.
    pub fn resumed(base: i64, interval: u64, index: &[u8], times: &[u8]) -> Self {
        let mut builder = Self::new(base, interval);
        builder.index = index[..index.len() / ENTRY_BYTES * ENTRY_BYTES].to_vec();
        builder.times = times[..times.len() / TIME_ENTRY_BYTES * TIME_ENTRY_BYTES].to_vec();
        if let Some(entry) = builder.times.rchunks_exact(TIME_ENTRY_BYTES).next() {
            let (time, offset) = time_entry(entry);
            (builder.max_time, builder.last_time_entry) = (time, time);
            builder.max_time_offset = base + i64::from(offset);
        }
        builder
    }

    /// A batch was written at `position`.
    pub fn batch(&mut self, position: u64, size: usize, last: i64, max_time: i64) {
        if max_time > self.max_time {
            (self.max_time, self.max_time_offset) = (max_time, last);
        }
        if self.since > self.interval {
            self.index.extend_from_slice(&((last - self.base) as i32).to_be_bytes());
            self.index.extend_from_slice(&(position as i32).to_be_bytes());
            self.time_entry();
            self.since = 0;
        }
        self.since += size as u64;
    }

    /// The segment ends: its largest time is there for everybody who asks how old it is.
    pub fn close(&mut self) {
        self.time_entry();
    }

    fn time_entry(&mut self) {
        if self.max_time > self.last_time_entry {
            self.times.extend_from_slice(&self.max_time.to_be_bytes());
            self.times.extend_from_slice(&((self.max_time_offset - self.base) as i32).to_be_bytes());
            self.last_time_entry = self.max_time;
        }
    }
}

fn entry(bytes: &[u8]) -> (i32, i32) {
    let number = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    (number(0), number(4))
}

fn time_entry(bytes: &[u8]) -> (i64, i32) {
    let time = i64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"));
    (time, i32::from_be_bytes(bytes[8..12].try_into().expect("four bytes")))
}

/// How many entries stand at or below `offset`: the last of them is where a search begins.
pub fn lookup(index: &[u8], base: i64, offset: i64) -> usize {
    let wanted = offset.saturating_sub(base);
    let (mut low, mut high) = (0, index.len() / ENTRY_BYTES);
    while low < high {
        let middle = low.midpoint(high);
        if i64::from(entry(&index[middle * ENTRY_BYTES..]).0) <= wanted { low = middle + 1 } else { high = middle }
    }
    low
}

/// (last offset of a batch, its position); None for the zeros that a killed broker leaves, and for what cannot be.
pub fn entry_at(index: &[u8], base: i64, at: usize) -> Option<(i64, u64)> {
    let (offset, position) = entry(index.get(at * ENTRY_BYTES..(at + 1) * ENTRY_BYTES)?);
    (offset >= 0 && position > 0).then(|| (base + i64::from(offset), position as u64))
}

/// The offset of the last entry whose time is at or below `time`, else the base.
pub fn lookup_time(times: &[u8], base: i64, time: i64) -> i64 {
    let count = times.len() / TIME_ENTRY_BYTES;
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        if time_entry(&times[middle * TIME_ENTRY_BYTES..]).0 <= time { low = middle + 1 } else { high = middle }
    }
    low.checked_sub(1).map_or(base, |at| base + i64::from(time_entry(&times[at * TIME_ENTRY_BYTES..]).1.max(0)))
}
