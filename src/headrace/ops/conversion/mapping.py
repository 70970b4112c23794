"""Which log becomes which: the rules that people give, and what happens without one.

    --map 'orders-*=ORDERS_{1}'      by the source's name; `*` is any text, {1} {2} … what it stood for
    --map 'ORDERS:orders.*=o-{1}'    the messages of a stream by their subject, with the wildcards of subjects
    --subject '{topic}.{partition}'  the subject (routing key) of the messages; {subject} is the message's own

Names in braces: log, and its parts: stream (account), channel, topic and partition, vhost and queue.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import BadInput
from headrace.layouts.copies import OWN_SUBJECT

_FIELD = re.compile(r"\{([^{}]*)\}")
_NOT_IN_STREAM = re.compile(r"[\s.*>/\\\x00-\x1f\x7f-\x9f]")
_NOT_IN_TOKEN = re.compile(r"[\s*>/\x00-\x1f\x7f]")
_NOT_IN_KAFKA = re.compile(r"[^a-zA-Z0-9._-]")
_NOT_IN_ROCKETMQ = re.compile(r"[^%|a-zA-Z0-9_-]")
_NOT_IN_RABBITMQ = re.compile(r"[/\x00*#>?]")


@dataclass(frozen=True, slots=True)
class Rule:
    """One `--map`."""

    text: str
    pattern: re.Pattern[str]
    subject: re.Pattern[str] | None
    target: str

    @staticmethod
    def parse(text: str, *, by_subject: bool = False) -> Rule:
        """BadInput for what is no rule. `by_subject`: the source's messages have subjects that a rule may name."""
        source, equals, target = text.partition("=")
        if not equals or not source or not target:
            raise BadInput(f"--map {text!r}: write SOURCE=TARGET, for instance 'orders-*=ORDERS_{{1}}'")
        name, colon, subject = source.partition(":") if by_subject else (source, "", "")
        pattern = "(.*)".join(re.escape(part) for part in name.split("*"))
        return Rule(
            text, re.compile(pattern, re.DOTALL), _subject_pattern(subject) if colon else None, target
        )

    def fits(self, log: str, subject: str | None) -> tuple[str, ...] | None:
        """What its wildcards stand for; None when it does not fit."""
        match = self.pattern.fullmatch(log)
        if match is None or self.subject is None:
            return None if match is None else match.groups()
        on = self.subject.fullmatch(subject) if subject is not None else None
        return None if on is None else (*match.groups(), *on.groups())


def _subject_pattern(subject: str) -> re.Pattern[str]:
    tokens = subject.split(".")
    if "" in tokens or ">" in tokens[:-1]:
        raise BadInput(f"--map: {subject!r} is no subject")
    spelled = {"*": "([^.]+)", ">": "(.+)"}
    return re.compile(r"\.".join(spelled.get(token, re.escape(token)) for token in tokens))


def parts_of(layout: str, log: str) -> dict[str, str]:
    """The names by which a rule may speak of a log."""
    found = {"log": log}
    if layout == "jetstream":
        account, slash, stream = log.rpartition("/")
        found |= {"stream": stream, "account": account if slash else "$G"}
    elif layout == "nats_streaming":
        found["channel"] = log
    elif layout in ("kafka", "rocketmq"):
        topic, _, number = log.rpartition("-")
        found |= {"topic": topic, "partition": number, "queue": number}
    else:
        vhost, slash, queue = log.partition("/")
        found |= {"vhost": vhost if slash else "/", "queue": queue if slash else log}
    return found


def fill(template: str, parts: dict[str, str], option: str) -> str:
    """The template with its names replaced."""

    def one(match: re.Match[str]) -> str:
        value = parts.get(match[1])
        if value is None:
            raise BadInput(f"{option} {template!r}: unknown {match[0]}; known are: {', '.join(parts)}")
        return value

    return _FIELD.sub(one, template)


def usual_subject(layout: str, log: str) -> str:
    """The subject that a log's messages have when its name says all: nothing of it needs to be carried."""
    parts = parts_of(layout, log)
    names = {"nats_streaming": "channel", "kafka": "topic", "rocketmq": "topic", "rabbitmq": "queue"}
    return parts[names[layout]] if layout in names else ""


def default_log(source: str, target: str, log: str) -> str:
    """The target's name for a log when no rule says one."""
    if source == target:
        return log
    parts = parts_of(source, log)
    topic, number = parts.get("topic"), parts.get("partition", "0")
    bare = topic if topic is not None else parts.get("stream") or parts.get("channel") or log
    if target == "jetstream":
        return _NOT_IN_STREAM.sub("_", log)
    if target == "nats_streaming":
        return subject_text(f"{topic}.{number}" if topic is not None else log.replace("/", "."))
    if target == "kafka":
        return f"{_NOT_IN_KAFKA.sub('_', bare)[:249]}-{number}"
    if target == "rocketmq":
        return f"{_NOT_IN_ROCKETMQ.sub('_', bare)[:127]}-{number}"
    vhost, slash, queue = log.partition("/")
    return f"{vhost}/{_NOT_IN_RABBITMQ.sub('_', queue)}" if slash else _NOT_IN_RABBITMQ.sub("_", log)


def default_subject(source: str, log: str) -> str:
    """The subject for messages of layouts where a log, not a message, has a name: one per log, so that two streams
    never claim the same."""
    parts = parts_of(source, log)
    if "topic" in parts:
        return subject_text(f"{parts['topic']}.{parts['partition']}")
    return subject_text(parts.get("channel") or log.replace("/", "."))


def subject_text(text: str) -> str:
    """Something that can be a subject and a channel: no blanks, wildcards or empty tokens."""
    return ".".join(_NOT_IN_TOKEN.sub("_", token) or "_" for token in text.split("."))


@dataclass(frozen=True, slots=True)
class Mapping:
    """All rules of one conversion."""

    source: str
    target: str
    rules: tuple[Rule, ...]
    subject: str | None

    def log_for(self, log: str, subject: str | None = None) -> str:
        """The target's log; the first rule that fits decides."""
        for rule in self.rules:
            groups = rule.fits(log, subject)
            if groups is not None:
                captured = {str(number): text for number, text in enumerate(groups, 1)}
                return fill(rule.target, parts_of(self.source, log) | captured, "--map")
        return default_log(self.source, self.target, log)

    def ruled(self, log: str, subject: str | None = None) -> bool:
        """Whether somebody said what becomes of it."""
        return any(rule.fits(log, subject) is not None for rule in self.rules)

    def splits(self, log: str) -> bool:
        """Whether its messages may go to several logs."""
        return any(rule.subject is not None and rule.pattern.fullmatch(log) for rule in self.rules)

    def subject_for(self, log: str) -> str | None:
        """The subject of its messages; None: each keeps its own."""
        if self.subject == OWN_SUBJECT:
            return None
        if self.subject is not None:
            # What each message has itself is put in when it is converted.
            return fill(self.subject, parts_of(self.source, log) | {"subject": OWN_SUBJECT}, "--subject")
        own = self.source == self.target or (self.source == "jetstream") or self.target != "jetstream"
        return None if own else default_subject(self.source, log)


def make_mapping(source: str, target: str, rules: Sequence[str], subject: str | None) -> Mapping:
    """BadInput for a rule that says nothing."""
    if subject not in (None, OWN_SUBJECT) and target not in ("jetstream", "rabbitmq"):
        raise BadInput(f"--subject: messages of {target} have no subject of their own; use --map")
    by_subject = source == "jetstream"
    return Mapping(source, target, tuple(Rule.parse(rule, by_subject=by_subject) for rule in rules), subject)
