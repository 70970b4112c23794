"""Where streams live when nobody said so: a folder of the user's data directory for each server.

    <data>/headrace/<name>       a server with a name
    <data>/headrace/default      the first server without one; `default.port` beside it says whose port it is
    <data>/headrace/port-4224    one on another port, so that two servers do not want the same folder
    <data>/headrace/any-port     one that takes any free port; those that run beside it count on: any-port-2 …

Never a temporary folder: who acknowledges durably keeps the messages where a restart finds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from headrace.server.config.options import PORT_DEFAULT, ServerOptions
from headrace.server.config.problems import ConfigError

UNNAMED = "default"
ANY_PORT = "any-port"
ANY_PORT_MAX = 64


def store_dirs(options: ServerOptions, environment: Mapping[str, str]) -> list[Path]:
    """The directory that was given, or folders of the user's data directory: the first that no other server has open.

    Before there was one folder for each port all servers without a name used `default`: who finds it without an owner
    takes it, and stays with it.
    """
    if options.jetstream.store_dir is not None:
        return [Path(options.jetstream.store_dir)]
    base = data_dir(environment) / "headrace"
    if options.server_name:
        return [base / folder_name(options.server_name)]
    label, default = _label(options), base / UNNAMED
    own = [base / label]
    if label == ANY_PORT:
        own += [base / f"{ANY_PORT}-{number}" for number in range(2, ANY_PORT_MAX)]
    owner = _owner(default)
    if own[0].exists():
        return own
    if owner == label:
        return [default]
    if owner is None and (options.port == PORT_DEFAULT or default.exists()):
        return [default, *own]
    return own


def claim(directory: Path, options: ServerOptions) -> None:
    """This server has opened the directory: the folder `default` is its own from now on."""
    unnamed = options.jetstream.store_dir is None and not options.server_name
    if unnamed and directory.name == UNNAMED and _owner(directory) is None:
        _owner_file(directory).write_text(f"{_label(options)}\n")


def _label(options: ServerOptions) -> str:
    return f"port-{options.port}" if options.port > 0 else ANY_PORT


def _owner_file(default: Path) -> Path:
    return default.with_name(f"{UNNAMED}.port")


def _owner(default: Path) -> str | None:
    try:
        return _owner_file(default).read_text(errors="replace").strip() or None
    except OSError:
        return None


def data_dir(environment: Mapping[str, str]) -> Path:
    own = environment.get("XDG_DATA_HOME", "")
    if own.startswith("/"):
        return Path(own)
    try:
        home = Path(environment["HOME"]) if environment.get("HOME") else Path.home()
    except RuntimeError:
        home = Path()
    if not home.is_absolute() or home == Path("/"):
        raise ConfigError(["this user has no home directory: say with --store_dir where streams shall live"])
    return home / ".local" / "share"


def folder_name(server_name: str | None) -> str:
    """A server's name as a folder: what a path could misread becomes `_`."""
    name = re.sub(r"[^\w.$-]", "_", server_name or UNNAMED)
    return name if name.strip(".") else UNNAMED
