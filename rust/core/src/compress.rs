//! S2 streams (Snappy framing with S2 blocks), as Go's `s2.Writer` and `s2.Reader` have them. The block
//! codec is the crate `minlz`; the framing is ours, because salvage needs it chunk by chunk.
//!
//! ```text
//!   ff 06 00 00 S2sTwO                            stream identifier, first; may come again
//!   00 len:u24 crc:u32 | uvarint size, S2 block   crc = masked CRC-32C of the uncompressed bytes
//!   01 len:u24 crc:u32 | bytes                    stored as they are
//!   80..fe len:u24 | anything                     skipped (padding, index)
//! ```
//! The header (type and length) has no checksum of its own: the tolerant reader repairs a flipped bit in
//! it by the chunk's checksum, and failing that looks for the next sound chunk.

use minlz::s2;

use crate::layouts::search::Credit;

const STREAM_ID: &[u8] = b"\xff\x06\x00\x00S2sTwO";
const SNAPPY_ID: &[u8] = b"\xff\x06\x00\x00sNaPpY";
const HEADER_BYTES: usize = 4;
const CRC_BYTES: usize = 4;
const TYPE_COMPRESSED: u8 = 0x00;
const TYPE_STORED: u8 = 0x01;
const TYPE_SKIPPABLE_MIN: u8 = 0x80;
const TYPE_STREAM_ID: u8 = 0xff;
/// The largest block that the format allows.
const BLOCK_BYTES_MAX: usize = 4 << 20;
/// A search opens every chunk that costs no more than this.
const SMALL: u64 = 128 << 10;
/// How many chunks that do not open may stand between a damaged one and the sound one that confirms its length.
const UNSOUND_IN_A_ROW_MAX: usize = 64;
/// What we write. A chunk is what one flipped bit costs, so it is small.
const BLOCK_BYTES: usize = 64 << 10;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum S2Error {
    #[error("S2 stream: at byte {offset}: {what}")]
    Corrupt { offset: usize, what: &'static str },
    #[error("S2 stream: more than {max} bytes of output")]
    TooLarge { max: usize },
}

/// A chunk that could not be used as it stood, and the zeros that stand for it in the output.
/// `out_len` is 0 when nothing was lost (a repaired header or checksum, a damaged identifier).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadChunk {
    pub in_offset: usize,
    pub in_len: usize,
    pub out_offset: usize,
    pub out_len: usize,
    pub what: &'static str,
}

const MASK_DELTA: u32 = 0xa282_ead8;

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK_DELTA)
}

/// S2 readers take Snappy streams as well.
fn is_identifier(input: &[u8]) -> bool {
    input.starts_with(STREAM_ID) || input.starts_with(SNAPPY_ID)
}

/// Where a stream begins in these bytes.
pub fn s2_identifier(bytes: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, STREAM_ID)
}

#[derive(Clone, Copy)]
struct Header {
    kind: u8,
    len: usize,
}

impl Header {
    fn at(input: &[u8], offset: usize) -> Option<Header> {
        let bytes: [u8; HEADER_BYTES] = input.get(offset..)?.get(..HEADER_BYTES)?.try_into().ok()?;
        Some(Header::from_word(u32::from_le_bytes(bytes)))
    }

    fn from_word(word: u32) -> Header {
        Header { kind: word as u8, len: (word >> 8) as usize }
    }

    fn word(self) -> u32 {
        (self.len as u32) << 8 | u32::from(self.kind)
    }

    fn is_data(self) -> bool {
        self.kind <= TYPE_STORED
    }

    /// Where the chunk at `offset` ends, if the input reaches that far.
    fn end(self, input: &[u8], offset: usize) -> Option<usize> {
        let end = offset + HEADER_BYTES + self.len;
        (end <= input.len()).then_some(end)
    }

    /// The uncompressed size that the chunk itself states.
    fn claim(self, body: &[u8]) -> Option<usize> {
        let data = body.get(CRC_BYTES..)?;
        let size = if self.kind == TYPE_STORED { data.len() } else { s2::decode_len(data).ok()?.0 };
        (size <= BLOCK_BYTES_MAX).then_some(size)
    }
}

