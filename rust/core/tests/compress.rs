//! S2 streams: those of the real server, our own, and both with damage.

use std::path::PathBuf;

use headrace_core::compress::{
    S2Error, s2_compress_stream, s2_decompress_stream, s2_decompress_stream_tolerant, s2_stated_len,
};
use proptest::prelude::*;

/// The S2 stream and the uncompressed size of a block file: `cmp 01 uvarint stream last-checksum[8]`.
fn real_block(name: &str) -> (Vec<u8>, usize) {
    let folder = "../../vectors/jetstream/2.15.2/store/jetstream/$G/streams/S2/msgs";
    let file = std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder).join(name)).unwrap();
    assert_eq!(file[..4], *b"cmp\x01");
    let (mut size, mut at) = (0, 4);
    loop {
        size |= usize::from(file[at] & 0x7f) << (7 * (at - 4));
        at += 1;
        if file[at - 1] < 0x80 {
            break;
        }
    }
    (file[at..file.len() - 8].to_vec(), size - 8)
}

fn sample(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        out.extend_from_slice(format!("kv.key.{} value {};", state >> 44, out.len() % 97).as_bytes());
    }
    out.truncate(len);
    out
}

/// The offsets of the chunks, the identifier first.
fn chunks(stream: &[u8]) -> Vec<usize> {
    let mut at = 0;
    let mut offsets = Vec::new();
    while at < stream.len() {
        offsets.push(at);
        at += 4 + (u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) >> 8) as usize;
    }
    offsets
}

#[test]
fn blocks_of_the_real_server_decompress() {
    for name in ["1.blk", "2.blk"] {
        let (stream, size) = real_block(name);
        let bytes = s2_decompress_stream(&stream, size).unwrap();
        assert_eq!(bytes.len(), size);
        assert_eq!(s2_stated_len(&stream), Some(size));
        assert!(bytes.windows(16).any(|window| window == b"compressible tex"));
        let (tolerant, bad) = s2_decompress_stream_tolerant(&stream, size, size);
        assert!(tolerant == bytes && bad.is_empty(), "{bad:?}");
        assert_eq!(s2_decompress_stream(&stream, size - 1), Err(S2Error::TooLarge { max: size - 1 }));
    }
}

#[test]
fn each_flipped_bit_of_a_real_block_is_noticed_or_harmless() {
    let (stream, size) = real_block("2.blk");
    let original = s2_decompress_stream(&stream, size).unwrap();
    for bit in 0..stream.len() * 8 {
        let mut damaged = stream.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let (bytes, bad) = s2_decompress_stream_tolerant(&damaged, size, size);
        assert_eq!(bytes.len(), size);
        assert!(!bad.is_empty(), "bit {bit} went unnoticed");
        assert!(bytes == original || bytes.iter().all(|byte| *byte == 0), "bit {bit} gave wrong bytes");
        let strict = s2_decompress_stream(&damaged, size);
        assert!(strict.map_or(true, |bytes| bytes.len() < size), "bit {bit} passed the strict reader");
    }
}

#[test]
fn a_flipped_bit_costs_one_chunk_of_many() {
    let original = sample(600_000);
    let stream = s2_compress_stream(&original);
    let offsets = chunks(&stream);
    assert_eq!(offsets.len(), 1 + original.len().div_ceil(64 << 10));
    for (number, start) in offsets.iter().enumerate().skip(1) {
        let out_start = (number - 1) << 16;
        // Every bit of type, length and checksum, then some of the data.
        for bit in (0..64).chain((64..40_000).step_by(4999)) {
            let mut damaged = stream.clone();
            damaged[start + bit / 8] ^= 1 << (bit % 8);
            let (bytes, bad) = s2_decompress_stream_tolerant(&damaged, original.len(), original.len());
            assert_eq!(bad.len(), 1, "chunk {number} bit {bit}: {bad:?}");
            if bit < 64 {
                assert!(bytes == original && bad[0].out_len == 0, "chunk {number} bit {bit}: not repaired, {bad:?}");
                continue;
            }
            let out_end = (out_start + (64 << 10)).min(original.len());
            assert_eq!((bad[0].out_offset, bad[0].out_len), (out_start, out_end - out_start));
            assert_eq!(bytes[..out_start], original[..out_start]);
            assert!(bytes[out_start..out_end].iter().all(|byte| *byte == 0));
            assert_eq!(bytes[out_end..], original[out_end..]);
        }
    }
}

