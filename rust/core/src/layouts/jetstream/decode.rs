//! How small files are decoded here: every read is checked, and an error names its offset.

use crate::varint::{Malformed, get_uvarint, unfold};

/// Why a small file could not be decoded: where, and what was wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {problem}")]
pub struct DecodeError {
    pub offset: usize,
    pub problem: String,
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
        match get_uvarint(self.data, &mut self.at) {
            Ok(value) => Ok(value),
            Err(Malformed::Truncated) => self.fail("needs 1 bytes, 0 are left"),
            Err(Malformed::TooLong) => self.fail("a variable-length integer above 64 bits"),
        }
    }

    pub fn varint(&mut self) -> Result<i64, DecodeError> {
        self.uvarint().map(unfold)
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
