//! A set of numbers that grows for years: a floor, and compressed bitmaps above it.
//!
//! ```text
//! 0 ─────────────── floor │ 1·1·11··1··1··1 │            │ 11111111 │      everything below the floor is done
//!                           bits 0 to 2³²-1   no bits,     a run
//!                           of one high half  no bytes
//! ```
//!
//! At most one bit per number where every other one is missing, a few bytes where they are dense. The serialized form
//! is the portable one of 64-bit Roaring bitmaps: how many halves, then each high half and its 32-bit bitmap.

use std::collections::BTreeMap;
use std::io::{self, Read};

use roaring::RoaringBitmap;

/// What a container and a bitmap take in memory beside their serialized bytes.
const CONTAINER_BYTES: usize = 48;
const BITMAP_BYTES: usize = 96;

#[derive(Debug, Default, Clone, PartialEq)]
pub struct Numbers {
    floor: u64,
    above: BTreeMap<u32, RoaringBitmap>,
}

/// What there is to see of a set.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    /// Everything below is in it.
    pub floor: u64,
    /// How many are in it above the floor.
    pub count: u64,
    /// The first of them: first and last, both inside, no two neighbours.
    pub ranges: Vec<(u64, u64)>,
}

fn split(number: u64) -> (u32, u32) {
    ((number >> 32) as u32, number as u32)
}

fn join(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The part of `[first, last]` in each high half.
fn halves(first: u64, last: u64) -> impl Iterator<Item = (u32, u32, u32)> {
    let ((high_first, low_first), (high_last, low_last)) = (split(first), split(last));
    (high_first..=high_last).map(move |high| {
        let low = if high == high_first { low_first } else { 0 };
        (high, low, if high == high_last { low_last } else { u32::MAX })
    })
}

impl Numbers {
    pub fn is_empty(&self) -> bool {
        self.floor == 0 && self.above.is_empty()
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The highest that is in it.
    pub fn highest(&self) -> Option<u64> {
        let above = self.above.last_key_value().and_then(|(high, bits)| Some(join(*high, bits.max()?)));
        above.or(self.floor.checked_sub(1))
    }

    pub fn contains(&self, number: u64) -> bool {
        let (high, low) = split(number);
        number < self.floor || self.above.get(&high).is_some_and(|bits| bits.contains(low))
    }

    /// Those of `[first, last]` that are not there; None if all of them are missing.
    pub fn missing(&self, first: u64, last: u64) -> Option<Numbers> {
        let bits = |high: u32| self.above.get(&high);
        let overlaps =
            |(high, low, end): (u32, u32, u32)| bits(high).is_some_and(|bits| bits.range_cardinality(low..=end) > 0);
        if first >= self.floor && !halves(first, last).any(overlaps) {
            return None;
        }
        let mut found = Numbers::default();
        found.add(first.max(self.floor), last);
        found.subtract(self);
        Some(found)
    }

    /// Adds those of `[first, last]`, which may be none.
    pub fn add(&mut self, first: u64, last: u64) {
        let first = first.max(self.floor);
        if first > last {
            return;
        }
        if first == last {
            let (high, low) = split(first);
            self.above.entry(high).or_default().insert(low);
            return;
        }
        for (high, low, end) in halves(first, last) {
            self.above.entry(high).or_default().insert_range(low..=end);
        }
    }

    /// Takes numbers out again; what is below the floor stays.
    pub fn cut(&mut self, first: u64, last: u64) {
        if first > last {
            return;
        }
        for (high, low, end) in halves(first, last) {
            if let Some(bits) = self.above.get_mut(&high) {
                bits.remove_range(low..=end);
                if bits.is_empty() {
                    self.above.remove(&high);
                }
            }
        }
    }

    /// Takes out what another set has above its floor.
    pub fn subtract(&mut self, other: &Numbers) {
        for (high, theirs) in &other.above {
            if let Some(bits) = self.above.get_mut(high) {
                *bits -= theirs;
                if bits.is_empty() {
                    self.above.remove(high);
                }
            }
        }
    }

    /// Everything below is in it; costs what it drops.
    pub fn raise_floor(&mut self, below: u64) {
        if below <= self.floor {
            return;
        }
        let (high, low) = split(below);
        self.floor = below;
        self.above = self.above.split_off(&high);
        if low > 0 {
            self.cut(join(high, 0), below - 1);
        }
    }

    /// The floor goes up over numbers that follow it without a gap.
    pub fn absorb(&mut self) {
        let floor = self.shown(0).floor;
        self.raise_floor(floor);
    }

    /// Runs instead of bits where that is smaller.
    pub fn optimize(&mut self) {
        for bits in self.above.values_mut() {
            bits.optimize();
        }
    }

    /// What it takes in memory, about.
    pub fn bytes(&self) -> usize {
        let one = |bits: &RoaringBitmap| {
            bits.serialized_size() + bits.statistics().n_containers as usize * CONTAINER_BYTES + BITMAP_BYTES
        };
        self.above.values().map(one).sum()
    }

    /// Ranges in order; those at the border of two high halves may touch.
    fn pieces(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.above.iter().flat_map(|(high, bits)| {
            let mut iter = bits.iter();
            std::iter::from_fn(move || iter.next_range())
                .map(move |range| (join(*high, *range.start()), join(*high, *range.end())))
        })
    }

    /// The first ranges, found by walking no further than that.
    pub fn shown(&self, ranges_max: usize) -> Shown {
        let (mut floor, mut ranges) = (self.floor, Vec::<(u64, u64)>::new());
        for (first, last) in self.pieces() {
            let has_space = ranges.len() < ranges_max;
            match ranges.last_mut() {
                None if first == floor && last < u64::MAX => floor = last + 1,
                Some(newest) if newest.1 + 1 == first => newest.1 = last,
                _ if has_space => ranges.push((first, last)),
                _ => break,
            }
        }
        let above: u64 = self.above.values().map(RoaringBitmap::len).sum();
        Shown { floor, count: above - (floor - self.floor), ranges }
    }

    pub fn write(&self) -> Vec<u8> {
        let mut out = (self.above.len() as u64).to_le_bytes().to_vec();
        for (high, bits) in &self.above {
            out.extend_from_slice(&high.to_le_bytes());
            bits.serialize_into(&mut out).expect("a vector takes everything");
        }
        out
    }

    /// What `write` wrote, over a floor; an error if it is anything else.
    pub fn read(floor: u64, mut raw: &[u8]) -> io::Result<Numbers> {
        let mut count = [0; 8];
        raw.read_exact(&mut count)?;
        let mut numbers = Numbers { floor, above: BTreeMap::new() };
        for _ in 0..u64::from_le_bytes(count) {
            let mut high = [0; 4];
            raw.read_exact(&mut high)?;
            let bits = RoaringBitmap::deserialize_from(&mut raw)?;
            if bits.is_empty() || numbers.above.insert(u32::from_le_bytes(high), bits).is_some() {
                return Err(io::Error::other("a bitmap that is empty, or there twice"));
            }
        }
        if !raw.is_empty() {
            return Err(io::Error::other(format!("{} bytes too many", raw.len())));
        }
        // Nothing below the floor, whatever was written.
        numbers.floor = 0;
        numbers.raise_floor(floor);
        Ok(numbers)
    }

    /// Adds everything that another set has.
    pub fn merge(&mut self, other: Numbers) {
        self.raise_floor(other.floor);
        for (high, theirs) in other.above {
            *self.above.entry(high).or_default() |= theirs;
        }
        let floor = std::mem::take(&mut self.floor);
        self.raise_floor(floor);
    }
}
