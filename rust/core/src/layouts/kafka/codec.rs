//! The compressions that a batch may have, each with a limit on what comes out.
//!
//! ```text
//! gzip    RFC 1952
//! snappy  one raw block (librdkafka), or xerial's frame: 82 'SNAPPY' 0 | version 1 | compat 1 | (length, block)*
//! lz4     LZ4 frame; in format 0 its header checksum covers the magic too, which no library accepts
//! zstd    one frame, often without its content size
//! ```

use std::io::{Read, Write};

use twox_hash::XxHash32;

const XERIAL: &[u8] = b"\x82SNAPPY\x00";
const XERIAL_HEADER: &[u8] = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01";
const XERIAL_BLOCK_BYTES: usize = 32 << 10;
const LZ4_MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
const LZ4_HAS_SIZE: u8 = 0x08;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Codec {
    pub const ALL: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    pub fn of_attributes(attributes: i16) -> Option<Codec> {
        Self::ALL.get((attributes & 7) as usize).copied()
    }

    pub fn id(self) -> i16 {
        self as i16
    }

    pub fn name(self) -> &'static str {
        ["none", "gzip", "snappy", "lz4", "zstd"][self as usize]
    }

    pub fn from_name(name: &str) -> Option<Codec> {
        Self::ALL.into_iter().find(|codec| codec.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("more than {0} bytes come out")]
    TooLarge(usize),
    #[error("{0}: not decodable ({1})")]
    Corrupt(&'static str, String),
}

fn corrupt(codec: Codec) -> impl Fn(String) -> CodecError {
    move |why| CodecError::Corrupt(codec.name(), why)
}

pub fn decompress(codec: Codec, input: &[u8], magic: u8, max: usize) -> Result<Vec<u8>, CodecError> {
    match codec {
        Codec::None if input.len() > max => Err(CodecError::TooLarge(max)),
        Codec::None => Ok(input.to_vec()),
        Codec::Gzip => drain(codec, flate2::read::MultiGzDecoder::new(input), input.len(), max),
        Codec::Snappy => snappy(input, max),
        Codec::Lz4 if magic == 0 => {
            let mut mended = input.to_vec();
            set_lz4_checksum(&mut mended, 4);
            drain(codec, lz4_flex::frame::FrameDecoder::new(&mended[..]), input.len(), max)
        }
        Codec::Lz4 => drain(codec, lz4_flex::frame::FrameDecoder::new(input), input.len(), max),
        Codec::Zstd => {
            let decoder = zstd::stream::read::Decoder::with_buffer(input);
            drain(codec, decoder.map_err(|e| corrupt(codec)(e.to_string()))?, input.len(), max)
        }
    }
}

fn drain(codec: Codec, reader: impl Read, hint: usize, max: usize) -> Result<Vec<u8>, CodecError> {
    let mut out = Vec::with_capacity((hint * 3).min(max));
    reader.take(max as u64 + 1).read_to_end(&mut out).map_err(|error| corrupt(codec)(error.to_string()))?;
    if out.len() > max { Err(CodecError::TooLarge(max)) } else { Ok(out) }
}

fn snappy(input: &[u8], max: usize) -> Result<Vec<u8>, CodecError> {
    let mut out = Vec::new();
    if !input.starts_with(XERIAL) {
        snappy_block(input, &mut out, max)?;
        return Ok(out);
    }
    let mut rest = input.get(XERIAL_HEADER.len()..).unwrap_or(&[]);
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<4>().ok_or_else(|| corrupt(Codec::Snappy)("cut".into()))?;
        let length = u32::from_be_bytes(*length) as usize;
        let block = tail.get(..length).ok_or_else(|| corrupt(Codec::Snappy)("a block is cut".into()))?;
        snappy_block(block, &mut out, max)?;
        rest = &tail[length..];
    }
    Ok(out)
}

fn snappy_block(block: &[u8], out: &mut Vec<u8>, max: usize) -> Result<(), CodecError> {
    let size = snap::raw::decompress_len(block).map_err(|error| corrupt(Codec::Snappy)(error.to_string()))?;
    // The format cannot make more than 64 bytes of three: a larger claim is a lie, and would be allocated.
    if size > max.saturating_sub(out.len()) || size > block.len().saturating_mul(64) {
        return Err(CodecError::TooLarge(max));
    }
    let start = out.len();
    out.resize(start + size, 0);
    let written = snap::raw::Decoder::new().decompress(block, &mut out[start..]);
    out.truncate(start + written.map_err(|error| corrupt(Codec::Snappy)(error.to_string()))?);
    Ok(())
}

/// `level` is the codec's own; None is its usual one. Only gzip and zstd have levels here.
pub fn compress(codec: Codec, input: &[u8], magic: u8, level: Option<i32>) -> std::io::Result<Vec<u8>> {
    match codec {
        Codec::None => Ok(input.to_vec()),
        Codec::Gzip => {
            let level = level
                .and_then(|level| u32::try_from(level).ok())
                .map_or(flate2::Compression::default(), |level| flate2::Compression::new(level.min(9)));
            let mut writer = flate2::write::GzEncoder::new(Vec::with_capacity(input.len() / 2), level);
            writer.write_all(input)?;
            writer.finish()
        }
        Codec::Snappy => {
            let mut out = XERIAL_HEADER.to_vec();
            let mut encoder = snap::raw::Encoder::new();
            for block in input.chunks(XERIAL_BLOCK_BYTES) {
                let packed = encoder.compress_vec(block).map_err(std::io::Error::other)?;
                out.extend_from_slice(&(packed.len() as u32).to_be_bytes());
                out.extend_from_slice(&packed);
            }
            Ok(out)
        }
        Codec::Lz4 => {
            let info = lz4_flex::frame::FrameInfo::new().block_size(lz4_flex::frame::BlockSize::Max64KB);
            let mut writer = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
            writer.write_all(input)?;
            let mut out = writer.finish().map_err(std::io::Error::other)?;
            if magic == 0 {
                set_lz4_checksum(&mut out, 0);
            }
            Ok(out)
        }
        Codec::Zstd => zstd::stream::encode_all(input, level.unwrap_or(0)),
    }
}

/// Puts the header checksum over the bytes from `from` on: 4 is right, 0 is what format 0 has.
fn set_lz4_checksum(frame: &mut [u8], from: usize) {
    if frame.len() < 7 || frame[..4] != LZ4_MAGIC {
        return;
    }
    let end = if frame[4] & LZ4_HAS_SIZE == 0 { 6 } else { 14 };
    if end < frame.len() {
        frame[end] = (XxHash32::oneshot(0, &frame[from..end]) >> 8) as u8;
    }
}
