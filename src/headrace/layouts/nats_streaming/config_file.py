"""The part of a nats-streaming-server configuration file that concerns its store.

    port: 4222                          # of the NATS server: not ours
    streaming {                         # if it is there, only its content counts
      cluster_id: my-cluster
      store: file
      dir: /data/stan
      store_limits { max_msgs: 10000, max_age: "24h", channels { "orders.>": { max_bytes: 1GB } } }
      file_options { slice_max_bytes: 64MB, sync: true, fds_limit: 100 }
    }

Takes the file as a tree of plain values (keys in any case, any alias of the server's). What the store does not know
is passed over, as the server does, and named in `passed_over`, so that a misspelt key can be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from headrace.errors import BadInput
from headrace.layouts.layout import ServerConfig
from headrace.layouts.nats_streaming.options import ALIASES, BLOCKS, FLAG_ONLY, StreamingOptions

_STORE = {"st", "store_type", "store", "storetype"}
_DIRECTORY = {"dir", "datastore"}
_KNOWN = set(StreamingOptions.__struct_fields__) - FLAG_ONLY
_REFUSED = FLAG_ONLY | {"truncate_bad_eof"}


def from_server_config(given: Mapping[str, Any]) -> ServerConfig:
    """BadInput for another kind of store, a value the server would refuse, or `truncate_bad_eof`."""
    block = _lower(given)
    inner = block.get("streaming")
    if isinstance(inner, Mapping):
        block = _lower(cast("Mapping[str, Any]", inner))
    kind, directory = "FILE", None
    found: dict[str, Any] = {}
    passed_over: list[str] = []
    for name, value in block.items():
        if name in _STORE:
            kind = str(value).upper()
        elif name in _DIRECTORY:
            directory = str(value)
        elif name in BLOCKS and isinstance(value, Mapping):
            _take(_lower(cast("Mapping[str, Any]", value)), found, passed_over, f"{name}.")
        else:
            _take({name: value}, found, passed_over, "")
    if kind != "FILE":
        raise BadInput(f"unsupported store type: {kind}; only a store of type FILE has files to open")
    return ServerConfig(directory, StreamingOptions.of(found), tuple(passed_over))


def _take(block: Mapping[str, Any], found: dict[str, Any], passed_over: list[str], under: str) -> None:
    for name, value in block.items():
        if name in _REFUSED:
            raise BadInput(
                f"{under}{name} cannot stand in a configuration file: data may be lost by it, so it is given by hand "
                "(--file_truncate_bad_eof) each time"
            )
        known = ALIASES.get(name, name)
        if known in _KNOWN:
            found[known] = value
        else:
            passed_over.append(f"{under}{name}")


def _lower(block: Mapping[str, Any]) -> dict[str, Any]:
    """Names of options in small letters; names of channels are values and stay."""
    return {name.lower(): value for name, value in block.items()}
