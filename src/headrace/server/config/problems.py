"""One sentence per thing that is wrong with a configuration, with the file and line where it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import BadInput


@dataclass(frozen=True)
class ConfigPosition:
    """Where a word of the configuration stands; `file` may also be a flag or an environment variable."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class ConfigError(BadInput):
    """The configuration cannot be used. `problems` has one readable line each: `file:line: what is wrong`."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))

    @classmethod
    def at(cls, place: ConfigPosition, text: str) -> ConfigError:
        return cls([f"{place}: {text}"])
