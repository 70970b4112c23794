"""A store for people: channels, slices, readers, clients, and everything that is not sound. Reading only.

inspect   what the indexes say (`quick`: what names and sizes say)
verify    every byte of every file read; index and data compared record by record
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headrace.errors import Damaged, DiskFault, HeadraceError, KeyNeeded
from headrace.layouts.base import Damage
from headrace.layouts.layout import Progress
from headrace.layouts.log_names import LogNames
from headrace.layouts.nats_streaming import advice
from headrace.layouts.nats_streaming._kernels import Disk, stan_mend
from headrace.layouts.nats_streaming.channel import Channel
from headrace.layouts.nats_streaming.names import (
    CLIENTS,
    HEAD,
    LOCK,
    SERVER,
    SUBS,
    WITNESS,
    data_path,
    index_path,
    raft_logs,
    slice_numbers,
)
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.protos import ServerInfo
from headrace.layouts.nats_streaming.seal import SEALED_OVERHEAD
from headrace.layouts.nats_streaming.slices import ENTRY_BYTES, findings_to_damage, index_bytes_max
from headrace.layouts.nats_streaming.volume import StreamingVolume
from headrace.layouts.report import FileRow, LogView, ReaderRow, VolumeView
from headrace.layouts.shortcuts import is_there, problem_of

PRODUCT = "NATS Streaming"
VERSIONS = "nats-streaming-server 0.5 and later (checked against 0.25.6)"


@dataclass(slots=True)
class Inspection:
    """What was asked, and how far it is."""

    disk: Disk
    path: str
    real: bool
    key: str | None
    options: StreamingOptions
    progress: Progress | None = None
    total: int = 0
    done: int = 0

    def advance(self, size: int) -> None:
        """Another file was read."""
        self.done += size
        if self.progress is not None:
            self.progress(self.done, self.total)


def look(
    ask: Inspection, log: str | None, *, quick: bool = False, full: bool = False, threads: int = 1
) -> VolumeView:
    """The whole directory, or one channel of it."""
    # The check for a running server is only possible, and only meant, on the real disk.
    volume = StreamingVolume(ask.path, options=ask.options, key=ask.key, disk=None if ask.real else ask.disk)
    with volume:
        names = volume.logs()
        if log is not None:
            names = LogNames().choose(names, (log,), path=ask.path, kind="channel")
        view = VolumeView(ask.path, StreamingVolume.layout, PRODUCT, VERSIONS, [])
        view.own_damage = volume.damage_of_root()
        _root(ask, volume, view)
        if full:
            ask.total = sum(_data_bytes(ask.disk, f"{ask.path}/{name}") for name in names)
        for name in names:
            view.log_views.append(_quick(ask, name) if quick else _channel(ask, volume, name, full, threads))
        view.own_notes += _advice([*view.own_damage, *(d for one in view.log_views for d in one.damage)])
        return view


def _root(ask: Inspection, volume: StreamingVolume, view: VolumeView) -> None:
    if volume.info is not None:
        _server_info(ask, volume, volume.info, view)
    elif not is_there(ask.disk, f"{ask.path}/{SERVER}"):
        view.own_notes.append(f"{SERVER} is missing: opening for writing makes it anew, channels are kept")
    view.details["clients"] = ", ".join(client.id for client in volume.clients.all()) or "none"
    for name in (SERVER, CLIENTS):
        path = f"{ask.path}/{name}"
        if is_there(ask.disk, path):
            view.files.append(FileRow(path, name, _size(ask.disk, path)))
    if ask.disk.entry(f"{ask.path}/{WITNESS}") is not None:
        view.own_notes.append(
            "the last opening for writing was with file_truncate_bad_eof: files may have been cut"
        )
    holder = ask.disk.lock_holder(f"{ask.path}/{LOCK}")
    if holder is not None:
        view.writer = f"process {holder.pid} ({holder.note})"
    elif volume.served_by is not None:
        view.writer = f"nats-streaming-server (process {volume.served_by})"
    leftovers = [
        name
        for name, is_dir, _ in ask.disk.list(ask.path)
        if not is_dir and name.startswith(("subs", CLIENTS)) and name != CLIENTS
    ]
    if leftovers:
        view.own_notes.append(f"left by an interrupted compaction, not needed: {', '.join(leftovers)}")


def _server_info(ask: Inspection, volume: StreamingVolume, info: ServerInfo, view: VolumeView) -> None:
    """What server.dat says, and the Raft log of a node."""
    view.details["cluster id"] = info.cluster_id
    if info.node_id:
        view.details["cluster node"] = info.node_id
        view.own_notes.append(
            f"node {info.node_id} of a cluster: clients and subscriptions are in its Raft log, not in these files"
        )
        for name, is_dir, _ in ask.disk.list(ask.path):
            for log in raft_logs(ask.disk, f"{ask.path}/{name}") if is_dir else []:
                view.details["raft log"] = log
    view.details["publish subject"] = info.publish
    if volume.options.file_crc_poly != StreamingOptions().file_crc_poly:
        view.details["CRC polynomial"] = str(volume.options.file_crc_poly)


def _quick(ask: Inspection, name: str) -> LogView:
    directory = f"{ask.path}/{name}"
    view = LogView(name, directory)
    numbers, _ = slice_numbers(ask.disk, directory)
    for number in numbers:
        row = FileRow(data_path(directory, number), "slice", _size(ask.disk, data_path(directory, number)))
        row.messages = max(_size(ask.disk, index_path(directory, number)) - len(HEAD), 0) // ENTRY_BYTES
        row.newest = number == numbers[-1]
        view.files.append(row)
    return view


def _channel(ask: Inspection, volume: StreamingVolume, name: str, full: bool, threads: int) -> LogView:
    view = LogView(name, f"{ask.path}/{name}")
    try:
        channel = volume.open(name)
    except HeadraceError as problem:
        view.problems.append(str(problem))
        return view
    view.state = channel.state()
    for found in channel.slices:
        row = FileRow(
            found.data_path,
            "slice",
            _size(ask.disk, found.data_path),
            messages=found.count,
            first=found.first if found.count else None,
            next=found.last + 1 if found.count else None,
            first_time_ns=found.first_time_ns or None,
            last_time_ns=found.last_time_ns or None,
            live_bytes=found.counted - ENTRY_BYTES * found.count,
            newest=found is channel.slices[-1],
            details={"index": "made anew in memory" if found.index else "sound"},
        )
        view.files.append(row)
    view.files.append(FileRow(channel.subscriptions.path, SUBS, _size(ask.disk, channel.subscriptions.path)))
    for reader in channel.subscriptions.readers():
        details = {"ack wait": f"{reader.ack_wait_s} s", "max in flight": str(reader.max_in_flight)}
        details |= {"closed": "yes"} if reader.is_closed else {}
        view.cursors.append(
            ReaderRow(
                reader.name,
                reader.kind,
                reader.last_sent + 1,
                reader.floor or None,
                len(reader.pending),
                details,
            )
        )
    if full:
        _verify(ask, channel, view, volume.is_live, threads)
    view.damage = channel.damage() + [d for row in view.files for d in row.damage]
    view.damage = list({(d.file, d.offset, d.kind): d for d in view.damage}.values())
    view.damage.sort(key=lambda d: (d.file, d.offset))
    for row in view.files:
        row.damage = [d for d in view.damage if d.file in (row.file, row.file.removesuffix(".dat") + ".idx")]
    _payloads(channel, view)
    backups = [n for n, _, _ in ask.disk.list(view.directory) if n.endswith((".dat.bak", ".idx.bak"))]
    if backups:
        view.notes.append(f"{len(backups)} archived files (.bak), which are not read")
    return view


def _verify(ask: Inspection, channel: Channel, view: LogView, live: bool, threads: int) -> None:
    """Every slice from its first byte to its last."""
    options = channel.home.options

    def one(number: int) -> tuple[list[Damage], int]:
        data = data_path(channel.directory, number)
        index = index_path(channel.directory, number)
        below = next((s.first for s in channel.slices if s.number > number and s.count), None)
        damage: list[Damage] = []
        problem = problem_of(ask.disk, index, index_bytes_max(_size(ask.disk, data)))
        known = ask.disk.open(index) if problem is None and is_there(ask.disk, index) else None
        damage += [] if problem is None else [problem]
        mended = stan_mend(
            ask.disk.open(data), known, channel.name, options.file_crc_poly, options.file_crc, None, below
        )
        return [*damage, *findings_to_damage(data, index, mended.findings)], _size(ask.disk, data)

    rows = {row.file: row for row in view.files}
    numbers, _ = slice_numbers(ask.disk, channel.directory)
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="headrace-verify") as pool:
        for number, (found, size) in zip(numbers, pool.map(_safely(one, view), numbers), strict=True):
            path = data_path(channel.directory, number)
            row = rows.get(path)
            if row is None:
                row = FileRow(path, "slice without a sound message", size)
                view.files.append(row)
            # What a writer has not put into the index yet is not damage.
            busy = live and number == numbers[-1]
            row.damage += [d for d in found if not (busy and d.kind in ("index", "unsound-tail"))]
            ask.advance(size)


def _safely(
    act: Callable[[int], tuple[list[Damage], int]], view: LogView
) -> Callable[[int], tuple[list[Damage], int]]:
    def run(number: int) -> tuple[list[Damage], int]:
        try:
            return act(number)
        except HeadraceError as problem:
            view.problems.append(str(problem))
            return [], 0

    return run


def _payloads(channel: Channel, view: LogView) -> None:
    """Whether payloads are sealed, and whether the key opens them: the first few show it."""
    try:
        sample = channel.read(channel.first, max_msgs=16)
    except KeyNeeded as problem:
        view.problems.append(str(problem))
        return
    except Damaged as problem:
        view.problems.append(str(problem))
        return
    data = [record.data for record in sample if record.data]
    if data and channel.home.key is None and all(d[0] in (1, 2) and len(d) >= SEALED_OVERHEAD for d in data):
        view.notes.append("payloads look encrypted; give the key to read them")
    elif data and channel.home.key is not None:
        view.details["payloads"] = "opened with the key"


def _advice(found: list[Damage]) -> list[str]:
    """For each kind of file that is damaged: what may be lost, and the step to take."""
    kinds = {
        advice.kind_of(d.file): d
        for d in found
        if d.kind in ("bad-record", "metadata", "unsound-tail", "index")
    }
    return [
        f"{kind}: {advice.may_be_lost(damage.file)}. Next: {advice.step(damage.file)}"
        for kind, damage in sorted(kinds.items())
        if advice.may_be_lost(damage.file)
    ]


def _size(disk: Disk, path: str) -> int:
    try:
        entry = disk.entry(path)
    except DiskFault:  # no file: whoever reads it says so
        return 0
    return entry.size if entry is not None else 0


def _data_bytes(disk: Disk, directory: str) -> int:
    return sum(_size(disk, data_path(directory, number)) for number in slice_numbers(disk, directory)[0])
