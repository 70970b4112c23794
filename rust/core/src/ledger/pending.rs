//! Messages that were handed out and not acked, by stream sequence.
//!
//! ```text
//! old     3 ── 9 ── 40                    a tree: stragglers, and consumers whose filter leaves wide gaps
//! window  base 1000 [o o . o o o . o]     a slot per sequence: where deliveries and acks mostly happen
//! ```
//! Every sequence in `old` is below `base`. The window's first slot is occupied, unless it is empty. When
//! holes would outgrow what is in it, its front moves to `old`.

use std::collections::{BTreeMap, VecDeque};

/// Slots that may be empty, beside four for each one that is not.
const SPARE_SLOTS: u64 = 4096;

/// One pending message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Of the first delivery; 0 when it came from a file that does not say.
    pub consumer_seq: u64,
    /// Of the last delivery, in ns; moved when the client asks for more time or for a later attempt.
    pub time: i64,
    /// 0 marks an empty slot.
    pub deliveries: u32,
    /// The ticket of its place in the queue of redeliveries, 0 when it has none.
    pub ticket: u32,
}

impl Slot {
    pub fn first(consumer_seq: u64, time: i64) -> Slot {
        Slot { consumer_seq, time, deliveries: 1, ticket: 0 }
    }

    pub fn queued(&self) -> bool {
        self.ticket != 0
    }
}

const EMPTY: Slot = Slot { consumer_seq: 0, time: 0, deliveries: 0, ticket: 0 };

#[derive(Clone, Debug, Default)]
pub struct Pending {
    old: BTreeMap<u64, Slot>,
    base: u64,
    window: VecDeque<Slot>,
    in_window: usize,
}

impl Pending {
    pub fn len(&self) -> usize {
        self.old.len() + self.in_window
    }

    pub fn is_empty(&self) -> bool {
        self.in_window == 0 && self.old.is_empty()
    }

    fn place(&self, seq: u64) -> Option<usize> {
        let place = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        (place < self.window.len()).then_some(place)
    }

    #[inline]
    pub fn get(&self, seq: u64) -> Option<&Slot> {
        if seq < self.base {
            return self.old.get(&seq);
        }
        self.place(seq).map(|place| &self.window[place]).filter(|slot| slot.deliveries > 0)
    }

    #[inline]
    pub fn get_mut(&mut self, seq: u64) -> Option<&mut Slot> {
        if seq < self.base {
            return self.old.get_mut(&seq);
        }
        let place = self.place(seq)?;
        Some(&mut self.window[place]).filter(|slot| slot.deliveries > 0)
    }

    /// Adds a sequence that is not there yet.
    #[inline]
    pub fn insert(&mut self, seq: u64, slot: Slot) {
        if self.in_window == 0 && self.old.keys().next_back().is_none_or(|last| *last < seq) {
            self.window.clear();
            self.base = seq;
        }
        if seq < self.base {
            self.old.insert(seq, slot);
            return;
        }
        let mut place = seq - self.base;
        if place >= self.window.len() as u64 {
            if place > 4 * self.in_window as u64 + SPARE_SLOTS {
                self.make_old(seq);
                place = seq - self.base;
            }
            self.window.resize(place as usize, EMPTY);
            self.window.push_back(slot);
        } else {
            self.window[place as usize] = slot;
        }
        self.in_window += 1;
    }

    /// Moves the front of the window to `old` until a slot for `seq` fits.
    fn make_old(&mut self, seq: u64) {
        while self.in_window > 0 && seq - self.base > 4 * self.in_window as u64 + SPARE_SLOTS {
            let slot = self.window[0];
            self.old.insert(self.base, slot);
            self.in_window -= 1;
            self.drop_front();
        }
        if self.in_window == 0 {
            self.window.clear();
            self.base = seq;
        }
    }

    /// The first slot goes, and the empty ones behind it.
    #[inline]
    fn drop_front(&mut self) {
        loop {
            self.window.pop_front();
            self.base += 1;
            if self.window.front().is_none_or(|slot| slot.deliveries > 0) {
                return;
            }
        }
    }

    #[inline]
    pub fn remove(&mut self, seq: u64) -> Option<Slot> {
        if seq < self.base {
            return self.old.remove(&seq);
        }
        let place = self.place(seq)?;
        let slot = std::mem::replace(&mut self.window[place], EMPTY);
        if slot.deliveries == 0 {
            return None;
        }
        self.in_window -= 1;
        if place == 0 {
            self.drop_front();
        }
        Some(slot)
    }

    /// The lowest one.
    #[inline]
    pub fn first(&self) -> Option<(u64, &Slot)> {
        if let Some((seq, slot)) = self.old.first_key_value() {
            return Some((*seq, slot));
        }
        self.window.front().map(|slot| (self.base, slot)).filter(|(_, slot)| slot.deliveries > 0)
    }

    /// The lowest one above `seq`.
    pub fn next_above(&self, seq: u64) -> Option<(u64, &Slot)> {
        if let Some(first) = self.first().filter(|(first, _)| *first > seq) {
            return Some(first);
        }
        self.range(seq.checked_add(1)?).next()
    }

    /// In order, from `from` on.
    fn range(&self, from: u64) -> impl Iterator<Item = (u64, &Slot)> {
        let skipped = usize::try_from(from.saturating_sub(self.base)).unwrap_or(usize::MAX).min(self.window.len());
        let slots = self.window.range(skipped..).zip(self.base + skipped as u64..);
        let old = self.old.range(from..).map(|(seq, slot)| (*seq, slot));
        old.chain(slots.filter(|(slot, _)| slot.deliveries > 0).map(|(slot, seq)| (seq, slot)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Slot)> {
        self.range(0)
    }
}
