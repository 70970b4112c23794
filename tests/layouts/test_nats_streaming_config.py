"""NATS Streaming: the server's own configuration file, what an opening that stops tells, a cluster node's directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace._core import Batch, Disk
from headrace.errors import BadInput, Damaged, ReadOnly
from headrace.layouts.nats_streaming.advice import LOSS
from headrace.layouts.nats_streaming.config_file import from_server_config
from headrace.layouts.nats_streaming.layout import LAYOUT
from headrace.layouts.nats_streaming.limits import LimitTable
from headrace.layouts.nats_streaming.options import StreamingOptions
from headrace.layouts.nats_streaming.volume import StreamingVolume
from headrace.server.config.text import Node, read_text
from tests.layouts.test_nats_streaming import FOLDER

SECOND = 1_000_000_000
CONFIG = """
# the NATS server's own part
port: 4222
http: 8222
streaming {
  ID: "my-cluster"
  store: file
  dir: "/data/stan"
  hb_interval: "10s"
  store_limits {
    max_channels: 50
    max_msgs: 10000
    MAX_BYTES: 64MB
    max_age: "24h"
    channels {
      "Orders.>": { max_msgs: 0, max_age: "72h" }
      "Orders.new": { max_subs: 3, mb: 1GB }
    }
  }
  file_options {
    compact: false
    buffer_size: 2MB
    crc: true
    sync_on_flush: false
    slice_max_count: 500
    slice_max_age: "1h"
    slice_archive: "/usr/local/bin/keep"
    fds_limit: 100
    parallel_recovery: 4
    auto_sync: "2m"
    colour: blue
  }
}
"""


def plain(node: Any) -> Any:
    value = node.value if isinstance(node, Node) else node
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}  # pyright: ignore
    return [plain(one) for one in value] if isinstance(value, list) else value  # pyright: ignore


def test_the_servers_configuration_file_gives_the_options() -> None:
    found = from_server_config(plain(read_text(CONFIG)))
    assert found.directory == "/data/stan"
    assert found.passed_over == ("hb_interval", "file_options.colour"), (
        "named, so that a slip of the pen is seen"
    )
    assert found.options == StreamingOptions(
        cluster_id="my-cluster",
        max_channels=50,
        max_msgs=10_000,
        max_bytes=64 << 20,
        max_age=24 * 3600 * SECOND,
        channels={
            "Orders.>": {"max_msgs": 0, "max_age": "72h"},
            "Orders.new": {"max_subs": 3, "mb": 1 << 30},
        },
        file_compact_enabled=False,
        file_sync=False,
        file_slice_max_msgs=500,
        file_slice_max_age=3600 * SECOND,
        file_slice_archive_script="/usr/local/bin/keep",
        file_fds_limit=100,
        file_parallel_recovery=4,
        file_auto_sync=120 * SECOND,
    )
    limits = LimitTable(found.options).of("Orders.new")
    assert (limits.max_msgs, limits.max_subs, limits.max_bytes) == (0, 3, 1 << 30)
    assert limits.max_age == 72 * 3600 * SECOND
    with StreamingVolume("/s", mode="rw", create=True, disk=Disk.memory(), options=found.options) as volume:
        assert volume.durability == "interval" and volume.create("Orders.new").name == "Orders.new"


def test_without_a_streaming_block_the_whole_file_counts() -> None:
    found = from_server_config(plain(read_text('store: "FILE"\ndatastore: /d\nlimits { mm: 7 }\n')))
    assert found.directory == "/d" and found.options.max_msgs == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("streaming { store: memory }", "unsupported store type: MEMORY"),
        ("streaming { store: sql }", "unsupported store type: SQL"),
        ("streaming { file { truncate_bad_eof: true } }", "cannot stand in a configuration file"),
        ("streaming { file { file_truncate_bad_eof: true } }", "cannot stand in a configuration file"),
        ("streaming { limits { max_msgs: -4 } }", r"max messages limit cannot be negative \(-4\)"),
        ('streaming { file { slice_max_bytes: "lots" } }', "is not a size"),
    ],
)
def test_what_the_file_may_not_say(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        from_server_config(plain(read_text(text)))


@pytest.mark.parametrize(
    ("kind", "how", "words", "steps"),
    [
        (
            "server.dat",
            "flip",
            ["no message is in it", "cluster id"],
            ["remove server.dat", "start the clients"],
        ),
        ("clients.dat", "cut", ["registered clients"], ["file_truncate_bad_eof", "connect again"]),
        ("clients.dat", "flip", ["registered clients"], ["file_crc=false", "connect again"]),
        ("subs.dat", "cut", ["subscriptions", "delivered again"], ["file_truncate_bad_eof", "salvage"]),
        ("subs.dat", "flip", ["subscriptions", "delivered again"], ["file_crc=false", "salvage"]),
        ("msgs.dat", "cut", ["messages", "gap"], ["headrace salvage", "file_truncate_bad_eof"]),
        ("msgs.dat", "flip", ["messages", "gap"], ["headrace cat", "file_crc=false"]),
    ],
)
def test_an_opening_that_stops_says_what_may_be_lost_and_what_to_do(
    kind: str, how: str, words: list[str], steps: list[str], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(FOLDER / "clean", root)
    pattern = {"server.dat": "server.dat", "clients.dat": "clients.dat"}.get(
        kind, f"*/{kind.replace('msgs.', 'msgs.*.')}"
    )
    target = max(root.glob(pattern), key=lambda path: path.stat().st_size)
    data = target.read_bytes()
    # Several bits, a single one would be put right; in a message's data, so that it is still a message.
    at = len(data) - (40 if kind == "msgs.dat" else 2)
    flipped = data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]
    target.write_bytes(data[:-3] if how == "cut" else flipped)
    index = target.with_suffix(".idx")
    with pytest.raises(Damaged) as caught:
        StreamingVolume(str(root), mode="rw", maintenance=False)
    error = caught.value
    assert error.file == str(target) and error.offset >= 4
    assert all(word in error.remedy for word in [*words, *steps]), error.remedy
    assert error.remedy == ". ".join(LOSS[kind])
    notes = "\n".join(error.__notes__) if kind != "server.dat" else ""
    if kind != "server.dat":
        first = "ends inside a record" if how == "cut" else "a record that is not sound"
        assert first in notes.splitlines()[0]
        assert f"copy all of {root} to a safe place" in notes and "the record's head:" in notes
        advice = "file_truncate_bad_eof" if how == "cut" else "file_crc=false"
        assert f"{advice} would " in notes
    assert target.read_bytes() != data and (kind != "msgs.dat" or index.exists()), (
        "nothing was changed by the refusal"
    )
    # The step that the text names helps.
    options = StreamingOptions(file_truncate_bad_eof=how == "cut", file_crc=how == "cut")
    if kind == "server.dat":
        target.unlink()
        options = StreamingOptions()
    with StreamingVolume(str(root), mode="rw", maintenance=False, options=options) as volume:
        assert volume.logs()


def test_a_damaged_index_stops_nobody(tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(FOLDER / "clean", root)
    index = max(root.glob("*/msgs.*.idx"), key=lambda path: path.stat().st_size)
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 4
    index.write_bytes(data)
    with StreamingVolume(str(root)) as volume:
        before = {name: [(r.seq, r.data) for r in volume.open(name)] for name in volume.logs()}
    report = LAYOUT.verify(str(root))
    assert any("made again" in note or "rebuilds it" in note for note in report.notes), report.notes
    with StreamingVolume(str(root), mode="rw", maintenance=False) as volume:
        assert {name: [(r.seq, r.data) for r in volume.open(name)] for name in volume.logs()} == before
    assert LAYOUT.verify(str(root)).sound and bytes(data) != index.read_bytes()
    assert "nothing has to be done" in LOSS["msgs.idx"][1]


def test_a_cluster_nodes_directory_is_recognised_and_read(tmp_path: Path) -> None:
    """Also when its Raft log lies inside it: that is no channel."""
    root = tmp_path / "store"
    shutil.copytree(FOLDER / "clustered", root)
    raft = root / "test-cluster" / "a" / "raft.log"
    raft.parent.mkdir(parents=True)
    raft.write_bytes(b"\0" * 16 + (0xED0CDAED).to_bytes(4, "little") + b"\0" * 4076)
    assert LAYOUT.recognise(str(root), Disk.real())
    with headrace.open(str(root)) as volume:
        assert volume.layout == "nats_streaming" and volume.logs() == ["orders"]
        assert [r.seq for r in volume.open("orders")] == [1, 2, 3, 4, 5]
    for view in (LAYOUT.inspect(str(root)), LAYOUT.verify(str(root)), LAYOUT.inspect(str(root), quick=True)):
        assert view.details["cluster node"] == "a" and view.details["raft log"] == str(raft)
        assert any("node a of a cluster" in note for note in view.notes)
        assert [one.name for one in view.logs] == ["orders"] and view.sound
    with pytest.raises(ReadOnly, match="node 'a' of cluster 'test-cluster'"):
        StreamingVolume(str(root), mode="rw")


def test_a_channel_with_a_folder_called_like_a_node_stays_a_channel() -> None:
    disk = Disk.memory()
    with StreamingVolume("/s", mode="rw", create=True, disk=disk, maintenance=False) as volume:
        volume.commit([volume.create("c").append(Batch.build("c", [b"x"]))])
    disk.create_dir_all("/s/c/a")
    disk.open("/s/c/a/raft.log", "write")
    assert StreamingVolume("/s", disk=disk).logs() == ["c"]
