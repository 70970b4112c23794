"""`headrace serve` as a person types it: flags reach the server, mistakes are told in a line each, signals arrive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.main import run
from headrace.server.config.flags import dashed, described
from headrace.server.config.options import ServerOptions
from headrace.server.logs import LogOutput
from tests.server.certificates import make_certificates

PROGRAM = Path(sys.executable).with_name("headrace")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ServerOptions, ServerOptions]]:
    """In place of a server: what it was told, and what a reload would tell it."""
    calls: list[tuple[ServerOptions, ServerOptions]] = []

    def serve(options: ServerOptions, log: LogOutput, *, reread: Callable[[], ServerOptions]) -> int:
        log.info("served")
        calls.append((options, reread()))
        return 0

    module = types.ModuleType("headrace.server.run")
    module.serve = serve  # pyright: ignore
    monkeypatch.setitem(sys.modules, "headrace.server.run", module)
    return calls


def test_nats_servers_flags_reach_the_server(
    served: list[tuple[ServerOptions, ServerOptions]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.conf"
    file.write_text("ping_max: 7\ncluster { port: 6222 }\nwrite_deadline: 3\n")
    log = tmp_path / "s.log"
    line = (
        f"serve -p -1 -a 127.0.0.1 -m 8222 -js -sd={tmp_path} -DV --user u --pass p -n one -c {file}"
        f" --ignore-unsupported -l {log} --sync 5s --routes nats://x"
    )
    assert run(line.split()) == 0
    options, again = served[0]
    assert options == again
    assert (options.port, options.host, options.monitor.port, options.ping_max) == (-1, "127.0.0.1", 8222, 7)
    assert (options.jetstream.enabled, options.jetstream.store_dir) == (True, str(tmp_path))
    assert (options.jetstream.sync, options.server_name) == ("interval", "one")
    assert (options.log.debug, options.log.trace, options.auth.user) == (True, True, "u")
    said = log.read_text()
    assert f"Skipped {file}:2: 'cluster' is not supported" in said and "Skipped --routes" in said
    assert "write_deadline should have a unit" in said and said.endswith("[INF] served\n")
    assert capsys.readouterr().err == ""


def test_a_checked_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.conf"
    file.write_text("port: 1\n")
    assert run(["serve", "-t", "-c", str(file)]) == 0
    assert f"configuration file {file} is valid (sha256:" in capsys.readouterr().out
    file.write_text("port: x\nfoo: 1\n\nbar: 2\n")
    assert run(["serve", "-c", str(file), "-t"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"{file}:{number}" for number in (1, 2, 4)]
    certs = make_certificates(tmp_path)
    file.write_text(f"tls {{ cert_file: {certs.server_cert}, key_file: {certs.client_key} }}")
    assert run(["serve", "-c", str(file), "-t"]) == 2
    assert capsys.readouterr().err.startswith("headrace: tls: cannot use ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("serve --wat", "no such option: --wat"),
        ("serve -wat", "no such option: -wat"),
        ("serve -p x", "--port"),
        ("serve -p", "-p needs a value"),
        ("serve --cluster nats://x", "--cluster is not supported"),
        ("serve -c nope.conf", "cannot read nope.conf"),
        ("serve --tls", "--tlscert"),
        ("serve --signal nope=1", "there are reload"),
        ("serve --signal reload", "reload=PID"),
        ("serve --signal reload=nope.pid", "cannot read the pid file"),
    ],
)
def test_mistakes_get_one_line(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("headrace: ") and said in lines[0]


def test_signals_arrive(tmp_path: Path) -> None:
    waits = (
        "import signal, sys\n"
        "for s in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):\n"
        "    signal.signal(s, lambda n, _: (print(signal.Signals(n).name, flush=True)))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "ready\n"
            (tmp_path / "pid").write_text(f"{other.pid}\n")
            for what, name in (("reload", "HUP"), ("reopen", "USR1"), ("ldm", "USR2"), ("term", "TERM")):
                assert run(["serve", "-sl", f"{what}={other.pid}"]) == 0
                assert other.stdout.readline() == f"SIG{name}\n"
            assert run(["serve", "--signal", f"quit={tmp_path / 'pid'}"]) == 0
            assert other.stdout.readline() == "SIGINT\n"
            assert run(["serve", "--signal", "stop", "-P", str(tmp_path / "pid")]) == 0
            assert other.stdout.readline() == "SIGINT\n"
        finally:
            os.kill(other.pid, signal.SIGKILL)


def test_help_explains_every_flag_and_loads_little() -> None:
    done = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    spelled = [dashed(name) for flag in described() for name in flag.shown]
    assert len(spelled) > 40 and [name for name in spelled if name not in done.stdout] == []
    program = (
        "import sys\nfrom headrace.cli.main import run\nrun(['serve', '-t', '-js'])\n"
        "print([name for name in ('pyarrow', 'pyspark', 'pandas', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout
