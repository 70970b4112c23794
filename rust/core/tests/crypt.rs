//! Encrypted stores of the real server, and ciphertexts made here with the same crates.

use std::path::PathBuf;

use aes_gcm::aead::{Aead, KeyInit};
use headrace_core::crypt::{
    Cipher, CryptError, Seed, block_keystream_apply, derive_kek, open_sealed, open_sealed_with_nonce, open_seed,
};
use proptest::prelude::*;

struct Store {
    folder: PathBuf,
    server_key: &'static str,
}

impl Store {
    fn chacha() -> Self {
        Store { folder: vectors("store-encrypted/jetstream/$G/streams/ENC"), server_key: "fixture-key" }
    }

    fn aes() -> Self {
        Store { folder: vectors("encrypted-aes/store/jetstream/$G/streams/AES"), server_key: "vector-key" }
    }

    fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.folder.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn seed(&self, path: &str, context: &str) -> Seed {
        let kek = derive_kek(self.server_key.as_bytes(), "$G", context);
        open_seed(&self.read(path), &kek).unwrap()
    }

    fn block(&self, context: &str) -> Vec<u8> {
        let seed = self.seed("msgs/1.key", context);
        let mut block = self.read("msgs/1.blk");
        block_keystream_apply(seed.cipher, &seed.seed, &seed.nonce, 0, &mut block).unwrap();
        block
    }
}

fn vectors(below: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors/jetstream/2.15.2").join(below)
}

/// (sequence, subject, data) of each record: `len seq ts subj_len subj data hash`, no headers here.
fn records(block: &[u8]) -> Vec<(u64, String, String)> {
    let mut found = Vec::new();
    let mut rest = block;
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
        let seq = u64::from_le_bytes(rest[4..12].try_into().unwrap());
        let subject_len = u16::from_le_bytes(rest[20..22].try_into().unwrap()) as usize;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        found.push((seq, text(&rest[22..22 + subject_len]), text(&rest[22 + subject_len..len - 8])));
        rest = &rest[len..];
    }
    found
}

const TOMBSTONE: u64 = 1 << 62;

