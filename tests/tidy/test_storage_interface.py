"""Models and servers pass the kernel of a store on to the core and call nothing of it."""

from __future__ import annotations

import ast

import pytest

from tests.tidy import tree

ABOVE = ("headrace.engine", "headrace.streams", "headrace.server")
# What lies behind the interface: files, and the core's own object for them.
HIDDEN = {"kernel", "sidecar", "disk", "msgs_dir", "stream_dir"}


def reaches_around(module: ast.Module) -> list[int]:
    """Lines that use something of a store which is not part of its interface."""
    found: list[int] = []
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            inner = node.value
            if inner.attr in HIDDEN or (inner.attr == "log" and _is_store(inner.value)):
                found.append(node.lineno)
    return found


def _is_store(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lstrip("_") in ("store", "source", "target")


def test_nothing_reaches_around_the_storage_interface() -> None:
    wrong = [
        f"{tree.short(path)}:{line}: a method or property of StreamStore is missing for this"
        for path in tree.python_files()
        if tree.module_name(path).startswith(ABOVE)
        for line in reaches_around(tree.syntax(path))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    ["store.kernel.last_seq", "self._store.log.mark", "stream.store.log.load(1)", "store.disk.read('x')"],
)
def test_a_way_around_is_seen(line: str) -> None:
    assert reaches_around(ast.parse(line)) == [1]


def test_passing_the_kernel_on_is_not() -> None:
    assert not reaches_around(ast.parse("run.admit(plan, window, producers, store.kernel, start, now)"))
