"""Making partitions, one or thousands at once.

    <name>/                              mkdir
    <name>/00000000000000000000.log      empty
    <name>/partition.metadata            the topic's id: written, synced, renamed; then the directory is synced
    <log dir>                            one sync for all of them

A crash before the end leaves directories that were promised to nobody; what is in them is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.layouts.directories import make_dirs
from headrace.layouts.kafka import checkpoints
from headrace.layouts.kafka._kernels import Disk
from headrace.layouts.kafka.names import LOG, SIDE, segment_file, split_name

if TYPE_CHECKING:
    from headrace.layouts.kafka.volume import KafkaVolume

OWN_OPTIONS = f"{SIDE}/options.json"


def topic_ids(volume: KafkaVolume, names: Sequence[str], given: str | None) -> dict[str, str]:
    """Topic → its id: the given one, that of the partitions which are there, or a new one."""
    wanted = {split_name(name)[0] for name in names}
    found = dict.fromkeys(wanted, given) if given is not None else {}
    if given is None:
        for other in volume.logs():
            topic = split_name(other)[0]
            if topic in wanted and topic not in found:
                known = checkpoints.read_topic_id(volume.disk, f"{volume.path}/{other}")
                if known:
                    found[topic] = known
    return {
        topic: checkpoints.check_topic_id(found.get(topic) or checkpoints.new_topic_id()) for topic in wanted
    }


def lay(disk: Disk, directory: str, topic_id: str, options: dict[str, Any]) -> None:
    """The files of one new partition, durable but for the directory's own name."""
    disk.create_dir_all(directory)
    disk.open(f"{directory}/{segment_file(0, LOG)}", "write")
    if options:
        make_dirs(disk, f"{directory}/{SIDE}")
        disk.replace_file(f"{directory}/{OWN_OPTIONS}", msgspec.json.encode(options))
    checkpoints.write_topic_id(disk, directory, topic_id)