#[test]
fn overwritten_headers_cost_their_chunks_only() {
    let original = sample(1_000_000);
    let stream = s2_compress_stream(&original);
    let offsets = chunks(&stream);
    let mut damaged = stream.clone();
    damaged[offsets[3]..offsets[3] + 6].copy_from_slice(b"\x42garbl");
    damaged[offsets[9] + 100..offsets[9] + 900].fill(0xee);
    let (bytes, bad) = s2_decompress_stream_tolerant(&damaged, original.len(), original.len());
    let lost: Vec<_> = bad.iter().map(|bad| (bad.out_offset, bad.out_len)).collect();
    assert_eq!(lost, [(2 << 16, 1 << 16), (8 << 16, 1 << 16)], "{bad:?}");
    for (number, (ours, theirs)) in bytes.chunks(1 << 16).zip(original.chunks(1 << 16)).enumerate() {
        assert_eq!(ours == theirs, number != 2 && number != 8, "chunk {number}");
    }
}

#[test]
fn a_cut_stream_keeps_its_sound_front() {
    let original = sample(300_000);
    let stream = s2_compress_stream(&original);
    let offsets = chunks(&stream);
    let (bytes, bad) = s2_decompress_stream_tolerant(&stream[..offsets[4] + 50], original.len(), original.len());
    assert_eq!(bytes[..3 << 16], original[..3 << 16]);
    assert_eq!((bad[0].out_offset, bad[0].out_len), (3 << 16, original.len() - (3 << 16)));
    let (bytes, bad) = s2_decompress_stream_tolerant(&stream[..offsets[4]], original.len(), original.len());
    assert_eq!((bytes.len(), bad.len(), bad[0].what), (original.len(), 1, "the stream ends too early"));
    let (nothing, bad) = s2_decompress_stream_tolerant(&[], 10, 10);
    assert_eq!((nothing, bad.len()), (vec![0; 10], 1));
}

#[test]
fn padding_index_and_second_identifier_are_skipped() {
    let stream = s2_compress_stream(b"hello hello hello hello");
    let skippable = b"\xfe\x03\x00\x00pad\x99\x02\x00\x00ix";
    let joined = [&stream[..], skippable, &stream[..]].concat();
    assert_eq!(s2_decompress_stream(&joined, 99).unwrap(), b"hello hello hello hellohello hello hello hello");
    let (bytes, bad) = s2_decompress_stream_tolerant(&joined, 46, 46);
    assert!(bytes.ends_with(b"hello hello") && bad.is_empty(), "{bad:?}");
    assert!(s2_decompress_stream(b"\x00\x00\x00\x00", 9).is_err());
    assert!(s2_decompress_stream(&[&stream[..], b"\x02\x00\x00\x00"].concat(), 99).is_err());
    assert_eq!(s2_decompress_stream(&s2_compress_stream(b""), 0).unwrap(), b"");
}

proptest! {
    #[test]
    fn what_we_compress_comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..5000), times in 1usize..60) {
        let input = bytes.repeat(times);
        let stream = s2_compress_stream(&input);
        prop_assert_eq!(&s2_decompress_stream(&stream, input.len()).unwrap(), &input);
        // And by the crate's own reader of the whole format.
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut minlz::s2::Reader::new(&stream[..]), &mut read).unwrap();
        prop_assert_eq!(&read, &input);
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..3000), framed: bool, expected in 0usize..10_000) {
        if framed {
            let len = (bytes.len() as u32) << 8;
            bytes.splice(0..0, [&b"\xff\x06\x00\x00S2sTwO"[..], &len.to_le_bytes()].concat());
        }
        let _ = s2_decompress_stream(&bytes, 1 << 20);
        let _ = s2_stated_len(&bytes);
        prop_assert_eq!(s2_decompress_stream_tolerant(&bytes, expected, expected).0.len(), expected);
    }

    #[test]
    fn damaged_streams_never_panic_nor_lie(at in proptest::collection::vec((0usize..40_000, any::<u8>()), 1..6)) {
        let original = sample(200_000);
        let mut stream = s2_compress_stream(&original);
        for (at, byte) in at {
            let at = at % stream.len();
            stream[at] ^= byte;
        }
        let (bytes, bad) = s2_decompress_stream_tolerant(&stream, original.len(), original.len());
        prop_assert_eq!(bytes.len(), original.len());
        let mut sound = original.clone();
        for bad in &bad {
            sound[bad.out_offset..bad.out_offset + bad.out_len].fill(0);
        }
        prop_assert!(bytes == sound, "{:?}", bad);
    }
}
