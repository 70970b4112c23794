"""Saving a stream: opened with or without its metadata, written anew with every position it had.

The new stream is filled under a configuration without limits, because a limit would throw away what is to be
saved (a message older than max_age, say); the real configuration is put in place when everything is on disk.
"""

from __future__ import annotations

import time

from headrace.config.meta_json import encode_stream_meta
from headrace.config.model import UNLIMITED, StreamConfig
from headrace.config.subject_sets import subjects_in_use
from headrace.errors import HeadraceError
from headrace.layouts.base import ConsumerState, Predicate
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.checks.audit import Indexes, scanned_log
from headrace.layouts.jetstream.checks.inspector import Survey
from headrace.layouts.jetstream.consumers.consumers import Consumers
from headrace.layouts.jetstream.consumers.recovery import CONSUMERS_DIR
from headrace.layouts.jetstream.consumers.state import STATE_FILE
from headrace.layouts.jetstream.meta import write_meta
from headrace.layouts.jetstream.recovery import recovery
from headrace.layouts.jetstream.recovery.opening import CACHE_BYTES, OpenedStream
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.store.visible import hide_what_is_gone
from headrace.layouts.jetstream.volume import JetStreamVolume


def open_stream(
    disk: Disk,
    found: Survey,
    indexes: Indexes | None = None,
    leave_out: frozenset[int] = frozenset(),
    cache_bytes: int = CACHE_BYTES,
    *,
    ages: bool = True,
) -> FileStreamStore:
    """The stream for reading, from its blocks alone when its metadata cannot be relied on.

    Blocks in `leave_out` cannot be read at all: what the others hold is still opened. Without `ages` no message is
    too old to be seen.
    """
    config = found.config or StreamConfig(name=found.stream)
    consumers = Consumers(disk, found.directory, found.stream, writable=False, secret=found.secret)
    if leave_out:
        known = indexes or Indexes()
        log = scanned_log(disk, found, known, cache_bytes=cache_bytes, leave_out=leave_out)
        last = max([consumers.max_stream_seq(), *(each.expected.last for each in known.by_block.values())])
        if known.index is not None:
            log.raise_last(max(last, known.index.decoded["last"]), known.index.decoded["last_time"])
        else:
            log.raise_last(last, 0)
        hide_what_is_gone(log, config, consumers, ages=ages)
        opened = OpenedStream(
            config, found.created_ns or 0, log, consumers, found.msgs_dir, False, [], found.era
        )
        return FileStreamStore(disk, found.directory, opened, read_only=True)
    recovered = recovery.recover(
        disk,
        found.directory,
        found.stream,
        cache_bytes=cache_bytes,
        secret=found.secret,
        consumer_seq=consumers.max_stream_seq(),
    )
    now_ns = time.time_ns() if recovered.live else None
    hide_what_is_gone(recovered.log, config, consumers, now_ns, clean=recovered.clean, ages=ages)
    opened = OpenedStream(
        config,
        found.created_ns or 0,
        recovered.log,
        consumers,
        recovered.msgs_dir,
        recovered.clean,
        recovered.damage,
        recovered.era,
    )
    return FileStreamStore(disk, found.directory, opened, read_only=True)


def guessed_config(store: FileStreamStore) -> StreamConfig:
    """The least that the messages allow: the directory's name and the subjects that are in use."""
    return StreamConfig(name=store.name, subjects=subjects_in_use(store.subjects_state(">"))).filled()


def copy_stream(
    source: FileStreamStore, target: JetStreamVolume, name: str, config: StreamConfig
) -> FileStreamStore:
    """Every message that `source` serves, at its own sequence and time; first and last sequence too."""
    store = target.create(name, config=StreamConfig(name=config.name, compression=config.compression))
    state = source.fast_state()
    if state.first_seq > 1:
        store.compact(state.first_seq)
    for batch in source.batches(Predicate()):
        store.append(batch, keep_positions=True)
    if state.last_seq > store.fast_state().last_seq:
        store.skip_msg(state.last_seq)
    store.commit()
    return store


def copy_consumers(source: FileStreamStore, store: FileStreamStore) -> dict[str, str]:
    """Consumers with their state; returns what could not be taken over, by name."""
    failed: dict[str, str] = {}
    doubtful = set(source.consumers.doubtful())
    for name in source.consumers.names():
        consumer = source.consumers.get(name)
        try:
            made = store.consumers.create(name, consumer.config, consumer.created_ns)
            made.update(consumer.state())
        except HeadraceError as error:
            failed[name] = str(error)
            continue
        if name in doubtful:
            failed[name] = "its position could not be relied on: it starts again, messages may come twice"
    store.consumers.commit()
    return failed


def write_final_meta(
    disk: Disk, directory: str, config: StreamConfig, created_ns: int, unmoved: list[str]
) -> None:
    """The last touch on a closed stream: the real configuration in place of the bare one.

    `unmoved` consumers had no o.dat and get none: a server that finds one, even with zeros, takes the deliver
    policy for applied and would send a consumer of new messages the old ones.
    """
    write_meta(disk, directory, config.name, encode_stream_meta(config, created_ns))
    for name in unmoved:
        place = f"{directory}/{CONSUMERS_DIR}/{name}"
        if disk.entry(f"{place}/{STATE_FILE}") is not None:
            disk.remove_file(f"{place}/{STATE_FILE}")
            disk.sync_dir(place)


def unmoved_consumers(disk: Disk, source: FileStreamStore) -> list[str]:
    """Consumers that never delivered anything and so have no o.dat."""
    place = f"{source.stream_dir}/{CONSUMERS_DIR}"
    return [
        name
        for name in source.consumers.names()
        if disk.entry(f"{place}/{name}/{STATE_FILE}") is None
        and not source.consumers.get(name).dirty
        and source.consumers.state_of(name) == ConsumerState()
    ]


def is_unlimited(config: StreamConfig) -> bool:
    """Whether no limit can remove a message when the stream is next opened for writing."""
    limits = (config.max_msgs, config.max_bytes, config.max_msgs_per_subject)
    return config.max_age == 0 and all(limit in (0, UNLIMITED) for limit in limits)
