"""`headrace store open`: open a directory for writing with its product's options, report, close."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headrace.cli.options import Directory, Json, Key, KeyFile, read_key
from headrace.errors import BadInput

if TYPE_CHECKING:
    from headrace.layouts.base import Durability

app = typer.Typer(
    help="Open directories of brokers with their own options.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("open", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def open_(
    context: typer.Context,
    directory: Directory,
    layout: Annotated[
        str | None,
        typer.Option("--layout", help="nats_streaming, kafka or rabbitmq; needed with --create."),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make a new store where there is none.")] = False,
    durability: Annotated[
        str, typer.Option("--durability", help="sync: confirmed means on disk. interval: the product's way.")
    ] = "sync",
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Options: JSON, TOML or name = value lines; for nats_streaming also the server's own file.",
        ),
    ] = None,
    key: Key = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> int:
    """Open for writing (recovering what a crash left), apply the options, report, close.

    Every option of the product is a flag under its own name: --log.segment.bytes 1000000, --max_msgs=1000.

    Exit code 0: opened. 1: opened, and damage was found. 2: could not.
    """
    from headrace.cli.screen import Screen, print_json
    from headrace.ops.store import open_store
    from headrace.units import plural

    given = (_from_file(config, layout, directory) if config is not None else {}) | _flags(context.args)
    report = open_store(
        directory,
        layout=layout,
        create=create,
        durability=cast("Durability", durability),
        options=given,
        key=read_key(key, key_file),
    )
    code = 1 if report.damage else 0
    if as_json:
        print_json(report.to_dict())
        return code
    screen = Screen()
    screen.parts((report.path, "bold"), (f"  {report.product}, opened and closed", None))
    for name, value in report.options.items():
        mark = "  (given)" if name in report.changed else ""
        screen.line(f"  {name} = {value}{mark}", None if mark else "dim")
    for log in report.logs:
        state = log.state
        screen.parts(
            (f"  {log.name}", "bold"),
            (f"  {plural(state.messages, 'message')}, {state.first_seq}..{state.last_seq}", None),
        )
    if report.damage:
        screen.line(f"  {plural(len(report.damage), 'finding')}", "bold red")
        screen.damage(report.damage)
    return code


def _from_file(path: str, layout: str | None, directory: str) -> dict[str, Any]:
    """Options from a file; NATS Streaming's own configuration file is known by its braces."""
    from headrace.cli.screen import warn
    from headrace.layouts.registry import detect, layout_named
    from headrace.ops.store import read_options

    where = layout_named(layout or detect(directory)) if layout or Path(directory).exists() else None
    if where is None or not where.has_server_config or path.endswith((".json", ".toml")):
        return read_options(path)
    try:
        if "{" not in Path(path).read_text():
            return read_options(path)
    except (OSError, UnicodeDecodeError):
        return read_options(path)  # which says what is wrong
    from headrace.server.config.text import read_file

    found = where.read_server_config(_values(read_file(Path(path))))
    assert found is not None
    if found.passed_over:
        warn(f"{path}: not of the store, passed over: {', '.join(found.passed_over)}")
    return found.options.changed()


def _values(node: Any) -> Any:
    """A tree of the configuration's reader without its places."""
    value: Any = getattr(node, "value", node)
    if isinstance(value, dict):
        return {name: _values(each) for name, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return [_values(each) for each in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


def _flags(arguments: list[str]) -> dict[str, str]:
    """`--name value`, `--name=value`, and `--name` alone for true."""
    found: dict[str, str] = {}
    at = 0
    while at < len(arguments):
        flag = arguments[at]
        if not flag.startswith("--") or len(flag) < 3:
            raise BadInput(f"{flag!r}: options are written --name value")
        name, equals, value = flag[2:].partition("=")
        at += 1
        if not equals:
            value = "true"
            if at < len(arguments) and not arguments[at].startswith("--"):
                value = arguments[at]
                at += 1
        found[name] = value
    return found
