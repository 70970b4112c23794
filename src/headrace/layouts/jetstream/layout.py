"""`LAYOUT`: JetStream stores.

What is not read of a store: folders beside `streams` in an account, and beside `msgs` and `obs` in a stream;
`_js_`, the Raft logs of a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from headrace.layouts.base import Volume
from headrace.layouts.capabilities import Capabilities
from headrace.layouts.checks import CheckPlan, CheckTask
from headrace.layouts.copies import Copies
from headrace.layouts.following import Follower
from headrace.layouts.jetstream._kernels import Disk
from headrace.layouts.jetstream.checks.inspector import find_streams
from headrace.layouts.jetstream.checks.report import NAME, NOUNS, PRODUCT
from headrace.layouts.jetstream.meta import META_FILE
from headrace.layouts.jetstream.paths import MSGS, MSGS_NEW, MSGS_OLD, SIDE, block_numbers
from headrace.layouts.jetstream.volume import ROOT, JetStreamVolume, looks_like_jetstream
from headrace.layouts.layout import THREADS, Layout, LayoutOptions, Look, OpenRequest, Progress
from headrace.layouts.places import absolute, check_path, disk_at
from headrace.layouts.report import Report
from headrace.layouts.salvage import SalvageReport
from headrace.layouts.unread import RAFT, UNKNOWN, Unread, unread_entries

STREAMS, CLUSTER = "streams", "_js_"
COPY_CACHE_BYTES = 32 << 20
"""A copy goes over everything once: more would only push out what others have cached."""
_OF_STREAM = {MSGS, MSGS_NEW, MSGS_OLD, SIDE, "obs"}


class StoreOptions(LayoutOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a store is held open; everything else is an option of its streams."""

    sync_interval_s: Annotated[
        float, msgspec.Meta(description="mode interval: how often files are synced")
    ] = 120.0
    block_bytes: Annotated[
        int | None, msgspec.Meta(description="size of new blocks; by the stream if absent")
    ] = None
    cache_bytes: Annotated[int | None, msgspec.Meta(description="of blocks kept in memory, per stream")] = (
        None
    )


class JetStreamLayout(Layout):
    """A store of nats-server, 2.2 and later."""

    name = NAME
    product = PRODUCT
    label = PRODUCT
    nouns = NOUNS
    options = StoreOptions
    sealed = True
    columns: ClassVar[Mapping[str, str]] = {"stream": "string", "msg_id": "string"}
    copies_age = False
    needs_server = "a JetStream store has its options on its streams; change them through a running server"
    capabilities = Capabilities(
        layout=NAME,
        codec="nats",
        origin=1,
        tick_ns=1,
        subjects=True,
        subject_max=0xFFFF,
        log="stream",
        filters=True,
        claims_subjects=True,
    )

    def recognise(self, path: str, disk: Disk) -> bool:
        """A folder `jetstream`, or that folder itself."""
        return looks_like_jetstream(disk, path)

    def recognise_log(self, path: str, disk: Disk) -> bool:
        """One stream's directory has no mark but its files."""
        base = absolute(path)
        return disk.entry(f"{base}/{META_FILE}") is not None or bool(block_numbers(disk, f"{base}/{MSGS}"))

    def volume_at(self, path: str, request: OpenRequest) -> JetStreamVolume:
        given: dict[str, Any] = {} if request.options is None else request.options.fields()
        return JetStreamVolume(
            path,
            mode=request.mode,
            create=request.create,
            durability=request.durability,
            disk=request.disk,
            key=request.key,
            clock=request.clock,
            maintenance=request.maintenance,
            **given,
        )

    def source_options(self) -> StoreOptions:
        return StoreOptions(cache_bytes=COPY_CACHE_BYTES)

    def copy_options(self) -> StoreOptions:
        return self.source_options()

    def options_for_copies(self, given: Mapping[str, Any]) -> StoreOptions:
        """Those that are given belong to the streams."""
        return self.copy_options()

    def check_log_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        from headrace.layouts.jetstream.store.copies import check_stream_options

        return check_stream_options(options)

    def copies(self, volume: Volume, options: Mapping[str, Any] | None = None) -> Copies:
        from headrace.layouts.jetstream.store.copies import StreamCopies

        return StreamCopies(volume, options or {})

    def look(self, request: Look) -> Report:
        """Stream by stream and block by block."""
        if request.full:
            from headrace.layouts.jetstream.checks.verification import verify

            return verify(request)
        from headrace.layouts.jetstream.checks.inspection import inspect

        return inspect(request)

    def salvage(
        self,
        path: str,
        out: str,
        *,
        log: str | None = None,
        key: str | None = None,
        disk: Disk | None = None,
        progress: Progress | None = None,
        threads: int = THREADS,
    ) -> SalvageReport:
        from headrace.layouts.jetstream.recovery.salvage import salvage

        request = Look(path=path, log=log, key=key, disk=disk, progress=progress, threads=max(threads, 1))
        return salvage(request, out, self.unread_at(path, disk) if log is None else [])

    def check_tasks_of_logs(self, path: str, logs: Sequence[str] | None, key: str | None) -> list[CheckTask]:
        from headrace.layouts.jetstream.checks.verification import check_tasks

        return check_tasks(path, logs, key)

    def check_plan(self, path: str, *, log: str | None = None, key: str | None = None) -> CheckPlan:
        from headrace.layouts.jetstream.checks.plan import make_plan
        from headrace.layouts.jetstream.checks.verification import StoreCheckPlan

        return StoreCheckPlan(make_plan(path, stream=log, key=key))

    def reading(self, path: str, *, disk: Disk | None = None, key: str | None = None) -> Volume:
        from headrace.layouts.jetstream.store.following import SurveyedStore

        checked = check_path(path)
        return SurveyedStore(disk or disk_at(checked), checked, key)

    def follow(
        self, path: str, names: Sequence[str], *, disk: Disk | None = None, key: str | None = None
    ) -> Follower:
        from headrace.layouts.jetstream.store.following import StreamFollower

        checked = check_path(path)
        return StreamFollower(disk or disk_at(checked), checked, names, key)

    def unread(self, disk: Disk, path: str) -> list[Unread]:
        """Of a store, its `jetstream` folder, or one stream's directory."""
        places: list[Unread] = []
        for root in (f"{path}/{ROOT}", path if path.rpartition("/")[2] == ROOT else ""):
            if root and disk.entry(root) is not None:
                places += _of_accounts(disk, root)
                break
        for folder in find_streams(disk, path).values():
            places += unread_entries(disk, folder, _of_stream)
        return places


def _of_accounts(disk: Disk, root: str) -> list[Unread]:
    places: list[Unread] = []
    for account, is_dir, _ in disk.list(root):
        if is_dir:
            folder = f"{root}/{account}"
            places += unread_entries(disk, folder, _of_account)
            places += unread_entries(
                disk,
                folder,
                lambda name, is_dir: RAFT if is_dir and name == CLUSTER else None,
                may_hold_messages=False,
            )
    return places


def _of_account(name: str, is_dir: bool) -> str | None:
    return UNKNOWN if is_dir and name not in (STREAMS, CLUSTER) else None


def _of_stream(name: str, is_dir: bool) -> str | None:
    return UNKNOWN if is_dir and name not in _OF_STREAM else None


LAYOUT = JetStreamLayout()
