"""Finding out where each consumer of a stream stands: meta.inf, o.dat, and the journal folded in.

    o.dat with our trailer, hash sound    its state + journal records behind its position
    … hash not sound                      one inverted bit is put right; otherwise not used at all
    o.dat of a real server (no trailer)   its state; a journal of ours is older news and not used
    no usable o.dat                       what the journal holds since the consumer was made, or nothing
    made a moment ago                     the journal has its configuration and start; files that did not reach the disk
                                          are made again from there, and are no damage

In doubt a consumer starts again from the beginning: messages come twice, none is skipped. Nothing is
written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.config.meta_json import decode_consumer_meta
from headrace.config.model import ConsumerConfig
from headrace.errors import BadInput, Damaged
from headrace.layouts.base import ConsumerState, Damage
from headrace.layouts.jetstream._kernels import Disk, Ledger
from headrace.layouts.jetstream.consumers.ledger import ledger_of, state_of
from headrace.layouts.jetstream.consumers.log import Change, Kind, decode_change
from headrace.layouts.jetstream.consumers.moves import Rules
from headrace.layouts.jetstream.consumers.state import (
    STATE_FILE,
    DecodedState,
    decode_state,
    implausible,
    trailer_agrees,
)
from headrace.layouts.jetstream.meta import META_FILE, read_meta
from headrace.layouts.jetstream.recovery.bits import single_bit_repair
from headrace.layouts.jetstream.sealed import StoreKey, is_sealed
from headrace.layouts.journal import Journal
from headrace.layouts.shortcuts import read_shortcut

CONSUMERS_DIR = "obs"
STATE_BYTES_MAX = 256 << 20


@dataclass(slots=True)
class FoundConsumer:
    """A consumer as recovered.

    `doubtful`: its o.dat could not be relied on; never delete messages by its floor.
    `current`: o.dat on disk says exactly this, with our trailer (or says nothing, and rightly so).
    `unfiled`: its files may not have reached the disk, the journal alone holds it; `lost_meta` is what meta.inf lacks.
    """

    name: str
    config: ConsumerConfig
    created_ns: int
    state: ConsumerState = field(default_factory=ConsumerState)
    journal_position: int = 0
    doubtful: bool = False
    current: bool = False
    unfiled: bool = False
    lost_meta: bytes = b""


@dataclass(slots=True)
class ConsumerRecovery:
    """Everything that was found beside a stream's messages about its consumers."""

    consumers: list[FoundConsumer] = field(default_factory=lambda: [])
    damage: list[Damage] = field(default_factory=lambda: [])
    max_stream_seq: int = 0
    journal_position: int = 0


def recover_consumers(
    disk: Disk,
    stream_dir: str,
    stream: str,
    journal: Journal,
    secret: StoreKey | None = None,
    *,
    strict: bool = False,
) -> ConsumerRecovery:
    """Read all consumers of a stream. Never writes. `strict`: not without the journal, which is about to be replaced."""
    found = ConsumerRecovery()
    changes, unfiled = _read_journal(journal, found, strict)
    for name in sorted({*consumer_names(disk, stream_dir), *unfiled}):
        directory, made = f"{stream_dir}/{CONSUMERS_DIR}/{name}", unfiled.get(name)
        if made is None:
            consumer = _read_config(disk, directory, stream, name, secret, found)
        else:
            consumer = _read_unfiled(disk, directory, stream, name, made, found)
        if consumer is not None:
            _read_state(disk, stream_dir, stream, consumer, changes.get(name, []), secret, found)
            found.consumers.append(consumer)
            found.journal_position = max(found.journal_position, consumer.journal_position)
            if consumer.state.delivered.consumer:  # else its start may lie beyond the end
                found.max_stream_seq = max(found.max_stream_seq, consumer.state.delivered.stream)
    return found


