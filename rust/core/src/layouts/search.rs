//! How much a search through damaged bytes may hash.
//!
//! Looking for the next sound record must always be affordable, or a few flipped bits cost everything behind them.
//! Hashing every place that looks like a record is quadratic where a hostile file is full of them. So what is hashed
//! in vain is paid from a credit, and every byte that the walk advances adds to it: the whole costs at most a fixed
//! multiple of the file, a place that cannot be paid is passed over, and the walk never stops.
//! Optional repairs (trying every single bit) have a budget of their own, so that they take nothing from the search.

/// What each byte of progress adds.
const PER_BYTE: u64 = 64;
/// What there is from the start, so that the first large record can be looked at.
const START_PER_BYTE: u64 = 16;
const START_BYTES: u64 = 1 << 20;
/// What repairs may hash for each byte of the file.
const REPAIR_PER_BYTE: u64 = 32;

#[derive(Debug)]
pub struct Credit {
    /// Below zero when a look cost more than was known before.
    left: i64,
    advanced_to: u64,
    repairs: u64,
}

impl Credit {
    /// For a file of `len` bytes.
    pub fn new(len: u64) -> Credit {
        Credit {
            left: signed(len.saturating_mul(START_PER_BYTE).saturating_add(START_BYTES)),
            advanced_to: 0,
            repairs: len.saturating_mul(REPAIR_PER_BYTE).saturating_add(START_BYTES),
        }
    }

    /// The walk or the search has come to this offset.
    #[inline]
    pub fn advance(&mut self, to: u64) {
        if to > self.advanced_to {
            self.left = self.left.saturating_add(signed((to - self.advanced_to).saturating_mul(PER_BYTE)));
            self.advanced_to = to;
        }
    }

    #[inline]
    pub fn affords(&self, len: u64) -> bool {
        signed(len) <= self.left
    }

    /// Pays for a look at `len` bytes; `false` if it cannot be paid.
    #[inline]
    pub fn spend(&mut self, len: u64) -> bool {
        let paid = self.affords(len);
        self.left -= if paid { signed(len) } else { 0 };
        paid
    }

    /// Pays for a look whose cost was known only afterwards.
    #[inline]
    pub fn owe(&mut self, len: u64) {
        self.left = self.left.saturating_sub(signed(len));
    }

    /// Pays for a try to repair.
    #[inline]
    pub fn spend_on_repair(&mut self, len: u64) -> bool {
        let rest = self.repairs.checked_sub(len);
        self.repairs = rest.unwrap_or(self.repairs);
        rest.is_some()
    }
}

fn signed(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
