"""The directory that a conversion writes: a new one, or one that the product has made already.

    DST absent   built beside as DST.incomplete, verified, then renamed: a directory called DST is whole
    DST there    its product's; logs of it that are empty, and new ones, take the messages
    DST.convert  while it runs: what was asked for, so that the same command goes on after an interruption

What was interrupted goes on where the target ends: a process that is killed leaves a prefix. (After a power cut the end
may have holes: the final comparison finds them and says so.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace._core import Disk
from headrace.errors import AlreadyExists, BadInput, NotFound, UnknownFormat
from headrace.layouts.base import Log, Volume
from headrace.layouts.detect import JETSTREAM, PRODUCTS, detect, room
from headrace.layouts.jetstream.config import StreamConfig
from headrace.layouts.jetstream.rebuild import guessed_config, settle, unmoved_consumers
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume
from headrace.layouts.nats_streaming.channel import Channel
from headrace.ops.plan import absolute
from headrace.ops.salvage import SUFFIX, take_name

NOTE = ".convert"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversion was asked for; only the same question goes on with an interrupted one."""

    v: int = 1
    source: str
    to: str
    logs: tuple[tuple[str, ...], ...]
    subject: str | None
    carry: str
    options: dict[str, str]
    began_ns: int
    fresh: bool

    def same(self, other: Asked) -> bool:
        """Whether both ask for the same."""
        return msgspec.structs.replace(other, began_ns=self.began_ns, fresh=self.fresh) == self


@dataclass(slots=True)
class _Settled:
    """The last touch on a stream, when everything is closed."""

    store: FileStreamStore
    config: StreamConfig
    created_ns: int
    unmoved: list[str]


@dataclass(slots=True)
class Target:
    """The directory under construction."""

    path: str
    building: str
    asked: Asked
    resumed: bool
    disk: Disk
    volume: Volume
    opened: dict[str, Log] = field(default_factory=lambda: {})
    settled: list[_Settled] = field(default_factory=lambda: [])

    def log(self, name: str, like: Log) -> Log:
        """The log that takes messages. Refused when it holds some that are not of this conversion."""
        if name in self.opened:
            return self.opened[name]
        there = name in self.volume.logs()
        if isinstance(self.volume, JetStreamVolume) and not there:
            compression = like.config.compression if isinstance(like, FileStreamStore) else "none"
            log: Log = self.volume.create(name, config=StreamConfig(name=name, compression=compression))
        else:
            log = self.volume.open(name) if there else self.volume.create(name)
        if there and not self.resumed and (held := log.state().messages):
            raise AlreadyExists(
                f"{self.path}: {name} holds {held:,} messages; convert into another log (--map) or a new directory"
            )
        self.opened[name] = log
        return log

    def finish_stream(self, source: Log, store: FileStreamStore, subject: str | None, *, whole: bool) -> None:
        """Note the configuration that the stream gets when it is closed: the source's if it is the `whole` of it, else
        what its messages need."""
        if isinstance(source, FileStreamStore) and whole:
            config = msgspec.structs.replace(source.config, name=store.name)
            self.settled.append(_Settled(store, config, store.clock(), unmoved_consumers(self.disk, source)))
            return
        config = guessed_config(store)
        if not config.subjects and subject is not None:
            config = msgspec.structs.replace(config, subjects=(subject,))
        if all(known.store is not store for known in self.settled):
            self.settled.append(_Settled(store, config, store.clock(), []))
        else:
            for known in self.settled:
                if known.store is store:
                    known.config = config

    def close(self) -> None:
        """Everything on disk, and streams with the configuration they are to have."""
        self.volume.close()
        for each in self.settled:
            settle(self.disk, each.store.stream_dir, each.config, each.created_ns, each.unmoved)

    def reopen(self) -> Volume:
        """For the comparison, read-only."""
        return open_side(self.asked.to, self.building, self.disk, {})

    def take_name(self) -> None:
        """It is whole: the name it was made for, and no note any more."""
        if self.building != self.path:
            take_name(self.disk, self.building, self.path)
        self.disk.remove_file(f"{self.path}{NOTE}")
        self.disk.sync_dir(self.path.rsplit("/", 1)[0] or "/")


