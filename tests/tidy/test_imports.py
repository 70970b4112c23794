"""Who may import whom. The layers are import-linter's; who imports foreign packages and the core is here."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.tidy import tree

# A foreign package is imported in one place. Everything else is free to all or not a dependency at all.
IMPORTED_BY = {
    "pyspark": ("headrace.spark", "pyspark_headrace"),
    "pandas": ("headrace.spark",),
    "deltalake": ("headrace.ops.lake",),
    "pyiceberg": ("headrace.ops.lake",),
    "typer": ("headrace.cli",),
    "click": ("headrace.cli",),
    "rich": ("headrace.cli",),
    "pytest": ("headrace.testing",),
    "hypothesis": ("headrace.testing",),
    "starlette": ("headrace.server.http",),
    "uvicorn": ("headrace.server.http",),
    "prometheus_client": ("headrace.server",),
    "uvloop": ("headrace.server",),
    "bcrypt": ("headrace.server.auth",),
    "cryptography": ("headrace.nkeys",),
    "websockets": ("headrace.server.nats",),
    # Chance has one source, which tests can seed.
    "random": ("headrace.randomness", "headrace.testing"),
    "secrets": ("headrace.randomness",),
    "uuid": ("headrace.randomness",),
}
NOT_LOADED_AT_FIRST = (
    *("pyspark", "pandas", "pyarrow", "numpy", "typer", "click", "rich", "pytest"),
    *("headrace.cli", "headrace.server", "headrace.spark", "headrace.testing"),
)


def inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in packages)


def test_layers() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--config", "pyproject.toml", "--no-cache"],
        cwd=tree.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_chance_has_one_source() -> None:
    drawn = [tree.short(path) for path in tree.python_files() if "urandom" in tree.text(path)]
    assert drawn in ([], ["src/headrace/randomness.py"]), "use headrace.randomness: " + ", ".join(drawn)


def test_each_foreign_package_is_imported_in_one_place() -> None:
    wrong = [
        f"{tree.short(path)}:{found.line}: {found.top} belongs to {' and '.join(IMPORTED_BY[found.top])}"
        for path in tree.python_files()
        for found in tree.imports(path)
        if found.top in IMPORTED_BY and not inside(tree.module_name(path), IMPORTED_BY[found.top])
    ]
    assert not wrong, "\n".join(wrong)


def test_layouts_do_not_know_each_other() -> None:
    wrong: list[str] = []
    for path in tree.python_files():
        own = tree.module_name(path).split(".")
        if own[:2] != ["headrace", "layouts"] or len(own) < 3:
            continue
        for found in tree.imports(path):
            for reached in found.reached():
                other = reached.split(".")
                is_product = len(other) > 2 and (tree.SRC / "headrace" / "layouts" / other[2]).is_dir()
                if other[:2] == own[:2] and is_product and other[2] != own[2]:
                    wrong.append(f"{tree.short(path)}:{found.line}: {own[2]} imports {other[2]}")
    assert not [line for line in wrong if "layouts/registry.py" not in line], "\n".join(wrong)


def test_only_the_registry_names_a_product() -> None:
    """What differs between products is a method or an attribute of the storage interface."""
    products = {path.name for path in (tree.SRC / "headrace" / "layouts").iterdir() if path.is_dir()}
    above = ("headrace.ops", "headrace.spark", "headrace.cli", "headrace.client", "headrace.testing")
    wrong: list[str] = []
    for path in tree.python_files():
        module = tree.module_name(path)
        if module != "headrace" and not inside(module, above):
            continue
        for found in tree.imports(path):
            parts = [reached.split(".") for reached in found.reached()]
            if any(part[:2] == ["headrace", "layouts"] and set(part[2:3]) & products for part in parts):
                wrong.append(f"{tree.short(path)}:{found.line}: imports {found.module}")
    assert not wrong, "\n".join(wrong)


def package_of(module: str) -> str:
    """The package that a module belongs to; each layout is one, and so is each module of the root."""
    parts = module.split(".")
    depth = 3 if parts[:2] == ["headrace", "layouts"] and len(parts) > 3 else 2
    return ".".join(parts[:depth])


def test_each_package_reaches_the_core_through_one_module() -> None:
    """`Batch` and `Disk` are types of the storage interface; kernels are called from one place per package."""
    callers: dict[str, set[str]] = defaultdict(set)
    for path in tree.python_files():
        module = tree.module_name(path)
        for found in tree.imports(path):
            kernels = set(found.names) - {"Batch", "Disk", "DiskFile"}
            if found.module == "headrace._core" and kernels:
                callers[package_of(module)].add(module)
            if found.module == "headrace" and "_core" in found.names:
                callers[package_of(module)].add(module)
    wrong = [
        f"{package}: {', '.join(sorted(modules))}" for package, modules in callers.items() if len(modules) > 1
    ]
    assert not wrong, "more than one module reaches headrace._core in " + "; ".join(wrong)


def test_import_headrace_is_light() -> None:
    program = (
        f"import sys, headrace\nprint([name for name in {NOT_LOADED_AT_FIRST!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tree.ROOT / "tests", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", f"`import headrace` loads {done.stdout.strip()}"


def test_no_module_is_dead() -> None:
    """A module nobody imports is dead, unless something outside Python starts it."""
    started_from_outside = {
        "headrace",
        "headrace.__main__",
        "headrace.cli.__main__",  # python -m headrace.cli
        "headrace.cli.main",  # project.scripts
        "headrace.cli.submit.headrace_pipeline",  # spark-submit
        "headrace.testing.plugin",  # project.entry-points
        "pyspark_headrace",  # found by Spark
    }
    used = {
        reached
        for path in tree.python_files()
        for found in tree.imports(path)
        for reached in found.reached()
        if reached != tree.module_name(path)
    }
    core = "\n".join(tree.text(path) for path in tree.rust_product_files())  # it imports some by name
    dead = [
        tree.short(path)
        for path in tree.python_files()
        if path.name != "__init__.py"
        and (module := tree.module_name(path)) not in used | started_from_outside
        and module not in core
    ]
    assert not dead, "imported by nothing in src/: " + ", ".join(dead)
