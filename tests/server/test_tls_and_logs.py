"""TLS contexts that can be replaced, names in certificates; lines of the log, its file and its rotation."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.server.config.options import LogOptions, TlsOptions
from headrace.server.config.problems import ConfigError
from headrace.server.logs import LogOutput
from headrace.server.tls import Tls, names_in
from tests.server.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certs"))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[Any, Any]:
    """(what the server learnt of the client, what the client learnt of the server)"""
    left, right = socket.socketpair()
    learnt: list[Any] = []

    def serve() -> None:
        try:
            with server.wrap_socket(left, server_side=True) as wrapped:
                learnt.append(wrapped.getpeercert())
                wrapped.sendall(b"x")
        except ssl.SSLError as error:
            learnt.append(error)
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname="localhost") as wrapped:
            wrapped.recv(1)
            serial = (wrapped.getpeercert() or {}).get("serialNumber")
    except (ssl.SSLError, ConnectionError, BrokenPipeError) as error:
        serial = error
    thread.join(10)
    return learnt[0], serial


def client(certs: Certificates, with_certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certs.ca)
    if with_certificate:
        context.load_cert_chain(certs.client_cert, certs.client_key)
    return context


def test_client_certificates_are_verified_and_name_users(certs: Certificates) -> None:
    tls = Tls(TlsOptions(certs.server_cert, certs.server_key, certs.ca, verify=True))
    peer, _ = handshake(tls.context, client(certs, True))
    assert names_in(peer) == ("ann@example.org", "CN=client,O=Headrace", "O=Headrace,CN=client")
    refused, _ = handshake(tls.context, client(certs, False))
    assert isinstance(refused, ssl.SSLError)
    plain = Tls(TlsOptions(certs.server_cert, certs.server_key))
    peer, serial = handshake(plain.context, client(certs, False))
    assert names_in(peer) == () and isinstance(serial, str)


def test_a_reload_brings_new_certificates(certs: Certificates, tmp_path: Path) -> None:
    tls = Tls(TlsOptions(certs.server_cert, certs.server_key))
    _, before = handshake(tls.context, client(certs, False))
    new = make_certificates(tmp_path)
    tls.reload(TlsOptions(new.server_cert, new.server_key))
    _, after = handshake(tls.context, client(new, False))
    assert isinstance(after, str) and after != before
    kept = tls.context
    with pytest.raises(ConfigError, match=r"tls: cannot use .*nope\.pem as the certificate"):
        tls.reload(TlsOptions(str(tmp_path / "nope.pem"), new.server_key))
    with pytest.raises(ConfigError, match="with the key"):
        tls.reload(TlsOptions(new.server_cert, certs.server_key))
    with pytest.raises(ConfigError, match="as a CA"):
        tls.reload(TlsOptions(new.server_cert, new.server_key, ca_file=new.server_key))
    assert tls.context is kept


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(autouse=True)
def no_log_is_left() -> Iterator[None]:
    yield
    assert not logging.getLogger("headrace").handlers


def test_lines_are_nats_servers(out: io.StringIO) -> None:
    log = LogOutput(LogOptions(debug=True), out)
    log.info("Server is ready")
    log.warning("bad\nname \x1b[2J", client="x\ty")
    log.debug("d")
    log.trace("t")
    logging.getLogger("headrace.store").error("from %s", "the store")
    log.close()
    lines = out.getvalue().splitlines()
    stamp = r"\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} "
    assert re.fullmatch(stamp + r"\[INF\] Server is ready", lines[0])
    assert lines[1].endswith(r"[WRN] bad\nname \x1b[2J client=x\ty")
    assert lines[2].endswith("[DBG] d") and lines[3].endswith("[ERR] from the store") and len(lines) == 4


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        (LogOptions(), ["INF"]),
        (LogOptions(debug=True), ["DBG", "INF"]),
        (LogOptions(trace=True), ["TRC", "INF"]),
        (LogOptions(debug=True, trace=True), ["TRC", "DBG", "INF"]),
    ],
)
def test_debug_and_trace_are_two_switches(options: LogOptions, labels: list[str], out: io.StringIO) -> None:
    log = LogOutput(options, out)
    log.trace("x")
    log.debug("x")
    log.info("x")
    log.close()
    assert re.findall(r"\[(\w{3})\] x", out.getvalue()) == labels


def test_json_lines(out: io.StringIO) -> None:
    log = LogOutput(LogOptions(json=True), out)
    log.info("Stream created", stream="S", path=Path("x"))
    try:
        raise OSError("no")
    except OSError:
        logging.getLogger("headrace").exception("went wrong")
    log.close()
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first | {"time": 0, "pid": 0} == {
        "time": 0, "level": "info", "pid": 0, "message": "Stream created", "stream": "S", "path": "x",
    }  # fmt: skip
    assert (second["level"], second["error"]) == ("error", "OSError: no")


def test_without_time(out: io.StringIO) -> None:
    log = LogOutput(LogOptions(time=False), out)
    log.error("x")
    log.close()
    assert re.fullmatch(r"\[\d+\] \[ERR\] x\n", out.getvalue())


def test_the_file_is_reopened_and_rotated(tmp_path: Path) -> None:
    file = tmp_path / "s.log"
    log = LogOutput(LogOptions(file=str(file)))
    log.info("one")
    file.rename(tmp_path / "moved")
    log.info("two")
    log.reopen()
    log.info("three")
    assert "two" in (tmp_path / "moved").read_text() and "three" not in (tmp_path / "moved").read_text()
    assert "three" in file.read_text()
    with pytest.raises(ConfigError, match="cannot write the log file"):
        log.apply(LogOptions(file=str(tmp_path / "no" / "s.log")))
    log.info("still here")
    assert "still here" in file.read_text()
    log.apply(LogOptions(file=str(file), size_limit=200, files_max=2))
    for number in range(30):
        log.info(f"line {number:02d} " + "x" * 40)
    log.close()
    rotated = sorted(tmp_path.glob("s.log.*"))
    assert len(rotated) == 2 and all(path.stat().st_size < 400 for path in [*rotated, file])
    assert "line 29" in (rotated[-1].read_text() + file.read_text())
