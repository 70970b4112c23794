//! What is remembered of one subject. The ends are exact, or bounds that a look into the blocks makes exact:
//! after an index was adopted, and after the first or last message of the subject went.

#[derive(Debug, Clone, Copy, Default)]
pub struct SubjectState {
    pub msgs: u64,
    /// The first live sequence, or a lower bound of it.
    pub first: u64,
    /// The last live sequence, or an upper bound of it.
    pub last: u64,
    /// Record sizes at the ends, 0 when unknown: a key-value overwrite needs no look into old blocks.
    pub first_bytes: u32,
    pub last_bytes: u32,
    pub first_exact: bool,
    pub last_exact: bool,
}

impl SubjectState {
    /// `count` messages were stored, the newest of them with these values.
    pub fn stored(&mut self, count: u64, first: u64, first_bytes: u32, last: u64, last_bytes: u32) {
        if self.msgs == 0 {
            (self.first, self.first_bytes, self.first_exact) = (first, first_bytes, true);
        }
        self.msgs += count;
        (self.last, self.last_bytes, self.last_exact) = (last, last_bytes, true);
    }

    /// A message went. Returns false when it was the last one.
    pub fn removed(&mut self, sequence: u64) -> bool {
        self.msgs -= 1;
        if self.msgs == 0 {
            return false;
        }
        if sequence == self.first {
            (self.first, self.first_bytes, self.first_exact) = (sequence + 1, 0, false);
        }
        if sequence == self.last {
            (self.last, self.last_bytes, self.last_exact) = (sequence - 1, 0, false);
        }
        if self.msgs == 1 {
            // One end known means both are.
            if self.last_exact {
                (self.first, self.first_bytes, self.first_exact) = (self.last, self.last_bytes, true);
            } else if self.first_exact {
                (self.last, self.last_bytes, self.last_exact) = (self.first, self.first_bytes, true);
            }
        }
        true
    }
}
