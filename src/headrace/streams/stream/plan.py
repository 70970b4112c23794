"""From a stream's configuration to the plan of checks that every publish meets, in the order of nats-server 2.15.

A check is a tuple: its name, what it needs, the answer that refuses. `{}` in an answer is the value seen. A message that
all checks let pass and that the kernel cannot store (rollups, TTLs) is stored alone, by Python.
"""

from __future__ import annotations

import msgspec

from headrace.config.model import StreamConfig
from headrace.streams._kernels import Plan
from headrace.streams.errors import ApiError, api_error
from headrace.streams.headers import TTL

HEADERS_BYTES_MAX = 65535
UNBOUNDED = (1 << 63) - 1
SOURCE = b"Nats-Stream-Source"
ROLLUP = b"Nats-Rollup"


def encode_refusal(stream: str, error: ApiError) -> bytes:
    """The answer to a publish that is refused."""
    return msgspec.json.encode({"error": error.as_json(), "stream": stream, "seq": 0})


def refusal(stream: str, identifier: str, **values: object) -> bytes:
    """The same by the error's name."""
    return encode_refusal(stream, api_error(identifier, **values))


def checks(config: StreamConfig) -> list[tuple[object, ...]]:
    """The plan as data."""
    name = config.name

    def answer(identifier: str, **values: object) -> bytes:
        return refusal(name, identifier, **values)

    plan: list[tuple[object, ...]] = []
    if config.sealed:
        plan.append(("closed", answer("JSStreamSealedErr")))
    if config.max_msg_size > 0:
        plan.append(("size_max", config.max_msg_size, answer("JSStreamMessageExceedsMaximumErr")))
    plan.append(("headers_max", HEADERS_BYTES_MAX, answer("JSStreamHeaderExceedsMaximumErr")))
    batch, counter = answer("JSAtomicPublishDisabledErr"), answer("JSMessageIncrDisabledErr")
    plan.append(("forbidden", [(b"Nats-Batch-Id", batch), (b"Nats-Incr", counter)]))
    plan.append(("expected_stream", name.encode(), answer("JSStreamNotMatchErr")))
    if not config.allow_msg_ttl:
        plan.append(("forbidden", [(TTL, answer("JSMessageTTLDisabledErr"))]))
    wrong = answer("JSStreamWrongLastSequenceErrF", seq="{}")
    incomplete = answer("JSStreamExpectedLastSeqPerSubjectInvalid")
    plan.append(("expected_subject_sequence", wrong, incomplete, _may_vanish_at_once(config)))
    plan.append(("expected_last_sequence", wrong))
    schedules, source = answer("JSMessageSchedulesDisabledErr"), answer("JSMessageSourceHdrNotAllowedErr")
    plan.append(("forbidden", [(b"Nats-Schedule", schedules), (SOURCE, source)]))
    if config.duplicate_window > 0:
        plan.append(("duplicate",))
    if config.mirror is None:
        plan.append(("producer",))
    plan.append(("expected_msg_id",))
    plan.append(("alone", [ROLLUP, TTL]))
    if config.discard == "new":
        msgs = config.max_msgs if config.max_msgs > 0 else UNBOUNDED
        size = config.max_bytes if config.max_bytes > 0 else UNBOUNDED
        if config.discard_new_per_subject:
            msgs = 0  # every message is asked for: the limit is per subject
        plan.append(("limits", msgs, size))
    return plan


def _may_vanish_at_once(config: StreamConfig) -> bool:
    """Whether a message may be gone before the next one of its run is looked at: by a limit, or nobody wants it."""
    limited = config.max_msgs > 0 or config.max_bytes > 0
    return config.retention == "interest" or (limited and config.discard == "old")


def compile_plan(config: StreamConfig) -> Plan:
    """The plan ready for `PublishRun.admit`."""
    return Plan(checks(config))
