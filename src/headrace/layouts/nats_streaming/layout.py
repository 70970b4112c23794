"""`LAYOUT`: stores of NATS Streaming (STAN)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from headrace.errors import NotFound
from headrace.layouts.base import ScanTask, Volume
from headrace.layouts.capabilities import Capabilities
from headrace.layouts.layout import Layout, Look, ServerConfig
from headrace.layouts.nats_streaming import unread
from headrace.layouts.nats_streaming._kernels import Disk
from headrace.layouts.nats_streaming.config_file import from_server_config
from headrace.layouts.nats_streaming.inspector import Inspection, look
from headrace.layouts.nats_streaming.names import looks_like_streaming
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.scan_task import lone_slice
from headrace.layouts.nats_streaming.volume import StreamingVolume
from headrace.layouts.places import disk_given
from headrace.layouts.report import Report
from headrace.layouts.unread import Unread


class StreamingLayout(Layout):
    """NATS Streaming (STAN)."""

    name = "nats_streaming"
    product = "NATS Streaming"
    label = "NATS Streaming"
    volume = StreamingVolume
    sealed = True
    columns: ClassVar[Mapping[str, str]] = {"channel": "string", "reply": "string"}
    options = StreamingOptions
    capabilities = Capabilities(
        layout="nats_streaming", codec="nats", origin=1, tick_ns=1, headers=False, log="channel"
    )

    def recognise(self, path: str, disk: Disk) -> bool:
        """Its two files, or channels that lost them."""
        return looks_like_streaming(disk, path)

    def unread(self, disk: Disk, path: str) -> list[Unread]:
        """Raft logs, folders that are no channel."""
        return unread.unread(disk, path.rstrip("/") or "/")

    def look(self, request: Look) -> Report:
        """What is in it: names and sizes only, or after every byte was read and index and data were compared."""
        disk = disk_given(request.path, request.disk)
        on = disk or Disk.real(request.path)
        if not looks_like_streaming(on, request.path):
            raise NotFound(f"{request.path}: no NATS Streaming store there")
        seen = Inspection(
            on,
            request.path.rstrip("/") or "/",
            disk is None,
            request.key,
            StreamingOptions(),
            request.progress,
        )
        return look(
            seen,
            request.log,
            quick=request.quick,
            full=request.full,
            threads=request.threads if request.full else 1,
        )

    def carry_over(self, source: Volume, target: Volume, log: str) -> int:
        """The channel's subscriptions with their places and what is pending, and the clients they belong to."""
        assert isinstance(source, StreamingVolume) and isinstance(target, StreamingVolume)
        for client in source.clients.all():
            if client.id not in target.clients:
                target.clients.add(client)
        subscriptions = target.open(log).subscriptions
        count = subscriptions.take_from(source.open(log).subscriptions)
        subscriptions.commit()
        target.clients.commit()
        return count

    def read_server_config(self, given: Mapping[str, Any]) -> ServerConfig:
        """Directory and options from the server's own configuration file, read into plain values."""
        return from_server_config(given)

    def lone_task(self, log: str, files: Sequence[str], key: str | None = None) -> ScanTask | None:
        """A slice that was given to the archive script: its data and its index (`.bak`)."""
        data, index = files
        return lone_slice(log, data, index, key)

    def copy_options(self) -> StreamingOptions:
        """As many channels and subscriptions as there are."""
        return StreamingOptions(max_channels=0, max_subs=0)


LAYOUT = StreamingLayout()
