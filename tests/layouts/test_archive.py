"""Snapshots: real ones read and written again byte for byte, hostile ones refused."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._core import Batch
from headrace.config.meta_json import decode_stream_meta
from headrace.config.model import ConsumerConfig
from headrace.errors import Damaged
from headrace.layouts.base import LogState
from headrace.layouts.jetstream.consumers.state import decode_state
from headrace.layouts.jetstream.meta import meta_sum
from headrace.layouts.jetstream.snapshots import archive
from headrace.layouts.jetstream.snapshots.archive import Document
from headrace.layouts.jetstream.snapshots.snapshot_json import (
    decode_log_state,
    decode_snapshot_consumer,
    encode_log_state,
    encode_snapshot_consumer,
)
from headrace.layouts.varint import get_varint, put_uvarint
from headrace.units import parse_time_ns
from tests.support import vectors

ARCHIVES = sorted((vectors.ROOT / "jetstream/2.15.2/snapshots").glob("*.snapshot"))
TARS = sorted((vectors.ROOT / "jetstream/2.6.5/snapshots").glob("*.snapshot"))


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def plain(path: Path) -> bytes:
    return b"".join(archive.decompress([path.read_bytes()]))


def split(found: list[Document | Batch]) -> tuple[bytes, list[tuple[str, bytes]], list[Batch]]:
    documents = [each for each in found if isinstance(each, Document)]
    batches = [each for each in found if not isinstance(each, Document)]
    return documents[0].data, [(each.name, each.data) for each in documents[1:]], batches


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.stem)
@pytest.mark.parametrize("size", [1, 13, 1 << 20])
def test_a_real_archive_is_read_in_pieces_of_any_size(path: Path, size: int) -> None:
    data = plain(path)
    found = list(archive.read_archive(archive.decompress(pieces(path.read_bytes(), size))))
    state, consumers, batches = split(found)
    about = vectors.load("jetstream", "2.15.2").streams()[path.stem]
    assert decode_log_state(state).messages == about["state"]["messages"]
    assert [name for name, _ in consumers] == sorted(about["consumers"])
    expected = list(vectors.load("jetstream", "2.15.2").messages(path.stem))
    records = [record for batch in batches for record in batch]
    assert [r.seq for r in records] == [e.seq for e in expected]
    for record, message in zip(records, expected, strict=True):
        assert (record.subject, record.time_ns, record.headers or b"") == (
            message.subject,
            message.time_ns,
            message.headers,
        )
        assert message.data_matches(record.data)
    time_ns, _ = get_varint(data, len(archive.MAGIC) + 1)
    assert b"".join(archive.write_archive(state, consumers, batches, time_ns)) == data


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.stem)
def test_the_documents_of_a_real_archive_are_written_byte_for_byte(path: Path) -> None:
    state, consumers, _ = split(list(archive.read_archive([plain(path)])))
    log_state = decode_log_state(state)
    assert encode_log_state(log_state) == state
    for name, data in consumers:
        config, consumer_state = decode_snapshot_consumer(name, data)
        assert encode_snapshot_consumer(config, consumer_state, log_state.last_seq) == data


def test_a_consumer_in_a_snapshot_ends_where_the_snapshot_ends() -> None:
    path = next(path for path in ARCHIVES if path.stem == "foo_stream")
    _, consumers, _ = split(list(archive.read_archive([plain(path)])))
    config, state = decode_snapshot_consumer(*consumers[0])
    _, bounded = decode_snapshot_consumer("C1", encode_snapshot_consumer(config, state, 5))
    assert (bounded.delivered.stream, bounded.delivered.consumer, list(bounded.pending)) == (5, 10, [4, 5])


def test_a_damaged_archive_says_where() -> None:
    data = plain(next(path for path in ARCHIVES if path.stem == "ORDERS"))
    for cut in range(len(data) - 5, len(data)):
        with pytest.raises(Damaged):
            list(archive.read_archive([data[:cut]]))
    for bad in (data + b"x", b"NATSARC2" + data[8:], b"", data[:8], data[:60]):
        with pytest.raises(Damaged):
            list(archive.read_archive([bad]))


@given(st.binary(max_size=300))
def test_random_bytes_are_damage_and_nothing_else(data: bytes) -> None:
    for raw in (data, archive.MAGIC + data):
        with pytest.raises(Damaged):
            list(archive.read_archive([raw]))
    for compressed in (data, archive.S2_IDENTIFIER + data):
        try:
            list(archive.decompress([compressed]))
        except Damaged:
            pass
    try:
        list(archive.read_tar([data * 4]))
    except Damaged:
        pass


def test_hostile_sizes_are_refused_before_anything_is_taken() -> None:
    state = encode_log_state(LogState(0, 0, 0, 0))
    head = b"".join(archive.write_archive(state, [], [], 0))[:-5]
    huge = bytearray()
    for value in (3, 0, 1, 0, 1 << 60):
        put_uvarint(huge, value)
    with pytest.raises(Damaged, match="too large"):
        list(archive.read_archive([head + bytes(huge)]))
    document = bytearray(archive.MAGIC)
    for value in (10, 0, 0, 0, 1 << 60):
        put_uvarint(document, value)
    with pytest.raises(Damaged, match="a document"):
        list(archive.read_archive([bytes(document)]))


@given(st.lists(st.binary(max_size=5000), max_size=8), st.integers(1, 3000))
def test_s2_comes_back_in_pieces_of_any_size(items: list[bytes], size: int) -> None:
    data = b"".join(archive.compress(items))
    assert b"".join(archive.decompress(pieces(data, size))) == b"".join(items)


def test_s2_joins_skips_and_refuses() -> None:
    one, two = (b"".join(archive.compress([text])) for text in (b"one " * 99, b"two " * 99))
    skippable = b"\x80\x03\0\0abc"
    assert b"".join(archive.decompress([one + skippable + two])) == b"one " * 99 + b"two " * 99
    for bad in (one[:-1], b"plain bytes that are no S2", one + b"\x02\x01\0\0x", b"\xff\x06\0\0nonono"):
        with pytest.raises(Damaged):
            list(archive.decompress([bad]))


@pytest.mark.parametrize("path", TARS, ids=lambda path: path.stem)
@pytest.mark.parametrize("size", [7, 1 << 20])
def test_a_real_tar_is_read(path: Path, size: int) -> None:
    files = dict(archive.read_tar(archive.decompress(pieces(path.read_bytes(), size))))
    assert list(files)[:2] == ["meta.inf", "meta.sum"]
    assert files["meta.sum"] == meta_sum(path.stem, files["meta.inf"])
    config, created_ns = decode_stream_meta(files["meta.inf"])
    answer = json.loads(path.with_suffix(".json").read_text())
    assert list(config.subjects) == answer["config"]["subjects"] and created_ns > 0
    store = vectors.ROOT / "jetstream/2.6.5/store/jetstream/$G/streams" / path.stem
    assert files["msgs/1.blk"] == (store / "msgs/1.blk").read_bytes()
    for name in (name for name in files if name.endswith("o.dat")):
        consumer = name.split("/")[1]
        assert decode_state(files[name], f"{path.stem}/{consumer}").state.delivered.stream >= 0
    again = b"".join(archive.write_tar(files.items(), parse_time_ns("2026-01-02T03:04:05Z")))
    assert dict(archive.read_tar([again])) == files
    with tarfile.open(fileobj=io.BytesIO(again)) as tar:
        assert tar.getnames() == list(files)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "a\\b", "x" * 5000]
)
def test_names_that_could_leave_the_directory_are_refused(name: str) -> None:
    with pytest.raises(Damaged):
        list(archive.write_tar([(name, b"")], 0))
    member = tarfile.TarInfo(name)
    member.size = 1
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(Damaged):
        list(archive.read_tar([buffer.getvalue()]))


def test_tar_limits_and_odd_members() -> None:
    files = [(f"msgs/{n}.blk", b"x" * 100) for n in range(5)]
    data = b"".join(archive.write_tar(files, 0))
    with pytest.raises(Damaged):
        list(archive.read_tar([data], members_max=4))
    with pytest.raises(Damaged):
        list(archive.read_tar([data], member_bytes_max=99))
    with pytest.raises(Damaged):
        list(archive.read_tar([data[:560]]))
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE):
        member = tarfile.TarInfo("link")
        member.type, member.linkname = kind, "/etc/passwd"
        with pytest.raises(Damaged):
            list(archive.read_tar([member.tobuf() + bytes(1024)]))


def test_a_hundred_thousand_messages_pass_in_batches() -> None:
    count = 100_000
    subjects = [f"s.{n % 7}" for n in range(count)]
    batch = Batch.build(
        subjects, [b"payload"] * count, times=list(range(count)), positions=list(range(1, count + 1))
    )
    state = encode_log_state(LogState(count, 0, 1, count, consumers=1))
    consumer = encode_snapshot_consumer(
        ConsumerConfig(durable_name="C"), decode_snapshot_consumer("C", b"{}")[1], count
    )
    chunks = list(archive.compress(archive.write_archive(state, [("C", consumer)], [batch], 5)))
    _, consumers, batches = split(list(archive.read_archive(archive.decompress(chunks))))
    assert [name for name, _ in consumers] == ["C"]
    assert sum(map(len, batches)) == count and len(batches) < 10
    assert batches[-1].last_position == count
