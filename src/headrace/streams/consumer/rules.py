"""What a consumer may be: what is left open gets its default, what cannot work is refused, as nats-server 2.15.2 does.

    config = apply_defaults(requested, stream, caps, pedantic=…)    defaults, and everything that the configuration itself decides
    check_beside(config, stream, others)                work queues: no two consumers for one message
    config = created(config)                            what only a new consumer gets

All raise ApiError with the server's code and words. What may change later is in `changes.py`; names given in
the subject and in the body are compared in `api/consumers.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from headrace.config.model import ConsumerConfig, StreamConfig
from headrace.streams.api.types import NO_TIME
from headrace.streams.errors import ApiError, api_error, bad_stream
from headrace.streams.limits import go_duration
from headrace.streams.stream.rules import (
    DESCRIPTION_BYTES_MAX,
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
    NOT_IN_NAMES,
    SECOND_NS,
    SHORTEST_NS,
    SUBJECTS_MAX,
    metadata_bytes,
    user_metadata,
)
from headrace.streams.subjects import is_literal, is_subject, overlapping_pair, subjects_overlap

NAME_RULE = "consumer name can not contain '.', '*', '>', '\\', '/'"
ACK_WAIT_NS = 30 * SECOND_NS
ACK_PENDING = 1000
WAITING = 512
PIN_NS = 120 * SECOND_NS
INACTIVE_NS = 5 * SECOND_NS
GROUP_CHARS_MAX = 16
_GROUP_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_/=")
# The lowest value of each number, in the order in which they are looked at.
_LOWEST = {
    "max_deliver": -1,
    "max_waiting": 0,
    "max_ack_pending": -1,
    "max_batch": 0,
    "max_expires": 0,
    "max_bytes": 0,
    "idle_heartbeat": 0,
    "inactive_threshold": 0,
    "priority_timeout": 0,
}
# Deliver policy → its name in texts, whether it wants a start sequence, a start time.
_POLICIES = {
    "all": ("deliver all", False, False),
    "last": ("deliver last", False, False),
    "last_per_subject": ("deliver last per subject", False, False),
    "new": ("deliver new", False, False),
    "by_start_sequence": ("deliver by start sequence", True, False),
    "by_start_time": ("deliver by start time", False, True),
}


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits that the server or the account sets on every consumer; -1 is none."""

    max_ack_pending: int = -1
    max_request_batch: int = -1


def apply_defaults(
    requested: ConsumerConfig, stream: StreamConfig, caps: Caps, *, pedantic: bool = False
) -> ConsumerConfig:
    """The configuration with its defaults; ApiError if it cannot be."""
    if requested.num_replicas > 1:
        raise api_error("JSStreamReplicasNotSupportedErr")
    config = replace(requested, metadata=user_metadata(requested.metadata))
    config = _number_defaults(config, caps, pedantic)
    config = _ack_defaults(config, stream, caps, pedantic)
    config = _flow_control_defaults(config, pedantic)
    if config.num_replicas < 0:
        raise api_error("JSReplicasCountCannotBeNegative")
    _check_name_length(config)
    _check_acks(config)
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise api_error("JSConsumerDescriptionTooLongErrF", max=DESCRIPTION_BYTES_MAX)
    if config.deliver_subject:
        _check_push(config, stream)
    else:
        _check_pull(config, stream)
    _check_limits(config, stream, caps)
    if config.direct and not config.deliver_subject:
        raise api_error("JSConsumerDirectRequiresPushErr")
    if config.direct and config.durable_name:
        raise api_error("JSConsumerDirectRequiresEphemeralErr")
    _check_filters(config)
    _check_start(config)
    _check_sampling(config.sample_freq)
    if metadata_bytes(config.metadata) > METADATA_BYTES_MAX:
        raise api_error("JSConsumerMetadataLengthErrF", limit=f"{METADATA_BYTES_MAX >> 10}KB")
    _check_groups(config)
    return replace(config, metadata=stored_metadata(config))


def stored_metadata(config: ConsumerConfig) -> dict[str, str]:
    """The user's metadata and the API level that the consumer needs. Some clients send "paused until never"."""
    never = config.pause_until == NO_TIME
    return (replace(config, pause_until=None) if never else config).filled().metadata


def created(config: ConsumerConfig) -> ConsumerConfig:
    """A new consumer: an ephemeral one goes when nobody is there for a while."""
    if config.durable_name:
        return replace(config, name=config.name or config.durable_name)
    return replace(config, inactive_threshold=config.inactive_threshold or INACTIVE_NS)


def _pedantic(text: str) -> ApiError:
    return api_error("JSPedanticErrF", err=text)


def _number_defaults(config: ConsumerConfig, caps: Caps, pedantic: bool) -> ConsumerConfig:
    for name, lowest in _LOWEST.items():
        if getattr(config, name) < lowest:
            if pedantic:
                raise _pedantic(f"{name} must {'not be negative' if lowest == 0 else 'be set to -1'}")
            config = replace(config, **{name: lowest})
    if not config.deliver_subject and config.max_waiting == 0:
        config = replace(config, max_waiting=WAITING)
    if config.priority_policy == "pinned_client" and config.priority_timeout == 0:
        config = replace(config, priority_timeout=PIN_NS)
    if config.priority_policy == "none":
        config = replace(config, priority_policy="")
    if not config.deliver_subject and config.max_batch == 0 and caps.max_request_batch > 0:
        config = replace(config, max_batch=caps.max_request_batch)
    return replace(config, max_deliver=config.max_deliver or -1)


