"""What may change about a consumer that is there, and when two configurations are the same consumer.

    config = check_update(before, config, active=…)     `config` is complete: see `rules.py`

ApiError with the words of nats-server 2.15.2, in its order, for what must stay as it is.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.config.model import ConsumerConfig
from headrace.streams.consumer.rules import INACTIVE_NS, stored_metadata
from headrace.streams.errors import api_error
from headrace.streams.stream.rules import user_metadata
from headrace.units import parse_time_ns


def check_update(before: ConsumerConfig, config: ConsumerConfig, *, active: bool) -> ConsumerConfig:
    """Whether a consumer may become that. `active`: somebody receives on its deliver subject."""
    for refused, text in (
        (before.sourcing != config.sourcing, "sourcing can not be updated"),
        (before.deliver_policy != config.deliver_policy, "deliver policy can not be updated"),
        (before.mem_storage != config.mem_storage, "storage type can not be updated"),
        (before.direct != config.direct, "direct can not be updated"),
        (before.opt_start_seq != config.opt_start_seq, "start sequence can not be updated"),
        (_time(before.opt_start_time) != _time(config.opt_start_time), "start time can not be updated"),
        (before.ack_policy != config.ack_policy, "ack policy can not be updated"),
        (before.replay_policy != config.replay_policy, "replay policy can not be updated"),
        (before.idle_heartbeat != config.idle_heartbeat, "heart beats can not be updated"),
        (before.flow_control != config.flow_control, "flow control can not be updated"),
        (
            bool(config.deliver_subject) and not before.deliver_subject,
            "can not update pull consumer to push based",
        ),
        (
            bool(before.deliver_subject) and not config.deliver_subject,
            "can not update push consumer to pull based",
        ),
        (before.max_waiting != config.max_waiting, "max waiting can not be updated"),
    ):
        if refused:
            raise api_error("JSConsumerCreateErrF", err=text)
    if active and before.deliver_subject != config.deliver_subject:
        raise api_error("JSConsumerNameExistErr")
    threshold = config.inactive_threshold
    if threshold == 0 and not before.durable_name:
        threshold = INACTIVE_NS
    kept = replace(
        config,
        name=config.name or config.durable_name,
        pause_until=before.pause_until,
        inactive_threshold=threshold,
    )
    return replace(kept, metadata=stored_metadata(kept))


def paused(config: ConsumerConfig, until: str | None) -> ConsumerConfig:
    """The same, paused until a time, or going on."""
    changed = replace(config, pause_until=until)
    return replace(changed, metadata=stored_metadata(changed))


def same(one: ConsumerConfig, other: ConsumerConfig) -> bool:
    """Whether two configurations are the same consumer; the server's notes in `metadata` do not count."""
    return _comparable(one) == _comparable(other)


def _comparable(config: ConsumerConfig) -> ConsumerConfig:
    name = config.name or config.durable_name
    return replace(
        config,
        name=name,
        metadata=user_metadata(config.metadata),
        opt_start_time=None,
        pause_until=None,
        opt_start_seq=config.opt_start_seq or _time(config.opt_start_time),
    )


def _time(text: str | None) -> int:
    return 0 if text is None else parse_time_ns(text)
