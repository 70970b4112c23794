"""Results of the core have names: nobody picks a part of a tuple by its number.

The stub says which functions, methods and properties return tuples, or lists of them. Their results may be unpacked,
never subscripted with a number: neither directly nor behind a name that was given to them in the same function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.tidy import tree

STUB = tree.SRC / "headrace" / "_core.pyi"
_CONTAINERS = {"list", "Sequence", "dict", "Iterator"}


def layers(annotation: ast.expr, aliases: dict[str, ast.expr]) -> int | None:
    """How many containers lie around a tuple: 0 for a tuple itself, None where there is none."""
    if isinstance(annotation, ast.BinOp):  # X | None
        found = [layers(side, aliases) for side in (annotation.left, annotation.right)]
        return min((each for each in found if each is not None), default=None)
    if isinstance(annotation, ast.Name) and annotation.id in aliases:
        return layers(aliases[annotation.id], aliases)
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.value, ast.Name):
        return None
    if annotation.value.id == "tuple":
        return 0
    if annotation.value.id in _CONTAINERS:
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        inner = layers(parts[-1], aliases)
        return None if inner is None else inner + 1
    return None


@cache
def tuple_results() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """(functions, methods, properties) of the core that return tuples, with the containers around them."""
    stub = ast.parse(STUB.read_text())
    aliases = {
        node.targets[0].id: node.value
        for node in stub.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    functions: dict[str, int | None] = {}
    methods: dict[str, int | None] = {}
    properties: dict[str, int | None] = {}
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            _add(functions, node, aliases)
        elif isinstance(node, ast.ClassDef) and not _is_protocol(node):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    _add(properties if _is_property(member) else methods, member, aliases)
    return _sure(functions), _sure(methods), _sure(properties)


def _add(into: dict[str, int | None], function: ast.FunctionDef, aliases: dict[str, ast.expr]) -> None:
    depth = layers(function.returns, aliases) if function.returns is not None else None
    into[function.name] = depth if into.get(function.name, depth) == depth else None


def _sure(found: dict[str, int | None]) -> dict[str, int]:
    """Without names that several classes have and that return something else in one of them: `read`, say."""
    return {name: depth for name, depth in found.items() if depth is not None}


def _is_property(function: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in function.decorator_list)


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


class Function:
    """One function of ours: which of its names hold a tuple of the core, and who subscripts one."""

    def __init__(self, body: ast.AST) -> None:
        self._nodes = list(ast.walk(body))
        self._names: dict[str, int] = {}
        for node in self._nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._bind(node.targets[0], self._depth(node.value))
            elif isinstance(node, ast.NamedExpr):
                self._bind(node.target, self._depth(node.value))
        for node in self._nodes:
            if isinstance(node, ast.For | ast.comprehension):
                depth = self._depth(node.iter)
                self._bind(node.target, depth - 1 if depth else None)

    def _bind(self, target: ast.expr, depth: int | None) -> None:
        if isinstance(target, ast.Name) and depth is not None:
            self._names[target.id] = depth

    def _depth(self, node: ast.expr) -> int | None:
        """Containers around a tuple of the core that an expression gives; None if it gives none."""
        functions, methods, properties = tuple_results()
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            return properties.get(node.attr)
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                return functions.get(called.id)
            return methods.get(called.attr) if isinstance(called, ast.Attribute) else None
        if isinstance(node, ast.Subscript):
            depth = self._depth(node.value)
            return depth if depth is None or isinstance(node.slice, ast.Slice) else depth - 1
        if isinstance(node, ast.IfExp | ast.BoolOp):
            parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
            return next((depth for part in parts if (depth := self._depth(part)) is not None), None)
        return None

    def numbered(self) -> Iterator[ast.Subscript]:
        """Every subscript by a number of a tuple of the core."""
        for node in self._nodes:
            if isinstance(node, ast.Subscript) and self._depth(node.value) == 0 and _is_number(node.slice):
                yield node


def _is_number(index: ast.expr) -> bool:
    if isinstance(index, ast.UnaryOp):
        index = index.operand
    return isinstance(index, ast.Slice) or (isinstance(index, ast.Constant) and isinstance(index.value, int))


def numbered_parts(module: ast.Module) -> list[int]:
    """The lines that pick a part of a core's tuple by its number."""
    nodes = list(ast.walk(module))
    lines = [node.lineno for node in nodes if isinstance(node, ast.Subscript) and _is_number(node.slice)]
    bodies = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(node.lineno <= line <= (node.end_lineno or line) for line in lines)
    ]
    return sorted(
        {found.lineno for body in [module, *bodies] for found in Function(body).numbered()} if lines else ()
    )


def test_nobody_counts_the_parts_of_a_result() -> None:
    wrong = [
        f"{tree.short(path)}:{line}: give the result of the core a name, or unpack it"
        for path in tree.python_files()
        for line in numbered_parts(tree.syntax(path))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "log.read_matching(1, 2, 3, [], None, 1)[1]",
        "found = log.read_matching(1, 2, 3, [], None, 1)\n    return found[1]",
        "found = log.erasure(1, b'') if log else None\n    return found[0]",
        "return [each[2] for each in exchange.drain()]",
        "for row in queue.segments():\n        print(row[0])",
        "return scan.tombstones[-1][0]",
        "if (pair := first_overlapping_pair([])) is not None:\n        return pair[1]",
        "return log.subjects_page('>', 0, 1)[:1]",
    ],
)
def test_a_number_is_seen(line: str) -> None:
    assert numbered_parts(ast.parse(f"def look(log, exchange, queue, scan):\n    {line}\n"))


@pytest.mark.parametrize(
    "line",
    [
        "batch, following = log.read_matching(1, 2, 3, [], None, 1)",
        "return queue.segments()[0]",
        "return log.blocks()[-1].number",
        "return batch.times()[0]",
    ],
)
def test_names_pass(line: str) -> None:
    assert not numbered_parts(ast.parse(f"def look(log, queue, batch):\n    {line}\n"))
