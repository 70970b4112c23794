"""`python -m tests.conformance.suite`: the suite of nats.py against Headrace; see README.md beside this file."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.peers import find_peer

HERE = Path(__file__).parent
FILES = ("tests/test_js.py", "tests/test_client.py")
ASIDE = re.compile(r"ObjectStore|object_store|Cluster|test_discover|test_object", re.IGNORECASE)
LINE = re.compile(r"^(PASSED|FAILED|ERROR) (\S+)", re.MULTILINE)


def run(suite: Path, program: Path) -> dict[str, bool]:
    """One run with that `nats-server`; test → passed."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "nats-server").symlink_to(program)
        headrace = str(Path(sys.executable).with_name("headrace"))
        environment = {
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(suite / "src"),
            "HEADRACE": headrace,
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rA",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=",
            *FILES,
        ]
        done = subprocess.run(
            command, cwd=suite, env=environment, capture_output=True, text=True, check=False
        )
    return {name: kind == "PASSED" for kind, name in LINE.findall(done.stdout)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="two runs on nats-server first")
    given = parser.parse_args()
    place = os.environ.get("HEADRACE_NATS_PY")
    if not place:
        print("set HEADRACE_NATS_PY to the folder `nats` of a checkout of nats.py", file=sys.stderr)
        return 2
    suite = Path(place).resolve()
    sound: set[str] | None = None
    if given.real:
        real = [run(suite, find_peer("nats-server", "2.15.2")) for _ in range(2)]
        sound = {name for name in real[0] if real[0][name] and real[1].get(name)}
        print(f"nats-server: {len(sound)} tests pass in both runs")
    ours = [run(suite, HERE / "nats-server") for _ in range(2)]
    failed = {name for name in ours[0] if not ours[0][name] and not ours[1].get(name, False)}
    aside = {name for name in failed if ASIDE.search(name)}
    failed -= aside
    if sound is not None:
        failed &= sound
    passed = sum(1 for name in ours[0] if ours[0][name] or ours[1].get(name))
    print(
        f"Headrace: {passed} tests pass in at least one of two runs; set aside: {len(aside)}; failed: {len(failed)}"
    )
    for name in sorted(failed):
        print(f"  {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