def open_side(
    layout: str,
    path: str,
    disk: Disk | None,
    options: Mapping[str, Any],
    *,
    key: str | None = None,
    write: bool = False,
    create: bool = False,
    clock: Callable[[], int] | None = None,
) -> Volume:
    """A directory of any layout; for writing without limits that would refuse or drop what is converted."""
    mode = "rw" if write else "r"
    if layout == JETSTREAM:
        if options:
            raise BadInput(f"option {next(iter(options))!r}: a JetStream store has none")
        given: dict[str, Any] = {} if clock is None else {"clock": clock}
        return JetStreamVolume(
            path,
            mode=mode,
            create=create,
            key=key,
            disk=disk,
            maintenance=False,
            cache_bytes=32 << 20,
            **given,
        )
    where = room(layout)
    bare = where.for_copies() if write else None
    base = {} if bare is None else {n: getattr(bare, n) for n in bare.__struct_fields__}
    spelled = {theirs: ours for ours, theirs in where.options.names.items()}
    asked = {spelled.get(name, name): value for name, value in options.items()}
    taken = where.options.of(base | asked) if base or asked else None
    return where.open(path, mode, create=create, options=taken, disk=disk, key=key, clock=clock)


def open_target(
    path: str, asked: Asked, disk: Disk | None, *, restart: bool, clock: Callable[[], int] | None = None
) -> Target:
    """A new directory, an existing one, or the one of an interrupted conversion."""
    on = disk or Disk.real()
    target = absolute(path)
    _check_place(on, target, asked.source)
    note = f"{target}{NOTE}"
    before = _read_note(on, note)
    building = f"{target}{SUFFIX}"
    if restart and before is not None:
        if before.fresh and on.entry(building) is not None:
            on.remove_dir_all(building)
        if not before.fresh:
            raise BadInput(
                f"{path}: an interrupted conversion wrote into it; --restart cannot tell what was there before. "
                "Put back its backup, remove the note beside it and start again"
            )
        on.remove_file(note)
        before = None
    if before is not None:
        if not before.same(asked):
            raise AlreadyExists(
                f"{note}: another conversion to {path} was interrupted; repeat its command, or give --restart"
            )
        asked = before
    else:
        asked = msgspec.structs.replace(asked, fresh=_is_fresh(on, target, building, asked.to))
        on.replace_file(note, msgspec.json.encode(asked))
    where = building if asked.fresh else target
    there = on.entry(where) is not None
    volume = open_side(
        asked.to, where, disk, asked.options, write=True, create=asked.fresh and not there, clock=clock
    )
    return Target(target, where, asked, before is not None, on, volume)


def _check_place(disk: Disk, target: str, source: str) -> None:
    if target == source or target.startswith(f"{source}/") or source.startswith(f"{target}/"):
        raise BadInput(f"{target}: the target must lie outside the source")
    parent = target.rsplit("/", 1)[0] or "/"
    if disk.entry(parent) is None:
        raise NotFound(f"{parent}: no such directory; make it first")


def _is_fresh(disk: Disk, target: str, building: str, to: str) -> bool:
    if disk.entry(building) is not None:
        raise AlreadyExists(f"{building} is there, and no conversion that made it; remove it and try again")
    entry = disk.entry(target)
    if entry is None or (entry[0] and not disk.list(target)):
        return True
    if not entry[0]:
        raise AlreadyExists(f"{target} is a file")
    try:
        found = detect(target, disk)
    except UnknownFormat:
        found = ""
    if found != to:
        what = f"a {PRODUCTS[found]} directory" if found else "not empty, and of no product"
        raise AlreadyExists(f"{target} is {what}; give a new directory, or one of {PRODUCTS[to]}")
    return False


def _read_note(disk: Disk, note: str) -> Asked | None:
    if disk.entry(note) is None:
        return None
    try:
        return msgspec.json.decode(disk.read(note, 1 << 24), type=Asked)
    except msgspec.DecodeError as problem:
        raise AlreadyExists(f"{note}: not readable ({problem}); remove it, and what was begun") from None


def is_channel(log: Log) -> bool:
    """NATS Streaming's append is told that what has no place there may be dropped: the table said so."""
    return isinstance(log, Channel)
