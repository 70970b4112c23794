"""`JsAccount`: the streams of one account, what they may be together, and what they take.

Stream objects are made by a factory (`Stream(engine, account, store)`), so that the model runs without a server. A
stream that cannot be opened at start is not fatal and not forgotten: it is offline, its name stays taken, and everybody
who asks gets the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.config.model import REQUIRED_LEVEL, ConsumerConfig, Source, StreamConfig
from headrace.errors import BadInput, HeadraceError
from headrace.layouts.stream_store import StreamStore, StreamVolume
from headrace.streams._kernels import PatternSet
from headrace.streams.api.call_queue import CallQueue
from headrace.streams.consumer import changes as consumer_changes
from headrace.streams.consumer import rules as consumer_rules
from headrace.streams.consumer.rules import Caps
from headrace.streams.errors import ApiError, api_error, bad_stream, client_text
from headrace.streams.limits import AccountLimits, ServerFacts, go_duration, smallest
from headrace.streams.sourcing.origins import INTEREST_ORIGIN
from headrace.streams.sourcing.rules import check_filters
from headrace.streams.stream import rules as stream_rules
from headrace.streams.stream.dedup_state import DedupState
from headrace.streams.subjects import subjects_overlap

if TYPE_CHECKING:
    from headrace.streams._kernels import Batch, PublishRun
    from headrace.streams.consumer.consumer import Consumer
    from headrace.streams.engine import StreamEngine
    from headrace.streams.stream.stream import Stream

LOG = logging.getLogger("headrace.streams")
CONSUMERS_MAX = 1000
"""Per stream, where neither the stream nor the account says otherwise."""
RECORD_BYTES = 30
FREE_VALID_NS = 50_000_000
NO_LIMIT = 1 << 62

StreamFactory = Callable[["StreamEngine", "JsAccount", StreamStore], "Stream"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What the streams of an account hold and have reserved (`max_bytes`), per storage."""

    memory: int
    storage: int
    reserved_memory: int
    reserved_storage: int


@dataclass(slots=True)
class _FreeBytes:
    """Bytes that may still be stored, by the account and by the server, as counted a moment ago."""

    own: int
    whole: int
    until_ns: int


class StreamCreation:
    """A stream on its way: checked on the loop, made off it (`work`), served on it (`finish`)."""

    def __init__(self, account: JsAccount, config: StreamConfig) -> None:
        self._account, self._config = account, config
        self._label = account.reserve(config)

    def work(self) -> StreamStore:
        """Make its files; on whatever thread."""
        return self._account.make_store(self._config)

    def finish(self, made: StreamStore | Exception) -> Stream:
        """Serve it; ApiError if it was not made."""
        self._account.release(self._config, self._label)
        if isinstance(made, BadInput):
            raise bad_stream(str(made)) from made
        if isinstance(made, Exception):
            raise api_error("JSStreamCreateErrF", err=made) from made
        return self._account.serve_new(made)


