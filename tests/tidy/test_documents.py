"""Documents that drift fail here: the tree in ARCHITECTURE.md, the links of PROMISES.md, links everywhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.tidy import tree

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
TEST_LINK = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")
NOT_YET = "not yet kept"


def documents() -> list[Path]:
    return [
        path
        for path in tree.files()
        if path.suffix == ".md" and not ((tree.ROOT / "vectors") in path.parents and path.name != "README.md")
    ]


def packages() -> list[str]:
    """Folders with source in src/headrace and rust/, as ARCHITECTURE.md must name them."""
    found: set[str] = set()
    for path in [*tree.python_files(), *tree.rust_files()]:
        parts = path.relative_to(tree.ROOT).parts[:-1]
        if parts[:2] == ("src", "headrace") and len(parts) > 2:
            found.add(parts[2])
            if parts[2] == "layouts" and len(parts) > 3:
                found.add(parts[3])
        elif parts[0] == "rust":
            found.add(f"rust/{parts[1]}")
        elif parts[0] == "src" and parts[1] != "headrace":
            found.add(f"src/{parts[1]}")
    return sorted(found)


def test_architecture_names_every_package() -> None:
    text = (tree.ROOT / "ARCHITECTURE.md").read_text()
    block = "\n".join(re.findall(r"```(?:text)?\n(.*?)```", text, re.DOTALL))
    missing = [name for name in packages() if not re.search(rf"(?<!\w){re.escape(name)}/", block)]
    assert not missing, f"the tree in ARCHITECTURE.md does not show {', '.join(missing)}"


def test_architecture_names_no_file_that_is_gone() -> None:
    text = (tree.ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`((?:src|rust|tests|docs|scripts|vectors|bench)/[\w./-]*)`", text)
    gone = [name for name in named if not (tree.ROOT / name).exists()]
    assert not gone, f"ARCHITECTURE.md speaks of {', '.join(gone)}, which is not there"


def test_files_and_functions_that_documents_name_are_there() -> None:
    """`path/to/file.py:name` in ARCHITECTURE.md and CONTRIBUTING.md: a function, class or method of that file."""
    wrong: list[str] = []
    for document in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        named = re.findall(r"`((?:src|rust)/[\w./-]+?)(?::(\w+))?`", (tree.ROOT / document).read_text())
        assert named, document
        for path, name in named:
            file = tree.ROOT / path
            if not file.exists():
                wrong.append(f"{document}: {path} is not there")
            elif name and not re.search(rf"\b(?:def|class|fn|struct) {name}\b", file.read_text()):
                wrong.append(f"{document}: {path} has no {name}")
    assert not wrong, "\n".join(wrong)


def test_every_promise_is_held_by_a_test_or_says_so() -> None:
    rows = re.findall(r"^\| *(\d+) *\|(.*)\|$", (tree.ROOT / "PROMISES.md").read_text(), re.MULTILINE)
    assert rows, "PROMISES.md has no table"
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1)), (
        "promises are numbered from 1"
    )
    wrong: list[str] = []
    for number, row in rows:
        links = TEST_LINK.findall(row)
        if NOT_YET in row.lower():
            continue
        if not links:
            wrong.append(f"promise {number}: no test, and not marked “{NOT_YET}”")
        for file, name in links:
            if not name or name not in functions(tree.ROOT / file):
                wrong.append(f"promise {number}: {file}::{name or '?'} does not exist")
    assert not wrong, "\n".join(wrong)


def functions(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    nodes = ast.walk(tree.syntax(path))
    return {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def test_links_lead_somewhere() -> None:
    dead = [
        f"{tree.short(path)}: {target}"
        for path in documents()
        for target in LINK.findall(path.read_text())
        if "://" not in target and not target.startswith("mailto:")
        if not (path.parent / target).exists()
    ]
    assert not dead, "links to nothing:\n" + "\n".join(dead)


def test_decisions_are_numbered_and_have_a_status() -> None:
    records = sorted((tree.ROOT / "docs" / "adr").glob("[0-9]*.md"))
    numbers = [int(path.name[:4]) for path in records]
    assert numbers == list(range(len(records))), f"decision records are not numbered in a row: {numbers}"
    silent = [path.name for path in records if not re.search(r"^Status: \w+", path.read_text(), re.MULTILINE)]
    assert not silent, f"no `Status:` line in {', '.join(silent)}"
