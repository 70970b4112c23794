"""Arrow's functions on arrays. Apart from `columns`, because loading them takes a worker that needs none 60 ms."""

from __future__ import annotations

from typing import Any

import pyarrow.compute

# The stubs leave the element types of arrays open, and with them everything that is made of arrays.
kernels: Any = pyarrow.compute
