"""What a clean stop leaves so that the next start reads no messages.

    headrace.clean   "headrace clean 1 <crc>\n" and, as msgpack: the vhost's stamp; per queue its next sequence and the
                     numbers of its segments; the store's files; length and checksum of headrace.index
    headrace.index   where each stored message lies and how many queues hold it; read when the first one is needed

Both lie in the vhost's directory, where RabbitMQ ignores them. They are believed only when the stamp is that of the
directory as it is found: names, lengths, times and inodes of every file (RabbitMQ rewrites `.vhost` at each start, so a
start of it shows even if it changed nothing). `headrace.clean` is removed, and its removal synced, before anything else
is written. Whatever was found damaged in this life, or cannot be said in a few numbers, leaves no checkpoint: then the next
start reads everything, as after a crash.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import HeadraceError
from headrace.layouts.rabbitmq import files
from headrace.layouts.rabbitmq._kernels import rabbit_stamp

if TYPE_CHECKING:
    from headrace.layouts.rabbitmq.vhost import Vhost

_HEAD = b"headrace clean 1 "
_HEAD_BYTES = len(_HEAD) + 9
_BYTES_MAX = 1 << 30


class Rest(msgspec.Struct, array_like=True):
    """A queue that is not awake: its next sequence and the numbers of its segments (`RabbitQueue.rows`)."""

    next: int
    rows: bytes


class Stored(msgspec.Struct, array_like=True):
    """The store: (number, bytes, bytes of referenced messages, records) of each file, and its index file."""

    files: list[tuple[int, int, int, int]]
    current: int
    index_bytes: int
    index_crc: int


class Checkpoint(msgspec.Struct, array_like=True):
    """Everything that opening needs."""

    stamp: int
    queues: dict[str, Rest]
    """By directory name."""
    store: Stored


def take(vhost: Vhost) -> Checkpoint | None:
    """For writing: the checkpoint, if it belongs to the files; it is gone from the disk when this returns."""
    found = peek(vhost)
    if files.try_remove(vhost.disk, f"{vhost.path}/{files.CLEAN}"):
        vhost.disk.sync_dir(vhost.path)
    return found


def peek(vhost: Vhost) -> Checkpoint | None:
    """The checkpoint, if it belongs to the files."""
    path = f"{vhost.path}/{files.CLEAN}"
    try:
        if vhost.disk.entry(path) is None:
            return None
        found = _decoded(vhost.disk.read(path, _BYTES_MAX))
        if found is None or found.stamp != _stamp(vhost):
            return None
    except HeadraceError:
        return None  # everything is read then
    directories = {log.directory.rsplit("/", 1)[-1] for log in vhost.logs.values()}
    return found if directories == found.queues.keys() else None


def _stamp(vhost: Vhost) -> int:
    return rabbit_stamp(vhost.disk, vhost.path, files.INDEX)


def _decoded(data: bytes) -> Checkpoint | None:
    head, body = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
    if head != _head(body):
        return None
    try:
        return msgspec.msgpack.decode(body, type=Checkpoint)
    except msgspec.DecodeError:
        return None


def _head(body: bytes) -> bytes:
    return _HEAD + f"{zlib.crc32(body):08x}\n".encode()


def write(vhost: Vhost) -> bool:
    """At the end of a clean stop, when everything else is on disk; False when there is something no checkpoint can say."""
    unsound = vhost.problems or vhost.store.damage or not vhost.store.may_collect
    if unsound or any(log.found or log.resting is None for log in vhost.logs.values()):
        return False
    stored = vhost.store.stop()
    if stored is None:
        return False
    queues = {
        log.directory.rsplit("/", 1)[-1]: log.resting
        for log in vhost.logs.values()
        if log.resting is not None
    }
    body = msgspec.msgpack.encode(Checkpoint(_stamp(vhost), queues, stored))
    vhost.disk.replace_file(f"{vhost.path}/{files.CLEAN}", _head(body) + body)
    return True
