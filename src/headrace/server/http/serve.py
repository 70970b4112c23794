"""The HTTP port beside the server, on the same loop. It binds at once, so that a taken port is reported before the start.

monitor = Monitor(view, options.monitor)      # bound: `monitor.port` is known
await monitor.start()
await monitor.stop()
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from headrace.errors import BadInput
from headrace.server.config.options import RANDOM_PORT, MonitorOptions
from headrace.server.http.app import make_app
from headrace.server.listener import join_address, listen_on
from headrace.server.view import ServerView

CONNECTIONS_MAX = 64
BACKLOG = 64
KEEP_ALIVE_S = 5
STOP_S = 2.0
HEAD_BYTES_MAX = 16 << 10


class Monitor:
    """Monitoring of one server."""

    def __init__(self, view: ServerView, options: MonitorOptions) -> None:
        self._socket = _bind(options)
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            make_app(view, options.base_path),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        self._server = _Quiet(config)
        log = logging.getLogger("uvicorn.error")
        log.handlers, log.propagate = [_Errors()], False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when pages can be asked for."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="monitor")
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Pages in the making get a moment."""
        self._server.should_exit = True
        if self._task is not None:
            try:
                await asyncio.wait_for(self._task, STOP_S)
            except TimeoutError:
                pass
        self._socket.close()


class _Errors(logging.Handler):
    """What goes wrong in a page is in the server's log; requests that are none are not worth a line each."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("headrace.server").handle(record)


class _Quiet(uvicorn.Server):
    """Signals belong to the server, not to its monitoring."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _bind(options: MonitorOptions) -> socket.socket:
    port = 0 if options.port in (None, RANDOM_PORT) else options.port or 0
    try:
        return listen_on(options.host, port, BACKLOG)
    except OSError as error:
        text = f"cannot listen on {join_address(options.host, port)} for monitoring: {os.strerror(error.errno or 0)}"
        raise BadInput(text) from error
