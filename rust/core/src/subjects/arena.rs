//! What the subject tree is made of: pieces of text and blocks of children, in a few large vectors.
//!
//! ```text
//!   Piece   len:u32 | 8 bytes: the text itself, or where it lies in the shared text (u64)
//!   Kids    at:u32 count:u16 class:u8          a block of 2^(class+1) slots: sorted bytes, node numbers
//! ```

use std::mem::size_of;

const INLINE_BYTES: usize = 8;
/// Below this much waste the shared text is not worth rewriting.
const WASTE_BYTES_MIN: usize = 64 << 10;

/// A piece of a subject. Most are short and live in the piece itself.
#[derive(Clone, Copy, Default)]
pub struct Piece {
    len: u32,
    bytes: [u8; INLINE_BYTES],
}

impl Piece {
    pub fn len(&self) -> usize {
        self.len as usize
    }

    fn is_inline(&self) -> bool {
        self.len() <= INLINE_BYTES
    }

    fn offset(&self) -> usize {
        u64::from_ne_bytes(self.bytes) as usize
    }

    fn inline(text: &[u8]) -> Piece {
        let mut bytes = [0; INLINE_BYTES];
        bytes[..text.len()].copy_from_slice(text);
        Piece { len: text.len() as u32, bytes }
    }

    fn shared(offset: usize, len: usize) -> Piece {
        Piece { len: len as u32, bytes: (offset as u64).to_ne_bytes() }
    }
}

/// The text of the long pieces. Space of freed pieces is won back by rewriting all.
#[derive(Default)]
pub struct Text {
    bytes: Vec<u8>,
    live: usize,
}

impl Text {
    pub fn get<'a>(&'a self, piece: &'a Piece) -> &'a [u8] {
        if piece.is_inline() {
            &piece.bytes[..piece.len()]
        } else {
            &self.bytes[piece.offset()..piece.offset() + piece.len()]
        }
    }

    /// What follows the piece in `subject`, if it begins with it.
    pub fn strip<'s>(&self, piece: &Piece, subject: &'s [u8]) -> Option<&'s [u8]> {
        // Most forks below the first have no text of their own.
        if piece.len == 0 { Some(subject) } else { subject.strip_prefix(self.get(piece)) }
    }

    pub fn add(&mut self, text: &[u8]) -> Piece {
        if text.len() <= INLINE_BYTES {
            return Piece::inline(text);
        }
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(text);
        self.live += text.len();
        Piece::shared(offset, text.len())
    }

    /// `piece[..at]` and `piece[at + 1..]`; a long part stays where it lies. Takes the place of `piece`.
    pub fn split(&mut self, piece: Piece, at: usize) -> (Piece, Piece) {
        let tail = (at + 1).min(piece.len());
        let part = |from: usize, to: usize| {
            if to - from <= INLINE_BYTES {
                Piece::inline(&self.get(&piece)[from..to])
            } else {
                Piece::shared(piece.offset() + from, to - from)
            }
        };
        let parts = (part(0, at), part(tail, piece.len()));
        self.live += Self::share(&parts.0) + Self::share(&parts.1);
        self.free(piece);
        parts
    }

    pub fn free(&mut self, piece: Piece) {
        self.live -= Self::share(&piece);
    }

    fn share(piece: &Piece) -> usize {
        if piece.is_inline() { 0 } else { piece.len() }
    }

    pub fn is_wasteful(&self) -> bool {
        let waste = self.bytes.len() - self.live;
        waste > WASTE_BYTES_MIN && waste > self.live
    }

    /// Rewrites the text with only the pieces that are still used.
    pub fn compact<'a>(&mut self, pieces: impl Iterator<Item = &'a mut Piece>) {
        let mut fresh = Text { bytes: Vec::with_capacity(self.live), live: 0 };
        for piece in pieces {
            *piece = fresh.add(self.get(piece));
        }
        *self = fresh;
    }

    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

/// The children of one node: a block in the pool of its class.
#[derive(Clone, Copy, Default)]
pub struct Kids {
    at: u32,
    count: u16,
    class: u8,
}

impl Kids {
    pub fn count(&self) -> usize {
        self.count as usize
    }
}

const CLASSES: usize = 8;

fn slots(class: u8) -> usize {
    2 << class
}

#[derive(Default)]
struct Pool {
    blocks: Vec<u8>,
    free: Vec<u32>,
}

/// All blocks of children, one pool for each of the sizes 2, 4, 8 … 256. The keys of a block and its
/// node numbers lie side by side, so that a step down the tree touches one or two cache lines.
#[derive(Default)]
pub struct KidPools([Pool; CLASSES]);

const NODE_BYTES: usize = size_of::<u32>();
const WORD_BYTES: usize = size_of::<u64>();
const EACH_BYTE: u64 = 0x0101_0101_0101_0101;

