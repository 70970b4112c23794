"""A small NATS client over the core's wire kernels, for Spark, pipelines and tools. Users keep their own clients."""

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
