"""For spark-submit, which wants a file: `spark-submit … $(headrace pipeline script) archive SRC DEST`.

The session is the one that spark-submit asks for: master, memory and the rest are said there.
"""

from __future__ import annotations

import sys

from headrace.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["pipeline", *sys.argv[1:]]))
