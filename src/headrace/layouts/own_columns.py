"""What the products' own columns (`ScanTask.own_column`) are made of. Loads pyarrow: import it where one is asked for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace._core import Batch
from headrace.arrow import to_record_batch

# The stubs leave the element types of arrays open, and with them everything that is made of arrays.
arrow: Any = pa
kernels: Any = pyarrow.compute


def common_column(batch: Batch, name: str) -> Any:
    """One of the columns that every message has."""
    made: Any = to_record_batch(batch, "", [name])
    return made.column(0)


def positions(batch: Batch) -> Any:
    """As numpy's numbers."""
    return common_column(batch, "seq").to_numpy()


def same(value: object, batch: Batch) -> Any:
    """One value for all."""
    return arrow.repeat(value, len(batch))


def header(name: str, batch: Batch) -> Any:
    """The first value of a header; null where there is none."""
    lists = kernels.map_lookup(common_column(batch, "headers"), name, "first")
    # An empty list has no element to take.
    filled = kernels.if_else(
        kernels.equal(kernels.list_value_length(lists), 0), arrow.scalar([None], lists.type), lists
    )
    return kernels.list_element(filled, 0)
