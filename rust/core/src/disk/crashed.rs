//! What a power cut leaves of a memory disk: walks the durable names (with the pending changes that
//! the toss spares) and builds each file from durable and unsynced pages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::memory::{Bytes, Keep, PAGE_BYTES};
use super::names::{Directory, Entries, Names, Node};

/// SplitMix64: a few lines, so that one seed gives one crash on every platform and version.
pub(super) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`, which is not 0. The bias of the remainder does not matter here.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True in `eighths` of 8 cases.
    fn toss(&mut self, eighths: usize) -> bool {
        self.below(8) < eighths
    }
}

pub(super) fn survivor(names: &Names, random: &mut Random, keep: Keep) -> Arc<Directory> {
    let mut survey = Survey { names: HashMap::new(), copies: HashMap::new(), random, keep };
    if keep == Keep::Random {
        survey.spare_names(names);
    }
    survey.directory(&names.root)
}

struct Survey<'a> {
    /// The names of directories with spared changes, by the directory's address.
    names: HashMap<usize, Entries>,
    /// A file may be reached by two names and must stay one file. A directory may not: it keeps the
    /// first of its names (`None`), or moved directories could contain each other.
    copies: HashMap<usize, Option<Node>>,
    random: &'a mut Random,
    keep: Keep,
}

impl Survey<'_> {
    fn spare_names(&mut self, names: &Names) {
        for change in &names.pending {
            if !self.random.toss(4) {
                continue;
            }
            if let Some(from) = &change.from {
                let entries = self.entries(&from.directory);
                // Only its own name: an earlier change may have been lost, a later file may have it.
                if entries.get(&from.name).is_some_and(|node| node.is(&change.node)) {
                    entries.remove(&from.name);
                }
            }
            if let Some(to) = &change.to {
                self.entries(&to.directory).insert(to.name.clone(), change.node.clone());
            }
        }
    }

    fn entries(&mut self, directory: &Arc<Directory>) -> &mut Entries {
        self.names.entry(Arc::as_ptr(directory) as usize).or_insert_with(|| directory.durable().clone())
    }

    fn directory(&mut self, directory: &Arc<Directory>) -> Arc<Directory> {
        let entries = match self.keep {
            Keep::All => directory.now().clone(),
            Keep::None | Keep::Random => self.entries(directory).clone(),
        };
        let copied = entries.into_iter().filter_map(|(name, node)| Some((name, self.node(&node)?))).collect();
        Arc::new(Directory::synced(copied))
    }

    fn node(&mut self, node: &Node) -> Option<Node> {
        if let Some(copy) = self.copies.get(&node.address()) {
            return copy.clone();
        }
        match node {
            Node::Directory(directory) => {
                self.copies.insert(node.address(), None);
                Some(Node::Directory(self.directory(directory)))
            }
            Node::File(file) => {
                let bytes = file.lock().unwrap_or_else(PoisonError::into_inner);
                let copy = Node::File(Arc::new(Mutex::new(Bytes::synced(self.bytes(&bytes)))));
                self.copies.insert(node.address(), Some(copy.clone()));
                Some(copy)
            }
        }
    }

    fn bytes(&mut self, file: &Bytes) -> Vec<u8> {
        match self.keep {
            Keep::All => file.now().to_vec(),
            Keep::None => pages(file, file.durable_len(), |_| false),
            Keep::Random => {
                let len = self.length(file.durable_len(), file.len());
                // Per file, so that nearly-all-lost and nearly-all-kept are as likely as a mixture.
                let eighths = self.random.below(9);
                pages(file, len, |_| self.random.toss(eighths))
            }
        }
    }

    /// One of the two ends half of the time: they are where recovery code goes wrong.
    fn length(&mut self, durable: usize, now: usize) -> usize {
        match self.random.below(4) {
            0 => durable,
            1 => now,
            _ => durable.min(now) + self.random.below(durable.abs_diff(now) + 1),
        }
    }
}

/// `len` bytes, each unsynced page from now or from what is durable; zeros where neither reaches.
fn pages(file: &Bytes, len: usize, mut survives: impl FnMut(usize) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        let page = out.len() / PAGE_BYTES;
        let start = out.len();
        let end = (start + PAGE_BYTES).min(len);
        if file.is_unsynced(page) && survives(page) {
            let reach = file.len().min(end);
            out.extend_from_slice(&file.now()[start.min(reach)..reach]);
        } else {
            let durable = file.durable_page(page);
            out.extend_from_slice(&durable[..durable.len().min(end - start)]);
        }
        out.resize(end, 0);
    }
    out
}
