"""What a node keeps beside its classic queues of version 1, and is not read here.

<node data dir>/quorum/            quorum queues            stream/    streams
                coordination/      what the nodes of a cluster agree on
                mqtt_retained_*    retained messages of MQTT
                queues/ msg_store_*/                        queues of RabbitMQ before 3.7
  …/queues/<QUEUEHASH>/<N>.qi <N>.qs                        a classic queue of version 2
"""

from __future__ import annotations

from headrace.layouts.rabbitmq import files
from headrace.layouts.rabbitmq._kernels import Disk
from headrace.layouts.rabbitmq.names import QueueName, is_directory_name
from headrace.layouts.rabbitmq.volume import vhost_paths
from headrace.layouts.unread import UNKNOWN, Unread, unread_entries

COORDINATION = "coordination"
_QUEUES = {"quorum": "quorum queues", "stream": "streams"}
_OLD = "queues of RabbitMQ before 3.7"
_READ = {"msg_stores", "vhosts", COORDINATION, files.DAMAGED}


def unread(disk: Disk, path: str) -> list[Unread]:
    """All of it, for a node's data directory or a part of one."""
    found = vhost_paths(disk, path)
    root, vhosts = found or (path, [])
    places: list[Unread] = []
    if root != path:
        places += unread_entries(disk, path, _of_node)
        places += unread_entries(
            disk,
            path,
            lambda name, is_dir: "what a cluster agreed on" if is_dir and name == COORDINATION else None,
            may_hold_messages=False,
        )
    if root not in vhosts:
        places += unread_entries(
            disk, root, lambda name, is_dir: _unless(is_dir and not is_directory_name(name))
        )
    for vhost in vhosts:
        places += _of_vhost(disk, vhost)
    return places


def _unless(unknown: bool) -> str | None:
    return UNKNOWN if unknown else None


def _of_node(name: str, is_dir: bool) -> str | None:
    if not is_dir:
        return "retained messages of MQTT" if name.startswith("mqtt_retained_") else None
    if name in (files.QUEUES, files.PERSISTENT, files.TRANSIENT):
        return _OLD
    return _QUEUES.get(name) or _unless(name not in _READ)


def _of_vhost(disk: Disk, vhost: str) -> list[Unread]:
    known = {files.QUEUES, files.PERSISTENT, files.TRANSIENT, files.DAMAGED}
    places = unread_entries(disk, vhost, lambda name, is_dir: _unless(is_dir and name not in known))
    queues = f"{vhost}/{files.QUEUES}"
    places += unread_entries(
        disk, queues, lambda name, is_dir: _unless(is_dir and not is_directory_name(name))
    )
    if disk.entry(queues) is None:
        return places
    for name, is_dir, _ in disk.list(queues):
        if is_dir and is_directory_name(name):
            sizes = files.version_2(disk, f"{queues}/{name}")
            if sizes:
                what = f"a classic queue of version 2: {_label(disk, f'{queues}/{name}') or name}"
                places.append(Unread(f"{queues}/{name}", what, len(sizes), sum(sizes.values())))
    return places


def _label(disk: Disk, directory: str) -> str | None:
    data = files.read_small(disk, f"{directory}/{files.QUEUE_NAME}")
    queue = None if data is None else QueueName.from_file(data)
    return None if queue is None else queue.label
