"""Write the generated pages of docs/reference: the command line and the exceptions, from the code itself.

python scripts/reference.py            write them
python scripts/reference.py --check    exit 1 if one of them has drifted
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `make docs`; a test compares it with the code. -->"


def errors_page() -> str:
    """The exception tree of `headrace.errors`."""
    from headrace import errors

    tree = (errors.__doc__ or "").split("\n\n", 1)[1].rstrip()
    rows = [
        f"| `{name}` | {', '.join(f'`{base.__name__}`' for base in found.__bases__)} | {first_line(found)} |"
        for name, found in vars(errors).items()
        if inspect.isclass(found) and issubclass(found, errors.HeadraceError)
    ]
    return "\n".join(
        [
            "# Exceptions",
            "",
            NOTE,
            "",
            "```text",
            tree,
            "```",
            "",
            "| class | is a | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def cli_page() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    from typer.main import get_command

    from headrace.cli.main import app

    lines = ["# Command line", "", NOTE, "", "Exit codes: [exit-codes.md](exit-codes.md).", ""]
    root = get_command(app)
    for name, command in commands("headrace", root):
        lines += [f"## `{name}`", "", *paragraphs(command.help), ""]
        rows = [
            parameter_row(parameter)
            for parameter in command.params
            if not getattr(parameter, "hidden", False)
        ]
        if rows:
            lines += ["| argument or option | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command and, depth first, those below it."""
    yield name, command
    for child_name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from commands(f"{name} {child_name}", child)


def paragraphs(text: str | None) -> list[str]:
    return inspect.cleandoc(text or "").replace("\b", "").splitlines()


def parameter_row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = (
        [*parameter.opts, *parameter.secondary_opts]
        if is_option
        else [(parameter.metavar or parameter.name).upper()]
    )
    label = ", ".join(f"`{name}`" for name in names)
    meaning = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    default = parameter.default
    shown = (
        f" Default: `{default}`."
        if isinstance(default, str | int | float) and default not in ("", False)
        else ""
    )
    return f"| {label} | {meaning}{shown} |"


def first_line(found: type) -> str:
    return (inspect.getdoc(found) or "").splitlines()[0]


PAGES = {"errors.md": errors_page, "cli.md": cli_page}


def main() -> int:
    drifted: list[str] = []
    for name, page in PAGES.items():
        path, text = REFERENCE / name, page()
        if not path.exists() or path.read_text() != text:
            drifted.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
                print(f"docs/reference/{name} written")
    if "--check" in sys.argv and drifted:
        print(f"docs/reference: {', '.join(drifted)} differ from the code; run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
