//! The kernels of Headrace. This crate knows no Python and no stream configuration:
//! it works on whole batches, Python decides between them.

pub mod admit;
pub mod batch;
pub mod client;
pub mod columns;
pub mod commit;
pub mod compress;
pub mod crypt;
pub mod disk;
pub mod exchange;
pub mod from_columns;
pub mod front_end;
pub mod hash;
pub mod large_buffer;
pub mod layouts;
pub mod ledger;
pub mod merge;
#[cfg(target_os = "linux")]
pub mod net;
pub mod recast;
pub mod requests;
pub mod subjects;
pub mod varint;
pub mod wire;
