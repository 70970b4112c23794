//! HighwayHash-64 as JetStream uses it: a 32-byte key read as four little-endian words,
//! the 64-bit result stored little-endian. Keys are SHA-256 of a text (`<stream>-<block>` …).

use highway::{HighwayHash, HighwayHasher, Key};
use sha2::{Digest, Sha256};

/// A prepared key; hashing several pieces in order equals hashing their concatenation.
#[derive(Clone, Copy)]
pub struct HashKey(Key);

impl HashKey {
    pub fn new(bytes: &[u8; 32]) -> Self {
        let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap());
        HashKey(Key([word(0), word(1), word(2), word(3)]))
    }

    /// The key that JetStream derives from a text.
    pub fn from_text(text: &[u8]) -> Self {
        Self::new(&Sha256::digest(text).into())
    }

    pub fn hash(&self, data: &[u8]) -> u64 {
        HighwayHasher::new(self.0).hash64(data)
    }

    pub fn hash_pieces(&self, pieces: &[&[u8]]) -> u64 {
        let mut hasher = HighwayHasher::new(self.0);
        for piece in pieces {
            hasher.append(piece);
        }
        hasher.finalize64()
    }
}
