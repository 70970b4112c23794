"""`convert`: the messages of one broker's directory into another broker's.

mapping.py   which log becomes which, and on which subject
plan.py      which log goes where, with which positions; streams that would take one subject are refused
losses.py    the table of what is kept, carried or lost, before anything is written
joining.py   logs that become one, by time
joined_readers.py   where the readers of logs that become one stand in it
target.py    the directory that is written: new or there already, interrupted or not
worker_pool.py      logs side by side
spec.py      what is to be converted, and how
run.py       copy, compare
"""

from headrace.ops.conversion.run import ConvertReport, convert
from headrace.ops.conversion.spec import ConversionSpec

__all__ = ["ConversionSpec", "ConvertReport", "convert"]
