"""nats-server's config language → a tree of `Node`, each with the file and line where it was written.

    port: 4222                      # key, then `:`, `=` or nothing, then a value; comments are `#` and `//`
    max_payload = 8MB               # k, m, g, t count in thousands, kb, mb, … and ki, mib, … in 1024s
    authorization { user: a, password: $PASS }      # $NAME: a key above (inner maps first), else the environment
    users [ {user: "x"}, {user: 'y'} ]              # entries end with a line, `,` or `;`
    include ./accounts.conf         # merged into the map where it stands; relative to this file
    text (                          # everything up to a line with `)`
      as it is
    )

A whole file may also be one map in braces, so JSON is read too. Everything that a file can ask for has a limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.server.config.problems import ConfigError, ConfigPosition

TEXT_BYTES_MAX = 8 << 20  # over all included files
NESTING_MAX = 64
INCLUDES_MAX = 16  # how deep
VARIABLES_MAX = 16  # how deep one environment variable may lead to the next

_SPACE = re.compile(r"(?:[ \t\r\n\v\f]+|#[^\n]*|//[^\n]*)+")
_BLANK = re.compile(r"[ \t\r]*")
_KEY = re.compile(r"[^\s:={}\[\](),;\"']+")
_NO_VALUE = re.compile(r"[}\],;]|[:=](?=\s|$)|$(?![\r\n])")  # `listen: :4222` has one
_WORD = re.compile(r"(?:[^\s,;\]}\\]|\\.)+")
_NUMBER = re.compile(r"(-?\d+)([kmgtpe](?:i?b|i)?)?", re.IGNORECASE)
_FLOAT = re.compile(r"-?\d+\.\d+(?:[eE][+-]?\d+)?")
_BCRYPT = re.compile(r"\$2[abxy]\$")
_VARIABLE = re.compile(r"\$([^\s,;\]}]+)")
_BLOCK_END = re.compile(r"\n[ \t]*\)[ \t]*(?=[\r\n]|$)")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_TRUE, _FALSE = {"true", "yes", "on"}, {"false", "no", "off"}
_POWERS = "kmgtpe"

Value = str | int | float | bool | dict[str, "Node"] | list["Node"]


@dataclass(slots=True)
class Node:
    """A value, and where its key (or the value itself, in an array) stands. `raw`: an unquoted word as written."""

    value: Value
    place: ConfigPosition
    raw: str | None = None
    is_variable: bool = False  # somebody referred to it, so it need not be an option of the server


Entries = dict[str, Node]


@dataclass
class _Reading:
    """What one read has in common over all its files: where files and variables come from, and what was used."""

    environment: Mapping[str, str]
    bytes_left: int = TEXT_BYTES_MAX
    chain: list[Path] = field(default_factory=list[Path])

    def take(self, path: Path, by: ConfigPosition | None) -> str:
        try:
            with path.open("rb") as file:
                raw = file.read(self.bytes_left + 1)
        except OSError as error:
            raise ConfigError.at(
                by or ConfigPosition(str(path)), f"cannot read {path}: {error.strerror}"
            ) from error
        if len(raw) > self.bytes_left:
            raise ConfigError.at(
                ConfigPosition(str(path)),
                f"more than {TEXT_BYTES_MAX >> 20} MiB of configuration; is this the right file?",
            )
        self.bytes_left -= len(raw)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise ConfigError.at(ConfigPosition(str(path), line), "not UTF-8 text") from error


def read_file(path: Path, environment: Mapping[str, str] = os.environ) -> Entries:
    """The tree of a file and all that it includes. ConfigError says what cannot be read, with file and line."""
    return _read(_Reading(environment), path, None, [])


def read_text(text: str, name: str = "text", environment: Mapping[str, str] = os.environ) -> Entries:
    """The tree of a text; includes are relative to the current directory."""
    return _Parser(_Reading(environment), text, name, Path(), []).whole()


def _read(reading: _Reading, path: Path, by: ConfigPosition | None, scopes: list[Entries]) -> Entries:
    real = path.resolve()
    if real in reading.chain:
        names = " → ".join(link.name for link in [*reading.chain, real])
        raise ConfigError.at(
            by or ConfigPosition(str(path)), f"files include each other in a circle: {names}"
        )
    if len(reading.chain) >= INCLUDES_MAX:
        raise ConfigError.at(
            by or ConfigPosition(str(path)), f"includes are nested more than {INCLUDES_MAX} deep"
        )
    text = reading.take(path, by)
    reading.chain.append(real)
    try:
        return _Parser(reading, text, str(path), path.parent, scopes).whole()
    finally:
        reading.chain.pop()


class _Parser:
    """One text, read from left to right. `scopes` are the maps around the present one, for variables."""

    def __init__(
        self, reading: _Reading, text: str, name: str, folder: Path, scopes: list[Entries], leads: int = 0
    ) -> None:
        self._reading, self._text, self._name, self._folder = reading, text, name, folder
        self._scopes = list(scopes)
        self._leads = leads
        self._at = 0
        self._lines_at, self._lines = 0, 1
        self._nesting = 0

    def whole(self) -> Entries:
        self._skip()
        if not self._peek("{"):
            return self._entries("")
        entries = self._map()
        self._skip()
        if self._at < len(self._text):
            raise self._wrong(f"nothing may follow the closing brace, found {self._found()}")
        return entries

    # Words

    def _place(self, at: int | None = None) -> ConfigPosition:
        at = self._at if at is None else at
        if at >= self._lines_at:
            self._lines += self._text.count("\n", self._lines_at, at)
            self._lines_at = at
            return ConfigPosition(self._name, self._lines)
        return ConfigPosition(self._name, self._text.count("\n", 0, at) + 1)

    def _wrong(self, text: str, at: int | None = None) -> ConfigError:
        return ConfigError.at(self._place(at), text)

    def _found(self) -> str:
        rest = self._text[self._at : self._at + 20].split("\n", 1)[0]
        return (
            repr(rest)
            if rest
            else "the end of the file"
            if self._at >= len(self._text)
            else "the end of the line"
        )

    def _skip(self) -> None:
        if match := _SPACE.match(self._text, self._at):
            self._at = match.end()

    def _peek(self, mark: str) -> bool:
        return self._text.startswith(mark, self._at)

    def _accept(self, marks: str) -> bool:
        if self._at < len(self._text) and self._text[self._at] in marks:
            self._at += 1
            return True
        return False

    def _deeper(self) -> None:
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise self._wrong(f"maps and arrays are nested more than {NESTING_MAX} deep")

    # Maps and arrays

    def _map(self) -> Entries:
        self._at += 1
        self._deeper()
        entries = self._entries("}")
        self._nesting -= 1
        return entries

    def _entries(self, end: str) -> Entries:
        entries: Entries = {}
        self._scopes.append(entries)
        opened = self._at
        while True:
            self._skip()
            if self._accept(",;"):
                continue
            if self._at >= len(self._text):
                if end:
                    raise self._wrong("this brace is never closed", max(opened - 1, 0))
                break
            if end and self._accept(end):
                break
            self._entry(entries)
        self._scopes.pop()
        return entries

    def _entry(self, entries: Entries) -> None:
        place = self._place()
        quoted = self._text[self._at] in "\"'"
        if quoted:
            key = self._quoted()
        else:
            match = _KEY.match(self._text, self._at)
            if match is None:
                raise self._wrong(f"expected a key, found {self._found()}")
            key, self._at = match[0], match.end()
        blanks = _BLANK.match(self._text, self._at)
        assert blanks is not None
        if (
            not quoted
            and key.lower() == "include"
            and self._text[blanks.end() : blanks.end() + 1] not in (":", "=")
        ):
            self._at = blanks.end()
            self._include(entries, place)
            return
        self._skip()
        self._accept(":=")
        self._skip()
        if _NO_VALUE.match(self._text, self._at):
            raise self._wrong(f"{key!r} has no value, found {self._found()}")
        node = self._value(place)
        self._end_of_value(key)
        entries[key] = node

    def _end_of_value(self, what: str) -> None:
        before = self._at
        self._skip()
        at_line_end = "\n" in self._text[before : self._at] or self._at >= len(self._text)
        if not at_line_end and self._text[self._at] not in ",;}]":
            raise self._wrong(
                f"after the value of {what!r} a new line, `,` or `;` is expected, found {self._found()}"
            )

    def _include(self, entries: Entries, place: ConfigPosition) -> None:
        if self._at >= len(self._text) or self._text[self._at] in "\r\n#":
            raise self._wrong("include names no file")
        if self._text[self._at] in "\"'":
            name = self._quoted()
        else:
            match = _WORD.match(self._text, self._at)
            if match is None:
                raise self._wrong(f"include names no file, found {self._found()}")
            name, self._at = match[0], match.end()
        entries.update(_read(self._reading, self._folder / name, place, self._scopes))
        self._end_of_value("include")

    def _array(self) -> list[Node]:
        opened, items = self._at, list[Node]()
        self._at += 1
        self._deeper()
        while True:
            self._skip()
            if self._accept(",;"):
                continue
            if self._at >= len(self._text):
                raise self._wrong("this bracket is never closed", opened)
            if self._accept("]"):
                break
            items.append(self._value(self._place()))
            self._end_of_value("an array's entry")
        self._nesting -= 1
        return items

    # Values

    def _value(self, place: ConfigPosition) -> Node:
        mark = self._text[self._at]
        if mark == "{":
            return Node(self._map(), place)
        if mark == "[":
            return Node(self._array(), place)
        if mark in "\"'":
            return Node(self._quoted(), place)
        if mark == "(":
            return Node(self._block(), place)
        match = _WORD.match(self._text, self._at)
        if match is None:
            raise self._wrong(f"expected a value, found {self._found()}")
        word, at = match[0], self._at
        self._at = match.end()
        if (variable := _VARIABLE.fullmatch(word)) and not _BCRYPT.match(word):
            return self._variable(variable[1], place)
        return Node(self._plain(word, at), place, word)

    def _quoted(self) -> str:
        """'…' as it is; "…" with escapes. Both may span lines."""
        opened, mark = self._at, self._text[self._at]
        end = opened + 1
        while (end := self._text.find(mark, end)) >= 0 and mark == '"' and self._is_escaped(opened + 1, end):
            end += 1
        if end < 0:
            raise self._wrong(f"this {mark} is never closed")
        text = self._text[opened + 1 : end]
        self._at = end + 1
        return self._unescaped(text, opened + 1) if mark == '"' else text

    def _is_escaped(self, begin: int, at: int) -> bool:
        slashes = 0
        while at - slashes > begin and self._text[at - slashes - 1] == "\\":
            slashes += 1
        return slashes % 2 == 1

    def _unescaped(self, text: str, at: int) -> str:
        def meaning(match: re.Match[str]) -> str:
            letter = match[1]
            if letter[0] == "x" and len(letter) == 3:
                return chr(int(letter[1:], 16))
            if letter not in _ESCAPES:
                raise self._wrong(
                    f'\\{letter} is no escape; there are \\t \\n \\r \\" \\\\ and \\xHH', at + match.start()
                )
            return _ESCAPES[letter]

        return _ESCAPE.sub(meaning, text) if "\\" in text else text

    def _block(self) -> str:
        match = _BLOCK_END.search(self._text, self._at)
        if match is None:
            raise self._wrong("this ( … ) block is never closed by a line with `)`")
        text = self._text[self._at + 1 : match.start() + 1]
        self._at = match.end()
        return text

    def _plain(self, word: str, at: int) -> str | int | float | bool:
        """An unquoted word: a number, a yes or no, or a text."""
        if number := _NUMBER.fullmatch(word):
            count, suffix = int(number[1]), (number[2] or "").lower()
            if not suffix:
                return count
            return count * (1000 if len(suffix) == 1 else 1024) ** (_POWERS.index(suffix[0]) + 1)
        if _FLOAT.fullmatch(word):
            return float(word)
        lower = word.lower()
        if lower in _TRUE or lower in _FALSE:
            return lower in _TRUE
        return self._unescaped(word, at)

    def _variable(self, name: str, place: ConfigPosition) -> Node:
        for scope in reversed(self._scopes):
            if found := scope.get(name):
                found.is_variable = True
                return Node(found.value, place, found.raw)
        given = self._reading.environment.get(name)
        if given is None:
            raise ConfigError.at(place, f"${name} is neither a key above nor a variable of the environment")
        if self._leads >= VARIABLES_MAX:
            raise ConfigError.at(place, f"the environment variable {name} leads to itself")
        inner = _Parser(self._reading, given, f"{place} (${name})", self._folder, [], self._leads + 1)
        return inner.lone_value(place)

    def lone_value(self, place: ConfigPosition) -> Node:
        """An environment variable's content as a value; a text that is more than one word is taken whole."""
        text = self._text.strip()
        if text and text[0] in "{[\"'($":
            self._skip()
            node = self._value(place)
            self._skip()
            if self._at < len(self._text):
                raise self._wrong(f"expected one value, found {self._found()} behind it")
            return node
        return Node(self._plain(text, 0) if _WORD.fullmatch(text) else self._text, place, text)