def consumer_names(disk: Disk, stream_dir: str) -> list[str]:
    """Directories below obs/, sorted."""
    place = f"{stream_dir}/{CONSUMERS_DIR}"
    if disk.entry(place) is None:
        return []
    return [name for name, is_dir, _ in disk.list(place) if is_dir]


_Changes = dict[str, list[tuple[int, Change]]]
_Unfiled = dict[str, Change]
"""Consumers that were made, by the record that says so, as long as no later one says that their files are on disk."""


def _read_journal(journal: Journal, found: ConsumerRecovery, strict: bool) -> tuple[_Changes, _Unfiled]:
    changes: _Changes = {}
    unfiled: _Unfiled = {}
    file = next(iter(journal.files()), "")
    for record in journal.load(strict=strict):
        try:
            change = decode_change(record.kind, record.payload, file)
        except Damaged as error:
            found.damage.append(Damage(error.file, error.offset, 0, "bad-record", str(error)))
            continue
        if change.kind in (Kind.DELETED, Kind.FILED):
            unfiled.pop(change.name, None)
            if change.kind is Kind.DELETED:
                changes.pop(change.name, None)
            continue
        if change.kind is Kind.CREATED:
            changes[change.name] = []
            unfiled.pop(change.name, None)
            if change.meta:
                unfiled[change.name] = change
        changes.setdefault(change.name, []).append((record.position, change))
        found.max_stream_seq = max(found.max_stream_seq, change.stream_seq)
    found.damage += journal.damage
    found.journal_position = journal.position
    return changes, unfiled


def _read_config(
    disk: Disk, directory: str, stream: str, name: str, secret: StoreKey | None, found: ConsumerRecovery
) -> FoundConsumer | None:
    meta = read_meta(disk, directory, f"{stream}/{name}", secret)
    if meta.problem is not None:
        found.damage.append(meta.problem)
    if not meta.data:
        return None
    try:
        # As the real server, a consumer whose checksum disagrees is still taken: it is reported above.
        decoded = decode_consumer_meta(meta.data, f"{directory}/{META_FILE}")
    except Damaged as error:
        found.damage.append(Damage(error.file, error.offset, len(meta.data), "metadata", str(error)))
        return None
    return FoundConsumer(name, decoded.config, decoded.created_ns)


def _read_unfiled(
    disk: Disk, directory: str, stream: str, name: str, made: Change, found: ConsumerRecovery
) -> FoundConsumer | None:
    """A consumer whose files may be incomplete; what meta.inf lacks comes from the journal."""
    meta = read_meta(disk, directory, f"{stream}/{name}")
    # No torn file is one bit away from a sound one: that is damage.
    if meta.problem is not None and meta.problem.kind == "repaired":
        found.damage.append(meta.problem)
    lost = b"" if meta.ok else made.meta
    try:
        decoded = decode_consumer_meta(lost or meta.data, f"{directory}/{META_FILE}")
    except Damaged as error:
        found.damage.append(Damage(error.file, error.offset, 0, "metadata", str(error)))
        return None
    return FoundConsumer(name, decoded.config, decoded.created_ns, unfiled=True, lost_meta=lost)


