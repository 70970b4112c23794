"""`JsAccount`: the streams of one account, what they may be together, and what they take.

Stream objects are made by a factory (`Stream(engine, account, store)`), so that the model runs without a server. A
stream that cannot be opened at start is not fatal and not forgotten: it is offline, its name stays taken, and everybody
who asks is told why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import BadInput, HeadraceError
from headrace.layouts.jetstream.config import REQUIRED_LEVEL, ConsumerConfig, Source, StreamConfig
from headrace.layouts.jetstream.store import FileStreamStore
from headrace.layouts.jetstream.volume import DEFAULT_ACCOUNT, JetStreamVolume
from headrace.streams import consumer_changes, consumer_rules, stream_rules
from headrace.streams.consumer_rules import Caps
from headrace.streams.errors import ApiError, api_error, bad_stream
from headrace.streams.limits import AccountLimits, ServerFacts, go_duration, smallest
from headrace.streams.memory import Memory
from headrace.streams.origin_rules import check_filters
from headrace.streams.origins import INTEREST_ORIGIN
from headrace.streams.subjects import subjects_overlap

if TYPE_CHECKING:
    from headrace.streams._kernels import Batch, PublishRun
    from headrace.streams.consumer import Consumer
    from headrace.streams.engine import Engine
    from headrace.streams.stream import Stream

LOG = logging.getLogger("headrace.streams")
CONSUMERS_MAX = 1000
"""Per stream, where neither the stream nor the account says otherwise."""
RECORD_BYTES = 30
ROOM_VALID_NS = 50_000_000
NO_LIMIT = 1 << 62

StreamFactory = Callable[["Engine", "JsAccount", FileStreamStore], "Stream"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What the streams of an account hold and have reserved (`max_bytes`), per storage."""

    memory: int
    storage: int
    reserved_memory: int
    reserved_storage: int


@dataclass(slots=True)
class _Room:
    """Bytes that may still be stored, by the account and by the server, as counted a moment ago."""

    own: int
    whole: int
    until_ns: int


