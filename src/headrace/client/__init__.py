"""A small NATS client over the core's wire kernels, for Spark, pipelines and tools. Users keep their own clients.

Each part is loaded when it is asked for: a worker that reads files needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.access import Access, read_access
    from headrace.client.connection import Connection, Message
    from headrace.client.destination import Destination, named_stream, stream_of
    from headrace.client.holding import Hold
    from headrace.client.publisher import Published, Publisher
    from headrace.client.releasing import release
    from headrace.client.remote import ServerLog, ServerTask, ServerVolume, shared_connection
    from headrace.client.replaying import StreamTarget
    from headrace.client.resending import Resender

__all__ = [
    "Access",
    "Connection",
    "Destination",
    "Hold",
    "Message",
    "Published",
    "Publisher",
    "Resender",
    "ServerLog",
    "ServerTask",
    "ServerVolume",
    "StreamTarget",
    "named_stream",
    "read_access",
    "release",
    "shared_connection",
    "stream_of",
]
_HOMES = {
    "access": ("Access", "read_access"),
    "connection": ("Connection", "Message"),
    "destination": ("Destination", "named_stream", "stream_of"),
    "holding": ("Hold",),
    "publisher": ("Published", "Publisher"),
    "releasing": ("release",),
    "remote": ("ServerLog", "ServerTask", "ServerVolume", "shared_connection"),
    "replaying": ("StreamTarget",),
    "resending": ("Resender",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"headrace.client.{_HOME_OF[name]}"), name)
