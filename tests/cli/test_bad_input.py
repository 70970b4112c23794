"""Bad input: exit code 2, one clear line that names the place, and nothing changed on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.main import run
from tests.ops.helpers import STREAMS, fingerprint, small_store

Build = Callable[[Path], Path]


def no_directory(place: Path) -> Path:
    return place / "nope"


def a_file(place: Path) -> Path:
    (place / "file").write_text("hello")
    return place / "file"


def below_a_file(place: Path) -> Path:
    return a_file(place) / "deeper"


def empty(place: Path) -> Path:
    (place / "empty").mkdir()
    return place / "empty"


def something_else(place: Path) -> Path:
    (place / "other").mkdir()
    (place / "other/data.txt").write_text("x")
    return place / "other"


def root_is_a_file(place: Path) -> Path:
    (place / "odd").mkdir()
    (place / "odd/jetstream").write_text("x")
    return place / "odd"


def a_link_to_nowhere(place: Path) -> Path:
    (place / "link").symlink_to(place / "nowhere")
    return place / "link"


def a_circle_of_links(place: Path) -> Path:
    (place / "circle").symlink_to(place / "circle")
    return place / "circle"


NO_STORES: list[Build] = [
    no_directory,
    a_file,
    below_a_file,
    empty,
    something_else,
    root_is_a_file,
    a_link_to_nowhere,
    a_circle_of_links,
]


def one_line(capsys: pytest.CaptureFixture[str], *mentions: str) -> str:
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1 and printed.err.startswith("headrace: "), printed.err
    assert "Traceback" not in printed.err and "a fault in headrace" not in printed.err
    for mention in mentions:
        assert mention in printed.err
    return printed.err


@pytest.mark.parametrize("build", NO_STORES, ids=lambda build: build.__name__)
@pytest.mark.parametrize("command", ["inspect", "verify", "cat", "salvage"])
def test_no_store(build: Build, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build(tmp_path)
    before = fingerprint(tmp_path)
    arguments = [command, str(path), *([str(tmp_path / "out")] if command == "salvage" else [])]
    assert run(arguments) == 2
    one_line(capsys, str(path))
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "mention"),
    [
        (["verify", "{store}", "--stream", "NOPE"], "there are: ORDERS"),
        (["verify", "{store}", "--stream", "../ORDERS"], "no stream"),
        (["verify", "{store}", "--stream", ""], "no stream"),
        (["inspect", "{store}", "--stream", "NOPE"], "there are: ORDERS"),
        (["cat", "{store}", "--stream", "NOPE"], "there are: ORDERS"),
        (["cat", "{store}", "--seq", "a..b"], "write 5, 5..9, 5.. or ..9"),
        (["cat", "{store}", "--seq", ".."], "write 5"),
        (["cat", "{store}", "--seq", "-3"], "write 5"),
        (["cat", "{store}", "--seq", "٣"], "write 5"),
        (["cat", "{store}", "--seq", "9..5"], "above the last"),
        (["cat", "{store}", "--seq", "1..99999999999999999999"], "at most"),
        (["cat", "{store}", "--since", "yesterday"], "--since 'yesterday': not a time"),
        (["cat", "{store}", "--until", "2026-13-45"], "--until"),
        (["cat", "{store}", "--since", "2026-01-01T99:00:00Z"], "--since"),
        (["cat", "{store}", "--subject", "a..b"], "not a subject"),
        (["cat", "{store}", "--subject", ""], "not a subject"),
        (["cat", "{store}", "--limit", "-1"], "--limit"),
        (["cat", "{store}", "--format", "xml"], "xml"),
        (["cat", "{store}", "--key", "a", "--key-file", "b"], "not both"),
        (["cat", "{store}", "--key-file", "{store}/nope"], "--key-file"),
        (["cat", "{store}", "--key-file", "{store}"], "--key-file"),
        (["verify", "{store}", "--threads", "0"], "--threads"),
        (["verify", ""], "not a path"),
        (["verify", "\udcff"], "UTF-8"),
        (["verify"], "DIR"),
        (["nope"], "nope"),
        (["verify", "{store}", "--nope"], "--nope"),
        (["salvage", "{store}", "{store}/inside"], "outside"),
        (["salvage", "{store}", "{store}"], "outside"),
        (["salvage", "{store}", "{store}/../no/such/place"], "no such directory"),
    ],
    ids=lambda value: " ".join(value).replace("{store}", "S") if isinstance(value, list) else "",
)
def test_bad_arguments(
    arguments: list[str], mention: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = small_store(tmp_path / "store", messages=50)
    before = fingerprint(tmp_path)
    assert run([part.format(store=store) for part in arguments]) == 2
    one_line(capsys, mention)
    assert fingerprint(tmp_path) == before


def cut_metadata(stream: Path) -> None:
    (stream / "meta.inf").write_bytes((stream / "meta.inf").read_bytes()[:20])


def no_metadata(stream: Path) -> None:
    (stream / "meta.inf").unlink()
    (stream / "meta.sum").unlink()


def metadata_of_another(stream: Path) -> None:
    from headrace.layouts.jetstream.meta import meta_sum

    (stream / "meta.inf").write_bytes(b'{"Created":"2026-01-01T00:00:00Z","name":"OTHER"}')
    (stream / "meta.sum").write_bytes(meta_sum("ORDERS", (stream / "meta.inf").read_bytes()))


def hostile_metadata(stream: Path) -> None:
    from headrace.layouts.jetstream.meta import meta_sum

    (stream / "meta.inf").write_bytes(b"[" * 100_000)
    (stream / "meta.sum").write_bytes(meta_sum("ORDERS", (stream / "meta.inf").read_bytes()))


def wrong_magic(stream: Path) -> None:
    index = stream / "msgs/index.db"
    index.write_bytes(b"\xff" + index.read_bytes()[1:])
    (stream / "headrace/clean.json").unlink()


def cut_index(stream: Path) -> None:
    index = stream / "msgs/index.db"
    index.write_bytes(index.read_bytes()[:10])
    (stream / "headrace/clean.json").unlink()


def hostile_length(stream: Path) -> None:
    block = stream / "msgs/1.blk"
    block.write_bytes(b"\xff\xff\xff\x7f" + block.read_bytes()[4:])


def random_block(stream: Path) -> None:
    (stream / "msgs/1.blk").write_bytes(bytes(range(256)) * 20)


def hostile_packing(stream: Path) -> None:
    (stream / "msgs/1.blk").write_bytes(b"cmp\x01\xff\xff\xff\xff\xff\xff\x01" + b"x" * 100)


def cut_consumer(stream: Path) -> None:
    (stream / "obs/C/o.dat").write_bytes(b"\x16\x02\xff\xff\xff")


DAMAGES = [
    cut_metadata,
    no_metadata,
    metadata_of_another,
    hostile_metadata,
    wrong_magic,
    cut_index,
    hostile_length,
    random_block,
    hostile_packing,
    cut_consumer,
]


@pytest.mark.parametrize("break_it", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_files_are_reported_not_raised(
    break_it: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = small_store(tmp_path / "store", messages=100)
    break_it(store / STREAMS / "ORDERS")
    before = fingerprint(store)
    for command in ("verify", "inspect"):
        assert run([command, str(store), "--json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert document["sound"] is False
        assert any(
            damage["file"].startswith(str(store)) for each in document["streams"] for damage in each["damage"]
        )
    assert run(["cat", str(store)]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err
    assert run(["salvage", str(store), str(tmp_path / "out")]) == 1
    capsys.readouterr()
    assert run(["verify", str(tmp_path / "out")]) == 0
    assert fingerprint(store) == before


def test_an_unreadable_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A circle of links stands for what root cannot be forbidden to read."""
    store = small_store(tmp_path / "store", messages=100)
    block = store / STREAMS / "ORDERS/msgs/1.blk"
    block.unlink()
    block.symlink_to(block)
    before = fingerprint(store)
    for command in ("verify", "inspect"):
        assert run([command, str(store)]) == 2
        assert str(block) in capsys.readouterr().out
    assert run(["cat", str(store)]) == 2
    assert str(block) in one_line(capsys)
    assert run(["salvage", str(store), str(tmp_path / "out"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["copy_sound"] and 0 < document["messages"] < 97
    assert str(block) in document["streams"][0]["problems"][0]
    assert document["streams"][0]["last_seq"] == 100
    assert fingerprint(store) == before


def test_errors_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(tmp_path / "nope"), "--json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"error": "NotFound", "message": f"{tmp_path}/nope: no such directory"}
    assert printed.err == f"headrace: {tmp_path}/nope: no such directory\n"