enum Refused {
    Undecodable(&'static str),
    /// Decoded, but the checksum differs: the bytes, and the bits of the checksum that differ.
    Checksum(Vec<u8>, u32),
}

/// The bytes of one data chunk, `body` being all after the header.
fn open_chunk(header: Header, body: &[u8], left: usize) -> Result<Vec<u8>, Refused> {
    let size = header.claim(body).ok_or(Refused::Undecodable("bad chunk size"))?;
    if size > left {
        return Err(Refused::Undecodable("more output than there is room for"));
    }
    let (crc, data) = body.split_at(CRC_BYTES);
    let mut bytes = vec![0; size];
    if header.kind == TYPE_STORED {
        bytes.copy_from_slice(data);
    } else if s2::decode_into(&mut bytes, data) != Ok(size) {
        return Err(Refused::Undecodable("bad S2 block"));
    }
    let stored = u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]]);
    let computed = masked_crc(&bytes);
    if stored == computed { Ok(bytes) } else { Err(Refused::Checksum(bytes, stored ^ computed)) }
}

/// Strict: any damage is an error, and so is output above `max_output`. The caller compares the length: one
/// flipped bit can turn a data chunk into one that every reader must skip.
pub fn s2_decompress_stream(input: &[u8], max_output: usize) -> Result<Vec<u8>, S2Error> {
    let mut out = Vec::new();
    let mut at = 0;
    if !input.is_empty() && !is_identifier(input) {
        return Err(S2Error::Corrupt { offset: 0, what: "no stream identifier" });
    }
    while at < input.len() {
        let corrupt = |what| S2Error::Corrupt { offset: at, what };
        let header = Header::at(input, at).ok_or(corrupt("cut in a chunk header"))?;
        let end = header.end(input, at).ok_or(corrupt("cut in a chunk"))?;
        let body = &input[at + HEADER_BYTES..end];
        if header.is_data() {
            let left = max_output - out.len();
            if header.claim(body).is_some_and(|size| size > left) {
                return Err(S2Error::TooLarge { max: max_output });
            }
            match open_chunk(header, body, left) {
                Ok(bytes) => out.extend_from_slice(&bytes),
                Err(Refused::Undecodable(what)) => return Err(corrupt(what)),
                Err(Refused::Checksum(..)) => return Err(corrupt("checksum mismatch")),
            }
        } else if header.kind == TYPE_STREAM_ID {
            if !is_identifier(&input[at..end]) {
                return Err(corrupt("bad stream identifier"));
            }
        } else if header.kind < TYPE_SKIPPABLE_MIN {
            return Err(corrupt("unknown chunk type"));
        }
        at = end;
    }
    Ok(out)
}

/// The sum of the sizes that the chunks state: a check on a size that is stored elsewhere. `None` when
/// the framing is damaged.
pub fn s2_stated_len(input: &[u8]) -> Option<usize> {
    let (mut at, mut sum) = (0, 0);
    while at < input.len() {
        let header = Header::at(input, at)?;
        let end = header.end(input, at)?;
        if header.is_data() {
            sum += header.claim(&input[at + HEADER_BYTES..end])?;
        }
        at = end;
    }
    Some(sum)
}

/// `expected_len` bytes, or more (up to `max_len`) where the chunks hold more: the expectation may be damaged, too. Each chunk that cannot be decoded is zeros of its own length, so the
/// others stay at their offsets; all that was not as it should be is listed.
pub fn s2_decompress_stream_tolerant(input: &[u8], expected_len: usize, max_len: usize) -> (Vec<u8>, Vec<BadChunk>) {
    let credit = Credit::new((input.len() + expected_len) as u64);
    let mut walk = Walk { input, max_len, good_len: 0, pieces: Vec::new(), credit };
    walk.run();
    lay_out(walk.pieces, walk.good_len, expected_len)
}

struct Piece {
    in_offset: usize,
    in_len: usize,
    content: Content,
}

enum Content {
    Sound(Vec<u8>),
    /// Sound after a repair that is to be reported.
    Repaired(Vec<u8>, &'static str),
    /// The size that the chunk states, if it states one.
    Lost(Option<usize>, &'static str),
}

struct Walk<'a> {
    input: &'a [u8],
    max_len: usize,
    good_len: usize,
    pieces: Vec<Piece>,
    credit: Credit,
}

impl Walk<'_> {
    fn run(&mut self) {
        let mut at = 0;
        while at < self.input.len() {
            let (end, content) = self.next(at);
            if let Content::Sound(bytes) | Content::Repaired(bytes, _) = &content {
                self.good_len += bytes.len();
            }
            self.pieces.push(Piece { in_offset: at, in_len: end - at, content });
            at = end;
        }
    }

