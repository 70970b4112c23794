"""Consumer groups both ways: offsets that a real broker's groups committed are ours; offsets we write are its groups'."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.layouts.kafka.layout import LAYOUT
from headrace.layouts.kafka.offsets import TOPIC as OFFSETS
from headrace.layouts.kafka.offsets import partition_of
from headrace.layouts.kafka.volume import KafkaVolume
from tests.support.kafka import TOOLS, Broker, run_tool

TOPIC, LOG, PARTITIONS = "orders", "orders-0", 7
SETTINGS = f"offsets.topic.num.partitions={PARTITIONS}\n"
GROUPS = {"billing": 120, "audit": 30, "zähler-€": 7, "gone": 50}


def consume(broker: Broker, group: str, count: int) -> list[int]:
    """A member of the group reads so many and commits when it leaves."""
    text = run_tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.address, "--topic", TOPIC, "--group", group, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", "30000"),
        *("--formatter-property", "print.offset=true"),
    )
    return [int(offset) for offset in re.findall(r"^Offset:(\d+)\t", text, re.MULTILINE)]


def groups(broker: Broker, *what: str) -> str:
    return run_tool(
        f"{TOOLS}.consumer.group.ConsumerGroupCommand", "--bootstrap-server", broker.address, *what
    )


def described(broker: Broker) -> dict[str, int]:
    """Group → current offset of the log, as the broker's own command says."""
    text = groups(broker, "--describe", "--all-groups")
    rows = re.findall(rf"^(\S+)\s+{TOPIC}\s+0\s+(\d+)\s", text, re.MULTILINE)
    return {group: int(offset) for group, offset in rows}


def test_offsets_both_ways(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with Broker(logs, SETTINGS) as broker:
        broker.create_topic(TOPIC)
        broker.produce(TOPIC, [f"value-{n:05d}" for n in range(200)])
        for group, count in GROUPS.items():
            assert consume(broker, group, count) == list(range(count))
        assert consume(broker, "billing", 5) == list(range(120, 125)), "a later commit of the same key"
        groups(broker, "--delete-offsets", "--group", "gone", "--topic", TOPIC)
        theirs = described(broker)
    assert theirs == {"billing": 125, "audit": 30, "zähler-€": 7}

    with KafkaVolume(str(logs)) as volume:
        cursors = volume.cursors(LOG)
        assert {group: cursors.committed(group).next for group in cursors.names()} == theirs
        assert cursors.state_of("billing").ack_floor.stream == 124
        # Each group's records lie where our hash says.
        for group in theirs:
            home = volume.open(f"{OFFSETS}-{partition_of(group, PARTITIONS)}")
            assert any(group.encode() in (record.key or b"") for record in home)
    view = LAYOUT.inspect(str(logs))
    [shown] = [log for log in view.logs if log.name == LOG]
    rows = {row.name: row for row in shown.cursors if row.kind == "group"}
    assert {name: row.next for name, row in rows.items()} == theirs
    assert rows["billing"].details["behind"] == "75" and rows["billing"].details["committed"][:2] == "20"
    assert view.sound

    with KafkaVolume(str(logs), mode="rw") as volume:
        volume.write_offsets("billing", {LOG: 150}, metadata="moved")
        volume.write_offsets("new one", {LOG: 60})
        volume.write_offsets("néw-β", {LOG: 199})
        assert volume.cursors(LOG).committed("billing").metadata == "moved"
    with Broker(logs, SETTINGS) as broker:
        wanted = {**theirs, "billing": 150, "néw-β": 199}
        text = groups(broker, "--describe", "--all-groups")
        assert re.search(rf"^new one\s+{TOPIC}\s+0\s+60\s+200\s+140\s", text, re.MULTILINE), text
        assert {group: offset for group, offset in described(broker).items() if group in wanted} == wanted
        assert consume(broker, "billing", 3) == [150, 151, 152], "the group goes on where we put it"
        assert consume(broker, "new one", 2) == [60, 61]
    with KafkaVolume(str(logs)) as volume:
        assert volume.cursors(LOG).committed("new one").next == 62
