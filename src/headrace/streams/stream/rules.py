"""What a stream may be: what is left open gets its default, what cannot work is refused, as nats-server 2.15.2 does.

    config = apply_defaults(requested, others, pedantic=…)     create, and the first half of an update
    config = check_update(before, config)          the second half: what may change

Both raise ApiError with the server's code and words, in its order. `others` are the account's streams by name. In
pedantic mode a silent adjustment is refused as well. Mirrors and sources have their own page, `sourcing/rules.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from headrace.config.model import REQUIRED_LEVEL, Republish, StreamConfig
from headrace.streams.errors import ApiError, api_error, bad_stream
from headrace.streams.limits import FIRST_SEQ_MAX
from headrace.streams.sourcing.rules import check_cycle, check_sources, mirror_defaults
from headrace.streams.subject_map import BadTransform, compile_map
from headrace.streams.subjects import is_subject, matches, overlapping_pair, subjects_overlap

NAME_RULE = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
NAME_BYTES_MAX = 255
DESCRIPTION_BYTES_MAX = 4096
METADATA_BYTES_MAX = 128 << 10
REPLICAS_MAX = 5
SUBJECTS_MAX = 10_000
"""Of one stream, and filters of one consumer. nats-server has no limit here, but for the size of a request."""
SECOND_NS = 1_000_000_000
SHORTEST_NS = SECOND_NS // 10
DUPLICATES_NS = 120 * SECOND_NS
UNLIMITED = -1
NOT_IN_NAMES = frozenset(" \t\r\n\f.*>/\\")
_LIMITS = ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers")
_SERVER_NOTES = (REQUIRED_LEVEL, "_nats.ver", "_nats.level")
# Subjects of the server itself, and the part of them that a stream may take all the same.
_RESERVED = (
    ("jetstream", ("$JS.>", "$JSC.>", "$NRG.>"), "$JS.EVENT.>"),
    ("system", ("$SYS.>",), "$SYS.ACCOUNT.>"),
)

Others = Mapping[str, StreamConfig]


def apply_defaults(requested: StreamConfig, others: Others, *, pedantic: bool = False) -> StreamConfig:
    """The configuration with its defaults; ApiError if it cannot be."""
    config = _plain(requested)
    if config.mirror is None and config.mirror_direct:
        raise bad_stream("stream has no mirror but does have mirror direct")
    _check_texts(config)
    if config.first_seq > FIRST_SEQ_MAX:
        raise bad_stream(f"first sequence can not be larger than {FIRST_SEQ_MAX}")
    config = _replica_defaults(config)
    config = _limit_defaults(config, pedantic)
    config = _time_defaults(config, pedantic)
    if config.allow_rollup_hdrs and config.deny_purge:
        raise bad_stream("roll-ups require the purge permission")
    _check_counter(config)
    _check_discard(config)
    config = _marker_defaults(config, pedantic)
    config = _schedule_defaults(config, pedantic)
    _check_persist_mode(config)
    config = mirror_defaults(config, others, pedantic=pedantic)
    check_sources(config, others)
    check_cycle(config, others)
    if not config.subjects and config.mirror is None and not config.sources:
        config = replace(config, subjects=(config.name,))
    _check_subjects(config)
    _check_transform(config)
    config = _republish_defaults(config, pedantic)
    return config.filled()


def with_window(config: StreamConfig, window_ns: int) -> StreamConfig:
    """The same with a shorter duplicates window."""
    return replace(config, duplicate_window=window_ns)


def check_alone(config: StreamConfig) -> None:
    """What a server without a cluster does not offer."""
    if config.placement is not None and config.placement.preferred:
        raise bad_stream("preferred server not permitted in placement")
    if config.num_replicas > 1:
        raise api_error("JSStreamReplicasNotSupportedErr")


def same(one: StreamConfig, other: StreamConfig) -> bool:
    """Whether two complete configurations are the same stream; the server's notes in `metadata` do not count."""
    return replace(one, metadata=user_metadata(one.metadata)) == replace(
        other, metadata=user_metadata(other.metadata)
    )


