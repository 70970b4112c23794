"""`convert`: the messages of one broker's directory into another broker's.

sides.py     what each layout has a place for
mapping.py   which log becomes which, and on which subject
losses.py    the table of what is kept, carried or lost, before anything is written
readers.py   durables, groups and consumers with their positions
target.py    the directory that is written: new or there already, interrupted or not
run.py       plan, copy, verify
"""

from headrace.ops.conversion.run import ConvertReport, convert

__all__ = ["ConvertReport", "convert"]
