"""Streams that take the messages of other logs: without limits while they are filled, then with the configuration they are
to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec

from headrace.config.model import StreamConfig
from headrace.config.subject_sets import refuse_overlaps, subjects_in_use
from headrace.errors import BadInput
from headrace.layouts.base import Log, Volume
from headrace.layouts.copies import OWN_SUBJECT, Copies, CopyOrigin
from headrace.layouts.jetstream.recovery.rebuild import guessed_config, unmoved_consumers, write_final_meta
from headrace.layouts.jetstream.store.store import FileStreamStore
from headrace.layouts.jetstream.volume import JetStreamVolume


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be said of the streams that are made: nothing that would remove a message."""

    retention: Literal["limits", "workqueue"] = "limits"
    compression: Literal["none", "s2"] = "none"
    discard: Literal["old", "new"] = "old"
    num_replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    duplicate_window: Annotated[int, msgspec.Meta(ge=0)] = 0
    allow_direct: bool = False
    description: str = ""


def check_stream_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the streams that were given; BadInput for one that they do not have."""
    known = StreamOptions.__struct_fields__
    for name in options:
        if name not in known:
            raise BadInput(f"option {name!r}: streams that are made here take: {', '.join(known)}")
    try:
        made = msgspec.convert(dict(options), StreamOptions, strict=False)
    except msgspec.ValidationError as problem:
        raise BadInput(f"option: {problem}") from None
    return {name: getattr(made, name) for name in options}


@dataclass(slots=True)
class _Finished:
    """The last touch on a stream, when everything is closed."""

    name: str
    directory: str
    config: StreamConfig
    created_ns: int
    unmoved: list[str]


class StreamCopies(Copies):
    """The streams of a store that take the messages of other logs."""

    def __init__(self, volume: Volume, options: Mapping[str, Any]) -> None:
        super().__init__(volume)
        self._store = cast("JetStreamVolume", volume)
        self._options, self._finished = check_stream_options(options), list[_Finished]()
        self._taken: dict[str, FileStreamStore] = {}

    def take(self, name: str, like: Log | None = None) -> FileStreamStore:
        store = self._taken[name] = cast("FileStreamStore", super().take(name, like))
        return store

    def create(self, name: str, like: Log | None) -> FileStreamStore:
        compression = like.config.compression if isinstance(like, FileStreamStore) else "none"
        return self._store.create(
            name, config=StreamConfig(name=name.rpartition("/")[2], compression=compression)
        )

    def begin_at(self, log: Log, position: int) -> None:
        store = cast("FileStreamStore", log)
        if position > max(store.fast_state().last_seq + 1, 1):
            store.compact(position)

    def end_at(self, log: Log, position: int) -> None:
        store = cast("FileStreamStore", log)
        if position > store.fast_state().last_seq:
            store.skip_msg(position)

    def finish(self, log: Log, origin: CopyOrigin) -> None:
        """Note the configuration that the stream gets when it is closed: that of the one stream that it is the `whole` of,
        else what its messages need."""
        store = cast("FileStreamStore", log)
        store.commit()
        streams = [source for source in origin.sources if isinstance(source, FileStreamStore)]
        alike = origin.whole and len(streams) == len(origin.sources)
        fixed = {each for each in origin.subjects if each is not None and OWN_SUBJECT not in each}
        config, unmoved = guessed_config(store), list[str]()
        if alike and len(streams) == 1:
            config = msgspec.structs.replace(streams[0].config, name=store.name)
            unmoved = unmoved_consumers(store.disk, streams[0])
        if alike and all(subject is None for subject in origin.subjects):
            takes = tuple(dict.fromkeys(each for stream in streams for each in stream.config.subjects))
        else:
            takes = subjects_in_use(store.subjects_state(">")) or tuple(sorted(fixed)) or config.subjects
        config = msgspec.structs.replace(config, subjects=takes, **self._options)
        name = next(each for each, taken in self._taken.items() if taken is store)
        self._finished.append(_Finished(name, store.stream_dir, config, store.clock(), unmoved))

    def adopt_subjects(self, log: Log) -> None:
        store = cast("FileStreamStore", log)
        found = guessed_config(store).subjects
        if set(found) - set(store.config.subjects):
            store.update_config(msgspec.structs.replace(store.config, subjects=found))

    def close(self) -> None:
        """Everything on disk, and streams with the configuration they are to have."""
        disk = self._store.disk
        named = {each.name: each.config.subjects for each in self._finished}
        if not self._finished:
            self.volume.close()
            return
        names = set(self._store.logs()) - set(self._taken)
        others = {name: self._store.open(name).config.subjects for name in names}
        self.volume.close()
        refuse_overlaps(others | named)
        for each in self._finished:
            write_final_meta(disk, each.directory, each.config, each.created_ns, each.unmoved)
