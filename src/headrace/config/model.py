"""Stream and consumer configurations, as JetStream has them.

Fields, names and order are those of `meta.inf` and of the API (meta_json.py writes and reads them).
Durations are integer nanoseconds, times RFC 3339 text, -1 is "unlimited". A configuration as a person
gives it may leave much open: `filled()` completes it as nats-server 2.15.2 does, `validate()` refuses what
cannot work, before anything touches the disk.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.config.names import check_name, check_no_overlap, check_subject
from headrace.errors import BadInput
from headrace.units import parse_time_ns

UNLIMITED = -1
REQUIRED_LEVEL = "_nats.req.level"
_ADDED_TO_ANSWERS_ONLY = ("_nats.ver", "_nats.level")
_SECOND_NS = 1_000_000_000
_SHORTEST_NS = 100_000_000
_DUPLICATES_NS = 120 * _SECOND_NS
_DESCRIPTION_BYTES_MAX = 4096
_METADATA_BYTES_MAX = 128 << 10

BLOCK_BYTES_MIN = 32_000
BLOCK_BYTES_MEDIUM = 4 << 20
BLOCK_BYTES_LARGE = 8 << 20
BLOCK_BYTES_ENCRYPTED_MAX = 2 << 20

Retention = Literal["limits", "interest", "workqueue"]
AckPolicy = Literal["none", "all", "explicit", "flow_control"]
DeliverPolicy = Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A nested object; members at their zero value are left out of the JSON."""


class Placement(_Part, frozen=True, kw_only=True):
    cluster: str = ""
    tags: tuple[str, ...] = ()
    preferred: str = ""


class SubjectTransform(_Part, frozen=True, kw_only=True):
    src: str
    dest: str


class External(_Part, frozen=True, kw_only=True):
    api: str
    deliver: str


class SourceConsumer(_Part, frozen=True, kw_only=True):
    name: str = ""
    deliver_subject: str = ""


class Source(_Part, frozen=True, kw_only=True):
    """Where a mirror or a sourced stream takes its messages from."""

    name: str
    opt_start_seq: int = 0
    opt_start_time: str | None = None
    filter_subject: str = ""
    subject_transforms: tuple[SubjectTransform, ...] = ()
    external: External | None = None
    consumer: SourceConsumer | None = None


class Republish(_Part, frozen=True, kw_only=True):
    src: str = ""
    dest: str
    headers_only: bool = False


