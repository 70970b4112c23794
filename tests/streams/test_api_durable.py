"""The ack law at the API: what is written and not yet on disk is neither shown nor confirmed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.engine.commits import Group
from headrace.engine.ports import InlineHost
from tests.support.model import Client, Model


class Withheld:
    """A committer that syncs only when told to."""

    def __init__(self, model: Model) -> None:
        self._model, self._groups = model, list[Group]()

    def submit(self, group: Group) -> None:
        self._groups.append(group)

    def sync(self) -> None:
        while self._groups:
            group = self._groups.pop(0)
            group.commit()
            self._model.engine.released(group)
            self._model.run()


class WithheldHost(InlineHost):
    """Work off the loop is left to the test."""

    def __init__(self, waiting: list[tuple[Any, Any]]) -> None:
        self._waiting = waiting

    def run_off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._waiting.append((work, done))


def heard(client: Client, inbox: str) -> int:
    return sum(1 for each in client.take() if each.subject == inbox)


def test_messages_are_shown_when_they_are_on_disk(tmp_path: Path) -> None:
    with Model(tmp_path, durability="sync") as model:
        client = model.client()
        client.subscribe("got.>")
        client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_direct": True})
        client.request("s.1", b"old")
        committer = model.engine.committer = Withheld(model)
        client.publish("$JS.API.DIRECT.GET.S", b'{"last_by_subj":"s.1"}', "got.0")
        assert heard(client, "got.0") == 1, "everything is on disk: no waiting"
        client.publish("s.1", b"new", "got.1")
        client.publish("$JS.API.DIRECT.GET.S", b'{"last_by_subj":"s.1"}', "got.2")
        client.publish("$JS.API.STREAM.MSG.GET.S", b'{"seq":2}', "got.3")
        assert client.take() == []
        committer.sync()
        answers = {each.subject: each.data for each in client.take()}
        assert sorted(answers) == ["got.1", "got.2", "got.3"]
        assert answers["got.2"] == b"new" and b'"seq":2' in answers["got.3"]


def test_memory_does_not_wait(tmp_path: Path) -> None:
    with Model(tmp_path, durability="sync") as model:
        client = model.client()
        client.api("STREAM.CREATE.M", {"name": "M", "storage": "memory", "allow_direct": True})
        model.engine.committer = Withheld(model)
        assert client.request("M", b"x") is not None
        found = client.request("$JS.API.DIRECT.GET.M", b'{"seq":1}')
        assert found is not None and found.data == b"x"


def test_a_stream_at_work_is_fenced(tmp_path: Path) -> None:
    with Model(tmp_path) as model:
        client = model.client()
        for name in ("S", "T"):
            client.api(f"STREAM.CREATE.{name}", {"name": name})
        client.request("S", b"x")
        waiting: list[tuple[Any, Any]] = []
        model.engine.host = WithheldHost(waiting)
        client.subscribe("got.>")
        client.publish("$JS.API.STREAM.PURGE.S", b"", "got.purge")
        client.publish("S", b"y", "got.publish")
        assert client.request("T", b"z") is not None, "others go on"
        assert client.take() == []
        [(work, done)] = waiting
        done(work())
        model.run()
        answers = [(each.subject, each.data) for each in client.take()]
        assert [subject for subject, _ in answers] == ["got.purge", "got.publish"]
        assert b'"purged":1' in answers[0][1] and b'"seq":2' in answers[1][1]
