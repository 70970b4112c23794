//! Base-128 integers: 7 bits a byte, low group first, top bit = more. `varint` is zig-zag signed.
//! `Reader` is the one way small files are decoded here: every read is checked and names its offset.

/// Why a small file could not be decoded: where, and what was wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {problem}")]
pub struct DecodeError {
    pub offset: usize,
    pub problem: String,
}

pub fn put_uvarint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn put_varint(out: &mut Vec<u8>, value: i64) {
    put_uvarint(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub struct Reader<'a> {
    pub data: &'a [u8],
    pub at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Reader { data, at: 0 }
    }

    pub fn fail<T>(&self, problem: impl Into<String>) -> Result<T, DecodeError> {
        Err(DecodeError { offset: self.at, problem: problem.into() })
    }

    pub fn left(&self) -> usize {
        self.data.len() - self.at
    }

    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        if count > self.left() {
            return self.fail(format!("needs {count} bytes, {} are left", self.left()));
        }
        let piece = &self.data[self.at..self.at + count];
        self.at += count;
        Ok(piece)
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into().unwrap()))
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().unwrap()))
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().unwrap()))
    }

    pub fn uvarint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let group = u64::from(byte & 0x7f);
            if shift == 63 && group > 1 {
                return self.fail("a variable-length integer above 64 bits");
            }
            value |= group << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        self.fail("a variable-length integer of more than ten bytes")
    }

    pub fn varint(&mut self) -> Result<i64, DecodeError> {
        let raw = self.uvarint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// A count of things that take at least `unit` bytes each: never more than fit in what is left.
    pub fn count(&mut self, unit: usize, what: &str) -> Result<usize, DecodeError> {
        let start = self.at;
        let count = self.uvarint()?;
        if count > (self.left() / unit.max(1)) as u64 {
            self.at = start;
            return self.fail(format!("{count} {what} do not fit in {} bytes", self.left()));
        }
        Ok(count as usize)
    }
}