fn block_bytes(class: u8) -> usize {
    slots(class) * (1 + NODE_BYTES)
}

impl KidPools {
    fn block(&self, kids: &Kids) -> &[u8] {
        let start = kids.at as usize * block_bytes(kids.class);
        &self.0[kids.class as usize].blocks[start..start + block_bytes(kids.class)]
    }

    fn block_mut(&mut self, kids: &Kids) -> (&mut [u8], &mut [u8]) {
        let start = kids.at as usize * block_bytes(kids.class);
        let block = &mut self.0[kids.class as usize].blocks[start..start + block_bytes(kids.class)];
        block.split_at_mut(slots(kids.class))
    }

    pub fn keys(&self, kids: &Kids) -> &[u8] {
        &self.block(kids)[..kids.count()]
    }

    pub fn node(&self, kids: &Kids, slot: usize) -> u32 {
        let at = slots(kids.class) + slot * NODE_BYTES;
        let bytes = &self.block(kids)[at..at + NODE_BYTES];
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    pub fn set_node(&mut self, kids: &Kids, slot: usize, node: u32) {
        let at = slot * NODE_BYTES;
        self.block_mut(kids).1[at..at + NODE_BYTES].copy_from_slice(&node.to_ne_bytes());
    }

    pub fn find(&self, kids: &Kids, key: u8) -> Option<usize> {
        if slots(kids.class) < WORD_BYTES {
            return self.keys(kids).iter().position(|there| *there == key);
        }
        // Eight keys at a time without a branch on each: which digit comes next cannot be predicted.
        for (number, word) in self.block(kids)[..slots(kids.class)].chunks_exact(WORD_BYTES).enumerate() {
            let word = word.try_into().map_or(0, u64::from_le_bytes);
            let differs = word ^ (u64::from(key) * EACH_BYTE);
            let equal = differs.wrapping_sub(EACH_BYTE) & !differs & (EACH_BYTE << 7);
            if equal != 0 {
                // The lowest hit is exact. What earlier uses left in the block lies after the live keys.
                let slot = number * WORD_BYTES + equal.trailing_zeros() as usize / 8;
                return (slot < kids.count()).then_some(slot);
            }
        }
        None
    }

    pub fn make(&mut self) -> Kids {
        Kids { at: self.take(0), count: 0, class: 0 }
    }

    pub fn free(&mut self, kids: Kids) {
        self.0[kids.class as usize].free.push(kids.at);
    }

    /// The key must not be there.
    pub fn insert(&mut self, kids: &mut Kids, key: u8, node: u32) {
        if kids.count() == slots(kids.class) {
            self.move_to(kids, kids.class + 1);
        }
        let slot = self.keys(kids).partition_point(|there| *there < key);
        let (keys, nodes) = self.block_mut(kids);
        keys.copy_within(slot..kids.count(), slot + 1);
        nodes.copy_within(slot * NODE_BYTES..kids.count() * NODE_BYTES, (slot + 1) * NODE_BYTES);
        keys[slot] = key;
        kids.count += 1;
        self.set_node(kids, slot, node);
    }

    pub fn remove(&mut self, kids: &mut Kids, slot: usize) {
        let (keys, nodes) = self.block_mut(kids);
        keys.copy_within(slot + 1..kids.count(), slot);
        nodes.copy_within((slot + 1) * NODE_BYTES..kids.count() * NODE_BYTES, slot * NODE_BYTES);
        kids.count -= 1;
        // A quarter, not a half: one insert after the shrink must not grow it again.
        if kids.class > 0 && kids.count() <= slots(kids.class) / 4 {
            self.move_to(kids, kids.class - 1);
        }
    }

    fn move_to(&mut self, kids: &mut Kids, class: u8) {
        let old = *kids;
        let block = self.block(&old).to_vec();
        let (old_keys, old_nodes) = block.split_at(slots(old.class));
        *kids = Kids { at: self.take(class), class, ..old };
        let (keys, nodes) = self.block_mut(kids);
        keys[..old.count()].copy_from_slice(&old_keys[..old.count()]);
        nodes[..old.count() * NODE_BYTES].copy_from_slice(&old_nodes[..old.count() * NODE_BYTES]);
        self.free(old);
    }

    fn take(&mut self, class: u8) -> u32 {
        let pool = &mut self.0[class as usize];
        pool.free.pop().unwrap_or_else(|| {
            let at = pool.blocks.len() / block_bytes(class);
            pool.blocks.resize(pool.blocks.len() + block_bytes(class), 0);
            at as u32
        })
    }

    pub fn heap_bytes(&self) -> usize {
        self.0.iter().map(|pool| pool.blocks.capacity() + pool.free.capacity() * size_of::<u32>()).sum()
    }
}
