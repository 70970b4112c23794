"""`_core.pyi` says what the compiled module has, no more and no less.

stubtest passes over a private module whose stub it does not find, and calls that a success. So it gets a stub with a
name too many: that it finds this one and nothing else is the proof.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.tidy import tree

ALLOWLIST = Path(__file__).with_name("stubtest_allowlist.txt")


def test_stub_matches_the_built_module(tmp_path: Path) -> None:
    shutil.copytree(tree.SRC, tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    config = shutil.copy(tree.ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "headrace" / "_core.pyi").open("a") as stub:
        stub.write("\ndef not_in_the_core() -> None: ...\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy.stubtest", "headrace._core"),
            *("--allowlist", ALLOWLIST, "--mypy-config-file", config, "--concise"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.splitlines() == ["headrace._core.not_in_the_core is not present at runtime"], (
        done.stdout + done.stderr
    )
    assert done.returncode == 1
