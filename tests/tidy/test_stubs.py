"""`_core.pyi` says what the compiled module has, no more and no less.

stubtest passes over a private module whose stub it does not find, and calls that a success. So a second test
gives it a stub with a name too many and wants to see it fail.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.tidy import tree

ALLOWLIST = Path(__file__).with_name("stubtest_allowlist.txt")


def stubtest(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "mypy.stubtest", "headrace._core"),
            *("--allowlist", ALLOWLIST, "--mypy-config-file", config),
        ],
        cwd=config.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_stub_matches_the_built_module() -> None:
    done = stubtest(tree.ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_stub_is_seen(tmp_path: Path) -> None:
    shutil.copytree(tree.SRC, tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(tree.ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "headrace" / "_core.pyi").open("a") as stub:
        stub.write("\ndef not_in_the_core() -> None: ...\n")
    done = stubtest(tmp_path / "pyproject.toml")
    assert done.returncode == 1
    assert "headrace._core.not_in_the_core is not present at runtime" in done.stdout