#[test]
fn a_chacha_store_of_the_real_server_opens() {
    let store = Store::chacha();
    let meta = store.seed("meta.key", "ENC");
    assert_eq!(meta.cipher, Cipher::ChaCha);
    let text = String::from_utf8(open_sealed(meta.cipher, &meta.seed, &store.read("meta.inf")).unwrap()).unwrap();
    assert!(text.contains(r#""name":"ENC""#), "{text}");
    // The file's hash stands outside the seal.
    let index = store.read("msgs/index.db");
    assert_eq!(open_sealed(meta.cipher, &meta.seed, &index[..index.len() - 8]).unwrap()[0], 11);
    let consumer = store.seed("obs/C/meta.key", "ENC.C");
    assert!(open_sealed(consumer.cipher, &consumer.seed, &store.read("obs/C/o.dat")).is_ok());

    let found = records(&store.block("ENC:1"));
    assert!(found.iter().all(|(seq, subject, _)| subject == "enc.a" || seq & TOMBSTONE != 0), "{found:?}");
    let data: Vec<_> = found.iter().filter(|record| !record.2.is_empty()).map(|record| record.2.as_str()).collect();
    assert_eq!(data, ["secret 1", "secret 2", "secret 3", "secret 4", "secret 5"]);
}

#[test]
fn an_aes_store_of_the_real_server_opens() {
    let store = Store::aes();
    let meta = store.seed("meta.key", "AES");
    assert_eq!(meta.cipher, Cipher::Aes);
    let text = String::from_utf8(open_sealed(meta.cipher, &meta.seed, &store.read("meta.inf")).unwrap()).unwrap();
    assert!(text.contains(r#""name":"AES""#), "{text}");
    let consumer = store.seed("obs/C/meta.key", "AES.C");
    assert!(open_sealed(consumer.cipher, &consumer.seed, &store.read("obs/C/o.dat")).is_ok());

    let found = records(&store.block("AES:1"));
    for (at, (seq, subject, data)) in found[..6].iter().enumerate() {
        let number = at as u64 + 1;
        assert_eq!((*seq, data.as_str()), (number, format!("secret {number}").as_str()));
        assert_eq!(subject, if number % 2 == 1 { "aes.b" } else { "aes.a" });
    }
    assert_eq!(found[6].0, 2 | TOMBSTONE);
}

#[test]
fn wrong_keys_and_changed_bytes_are_refused() {
    for (store, context) in [(Store::chacha(), "ENC"), (Store::aes(), "AES")] {
        let key_file = store.read("meta.key");
        let refused = |key: &str, account: &str, context: &str| {
            open_seed(&key_file, &derive_kek(key.as_bytes(), account, context)).err()
        };
        assert_eq!(refused(store.server_key, "$G", context), None);
        assert_eq!(refused("another", "$G", context), Some(CryptError::NotAuthentic));
        assert_eq!(refused(store.server_key, "A", context), Some(CryptError::NotAuthentic));
        assert_eq!(refused(store.server_key, "$G", "other"), Some(CryptError::NotAuthentic));
        let seed = store.seed("meta.key", context);
        let sealed = store.read("meta.inf");
        for at in [0, 30, sealed.len() - 1] {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(open_sealed(seed.cipher, &seed.seed, &changed), Err(CryptError::NotAuthentic));
        }
        assert_eq!(open_sealed(seed.cipher, &seed.seed, &sealed[..20]), Err(CryptError::TooShort(20)));
    }
    assert_eq!(open_seed(&[0; 65], &[0; 32]).err(), Some(CryptError::KeyFileSize(65)));
}

#[test]
fn hmac_of_rfc_4231() {
    // Case 2: key "Jefe", data "what do ya want for nothing?".
    let kek = derive_kek(b"Jefe", "what do ya want ", "for nothing?");
    assert_eq!(kek[..8], [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e]);
}

proptest! {
    #[test]
    fn sealed_here_opens_here(seed: [u8; 32], nonce: [u8; 24], content: Vec<u8>) {
        let chacha = chacha20poly1305::XChaCha20Poly1305::new(&seed.into());
        let aes = aes_gcm::AesGcm::<aes::Aes256, aes_gcm::aead::consts::U16>::new(&seed.into());
        let short: [u8; 16] = nonce[..16].try_into().unwrap();
        let cases = [
            (Cipher::ChaCha, &nonce[..], chacha.encrypt(&nonce.into(), &content[..]).unwrap()),
            (Cipher::Aes, &short[..], aes.encrypt(&short.into(), &content[..]).unwrap()),
        ];
        for (cipher, nonce, sealed) in cases {
            prop_assert_eq!(&open_sealed_with_nonce(cipher, &seed, nonce, &sealed).unwrap(), &content);
            let whole = [nonce, &sealed[..]].concat();
            prop_assert_eq!(&open_sealed(cipher, &seed, &whole).unwrap(), &content);
            prop_assert!(open_sealed_with_nonce(cipher, &seed, &nonce[1..], &sealed).is_err());
        }
    }

    /// Decrypting a piece in the middle gives the same bytes as decrypting the whole.
    #[test]
    fn the_key_stream_is_seekable(seed: [u8; 32], nonce: [u8; 24], content in proptest::collection::vec(any::<u8>(), 0..600), at in 0usize..600) {
        for cipher in [Cipher::ChaCha, Cipher::Aes] {
            let nonce = &nonce[..cipher.nonce_bytes()];
            let mut whole = content.clone();
            block_keystream_apply(cipher, &seed, nonce, 0, &mut whole).unwrap();
            let at = at.min(content.len());
            let mut piece = content[at..].to_vec();
            block_keystream_apply(cipher, &seed, nonce, at as u64, &mut piece).unwrap();
            prop_assert_eq!(&whole[at..], &piece[..]);
        }
    }

    #[test]
    fn any_offset_and_any_bytes_give_a_result_or_an_error(offset: u64, bytes: Vec<u8>) {
        for cipher in [Cipher::ChaCha, Cipher::Aes] {
            let mut data = bytes.clone();
            let _ = block_keystream_apply(cipher, &[7; 32], &[1; 24][..cipher.nonce_bytes()], offset, &mut data);
            let _ = open_sealed(cipher, &[7; 32], &bytes);
            let _ = open_seed(&bytes, &[7; 32]);
        }
    }
}
