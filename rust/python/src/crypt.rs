//! `crypt_open_seed`, `crypt_open`, `crypt_block`: the core's decryption for Python. `file` only names
//! what is read, for the error.

use headrace_core::crypt::{self as core, Cipher, CryptError, Seed};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{bad_input, crypt_error};

fn cipher(name: &str) -> PyResult<Cipher> {
    Cipher::from_name(name).ok_or_else(|| bad_input(format!("unknown cipher {name:?}: use chachapoly or aes")))
}

fn seed(bytes: &[u8]) -> PyResult<[u8; core::SEED_BYTES]> {
    bytes.try_into().map_err(|_| bad_input(format!("a seed has 32 bytes, this one has {}", bytes.len())))
}

pub type CipherTuple = (String, Vec<u8>, Vec<u8>);

pub fn cipher_key((cipher, seed, nonce): CipherTuple) -> PyResult<Seed> {
    Ok(Seed { cipher: self::cipher(&cipher)?, seed: self::seed(&seed)?, nonce })
}

type Opened<'py> = (&'static str, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pyfunction]
#[pyo3(signature = (key_file, server_key, account, context, *, file="key file"))]
fn crypt_open_seed<'py>(
    py: Python<'py>,
    key_file: &[u8],
    server_key: &[u8],
    account: &str,
    context: &str,
    file: &str,
) -> PyResult<Opened<'py>> {
    let kek = core::derive_kek(server_key, account, context);
    let opened = core::open_seed(key_file, &kek).map_err(|error| crypt_error(file, error))?;
    Ok((opened.cipher.name(), PyBytes::new(py, &opened.seed), PyBytes::new(py, &opened.nonce)))
}

#[pyfunction]
#[pyo3(signature = (cipher, seed, data, nonce=None, *, file="sealed data"))]
fn crypt_open<'py>(
    py: Python<'py>,
    cipher: &str,
    seed: &[u8],
    data: &[u8],
    nonce: Option<&[u8]>,
    file: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let (cipher, seed) = (self::cipher(cipher)?, self::seed(seed)?);
    let open = || match nonce {
        Some(nonce) => core::open_sealed_with_nonce(cipher, &seed, nonce, data),
        None => core::open_sealed(cipher, &seed, data),
    };
    let content = py.detach(open).map_err(|error| crypt_error(file, error))?;
    Ok(PyBytes::new(py, &content))
}

#[pyfunction]
#[pyo3(signature = (cipher, seed, nonce, data, offset=0))]
fn crypt_block<'py>(
    py: Python<'py>,
    cipher: &str,
    seed: &[u8],
    nonce: &[u8],
    data: &[u8],
    offset: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let (cipher, seed) = (self::cipher(cipher)?, self::seed(seed)?);
    let apply = || {
        let mut bytes = data.to_vec();
        core::block_keystream_apply(cipher, &seed, nonce, offset, &mut bytes).map(|()| bytes)
    };
    let bytes = py.detach(apply).map_err(|error: CryptError| bad_input(error.to_string()))?;
    Ok(PyBytes::new(py, &bytes))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(crypt_open_seed, module)?)?;
    module.add_function(wrap_pyfunction!(crypt_open, module)?)?;
    module.add_function(wrap_pyfunction!(crypt_block, module)?)
}
