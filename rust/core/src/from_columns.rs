//! Arrow buffers as a batch: the way back of `columns`, for what others made (Spark's rows above all).
//!
//! ```text
//! bytes      validity (bits; none = all valid) | offsets (i32, n+1) | bytes        a slice starts at row `start`
//! headers    map<string, list<string>> → one NATS header block per message
//!            or bytes: blocks as they are, in the codec that is named (an archive's own column)
//! ```
//! Offsets are checked: buffers of a stranger never lead outside themselves.

use crate::batch::{Batch, BatchBuilder, HeaderCodec, Message, TooLarge};

#[derive(Debug, thiserror::Error)]
pub enum FromColumnsError {
    #[error("column {0}: its buffers do not hold {1} rows")]
    Short(&'static str, usize),
    #[error("row {0}: a header name that is empty or has a colon, a blank or a line break")]
    HeaderName(usize),
    #[error("row {0}: a header value with a line break")]
    HeaderValue(usize),
    #[error("row {0}: no subject")]
    NoSubject(usize),
    #[error("{0}")]
    TooLarge(#[from] TooLarge),
}

/// A column of texts or bytes, or of lists (then `bytes` is empty and offsets count children).
#[derive(Clone, Copy)]
pub struct Column<'a> {
    pub name: &'static str,
    pub validity: Option<&'a [u8]>,
    pub offsets: &'a [u8],
    pub bytes: &'a [u8],
    pub start: usize,
}

impl<'a> Column<'a> {
    fn check(&self, rows: usize) -> Result<(), FromColumnsError> {
        let short = FromColumnsError::Short(self.name, rows);
        let bits = self.validity.is_none_or(|validity| validity.len() * 8 >= self.start + rows);
        if bits && (rows == 0 || self.offsets.len() / 4 > self.start + rows) { Ok(()) } else { Err(short) }
    }

    fn valid(&self, row: usize) -> bool {
        let at = self.start + row;
        self.validity.is_none_or(|bits| bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1))
    }

    fn offset(&self, row: usize) -> Option<usize> {
        let at = (self.start + row) * 4;
        let raw = self.offsets.get(at..at + 4)?;
        usize::try_from(i32::from_le_bytes(raw.try_into().ok()?)).ok()
    }

    fn range(&self, row: usize) -> Result<(usize, usize), FromColumnsError> {
        match (self.offset(row), self.offset(row + 1)) {
            (Some(from), Some(to)) if from <= to => Ok((from, to)),
            _ => Err(FromColumnsError::Short(self.name, row + 1)),
        }
    }

    fn get(&self, row: usize) -> Result<Option<&'a [u8]>, FromColumnsError> {
        if !self.valid(row) {
            return Ok(None);
        }
        let (from, to) = self.range(row)?;
        self.bytes.get(from..to).map(Some).ok_or(FromColumnsError::Short(self.name, row + 1))
    }
}

/// The four levels of map<string, list<string>>; children are whole (they start at row 0).
pub struct HeaderColumns<'a> {
    pub maps: Column<'a>,
    pub names: Column<'a>,
    pub lists: Column<'a>,
    pub values: Column<'a>,
}

pub enum Headers<'a> {
    None,
    Maps(Box<HeaderColumns<'a>>),
    Blocks(Column<'a>, HeaderCodec),
}

pub struct Columns<'a> {
    pub subject: Result<Column<'a>, &'a [u8]>,
    pub data: Option<Column<'a>>,
    pub key: Option<Column<'a>>,
    pub headers: Headers<'a>,
    /// i64 each; 0 without them.
    pub positions: Option<&'a [u8]>,
    pub times: Option<&'a [u8]>,
}

pub fn build(rows: usize, columns: &Columns<'_>) -> Result<Batch, FromColumnsError> {
    for column in [columns.subject.as_ref().ok(), columns.data.as_ref(), columns.key.as_ref()].into_iter().flatten() {
        column.check(rows)?;
    }
    let codec = match &columns.headers {
        Headers::Blocks(column, codec) => column.check(rows).map(|()| *codec)?,
        _ => HeaderCodec::Nats,
    };
    let number = |name, column: Option<&[u8]>, row: usize| match column {
        None => Ok(0),
        Some(bytes) => bytes
            .get(row * 8..row * 8 + 8)
            .and_then(|raw| raw.try_into().ok())
            .map(i64::from_le_bytes)
            .ok_or(FromColumnsError::Short(name, rows)),
    };
    let mut builder = BatchBuilder::with_capacity(rows, rows * 64, codec);
    let mut block = Vec::new();
    for row in 0..rows {
        let subject = match &columns.subject {
            Ok(column) => column.get(row)?.ok_or(FromColumnsError::NoSubject(row))?,
            Err(one) => one,
        };
        block.clear();
        let headers = match &columns.headers {
            Headers::None => None,
            Headers::Maps(maps) => {
                header_block(maps, row, &mut block)?;
                (!block.is_empty()).then_some(&block[..])
            }
            Headers::Blocks(column, _) => column.get(row)?,
        };
        builder.push(Message {
            position: number("seq", columns.positions, row)? as u64,
            time: number("time_ns", columns.times, row)?,
            subject,
            key: cell(&columns.key, row)?,
            headers,
            data: cell(&columns.data, row)?,
            flags: 0,
        })?;
    }
    Ok(builder.finish())
}

fn cell<'a>(column: &Option<Column<'a>>, row: usize) -> Result<Option<&'a [u8]>, FromColumnsError> {
    column.as_ref().map_or(Ok(None), |column| column.get(row))
}

fn header_block(headers: &HeaderColumns<'_>, row: usize, out: &mut Vec<u8>) -> Result<(), FromColumnsError> {
    if !headers.maps.valid(row) {
        return Ok(());
    }
    let (from, to) = headers.maps.range(row)?;
    for entry in from..to {
        let name = headers.names.get(entry)?.unwrap_or(b"");
        if name.is_empty() || name.iter().any(|byte| *byte <= b' ' || *byte == b':' || *byte == 127) {
            return Err(FromColumnsError::HeaderName(row));
        }
        if !headers.lists.valid(entry) {
            continue;
        }
        let (first, last) = headers.lists.range(entry)?;
        for at in first..last {
            let value = headers.values.get(at)?.unwrap_or(b"");
            if value.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
                return Err(FromColumnsError::HeaderValue(row));
            }
            if out.is_empty() {
                out.extend_from_slice(b"NATS/1.0\r\n");
            }
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }
    if !out.is_empty() {
        out.extend_from_slice(b"\r\n");
    }
    Ok(())
}
