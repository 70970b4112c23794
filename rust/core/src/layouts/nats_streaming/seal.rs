//! Payloads encrypted at rest: `code | nonce (12) | ciphertext and tag (16)`; an empty payload stays empty.
//! Code 1 is AES-256-GCM, 2 ChaCha20-Poly1305; a payload that begins otherwise is plain. Ciphers are RustCrypto's.

use aes_gcm::Aes256Gcm;
use aes_gcm::aead::{Aead, KeyInit};
use chacha20poly1305::ChaCha20Poly1305;

pub const AES: u8 = 1;
pub const CHACHA: u8 = 2;
const NONCE: usize = 12;
const TAG: usize = 16;
/// What sealing adds.
pub const OVERHEAD: usize = 1 + NONCE + TAG;

/// The two ciphers of one channel, ready to use.
pub struct Opener {
    aes: Aes256Gcm,
    chacha: ChaCha20Poly1305,
}

impl Opener {
    pub fn new(key: &[u8; 32]) -> Self {
        Opener { aes: Aes256Gcm::new(key.into()), chacha: ChaCha20Poly1305::new(key.into()) }
    }

    /// The plain payload; `None` when the tag does not fit (another key). Plain ones are returned as they are.
    pub fn open(&self, data: &[u8]) -> Option<Vec<u8>> {
        let code = data.first().copied().unwrap_or(0);
        if !(code == AES || code == CHACHA) || data.len() < OVERHEAD {
            return Some(data.to_vec());
        }
        let nonce: &[u8; NONCE] = data[1..1 + NONCE].try_into().ok()?;
        let sealed = &data[1 + NONCE..];
        match code {
            AES => self.aes.decrypt(nonce.into(), sealed).ok(),
            _ => self.chacha.decrypt(nonce.into(), sealed).ok(),
        }
    }
}

/// Seals one payload after the other; the nonce counts up and is never used twice.
pub struct Sealer {
    opener: Opener,
    code: u8,
    nonce: [u8; NONCE],
}

impl Sealer {
    pub fn new(key: &[u8; 32], code: u8, nonce: [u8; NONCE]) -> Self {
        Sealer { opener: Opener::new(key), code, nonce }
    }

    pub fn nonce(&self) -> [u8; NONCE] {
        self.nonce
    }

    pub fn seal(&mut self, data: &[u8]) -> Vec<u8> {
        let sealed = match self.code {
            AES => self.opener.aes.encrypt((&self.nonce).into(), data),
            _ => self.opener.chacha.encrypt((&self.nonce).into(), data),
        };
        // The only error of these ciphers is a message of more than 64 GiB.
        let sealed = sealed.expect("a message below the ciphers' limit");
        let whole = [&[self.code], &self.nonce[..], &sealed].concat();
        for byte in self.nonce.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                break;
            }
        }
        whole
    }
}
