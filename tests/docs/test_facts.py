"""What the documents say of the program, held against the program: commands and options, permissions, monitoring."""

from __future__ import annotations

import os
import re
import shlex
import socket
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import headrace
from headrace.cli.main import app
from headrace.ops.archive import ArchiveOptions, archive
from headrace.server.config.flags import parse
from headrace.testing.server import TestServer
from tests.support.peers import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs" / "guides").glob("*.md"), ROOT / "examples" / "README.md"]
)
COMMAND: Any = typer.main.get_command(app)
ANY_OPTION = ("store", "open")  # takes every option of the product


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command line of the documents, as words."""
    for page in PAGES:
        for line in page.read_text().splitlines():
            text = line.strip().removeprefix("exec ")
            if not text.startswith("headrace "):
                continue
            # What explains a command stands behind two blanks or more, or is a comment.
            text = re.split(r" {2,}| #| \|\|? | > | &$", text)[0]
            yield page.name, shlex.split(text)[1:]


def test_commands_and_options_are_there() -> None:
    seen = 0
    for page, words in commands():
        node, names, rest = COMMAND, list[str](), list(words)
        while rest and rest[0] in getattr(node, "commands", {}):
            names.append(rest[0])
            node = node.commands[rest.pop(0)]
        assert names, f"{page}: headrace {shlex.join(words)}: no such command"
        seen += 1
        if names[0] == "serve":
            parse(rest)
            continue
        known = {option for each in node.params for option in each.opts}
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)}
        unknown = given - known if tuple(names) != ANY_OPTION else set[str]()
        assert not unknown, f"{page}: headrace {shlex.join(words)}: no option {unknown}"
    assert seen >= 25


@pytest.mark.parametrize("layout", ["jetstream", "nats_streaming", "kafka", "rocketmq", "rabbitmq"])
def test_a_store_is_its_owners_alone(layout: str, tmp_path: Path) -> None:
    """SECURITY.md; whatever the umask."""
    before = os.umask(0)
    try:
        with headrace.open(tmp_path / "store", mode="rw", create=True, layout=layout) as volume:
            log = volume.create(
                {"jetstream": "ORDERS", "kafka": "o-0", "rocketmq": "o-0"}.get(layout, "orders")
            )
            subject = "ORDERS" if layout == "jetstream" else "orders"
            volume.commit([log.append(headrace.batch(subject, [b"x"]))])
        for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), f"{path}: {mode:o}"
        os.umask(0o027)
        archive(str(tmp_path / "store"), str(tmp_path / "lake"), ArchiveOptions(newest=True))
        (file,) = (tmp_path / "lake").rglob("*.parquet")
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_monitoring_is_on_loopback_with_the_pages_of_the_readme(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    listed = re.search(r"Monitoring \(`-m 8222`\): (.*?) for Prometheus", text, re.DOTALL)
    assert listed is not None
    pages = re.findall(r"`(/\w+)`", listed[1])
    assert len(pages) == 7
    port = free_port()
    with TestServer(tmp_path / "store", ["-m", str(port)]):
        for page in pages:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=30) as answer:
                assert answer.status == 200, page
        with socket.socket() as other:
            other.settimeout(5)
            assert other.connect_ex(("127.0.0.2", port)) != 0


def test_what_verify_and_inspect_count(tmp_path: Path) -> None:
    """inspect-and-verify.md: records that were checked, messages that would be served."""
    with headrace.open(str(tmp_path / "s"), mode="rw", create=True, layout="jetstream") as volume:
        store = volume.create("S", subjects=["s"])
        volume.commit([store.append(headrace.batch("s", [b"1", b"2", b"3"]))])
        store.remove_msg(2)
        store.commit()
    assert headrace.verify(str(tmp_path / "s")).messages == 3
    assert headrace.inspect(str(tmp_path / "s")).messages == 2
