//! Random numbers and damage for the tests of damaged files.

/// Numbers from a seed, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound.max(1) as u64) as usize
    }

    /// Different numbers below `bound`, sorted.
    pub fn choose(&mut self, count: usize, bound: usize) -> Vec<usize> {
        let mut chosen = std::collections::BTreeSet::new();
        while chosen.len() < count.min(bound) {
            chosen.insert(self.below(bound));
        }
        chosen.into_iter().collect()
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    /// One bit, two bits, or a few bytes of noise, anywhere in the record or in its first bytes.
    pub fn damage(&mut self, record: &mut [u8]) {
        let reach = if self.below(2) == 0 { record.len() } else { record.len().min(24) };
        match self.below(3) {
            0 => record[self.below(reach)] ^= 1 << self.below(8),
            1 => (0..2).for_each(|_| record[self.below(reach)] ^= 1 << self.below(8)),
            _ => {
                let at = self.below(reach);
                let noise = self.bytes(record.len().min(8));
                record[at..].iter_mut().zip(noise).for_each(|(byte, noise)| *byte = noise);
            }
        }
    }
}
