"""A listening port: every address of its host, and accepted sockets handed on one by one.

0.0.0.0 and :: both mean every address of the machine, IPv4 and IPv6, as they do in nats-server.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import logging
    from collections.abc import Callable

    Accepted = Callable[[socket.socket, tuple[str, int]], None]

BACKLOG = 4096
ACCEPTS_MAX = 64
RETRY_S = 1.0
OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)
EVERYWHERE = ("", "0.0.0.0", "::")
MAPPED = "::ffff:"
SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of an interface. Its name takes 16 bytes, then comes a `sockaddr_in`."""
ADDRESS_IN_IFREQ = slice(20, 24)


class Listener:
    """Listening sockets of one port; `accepted(sock, (host, port))` gets each new connection, non-blocking."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: logging.Logger, accepted: Accepted) -> None:
        self._loop, self._log, self._accepted = loop, log, accepted
        self.listening: list[socket.socket] = []
        self._accepting = False

    async def bind(self, host: str, port: int) -> int:
        """Take the port, without accepting yet; returns it. OSError when it is taken."""
        if host in EVERYWHERE:
            self.listening.append(listen_on(host, port))
            return int(self.listening[0].getsockname()[1])
        flags = socket.AI_PASSIVE
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                if port == 0 and self.listening:
                    address = (address[0], self.listening[0].getsockname()[1], *address[2:])
                self.listening.append(_listen(family, address))
        except OSError:
            self.close()
            raise
        return int(self.listening[0].getsockname()[1])

    def start(self) -> None:
        """Accept connections."""
        self._accepting = True
        for each in self.listening:
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """No new connections."""
        for each in self.listening:
            if self._accepting:
                self._loop.remove_reader(each)
            each.close()
        self.listening.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in OUT_OF:
                    self._retry_later(listening, error)
                    return
                raise
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._accepted(sock, address_of(peer))

    def _retry_later(self, listening: socket.socket, error: OSError) -> None:
        """Out of descriptors or memory: connected clients are served, new ones wait in the backlog."""
        self._log.error("cannot accept clients: %s; trying again in %g s", error, RETRY_S)
        self._loop.remove_reader(listening)

        def again() -> None:
            if listening in self.listening:
                self._loop.add_reader(listening, self._accept, listening)

        self._loop.call_later(RETRY_S, again)


def listen_on(host: str, port: int, backlog: int = BACKLOG) -> socket.socket:
    """A socket on one address. Every address: one for IPv4 and IPv6, IPv4 alone where there is nothing else."""
    if host not in EVERYWHERE:
        return _listen(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port), backlog)
    try:
        return _listen(socket.AF_INET6, ("::", port), backlog, is_dual=True)
    except OSError as error:
        if error.errno not in NO_SUCH_FAMILY:
            raise
    return _listen(socket.AF_INET, ("0.0.0.0", port), backlog)


def _listen(family: int, address: Any, backlog: int = BACKLOG, is_dual: bool = False) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not is_dual))
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno, f"error while attempting to bind on address {address}: {error.strerror}"
        ) from None
    return sock


def address_of(peer: Any) -> tuple[str, int]:
    """(host, port) of the other side. An IPv4 client is shown as one, whatever socket accepted it."""
    return (
        (str(peer[0]).removeprefix(MAPPED), int(peer[1])) if peer and len(peer) > 1 else (str(peer or ""), 0)
    )


def join_address(host: str, port: int) -> str:
    """`127.0.0.1:4222`, `[::1]:4222`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reached_at(scheme: str, host: str, port: int) -> list[str]:
    """The URLs of a port; where it is open on every address, one for each IPv4 address of the machine."""
    hosts = ["127.0.0.1", *_interface_addresses()] if host in EVERYWHERE else [host]
    return [f"{scheme}://{join_address(each, port)}" for each in dict.fromkeys(hosts)]


def _interface_addresses() -> list[str]:
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            # An interface without an IPv4 address, or a system that has another call for this: it is left out.
            with suppress(OSError):
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[ADDRESS_IN_IFREQ]))
    return found
