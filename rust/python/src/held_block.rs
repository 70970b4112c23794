//! Blocks that are kept in memory for a reader, and threads that do not wait for those that are not.

use std::sync::Arc;

use headrace_core::large_buffer;
use headrace_core::layouts::jetstream::block::Loaded;
use headrace_core::layouts::jetstream::cold;
use pyo3::prelude::*;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(refuse_block_loads, module)?)?;
    module.add_function(wrap_pyfunction!(release_large_buffers, module)?)?;
    module.add_class::<HeldBlock>()
}

/// Whether calls of this thread raise `NotInMemory` rather than read a block; returns what was so before.
#[pyfunction]
fn refuse_block_loads(refused: bool) -> bool {
    cold::refuse_loads(refused)
}

/// Gives the memory back that blocks were read into and that waits for the next ones.
#[pyfunction]
fn release_large_buffers() {
    large_buffer::release();
}

/// A block that stays in memory while this lives.
#[pyclass(frozen, module = "headrace._core")]
pub struct HeldBlock {
    /// Bytes that it takes.
    #[pyo3(get)]
    size: usize,
    _loaded: Arc<Loaded>,
}

impl HeldBlock {
    pub fn new(loaded: Arc<Loaded>) -> HeldBlock {
        HeldBlock { size: loaded.heap_bytes(), _loaded: loaded }
    }
}
