//! Each error of the core becomes exactly one class of `headrace.errors`, drawn at the top of that
//! file. The module is imported when the first error is raised, not before: it imports nothing of us.

use std::io::ErrorKind;

use headrace_core::crypt::CryptError;
use headrace_core::disk::DiskError;
use headrace_core::layouts::jetstream::log::LogError;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// An instance of `headrace.errors.<class>` with one text.
pub fn raise(class: &str, text: String) -> PyErr {
    Python::attach(|py| instance(py, class, (text.as_str(),)))
}

/// `Damaged` or one of its subclasses, with the parts of its text.
pub fn damaged(class: &str, file: &str, offset: u64, seen: &str, expected: &str, remedy: &str) -> PyErr {
    Python::attach(|py| instance(py, class, (file, offset, seen, expected, remedy)))
}

fn instance<'py>(py: Python<'py>, class: &str, arguments: impl PyCallArgs<'py>) -> PyErr {
    let made =
        py.import("headrace.errors").and_then(|errors| errors.getattr(class)).and_then(|class| class.call1(arguments));
    match made {
        Ok(error) => PyErr::from_value(error),
        // Only when the package is broken: say so rather than hide it behind another error.
        Err(broken) => PyRuntimeError::new_err(format!("headrace.errors.{class} cannot be raised: {broken}")),
    }
}

/// A value that the caller gave cannot be used.
pub fn bad_input(text: impl Into<String>) -> PyErr {
    raise("BadInput", text.into())
}

/// No room → `DiskFull`, no such file → `NotFound`, all else → `DiskFault`.
pub fn disk_error(error: DiskError) -> PyErr {
    let class = match error.source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "DiskFull",
        ErrorKind::NotFound => "NotFound",
        _ => "DiskFault",
    };
    raise(class, error.to_string())
}

/// A tag that does not fit → `KeyNeeded`, a file of the wrong size → `Damaged`, all else → `BadInput`.
pub fn crypt_error(file: &str, error: CryptError) -> PyErr {
    let seen = error.to_string();
    match error {
        CryptError::NotAuthentic => damaged(
            "KeyNeeded",
            file,
            0,
            &seen,
            "bytes sealed with the key given",
            "give the server's key (jetstream.key in its configuration); if it is right, the file is damaged",
        ),
        CryptError::KeyFileSize(_) | CryptError::TooShort(_) => {
            damaged("Damaged", file, 0, &seen, "an encrypted file", "restore the file from a backup")
        }
        CryptError::NonceSize { .. } | CryptError::PastKeyStream(_) => bad_input(seen),
    }
}

pub fn log_error(error: LogError) -> PyErr {
    match error {
        LogError::Disk(error) => disk_error(error),
        LogError::Poisoned(_) => raise("StorePoisoned", error.to_string()),
        LogError::TooLarge { .. } | LogError::SubjectTooLong(_) | LogError::NotAbove { .. } => {
            bad_input(error.to_string())
        }
        LogError::NoWriter => raise("ReadOnly", error.to_string()),
        LogError::Cold(number) => Python::attach(|py| instance(py, "NotInMemory", (number,))),
        LogError::NoBlock(_) => raise("NotFound", error.to_string()),
        LogError::Unsound(problem) => {
            damaged("Damaged", "index.db", 0, &problem, "counts that add up", "it is rebuilt from the blocks")
        }
    }
}