def user_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Without what servers note."""
    return {key: text for key, text in metadata.items() if key not in _SERVER_NOTES}


def check_update(before: StreamConfig, config: StreamConfig) -> StreamConfig:
    """Whether a stream may become that; the result differs from `config` when it is being sealed."""
    remirrored = before.mirror != config.mirror and config.mirror is not None
    for refused, text in (
        (before.storage != config.storage, "stream configuration update can not change storage type"),
        (
            before.retention != config.retention and "workqueue" in (before.retention, config.retention),
            "stream configuration update can not change retention policy to/from workqueue",
        ),
        (before.sealed and not config.sealed, "stream configuration update can not unseal a sealed stream"),
        (
            before.deny_delete and not config.deny_delete,
            "stream configuration update can not cancel deny message deletes",
        ),
        (
            before.deny_purge and not config.deny_purge,
            "stream configuration update can not cancel deny purge",
        ),
        (remirrored, ""),
        (before.allow_msg_ttl and not config.allow_msg_ttl, "message TTL status can not be disabled"),
        (
            before.allow_msg_counter != config.allow_msg_counter,
            "stream configuration update can not change message counter setting",
        ),
        (
            before.allow_msg_schedules and not config.allow_msg_schedules,
            "message schedules can not be disabled",
        ),
        (
            _persist_mode(before) != _persist_mode(config),
            "stream configuration update can not change persist mode",
        ),
    ):
        if refused:
            raise bad_stream(text) if text else api_error("JSStreamMirrorNotUpdatableErr")
    if not config.sealed:
        return config
    return replace(
        config, max_age=0, discard="new", deny_delete=True, deny_purge=True, allow_rollup_hdrs=False
    )


def _plain(requested: StreamConfig) -> StreamConfig:
    """A configuration without what only requests have, and without parts that say nothing."""
    fields = {name: getattr(requested, name) for name in StreamConfig.__struct_fields__}
    placement = requested.placement
    if placement is not None and not (placement.cluster or placement.tags or placement.preferred):
        fields["placement"] = None
    if requested.persist_mode == "default":
        fields["persist_mode"] = ""
    fields["metadata"] = user_metadata(requested.metadata)
    return StreamConfig(**fields)


def _check_texts(config: StreamConfig) -> None:
    if not config.name or not NOT_IN_NAMES.isdisjoint(config.name):
        raise bad_stream(NAME_RULE)
    if len(config.name.encode()) > NAME_BYTES_MAX:
        raise bad_stream(f"stream name is too long, maximum allowed is {NAME_BYTES_MAX}")
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise bad_stream(f"stream description is too long, maximum allowed is {DESCRIPTION_BYTES_MAX}")
    if metadata_bytes(config.metadata) > METADATA_BYTES_MAX:
        raise bad_stream(f"stream metadata exceeds maximum size of {METADATA_BYTES_MAX} bytes")


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """What counts against the limit: the user's, and the one note that is stored with it."""
    own = sum(len(key.encode()) + len(text.encode()) for key, text in metadata.items())
    return own + len(REQUIRED_LEVEL) + 1


def _replica_defaults(config: StreamConfig) -> StreamConfig:
    if config.num_replicas > REPLICAS_MAX:
        raise bad_stream(f"maximum replicas is {REPLICAS_MAX}")
    if config.num_replicas < 0:
        raise api_error("JSReplicasCountCannotBeNegative")
    return replace(config, num_replicas=config.num_replicas or 1)


def _pedantic(text: str) -> ApiError:
    return api_error("JSPedanticErrF", err=text)


def _limit_defaults(config: StreamConfig, pedantic: bool) -> StreamConfig:
    for name in _LIMITS:
        value: int = getattr(config, name)
        if value < UNLIMITED and pedantic:
            raise _pedantic(f"{name} must be set to -1")
        if value < UNLIMITED or value == 0:
            config = replace(config, **{name: UNLIMITED})
    return config


def _time_defaults(config: StreamConfig, pedantic: bool) -> StreamConfig:
    age, window = config.max_age, config.duplicate_window
    if age < 0:
        raise bad_stream("max age can not be negative")
    if 0 < age < SHORTEST_NS:
        raise bad_stream("max age needs to be >= 100ms")
    if window < 0:
        raise bad_stream("duplicates window can not be negative")
    if 0 < age < window:
        raise bad_stream("duplicates window can not be larger then max age")
    if 0 < window < SHORTEST_NS:
        raise bad_stream("duplicates window needs to be >= 100ms")
    if window == 0 and config.mirror is None and not config.sources:
        if 0 < age < DUPLICATES_NS and pedantic:
            raise _pedantic("duplicate window cannot be bigger than max age")
        return replace(config, duplicate_window=min(DUPLICATES_NS, age or DUPLICATES_NS))
    return config


def _check_counter(config: StreamConfig) -> None:
    if not config.allow_msg_counter:
        return
    if config.discard == "new":
        raise bad_stream("counter stream cannot use discard new")
    if config.allow_msg_ttl:
        raise bad_stream("counter stream cannot use message TTLs")
    if config.allow_msg_schedules:
        raise bad_stream("counter stream cannot use message schedules")
    if config.retention != "limits":
        raise bad_stream("counter stream can only use limits retention")


