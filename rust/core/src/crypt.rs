//! Reading the encrypted files of nats-server (2.6 and later). All ciphers are RustCrypto's.
//!
//! ```text
//!   key-encryption key   HMAC-SHA-256(server key, account + context)
//!   context              "<stream>" (meta, index.db), "<stream>:<N>" (block N), "<stream>.<consumer>"
//!   meta.key, N.key      nonce | sealed seed (32 bytes + tag 16)      chacha 24+48 = 72, aes 16+48 = 64
//!   meta.inf, o.dat      nonce | sealed content                       key = the seed
//!   index.db             nonce | sealed content | hash of all before  key = the seed of meta.key
//!   N.idx                sealed content                               nonce = the key file's
//!   N.blk                key stream from byte 0 over the whole file   nonce = the key file's
//! ```
//! chacha: XChaCha20-Poly1305 and XChaCha20. aes: AES-256-GCM with a 16-byte nonce, and AES-256-CTR.

use aes_gcm::AesGcm;
use aes_gcm::aead::consts::U16;
use aes_gcm::aead::{Aead, KeyInit};
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use chacha20poly1305::XChaCha20Poly1305;
use hmac::{Hmac, Mac};
use sha2::Sha256;

pub const SEED_BYTES: usize = 32;
const TAG_BYTES: usize = 16;

type Aes256Gcm16 = AesGcm<aes::Aes256, U16>;
type Aes256Ctr = ctr::Ctr128BE<aes::Aes256>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cipher {
    ChaCha,
    Aes,
}

impl Cipher {
    /// The names of nats-server's configuration (`cipher: chachapoly | aes`).
    pub fn name(self) -> &'static str {
        match self {
            Cipher::ChaCha => "chachapoly",
            Cipher::Aes => "aes",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "chacha" | "chachapoly" => Some(Cipher::ChaCha),
            "aes" => Some(Cipher::Aes),
            _ => None,
        }
    }

    pub fn nonce_bytes(self) -> usize {
        match self {
            Cipher::ChaCha => 24,
            Cipher::Aes => 16,
        }
    }

    pub fn key_file_bytes(self) -> usize {
        self.nonce_bytes() + SEED_BYTES + TAG_BYTES
    }

    /// The cipher is known by the size of the key file alone.
    pub fn of_key_file(len: usize) -> Option<Self> {
        [Cipher::ChaCha, Cipher::Aes].into_iter().find(|cipher| cipher.key_file_bytes() == len)
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CryptError {
    #[error("a key file has 72 (chachapoly) or 64 (aes) bytes, this one has {0}")]
    KeyFileSize(usize),
    #[error("the nonce has {seen} bytes, {cipher} needs {expected}")]
    NonceSize { cipher: &'static str, seen: usize, expected: usize },
    #[error("{0} bytes are too few for a nonce and a tag")]
    TooShort(usize),
    /// The tag does not fit: another key, or a changed byte. Nobody can know which.
    #[error("the authentication tag does not match: wrong key, or damaged bytes")]
    NotAuthentic,
    #[error("offset {0} lies beyond the end of the key stream")]
    PastKeyStream(u64),
}

/// What a key file holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed {
    pub cipher: Cipher,
    pub seed: [u8; SEED_BYTES],
    pub nonce: Vec<u8>,
}

/// The key that seals the seeds of one context.
pub fn derive_kek(server_key: &[u8], account: &str, context: &str) -> [u8; 32] {
    // HMAC takes keys of any length; the only error of this constructor cannot happen.
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(server_key).expect("HMAC takes any key length");
    mac.update(account.as_bytes());
    mac.update(context.as_bytes());
    mac.finalize().into_bytes().into()
}

pub fn open_seed(key_file: &[u8], kek: &[u8; 32]) -> Result<Seed, CryptError> {
    let cipher = Cipher::of_key_file(key_file.len()).ok_or(CryptError::KeyFileSize(key_file.len()))?;
    let opened = open_sealed(cipher, kek, key_file)?;
    let seed = opened.try_into().map_err(|_| CryptError::KeyFileSize(key_file.len()))?;
    Ok(Seed { cipher, seed, nonce: key_file[..cipher.nonce_bytes()].to_vec() })
}

/// `nonce | sealed`: `meta.inf`, `o.dat`, `index.db`.
pub fn open_sealed(cipher: Cipher, seed: &[u8; SEED_BYTES], data: &[u8]) -> Result<Vec<u8>, CryptError> {
    if data.len() < cipher.nonce_bytes() + TAG_BYTES {
        return Err(CryptError::TooShort(data.len()));
    }
    let (nonce, sealed) = data.split_at(cipher.nonce_bytes());
    open_sealed_with_nonce(cipher, seed, nonce, sealed)
}

/// Sealed content whose nonce is kept elsewhere: `N.idx`, with the nonce of `N.key`.
pub fn open_sealed_with_nonce(
    cipher: Cipher,
    seed: &[u8; SEED_BYTES],
    nonce: &[u8],
    sealed: &[u8],
) -> Result<Vec<u8>, CryptError> {
    let wrong = || nonce_size(cipher, nonce);
    match cipher {
        Cipher::ChaCha => {
            let nonce = nonce.try_into().map_err(|_| wrong())?;
            XChaCha20Poly1305::new(seed.into()).decrypt(nonce, sealed)
        }
        Cipher::Aes => {
            let nonce = nonce.try_into().map_err(|_| wrong())?;
            Aes256Gcm16::new(seed.into()).decrypt(nonce, sealed)
        }
    }
    .map_err(|_| CryptError::NotAuthentic)
}

/// Decrypts (or encrypts: it is the same) bytes that lie at `offset` of a block file.
pub fn block_keystream_apply(
    cipher: Cipher,
    seed: &[u8; SEED_BYTES],
    nonce: &[u8],
    offset: u64,
    data: &mut [u8],
) -> Result<(), CryptError> {
    let wrong = || nonce_size(cipher, nonce);
    match cipher {
        Cipher::ChaCha => {
            let nonce = nonce.try_into().map_err(|_| wrong())?;
            apply(chacha20::XChaCha20::new(seed.into(), nonce), offset, data)
        }
        Cipher::Aes => {
            let nonce = nonce.try_into().map_err(|_| wrong())?;
            apply(Aes256Ctr::new(seed.into(), nonce), offset, data)
        }
    }
}

fn apply(mut stream: impl StreamCipher + StreamCipherSeek, offset: u64, data: &mut [u8]) -> Result<(), CryptError> {
    let past = CryptError::PastKeyStream(offset);
    stream.try_seek(offset).map_err(|_| CryptError::PastKeyStream(offset))?;
    stream.try_apply_keystream(data).map_err(|_| past)
}

fn nonce_size(cipher: Cipher, nonce: &[u8]) -> CryptError {
    CryptError::NonceSize { cipher: cipher.name(), seen: nonce.len(), expected: cipher.nonce_bytes() }
}