class ConsumerLimits(_Part, frozen=True, kw_only=True):
    inactive_threshold: int = 0
    max_ack_pending: int = 0


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's configuration."""

    name: str
    description: str = ""
    subjects: tuple[str, ...] = ()
    retention: Retention = "limits"
    max_consumers: int = UNLIMITED
    max_msgs: int = UNLIMITED
    max_bytes: int = UNLIMITED
    max_age: int = 0
    max_msgs_per_subject: int = UNLIMITED
    max_msg_size: int = UNLIMITED
    discard: Literal["old", "new"] = "old"
    storage: Literal["file", "memory"] = "file"
    num_replicas: int = 1
    no_ack: bool = False
    template_owner: str = ""
    duplicate_window: int = 0
    placement: Placement | None = None
    mirror: Source | None = None
    sources: tuple[Source, ...] = ()
    compression: Literal["none", "s2"] = "none"
    first_seq: int = 0
    subject_transform: SubjectTransform | None = None
    republish: Republish | None = None
    allow_direct: bool = False
    mirror_direct: bool = False
    discard_new_per_subject: bool = False
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    consumer_limits: ConsumerLimits = ConsumerLimits()
    allow_msg_ttl: bool = False
    subject_delete_marker_ttl: int = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: Literal["", "default", "async"] = ""
    allow_batched: bool = False
    metadata: dict[str, str] = {}

    def filled(self) -> StreamConfig:
        """The defaults for what is left open, as nats-server 2.15.2 does when it creates the stream."""
        changes: dict[str, Any] = {
            key: UNLIMITED
            for key in ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
            if getattr(self, key) == 0 or getattr(self, key) < UNLIMITED
        }
        if not self.subjects and self.mirror is None and not self.sources:
            changes["subjects"] = (self.name,)
        if self.duplicate_window == 0 and self.mirror is None and not self.sources:
            changes["duplicate_window"] = min(_DUPLICATES_NS, self.max_age or _DUPLICATES_NS)
        if self.subject_delete_marker_ttl > 0:
            changes |= {"allow_msg_ttl": True, "allow_rollup_hdrs": True}
        if self.allow_msg_schedules:
            changes["allow_rollup_hdrs"] = True
        if self.num_replicas == 0:
            changes["num_replicas"] = 1
        changes["metadata"] = _stored_metadata(self.metadata, self._required_level())
        return msgspec.structs.replace(self, **changes)

    def _required_level(self) -> int:
        """The API level that a server needs to run this stream; it is kept in `metadata`."""
        if self.allow_batched:
            return 4
        if (
            self.allow_msg_counter
            or self.allow_atomic
            or self.allow_msg_schedules
            or self.persist_mode == "async"
        ):
            return 2
        return int(self.allow_msg_ttl or self.subject_delete_marker_ttl > 0)

    def validate(self) -> None:
        """Raise BadInput, with the server's words where it has some, when this cannot work."""
        check_name("stream", self.name)
        _check_common(self.description, self.metadata)
        for subject in self.subjects:
            check_subject(subject)
        check_no_overlap(self.subjects)
        for key in ("max_age", "duplicate_window", "first_seq", "subject_delete_marker_ttl"):
            _require(getattr(self, key) >= 0, f"{key} must not be negative")
        _require(
            1 <= self.num_replicas <= 5,
            "maximum replicas is 5" if self.num_replicas > 5 else "num_replicas must be 1 to 5",
        )
        _require(not 0 < self.max_age < _SHORTEST_NS, "max age needs to be >= 100ms")
        window = self.duplicate_window
        _require(not (0 < self.max_age < window), "duplicates window can not be larger then max age")
        _require(not 0 < window < _SHORTEST_NS, "duplicates window needs to be >= 100ms")
        _require(self.no_ack or ">" not in self.subjects, "capturing all subjects requires no-ack to be true")
        self._validate_options()
        self._validate_origins()

    def _validate_options(self) -> None:
        _require(not (self.allow_rollup_hdrs and self.deny_purge), "roll-ups require the purge permission")
        if self.discard_new_per_subject:
            _require(self.discard == "new", "discard new per subject requires discard new policy to be set")
            _require(
                self.max_msgs_per_subject > 0, "discard new per subject requires max msgs per subject > 0"
            )
        marker_ttl = self.subject_delete_marker_ttl
        _require(not 0 < marker_ttl < _SECOND_NS, "subject delete marker TTL must be at least 1 second")
        if self.allow_msg_counter:
            _require(self.discard == "old", "counter stream cannot use discard new")
            _require(not self.allow_msg_ttl, "counter stream cannot use message TTLs")
            _require(not self.allow_msg_schedules, "counter stream cannot use message schedules")
            _require(self.retention == "limits", "counter stream can only use limits retention")

    def _validate_origins(self) -> None:
        if self.mirror is not None:
            _require(not self.subjects, "stream mirrors can not contain subjects")
            _require(not self.sources, "stream mirrors can not also contain other sources")
        for source in (*self.sources, *([self.mirror] if self.mirror else [])):
            check_name("stream", source.name)
            if source.filter_subject:
                check_subject(source.filter_subject)
            if source.opt_start_time is not None:
                parse_time_ns(source.opt_start_time)


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's configuration."""

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: DeliverPolicy = "all"
    opt_start_seq: int = 0
    opt_start_time: str | None = None
    ack_policy: AckPolicy = "none"
    ack_wait: int = 0
    max_deliver: int = 0
    backoff: tuple[int, ...] = ()
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    replay_policy: Literal["instant", "original"] = "instant"
    rate_limit_bps: int = 0
    sample_freq: str = ""
    max_waiting: int = 0
    max_ack_pending: int = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: int = 0
    max_expires: int = 0
    max_bytes: int = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: int = 0
    inactive_threshold: int = 0
    num_replicas: int = 0
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: dict[str, str] = {}
    pause_until: str | None = None
    priority_groups: tuple[str, ...] = ()
    priority_policy: Literal["", "none", "overflow", "pinned_client", "prioritized"] = ""
    priority_timeout: int = 0

    @property
    def filters(self) -> tuple[str, ...]:
        """The one filter or the several; empty means every message."""
        return (self.filter_subject,) if self.filter_subject else self.filter_subjects

    def filled(self) -> ConsumerConfig:
        """The defaults for what is left open, as nats-server 2.15.2 does when it creates the consumer."""
        changes: dict[str, Any] = {}
        if self.max_deliver == 0 or self.max_deliver < -1:
            changes["max_deliver"] = -1
        if self.durable_name and not self.name:
            changes["name"] = self.durable_name
        if not self.deliver_subject and self.max_waiting <= 0:
            changes["max_waiting"] = 512
        if self.ack_wait == 0 and self.ack_policy in ("explicit", "all"):
            changes["ack_wait"] = 30 * _SECOND_NS
        if self.backoff:
            changes["ack_wait"] = self.backoff[0]
        if self.ack_policy != "none" and self.max_ack_pending == 0:
            changes["max_ack_pending"] = 1000
        if not self.durable_name and self.inactive_threshold == 0:
            changes["inactive_threshold"] = 5 * _SECOND_NS
        if self.priority_policy == "pinned_client" and self.priority_timeout == 0:
            changes["priority_timeout"] = _DUPLICATES_NS
        changes["metadata"] = _stored_metadata(self.metadata, self._required_level())
        return msgspec.structs.replace(self, **changes)

    def _required_level(self) -> int:
        if self.ack_policy == "flow_control":
            return 4
        prioritised = self.priority_policy not in ("", "none") or self.priority_groups
        return int(bool(self.pause_until or prioritised or self.priority_timeout))

    def validate(self) -> None:
        """Raise BadInput when this cannot work."""
        for name in (self.durable_name, self.name):
            if name:
                check_name("consumer", name)
        if self.durable_name and self.name:
            _require(self.durable_name == self.name, "consumer durable name and name have to be equal")
        _check_common(self.description, self.metadata)
        both = self.filter_subject and self.filter_subjects
        _require(not both, "consumer cannot have both FilterSubject and FilterSubjects specified")
        _require("" not in self.filter_subjects, "consumer filter in FilterSubjects cannot be empty")
        for subject in self.filters:
            check_subject(subject)
        check_no_overlap(self.filters)
        if self.deliver_subject:
            check_subject(self.deliver_subject, wildcards=False)
        self._validate_start()
        for key in (
            "ack_wait",
            "opt_start_seq",
            "rate_limit_bps",
            "max_batch",
            "max_expires",
            "max_bytes",
            "idle_heartbeat",
            "inactive_threshold",
            "priority_timeout",
        ):
            _require(getattr(self, key) >= 0, f"{key} must not be negative")
        fits = not self.backoff or self.max_deliver <= 0 or len(self.backoff) <= self.max_deliver
        _require(fits, "max deliver is required to be > length of backoff values")
        _require(all(pause > 0 for pause in self.backoff), "backoff values must be positive")
        _require(not 0 < self.idle_heartbeat < _SHORTEST_NS, "heartbeat value must be >= 100ms")

    def _validate_start(self) -> None:
        policy = self.deliver_policy
        if policy == "by_start_sequence":
            _require(self.opt_start_seq > 0, "deliver by_start_sequence needs opt_start_seq")
        if policy == "by_start_time":
            _require(self.opt_start_time is not None, "deliver by_start_time needs opt_start_time")
        if policy == "last_per_subject":
            _require(bool(self.filters), "deliver last_per_subject needs a filter subject")
        for text in (self.opt_start_time, self.pause_until):
            if text is not None:
                parse_time_ns(text)