def _check_discard(config: StreamConfig) -> None:
    if config.discard_new_per_subject:
        if config.discard != "new":
            raise bad_stream("discard new per subject requires discard new policy to be set")
        if config.max_msgs_per_subject <= 0:
            raise bad_stream("discard new per subject requires max msgs per subject > 0")


def _marker_defaults(config: StreamConfig, pedantic: bool) -> StreamConfig:
    """Delete markers are messages with a TTL that roll up their subject: both are switched on with them."""
    ttl = config.subject_delete_marker_ttl
    if ttl < 0:
        raise bad_stream("subject delete marker TTL must not be negative")
    if ttl == 0:
        return config
    if ttl < SECOND_NS:
        raise bad_stream("subject delete marker TTL must be at least 1 second")
    if pedantic and not config.allow_msg_ttl:
        raise bad_stream("subject delete marker cannot be set if message TTLs are disabled")
    if pedantic and not config.allow_rollup_hdrs:
        raise bad_stream("subject delete marker cannot be set if roll-ups are disabled")
    return replace(config, allow_msg_ttl=True, allow_rollup_hdrs=True, deny_purge=False)


def _schedule_defaults(config: StreamConfig, pedantic: bool) -> StreamConfig:
    if not config.allow_msg_schedules:
        return config
    if config.discard == "new":
        raise bad_stream("message scheduling cannot use discard new")
    if pedantic and not config.allow_rollup_hdrs:
        raise bad_stream("message scheduling cannot be set if roll-ups are disabled")
    return replace(config, allow_rollup_hdrs=True, deny_purge=False)


def _persist_mode(config: StreamConfig) -> str:
    return config.persist_mode or "default"


def _check_persist_mode(config: StreamConfig) -> None:
    if _persist_mode(config) != "async":
        return
    if config.storage != "file":
        raise bad_stream("async persist mode is only supported on file storage")
    if config.num_replicas > 1:
        raise bad_stream("async persist mode is not supported on replicated streams")
    if config.allow_atomic:
        raise bad_stream("async persist mode is not supported with atomic batch publish")


def _check_subjects(config: StreamConfig) -> None:
    """Well formed, disjoint, and not the server's own: the first one that is not is named."""
    subjects = config.subjects
    if len(subjects) > SUBJECTS_MAX:
        raise bad_stream(f"{len(subjects)} subjects, the maximum allowed is {SUBJECTS_MAX}")
    refused: ApiError | None = None
    sound = 0
    try:
        for subject in subjects:
            if not is_subject(subject):
                raise bad_stream("invalid subject")
            if not config.no_ack:
                _check_not_reserved(subject)
            sound += 1
    except ApiError as problem:
        refused = problem
    pair = overlapping_pair(subjects[:sound])
    if pair is not None:
        raise bad_stream(f'subject "{pair[0]}" overlaps with "{pair[1]}"')
    if refused is not None:
        raise refused


def _check_not_reserved(subject: str) -> None:
    if subject[0] not in "$*>":
        return
    if subject == ">":
        raise bad_stream("capturing all subjects requires no-ack to be true")
    for whose, reserved, free in _RESERVED:
        if any(subjects_overlap(subject, each) for each in reserved) and not matches(free, subject):
            raise bad_stream(f"subjects that overlap with {whose} api require no-ack to be true")


def _check_transform(config: StreamConfig) -> None:
    transform = config.subject_transform
    if transform is None:
        return
    try:
        compile_map(transform.src, transform.dest)
    except BadTransform as problem:
        where = "Source" if problem.place == "source" else "Destination"
        raise api_error(f"JSStreamTransformInvalid{where}", err=str(problem)) from problem


def _republish_defaults(config: StreamConfig, pedantic: bool) -> StreamConfig:
    republish = config.republish
    if republish is None:
        return config
    if not republish.src and pedantic:
        raise _pedantic("republish source can not be empty")
    source, destination = republish.src or ">", republish.dest
    forms_cycle = any(subjects_overlap(destination, each) for each in config.subjects)
    if forms_cycle and is_subject(destination):
        raise bad_stream("stream configuration for republish destination forms a cycle")
    try:
        compile_map(source, destination)
    except BadTransform as problem:
        raise bad_stream(
            f"stream configuration for republish with transform from '{source}' to '{destination}' not valid"
        ) from problem
    return replace(
        config, republish=Republish(src=source, dest=destination, headers_only=republish.headers_only)
    )