class JsAccount:
    """One account with JetStream."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        factory: StreamFactory,
        *,
        limits: AccountLimits = AccountLimits(),  # noqa: B008 - frozen
        facts: ServerFacts = ServerFacts(),  # noqa: B008
    ) -> None:
        self.engine, self.name, self.limits, self.facts = engine, name, limits, facts
        self.id = engine.exchange.account(name)
        self.domain = facts.domain
        self.streams: dict[str, Stream] = {}
        self.offline: dict[str, str] = {}
        """Streams that are on disk and cannot be served, and why."""
        self.event_subjects: tuple[str, ...] = ()
        """Subjects of streams that capture events of the server itself."""
        self.api_total = self.api_errors = 0
        self._room: dict[bool, _Room] = {}
        self.on_change: Callable[[str], None] = _nobody
        """Told the name of a stream that was made, changed or removed."""
        self._factory = factory
        self._memories: dict[FileStreamStore, Memory] = {}

    @property
    def _volume(self) -> JetStreamVolume:
        volume = self.engine.volume
        if volume is None:
            raise api_error("JSNotEnabledErr")
        return volume

    def log_name(self, stream: str) -> str:
        """What the volume calls a stream of this account."""
        return stream if self.name == DEFAULT_ACCOUNT else f"{self.name}/{stream}"

    # At start

    def recover(self) -> None:
        """Open everything that the volume holds for this account, consumers included."""
        for log in self._volume.logs():
            account, _, name = log.rpartition("/")
            if (account or DEFAULT_ACCOUNT) != self.name or self._volume.is_unfinished(log):
                continue
            try:
                self._serve(self._volume.open(log, self.first_look))
            except Exception as problem:  # a stream that cannot be served must not keep the others from it
                LOG.error("stream %s is offline: %s", log, problem)
                self.offline[name] = str(problem)

    def first_look(self, store: FileStreamStore) -> None:
        """A store is there, its limits are not applied yet: read what is to be remembered of its messages."""
        self._memories[store] = Memory(store, self.engine.clock)

    def memory_of(self, store: FileStreamStore) -> Memory:
        """What a stream remembers, for the one who serves it."""
        found = self._memories.pop(store, None)
        return found if found is not None else Memory(store, self.engine.clock)

    def _serve(self, store: FileStreamStore) -> Stream:
        stream = self._factory(self.engine, self, store)
        self.streams[stream.name] = stream
        for name in store.consumers.names():
            stream.add_consumer(name, store.consumers.get(name).config)
        stream.free_settled()
        self._changed(stream.name)
        return stream

    def _changed(self, name: str) -> None:
        every = (subject for stream in self.streams.values() for subject in stream.config.subjects)
        self.event_subjects = tuple(each for each in every if subjects_overlap(each, "$JS.EVENT.>"))
        for stream in self.streams.values():
            if stream.origins is not None:
                stream.origins.look(name)
        self.on_change(name)

    # Looking

    def stream(self, name: str) -> Stream:
        """The stream of that name; 404/10059 if there is none, 500/10194 if it is offline."""
        found = self.streams.get(name)
        if found is not None:
            return found
        if name in self.offline:
            raise api_error("JSStreamOfflineReasonErrF", err=self.offline[name])
        raise api_error("JSStreamNotFoundErr")

    def configs(self) -> dict[str, StreamConfig]:
        """The configurations of all streams by name."""
        return {name: stream.config for name, stream in self.streams.items()}

    def names(self, subject: str = "") -> list[str]:
        """All streams, or those that a subject (pattern) touches; sorted."""
        if not subject:
            return sorted(self.streams)
        return sorted(
            name
            for name, stream in self.streams.items()
            if any(subjects_overlap(subject, each) for each in stream.config.subjects)
        )

    def usage(self, *, without: str = "") -> Usage:
        """What all streams (but one) take together."""
        held = {"memory": 0, "file": 0}
        reserved = {"memory": 0, "file": 0}
        for stream in self.streams.values():
            storage = stream.config.storage
            held[storage] += stream.store.log.totals()[1]
            if stream.name != without and stream.config.max_bytes > 0:
                reserved[storage] += stream.config.max_bytes
        return Usage(held["memory"], held["file"], reserved["memory"], reserved["file"])

    def over_limits(self, stream: Stream, messages: PublishRun | Batch) -> ApiError | None:
        """Why these messages must not be stored, as far as the account and the server are concerned.

        What is left is counted anew now and then; between two counts only what was let in is subtracted.
        """
        in_memory = stream.in_memory
        own = self.limits.max_memory if in_memory else self.limits.max_storage
        whole = self.facts.max_memory if in_memory else self.facts.max_storage
        if own < 0 and whole < 0:
            return None
        size, now = messages.payload_bytes + len(messages) * RECORD_BYTES, self.engine.now()
        room = self._room.get(in_memory)
        if room is None or now >= room.until_ns or min(room.own, room.whole) < size:
            room = self._room[in_memory] = self._count_room(in_memory, own, whole, now)
        if room.own < size:
            return api_error("JSAccountResourcesExceededErr")
        if room.whole < size:
            return api_error("JSInsufficientResourcesErr")
        room.own -= size
        room.whole -= size
        return None

    def _count_room(self, in_memory: bool, own: int, whole: int, now: int) -> _Room:
        def held(account: JsAccount) -> int:
            used = account.usage()
            return used.memory if in_memory else used.storage

        left_own = own - held(self) if own >= 0 else NO_LIMIT
        left_whole = whole - sum(map(held, self._everybody())) if whole >= 0 else NO_LIMIT
        return _Room(left_own, left_whole, now + ROOM_VALID_NS)

    # Changing

    def settle(self, asked: StreamConfig, *, pedantic: bool = False) -> StreamConfig:
        """A configuration with its defaults, checked against everything but the present state of the stream."""
        others = {name: config for name, config in self.configs().items() if name != asked.name}
        config = stream_rules.settle(asked, others, pedantic=pedantic)
        window = self.facts.duplicate_window_ns
        if 0 < window < config.duplicate_window:
            if asked.duplicate_window > 0:
                limit = go_duration(window)
                raise bad_stream(f"duplicates window can not be larger then server limit of {limit}")
            config = stream_rules.with_window(config, window)
        stream_rules.check_alone(config)
        self._check_served(config)
        return config

    def _check_served(self, config: StreamConfig) -> None:
        """A stream that would silently lack what it is asked to do is not made."""
        self._check_level(config.metadata)
        if not self.facts.origins and (config.mirror is not None or config.sources):
            raise bad_stream("this server does not serve mirrors and sources")
        for origin in (*config.sources, *([config.mirror] if config.mirror is not None else ())):
            self._check_origin(origin)

    def _check_origin(self, origin: Source) -> None:
        if origin.external is not None and not self.facts.far_origins:
            raise bad_stream("this server serves mirrors and sources within an account only, not 'external'")
        if origin.consumer is not None and not self.facts.far_origins:
            raise bad_stream("this server reads origins without a 'consumer' made beforehand")
        known = self.streams.get(origin.name) if origin.external is None else None
        if known is not None and known.config.retention == "interest":
            raise bad_stream(INTEREST_ORIGIN)

    def _check_level(self, metadata: Mapping[str, str]) -> None:
        if int(metadata.get(REQUIRED_LEVEL, "0")) > self.facts.level:
            raise api_error("JSRequiredApiLevelErr")

    def create_stream(self, asked: StreamConfig, *, pedantic: bool = False) -> Stream:
        """A new stream; the existing one if it is the same."""
        config = self.settle(asked, pedantic=pedantic)
        existing = self.streams.get(config.name)
        if existing is not None:
            if not stream_rules.same(existing.config, config):
                raise api_error("JSStreamNameExistErr")
            return existing
        self.check_new(config)
        try:
            store = self._volume.create(self.log_name(config.name), config=config)
        except BadInput as problem:
            raise bad_stream(str(problem)) from problem
        except HeadraceError as problem:
            raise api_error("JSStreamCreateErrF", err=problem) from problem
        try:
            return self._serve(store)
        except Exception as problem:
            LOG.exception("stream %s was made and cannot be served: it is removed again", config.name)
            self.streams.pop(config.name, None)
            self._volume.delete(self.log_name(config.name))
            raise api_error("JSStreamCreateErrF", err=problem) from problem

    def check_new(self, config: StreamConfig) -> None:
        """Whether there is room for one more stream like that."""
        if config.name in self.offline:
            raise api_error("JSStreamOfflineReasonErrF", err=self.offline[config.name])
        check_filters(config)
        self._check_overlap(config)
        if 0 <= self.limits.max_streams <= len(self.streams):
            raise api_error("JSMaximumStreamsLimitErr")
        self._check_limits(config)

    def update_stream(self, asked: StreamConfig, *, pedantic: bool = False) -> Stream:
        """Change a stream, if the rules allow."""
        config = self.settle(asked, pedantic=pedantic)
        stream = self.stream(config.name)
        config = stream_rules.check_update(stream.config, config)
        self._check_overlap(config)
        self._check_limits(config)
        self._check_consumers(stream, config)
        try:
            stream.reconfigure(config)
        except BadInput as problem:
            raise bad_stream(str(problem)) from problem
        except HeadraceError as problem:
            raise api_error("JSStreamUpdateErrF", err=problem) from problem
        self._changed(stream.name)
        return stream

    def delete_stream(self, name: str) -> None:
        """Remove a stream with all that belongs to it."""
        stream = self.stream(name)
        try:
            stream.delete()
        except HeadraceError as problem:
            raise api_error("JSStreamDeleteErrF", err=problem) from problem
        finally:
            self.streams.pop(name, None)
            self._changed(name)

    def delete_offline(self, name: str) -> None:
        """Remove a stream that cannot be opened; asked for by name, never done by itself."""
        volume = self._volume
        with volume.changing():
            directory = volume.directory_of(self.log_name(name))
            parent, _, base = directory.rpartition("/")
            volume.disk.rename(directory, f"{parent}/.{base}")
            volume.disk.sync_dir(parent)
            volume.disk.remove_dir_all(f"{parent}/.{base}")
        del self.offline[name]

    def restored(self, store: FileStreamStore) -> Stream:
        """A stream that came out of a snapshot."""
        return self._serve(store)

    def _check_overlap(self, config: StreamConfig) -> None:
        for other in self.streams.values():
            if other.name == config.name:
                continue
            if any(subjects_overlap(a, b) for a in config.subjects for b in other.config.subjects):
                raise api_error("JSStreamSubjectOverlapErr")

    def _check_limits(self, config: StreamConfig) -> None:
        limits, in_memory = self.limits, config.storage == "memory"
        if 0 < limits.max_consumers < config.max_consumers:
            raise api_error("JSMaximumConsumersLimitErr")
        if limits.max_bytes_required and config.max_bytes <= 0:
            raise api_error("JSStreamMaxBytesRequired")
        of_stream = limits.memory_max_stream_bytes if in_memory else limits.storage_max_stream_bytes
        if 0 < of_stream < config.max_bytes:
            raise api_error("JSStreamMaxStreamBytesExceeded")
        if config.max_bytes <= 0:
            return
        own = limits.max_memory if in_memory else limits.max_storage
        whole = self.facts.max_memory if in_memory else self.facts.max_storage
        for limit, accounts in ((own, [self]), (whole, self._everybody())):
            if limit >= 0 and config.max_bytes + self._reserved(accounts, config.name, in_memory) > limit:
                raise api_error(
                    "JSMemoryResourcesExceededErr" if in_memory else "JSStorageResourcesExceededErr"
                )

    def _reserved(self, accounts: Iterable[JsAccount], name: str, in_memory: bool) -> int:
        """What streams have reserved, but for the one of that name of this account."""
        used = [each.usage(without=name if each is self else "") for each in accounts]
        return sum(each.reserved_memory if in_memory else each.reserved_storage for each in used)

    def _everybody(self) -> list[JsAccount]:
        known: Iterable[Any] = self.engine.accounts.values()
        found = [each for each in known if isinstance(each, JsAccount)]
        return found if self in found else [*found, self]

    def _check_consumers(self, stream: Stream, config: StreamConfig) -> None:
        """Consumers that are there must fit into the stream's new limits for consumers."""
        limits = config.consumer_limits
        bad = [
            name
            for name, consumer in sorted(stream.consumers.items())
            if 0 < limits.max_ack_pending < consumer.config.max_ack_pending
            or 0 < limits.inactive_threshold < consumer.config.inactive_threshold
        ]
        if bad:
            raise api_error(
                "JSStreamUpdateErrF", err=f"change to limits violates consumers: {', '.join(bad)}"
            )

    # Consumers

    @property
    def caps(self) -> Caps:
        """What the server and this account allow any consumer."""
        pending = smallest(self.limits.max_ack_pending, self.facts.max_ack_pending)
        return Caps(pending, self.facts.max_request_batch)

    def put_consumer(
        self, stream: Stream, name: str, asked: ConsumerConfig, *, action: str = "", pedantic: bool = False
    ) -> tuple[Consumer, bool]:
        """Create a consumer or update the one of that name; returns it and whether it is new."""
        config = consumer_rules.settle(asked, stream.config, self.caps, pedantic=pedantic)
        self._check_level(config.metadata)
        others = [each.config for key, each in stream.consumers.items() if key != name]
        existing = stream.consumers.get(name)
        if existing is not None:
            if action == "create" and not consumer_changes.same(existing.config, config):
                raise api_error("JSConsumerAlreadyExists")
            if action != "create":
                config = consumer_changes.check_update(
                    existing.config, config, active=self._is_bound(existing.config)
                )
                consumer_rules.check_beside(config, stream.config, others)
                existing.update(config)
            return existing, False
        if action == "update":
            raise api_error("JSConsumerDoesNotExist")
        self._check_count(stream, config)
        consumer_rules.check_beside(config, stream.config, others)
        consumer_rules.check_name_fits(name)
        try:
            return stream.add_consumer(name, consumer_rules.created(config)), True
        except BadInput as problem:
            raise bad_stream(str(problem)) from problem
        except HeadraceError as problem:
            raise api_error("JSConsumerStoreFailedErrF", err=problem) from problem
        except Exception as problem:
            LOG.exception(
                "consumer %s of %s was made and cannot be served: it is removed again", name, stream
            )
            stream.consumers.pop(name, None)
            if name in stream.store.consumers.names():
                stream.store.consumers.delete(name)
            raise api_error("JSConsumerCreateErrF", err=problem) from problem

    def _is_bound(self, config: ConsumerConfig) -> bool:
        subject, group = config.deliver_subject, config.deliver_group or None
        return bool(subject) and self.engine.exchange.interest(self.id, subject, group) > 0

    def _check_count(self, stream: Stream, config: ConsumerConfig) -> None:
        limit = smallest(self.limits.max_consumers, stream.config.max_consumers)
        counted = sum(1 for each in stream.consumers.values() if not each.config.direct)
        if counted >= (limit if limit > 0 else CONSUMERS_MAX) and not config.direct:
            raise api_error("JSMaximumConsumersLimitErr")


def _nobody(_name: str) -> None:
    """Nobody is to be told."""
