//! State per subject: a radix tree over bytes, with shared prefixes stored once. Nodes are numbers into
//! vectors, so a million subjects are a handful of allocations.
//!
//! ```text
//!   orders.new orders.old kv.a          Fork ""
//!                                         k → Leaf "v.a"
//!                                         o → Fork "rders."  n → Leaf "ew"   o → Leaf "ld"
//! ```
//! A fork's text excludes the byte that led to it. A subject that ends at a fork is its `own` leaf, with
//! empty text. A fork holds at least two of: its own leaf, children.

use std::mem::size_of;

use super::arena::{KidPools, Kids, Piece, Text};
use super::{Filter, Progress};

/// A node's number; the top bit distinguishes leaves from forks.
type NodeRef = u32;
const LEAF: u32 = 1 << 31;
const NONE: u32 = u32::MAX;

struct Leaf<V> {
    text: Piece,
    /// None in a slot that waits for its next use.
    value: Option<V>,
}

#[derive(Clone, Copy)]
struct Fork {
    text: Piece,
    own: u32,
    kids: Kids,
}

/// Where the number of a node is written down.
#[derive(Clone, Copy)]
enum Link {
    Root,
    Kid { fork: u32, slot: usize },
}

pub struct SubjectTree<V> {
    root: NodeRef,
    leaves: Vec<Leaf<V>>,
    free_leaves: Vec<u32>,
    forks: Vec<Fork>,
    free_forks: Vec<u32>,
    kids: KidPools,
    text: Text,
}

impl<V> Default for SubjectTree<V> {
    fn default() -> Self {
        SubjectTree {
            root: NONE,
            leaves: Vec::new(),
            free_leaves: Vec::new(),
            forks: Vec::new(),
            free_forks: Vec::new(),
            kids: KidPools::default(),
            text: Text::default(),
        }
    }
}

impl<V> SubjectTree<V> {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn len(&self) -> usize {
        self.leaves.len() - self.free_leaves.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether the filter selects every subject there is, as far as the root shows: `a.b.>` where all begin with `a.b.`.
    pub fn all_match(&self, filter: &Filter) -> bool {
        if filter.takes_all() {
            return true;
        }
        let root = match self.root {
            NONE => return false,
            leaf if leaf & LEAF != 0 => &self.leaves[(leaf & !LEAF) as usize].text,
            fork => &self.forks[fork as usize].text,
        };
        let Some(prefix) = filter.text().strip_suffix(b">").filter(|prefix| !prefix.contains(&b'*')) else {
            return false;
        };
        // A subject has no empty tokens: behind the prefix there is at least one more.
        self.text.get(root).starts_with(prefix) && prefix.ends_with(b".")
    }

    pub fn get(&self, subject: &[u8]) -> Option<&V> {
        let leaf = self.find(subject)?;
        self.leaves[leaf as usize].value.as_ref()
    }

    pub fn get_mut(&mut self, subject: &[u8]) -> Option<&mut V> {
        let leaf = self.find(subject)?;
        self.leaves[leaf as usize].value.as_mut()
    }

    fn find(&self, subject: &[u8]) -> Option<u32> {
        let mut rest = subject;
        let mut node = self.root;
        while node & LEAF == 0 {
            let fork = &self.forks[node as usize];
            rest = self.text.strip(&fork.text, rest)?;
            let Some((key, below)) = rest.split_first() else {
                return (fork.own != NONE).then_some(fork.own);
            };
            let slot = self.kids.find(&fork.kids, *key)?;
            node = self.kids.node(&fork.kids, slot);
            rest = below;
        }
        let leaf = self.leaves.get((node & !LEAF) as usize)?;
        (self.text.get(&leaf.text) == rest && node != NONE).then_some(node & !LEAF)
    }

    pub fn get_or_insert_with(&mut self, subject: &[u8], make: impl FnOnce() -> V) -> &mut V {
        let leaf = self.find_or_add(subject);
        self.leaves[leaf as usize].value.get_or_insert_with(make)
    }

