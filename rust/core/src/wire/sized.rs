//! Requests with their length in front, as Kafka's clients send them and expect their answers.
//!
//! ```text
//!   0        4                4 + length
//!   ├────────┼────────────────┤
//!   │ length │ request        │    length: big-endian, signed, of the request alone
//!   └────────┴────────────────┘
//! ```

pub const LENGTH_BYTES: usize = 4;

/// A length that no request may have: negative, or above the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadLength(pub i32);

/// The first whole request of `bytes` and how many bytes it took; None while it is not whole.
pub fn next(bytes: &[u8], length_max: usize) -> Result<Option<(&[u8], usize)>, BadLength> {
    let Some(head) = bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let said = i32::from_be_bytes(*head);
    let Some(length) = usize::try_from(said).ok().filter(|length| *length <= length_max) else {
        return Err(BadLength(said));
    };
    let end = LENGTH_BYTES + length;
    Ok(bytes.get(LENGTH_BYTES..end).map(|request| (request, end)))
}

/// Appends an answer with its length in front.
pub fn write(out: &mut Vec<u8>, answer: &[u8]) {
    out.extend_from_slice(&(answer.len() as i32).to_be_bytes());
    out.extend_from_slice(answer);
}