def block_size(config: StreamConfig, *, encrypted: bool = False) -> int:
    """How large a block file may grow before the next one is begun, as 2.15 chooses it.

    It is nowhere stored: blocks of any size can be read back.
    """
    if config.max_bytes > 0:
        quarter = config.max_bytes // 4 + 1
        quarter += -quarter % 100
        if quarter <= BLOCK_BYTES_MIN:
            size = BLOCK_BYTES_MIN
        else:
            size = BLOCK_BYTES_LARGE if quarter >= BLOCK_BYTES_LARGE else BLOCK_BYTES_MEDIUM
    else:
        size = BLOCK_BYTES_LARGE if config.retention == "limits" else BLOCK_BYTES_MEDIUM
    return min(size, BLOCK_BYTES_ENCRYPTED_MAX) if encrypted else size


def _stored_metadata(metadata: dict[str, str], level: int) -> dict[str, str]:
    """What the file holds of the server's own notes: the level that is needed, nothing else."""
    kept = {key: text for key, text in metadata.items() if key not in _ADDED_TO_ANSWERS_ONLY}
    return {**kept, REQUIRED_LEVEL: str(level)}


def _check_common(description: str, metadata: dict[str, str]) -> None:
    size = sum(len(key.encode()) + len(text.encode()) for key, text in metadata.items())
    _require(size <= _METADATA_BYTES_MAX, f"metadata exceeds maximum size of {_METADATA_BYTES_MAX} bytes")
    long = len(description.encode()) > _DESCRIPTION_BYTES_MAX
    _require(not long, f"description is too long, maximum allowed is {_DESCRIPTION_BYTES_MAX}")


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise BadInput(text)