    fn find_or_add(&mut self, subject: &[u8]) -> u32 {
        let mut rest = subject;
        let mut link = Link::Root;
        let mut node = self.root;
        if node == NONE {
            let leaf = self.new_leaf(rest);
            self.root = leaf | LEAF;
            return leaf;
        }
        loop {
            let text = if node & LEAF == 0 {
                &self.forks[node as usize].text
            } else {
                &self.leaves[(node & !LEAF) as usize].text
            };
            let text = self.text.get(text);
            let common = text.iter().zip(rest).take_while(|(ours, theirs)| ours == theirs).count();
            if node & LEAF != 0 && common == text.len() && common == rest.len() {
                return node & !LEAF;
            }
            if node & LEAF != 0 || common < text.len() {
                return self.part_ways(link, node, common, &rest[common..]);
            }
            let mut fork = self.forks[node as usize];
            let Some((key, below)) = rest[common..].split_first() else {
                if fork.own == NONE {
                    self.forks[node as usize].own = self.new_leaf(&[]);
                }
                return self.forks[node as usize].own;
            };
            match self.kids.find(&fork.kids, *key) {
                Some(slot) => {
                    link = Link::Kid { fork: node, slot };
                    node = self.kids.node(&fork.kids, slot);
                    rest = below;
                }
                None => {
                    let leaf = self.new_leaf(below);
                    self.kids.insert(&mut fork.kids, *key, leaf | LEAF);
                    self.forks[node as usize].kids = fork.kids;
                    return leaf;
                }
            }
        }
    }

    /// Puts a fork in the place of `node`, after the `common` bytes of its text: one way to what `node`
    /// had below, one to a new leaf for `rest`.
    fn part_ways(&mut self, link: Link, node: NodeRef, common: usize, rest: &[u8]) -> u32 {
        let old = *self.text_of(node);
        let old_key = self.text.get(&old).get(common).copied();
        let (front, back) = self.text.split(old, common);
        *self.text_of(node) = back;
        let mut fork = Fork { text: front, own: NONE, kids: self.kids.make() };
        match old_key {
            Some(key) => self.kids.insert(&mut fork.kids, key, node),
            // Only a leaf can end where the new subject goes on.
            None => fork.own = node & !LEAF,
        }
        let leaf = match rest.split_first() {
            Some((key, below)) => {
                let leaf = self.new_leaf(below);
                self.kids.insert(&mut fork.kids, *key, leaf | LEAF);
                leaf
            }
            None => {
                fork.own = self.new_leaf(&[]);
                fork.own
            }
        };
        let fork = self.new_fork(fork);
        self.relink(link, fork);
        leaf
    }

    pub fn remove(&mut self, subject: &[u8]) -> Option<V> {
        let mut rest = subject;
        // The link to the fork above the leaf, and that fork.
        let mut above = None;
        let mut link = Link::Root;
        let mut node = self.root;
        while node & LEAF == 0 {
            let fork = &self.forks[node as usize];
            rest = self.text.strip(&fork.text, rest)?;
            let Some((key, below)) = rest.split_first() else {
                let leaf = fork.own;
                if leaf == NONE {
                    return None;
                }
                self.forks[node as usize].own = NONE;
                self.join(link, node);
                return self.free_leaf(leaf);
            };
            let slot = self.kids.find(&fork.kids, *key)?;
            above = Some((link, node));
            link = Link::Kid { fork: node, slot };
            node = self.kids.node(&fork.kids, slot);
            rest = below;
        }
        if node == NONE || self.text.get(&self.leaves[(node & !LEAF) as usize].text) != rest {
            return None;
        }
        match link {
            Link::Root => self.root = NONE,
            Link::Kid { fork, slot } => self.kids.remove(&mut self.forks[fork as usize].kids, slot),
        }
        if let Some((link, fork)) = above {
            self.join(link, fork);
        }
        self.free_leaf(node & !LEAF)
    }

