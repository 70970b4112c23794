"""The tree that errors.py draws is the tree that its classes are."""

from __future__ import annotations

import re

import headrace.errors as errors

LINE = re.compile(r"^(?P<lead>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: {2,}(?P<about>.*))?$")
INDENT = len("├── ")


def drawn() -> dict[str, tuple[str, ...]]:
    """Class → its bases, as the drawing has them."""
    found: dict[str, tuple[str, ...]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        depth = len(match["lead"]) // INDENT
        also = re.findall(r"\(also (\w+)\)", match["about"] or "")
        found[match["name"]] = (above[depth - 1] if depth else "Exception", *also)
        above[depth:] = [match["name"]]
    return found


def test_the_drawing_is_the_tree() -> None:
    classes = {
        name: tuple(base.__name__ for base in value.__bases__)
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.HeadraceError)
    }
    assert drawn() == classes
