"""Rules for streams that take their messages from other streams: mirrors and sources.

Only what follows from a configuration is checked here: the origin need not exist. `others` are the configurations of the
account's streams by name; an origin behind an external prefix is not looked up.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from headrace.config.model import External, Source, SourceConsumer, StreamConfig
from headrace.streams.errors import api_error, bad_stream
from headrace.streams.subject_map import BadTransform, compile_map
from headrace.streams.subjects import is_literal, is_subject, overlapping_pair, subjects_overlap

API_PREFIX = "$JS.API"
_NOT_IN_NAMES = frozenset(" \t\r\n\f.*>/\\")
# What a mirror cannot do, in the order in which it is looked at.
_NOT_WITH_MIRROR = (
    ("first_seq", "JSMirrorWithFirstSeqErr"),
    ("subjects", "JSMirrorWithSubjectsErr"),
    ("sources", "JSMirrorWithSourcesErr"),
    ("allow_msg_counter", "JSMirrorWithCountersErr"),
    ("allow_atomic", "JSMirrorWithAtomicPublishErr"),
    ("allow_batched", "JSMirrorWithBatchPublishErr"),
    ("allow_msg_schedules", "JSMirrorWithMsgSchedulesErr"),
)

Others = Mapping[str, StreamConfig]


def mirror_defaults(config: StreamConfig, others: Others, *, pedantic: bool) -> StreamConfig:
    """A mirror checked, and `mirror_direct` taken from its origin."""
    mirror = config.mirror
    if mirror is None:
        return config
    _check_mirror(config, mirror)
    if mirror.external is not None:
        _check_external(mirror.external)
        return config
    if not _is_name(mirror.name):
        raise api_error("JSMirrorInvalidStreamName")
    origin = others.get(mirror.name)
    if origin is None:
        return config
    if 0 < config.max_msg_size < origin.max_msg_size:
        raise api_error("JSMirrorMaxMessageSizeTooBigErr")
    if pedantic and origin.allow_direct != config.mirror_direct:
        text = "origin stream has direct get set, mirror has it disabled"
        raise api_error("JSPedanticErrF", err=text)
    return replace(config, mirror_direct=origin.allow_direct)


def _check_mirror(config: StreamConfig, mirror: Source) -> None:
    """What a mirror may not have beside it, and its own consumer and transforms."""
    for field, error in _NOT_WITH_MIRROR:
        if getattr(config, field):
            raise api_error(error)
    if config.subject_delete_marker_ttl:
        raise bad_stream("subject delete markers forbidden on mirrors")
    if not _sound_consumer(mirror):
        raise api_error("JSMirrorDurableConsumerCfgInvalid")
    _check_transforms(mirror, "Mirror")


def check_sources(config: StreamConfig, others: Others) -> None:
    """Every source by itself, and no two alike."""
    if config.sources and config.allow_msg_schedules:
        raise api_error("JSSourceWithMsgSchedulesErr")
    seen: set[tuple[object, ...]] = set()
    for source in config.sources:
        if not _is_name(source.name):
            raise api_error("JSSourceInvalidStreamName")
        _check_transforms(source, "Source")
        if not _sound_consumer(source):
            raise api_error("JSSourceDurableConsumerCfgInvalid")
        key = (
            source.name,
            source.external,
            source.filter_subject,
            source.subject_transforms,
            source.consumer,
        )
        if key in seen:
            raise api_error("JSSourceDuplicateDetected")
        seen.add(key)
        if source.external is not None:
            _check_external(source.external)
            continue
        origin = others.get(source.name)
        if origin is not None and 0 < config.max_msg_size < origin.max_msg_size:
            raise api_error("JSSourceMaxMessageSizeTooBigErr")


def check_cycle(config: StreamConfig, others: Others) -> None:
    """A stream must not feed itself, by whatever way."""
    waiting, seen = _origins(config), set[str]()
    while waiting:
        name = waiting.pop()
        if name == config.name:
            raise bad_stream("detected cycle")
        if name not in seen and name in others:
            seen.add(name)
            waiting |= _origins(others[name])


def check_filters(config: StreamConfig) -> None:
    """Filters are looked at last, when everything else is known."""
    if config.mirror is not None and not _sound_filter(config.mirror):
        text = f"subject filter '{config.mirror.filter_subject}' for the mirror invalid subject"
        raise api_error("JSStreamCreateErrF", err=text)
    for source in config.sources:
        if not _sound_filter(source):
            text = f"subject filter '{source.filter_subject}' for the source: invalid subject"
            raise api_error("JSStreamCreateErrF", err=text)


def _origins(config: StreamConfig) -> set[str]:
    every = (*config.sources, *([config.mirror] if config.mirror is not None else []))
    return {each.name for each in every if each.external is None}


def _is_name(name: str) -> bool:
    return bool(name) and _NOT_IN_NAMES.isdisjoint(name)


def _sound_filter(source: Source) -> bool:
    return not source.filter_subject or is_subject(source.filter_subject)


def _sound_consumer(source: Source) -> bool:
    """A consumer that was made beforehand brings its own filter and start."""
    consumer: SourceConsumer | None = source.consumer
    if consumer is None:
        return True
    subject = consumer.deliver_subject
    if not _is_name(consumer.name) or not subject or not is_subject(subject) or not is_literal(subject):
        return False
    return not (source.filter_subject or source.opt_start_seq or source.opt_start_time)


def _check_transforms(source: Source, kind: str) -> None:
    transforms = source.subject_transforms
    if transforms and source.filter_subject:
        raise api_error(f"JS{kind}MultipleFiltersNotAllowed")
    for each in transforms:
        try:
            compile_map(each.src, each.dest)
        except BadTransform as problem:
            bad = "InvalidSubjectFilter" if problem.place == "source" else "InvalidTransformDestination"
            raise api_error(f"JS{kind}{bad}", err=str(problem)) from problem
    if overlapping_pair([each.src for each in transforms]) is not None:
        raise api_error(f"JS{kind}OverlappingSubjectFilters")


def _check_external(external: External) -> None:
    prefix, deliver = external.api, external.deliver
    if prefix and not (is_subject(prefix) and is_literal(prefix)):
        raise bad_stream(f'stream external api prefix "{prefix}" must be a valid subject without wildcards')
    if deliver and not (is_subject(deliver) and is_literal(deliver)):
        raise api_error("JSStreamInvalidExternalDeliverySubjErrF", prefix=deliver)
    if prefix and subjects_overlap(prefix, API_PREFIX):
        raise api_error("JSStreamExternalApiOverlapErrF", prefix=prefix, subject=API_PREFIX)