    fn next(&mut self, at: usize) -> (usize, Content) {
        if is_identifier(&self.input[at..]) {
            return (at + STREAM_ID.len(), Content::Sound(Vec::new()));
        }
        let header = Header::at(self.input, at);
        let framed = header.and_then(|header| Some((header, header.end(self.input, at)?)));
        let mut lost = "unreadable chunk header";
        let mut claim = None;
        if let Some((header, end)) = framed {
            if header.is_data() {
                match self.open(header, at, end) {
                    Ok(bytes) => return (end, Content::Sound(bytes)),
                    Err(Refused::Undecodable(what)) => lost = what,
                    Err(Refused::Checksum(bytes, differs)) => {
                        // One bit of the stored checksum: the data decoded, and chance has 2^-27.
                        if differs.count_ones() == 1 && self.plausible(end) {
                            return (end, Content::Repaired(bytes, "flipped bit in a checksum"));
                        }
                        lost = "checksum mismatch";
                    }
                }
                claim = header.claim(&self.input[at + HEADER_BYTES..end]);
            }
        }
        // Before anything is skipped: one bit makes a skippable chunk of a data chunk.
        if let Some((end, bytes)) = header.and_then(|header| self.repair(header, at)) {
            return (end, Content::Repaired(bytes, "flipped bit in a chunk header"));
        }
        // A stream begins with the identifier; what stands there instead is one, damaged.
        if at == 0 && self.plausible(STREAM_ID.len()) {
            return (STREAM_ID.len(), Content::Repaired(Vec::new(), "bad stream identifier"));
        }
        match framed {
            Some((header, end)) if header.kind >= TYPE_SKIPPABLE_MIN && self.leads_on(end) => {
                let identifier = header.kind == TYPE_STREAM_ID;
                let damaged = Content::Repaired(Vec::new(), "bad stream identifier");
                (end, if identifier { damaged } else { Content::Sound(Vec::new()) })
            }
            Some((_, end)) if self.leads_on(end) => (end, Content::Lost(claim, lost)),
            _ => (self.resync(at + 1), Content::Lost(None, lost)),
        }
    }

    fn open(&self, header: Header, at: usize, end: usize) -> Result<Vec<u8>, Refused> {
        open_chunk(header, &self.input[at + HEADER_BYTES..end], self.max_len - self.good_len)
    }

    /// Whether a chunk may begin here (or the stream end).
    fn plausible(&self, at: usize) -> bool {
        at == self.input.len()
            || Header::at(self.input, at).is_some_and(|header| {
                (header.is_data() || header.kind >= TYPE_SKIPPABLE_MIN) && header.end(self.input, at).is_some()
            })
    }

    /// Whether the chunks from here on lead to a sound one, or to the end. The length of a chunk that does not open may
    /// be what is damaged, and compressed bytes look like a header often enough: a length is believed, and what it
    /// covers is passed over, only where it leads to something that cannot be chance.
    fn leads_on(&mut self, mut at: usize) -> bool {
        for _ in 0..UNSOUND_IN_A_ROW_MAX {
            if at == self.input.len() || is_identifier(&self.input[at..]) {
                return true;
            }
            let Some(header) = Header::at(self.input, at) else { return false };
            if let Some((end, cost)) = self.cost(header, at) {
                if !self.credit.spend(cost) {
                    return false;
                }
                if self.open(header, at, end).is_ok() {
                    return true;
                }
            }
            if self.repair(header, at).is_some() {
                return true;
            }
            match header.end(self.input, at) {
                Some(end) if self.plausible(at) => at = end,
                _ => return false,
            }
        }
        false
    }

    /// A sound data chunk, after one bit of the header was inverted.
    fn repair(&mut self, header: Header, at: usize) -> Option<(usize, Vec<u8>)> {
        (0..u32::BITS).find_map(|bit| {
            let header = Header::from_word(header.word() ^ (1 << bit));
            let (end, cost) = self.cost(header, at)?;
            (self.plausible(end) && self.credit.spend_on_repair(cost)).then_some(())?;
            Some((end, self.open(header, at, end).ok()?))
        })
    }