    /// Takes a fork away that has only one way left.
    fn join(&mut self, link: Link, fork: u32) {
        let Fork { text, own, kids } = self.forks[fork as usize];
        let mut joined = self.text.get(&text).to_vec();
        let node = match (own, kids.count()) {
            (NONE, 1) => {
                let node = self.kids.node(&kids, 0);
                joined.push(self.kids.keys(&kids)[0]);
                let below = *self.text_of(node);
                joined.extend_from_slice(self.text.get(&below));
                self.text.free(below);
                node
            }
            (own, 0) if own != NONE => own | LEAF,
            _ => return,
        };
        self.text.free(text);
        *self.text_of(node) = self.text.add(&joined);
        self.kids.free(kids);
        self.forks[fork as usize] = Fork { text: Piece::default(), own: NONE, kids: Kids::default() };
        self.free_forks.push(fork);
        self.relink(link, node);
    }

    fn text_of(&mut self, node: NodeRef) -> &mut Piece {
        if node & LEAF == 0 {
            &mut self.forks[node as usize].text
        } else {
            &mut self.leaves[(node & !LEAF) as usize].text
        }
    }

    fn relink(&mut self, link: Link, node: NodeRef) {
        match link {
            Link::Root => self.root = node,
            Link::Kid { fork, slot } => self.kids.set_node(&self.forks[fork as usize].kids, slot, node),
        }
    }

    fn new_leaf(&mut self, text: &[u8]) -> u32 {
        let leaf = Leaf { text: self.text.add(text), value: None };
        if let Some(slot) = self.free_leaves.pop() {
            self.leaves[slot as usize] = leaf;
            return slot;
        }
        self.leaves.push(leaf);
        // NONE has the leaf bit: its slot must never be reached. 2^31 leaves are 40 GiB at the least.
        assert!(self.leaves.len() < LEAF as usize, "a subject tree holds at most 2^31 - 1 subjects");
        self.leaves.len() as u32 - 1
    }

    fn free_leaf(&mut self, slot: u32) -> Option<V> {
        let leaf = &mut self.leaves[slot as usize];
        let value = leaf.value.take();
        self.text.free(std::mem::take(&mut leaf.text));
        self.free_leaves.push(slot);
        if self.is_empty() {
            // Give the memory back: an emptied stream must not hold what it held when it was full.
            self.clear();
        } else if self.text.is_wasteful() {
            let leaves = self.leaves.iter_mut().map(|leaf| &mut leaf.text);
            self.text.compact(leaves.chain(self.forks.iter_mut().map(|fork| &mut fork.text)));
        }
        value
    }

    fn new_fork(&mut self, fork: Fork) -> u32 {
        if let Some(slot) = self.free_forks.pop() {
            self.forks[slot as usize] = fork;
            return slot;
        }
        self.forks.push(fork);
        self.forks.len() as u32 - 1
    }

    /// In byte order.
    pub fn iter(&self) -> Iter<'_, V> {
        Iter { tree: self, walk: Walk::new(self, Filter::all()) }
    }

    /// Calls `act` for each subject that the filter selects, in byte order.
    pub fn for_each_match(&self, filter: &Filter, mut act: impl FnMut(&[u8], &V)) {
        let mut walk = Walk::new(self, filter.clone());
        while let Some(leaf) = walk.next(self) {
            if let Some(value) = &self.leaves[leaf as usize].value {
                act(&walk.subject, value);
            }
        }
    }

    /// The same until `act` says no.
    pub fn for_each_match_while(&self, filter: &Filter, mut act: impl FnMut(&[u8], &V) -> bool) {
        if filter.is_literal() {
            self.get(filter.text()).map(|value| act(filter.text(), value));
            return;
        }
        let mut walk = Walk::new(self, filter.clone());
        while let Some(leaf) = walk.next(self) {
            if self.leaves[leaf as usize].value.as_ref().is_some_and(|value| !act(&walk.subject, value)) {
                return;
            }
        }
    }

