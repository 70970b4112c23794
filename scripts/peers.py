"""Install the real servers and clients that the tests compare Headrace with.

    python scripts/peers.py            install all that are missing
    python scripts/peers.py NAME …     only these, for instance nats-server-2.6.5
    python scripts/peers.py --list     what is pinned, and what is there

Each peer goes to <cache>/<name>-<version>/, where <cache> is $HEADRACE_PEERS, or headrace/peers in
$XDG_CACHE_HOME or ~/.cache. A peer is made in a temporary folder and renamed into place, so a half
installed one is never seen; a lock lets two runs share the cache. Only the standard library is
used: this runs before the virtual environment exists.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

TRIES = 3
PAUSE_S = 5.0
STEP_LIMIT_S = 1200.0


@dataclass(frozen=True)
class Peer:
    """One pinned program: `install(folder)` leaves `program` in the folder."""

    name: str
    version: str
    program: str
    install: Callable[[Path, Peer], None]
    version_args: tuple[str, ...] = ("--version",)

    @property
    def label(self) -> str:
        return f"{self.name}-{self.version}"


class Failed(Exception):
    """A step that did not work; the text is for people."""


def cache_dir() -> Path:
    """Where peers live. `tests/support/peers.py` follows the same rule."""
    own = os.environ.get("HEADRACE_PEERS")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "headrace" / "peers"


def run(*command: str, cwd: Path | None = None, tries: int = TRIES, **env: str) -> str:
    """Run a step; network steps fail now and then, so it is tried again."""
    if shutil.which(command[0]) is None:
        raise Failed(f"{command[0]} is missing")
    output = ""
    for turn in range(1, tries + 1):
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=STEP_LIMIT_S,
            )
            output = done.stdout
            if done.returncode == 0:
                return output
        except subprocess.TimeoutExpired:
            output = f"no end after {STEP_LIMIT_S:.0f} s"
        if turn < tries:
            time.sleep(PAUSE_S * turn)
    tail = "\n".join(output.splitlines()[-15:])
    raise Failed(f"{' '.join(command)} failed {tries} times; its last words:\n{tail}")


def go_install(module: str) -> Callable[[Path, Peer], None]:
    """A Go program by its module path. GOTOOLCHAIN=auto would fetch a toolchain: keep to the local one."""

    def install(folder: Path, peer: Peer) -> None:
        run("go", "install", f"{module}@v{peer.version}", GOBIN=str(folder), GOTOOLCHAIN="local", GOFLAGS="")

    return install


def go_build(module: str, package: str) -> Callable[[Path, Peer], None]:
    """A Go program through a throw-away module that requires it.

    For programs that `go install` cannot resolve because the list of versions is not served.
    """

    def install(folder: Path, peer: Peer) -> None:
        owner = "/".join(module.split("/")[:2])
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            (Path(scratch) / "go.mod").write_text(
                f"module scratch\n\ngo 1.24\n\nrequire {module} v{peer.version}\n"
            )
            run(
                *("go", "build", "-o", str(folder / peer.program), package),
                cwd=Path(scratch),
                GONOSUMDB=f"{owner}/*",
                GOFLAGS="-mod=mod",
                GOTOOLCHAIN="local",
            )

    return install


def debian(package: str) -> Callable[[Path, Peer], None]:
    """A program out of a Debian package: unpacked, not installed, so no service is started."""

    def install(folder: Path, peer: Peer) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            Path(scratch).chmod(0o755)
            try:
                run("apt-get", "download", package, cwd=Path(scratch), tries=1)
            except Failed:
                run("apt-get", "update", "-q")
                run("apt-get", "download", package, cwd=Path(scratch))
            archive = next(Path(scratch).glob("*.deb"))
            found = run("dpkg-deb", "--field", str(archive), "Version", tries=1).strip()
            if not re.match(rf"(\d+:)?{re.escape(peer.version)}\b", found):
                raise Failed(
                    f"Debian here has {package} {found}, the tests need {peer.version}; "
                    f"put that version's program into {cache_dir() / peer.label}"
                )
            run("dpkg-deb", "--extract", str(archive), f"{scratch}/root", tries=1)
            inside = [f"usr/{place}/{peer.program}" for place in ("bin", "sbin")]
            programs = [path for name in inside if (path := Path(scratch) / "root" / name).is_file()]
            if not programs:
                raise Failed(f"the Debian package {package} {found} holds none of {', '.join(inside)}")
            shutil.move(programs[0], folder / peer.program)

    return install


def maven(*artifacts: str, alone: bool = False) -> Callable[[Path, Peer], None]:
    """Java libraries with all they need at run time in `lib/`, and a program that starts one of their classes.

    `alone`: only the ones named, where something else brings what they need.
    """
    left_out = (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )

    def install(folder: Path, peer: Peer) -> None:
        wanted = ""
        for artifact in artifacts:
            group, name, version = artifact.format(version=peer.version).split(":")
            wanted += (
                f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
                f"<version>{version}</version>{left_out if alone else ''}</dependency>\n"
            )
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            (Path(scratch) / "pom.xml").write_text(
                "<project><modelVersion>4.0.0</modelVersion><groupId>scratch</groupId>"
                "<artifactId>scratch</artifactId><version>1</version>\n"
                f"<dependencies>\n{wanted}</dependencies></project>\n"
            )
            run(
                *("mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"),
                f"-DoutputDirectory={folder / 'lib'}",
                cwd=Path(scratch),
            )
        program = folder / peer.program
        program.write_text(
            "#!/bin/sh\n"
            "# Starts a class of these libraries: the first argument is its name.\n"
            'exec java ${JAVA_OPTS:-} -cp "$(dirname "$0")/lib/*${CLASSPATH:+:$CLASSPATH}" "$@"\n'
        )
        program.chmod(0o755)

    return install


def pinned_python(module: str, pins: str) -> Callable[[Path, Peer], None]:
    """A Python program with everything it needs in `lib/`, apart from the project's own environment."""

    def install(folder: Path, peer: Peer) -> None:
        wanted = Path(__file__).with_name("requirements") / pins
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            installer = sys.executable
            if find_spec("pip") is None:  # as Debian's Python comes
                run(sys.executable, "-m", "venv", scratch)
                installer = f"{scratch}/bin/python"
            run(
                *(installer, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"),
                *("--no-deps", "--only-binary", ":all:", "--target", str(folder / "lib"), "-r", str(wanted)),
            )
        program = folder / peer.program
        # Not the environment that installs it: that one may be gone when the next project looks into the cache.
        major, minor = sys.version_info[:2]
        python = Path(sys.base_prefix) / "bin" / f"python{major}.{minor}"
        program.write_text(PYTHON_START.format(python=python, module=module, version=peer.version))
        program.chmod(0o755)

    return install


def debian_tree(package: str, *more: str) -> Callable[[Path, Peer], None]:
    """A program that needs its whole tree: the package and others unpacked below `root`, started by a small script."""

    def install(folder: Path, peer: Peer) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            Path(scratch).chmod(0o755)
            try:
                run("apt-get", "download", package, *more, cwd=Path(scratch), tries=1)
            except Failed:
                run("apt-get", "update", "-q")
                run("apt-get", "download", package, *more, cwd=Path(scratch))
            for archive in sorted(Path(scratch).glob("*.deb")):
                if archive.name.startswith(f"{package}_"):
                    found = run("dpkg-deb", "--field", str(archive), "Version", tries=1).strip()
                    if not re.match(rf"(\d+:)?{re.escape(peer.version)}\b", found):
                        raise Failed(f"Debian here has {package} {found}, the tests need {peer.version}")
                run("dpkg-deb", "--extract", str(archive), str(folder / "root"), tries=1)
        # Debian's start script has its place written into it.
        for erl in (folder / "root/usr/lib/erlang").glob("**/bin/erl"):
            text = erl.read_text().replace("ROOTDIR=/usr/lib/erlang", 'ROOTDIR="$ERL_ROOTDIR"')
            erl.write_text(text)
        (folder / peer.program).write_text(RABBIT_START.format(version=peer.version))
        (folder / peer.program).chmod(0o755)

    return install


KAFKA = (
    "org.apache.kafka:kafka_2.13:{version}",
    "org.apache.kafka:kafka-tools:{version}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
    "org.apache.logging.log4j:log4j-core:2.24.3",
    "org.apache.logging.log4j:log4j-1.2-api:2.24.3",
)
# Spark brings the rest. The connector's own version of the token provider was never published.
SPARK_KAFKA = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
# A library without a program of its own: the runtime answers.
LIBRARY = ("-version",)
PYTHON_START = """#!/bin/sh
PYTHONPATH=$(dirname "$0")/lib
export PYTHONPATH
if [ "$1" = --version ]; then exec "{python}" -c "import {module}; print('{module} {version}')"; fi
exec "{python}" -m {module} "$@"
"""
# Not the package's script in the path: that one switches the user.
RABBIT_START = """#!/bin/sh
root=$(cd "$(dirname "$0")" && pwd)/root
export ERL_ROOTDIR="$root/usr/lib/erlang" PATH="$root/usr/lib/erlang/bin:$PATH"
if [ "$1" = --version ]; then echo "rabbitmq-server {version}"; exec erl -noshell -eval 'halt().'; fi
exec "$root/usr/lib/rabbitmq/lib/rabbitmq_server-{version}/sbin/${{HEADRACE_RABBIT_TOOL:-rabbitmq-server}}" "$@"
"""
ERLANG = (
    *(
        "erlang-base",
        "erlang-asn1",
        "erlang-crypto",
        "erlang-public-key",
        "erlang-mnesia",
        "erlang-runtime-tools",
    ),
    *(
        "erlang-ssl",
        "erlang-eldap",
        "erlang-ftp",
        "erlang-tftp",
        "erlang-inets",
        "erlang-snmp",
        "erlang-os-mon",
    ),
    *("erlang-parsetools", "erlang-syntax-tools", "erlang-tools", "erlang-xmerl"),
)

NATS_SERVER = "github.com/nats-io/nats-server/v2"
NATS_CLI = "github.com/nats-io/natscli"
NATS_STREAMING = "github.com/nats-io/nats-streaming-server"

PEERS = (
    Peer("nats-server", "2.15.2", "nats-server", go_install(NATS_SERVER)),
    Peer("nats-server", "2.9.10", "nats-server", debian("nats-server")),
    Peer("nats-server", "2.6.5", "nats-server", go_install(NATS_SERVER)),
    Peer("nats-streaming-server", "0.25.6", "nats-streaming-server", go_install(NATS_STREAMING)),
    Peer("rabbitmq-server", "3.10.8", "rabbitmq-server", debian_tree("rabbitmq-server", *ERLANG)),
    Peer("nats", "0.3.0", "nats", go_build(NATS_CLI, f"{NATS_CLI}/nats")),
    Peer("kafka", "4.3.1", "kafka", maven(*KAFKA), ("kafka.Kafka", "--version")),
    Peer(
        "rocketmq-store",
        "5.3.3",
        "rocketmq-store",
        maven("org.apache.rocketmq:rocketmq-store:{version}"),
        LIBRARY,
    ),
    Peer("moto", "5.2.5", "moto", pinned_python("moto.server", "moto.txt")),
    Peer("spark-kafka", "4.2.0", "spark-kafka", maven(*SPARK_KAFKA, alone=True), LIBRARY),
)


def is_there(peer: Peer) -> bool:
    return os.access(cache_dir() / peer.label / peer.program, os.X_OK)


def install(peer: Peer) -> str:
    """Install one peer; returns a line that says what happened."""
    if is_there(peer):
        return f"{peer.label}: there already"
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with (cache / f".{peer.label}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_there(peer):
            return f"{peer.label}: installed meanwhile by another run"
        folder = Path(tempfile.mkdtemp(prefix=f".{peer.label}-", dir=cache))
        try:
            folder.chmod(0o755)
            peer.install(folder, peer)
            answer = run(str(folder / peer.program), *peer.version_args, tries=1).strip()
            shutil.rmtree(cache / peer.label, ignore_errors=True)
            folder.rename(cache / peer.label)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return f"{peer.label}: installed in {time.monotonic() - started:.0f} s ({answer})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Install the pinned peers into the cache.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="NAME-VERSION; all without")
    parser.add_argument("--list", action="store_true", help="show what is pinned and what is there")
    options = parser.parse_args()
    unknown = set(options.names) - {peer.label for peer in PEERS}
    if unknown:
        print(f"peers: {', '.join(sorted(unknown))} not known; --list shows the names", file=sys.stderr)
        return 2
    chosen = [peer for peer in PEERS if not options.names or peer.label in options.names]
    if options.list:
        for peer in chosen:
            print(f"{peer.label:30} {'there  ' if is_there(peer) else 'missing'} {cache_dir() / peer.label}")
        return 0
    failures = 0
    for peer in chosen:
        try:
            print(f"peers: {install(peer)}", flush=True)
        except Failed as error:
            failures += 1
            print(f"peers: {peer.label}: {error}", file=sys.stderr, flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
