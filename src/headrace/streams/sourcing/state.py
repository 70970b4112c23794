"""Where a stream stands in each of its origins, and how it finds that again after a restart.

A message that came from a source says so in a header, and the newest such header is the position:

    Nats-Stream-Source: <stream> <sequence> <filters> <destinations> <original subject> <identity of the origin>

Messages may go before the server starts again (limits, acks, a purge). Their records are still in the blocks until a
block goes; before that, and at a clean stop, the positions are saved beside the stream:

    state `origins` of the store    JSON: [own last sequence, [[origin's key, identity, sequence], …]]

Older servers wrote fewer fields; a header without an identity fits any origin of that name.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.config.model import Source
from headrace.errors import HeadraceError
from headrace.streams.errors import ApiError
from headrace.streams.headers import header_value
from headrace.streams.subject_map import compile_map
from headrace.units import format_time_ns, parse_time_ns

if TYPE_CHECKING:
    from headrace.layouts.stream_store import StreamStore
    from headrace.streams._kernels import Batch
    from headrace.streams.stream.stream import Stream

STATE = "origins"
HEADER = b"Nats-Stream-Source"
_JOIN = "\f"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_IDENTITY_LENGTH = 8


class OriginPosition(NamedTuple):
    """The last message taken from an origin: which origin that was, and its sequence there."""

    identity: str
    sequence: int


class _Saved(msgspec.Struct, array_like=True):
    last: int
    places: list[tuple[str, str, int]]


class Feed:
    """One origin of a stream: what is taken from it, and how far that went."""

    def __init__(self, config: Source) -> None:
        self.config, self.name = config, config.name
        moves = config.subject_transforms
        self.filters = [each.src or ">" for each in moves] or (
            [config.filter_subject] if config.filter_subject else []
        )
        self.maps = [compile_map(each.src, each.dest) for each in moves if each.dest]
        filters, destinations = _JOIN.join(self.filters), _JOIN.join(each.dest or ">" for each in moves)
        self.shape = f"{filters or '>'} {destinations or '>'}"
        self.key = f"{self.name} {self.shape}"
        self.origin: Stream | None = None
        self.identity = ""
        self.next = 0
        """The first sequence of the origin that was not looked at; 0 before it was ever there."""
        self.taken = OriginPosition("", 0)
        self.durable = OriginPosition("", 0)
        self.contact_ns: int | None = None
        self.error: ApiError | None = None

    def start(self, origin: Stream) -> int:
        """Where the configuration wants to begin."""
        if self.config.opt_start_seq:
            return self.config.opt_start_seq
        if self.config.opt_start_time is not None:
            return origin.store.seq_from_time(parse_time_ns(self.config.opt_start_time))
        return 1

    def parse(self, value: bytes) -> OriginPosition | None:
        """The place that a header names, if it is about this origin."""
        name, _, rest = value.decode(errors="replace").partition(" ")
        number, _, shape = rest.partition(" ")
        if name != self.name or not number.isdecimal():
            return None
        if shape and shape != self.shape and not shape.startswith(f"{self.shape} "):
            return None
        more = shape[len(self.shape) :].split()
        return OriginPosition(more[1] if len(more) > 1 else "", int(number))


def identity_of(origin: Stream) -> str:
    """Distinguishes a stream from another one of its name that was made later; the same as nats-server 2.15 makes it."""
    digest = hashlib.sha256(format_time_ns(origin.created_ns).encode()).digest()
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in digest[:_IDENTITY_LENGTH])


def find_places(store: StreamStore, feeds: list[Feed]) -> None:
    """Set `taken` of every feed to what the store knows of it."""
    saved = _load(store)
    for key, identity, sequence in saved.places:
        for feed in feeds:
            if feed.key == key:
                feed.taken = OriginPosition(identity, sequence)
    missing = list(feeds)
    for batch in store.history(above=saved.last):
        missing = _look_into(batch, saved.last, missing)
        if not missing:
            break
    for feed in feeds:
        feed.durable = feed.taken


def _look_into(batch: Batch, above: int, missing: list[Feed]) -> list[Feed]:
    """The newest header of each feed in a block, removed messages included; returns who is still missing."""
    found: dict[Feed, OriginPosition] = {}
    for record in batch:
        if record.headers is None or record.seq <= above or HEADER not in record.headers:
            continue
        value = header_value(record.headers, HEADER) or b""
        for feed in missing:
            place = feed.parse(value)
            if place is not None:
                found[feed] = place
    for feed, place in found.items():
        feed.taken = place
    return [feed for feed in missing if feed not in found]


def save_places(store: StreamStore, last: int, feeds: list[Feed]) -> None:
    """Write what is durable of each feed, `last` being the stream's own sequence then; on disk when this returns.

    Origins that the stream has left are kept: it may come back to them.
    """
    keys = {feed.key for feed in feeds}
    places = [place for place in _load(store).places if place[0] not in keys]
    now = [(feed.key, feed.durable) for feed in feeds if feed.durable.sequence]
    places += [(key, place.identity, place.sequence) for key, place in now]
    if places or store.has_saved(STATE):
        store.save(STATE, msgspec.json.encode(_Saved(last, places)))


def _load(store: StreamStore) -> _Saved:
    """What was saved; nothing if the stream has lost messages since (it was restored from something older)."""
    nothing = _Saved(0, [])
    try:
        saved = store.load_saved(STATE)
        if saved is None:
            return nothing
        found = msgspec.json.decode(saved, type=_Saved)
    except (HeadraceError, msgspec.DecodeError):
        return nothing
    return found if found.last <= store.last_seq else nothing


def shown(feed: Feed, lag: int, active_ns: int, *, mirror: bool) -> dict[str, Any]:
    """`mirror` or one of `sources` in a stream's info."""
    found: dict[str, Any] = {"name": feed.name}
    if feed.config.external is not None:
        found["external"] = feed.config.external
    found["lag"] = lag
    if feed.taken.sequence and not mirror:
        found["seq"] = feed.taken.sequence
    found["active"] = active_ns
    if feed.error is not None:
        found["error"] = feed.error.as_json()
    if feed.config.filter_subject and (not mirror or feed.contact_ns is not None):
        found["filter_subject"] = feed.config.filter_subject
    if feed.config.subject_transforms and (not mirror or feed.contact_ns is not None):
        found["subject_transforms"] = feed.config.subject_transforms
    return found
