"""A small NATS client over the core's wire kernels, for Spark, pipelines and tools. Users keep their own clients.

Each part is loaded when it is asked for: a worker that reads files needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.access import Access, read_access
    from headrace.client.connection import Connection, Message
    from headrace.client.holding import Hold
    from headrace.client.publisher import Published, Publisher
    from headrace.client.releasing import release
    from headrace.client.remote import ServerLog, ServerTask, ServerVolume, shared_connection
    from headrace.client.replaying import StreamTarget

__all__ = [
    "Access",
    "Connection",
    "Hold",
    "Message",
    "Published",
    "Publisher",
    "ServerLog",
    "ServerTask",
    "ServerVolume",
    "StreamTarget",
    "read_access",
    "release",
    "shared_connection",
]
_HOMES = {
    "access": ("Access", "read_access"),
    "connection": ("Connection", "Message"),
    "holding": ("Hold",),
    "publisher": ("Published", "Publisher"),
    "releasing": ("release",),
    "remote": ("ServerLog", "ServerTask", "ServerVolume", "shared_connection"),
    "replaying": ("StreamTarget",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"headrace.client.{_HOME_OF[name]}"), name)
