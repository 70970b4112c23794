"""Which columns a query has. What only some queries need is loaded for those: a worker should be ready at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.errors import BadInput
from headrace.spark.columns import FINDING, MESSAGE, Columns, known
from headrace.spark.layout_types import layout_columns
from headrace.spark.malformed import CORRUPT, PERMISSIVE
from headrace.spark.options import LOG_VIEW, ReadOptions
from headrace.spark.planning import directories


def columns_of(options: ReadOptions) -> Columns:
    """Everything that the view has: for messages with `_corrupt` where damage is shown, and with the layout's own by option."""
    if options.view != LOG_VIEW:
        from headrace.spark.views import VIEWS

        return VIEWS[options.view][1]
    more: dict[str, pa.DataType] = {}
    if options.layout_columns or set(options.columns) - set(MESSAGE) - {CORRUPT}:
        more = dict(layout_columns(directories(options.path)))
    return {**MESSAGE, **more, **({CORRUPT: FINDING} if options.mode == PERMISSIVE else {})}


def checked(options: ReadOptions, names: Sequence[str]) -> list[str]:
    """The columns of a query. BadInput for one that is not there, and where damage would look like messages."""
    if options.view == LOG_VIEW and set(names) - set(MESSAGE) - {CORRUPT}:
        options = replace(options, layout_columns=True)
    columns = known(columns_of(options), names)
    if options.view == LOG_VIEW and options.mode == PERMISSIVE and CORRUPT not in columns:
        raise BadInput(
            f"headrace source: mode=PERMISSIVE shows damage as rows: the column {CORRUPT} is needed to tell them apart"
        )
    return columns
