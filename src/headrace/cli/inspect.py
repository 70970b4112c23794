"""`headrace inspect`: what is this directory? With a picture of the blocks on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Directory, Json, Key, KeyFile, Stream, read_key
from headrace.units import format_size, format_time_ns

if TYPE_CHECKING:
    from headrace.cli.screen import Screen
    from headrace.ops.inspect import BlockRow, StoreView, StreamView

BLOCKS_SHOWN_MAX = 40
_ENDS = 8
_DEFAULTS = {"retention": "limits", "discard": "old", "compression": "none", "num_replicas": 1}
_SHOWN = ("retention", "discard", "compression", "num_replicas", "max_msgs", "max_bytes", "max_age")
_SHOWN_MORE = ("max_msgs_per_subject", "max_msg_size", "mirror", "sources", "sealed", "allow_msg_ttl")


def inspect(
    directory: Directory,
    stream: Stream = None,
    key: Key = None,
    key_file: KeyFile = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not read the blocks: no overhead, no damage in messages.")
    ] = False,
    all_blocks: Annotated[bool, typer.Option("--all-blocks", help="Show every block, however many.")] = False,
    as_json: Json = False,
) -> int:
    """Say what a directory is: product, era, streams, blocks, sizes, consumers, damage. Changes nothing.

    Exit code 0: no damage was seen. 1: damage was found. 2: it is no store, or could not be read.
    """
    from headrace.cli.screen import Screen, print_json, progress, warn
    from headrace.cli.volumes import show_inspection
    from headrace.ops.inspect import inspect as run
    from headrace.ops.plan import room_at
    from headrace.ops.volumes import inspect_volume

    secret = read_key(key, key_file)
    room = room_at(directory)
    if room is not None:
        with progress("reading") as tell:
            report = inspect_volume(room, directory, log=stream, key=secret, quick=quick, progress=tell)
        return show_inspection(report, as_json, all_blocks)
    with progress("reading") as tell:
        view = run(directory, stream=stream, key=secret, quick=quick, progress=tell)
    code = 2 if view.problems else 1 if view.damage else 0
    if view.problems:
        warn(f"not everything could be read: {view.problems[0]}")
    if as_json:
        print_json(view.to_dict())
        return code
    screen = Screen()
    _show_store(screen, view)
    for each in view.streams:
        screen.line()
        _show_stream(screen, each, all_blocks)
    return code


def _show_store(screen: Screen, view: StoreView) -> None:
    from headrace.cli.screen import plural

    messages = sum(each.state.messages for each in view.streams if each.state is not None)
    size = sum(block.file_bytes for each in view.streams for block in each.blocks)
    screen.parts((view.path, "bold"), (f"  {view.product} store", None))
    screen.line(
        f"  {plural(len(view.streams), 'stream')}, {plural(messages, 'message')}, {format_size(size)} of blocks"
    )
    if view.writer:
        screen.line(f"  open for writing now by {view.writer}", "yellow")
    if not view.complete:
        screen.line("  a quick look: the blocks were not read; verify checks every byte", "dim")


def _show_stream(screen: Screen, view: StreamView, all_blocks: bool) -> None:
    from headrace.cli.screen import plural

    flags = [
        word
        for word, on in (("encrypted", view.encrypted), ("written by Headrace", view.headrace_has_written))
        if on
    ]
    screen.parts(
        (view.name, "bold"), (f"  files of {view.written_by}{''.join(f', {flag}' for flag in flags)}", None)
    )
    if view.config is not None:
        screen.line(f"  subjects   {', '.join(view.config.get('subjects', [])) or 'none'}")
        screen.line(f"  config     {_config_line(view)}, created {format_time_ns(view.created_ns)}")
    state = view.state
    if state is not None:
        times = ""
        if state.messages:
            times = f", {format_time_ns(state.first_time_ns)} to {format_time_ns(state.last_time_ns)}"
        screen.line(
            f"  messages   {state.messages:,} on {plural(state.num_subjects, 'subject')}, "
            f"sequences {state.first_seq}..{state.last_seq}, {state.num_deleted:,} removed between{times}"
        )
    cost = view.overhead
    if cost is not None and cost.messages:
        screen.line(
            f"  overhead   {format_size(cost.record_bytes)} of records hold {format_size(cost.payload_bytes)} of payload: "
            f"{cost.per_message:.1f} bytes more per message; {format_size(cost.file_bytes)} on disk"
        )
    _show_blocks(screen, view.blocks, all_blocks)
    for each in view.consumers:
        doubt = ", in doubt" if each.doubtful else ""
        screen.line(
            f"  consumer   {each.name}: delivered {each.delivered}, ack floor {each.ack_floor}, "
            f"{each.pending:,} pending, {each.redelivered:,} redelivered (acks: {each.ack_policy}){doubt}"
        )
    if view.sidecars:
        total = sum(view.sidecars.values())
        screen.line(
            f"  sidecars   {plural(len(view.sidecars), 'file')} in headrace/, {format_size(total)}", "dim"
        )
    for note in view.notes:
        screen.line(f"  note       {note}", "dim")
    for problem in view.problems:
        screen.line(f"  could not be read: {problem}", "red")
    if view.damage:
        screen.line(f"  {plural(len(view.damage), 'finding')}", "bold red")
        screen.damage(view.damage)


def _config_line(view: StreamView) -> str:
    config = view.config or {}
    words: list[str] = []
    for name in (*_SHOWN, *_SHOWN_MORE):
        value = config.get(name)
        if name == "retention" or value not in (None, "", 0, -1, False, [], {}, _DEFAULTS.get(name)):
            words.append(f"{name} {_readable(name, value)}")
    return ", ".join(words)


def _readable(name: str, value: object) -> str:
    if name == "max_age" and isinstance(value, int):
        return f"{value / 1e9:g} s"
    if name == "max_bytes" and isinstance(value, int):
        return format_size(value)
    if isinstance(value, dict):
        return str(value.get("name", "yes"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return str(len(value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType]


def _show_blocks(screen: Screen, rows: list[BlockRow], all_blocks: bool) -> None:
    largest = max((row.file_bytes for row in rows), default=0)
    shown = rows
    if len(rows) > BLOCKS_SHOWN_MAX and not all_blocks:
        shown = [row for at, row in enumerate(rows) if at < _ENDS or at >= len(rows) - _ENDS or row.damage]
    before = 0
    for row in shown:
        at = rows.index(row, before)
        if at > before:
            screen.line(f"             … {at - before:,} more blocks (--all-blocks shows them) …", "dim")
        before = at + 1
        _show_block(screen, row, largest)


def _show_block(screen: Screen, row: BlockRow, largest: int) -> None:
    size = row.plain_bytes or row.file_bytes
    live = min(1.0, row.live_bytes / size) if size else 0.0
    words = [
        word
        for word, on in (("packed", row.packed), ("encrypted", row.encrypted), ("newest", row.newest))
        if on
    ]
    words += [each.kind for each in row.damage[:3]]
    sequences = f"{row.first_seq}..{row.last_seq}" if row.live_messages else "no messages"
    picture: list[tuple[str, str | None]] = []
    if screen.is_terminal:
        spans = (
            [(each.offset / size, (each.offset + each.length) / size) for each in row.damage] if size else []
        )
        picture = [*screen.bar(row.file_bytes, largest, live, spans), ("  ", None)]
    screen.parts(
        (f"  block {row.number:>4} ", None),
        *picture,
        (
            f"{format_size(row.file_bytes):>10}  live {live:>4.0%}  {row.live_messages:>9,} messages  {sequences}",
            None,
        ),
        (f"  {', '.join(words)}" if words else "", "red" if row.damage else "dim"),
    )
