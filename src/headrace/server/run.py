"""`serve`: one server from start to stop.

open the store → bind the port → streams back → listen → (signals) → drain → close

INT   stop cleanly, at once           TERM  the same a moment after clients were notified
USR2  lame duck: clients go one by one over `lame_duck_duration`
HUP   read the configuration again    USR1  open the log file again
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

import headrace
from headrace.errors import HeadraceError, StoreLocked
from headrace.server._kernels import CALL
from headrace.server.auth.users import Authenticator, Identity
from headrace.server.config.options import ServerOptions
from headrace.server.config.places import claim, store_dirs
from headrace.server.config.problems import ConfigError
from headrace.server.config.reload import check_reload
from headrace.server.listener import join_address, reached_at
from headrace.server.live import LiveView
from headrace.server.nats.handshake import Handshake, permission_lists
from headrace.server.nats.server import NatsServer, new_exchange
from headrace.server.nats.tracing import Tracing
from headrace.server.runner import EngineRunner
from headrace.server.system import answer, server_info, subjects
from headrace.streams.engine import StreamEngine

if TYPE_CHECKING:
    from headrace.layouts.stream_store import StreamVolume
    from headrace.server.http.serve import Monitor
    from headrace.server.logs import LogOutput
    from headrace.server.nats.client import Client
    from headrace.streams.api.service import Service

SWITCH_S = 0.001
"""A thread that makes a page or a file gives way to the clients after this long."""
NOTICE_S = 0.05
"""So long after a notification of the stop clients are closed on SIGTERM."""
OPEN_FILES = 65_536


def serve(
    options: ServerOptions, log: LogOutput, *, reread: Callable[[], ServerOptions] | None = None
) -> int:
    """Run until a signal; 0 after a clean stop, 2 if it could not start."""
    try:
        uvloop.run(Process(options, log, reread).run())
    except (HeadraceError, ConfigError, OSError) as problem:
        sys.stderr.write(f"headrace: {_in_one_line(problem, options)}\n")
        return 2
    return 0


def _in_one_line(problem: Exception, options: ServerOptions) -> str:
    if isinstance(problem, ConfigError):
        return "; ".join(problem.problems)
    if isinstance(problem, OSError) and not isinstance(problem, HeadraceError):
        if problem.filename:  # of a file; a port has none
            return f"{problem.filename}: {problem.strerror}"
        return f"cannot listen on {options.host}:{options.port}: {problem.strerror or problem}"
    return str(problem)


class Process:
    """Everything of one `headrace serve`."""

    def __init__(
        self, options: ServerOptions, log: LogOutput, reread: Callable[[], ServerOptions] | None = None
    ) -> None:
        self.options, self.log, self._reread = options, log, reread
        self.directory: str | None = None
        self.volume: StreamVolume | None = None
        self.service: Service | None = None
        self.monitor: Monitor | None = None
        self.server: NatsServer
        self.view: LiveView
        self._stop = asyncio.Event()
        self._ending = False
        self._owns_pid_file = False

    async def run(self) -> None:
        """Start, serve, stop."""
        try:
            self._take_signals()
            await self.start()
            self._write_ports()
            await self._stop.wait()
        finally:
            await self.close()

    # Start

    async def start(self) -> None:
        """Everything up; clients may connect when this returns."""
        options, began = self.options, time.monotonic()
        _raise_open_files()
        if options.jetstream.enabled:
            self.directory, self.volume = _open_first(options)
        engine = StreamEngine(new_exchange(options), self.volume)
        self.runner = EngineRunner(engine)
        self.server = NatsServer(options, engine, self.runner, logging.getLogger("headrace.server"))
        with self._pid_written():
            await self.server.bind()
        self._say(f"Starting Headrace {headrace.__version__}, server id {self.server.id}")
        if self.volume is not None:
            from headrace.server.jetstream import start_jetstream  # a server without streams starts sooner

            self.service = start_jetstream(self.server, self.volume)
            for notice in self.volume.notices:
                self.log.warning(notice)
            self._say(f"Streams live in {self.directory}; {_meaning(options)}")
        self.view = LiveView(self.server, self.service, self.directory, self.reload)
        self.server.view = self.view
        self._serve_system_subjects()
        self.tracing = Tracing(self.server, partial(server_info, self.view))
        await self.server.listen()
        self.view.websocket_port = self.server.websocket_port
        if options.monitor.port is not None:
            from headrace.server.http.serve import Monitor

            self.monitor = Monitor(self.view, options.monitor)
            await self.monitor.start()
            self.view.http_port = self.monitor.port
            self._say(f"Monitoring on http://{options.monitor.host}:{self.monitor.port}")
        if self.server.handshake.authenticator.has_plain_passwords:
            self.log.warning("Plaintext passwords detected, use nkeys or bcrypt")
        gc.collect()
        gc.freeze()
        sys.setswitchinterval(SWITCH_S)
        if options.websocket is not None:
            scheme = "wss" if options.websocket.tls else "ws"
            where = join_address(options.websocket.host, self.server.websocket_port or 0)
            self._say(f"Listening for websocket clients on {scheme}://{where}")
        self._say(f"Listening for client connections on {options.host}:{self.server.port}")
        self._say(f"Server is ready ({(time.monotonic() - began) * 1000:.0f} ms)")

    def _say(self, text: str) -> None:
        self.log.info(text)

    def _serve_system_subjects(self) -> None:
        server = self.server
        for account in server.handshake.authenticator.accounts():
            where = server.exchange.account(account.name)
            number = server.engine.register_call(self._on_system_call)
            is_system = account.name == self.options.system_account
            for subject in subjects(server.id, is_system):
                server.exchange.listen(where, subject, CALL, number)

    def _on_system_call(
        self,
        conn: int | None,
        subject: str,
        reply: bytes | None,
        _headers: bytes | None,
        data: bytes,
        account: int,
    ) -> None:
        client = self.server.clients.get(conn) if conn is not None else None
        if reply is None or client is None:
            return
        identity = client.identity or Identity("", client.account or "$G", None)

        def done(said: object) -> None:
            if isinstance(said, Exception):
                self.log.error(f"{subject} failed: {said}")
            elif isinstance(said, bytes):
                self.server.exchange.publish(account, reply, None, None, said)

        self.server.engine.off_loop(partial(answer, self.view, subject, data, identity), done)

    # Signals

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.stop)
        loop.add_signal_handler(signal.SIGTERM, self._begin_lame_duck, NOTICE_S, 0.0)
        ldm = (self.options.lame_duck_grace_ns / 1e9, self.options.lame_duck_duration_ns / 1e9)
        loop.add_signal_handler(signal.SIGUSR2, self._begin_lame_duck, *ldm)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        loop.add_signal_handler(signal.SIGUSR1, self.log.reopen)

    def stop(self) -> None:
        """End now, cleanly."""
        self._stop.set()

    def _begin_lame_duck(self, grace_s: float, duration_s: float) -> None:
        if self._ending or not hasattr(self, "view"):  # or still starting: nobody is there to be notified
            self.stop()
            return
        self._ending = True
        self._duck = asyncio.get_running_loop().create_task(self._lame_duck(grace_s, duration_s))

    async def _lame_duck(self, grace_s: float, duration_s: float) -> None:
        """No new clients; those that are there are notified, and closed one by one, or all at the end."""
        self._say("Entering lame duck mode, stop accepting new clients")
        self.server.stop_listening()
        self.server.lame_duck = True
        self.server.send_info()
        if self.server.clients:
            await asyncio.sleep(grace_s)
        clients = list(self.server.clients.values()) if duration_s > grace_s else []
        if clients:
            self._say("Closing existing clients")
        for number, client in enumerate(clients):
            if number:
                await asyncio.sleep(min((duration_s - grace_s) / len(clients), 1.0))
            self._release_pulls(client)
            client.close("Server Shutdown")
        self.stop()

    def _release_pulls(self, client: Client | None = None) -> None:
        if self.service is not None:
            from headrace.server.jetstream import release_pulls

            release_pulls(self.server, client)

    def reload(self) -> str | None:
        """Users, limits, certificates and the log from the configuration as it is now; the error's text, or None."""
        if self._reread is None or not hasattr(self, "view"):
            return "there is no configuration to read again"
        try:
            new = self._reread()
            check_reload(self.options, new)
            if new.tls is not None and self.server.tls is not None:
                self.server.tls.reload(new.tls)
            if (
                new.websocket is not None
                and new.websocket.tls is not None
                and self.server.websocket_tls is not None
            ):
                self.server.websocket_tls.reload(new.websocket.tls)
        except ConfigError as problem:
            text = "; ".join(problem.problems)
            self.log.error(f"Failed to reload the configuration: {text}")
            return text
        old = self.server.handshake.authenticator
        self.options = self.server.options = new
        self.server.handshake = Handshake(self.server, Authenticator(new))
        self.server.exchange.set_limits(
            new.max_payload, new.max_control_line, new.max_subscriptions, new.max_pending
        )
        self.log.apply(new.log)
        self._check_clients(old)
        self.view.config_load_ns = time.time_ns()
        self._say("Reloaded server configuration")
        return None

    def _check_clients(self, old: Authenticator) -> None:
        """Clients whose user is not what it was must connect anew."""
        new = self.server.handshake.authenticator
        for client in list(self.server.clients.values()):
            identity = client.identity
            if identity is None:
                continue
            if old.entry(identity) != new.entry(identity):
                self.server.exchange.refuse(client.slot, "Authorization Violation")
                client.close("Credentials Revoked")
            else:
                self.server.exchange.permit(client.slot, permission_lists(identity.permissions))

    # Files

    @contextmanager
    def _pid_written(self) -> Generator[None]:
        """Around taking the port: who can connect finds the file, and one of a server that has the port stays as it is."""
        if not self.options.pid_file:
            yield
            return
        file = Path(self.options.pid_file)
        former = file.read_bytes() if file.is_file() else None
        file.write_text(str(os.getpid()))
        self._owns_pid_file = True
        try:
            yield
        except OSError:
            if former is not None:
                file.write_bytes(former)
                self._owns_pid_file = False
            raise

    def _write_ports(self) -> None:
        if (file := self._ports_file()) is not None:
            ports = {"nats": reached_at("nats", self.options.host, self.server.port)}
            if self.monitor is not None:
                ports["monitoring"] = reached_at("http", self.options.monitor.host, self.monitor.port)
            if self.options.websocket is not None:
                scheme, host = "wss" if self.options.websocket.tls else "ws", self.options.websocket.host
                ports["websocket"] = reached_at(scheme, host, self.server.websocket_port or 0)
            try:
                file.write_text(json.dumps(ports, separators=(",", ":")))
            except OSError as problem:  # clients are served already
                self.log.error(f"Error writing ports file ({file}): {problem.strerror}")

    def _ports_file(self) -> Path | None:
        """Under the name that programs around a nats-server look for."""
        folder = self.options.ports_file_dir
        return Path(folder) / f"nats-server_{os.getpid()}.ports" if folder else None

    # Stop

    async def close(self) -> None:
        """Everything down, in the order that loses nothing."""
        server: Any = getattr(self, "server", None)
        if self.monitor is not None:
            await self.monitor.stop()
        if server is not None:
            await server.close(self._release_pulls)
            await self.runner.close()
        if self.service is not None and self.volume is not None:
            from headrace.server.jetstream import stop_jetstream

            await stop_jetstream(self.server, self.volume)
            self._say("Streams are on disk")
        elif self.volume is not None:
            self.volume.close()
        if self.options.pid_file and self._owns_pid_file:
            Path(self.options.pid_file).unlink(missing_ok=True)
        if (file := self._ports_file()) is not None:
            file.unlink(missing_ok=True)
        self._say("Server Exiting..")


def _meaning(options: ServerOptions) -> str:
    """What an acknowledgement means, for the start line."""
    if options.jetstream.sync == "sync":
        return "an acknowledgement means: on disk"
    every = options.jetstream.sync_interval_ns / 1e9
    return f"acknowledged when written, synced every {every:g} s: a power cut may lose what came since"


def _open_first(options: ServerOptions) -> tuple[str, StreamVolume]:
    """The first directory that no other server has open."""
    directories = store_dirs(options, os.environ)
    locked: StoreLocked | None = None
    for directory in directories:
        try:
            volume = _open_volume(options, directory)
        except StoreLocked as problem:
            locked = locked or problem
        else:
            claim(directory, options)
            return str(directory), volume
    assert locked is not None
    raise locked


def _open_volume(options: ServerOptions, directory: Path) -> StreamVolume:
    return headrace.open(
        str(directory),
        mode="rw",
        create=True,
        layout="jetstream",
        durability=options.jetstream.sync,
        sync_interval_s=options.jetstream.sync_interval_ns / 1e9,
    )


def _raise_open_files() -> None:
    """As many connections as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
