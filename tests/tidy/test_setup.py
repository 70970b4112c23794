"""A missing tool is named in one line that says why it is needed and how to get it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tidy import tree


def run_need(tool: str, tools_dir: Path) -> subprocess.CompletedProcess[str]:
    """`scripts/need.sh` on a machine that has a shell and nothing else."""
    for name in ("bash", "env", "sed", "head"):
        place = shutil.which(name)
        assert place is not None
        (tools_dir / name).symlink_to(place)
    return subprocess.run(
        [tree.ROOT / "scripts" / "need.sh", tool],
        env={"PATH": str(tools_dir)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("python", "Python 3.11"),
        ("cargo", "cargo"),
        ("rust-tools", "clippy"),
        ("go", "go"),
        ("java", "Java 17"),
    ],
)
def test_missing_tool_gets_one_line(tool: str, name: str, tmp_path: Path) -> None:
    done = run_need(tool, tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith(f"headrace: {name}")
    assert "is missing" in done.stderr
    assert "Install it:" in done.stderr
    assert not done.stdout


def test_pins_are_exact() -> None:
    loose = [
        f"{path.name}: {line}"
        for path in (tree.ROOT / "scripts" / "requirements").glob("*.txt")
        for line in path.read_text().splitlines()
        if line and not line.startswith("#") and "==" not in line
    ]
    assert not loose, loose
