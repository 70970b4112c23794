"""RabbitMQ 3.10.8 itself, both ways: it serves what Headrace wrote, Headrace reads what it wrote, and again."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.errors import StoreLocked
from headrace.layouts.rabbitmq.layout import LAYOUT
from headrace.layouts.rabbitmq.options import RabbitOptions
from headrace.layouts.rabbitmq.volume import RabbitVolume
from tests.support.rabbit import RabbitServer
from tests.support.waiting import wait_until

LARGE = 9000


def bodies(prefix: str, count: int) -> list[bytes]:
    """Small and large ones mixed, one empty."""
    made = [f"{prefix}-{n}-".encode() + b"x" * (LARGE if n % 7 == 3 else n) for n in range(count)]
    return [*made, b""]


def in_queue(path: Path, queue: str) -> list[bytes]:
    with RabbitVolume(str(path)) as volume:
        return [r.data or b"" for r in volume.open(queue)]


@pytest.mark.slow
def test_both_ways(tmp_path: Path) -> None:
    """Broker → Headrace → broker → kill -9 → Headrace → broker, in one directory."""
    options = RabbitOptions(msg_store_file_size_limit=40_000, queue_index_max_journal_entries=60)
    with RabbitServer(tmp_path / "node", "{msg_store_file_size_limit, 40000}") as server:
        client = server.client()
        for queue in ("q1", "q2"):
            client.declare(queue)
        theirs = bodies("theirs", 60)
        client.publish("q1", theirs)
        taken = [client.get("q1", ack=True) for _ in range(3)]
        assert [message[0] for message in taken if message] == theirs[:3]
        client.close()
        with pytest.raises(StoreLocked):
            RabbitVolume(str(server.data_dir), mode="rw")
        wait_until(lambda: in_queue(server.data_dir, "q1") == theirs[3:], "the acks to reach the disk")
        server.stop()

        assert in_queue(server.data_dir, "q1") == theirs[3:]
        ours = bodies("ours", 50)
        with RabbitVolume(str(server.data_dir), mode="rw", options=options) as volume:
            one = volume.open("q1")
            volume.create("q2")
            volume.commit([one.append(headrace.batch("q1", ours))])
            volume.commit([one.remove([4, 5, 6])])
            volume.commit(volume.publish(headrace.batch("fan", [b"fan" * LARGE, b"fan"]), ["q1", "q2"]))
            volume.collect()
        expected = [theirs[3], *theirs[7:], *ours, b"fan" * LARGE, b"fan"]
        assert in_queue(server.data_dir, "q1") == expected
        assert not LAYOUT.verify(str(server.data_dir)).logs[0].damage

        server.start()
        client = server.client()
        assert client.get_all("q2") == [b"fan" * LARGE, b"fan"]
        first = client.get("q1", ack=True)
        assert first is not None and first[0] == theirs[3]
        client.publish("q1", [b"after"])
        client.close()
        expected = [*expected[1:], b"after"]
        wait_until(lambda: in_queue(server.data_dir, "q1") == expected, "the ack to reach the disk")
        server.kill()

        assert in_queue(server.data_dir, "q1") == expected
        with RabbitVolume(str(server.data_dir), mode="rw", options=options) as volume:
            assert [r.data or b"" for r in volume.open("q1")] == expected
            volume.commit([volume.open("q1").append(headrace.batch("q1", [b"last"]))])
        server.start()
        client = server.client()
        assert client.get_all("q1", ack=True) == [*expected, b"last"]
        client.close()


@pytest.mark.slow
def test_the_broker_serves_what_it_would_have_lost_by_itself(tmp_path: Path) -> None:
    """A merge of the broker, interrupted at the wrong moment: opened here once, it serves all messages again."""
    import shutil

    from tests.layouts.test_rabbitmq_read import FOLDER

    with RabbitServer(tmp_path / "node", "{msg_store_file_size_limit, 65536}") as server:
        client = server.client()
        client.declare("q1")
        client.close()
        server.stop()
        vhost = server.data_dir / "msg_stores" / "vhosts" / "628WB79CIFDYO9LJI6DKMI09L"
        shutil.rmtree(vhost)
        shutil.copytree(FOLDER / "real_crash_during_compaction" / vhost.name, vhost)
        RabbitVolume(str(server.data_dir), mode="rw").close()
        server.start()
        client = server.client()
        heads = [body[:6] for body in client.get_all("q1")]
        client.close()
    assert len(heads) == 30 and {b"g-003-", b"g-006-"} <= set(heads)


@pytest.mark.slow
def test_what_the_broker_did_since_our_clean_stop_is_seen(tmp_path: Path) -> None:
    """Our checkpoint is believed until the broker has started: even if it changed no message, and after kill -9 too."""
    from headrace.layouts.rabbitmq import checkpoint

    def believed() -> bool:
        with RabbitVolume(str(server.data_dir)) as volume:
            return checkpoint.peek(volume.open("q1").vhost) is not None

    def stop_ours(*data: bytes) -> None:
        with RabbitVolume(str(server.data_dir), mode="rw") as volume:
            if data:
                volume.commit([volume.open("q1").append(headrace.batch("q1", list(data)))])
        assert believed()

    with RabbitServer(tmp_path / "node") as server:
        client = server.client()
        client.declare("q1")
        client.publish("q1", [b"a", b"b" * LARGE, b"c"])
        client.close()
        server.stop()
        stop_ours(b"d", b"e" * LARGE)
        expected = [b"a", b"b" * LARGE, b"c", b"d", b"e" * LARGE]

        server.start()
        server.kill()
        assert not believed()
        assert in_queue(server.data_dir, "q1") == expected
        stop_ours()

        server.start()
        client = server.client()
        assert client.get_all("q1") == expected, "the broker ignores our checkpoint"
        client.close()
        client = server.client()
        first = client.get("q1", ack=True)
        assert first is not None and first[0] == b"a"
        client.close()
        server.stop()
        assert not believed()
        assert in_queue(server.data_dir, "q1") == expected[1:]
        stop_ours(b"f")
        assert in_queue(server.data_dir, "q1") == [*expected[1:], b"f"]
