"""The documents' Python: it runs as it stands where it can, and strict type checkers know every call in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PRINTED = {
    "README.md": ["1 orders.new b'one'", "2 orders.new b'two'", "2 rows", "sound", "|orders.new|    2|"],
    "library.md": ["True 1 ['ORDERS']", "3 messages, 3 rows", "jetstream 3", "kafka 1", "ORDERS 3 sound"],
}


def blocks(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("document", ["README.md", "docs/guides/library.md"])
def test_the_code_runs(document: str, tmp_path: Path) -> None:
    path = ROOT / document
    done = subprocess.run(
        [sys.executable, "-W", "error:::headrace", "-c", "\n".join(blocks(path))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert [line for line in PRINTED[path.name] if line not in printed] == [], done.stdout


def test_type_checkers_know_every_call(tmp_path: Path) -> None:
    """As in a user's project: strict, and without the stubs of pyarrow that only developers here have."""
    written: list[str] = []
    for document in DOCUMENTS:
        if code := blocks(document):
            # Several blocks of a page are one program; an import may stand in each.
            file = tmp_path / f"{document.stem.replace('-', '_')}_page.py"
            file.write_text("\n".join(code))
            written.append(file.name)
    assert {"README_page.py", "library_page.py", "spark_page.py"} <= set(written)
    stubs = tmp_path / "typings" / "pyarrow"
    stubs.mkdir(parents=True)
    (stubs / "__init__.pyi").write_text("def __getattr__(name: str): ...\n")
    settings = {
        "include": written,
        "typeCheckingMode": "strict",
        "venvPath": str(ROOT),
        "venv": ".venv",
        "extraPaths": [str(ROOT / "src")],
        "reportMissingModuleSource": False,
        "reportUnusedExpression": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    programs = Path(sys.executable).parent
    for command in (
        [programs / "pyright", "--project", tmp_path],
        [
            programs / "mypy",
            "--strict",
            "--python-executable",
            sys.executable,
            "--cache-dir",
            ROOT / ".mypy_cache",
            *written,
        ],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "headrace" / "py.typed").is_file()
