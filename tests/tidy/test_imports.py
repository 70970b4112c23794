"""Who may import whom. The floors are import-linter's; doors to foreign packages and to the core are here."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.tidy import tree

# A foreign package has one door. Everything else is free to all rooms or not a dependency at all.
DOORS = {
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
}
NOT_LOADED_BY_FRONT_DOOR = (
    *("pyspark", "pandas", "pyarrow", "numpy", "typer", "click", "rich", "pytest"),
    *("headrace.cli", "headrace.server", "headrace.spark", "headrace.testing"),
)


def inside(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def test_floors() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--config", "pyproject.toml", "--no-cache"],
        cwd=tree.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_foreign_package_has_one_door() -> None:
    wrong = [
        f"{tree.short(path)}:{found.line}: {found.top} belongs to {' and '.join(DOORS[found.top])}"
        for path in tree.python_files()
        for found in tree.imports(path)
        if found.top in DOORS and not inside(tree.module_name(path), DOORS[found.top])
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
                is_room = len(other) > 2 and (tree.SRC / "headrace" / "layouts" / other[2]).is_dir()
                if other[:2] == own[:2] and is_room and other[2] != own[2]:
                    wrong.append(f"{tree.short(path)}:{found.line}: {own[2]} imports {other[2]}")
    assert not [line for line in wrong if "layouts/detect.py" not in line], "\n".join(wrong)


def room_of(module: str) -> str:
    """The room a module lives in; each layout is a room, and so is each module of the package's root."""
    parts = module.split(".")
    depth = 3 if parts[:2] == ["headrace", "layouts"] and len(parts) > 3 else 2
    return ".".join(parts[:depth])


def test_each_room_reaches_the_core_through_one_module() -> None:
    """`Batch` and `Disk` are the waist's own types; kernels are called from one place per room."""
    doors: dict[str, set[str]] = defaultdict(set)
    for path in tree.python_files():
        module = tree.module_name(path)
        for found in tree.imports(path):
            kernels = set(found.names) - {"Batch", "Disk", "DiskFile"}
            if found.module == "headrace._core" and kernels:
                doors[room_of(module)].add(module)
            if found.module == "headrace" and "_core" in found.names:
                doors[room_of(module)].add(module)
    wrong = [f"{room}: {', '.join(sorted(modules))}" for room, modules in doors.items() if len(modules) > 1]
    assert not wrong, "more than one module reaches headrace._core in " + "; ".join(wrong)


def test_import_headrace_is_light() -> None:
    program = (
        f"import sys, headrace\nprint([name for name in {NOT_LOADED_BY_FRONT_DOOR!r} if name in sys.modules])"
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
    core = "\n".join(path.read_text() for path in tree.rust_product_files())  # it imports some by name
    dead = [
        tree.short(path)
        for path in tree.python_files()
        if path.name != "__init__.py"
        and (module := tree.module_name(path)) not in used | started_from_outside
        and module not in core
    ]
    assert not dead, "imported by nothing in src/: " + ", ".join(dead)
