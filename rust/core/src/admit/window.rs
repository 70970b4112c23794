//! The dedupe window: message ids of the last minutes and the sequences they got.
//!
//! Entries lie in the order of their time; the table finds them by hash. An entry that has left the window is
//! taken off the front when somebody asks.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

struct Entry {
    hash: u64,
    id: Box<[u8]>,
    sequence: u64,
    time: i64,
}

pub struct Window {
    span_ns: i64,
    entries: VecDeque<Entry>,
    /// Number of the entry at the front: numbers do not change when others leave.
    base: u64,
    table: HashTable<u64>,
    state: RandomState,
    last_id: Vec<u8>,
}

impl Window {
    /// A span of 0 remembers nothing.
    pub fn new(span_ns: i64) -> Self {
        Window {
            span_ns,
            entries: VecDeque::new(),
            base: 0,
            table: HashTable::new(),
            state: RandomState::default(),
            last_id: Vec::new(),
        }
    }

    pub fn set_span(&mut self, span_ns: i64) {
        self.span_ns = span_ns;
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The id of the last message, empty if it had none.
    pub fn last_id(&self) -> &[u8] {
        &self.last_id
    }

    pub fn set_last_id(&mut self, id: &[u8]) {
        self.last_id.clear();
        self.last_id.extend_from_slice(id);
    }

    /// The sequence that this id got inside the window.
    pub fn find(&mut self, id: &[u8], now: i64) -> Option<u64> {
        self.prune(now);
        let hash = self.state.hash_one(id);
        let at = *self.table.find(hash, |number| *self.entries[(number - self.base) as usize].id == *id)?;
        Some(self.entries[(at - self.base) as usize].sequence)
    }

    /// A message was taken. One without id changes only what the last id is.
    pub fn accepted(&mut self, id: &[u8], sequence: u64, time: i64) {
        // Without the look at emptiness two empty slices are compared through dangling pointers, which costs a
        // microcode assist (about 0.1 µs a message) where memcmp uses masked loads.
        let both_empty = id.is_empty() && self.last_id.is_empty();
        if !both_empty && id != self.last_id {
            self.set_last_id(id);
        }
        if !id.is_empty() && self.span_ns > 0 {
            self.add(id, sequence, time);
        }
    }

    pub fn add(&mut self, id: &[u8], sequence: u64, time: i64) {
        let hash = self.state.hash_one(id);
        let number = self.base + self.entries.len() as u64;
        // Times do not go backwards here, or what is behind an older entry would stay too long.
        let time = self.entries.back().map_or(time, |last| last.time.max(time));
        self.entries.push_back(Entry { hash, id: id.into(), sequence, time });
        let (entries, base) = (&self.entries, self.base);
        self.table.insert_unique(hash, number, |number| entries[(number - base) as usize].hash);
    }

    pub fn prune(&mut self, now: i64) {
        while self.entries.front().is_some_and(|entry| entry.time + self.span_ns <= now) {
            self.drop_front();
        }
    }

    fn drop_front(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            let number = self.base;
            if let Ok(found) = self.table.find_entry(entry.hash, |other| *other == number) {
                found.remove();
            }
            self.base += 1;
        }
    }

    /// Takes back ids of messages that were not stored after all.
    pub fn forget_from(&mut self, sequence: u64) {
        while self.entries.back().is_some_and(|entry| entry.sequence >= sequence) {
            let number = self.base + self.entries.len() as u64 - 1;
            let Some(entry) = self.entries.pop_back() else { break };
            if let Ok(found) = self.table.find_entry(entry.hash, |other| *other == number) {
                found.remove();
            }
        }
    }

    /// (id, sequence, time) of everything in the window, oldest first.
    pub fn export(&self) -> impl Iterator<Item = (&[u8], u64, i64)> {
        self.entries.iter().map(|entry| (&*entry.id, entry.sequence, entry.time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn as_a_plain_map(steps in proptest::collection::vec((0u8..12, 0i64..40, any::<bool>()), 0..200)) {
            let mut window = Window::new(100);
            let mut plain: HashMap<Vec<u8>, (u64, i64)> = HashMap::new();
            let (mut now, mut sequence) = (0, 0);
            for (id, passed, forget) in steps {
                now += passed;
                let id = format!("id-{id}").into_bytes();
                plain.retain(|_, (_, time)| *time + 100 > now);
                let known = plain.get(&id).map(|(sequence, _)| *sequence);
                prop_assert_eq!(window.find(&id, now), known);
                if known.is_none() {
                    sequence += 1;
                    window.accepted(&id, sequence, now);
                    plain.insert(id, (sequence, now));
                } else if forget && sequence > 2 {
                    window.forget_from(sequence - 1);
                    plain.retain(|_, (of, _)| *of < sequence - 1);
                    sequence -= 2;
                }
                prop_assert_eq!(window.len(), plain.len());
            }
        }
    }
}
