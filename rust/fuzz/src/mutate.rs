//! The mutator: a seed input, bent in a few places.

/// SplitMix64, so that one seed is one run everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Numbers at which decoders go wrong.
const EDGES: [u64; 12] =
    [0, 1, 29, 30, 31, 0x7f, 0x80, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x3fff_ffff_ffff_ffff, u64::MAX];
const STEPS_MAX: usize = 6;
const INPUT_BYTES_MAX: usize = 1 << 16;

pub fn mutated(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(STEPS_MAX) {
        step(random, &mut input, corpus);
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

fn step(random: &mut Random, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let at = random.below(input.len());
    let rest = input.len() - at;
    match random.below(9) {
        0 | 1 if rest > 0 => input[at] ^= 1 << random.below(8),
        2 if rest > 0 => input[at] = random.next() as u8,
        3 => {
            let value = EDGES[random.below(EDGES.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)].min(rest);
            input[at..at + width].copy_from_slice(&value[..width]);
        }
        4 => input.truncate(at),
        5 => {
            let count = random.below(64).min(rest);
            input.drain(at..at + count);
        }
        6 => {
            let noise: Vec<u8> = (0..random.below(40)).map(|_| random.next() as u8).collect();
            input.splice(at..at, noise);
        }
        7 => {
            let other = &corpus[random.below(corpus.len())];
            let from = random.below(other.len());
            let to = from + random.below(other.len() - from + 1);
            input.splice(at..at, other[from..to].iter().copied());
        }
        _ => {
            let count = random.below(700).min(rest);
            input[at..at + count].fill(0);
        }
    }
}