    /// Where a data chunk would end, and what it costs to find out whether it is one.
    fn cost(&self, header: Header, at: usize) -> Option<(usize, u64)> {
        let end = header.end(self.input, at).filter(|_| header.is_data())?;
        let size = header.claim(&self.input[at + HEADER_BYTES..end])?;
        Some((end, (header.len + size) as u64))
    }

    /// Compressed bytes look like chunks now and then. A large one is opened only where another follows it, or where it
    /// states a size that writers use: behind it another damaged header may stand.
    fn sound(&mut self, at: usize) -> bool {
        let Some(header) = Header::at(self.input, at) else { return false };
        let Some((end, cost)) = self.cost(header, at) else { return false };
        let whole_block = (cost as usize - header.len).is_power_of_two();
        let followed = end == self.input.len()
            || is_identifier(&self.input[end..])
            || Header::at(self.input, end).is_some_and(|next| next.is_data() && next.end(self.input, end).is_some());
        self.credit.advance(at as u64);
        (followed || whole_block || cost <= SMALL) && self.credit.spend(cost) && self.open(header, at, end).is_ok()
    }

    /// The next place from `at` on where a sound data chunk begins, or the end.
    fn resync(&mut self, at: usize) -> usize {
        (at..self.input.len()).find(|at| self.sound(*at)).unwrap_or(self.input.len())
    }
}

/// Puts the pieces at their offsets. The sizes of the lost ones add up to what is missing; what a damaged
/// chunk says about its own size is believed only as far as it fits.
fn lay_out(pieces: Vec<Piece>, good_len: usize, expected_len: usize) -> (Vec<u8>, Vec<BadChunk>) {
    let lost = pieces.iter().filter(|piece| matches!(piece.content, Content::Lost(..))).count();
    let claims = |piece: &Piece| if let Content::Lost(claim, _) = piece.content { claim.unwrap_or(0) } else { 0 };
    let claimed: usize = pieces.iter().map(claims).sum();
    let mut missing = expected_len.saturating_sub(good_len);
    // The chunks that state no size share what the others leave; they come in order, so the first gets it.
    let mut unclaimed = missing.saturating_sub(claimed);
    let mut left = lost;
    let mut out = Vec::with_capacity(expected_len);
    let mut bad = Vec::new();
    let input_end = pieces.last().map_or(0, |piece| piece.in_offset + piece.in_len);
    for Piece { in_offset, in_len, content } in pieces {
        let out_offset = out.len();
        let (out_len, what) = match content {
            Content::Sound(bytes) => {
                out.extend_from_slice(&bytes);
                continue;
            }
            Content::Repaired(bytes, what) => {
                out.extend_from_slice(&bytes);
                (0, what)
            }
            Content::Lost(claim, what) => {
                left -= 1;
                let share = claim.unwrap_or_else(|| std::mem::take(&mut unclaimed));
                let out_len = if left == 0 { missing } else { share.min(missing) };
                missing -= out_len;
                out.resize(out_offset + out_len, 0);
                (out_len, what)
            }
        };
        bad.push(BadChunk { in_offset, in_len, out_offset, out_len, what });
    }
    if missing > 0 {
        let out_offset = out.len();
        out.resize(out_offset + missing, 0);
        let what = "the stream ends too early";
        bad.push(BadChunk { in_offset: input_end, in_len: 0, out_offset, out_len: missing, what });
    }
    (out, bad)
}

pub fn s2_compress_stream(input: &[u8]) -> Vec<u8> {
    let mut encoder = s2::Encoder::new();
    let mut out = Vec::with_capacity(STREAM_ID.len() + input.len() / 2);
    out.extend_from_slice(STREAM_ID);
    for block in input.chunks(BLOCK_BYTES) {
        let encoded = encoder.encode(block);
        // Less than an eighth saved is not worth the decoding.
        let (kind, data) = if encoded.len() < block.len() - block.len() / 8 {
            (TYPE_COMPRESSED, &encoded[..])
        } else {
            (TYPE_STORED, block)
        };
        let header = Header { kind, len: CRC_BYTES + data.len() };
        out.extend_from_slice(&header.word().to_le_bytes());
        out.extend_from_slice(&masked_crc(block).to_le_bytes());
        out.extend_from_slice(data);
    }
    out
}
