//! Base-128 integers: 7 bits a byte, low group first, the top bit says that more follow. At most ten bytes.
//!
//! `uvarint` is unsigned; `varint` is zig-zag signed, as Kafka's records, protobuf's sint64 and NATS write it.

/// Why there is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// The bytes end inside it.
    Truncated,
    /// More than 64 bits.
    TooLong,
}

/// Reads one and moves `at` behind it.
#[inline]
pub fn get_uvarint(bytes: &[u8], at: &mut usize) -> Result<u64, Malformed> {
    let mut value = 0u64;
    let mut shift = 0;
    loop {
        let byte = *bytes.get(*at).ok_or(Malformed::Truncated)?;
        *at += 1;
        if shift == 63 && byte > 1 {
            return Err(Malformed::TooLong);
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
        shift += 7;
    }
}

#[inline]
pub fn get_varint(bytes: &[u8], at: &mut usize) -> Result<i64, Malformed> {
    get_uvarint(bytes, at).map(unfold)
}

/// As protobuf's readers do it: bits above the 64th are dropped.
#[inline]
pub fn get_protobuf(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[inline]
pub fn put_uvarint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub fn put_varint(out: &mut Vec<u8>, value: i64) {
    put_uvarint(out, fold(value));
}

/// How many bytes `put_varint` writes.
#[inline]
pub fn varint_size(value: i64) -> usize {
    let bits = 64 - (fold(value) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[inline]
fn fold(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

#[inline]
pub(crate) fn unfold(raw: u64) -> i64 {
    (raw >> 1) as i64 ^ -((raw & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_the_edges() {
        for value in [0, 1, -1, 63, -64, 64, 8191, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_size(value));
            let mut at = 0;
            assert_eq!((get_varint(&out, &mut at), at), (Ok(value), out.len()));
            at = 0;
            assert_eq!(get_varint(&out[..out.len() - 1], &mut at), Err(Malformed::Truncated));
        }
    }

    #[test]
    fn more_than_64_bits() {
        let long = [&[0xff; 9][..], &[2]].concat();
        assert_eq!(get_uvarint(&long, &mut 0), Err(Malformed::TooLong));
        assert_eq!(get_protobuf(&long, &mut 0), Some(u64::MAX >> 1));
        assert_eq!(get_uvarint(&[0x80; 11], &mut 0), Err(Malformed::TooLong));
        assert_eq!(get_protobuf(&[0x80; 11], &mut 0), None);
    }
}
