//! `headrace._core`: the Rust core as Python sees it. Conversions and error mapping, no logic.

use pyo3::prelude::*;

mod admit;
mod archive;
mod batch;
mod block_log;
mod client;
mod commit;
mod crypt;
mod disk;
mod errors;
mod exchange;
mod foreign;
mod formats;
mod held;
mod held_block;
mod kafka;
mod ledger;
mod log_results;
mod merge;
mod nats_streaming;
mod net;
mod patterns;
mod rabbitmq;
mod recast;
mod requests;
mod rocketmq;
mod waiting;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    admit::register(module)?;
    archive::register(module)?;
    batch::register(module)?;
    block_log::register(module)?;
    held_block::register(module)?;
    client::register(module)?;
    commit::register(module)?;
    crypt::register(module)?;
    disk::register(module)?;
    exchange::register(module)?;
    formats::register(module)?;
    kafka::register(module)?;
    ledger::register(module)?;
    log_results::register(module)?;
    merge::register(module)?;
    nats_streaming::register(module)?;
    net::register(module)?;
    patterns::register(module)?;
    rabbitmq::register(module)?;
    recast::register(module)?;
    requests::register(module)?;
    rocketmq::register(module)?;
    waiting::register(module)
}