def _read_state(
    disk: Disk,
    stream_dir: str,
    stream: str,
    consumer: FoundConsumer,
    changes: list[tuple[int, Change]],
    secret: StoreKey | None,
    found: ConsumerRecovery,
) -> None:
    directory = f"{stream_dir}/{CONSUMERS_DIR}/{consumer.name}"
    file, key_text = f"{directory}/{STATE_FILE}", f"{stream}/{consumer.name}"
    # A file that a moment ago was not there may be half there now: no damage, the journal has the consumer from its start.
    report = ConsumerRecovery() if consumer.unfiled else found
    known = len(report.damage)
    data = read_shortcut(disk, file, STATE_BYTES_MAX, report.damage, "metadata") or b""
    consumer.doubtful = len(report.damage) > known and not consumer.unfiled
    if data and secret is not None and is_sealed(disk, directory):
        data = secret.open_file(disk, directory, key_text.replace("/", "."), data)
    decoded = _decode_or_repair(data, key_text, file, report) if data else None
    if consumer.unfiled:
        found.damage += [each for each in report.damage if each.kind == "repaired"]
    if consumer.unfiled and (decoded is None or _is_torn_start(decoded, changes)):
        decoded, data = None, b""
    if decoded is not None and not (decoded.has_hash and decoded.hash_ok):
        _note_foreign(consumer, decoded, changes, file, found)
        return
    rules = Rules.of(consumer.config)
    if decoded is not None:
        consumer.state, consumer.journal_position = decoded.state, decoded.journal_position
        behind = [change for position, change in changes if position > decoded.journal_position]
        consumer.current = not behind and trailer_agrees(data, key_text)
    else:
        consumer.doubtful = consumer.doubtful or bool(data)
        whole = (i for i, (_, change) in enumerate(changes) if change.kind in (Kind.CREATED, Kind.STATE))
        first = next(whole, len(changes))
        behind = [change for _, change in changes[first:]]
        # A consumer that never delivered may have no o.dat; one with zeros would mean to a real server
        # that the deliver policy was applied already.
        consumer.current = not data and not behind
    _replay(consumer, behind, rules, file, found)


def _is_torn_start(decoded: DecodedState, changes: list[tuple[int, Change]]) -> bool:
    """Whether this is the first o.dat of a consumer without its trailer: a real server's looks the same, but one that has
    delivered nothing has nothing to say."""
    return not decoded.has_hash and decoded.state == changes[0][1].state


def _replay(
    consumer: FoundConsumer, changes: list[Change], rules: Rules, file: str, found: ConsumerRecovery
) -> None:
    """Do again what the journal says; a ledger is kept as long as one record after the other is its own."""
    ledger: Ledger | None = None
    for change in changes:
        if change.kind is not Kind.CHANGES:
            if ledger is not None:
                consumer.state, ledger = state_of(ledger), None
            change.replay(consumer.state, rules)
            continue
        ledger = ledger or ledger_of(consumer.config, consumer.state)
        try:
            ledger.replay(change.run)
        except BadInput as error:
            detail = f"a journal record does not continue this state ({error}); the rest was not used"
            found.damage.append(Damage(file, 0, 0, "bad-record", detail))
            break
    if ledger is not None:
        consumer.state = state_of(ledger)


def _note_foreign(
    consumer: FoundConsumer,
    decoded: DecodedState,
    changes: list[tuple[int, Change]],
    file: str,
    found: ConsumerRecovery,
) -> None:
    consumer.state = decoded.state
    reason = implausible(decoded.state)
    if reason is not None:
        consumer.state, consumer.doubtful = ConsumerState(), True
        detail = f"{reason}; not used, the consumer starts again and messages may come twice"
        found.damage.append(Damage(file, 0, 0, "metadata", detail))
    elif changes:
        detail = "another server wrote this file after our journal, which is older and was not used"
        found.damage.append(Damage(file, 0, 0, "index", detail))


def _decode_or_repair(data: bytes, key_text: str, file: str, found: ConsumerRecovery) -> DecodedState | None:
    """The state, or None when the file cannot be relied on; what was wrong goes into `found`."""
    try:
        decoded = decode_state(data, key_text, file)
        if decoded.hash_ok or not decoded.has_hash:
            return decoded
        problem = "the hash behind the state disagrees"
    except Damaged as error:
        problem = str(error)
    repair = single_bit_repair(data, lambda trial: trailer_agrees(trial, key_text))
    if repair is not None:
        detail = f"bit {repair.bit} of this byte was inverted"
        found.damage.append(Damage(file, repair.offset, 1, "repaired", detail))
        return decode_state(repair.data, key_text, file)
    detail = f"{problem}; not used, the consumer starts again and messages may come twice"
    found.damage.append(Damage(file, 0, len(data), "metadata", detail))
    return None
