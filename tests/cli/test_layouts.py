"""The commands over every layout: what is appended is inspected, verified, printed and saved, and the options apply."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

import headrace
import headrace.errors
from headrace.cli.main import run
from headrace.layouts.registry import LAYOUTS, layout_named

NAMES = {"nats_streaming": "orders", "kafka": "orders-0", "rocketmq": "orders-0", "rabbitmq": "orders"}
# An option of each product, in its own spelling, with a value that is not the default.
OPTION = {
    "nats_streaming": ("file_slice_max_msgs", "7"),
    "kafka": ("segment.bytes", "1000000"),
    "rocketmq": ("mappedFileSizeCommitLog", "1048576"),
    "rabbitmq": ("queue_index_max_journal_entries", "77"),
}
COUNT = 100


def made(tmp_path: Path, layout: str) -> Path:
    path = tmp_path / "store"
    with headrace.open(str(path), "rw", create=True, layout=layout) as volume:
        log = volume.create(NAMES[layout])
        sent = [f"message {number}".encode() for number in range(COUNT)]
        subject = NAMES[layout] if layout in ("nats_streaming", "rabbitmq") else "orders"
        volume.commit([log.append(headrace.batch(subject, sent))])
    return path


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, object]:
    assert run([*arguments, "--json"]) == code, capsys.readouterr()
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def bodies(capsys: pytest.CaptureFixture[str], path: Path) -> list[bytes]:
    assert run(["cat", str(path), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [base64.b64decode(line["data"]) for line in lines]


@pytest.mark.parametrize("layout", sorted(NAMES))
def test_inspect_verify_cat_salvage(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, expected = made(tmp_path, layout), [f"message {number}".encode() for number in range(COUNT)]
    assert headrace.detect(str(path)) == layout
    seen = run_json(capsys, "inspect", str(path))
    assert (seen["layout"], seen["messages"], seen["sound"]) == (layout, COUNT, True)
    assert run_json(capsys, "verify", str(path))["sound"] is True
    assert bodies(capsys, path) == expected
    assert run(["cat", str(path), "--limit", "3", "--format", "raw"]) == 0
    assert capsys.readouterr().out == "message 0message 1message 2"
    saved = run_json(capsys, "salvage", str(path), str(tmp_path / "copy"))
    assert (saved["messages"], saved["complete"], saved["copy_sound"]) == (COUNT, True, True)
    assert bodies(capsys, tmp_path / "copy") == expected
    for command in (["inspect"], ["verify"]):  # the same for people
        assert run([*command, str(path)]) == 0
        assert NAMES[layout] in capsys.readouterr().out


@pytest.mark.parametrize("layout", ["kafka", "rocketmq", "rabbitmq"])
def test_keys_are_printed(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In text and in JSON; no key is not an empty one."""
    path, keys = tmp_path / "store", [b"customer 7", None, b"\xff\x1b"]
    with headrace.open(str(path), "rw", create=True, layout=layout) as volume:
        log = volume.create(NAMES[layout])
        bodies = [b"one", b"two", None] if layout == "kafka" else [b"one", b"two", b""]
        volume.commit([log.append(headrace.batch("orders", bodies, keys=keys))])
    assert run(["cat", str(path), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [None if line["key"] is None else base64.b64decode(line["key"]) for line in lines] == keys
    assert run(["cat", str(path)]) == 0
    text = capsys.readouterr().out.splitlines()
    assert "  key=customer 7  " in text[0] and "key=" not in text[1] and r"  key=\xff\x1b" in text[2]
    assert text[2].endswith("(null)") == (layout == "kafka")


@pytest.mark.parametrize("layout", sorted(NAMES))
def test_options_under_their_own_names(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, (name, value) = made(tmp_path, layout), OPTION[layout]
    opened = run_json(capsys, "store", "open", str(path), "--layout", layout, f"--{name}", value)
    options, changed = opened["options"], opened["changed"]
    assert isinstance(options, dict) and isinstance(changed, dict)
    assert str(options[name]) == value and list(changed) == [name]
    for suffix, text in (
        (".json", json.dumps({name: int(value)})),
        (".properties", f"# ours\n{name} = {value}\n"),
    ):
        file = tmp_path / f"options{suffix}"
        file.write_text(text)
        again = run_json(capsys, "store", "open", str(path), "--config", str(file))
        assert again["options"] == options
    assert bodies(capsys, path) == [f"message {number}".encode() for number in range(COUNT)]
    assert run(["store", "open", str(path), "--no-such-option", "1"]) == 2
    assert "no-such-option" in capsys.readouterr().err
    assert len(layout_named(layout).options.__struct_fields__) > 5


def test_an_empty_partition_is_not_called_unreadable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path, "kafka")
    (path / "fresh-0").mkdir()
    assert run(["verify", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "fresh-0  no files" in printed and "could not be read" not in printed


def test_every_layout_is_known() -> None:
    assert set(LAYOUTS) == {"jetstream", *NAMES}


@pytest.mark.parametrize("layout", sorted(NAMES))
@pytest.mark.parametrize("name", ["../out", "a/../../b", "a\0b", "*", "x" * 400])
def test_names_that_could_leave_are_refused(layout: str, name: str, tmp_path: Path) -> None:
    with headrace.open(str(tmp_path / "store"), "rw", create=True, layout=layout) as volume:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(headrace.errors.BadInput):
            volume.create(f"{name}-0" if layout in ("kafka", "rocketmq") else name)
        assert sorted(tmp_path.rglob("*")) == before


def test_the_configuration_file_of_nats_streaming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server's own file gives the options; flags win; what is not the store's is named."""
    config = tmp_path / "stan.conf"
    config.write_text(
        "port: 4222\nstreaming {\n id: mine\n store: file\n"
        ' store_limits { max_msgs: 9, max_age: "1h" }\n file_options { colour: blue } }\n'
    )
    arguments = ["store", "open", str(tmp_path / "s"), "--layout", "nats_streaming", "--create"]
    assert run([*arguments, "--config", str(config), "--max_msgs", "7", "--json"]) == 0
    said = capsys.readouterr()
    changed = json.loads(said.out)["changed"]
    assert (changed["cluster_id"], changed["max_msgs"], changed["max_age"]) == ("mine", 7, 3_600_000_000_000)
    assert "passed over: file_options.colour" in said.err
