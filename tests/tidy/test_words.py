"""The field's words: no private dialect in names, one class for each name, and prose without the worst of it.

A name says what a thing is to somebody who knows Kafka, NATS or Spark. What is banned here was in this tree once, and
each word has plain ones to its right. Add to the lists when another one has gone.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy import tree

BANNED_IN_NAMES = {
    "asked": "request, options, params, requested",
    "bury": "schedule_unlink",
    "buried": "pending_unlink",
    "crew": "WorkerPool",
    "hopeless": "what happens instead",
    "letter": "message, msg",  # a dead letter is a word of the field, and so are letters of an alphabet
    "manners": "flags",
    "parcel": "batch, message",
    "patience": "deadline",
    "picky": "filters_on_write",
    "room": "space, capacity, free; a package is a package",
    "settle": "ack, commit, apply_defaults, raise_floor, flush",
    "settled": "acked, durable, synced",
    "settling": "see settle",
    "strangers": "unknown, unread",
    "tell": "notify, report, warn, show",
    "told": "notified, reported, output, answer",
    "waist": "interface",
}
"""Words of a name (parts between underscores and capitals) → what to write instead."""

ALLOWED = {
    "ProducerSettleRequest",  # the API call is PRODUCER.SETTLE
    "DeadLetter",
    "tell",  # of a file
    "letter",  # one character
}
BANNED_IN_PROSE = re.compile(
    r"\b(unburied|picky|hand(?:s|ed)? round|manners|the waist|hopeless|the source document|patience)\b",
    re.IGNORECASE,
)
BANNED_IN_PRODUCT = re.compile(r"\b(told|tells|unsettled)\b", re.IGNORECASE)
"""In what ships and in the documents; tests may say it. Records of decisions and of changes stay as they were written."""
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_RUST_CODE = re.compile(
    r"""(?://[^\n]*)|(?:r#".*?"#)|(?:b?'(?:\\.|[^'\\])')|(?:b?"(?:\\.|[^"\\])*")|([A-Za-z_]\w*)""", re.DOTALL
)


_WORD = re.compile(r"[^\W\d]\w*")


def names_in(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of every identifier."""
    if path.suffix == ".rs":
        for found in _RUST_CODE.finditer(text):
            if found[1]:
                yield text.count("\n", 0, found.start()) + 1, found[1]
    else:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string


@cache
def dialect_of(name: str) -> str | None:
    """The banned word in a name."""
    if name in ALLOWED:
        return None
    return next((part for part in map(str.lower, _PARTS.findall(name)) if part in BANNED_IN_NAMES), None)


def test_names_are_words_of_the_field() -> None:
    found: list[str] = []
    for path, text in tree.text_files():
        # To leave out comments and strings takes seconds: only where one of the words is in the file at all.
        if path.suffix in {".py", ".pyi", ".rs"} and any(map(dialect_of, set(_WORD.findall(text)))):
            found += [
                f"{tree.short(path)}:{line}: {name}: write {BANNED_IN_NAMES[word]}"
                for line, name in names_in(path, text)
                if (word := dialect_of(name)) is not None
            ]
    assert not found, "\n".join(found)


def test_the_words_are_found() -> None:
    assert dialect_of("what_was_asked") == "asked" and dialect_of("RoomLimits") == "room"
    assert dialect_of("TOLD_MAX") == "told" and dialect_of("settle_all") == "settle"
    assert (
        dialect_of("masked_crc") is None
        and dialect_of("mushroom") is None
        and dialect_of("intellect") is None
    )


def test_prose_is_plain() -> None:
    found = [
        f"{tree.short(path)}:{number}: {line.strip()}"
        for path, text in tree.text_files()
        if path != Path(__file__).resolve() and path.suffix in {".py", ".pyi", ".rs", ".md"}
        for number, line in enumerate(text.splitlines(), 1)
        if BANNED_IN_PROSE.search(line)
    ]
    assert not found, "\n".join(found)


def test_prose_of_the_product_is_plain() -> None:
    product = [tree.SRC, tree.RUST / "core" / "src", tree.RUST / "python" / "src", tree.ROOT / "docs"]
    found = [
        f"{tree.short(path)}:{number}: {line.strip()}"
        for path, text in tree.text_files()
        if path.suffix in {".py", ".pyi", ".rs", ".md"} and path.parent.name != "adr"
        if any(top in path.parents for top in product)
        for number, line in enumerate(text.splitlines(), 1)
        if BANNED_IN_PRODUCT.search(line)
    ]
    assert not found, "say what happens: reports, answers, shows, notifies\n" + "\n".join(found)


# One name, one thing

PRODUCTS = {"jetstream", "nats_streaming", "kafka", "rabbitmq", "rocketmq", "parquet"}


def test_no_two_classes_share_a_name() -> None:
    """But for classes of two products that implement the same interface under its name."""
    homes: defaultdict[str, list[Path]] = defaultdict(list)
    for path in tree.python_files():
        for node in tree.syntax(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path)
    shared = {
        name: [tree.short(path) for path in paths]
        for name, paths in homes.items()
        if len(paths) > 1 and not all(PRODUCTS & set(path.parts) for path in paths)
    }
    same_product = {
        name: [tree.short(path) for path in paths]
        for name, paths in homes.items()
        if len({tuple(PRODUCTS & set(path.parts)) for path in paths}) < len(paths)
    }
    assert not shared | same_product, "\n".join(
        f"{name}: {', '.join(paths)}" for name, paths in (shared | same_product).items()
    )
