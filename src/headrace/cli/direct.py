"""Call a command without building the whole command line: a server should be there at once.

Typer makes every command with every parameter, and validators for them, before the first one runs: a third of a second
here. Words that are plainly flags of the command, with values of the right kind, need none of that. For everything else
(`--help`, a flag that is unknown, a value that does not fit) the answer is None, and the full command line says it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from typer.models import OptionInfo

_KINDS: dict[Any, Callable[[str], Any]] = {str: str, int: int, float: float}


def direct(command: Callable[..., int], words: Sequence[str]) -> Mapping[str, Any] | None:
    """The keywords that call `command` as the words say; None where that is not plain."""
    takes_value: dict[str, tuple[str, Callable[[str], Any], bool]] = {}
    switches: dict[str, tuple[str, bool]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind, option, *_ = get_args(parameter.annotation)
        if not isinstance(option, OptionInfo) or option.callback is not None or option.is_eager:
            continue
        inner = [each for each in get_args(kind) if each is not type(None)] or [kind]
        many = bool(get_args(inner[0]))
        bare = get_args(inner[0])[0] if many else inner[0]
        # Inside Annotated, Typer takes the first name for the default.
        for spelled in (option.default, *(option.param_decls or ())):
            on, _, off = str(spelled).partition("/")
            if bare is bool:
                switches[on] = (name, True)
                if off:
                    switches[off] = (name, False)
            elif bare in _KINDS:
                takes_value[on] = (name, _KINDS[bare], many)
    found: dict[str, Any] = {}
    for word in words:
        flag, equals, value = word.partition("=")
        if not equals and flag in switches:
            name, state = switches[flag]
            found[name] = state
        elif equals and flag in takes_value:
            name, read, many = takes_value[flag]
            try:
                given = read(value)
            except ValueError:
                return None
            found[name] = [*found.get(name, []), given] if many else given
        else:
            return None
    return found