def _ack_defaults(config: ConsumerConfig, stream: StreamConfig, caps: Caps, pedantic: bool) -> ConsumerConfig:
    """Ack wait and backoff, then the limits of the stream and of the account as defaults."""
    if config.ack_wait == 0 and config.ack_policy in ("explicit", "all") and not config.backoff:
        config = replace(config, ack_wait=ACK_WAIT_NS)
    if config.backoff:
        if pedantic and config.ack_wait != config.backoff[0]:
            raise _pedantic("first backoff value has to equal batch AckWait")
        if config.backoff[0] >= 0 and config.ack_policy != "flow_control":
            config = replace(config, ack_wait=config.backoff[0])
    limits = stream.consumer_limits
    if config.max_ack_pending == 0 and limits.max_ack_pending > 0:
        if pedantic:
            raise _pedantic("max_ack_pending must be set if it's configured in stream limits")
        config = replace(config, max_ack_pending=limits.max_ack_pending)
    if config.inactive_threshold == 0 and limits.inactive_threshold > 0:
        if pedantic:
            raise _pedantic("inactive_threshold must be set if it's configured in stream limits")
        config = replace(config, inactive_threshold=limits.inactive_threshold)
    if config.max_ack_pending == 0 and config.ack_policy != "none":
        cap = caps.max_ack_pending if caps.max_ack_pending > 0 else ACK_PENDING
        config = replace(config, max_ack_pending=min(cap, ACK_PENDING))
    return config


def _flow_control_defaults(config: ConsumerConfig, pedantic: bool) -> ConsumerConfig:
    """With the ack policy `flow_control` the answers to flow control are the acks: it needs flow control each second."""
    if config.ack_policy != "flow_control" or not config.deliver_subject:
        return config
    if pedantic and not config.flow_control:
        raise api_error("JSConsumerAckFCRequiresFCErr")
    if pedantic and config.idle_heartbeat != SECOND_NS:
        raise bad_stream("flow control ack policy heartbeat needs to be 1s")
    return replace(config, flow_control=True, idle_heartbeat=SECOND_NS)


def check_name(name: str) -> None:
    """The characters of a name; its length is looked at with the rest."""
    if "/" in name or "\\" in name:
        raise api_error("JSConsumerNameContainsPathSeparatorsErr")
    if not NOT_IN_NAMES.isdisjoint(name):
        raise bad_stream(NAME_RULE)