    pub fn for_each_match_mut(&mut self, filter: &Filter, mut act: impl FnMut(&[u8], &mut V)) {
        let mut walk = Walk::new(self, filter.clone());
        while let Some(leaf) = walk.next(self) {
            if let Some(value) = &mut self.leaves[leaf as usize].value {
                act(&walk.subject, value);
            }
        }
    }

    /// What the tree has allocated, the values included (not what they point to).
    pub fn heap_bytes(&self) -> usize {
        self.leaves.capacity() * size_of::<Leaf<V>>()
            + self.forks.capacity() * size_of::<Fork>()
            + (self.free_leaves.capacity() + self.free_forks.capacity()) * size_of::<u32>()
            + self.kids.heap_bytes()
            + self.text.heap_bytes()
    }
}

/// A node to visit: the subject up to it is the first `depth` bytes of the walk's subject and `key`.
struct Stop {
    node: NodeRef,
    depth: usize,
    key: Option<u8>,
    progress: Progress,
}

/// Goes through the part of the tree that a filter can match. The stack is its own: subjects nest as
/// deep as they are long.
struct Walk {
    filter: Filter,
    subject: Vec<u8>,
    stops: Vec<Stop>,
}

impl Walk {
    fn new<V>(tree: &SubjectTree<V>, filter: Filter) -> Self {
        let start = Stop { node: tree.root, depth: 0, key: None, progress: filter.start() };
        let stops = if tree.root == NONE { Vec::new() } else { vec![start] };
        Walk { filter, subject: Vec::new(), stops }
    }

    fn next<V>(&mut self, tree: &SubjectTree<V>) -> Option<u32> {
        while let Some(Stop { node, depth, key, progress }) = self.stops.pop() {
            self.subject.truncate(depth);
            self.subject.extend(key);
            let is_leaf = node & LEAF != 0;
            let text =
                if is_leaf { &tree.leaves[(node & !LEAF) as usize].text } else { &tree.forks[node as usize].text };
            let text = tree.text.get(text);
            let Some(progress) = self.filter.advance(progress, text) else { continue };
            self.subject.extend_from_slice(text);
            let complete = self.filter.is_complete(progress);
            if is_leaf {
                if complete {
                    return Some(node & !LEAF);
                }
                continue;
            }
            let fork = &tree.forks[node as usize];
            self.push_kids(tree, fork, progress);
            if complete && fork.own != NONE {
                return Some(fork.own);
            }
        }
        None
    }

    /// In reverse: the stack gives them back in order.
    fn push_kids<V>(&mut self, tree: &SubjectTree<V>, fork: &Fork, progress: Progress) {
        let depth = self.subject.len();
        let keys = tree.kids.keys(&fork.kids);
        let slots = match self.filter.only_byte(progress) {
            Some(byte) => tree.kids.find(&fork.kids, byte).map_or(0..0, |slot| slot..slot + 1),
            None => 0..keys.len(),
        };
        for slot in slots.rev() {
            if let Some(progress) = self.filter.step(progress, keys[slot]) {
                self.stops.push(Stop {
                    node: tree.kids.node(&fork.kids, slot),
                    depth,
                    key: Some(keys[slot]),
                    progress,
                });
            }
        }
    }
}

pub struct Iter<'a, V> {
    tree: &'a SubjectTree<V>,
    walk: Walk,
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = (Vec<u8>, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let leaf = self.walk.next(self.tree)?;
        let value = self.tree.leaves[leaf as usize].value.as_ref()?;
        Some((self.walk.subject.clone(), value))
    }
}

impl<'a, V> IntoIterator for &'a SubjectTree<V> {
    type Item = (Vec<u8>, &'a V);
    type IntoIter = Iter<'a, V>;

    fn into_iter(self) -> Iter<'a, V> {
        self.iter()
    }
}
