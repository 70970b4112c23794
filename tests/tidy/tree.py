"""What the tidy tests look at: the files of the tree and the imports in them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
RUST = ROOT / "rust"
GENERATED = {".venv", "target", "dist", "build", ".git", "__pycache__", ".hypothesis"}


@cache
def files() -> tuple[Path, ...]:
    """Every file that is in version control or would be added: what git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
        found = (ROOT / name for name in names)
    else:  # an unpacked archive without .git
        found = (path for path in ROOT.rglob("*") if not GENERATED & set(path.relative_to(ROOT).parts))
    return tuple(sorted(path for path in found if path.is_file()))


@cache
def text(path: Path) -> str:
    """Read once for all tests."""
    return path.read_text()


@cache
def syntax(path: Path) -> ast.Module:
    """Parsed once for all tests: nobody changes it."""
    return ast.parse(text(path), str(path))


def text_files() -> Iterator[tuple[Path, str]]:
    """Files that people read and write; the golden directories are other programs' bytes."""
    for path in files():
        if (ROOT / "vectors") in path.parents and path.suffix not in {".md", ".toml"}:
            continue
        try:
            yield path, text(path)
        except UnicodeDecodeError:
            continue


def python_files() -> list[Path]:
    return [path for path in files() if SRC in path.parents and path.suffix == ".py"]


def rust_product_files() -> list[Path]:
    """rust/<crate>/src, without the crates that only test or measure."""
    return [
        path
        for path in files()
        if path.suffix == ".rs"
        and RUST in path.parents
        and path.relative_to(RUST).parts[1] == "src"
        and path.relative_to(RUST).parts[0] not in {"fuzz", "benches"}
    ]


def rust_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".rs" and RUST in path.parents]


def module_name(path: Path) -> str:
    parts = list(path.relative_to(SRC).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Import:
    """`module` as written out in full; `names` what is taken from it."""

    line: int
    module: str
    names: tuple[str, ...] = ()

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    def reached(self) -> Iterator[str]:
        """Every module that this statement may load."""
        yield self.module
        for name in self.names:
            yield f"{self.module}.{name}"


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """All imports of a file, also those inside functions."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    package = module_name(path) if SRC in path.parents else ""
    if package and path.name != "__init__.py":
        package = package.rpartition(".")[0]
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base]).rstrip(".")
            yield Import(node.lineno, base, tuple(alias.name for alias in node.names))
