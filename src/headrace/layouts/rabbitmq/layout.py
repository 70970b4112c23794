"""`LAYOUT`: the queue storage of RabbitMQ nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from headrace.layouts.capabilities import Capabilities
from headrace.layouts.layout import Layout, Look
from headrace.layouts.rabbitmq import inspector, unread
from headrace.layouts.rabbitmq._kernels import Disk
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.volume import RabbitVolume, vhost_paths
from headrace.layouts.report import Report
from headrace.layouts.unread import Unread


class RabbitLayout(Layout):
    """RabbitMQ's classic queues, version 1."""

    name = "rabbitmq"
    label = "RabbitMQ"
    product = inspector.PRODUCT
    options = RabbitOptions
    volume = RabbitVolume
    shares_files = True
    columns: ClassVar[Mapping[str, str]] = {
        "vhost": "string",
        "queue": "string",
        "exchange": "string",
        "routing_key": "string",
        "persistent": "bool",
    }
    capabilities = Capabilities(
        layout="rabbitmq",
        codec="nats",
        own_codec="amqp",
        origin=0,
        tick_ns=1,
        keys=True,
        nulls=True,
        subjects=True,
        subject_max=255,
        position="sequence id",
        log="queue",
    )

    def recognise(self, path: str, disk: Disk) -> bool:
        """A vhost's directory, or one that holds some."""
        return vhost_paths(disk, path.rstrip("/") or "/") is not None

    def unread(self, disk: Disk, path: str) -> list[Unread]:
        """Quorum queues, streams, classic queues of version 2, retained messages of MQTT."""
        return unread.unread(disk, path.rstrip("/") or "/")

    def look(self, request: Look) -> Report:
        """Queues, segments, store files; in full after every byte was read and every reference followed."""
        return inspector.view(
            request.path,
            log=request.log,
            quick=request.quick,
            thorough=request.full,
            disk=request.disk,
            progress=request.progress,
        )


LAYOUT = RabbitLayout()
