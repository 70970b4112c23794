//! Many damaged chunks in one S2 stream: k of them cost at most k.

mod random;

use headrace_core::compress::{s2_compress_stream, s2_decompress_stream_tolerant};
use proptest::prelude::*;
use random::Random;

fn chunks_of(stream: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut chunks, mut at) = (Vec::new(), 10);
    while at < stream.len() {
        let len = u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) as usize >> 8;
        chunks.push(at..at + 4 + len);
        at += 4 + len;
    }
    chunks
}

/// Damages k chunks; those that stayed whole come out whole, wherever.
fn others_survive(seed: u64, k: usize, noise: bool) -> Result<(), TestCaseError> {
    let mut random = Random(seed);
    let mut plain = Vec::new();
    while plain.len() < 4 << 20 {
        let count = 1 + random.below(if noise { 100_000 } else { 40 });
        let word = random.bytes(count);
        (0..1 + random.below(20)).for_each(|_| plain.extend_from_slice(&word));
    }
    let stream = s2_compress_stream(&plain);
    let chunks = chunks_of(&stream);
    let mut damaged = stream.clone();
    let chosen = random.choose(k, chunks.len());
    for at in &chosen {
        random.damage(&mut damaged[chunks[*at].clone()]);
    }
    let (found, _) = s2_decompress_stream_tolerant(&damaged, plain.len(), 1 << 30);
    for (at, piece) in plain.chunks(64 << 10).enumerate().filter(|(at, _)| !chosen.contains(at)) {
        prop_assert!(memchr::memmem::find(&found, piece).is_some(), "chunk {} of {}", at, chunks.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Text (chunks of all sizes) and noise (chunks stored as they are, all of one size).
    #[test]
    fn damaged_chunks_cost_no_others(seed in any::<u64>(), k in 1usize..20, noise in any::<bool>()) {
        others_survive(seed, k, noise)?;
    }
}

/// A damaged length that led into the middle of a later chunk, to bytes that look like a header.
#[test]
fn a_length_that_leads_to_no_sound_chunk_is_not_believed() {
    others_survive(12_027_701_217_005_166_153, 6, false).unwrap();
}

/// Headers damaged on both sides of a sound chunk of the size that Go's writer uses.
#[test]
fn a_large_chunk_between_two_damaged_headers() {
    let noise = Random(5).bytes(3 << 20);
    let mut stream = b"\xff\x06\x00\x00S2sTwO".to_vec();
    let mut starts = Vec::new();
    for block in noise.chunks(1 << 20) {
        starts.push(stream.len());
        let crc = crc32c::crc32c(block).rotate_right(15).wrapping_add(0xa282_ead8);
        stream.extend_from_slice(&((block.len() as u32 + 4) << 8 | 1).to_le_bytes());
        stream.extend_from_slice(&crc.to_le_bytes());
        stream.extend_from_slice(block);
    }
    for at in [starts[0], starts[2]] {
        stream[at..at + 4].copy_from_slice(&[0x55; 4]);
    }
    let (found, bad) = s2_decompress_stream_tolerant(&stream, noise.len(), 1 << 30);
    assert!(memchr::memmem::find(&found, &noise[1 << 20..2 << 20]).is_some(), "{bad:?}");
}
