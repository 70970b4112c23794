"""Configurations and meta.inf + meta.sum: byte for byte against real servers, and at every crash point."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._core import Disk, highway_hash
from headrace.config import meta_json as codec
from headrace.config.model import ConsumerConfig, Source, StreamConfig, block_size
from headrace.config.names import check_subject, subjects_overlap
from headrace.errors import BadInput, Damaged, DiskFault, KeyNeeded
from headrace.layouts.jetstream.meta import finish_meta, hash_key, meta_sum, read_meta, write_meta
from headrace.layouts.jetstream.sealed import StoreKey
from tests.support import highway, vectors

VERSIONS = {"2.6.5": "2.6", "2.9.10": "2.9", "2.15.2": "2.15"}
SEED_CONSUMER = (
    b'{"Created":"2021-11-07T12:56:13.56432767Z","Name":"","durable_name":"C1",'
    b'"deliver_subject":"_INBOX.J6h6nsYgSi7rm9ryKBaCRh","deliver_policy":"all","ack_policy":"explicit",'
    b'"ack_wait":30000000000,"max_deliver":-1,"filter_subject":"foo_subject","replay_policy":"instant",'
    b'"max_ack_pending":524288}'
)


def metas(version: str) -> list[Path]:
    return sorted((vectors.ROOT / "jetstream" / version / "store").rglob("meta.inf"))


def key_text(path: Path) -> str:
    parts = path.parts
    stream = parts[parts.index("streams") + 1]
    return f"{stream}/{parts[parts.index('obs') + 1]}" if "obs" in parts else stream


def test_the_hash_is_the_published_one_in_both_implementations() -> None:
    known = json.loads((vectors.ROOT / "jetstream/2.6.5/hash-vectors.json").read_text())
    assert known["raw"]
    for case in known["raw"]:
        key, data = bytes.fromhex(case["key_hex"]), bytes.fromhex(case["data_hex"])
        assert highway_hash(key, data).hex() == case["hash_hex"]
        assert highway.highway_hash(key, data).hex() == case["hash_hex"]
    for case in known["keyed_by_sha256_of_text"]:
        assert meta_sum(case["key_text"], case["data"].encode()).decode() == case["hash_hex"]


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_the_core_hashes_as_the_oracle(key: bytes, data: bytes) -> None:
    assert highway_hash(key, data) == highway.highway_hash(key, data)


def test_the_checksum_of_the_source_document() -> None:
    assert meta_sum("foo_stream/C1", SEED_CONSUMER) == b"44be9c30336b4ad0"
    meta = codec.decode_consumer_meta(SEED_CONSUMER)
    assert codec.encode_consumer_meta(meta.name, meta.config, meta.created_ns, "2.6") == SEED_CONSUMER


@pytest.mark.parametrize("version", VERSIONS)
def test_every_meta_of_a_real_server_is_written_byte_for_byte(version: str) -> None:
    era = VERSIONS[version]
    found = metas(version)
    assert len(found) >= 14
    for path in found:
        raw = path.read_bytes()
        if "obs" in path.parts:
            meta = codec.decode_consumer_meta(raw)
            again = codec.encode_consumer_meta(path.parent.name, meta.config, meta.created_ns, era)  # pyright: ignore
            assert codec.unknown_keys(raw, "consumer") == []
        else:
            config, created_ns = codec.decode_stream_meta(raw)
            config.validate()
            again = codec.encode_stream_meta(config, created_ns, era)  # pyright: ignore
            assert codec.unknown_keys(raw, "stream") == []
        assert again == raw, path
        assert path.with_name("meta.sum").read_bytes() == meta_sum(key_text(path), raw)


@pytest.mark.parametrize("path", metas("2.15.2"), ids=lambda path: key_text(path))
def test_filled_adds_nothing_to_what_the_real_server_filled(path: Path) -> None:
    raw = path.read_bytes()
    config = (
        codec.decode_consumer_meta(raw).config if "obs" in path.parts else codec.decode_stream_meta(raw)[0]
    )
    assert config.filled() == config


def test_filled_completes_a_bare_configuration_as_the_server_does() -> None:
    bare = StreamConfig(name="ORDERS", max_msgs=0, max_age=10_000_000_000).filled()
    assert (bare.subjects, bare.max_msgs, bare.duplicate_window) == (("ORDERS",), -1, 10_000_000_000)
    assert bare.metadata == {"_nats.req.level": "0"}
    assert StreamConfig(name="T", allow_msg_ttl=True).filled().metadata == {"_nats.req.level": "1"}
    assert StreamConfig(name="S", sources=(Source(name="A"),)).filled().duplicate_window == 0
    pull = ConsumerConfig(durable_name="C", ack_policy="explicit").filled()
    assert (pull.name, pull.max_waiting, pull.ack_wait, pull.max_ack_pending) == ("C", 512, 30 * 10**9, 1000)


def test_text_is_escaped_as_the_server_does() -> None:
    config = StreamConfig(
        name="X", subjects=("a.>",), description="<&> \u2028 é", metadata={"b": "1", "a": "2"}
    )
    text = codec.encode_stream_meta(config, 1_500_000_000_120_000_000)
    assert b'"Created":"2017-07-14T02:40:00.12Z"' in text
    assert rb'"a.\u003e"' in text
    assert rb'"\u003c\u0026\u003e \u2028 ' + "é".encode() in text
    assert b'"metadata":{"a":"2","b":"1"}' in text
    assert codec.decode_stream_meta(text) == (config, 1_500_000_000_120_000_000)


def test_unknown_keys_are_found_and_ignored() -> None:
    raw = b'{"Created":"2021-11-07T12:56:13Z","name":"X","zzz":1,"mirror":{"name":"Y","yyy":2}}'
    config, _ = codec.decode_stream_meta(raw)
    assert config.mirror == Source(name="Y")
    assert codec.unknown_keys(raw, "stream") == ["mirror.yyy", "zzz"]


def test_what_an_older_era_would_lose_is_named() -> None:
    config = StreamConfig(name="X", compression="s2", allow_msg_ttl=True, metadata={"a": "b"})
    assert codec.lost_in(config, "2.9") == ["compression", "allow_msg_ttl"]
    assert codec.lost_in(StreamConfig(name="X").filled(), "2.6") == []
    assert codec.lost_in(ConsumerConfig(filter_subjects=("a", "b")), "2.9") == ["filter_subjects"]
    assert b"compression" not in codec.encode_stream_meta(config, 0, "2.9")


@given(st.binary(max_size=200))
def test_random_bytes_are_damage_and_nothing_else(raw: bytes) -> None:
    for decode in (codec.decode_stream_meta, codec.decode_consumer_meta):
        with pytest.raises(Damaged):
            decode(raw)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a.b", "a/b", "/etc", "a\\b", "a b", "a\tb", "a\nb", "a\0b", "a*", "a>", "x" * 256, "é" * 128, "\ud800", "\x85"]
)  # fmt: skip
def test_names_that_could_leave_the_directory_are_refused(name: str) -> None:
    with pytest.raises(BadInput):
        StreamConfig(name=name).validate()
    with pytest.raises(BadInput):
        (ConsumerConfig(durable_name=name) if name else StreamConfig(name=name)).validate()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (StreamConfig(name="X", subjects=("a..b",)), "invalid subject"),
        (StreamConfig(name="X", subjects=("a.>.b",)), "invalid subject"),
        (StreamConfig(name="X", subjects=("q.*", "q.1")), 'subject "q.*" overlaps with "q.1"'),
        (StreamConfig(name="X", subjects=("q", "q")), "overlaps"),
        (StreamConfig(name="X", subjects=(">",)), "no-ack"),
        (StreamConfig(name="X", max_age=1), "max age needs to be >= 100ms"),
        (StreamConfig(name="X", max_age=10**9, duplicate_window=2 * 10**9), "duplicates window"),
        (StreamConfig(name="X", num_replicas=6), "maximum replicas is 5"),
        (StreamConfig(name="X", discard_new_per_subject=True), "discard new per subject"),
        (StreamConfig(name="X", allow_rollup_hdrs=True, deny_purge=True), "roll-ups"),
        (StreamConfig(name="X", description="x" * 5000), "description"),
        (ConsumerConfig(filter_subject="a", filter_subjects=("b",)), "both"),
        (ConsumerConfig(filter_subjects=("a.*", "a.b")), "overlaps"),
        (ConsumerConfig(deliver_policy="by_start_sequence"), "opt_start_seq"),
        (ConsumerConfig(opt_start_time="yesterday"), "not a time"),
        (ConsumerConfig(backoff=(1, 2), max_deliver=1), "backoff"),
    ],
)
def test_configurations_that_cannot_work_are_refused(
    config: StreamConfig | ConsumerConfig, text: str
) -> None:
    with pytest.raises(BadInput, match=text.replace("*", r"\*").replace("(", r"\(")):
        config.validate()


def test_subject_rules() -> None:
    for good in ("a", "a.b.c", "a.*.c", "a.>", "*", "a*b", "$KV.x.>", "é.ü"):
        check_subject(good)
    assert (
        subjects_overlap("a.*", "a.b") and subjects_overlap("a.>", "a.b.c") and subjects_overlap("*.b", "a.*")
    )
    assert (
        not subjects_overlap("a.*", "a.b.c")
        and not subjects_overlap("a", "b")
        and not subjects_overlap("a.>", "a")
    )


@pytest.mark.parametrize(
    ("max_bytes", "retention", "encrypted", "size"),
    [
        (-1, "limits", False, 8 << 20),
        (-1, "workqueue", False, 4 << 20),
        (100_000, "limits", False, 32_000),
        (1 << 20, "limits", False, 4 << 20),
        (1 << 30, "interest", False, 8 << 20),
        (-1, "limits", True, 2 << 20),
        (100_000, "limits", True, 32_000),
    ],
)
def test_block_size(max_bytes: int, retention: str, encrypted: bool, size: int) -> None:
    config = StreamConfig(name="X", max_bytes=max_bytes, retention=retention)  # type: ignore[arg-type]
    assert block_size(config, encrypted=encrypted) == size


OLD, NEW = b'{"name":"X","description":"old"}', b'{"name":"X","description":"new, and longer"}'


def a_disk_with(data: bytes | None) -> Disk:
    disk = Disk.memory()
    disk.create_dir_all("/s/X")
    for directory in ("/", "/s"):
        disk.sync_dir(directory)
    if data is not None:
        write_meta(disk, "/s/X", "X", data)
    return disk


@pytest.mark.parametrize("before", [None, OLD])
def test_a_power_cut_at_any_sync_leaves_the_old_pair_or_the_new_one(before: bytes | None) -> None:
    base = a_disk_with(before).sync_points()
    whole = a_disk_with(before)
    write_meta(whole, "/s/X", "X", NEW)
    seen: set[bytes] = set()
    for point in range(base, whole.sync_points() + 1):
        for keep, seed in (("none", 0), ("all", 0), *(("random", seed) for seed in range(12))):
            disk = a_disk_with(before)
            disk.power_cut_at(point)
            answered = True
            try:
                write_meta(disk, "/s/X", "X", NEW)
            except DiskFault:
                answered = False
            after = disk.crash(seed, keep)
            finish_meta(after, "/s/X", "X")
            found = read_meta(after, "/s/X", "X")
            if answered:
                assert found == (NEW, True, None)
            elif before is None:
                assert not found.ok or found.data == NEW
            else:
                assert found.ok and found.problem is None and found.data in (OLD, NEW)
            seen.add(found.data)
            assert finish_meta(after, "/s/X", "X") is False
            assert before is None or {n for n, _, _ in after.list("/s/X")} == {"meta.inf", "meta.sum"}
    assert seen >= {before or b"", NEW}


@pytest.mark.parametrize("meta", ["meta.inf", "meta.inf.tmp"])
@pytest.mark.parametrize("sum_", ["meta.sum", "meta.sum.tmp"])
def test_any_matching_halves_are_joined(meta: str, sum_: str) -> None:
    disk = a_disk_with(None)
    disk.replace_file("/s/X/meta.inf", OLD)
    disk.replace_file("/s/X/meta.sum", b"0" * 16)
    disk.replace_file(f"/s/X/{meta}", NEW)
    disk.replace_file(f"/s/X/{sum_}", meta_sum("X", NEW))
    finish_meta(disk, "/s/X", "X")
    assert read_meta(disk, "/s/X", "X") == (NEW, True, None)


def test_a_whole_pair_wins_over_leftovers_and_nothing_is_touched_without_proof() -> None:
    disk = a_disk_with(OLD)
    disk.replace_file("/s/X/meta.inf.tmp", NEW)
    disk.replace_file("/s/X/meta.sum.tmp", meta_sum("X", NEW))
    assert finish_meta(disk, "/s/X", "X")
    assert read_meta(disk, "/s/X", "X").data == OLD
    disk.replace_file("/s/X/meta.sum", b"f" * 16)
    disk.replace_file("/s/X/meta.inf.tmp", b"half")
    before = disk.list("/s/X")
    assert not finish_meta(disk, "/s/X", "X")
    assert disk.list("/s/X") == before
    found = read_meta(disk, "/s/X", "X")
    assert (found.data, found.ok) == (OLD, False)
    assert found.problem is not None and found.problem.kind == "metadata"


def test_every_single_bit_of_the_pair_is_repaired() -> None:
    for name, size in (("meta.inf", len(OLD)), ("meta.sum", 16)):
        for offset in range(size):
            for bit in range(8):
                disk = a_disk_with(OLD)
                disk.flip_bit(f"/s/X/{name}", offset, bit)
                found = read_meta(disk, "/s/X", "X")
                assert (found.data, found.ok) == (OLD, True)
                assert found.problem is not None and found.problem.kind == "repaired"


def test_missing_files_are_distinguished() -> None:
    disk = a_disk_with(OLD)
    disk.remove_file("/s/X/meta.sum")
    found = read_meta(disk, "/s/X", "X")
    assert (found.data, found.ok) == (OLD, False)
    assert found.problem is not None and (found.problem.kind, found.problem.file) == (
        "missing",
        "/s/X/meta.sum",
    )
    assert hash_key("X") != hash_key("Y")


@pytest.mark.parametrize(
    ("folder", "secret"), [("store-encrypted", "fixture-key"), ("encrypted-aes/store", "vector-key")]
)
def test_encrypted_metas_are_read_with_the_key(folder: str, secret: str) -> None:
    vector = vectors.load("jetstream", "2.15.2")
    disk, key = Disk.real(), StoreKey(secret)
    found = sorted((vector.folder / folder).rglob("meta.inf"))
    assert found
    for path in found:
        meta = read_meta(disk, str(path.parent), key_text(path), key)
        assert meta.ok and meta.data.startswith(b'{"Created":')
        with pytest.raises(KeyNeeded):
            read_meta(disk, str(path.parent), key_text(path))
        with pytest.raises(KeyNeeded):
            read_meta(disk, str(path.parent), key_text(path), StoreKey("wrong"))