def check_name_fits(name: str) -> None:
    """A name becomes a directory; that of an ephemeral one is looked at when it is made."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise api_error("JSConsumerCreateErrF", err="error creating store for consumer")


def _check_name_length(config: ConsumerConfig) -> None:
    if len(config.durable_name.encode()) > NAME_BYTES_MAX:
        raise api_error("JSConsumerNameTooLongErrF", max=NAME_BYTES_MAX)
    if config.durable_name and config.name and config.durable_name != config.name:
        raise api_error("JSConsumerCreateDurableAndNameMismatch")


def _check_acks(config: ConsumerConfig) -> None:
    if any(pause < 0 for pause in config.backoff):
        raise api_error("JSConsumerBackOffNegativeErr")
    if config.ack_wait < 0:
        raise api_error("JSConsumerAckWaitNegativeErr")
    if config.ack_policy == "flow_control":
        for refused, error in (
            (not config.deliver_subject, "JSConsumerAckFCRequiresPushErr"),
            (config.max_ack_pending <= 0, "JSConsumerAckFCRequiresMaxAckPendingErr"),
            (config.ack_wait != 0 or config.backoff, "JSConsumerAckFCRequiresNoAckWaitErr"),
            (config.max_deliver > 0, "JSConsumerAckFCRequiresNoMaxDeliverErr"),
        ):
            if refused:
                raise api_error(error)
    if 0 < config.max_deliver < len(config.backoff):
        raise api_error("JSConsumerMaxDeliverBackoffErr")


def _check_limits(config: ConsumerConfig, stream: StreamConfig, caps: Caps) -> None:
    limits = stream.consumer_limits
    for cap in (limits.max_ack_pending, caps.max_ack_pending):
        if 0 < cap < config.max_ack_pending:
            raise api_error("JSConsumerMaxPendingAckExcessErrF", limit=cap)
    if 0 < caps.max_request_batch < config.max_batch:
        raise api_error("JSConsumerMaxRequestBatchExceededF", limit=caps.max_request_batch)
    if 0 < limits.inactive_threshold < config.inactive_threshold:
        raise api_error("JSConsumerInactiveThresholdExcess", limit=go_duration(limits.inactive_threshold))


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    subject = config.deliver_subject
    if not is_subject(subject):
        raise api_error("JSConsumerInvalidDeliverSubject")
    if not is_literal(subject):
        raise api_error("JSConsumerDeliverToWildcardsErr")
    if any(subjects_overlap(subject, each) for each in stream.subjects):
        raise api_error("JSConsumerDeliverCycleErr")
    for refused, error in (
        (config.max_waiting != 0, "JSConsumerPushMaxWaitingErr"),
        (
            config.max_ack_pending > 0 and config.ack_policy == "none",
            "JSConsumerMaxPendingAckPolicyRequiredErr",
        ),
        (0 < config.idle_heartbeat < SHORTEST_NS, "JSConsumerSmallHeartbeatErr"),
        (config.flow_control and not config.idle_heartbeat, "JSConsumerWithFlowControlNeedsHeartbeats"),
    ):
        if refused:
            raise api_error(error)


def _check_pull(config: ConsumerConfig, stream: StreamConfig) -> None:
    for refused, error in (
        (config.ack_policy == "none" and stream.retention == "workqueue", "JSConsumerPullRequiresAckErr"),
        (config.rate_limit_bps, "JSConsumerPullWithRateLimitErr"),
        (config.idle_heartbeat, "JSConsumerHBRequiresPushErr"),
        (config.flow_control, "JSConsumerFCRequiresPushErr"),
        (0 < config.max_expires < SECOND_NS // 1000, "JSConsumerMaxRequestExpiresTooSmall"),
    ):
        if refused:
            raise api_error(error)


def _check_start(config: ConsumerConfig) -> None:
    title, by_seq, by_time = _POLICIES[config.deliver_policy]
    has_time = config.opt_start_time is not None

    def bad(text: str) -> ApiError:
        return api_error(
            "JSConsumerInvalidPolicyErrF", err=f"consumer delivery policy is {title}, but {text}"
        )

    if config.deliver_policy == "last_per_subject" and not config.filters:
        raise bad("optional filter subject is not set")
    if by_seq and config.opt_start_seq == 0:
        raise bad("optional start sequence is not set")
    if by_time and not has_time:
        raise bad("optional start time is not set")
    if config.opt_start_seq and not by_seq:
        raise bad(f"optional start {'start ' if by_time else ''}sequence is also set")
    if has_time and not by_time:
        raise bad("optional start time is also set")


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise api_error("JSConsumerDuplicateFilterSubjects")
    if len(config.filters) > SUBJECTS_MAX:
        raise bad_stream(f"{len(config.filters)} filter subjects, the maximum allowed is {SUBJECTS_MAX}")
    for subject in config.filters:
        if not subject:
            raise api_error("JSConsumerEmptyFilter")
        if not is_subject(subject):
            raise bad_stream("invalid subject")
    if overlapping_pair(config.filters) is not None:
        raise api_error("JSConsumerOverlappingSubjectFilters")


def _check_groups(config: ConsumerConfig) -> None:
    if not config.priority_policy:
        if config.priority_groups:
            raise api_error("JSConsumerPriorityGroupWithPolicyNone")
        if config.priority_timeout:
            raise api_error("JSConsumerPinnedTTLWithoutPriorityPolicyNone")
        return
    if config.deliver_subject:
        raise api_error("JSConsumerPushWithPriorityGroupErr")
    if not config.priority_groups:
        raise api_error("JSConsumerPriorityPolicyWithoutGroup")
    for group in config.priority_groups:
        if not group:
            raise api_error("JSConsumerEmptyGroupName")
        if len(group) > GROUP_CHARS_MAX or not _GROUP_CHARS.issuperset(group):
            raise api_error("JSConsumerInvalidGroupNameErr")


def sample_percent(text: str) -> int:
    """`30` or `30%`; ValueError, with the text that the server shows, for anything else."""
    number = text.removesuffix("%")
    if not number.lstrip("+-").isascii() or not number.lstrip("+-").isdigit():
        raise ValueError(f'strconv.Atoi: parsing "{number}": invalid syntax')
    if int(number) < 0:
        raise ValueError("<nil>")
    return int(number)


def _check_sampling(text: str) -> None:
    if text:
        try:
            sample_percent(text)
        except ValueError as problem:
            raise api_error("JSConsumerInvalidSamplingErrF", err=str(problem)) from problem


def check_beside(config: ConsumerConfig, stream: StreamConfig, others: Iterable[ConsumerConfig]) -> None:
    """A work queue hands each message to one consumer: they must not overlap. `others` are the stream's others."""
    if stream.retention != "workqueue" or config.direct:
        return
    if config.ack_policy not in ("explicit", "flow_control"):
        raise api_error("JSConsumerWQRequiresExplicitAckErr")
    beside = [each for each in others if not each.direct]
    if beside and not config.filters:
        raise api_error("JSConsumerWQMultipleUnfilteredErr")
    for other in beside:
        if not other.filters or any(subjects_overlap(a, b) for a in config.filters for b in other.filters):
            raise api_error("JSConsumerWQConsumerNotUniqueErr")
    if config.deliver_policy != "all":
        raise api_error("JSConsumerWQConsumerNotDeliverAllErr")
