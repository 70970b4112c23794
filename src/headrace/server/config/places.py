"""Where streams live when nobody said so.

Never a temporary folder: who acknowledges durably keeps the messages where a restart finds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from headrace.server.config.options import Options
from headrace.server.config.problems import ConfigError

UNNAMED = "default"


def store_dir(options: Options, environment: Mapping[str, str]) -> Path:
    """The directory that was given, or `<user's data directory>/headrace/<server's name, else "default">`."""
    if options.jetstream.store_dir is not None:
        return Path(options.jetstream.store_dir)
    return data_dir(environment) / "headrace" / folder_name(options.server_name)


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