class JsAccount:
    """One account with JetStream."""

    def __init__(
        self,
        engine: StreamEngine,
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
        self._free: dict[bool, _FreeBytes] = {}
        self.on_change: Callable[[str], None] = _nobody
        """Called with the name of a stream that was made, changed or removed."""
        self.being_made = 0
        """Streams that are not there yet."""
        self.calls = CallQueue()
        """API calls that change something and take longer than a turn."""
        self._patterns = PatternSet()
        """The subjects of all streams, by the stream's id; also of those that are being made."""
        self._names: dict[int, str] = {}
        self._with_origins: dict[str, Stream] = {}
        self._factory = factory
        self._dedup_states: dict[StreamStore, DedupState] = {}

    @property
    def _volume(self) -> StreamVolume:
        volume = self.engine.volume
        if volume is None:
            raise api_error("JSNotEnabledErr")
        return volume

    def log_name(self, stream: str) -> str:
        """What the volume calls a stream of this account."""
        return self._volume.log_name(self.name, stream)

    # At start

    def recover(self) -> None:
        """Open everything that the volume holds for this account, consumers included."""
        volume = self._volume
        own = [log for log in volume.logs() if volume.account_of(log) == self.name]
        volume.open_ahead(own, self.first_look)
        for log in own:
            if volume.is_unfinished(log):
                continue
            name = log.rpartition("/")[2]
            try:
                store = volume.open(log, self.first_look)
                for consumer in store.consumers.names():
                    if store.consumers.get(consumer).config.mem_storage:  # it ended with its server
                        store.consumers.delete(consumer)
                self._serve(store)
            except Exception as problem:  # a stream that cannot be served must not keep the others from it
                LOG.error("stream %s is offline: %s", log, problem)
                self.offline[name] = str(problem)

    def first_look(self, store: StreamStore) -> None:
        """A store is there, its limits are not applied yet: read what is to be remembered of its messages."""
        store.expires_itself = not store.config.allow_msg_ttl
        self._dedup_states[store] = DedupState(store, self.engine.clock)

    def dedup_state_of(self, store: StreamStore) -> DedupState:
        """What a stream remembers, for the one who serves it."""
        found = self._dedup_states.pop(store, None)
        return found if found is not None else DedupState(store, self.engine.clock)

    def _serve(self, store: StreamStore) -> Stream:
        stream = self._factory(self.engine, self, store)
        self.streams[stream.name] = stream
        self._patterns.add(stream.config.subjects, stream.id)
        self._names[stream.id] = stream.name
        for name in store.consumers.names():
            stream.add_consumer(store.consumers.get(name))
        stream.remove_acked_at_start()
        self._changed(stream.name)
        return stream

    def _changed(self, name: str) -> None:
        found = self.streams.get(name)
        if found is not None and found.origins is not None:
            self._with_origins[name] = found
        else:
            self._with_origins.pop(name, None)
        listening = [self.streams[each] for each in self.names("$JS.EVENT.>")]
        every = (subject for stream in listening for subject in stream.config.subjects)
        self.event_subjects = tuple(each for each in every if subjects_overlap(each, "$JS.EVENT.>"))
        for stream in self._with_origins.values():
            if stream.origins is not None:
                stream.origins.look(name)
        self.on_change(name)

    def _forget(self, stream: Stream) -> None:
        """A stream is gone, or could not be served."""
        self.streams.pop(stream.name, None)
        self._patterns.remove(stream.config.subjects, stream.id)
        self._names.pop(stream.id, None)

    # Looking

    def stream(self, name: str) -> Stream:
        """The stream of that name; 404/10059 if there is none, 500/10194 if it is offline."""
        found = self.streams.get(name)
        if found is not None:
            return found
        if name in self.offline:
            raise api_error("JSStreamOfflineReasonErrF", err=client_text(self.offline[name]))
        raise api_error("JSStreamNotFoundErr")

    def configs(self) -> dict[str, StreamConfig]:
        """The configurations of all streams by name."""
        return {name: stream.config for name, stream in self.streams.items()}

    def names(self, subject: str = "") -> list[str]:
        """All streams, or those that a subject (pattern) touches; sorted."""
        if not subject:
            return sorted(self.streams)
        return sorted(self._names[each] for each in self._patterns.labels(subject) if each in self._names)

    def usage(self, *, without: str = "") -> Usage:
        """What all streams (but one) take together."""
        held = {"memory": 0, "file": 0}
        reserved = {"memory": 0, "file": 0}
        for stream in self.streams.values():
            storage = stream.config.storage
            held[storage] += stream.store.held_bytes
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
        free = self._free.get(in_memory)
        if free is None or now >= free.until_ns or min(free.own, free.whole) < size:
            free = self._free[in_memory] = self._count_free(in_memory, own, whole, now)
        if free.own < size:
            return api_error("JSAccountResourcesExceededErr")
        if free.whole < size:
            return api_error("JSInsufficientResourcesErr")
        free.own -= size
        free.whole -= size
        return None

    def _count_free(self, in_memory: bool, own: int, whole: int, now: int) -> _FreeBytes:
        def held(account: JsAccount) -> int:
            used = account.usage()
            return used.memory if in_memory else used.storage

        left_own = own - held(self) if own >= 0 else NO_LIMIT
        left_whole = whole - sum(map(held, self._everybody())) if whole >= 0 else NO_LIMIT
        return _FreeBytes(left_own, left_whole, now + FREE_VALID_NS)

    # Changing

    def apply_defaults(self, requested: StreamConfig, *, pedantic: bool = False) -> StreamConfig:
        """A configuration with its defaults, checked against everything but the present state of the stream."""
        others = {name: config for name, config in self.configs().items() if name != requested.name}
        config = stream_rules.apply_defaults(requested, others, pedantic=pedantic)
        window = self.facts.duplicate_window_ns
        if 0 < window < config.duplicate_window:
            if requested.duplicate_window > 0:
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

    def begin_create(self, requested: StreamConfig, *, pedantic: bool = False) -> Stream | StreamCreation:
        """A new stream that is to be made; the existing one if it is the same."""
        config = self.apply_defaults(requested, pedantic=pedantic)
        existing = self.streams.get(config.name)
        if existing is not None:
            if not stream_rules.same(existing.config, config):
                raise api_error("JSStreamNameExistErr")
            return existing
        self.check_new(config)
        return StreamCreation(self, config)

    def reserve(self, config: StreamConfig) -> int:
        """Nobody else may take these subjects while a stream is being made."""
        label = self.engine.new_id()
        self._patterns.add(config.subjects, label)
        self.being_made += 1
        return label

    def release(self, config: StreamConfig, label: int) -> None:
        """The stream is made, or not."""
        self._patterns.remove(config.subjects, label)
        self.being_made -= 1

    def make_store(self, config: StreamConfig) -> StreamStore:
        """The files of a new stream; on whatever thread."""
        store = self._volume.create(self.log_name(config.name), config=config)
        self.first_look(store)
        return store

    def serve_new(self, store: StreamStore) -> Stream:
        """Serve what `make_store` made; if that fails it is removed again."""
        try:
            return self._serve(store)
        except Exception as problem:
            LOG.exception("stream %s was made and cannot be served: it is removed again", store.name)
            if (stream := self.streams.get(store.name)) is not None:
                self._forget(stream)
            self._volume.delete(self.log_name(store.name))
            raise api_error("JSStreamCreateErrF", err=problem) from problem

    def check_new(self, config: StreamConfig) -> None:
        """Whether there is room for one more stream like that."""
        if config.name in self.offline:
            raise api_error("JSStreamOfflineReasonErrF", err=client_text(self.offline[config.name]))
        check_filters(config)
        self._check_overlap(config)
        if 0 <= self.limits.max_streams <= len(self.streams) + self.being_made:
            raise api_error("JSMaximumStreamsLimitErr")
        self._check_limits(config)

    def check_update(self, requested: StreamConfig, *, pedantic: bool = False) -> tuple[Stream, StreamConfig]:
        """A stream and what it is to become, if the rules allow."""
        config = self.apply_defaults(requested, pedantic=pedantic)
        stream = self.stream(config.name)
        config = stream_rules.check_update(stream.config, config)
        self._check_overlap(config)
        self._check_limits(config)
        self._check_consumers(stream, config)
        return stream, config

    def finish_update(self, stream: Stream, result: Any) -> None:
        """Its files say so now: follow them."""
        if isinstance(result, BadInput):
            raise bad_stream(str(result)) from result
        if isinstance(result, Exception):
            raise api_error("JSStreamUpdateErrF", err=result) from result
        self._patterns.remove(stream.config.subjects, stream.id)
        stream.reconfigured()
        self._patterns.add(stream.config.subjects, stream.id)
        self._changed(stream.name)

    def begin_delete(self, name: str) -> Callable[[], None]:
        """A stream is served no more; what is returned removes its files, on whatever thread."""
        stream = self.stream(name)
        stream.leave(deleted=True)
        self._forget(stream)
        self._changed(name)
        return partial(self._volume.delete, self.log_name(name))

    def delete_offline(self, name: str) -> None:
        """Remove a stream that cannot be opened; asked for by name, never done by itself."""
        self._volume.delete_unopened(self.log_name(name))

    def restored(self, store: StreamStore) -> Stream:
        """A stream that came out of a snapshot."""
        return self._serve(store)

    def _check_overlap(self, config: StreamConfig) -> None:
        own = self.streams.get(config.name)
        try:
            found = self._patterns.first_overlap(config.subjects, None if own is None else own.id)
        except BadInput as problem:
            raise bad_stream(str(problem)) from problem
        if found is not None:
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

    def check_consumer(
        self,
        stream: Stream,
        name: str,
        requested: ConsumerConfig,
        *,
        action: str = "",
        pedantic: bool = False,
    ) -> tuple[Consumer | None, ConsumerConfig]:
        """The consumer of that name, if there is one, and what it is to be; ApiError if the rules say no."""
        config = consumer_rules.apply_defaults(requested, stream.config, self.caps, pedantic=pedantic)
        self._check_level(config.metadata)
        others = (each.config for key, each in stream.consumers.items() if key != name)
        existing = stream.consumers.get(name)
        if existing is not None:
            if action != "create":
                config = consumer_changes.check_update(
                    existing.config, config, active=self._is_bound(existing.config)
                )
                consumer_rules.check_beside(config, stream.config, others)
            elif not consumer_changes.same(existing.config, config):
                raise api_error("JSConsumerAlreadyExists")
            return existing, existing.config if action == "create" else config
        if action == "update":
            raise api_error("JSConsumerDoesNotExist")
        self._check_count(stream, config)
        consumer_rules.check_beside(config, stream.config, others)
        consumer_rules.check_name_fits(name)
        return None, consumer_rules.created(config)

    def serve_consumer(self, stream: Stream, name: str, made: Any) -> Consumer:
        """Serve what `Stream.make_consumer` made; if that fails it is removed again."""
        if isinstance(made, BadInput):
            raise bad_stream(str(made)) from made
        if isinstance(made, HeadraceError):
            raise api_error("JSConsumerStoreFailedErrF", err=made) from made
        try:
            if isinstance(made, Exception):
                raise made
            return stream.add_consumer(*made)
        except Exception as problem:
            LOG.exception(
                "consumer %s of %s was made and cannot be served: it is removed again", name, stream
            )
            stream.consumers.pop(name, None)
            if name in stream.store.consumers:
                stream.store.consumers.delete(name)
            raise api_error("JSConsumerCreateErrF", err=problem) from problem

    def _is_bound(self, config: ConsumerConfig) -> bool:
        subject, group = config.deliver_subject, config.deliver_group or None
        return bool(subject) and self.engine.exchange.interest(self.id, subject, group) > 0

    def _check_count(self, stream: Stream, config: ConsumerConfig) -> None:
        limit = smallest(self.limits.max_consumers, stream.config.max_consumers)
        allowed = limit if limit > 0 else CONSUMERS_MAX
        if config.direct or len(stream.consumers) < allowed:
            return
        if sum(1 for each in stream.consumers.values() if not each.config.direct) >= allowed:
            raise api_error("JSMaximumConsumersLimitErr")


def _nobody(_name: str) -> None:
    """Nobody is to be notified."""
