"""What a conversion would do: which log goes where, how positions change, which subjects the streams would take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.config.subject_sets import refuse_overlaps, subjects_in_use
from headrace.errors import BadInput
from headrace.layouts.base import Damage, Log, Volume
from headrace.layouts.capabilities import Capabilities
from headrace.layouts.copies import OWN_SUBJECT
from headrace.layouts.registry import layout_named
from headrace.layouts.stream_store import StreamStore
from headrace.ops._kernels import Batch
from headrace.ops.conversion import mapping as names

SUBJECTS_MAX = 100_000


@dataclass(slots=True)
class ConvertedLog:
    """One log of the source, and what became of it."""

    source: str
    target: str
    subject: str | None
    messages: int
    first: int
    last: int
    positions: str
    """"kept", "shifted", or "renumbered"."""
    shift: int = 0
    subjects: tuple[str, ...] = ()
    """Only the messages on these; empty: all."""
    joined: int = 1
    """How many logs its target takes."""
    copied: int = 0
    """In this run: fewer than there are when an interrupted conversion went on."""
    source_hash: str | None = None
    target_hash: str | None = None
    readers: list[str] = field(default_factory=lambda: [])
    notes: list[str] = field(default_factory=lambda: [])
    damage: list[Damage] = field(default_factory=lambda: [])


def plan_logs(
    volume: Volume, ways: names.Mapping, from_: Capabilities, to: Capabilities, only: str | None, order: str
) -> list[ConvertedLog]:
    """An item for each log, or for each part of one that goes somewhere else."""
    chosen = volume.logs()
    if only is not None or from_.layout != to.layout:
        # Only a directory of the same product has a use for the broker's own topics.
        wanted = () if only is None else (only,)
        chosen = layout_named(from_.layout).log_names.choose(chosen, wanted, path=volume.path, kind=from_.log)
    items = [item for name in chosen for item in _items(volume.open(name), ways)]
    together = Counter(item.target for item in items)
    for item in items:
        item.shift, item.joined = to.origin - from_.origin, together[item.target]
        if item.joined > 1 or not to.holes:
            item.positions = "renumbered"
        elif item.shift:
            item.positions = "shifted"
        if item.joined > 1:
            how = "in the order of time" if order == "time" else "one after the other"
            item.notes.append(f"joins {item.target} with others: {how}, numbered anew")
            if not all(ways.ruled(item.source, subject) for subject in item.subjects or (None,)):
                same = [other.source for other in items if other.target == item.target]
                raise BadInput(
                    f"{', '.join(same)} would all be called {item.target!r} in {layout_named(to.layout).label}; say with --map how"
                )
    return items


def _items(log: Log, ways: names.Mapping) -> list[ConvertedLog]:
    """A log as one item, or, where rules go by subject, as one for each target."""
    name, subject = log.name, ways.subject_for(log.name)
    if not isinstance(log, StreamStore) or not ways.splits(name):
        state = log.state()
        target = ways.log_for(name)
        return [ConvertedLog(name, target, subject, state.messages, state.first_seq, state.last_seq, "kept")]
    found: dict[str, ConvertedLog] = {}
    on: dict[str, list[str]] = {}
    for each, state in sorted(log.subjects_state(">").items()):
        target = ways.log_for(name, each)
        on.setdefault(target, []).append(each)
        item = found.setdefault(target, ConvertedLog(name, target, subject, 0, state.first, 0, "kept"))
        item.messages += state.msgs
        item.first, item.last = min(item.first, state.first), max(item.last, state.last)
    for target, item in found.items():
        item.subjects = tuple(on[target])
    return list(found.values())


def by_target(items: Iterable[ConvertedLog]) -> dict[str, list[ConvertedLog]]:
    """The logs of each target."""
    found: dict[str, list[ConvertedLog]] = {}
    for item in items:
        found.setdefault(item.target, []).append(item)
    return found


def check_streams(
    volume: Volume,
    items: Sequence[ConvertedLog],
    cast: Callable[[ConvertedLog, Batch], Batch],
) -> None:
    """BadInput where two streams would take one subject: a server refuses the second. Reads the messages of logs whose
    subjects only their messages know."""
    streams: dict[str, tuple[str, ...]] = {}
    for target, group in by_target(items).items():
        subjects = {each for item in group for each in _subjects(volume, item, cast)}
        as_is = len(group) == 1 and not group[0].subjects and _has_subjects(volume.open(group[0].source))
        streams[target] = tuple(subjects) if as_is else subjects_in_use(subjects)
    refuse_overlaps(streams)


def _has_subjects(log: Log) -> bool:
    """Whether its configuration says which it takes, none perhaps (a mirror)."""
    return isinstance(log, StreamStore)


def _subjects(volume: Volume, item: ConvertedLog, cast: Callable[[ConvertedLog, Batch], Batch]) -> set[str]:
    """What a log brings into its stream."""
    if item.subject is not None and OWN_SUBJECT not in item.subject:
        return {item.subject}
    log = volume.open(item.source)
    if item.subject is None and _has_subjects(log):
        return set(item.subjects or log.subjects)
    found: set[str] = set()
    for batch in log.batches():
        found.update(each.decode("utf-8", "surrogateescape") for each in cast(item, batch).subjects())
        if len(found) > SUBJECTS_MAX:
            break
    return found
