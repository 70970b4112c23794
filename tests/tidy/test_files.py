"""How files look: their size, how they begin, what must not be in them; and lines per language."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy import tree

LINES_MAX = 600
RUST_SHARE_MAX = 0.40
CODE_SUFFIXES = {".py", ".pyi", ".rs", ".sh"}

# Written so that this file does not contain what it looks for.
MACHINE_PATHS = re.compile(r"(?<![\w.~$}])/(?:work|root|home/\w+|Users/\w+)/[\w.]")
REGISTRY_HOSTS = re.compile(
    r"\b(?:" + "|".join([r"pypi\.org", r"pythonhosted\.org", r"static\.crates\.io", r"index\.crates\.io",
                         r"proxy\.golang\.org", r"sum\.golang\.org", r"registry\.npmjs\.org",
                         r"repo1?\.maven\.(?:apache\.)?org", r"deb\.debian\.org"]) + r")\b"
)  # fmt: skip
OPEN_TASK = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b(?!\s*\(?#\d+)")


def lines(path: Path) -> int:
    return len(tree.text(path).splitlines())


def test_no_file_is_too_long() -> None:
    mirror = {"src/headrace/_core.pyi"}  # of one compiled module: it cannot be two files
    long = [
        f"{tree.short(path)}: {count} lines"
        for path in tree.files()
        if path.suffix in CODE_SUFFIXES
        and (count := lines(path)) > LINES_MAX
        and tree.short(path) not in mirror
    ]
    assert not long, f"more than {LINES_MAX} lines: make two files of it\n" + "\n".join(long)


def test_python_files_begin_with_a_docstring() -> None:
    silent = [
        tree.short(path)
        for path in tree.files()
        if path.suffix in {".py", ".pyi"} and ast.get_docstring(tree.syntax(path)) is None
    ]
    assert not silent, "no docstring that says what the file is for: " + ", ".join(silent)


def test_rust_files_begin_with_a_doc_comment() -> None:
    silent = [tree.short(path) for path in tree.rust_files() if not tree.text(path).startswith("//!")]
    assert not silent, "no //! that says what the file is for: " + ", ".join(silent)


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("an open task without an issue number", OPEN_TASK),
        ("a path of somebody's machine", MACHINE_PATHS),
        ("the host of a package registry (clients are configured by the user)", REGISTRY_HOSTS),
    ],
    ids=["open-tasks", "machine-paths", "registry-hosts"],
)
def test_nothing_that_does_not_belong(what: str, pattern: re.Pattern[str]) -> None:
    lock_files = {"Cargo.lock"}
    found = [
        f"{tree.short(path)}:{number}: {line.strip()}"
        for path, text in tree.text_files()
        if path != Path(__file__).resolve() and path.name not in lock_files
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"{what}:\n" + "\n".join(found)


def test_no_empty_folders_and_no_empty_files() -> None:
    empty = [
        tree.short(path)
        for path in tree.files()
        if path.stat().st_size == 0 and (tree.ROOT / "vectors") not in path.parents
        if path.name != "py.typed"  # a marker
    ]
    assert not empty, "empty files: " + ", ".join(empty)


def test_tests_lie_as_the_packages_do() -> None:
    """Folders that concern more than one package are named here."""
    across = {"conformance", "crash", "docs", "interop", "support", "tidy", "unit"}
    packages = {path.parent.name for path in (tree.SRC / "headrace").glob("*/__init__.py")}
    tests = tree.ROOT / "tests"
    folders = {path.relative_to(tests).parts[0] for path in tree.files() if tests in path.parent.parents}
    assert not (strange := folders - packages - across), f"no package of that name: {sorted(strange)}"


def code_lines(path: Path) -> int:
    """Lines that are neither blank nor comment nor docstring."""
    prose: set[int] = set()
    if path.suffix == ".py":
        for node in ast.walk(tree.syntax(path)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith(("#", "//")) and number not in prose
        for number, line in enumerate(tree.text(path).splitlines(), 1)
    )


def test_rust_is_at_most_two_fifths_of_the_product(capsys: pytest.CaptureFixture[str]) -> None:
    """Rust does the work per message, Python decides: the share of Rust shows whether that holds (docs/adr/0006)."""
    python, rust = tree.python_files(), tree.rust_product_files()
    shares: dict[str, float] = {}
    with capsys.disabled():
        print("\n\nproduct: Python (src), Rust (rust/core/src, rust/python/src), share of Rust")
        for name, count in {"all lines": lines, "code lines": code_lines}.items():
            ours, cores = sum(map(count, python)), sum(map(count, rust))
            shares[name] = cores / (ours + cores)
            print(f"  {name:12}{ours:8,}{cores:8,}{shares[name]:8.1%}")
    assert shares["all lines"] <= RUST_SHARE_MAX, (
        f"Rust is {shares['all lines']:.1%} of the product's lines, more than {RUST_SHARE_MAX:.0%}: move decisions to Python"
    )
