"""What is wrong with a text that is not JSON, in the words that clients of the real server see.

    split_values(b'{"a":1} {}')   → [b'{"a":1}', b'{}']        a request may hold several values
    split_values(b'{"a":}')       → Malformed("invalid character '}' looking for beginning of value at offset 6")

Only used after the fast decoder has refused the text.
"""

from __future__ import annotations

_SPACE = b" \t\r\n"
_DIGITS = b"0123456789"
_HEX = b"0123456789abcdefABCDEF"
_LITERALS = {b"t": b"true", b"f": b"false", b"n": b"null"}
_SHORT_ESCAPES = {
    "\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\\": r"\\",
}  # fmt: skip
_NESTING_MAX = 10_000


class Malformed(Exception):
    """The text ends too early or has a character where it must not be."""


class _Scanner:
    """One pass over the text. `at` is the position of the next byte to look at."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0

    def peek(self) -> bytes:
        if self.at >= len(self.text):
            raise Malformed("unexpected EOF")
        return self.text[self.at : self.at + 1]

    def space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in _SPACE:
            self.at += 1

    def wrong(self, context: str) -> Malformed:
        return Malformed(f"invalid character {_quoted(self.peek())} {context} at offset {self.at + 1}")

    def value(self) -> None:
        """Skip one value. Containers are kept on a list of ours, so that depth costs no stack."""
        open_containers: list[bytes] = []
        while True:
            self.space()
            first = self.peek()
            if first in b"{[":
                self.at += 1
                self.space()
                if len(open_containers) >= _NESTING_MAX:
                    raise Malformed("exceeded max depth")
                open_containers.append(first)
                if self.peek() != (b"}" if first == b"{" else b"]"):
                    if first == b"{":
                        self.key()
                    continue
            else:
                self.scalar(first)
            if not self.close(open_containers):
                return

    def close(self, open_containers: list[bytes]) -> bool:
        """After a value: go on to the next one of the container, or end containers. False at the very end."""
        while open_containers:
            self.space()
            kind, sign = open_containers[-1], self.peek()
            if sign == b",":
                self.at += 1
                if kind == b"{":
                    self.space()
                    self.key()
                return True
            if sign != (b"}" if kind == b"{" else b"]"):
                raise self.wrong("after object key:value pair" if kind == b"{" else "after array element")
            self.at += 1
            open_containers.pop()
        return False

    def key(self) -> None:
        if self.peek() != b'"':
            raise self.wrong("looking for beginning of object key string")
        self.string()
        self.space()
        if self.peek() != b":":
            raise self.wrong("after object key")
        self.at += 1

    def scalar(self, first: bytes) -> None:
        if first == b'"':
            self.string()
        elif first in _LITERALS:
            self.literal(_LITERALS[first])
        elif first == b"-" or first in _DIGITS:
            self.number()
        else:
            raise self.wrong("looking for beginning of value")

    def literal(self, word: bytes) -> None:
        for number in range(1, len(word)):
            self.at += 1
            wanted = word[number : number + 1]
            if self.peek() != wanted:
                raise self.wrong(f"in literal {word.decode()} (expecting '{wanted.decode()}')")
        self.at += 1

    def string(self) -> None:
        self.at += 1
        while (sign := self.peek()) != b'"':
            if sign < b" ":
                raise self.wrong("in string literal")
            self.at += 1
            if sign == b"\\":
                escape = self.peek()
                if escape not in b'"\\/bfnrtu':
                    raise self.wrong("in string escape code")
                self.at += 1
                for _ in range(4 if escape == b"u" else 0):
                    if self.peek() not in _HEX:
                        raise self.wrong("in \\u hexadecimal character escape")
                    self.at += 1
        self.at += 1

    def number(self) -> None:
        if self.peek() == b"-":
            self.at += 1
            if self.peek() not in _DIGITS:
                raise self.wrong("in numeric literal")
        if self.peek() == b"0":
            self.at += 1
        else:
            self.digits("in numeric literal")
        if self.text[self.at : self.at + 1] == b".":
            self.at += 1
            self.digits("after decimal point in numeric literal")
        if self.text[self.at : self.at + 1] in (b"e", b"E"):
            self.at += 1
            if self.peek() in b"+-":
                self.at += 1
            self.digits("in exponent of numeric literal")

    def digits(self, context: str) -> None:
        if self.peek() not in _DIGITS:
            raise self.wrong(context)
        while self.at < len(self.text) and self.text[self.at] in _DIGITS:
            self.at += 1


def split_values(text: bytes) -> list[bytes]:
    """The values of the text, one after the other; Malformed if something else is there."""
    scanner, values = _Scanner(text), list[bytes]()
    while True:
        scanner.space()
        if scanner.at >= len(text):
            return values
        begin = scanner.at
        scanner.value()
        values.append(text[begin : scanner.at])


def one_value(text: bytes) -> list[bytes]:
    """The same where exactly one value is allowed and an offset is not told."""
    scanner = _Scanner(text)
    try:
        scanner.space()
        scanner.value()
        scanner.space()
        if scanner.at < len(text):
            raise scanner.wrong("after top-level value")
    except Malformed as problem:
        told = str(problem).rpartition(" at offset ")[0] or "unexpected end of JSON input"
        raise Malformed(told) from problem
    return [text.strip(_SPACE)]


def _quoted(sign: bytes) -> str:
    if sign == b"'":
        return r"'\''"
    letter = sign.decode("latin-1")
    short = _SHORT_ESCAPES.get(letter)
    if short is not None:
        return f"'{short}'"
    return f"'{letter}'" if letter.isprintable() else rf"'\x{sign[0]:02x}'"
