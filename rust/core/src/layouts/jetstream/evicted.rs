//! What limits have evicted. Evictions leave no trace in the blocks, because limits are applied again at every
//! start. But once a message is removed, a start would count fewer and evict less: before a removal the evictions
//! since the last one are made permanent, by tombstones if they are few, by the index if they are many.

/// More than this and writing the index is cheaper.
const LISTED_MAX: usize = 4096;

#[derive(Default)]
pub struct Evicted {
    listed: Vec<u64>,
    /// There were more, or a whole block went without a look at its messages.
    many: bool,
}

impl Evicted {
    pub fn one(&mut self, sequence: u64) {
        if self.many {
            return;
        }
        if self.listed.len() == LISTED_MAX {
            self.whole_block();
        } else {
            self.listed.push(sequence);
        }
    }

    pub fn whole_block(&mut self) {
        self.many = true;
        self.listed = Vec::new();
    }

    /// The sequences, and whether there were too many to list.
    pub fn listed(&self) -> (&[u64], bool) {
        (&self.listed, self.many)
    }

    pub fn saved(&mut self) {
        *self = Evicted::default();
    }
}
