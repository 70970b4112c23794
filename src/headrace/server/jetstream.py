"""JetStream of a server: its accounts over one volume, and the service that answers for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.layouts.volume_parts import side_by_side
from headrace.server.nats.handshake import API_LEVEL, SERVED_VERSION
from headrace.streams.account import JsAccount
from headrace.streams.api.service import Service
from headrace.streams.limits import AccountLimits, ServerFacts
from headrace.streams.stream.stream import Stream

if TYPE_CHECKING:
    from headrace.layouts.stream_store import StreamVolume
    from headrace.server.nats.client import Client
    from headrace.server.nats.server import NatsServer

SHARE = 0.75


def start_jetstream(server: NatsServer, volume: StreamVolume) -> Service:
    """Streams back from disk, API listening."""
    options = server.options.jetstream
    facts = ServerFacts(
        name=server.name,
        version=SERVED_VERSION,
        level=API_LEVEL,
        domain=options.domain or "",
        origins=True,
        max_memory=options.max_memory if options.max_memory is not None else _memory(),
        max_storage=options.max_storage if options.max_storage is not None else _storage(volume.path),
        max_ack_pending=options.limits.max_ack_pending,
        max_request_batch=options.limits.max_request_batch,
        duplicate_window_ns=options.limits.duplicate_window_ns or -1,
        max_pending=server.options.max_pending,
    )

    def client_info(conn: int | None) -> Mapping[str, Any]:
        client = server.clients.get(conn) if conn is not None else None
        if client is None:
            return {}
        return {
            "id": client.cid,
            "acc": client.account or "$G",
            "user": client.user,
            "name": client.name,
            "lang": client.lang,
            "ver": client.version,
            "host": client.host,
        }

    service = Service(server.engine, facts, client_info)
    for account in server.handshake.authenticator.accounts():
        if account.jetstream is None:
            service.add_without_jetstream(account.name)
            continue
        given = account.jetstream
        limits = AccountLimits(
            given.max_memory,
            given.max_storage,
            given.max_streams,
            given.max_consumers,
            given.max_ack_pending,
            given.memory_max_stream_bytes,
            given.storage_max_stream_bytes,
            given.max_bytes_required,
        )
        found = JsAccount(server.engine, account.name, Stream, limits=limits, facts=facts)
        server.engine.accounts[account.name] = found
        found.recover()
        service.add(found)
    return service


def release_pulls(server: NatsServer, client: Client | None = None) -> None:
    """Requests that wait (of one client that is sent away; of all when the server stops) get their last word."""
    for name, account in server.engine.accounts.items():
        if client is not None and name != client.account:
            continue
        for stream in account.streams.values():
            for consumer in list(stream.consumers.values()):
                if client is None:
                    consumer.stop()
                else:
                    consumer.release(client.slot)


async def stop_jetstream(server: NatsServer, volume: StreamVolume) -> None:
    """Streams listen no more, save what they must, and the volume closes the stores."""
    streams = [stream for account in server.engine.accounts.values() for stream in account.streams.values()]
    for stream in streams:
        stream.leave()

    def save() -> list[HeadraceError]:
        problems = side_by_side([stream.save for stream in streams])
        try:
            volume.close()
        except HeadraceError as problem:
            problems.append(problem)
        return problems

    for problem in await server.loop.run_in_executor(None, save):
        server.log.error("not everything could be saved, the next start reads more: %s", problem)


def _memory() -> int:
    """Three quarters of the machine's memory."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * SHARE)


def _storage(path: str) -> int:
    """Three quarters of what is free on the disk."""
    return int(shutil.disk_usage(path).free * SHARE)
