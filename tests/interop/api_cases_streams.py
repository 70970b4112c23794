"""Stream configurations, good and bad, for the comparison with a real server. `S` is made and removed for each.

Standing streams: OTHER (other.>), OD (od.>, allow_direct), O2 (o2.>, max_msg_size 100), CY (cy, sourced from S).
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

SECOND = 1_000_000_000
STANDING: list[Config] = [
    {"name": "OTHER", "subjects": ["other.>"]},
    {"name": "OD", "subjects": ["od.>"], "allow_direct": True},
    {"name": "O2", "subjects": ["o2.>"], "max_msg_size": 100},
    {"name": "CY", "subjects": ["cy"], "sources": [{"name": "S"}]},
]
BAD_TRANSFORM = [{"src": "a..b", "dest": "y"}]
CONSUMER = {"name": "c", "deliver_subject": "d"}


def _subjects(*subjects: str, **more: Any) -> Config:
    return {"subjects": list(subjects), **more}


def _mirror(name: str = "OTHER", **more: Any) -> Config:
    return {"mirror": {"name": name, **more}}


def _source(name: str = "OTHER", **more: Any) -> Config:
    return {"sources": [{"name": name, **more}]}


def _external(api: str, deliver: str = "") -> Config:
    return {"external": {"api": api, "deliver": deliver}}


NAMES: list[Config] = [
    *({"name": name} for name in ("S", "a*b", "a>b", "a/b", "a\\b", "é", "x" * 254, "x" * 256)),
    *({"name": name} for name in ("", "T", "a.b")),
]
TEXTS: list[Config] = [
    {"description": "d" * 4096},
    {"description": "d" * 4097},
    {"metadata": {"a": "b", "_nats.ver": "1", "_nats.level": "9", "_nats.req.level": "3", "_nats.x": "y"}},
    {"metadata": {"k": "v" * (131055)}},
    {"metadata": {"k": "v" * (131056)}},
    {"placement": {}},
    {"placement": {"cluster": "x"}},
    {"placement": {"tags": ["a"]}},
    {"placement": {"preferred": "a"}},
    {"template_owner": "x"},
]
SUBJECTS: list[Config] = [
    {},
    _subjects(),
    *(_subjects(each) for each in ("", "a b", "a..b", "a.>.b", ">", "*", "*.>", "*.*", "*.API", "$KV.>")),
    *(_subjects(each) for each in ("$JS.>", "$JS.API.>", "$JS.ACK.>", "$JS.FOO", "$JS.*", "$JS", "$JSC.x")),
    *(_subjects(each) for each in ("$JS.EVENT.>", "$NRG.>", "$SYS.>", "$SYS.ACCOUNT.>", "$SYS.x")),
    *(_subjects(each, no_ack=True) for each in ("$JS.>", "$SYS.>", ">")),
    _subjects("q", "q"),
    _subjects("q.*", "q.1"),
    _subjects("q.1", "q.*"),
    _subjects("a", "b", "a.b", "a.c"),
    _subjects("other.x"),
    _subjects("foo", "other.>"),
]
LIMITS: list[Config] = [
    *(
        {name: value}
        for name in ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
        for value in (0, -1, -2, 5)
    ),
    *({"max_age": age} for age in (1, SECOND // 10, SECOND // 10 - 1, -1, 200 * SECOND)),
    *({"duplicate_window": window} for window in (1, SECOND, -1, SECOND // 10 - 1)),
    {"max_age": SECOND, "duplicate_window": 2 * SECOND},
    {"max_age": SECOND, "duplicate_window": SECOND},
    {"max_age": 10 * SECOND},
    *({"num_replicas": count} for count in (0, 1, 2, 5, 6, -1)),
    {"discard": "new"},
    {"discard_new_per_subject": True},
    {"discard": "new", "discard_new_per_subject": True},
    {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1},
    *({"first_seq": first} for first in (1, 100)),
    {"consumer_limits": {"inactive_threshold": SECOND, "max_ack_pending": 5}},
    {"consumer_limits": {"inactive_threshold": -1, "max_ack_pending": -5}},
]
FLAGS: list[Config] = [
    *({flag: True} for flag in ("deny_purge", "deny_delete", "allow_rollup_hdrs", "allow_direct", "no_ack")),
    *(
        {flag: True}
        for flag in ("sealed", "mirror_direct", "allow_msg_ttl", "allow_msg_counter", "allow_atomic")
    ),
    *({flag: True} for flag in ("allow_msg_schedules", "allow_batched")),
    {"allow_rollup_hdrs": True, "deny_purge": True},
    *({"storage": "memory", "compression": each} for each in ("none", "s2")),
    {"compression": "s2"},
    *({"retention": each} for each in ("interest", "workqueue")),
    *({"subject_delete_marker_ttl": ttl} for ttl in (SECOND, SECOND // 2, -SECOND, SECOND + 1)),
    {"subject_delete_marker_ttl": SECOND, "deny_purge": True},
    {"allow_msg_ttl": True, "max_age": SECOND},
    *({"allow_msg_counter": True, **more} for more in ({"discard": "new"}, {"allow_msg_ttl": True})),
    *(
        {"allow_msg_counter": True, **more}
        for more in ({"allow_msg_schedules": True}, {"retention": "interest"})
    ),
    {"allow_msg_schedules": True, "deny_purge": True},
    {"allow_msg_schedules": True, "discard": "new"},
    *({"persist_mode": mode} for mode in ("", "default", "async")),
    {"persist_mode": "async", "storage": "memory"},
    {"persist_mode": "async", "allow_atomic": True},
    {"persist_mode": "async", "num_replicas": 3},
    {"persist_mode": "async", "allow_batched": True},
]
TRANSFORMS: list[Config] = [
    *(
        {"subject_transform": {"src": src, "dest": dest}}
        for src, dest in (
            ("a.*", "b.$1"),
            ("", "b"),
            ("a..b", "b"),
            ("a b", "b"),
            ("a.*", "b.$2"),
            ("a.*", "b.{{wildcard(2)}}"),
            ("a.*", "b.{{foo(1)}}"),
            ("a.*", "b.{{partition(10,1)}}"),
            ("a.*", "b.{{partition(x,1)}}"),
            ("a.*", "b.{{split(1)}}"),
            ("a.*", "b.{{split(1,-,2)}}"),
            ("a", "b.>"),
            ("a", "b.$1"),
            ("a.>", "b"),
            (">", "b.>"),
            ("a.*", "b.*"),
            ("a.*", "b..c"),
            ("a.*", "b.>.c"),
            ("S", "other.x"),
        )
    ),
    *(
        {"republish": dict(zip(("src", "dest"), pair, strict=True)), "subjects": ["q.*", "z"]}
        for pair in (
            ("q.*", "r.$1"),
            ("q.*", "r.$2"),
            ("q.*", "r"),
            ("q.*", "q.x"),
            ("q.*", "r.*"),
            ("q.1", "q.1.x"),
            (">", "r.>"),
            ("", "r.>"),
            ("", "r"),
            ("z", "z"),
            ("z", ">"),
            ("z", "a..b"),
            ("a..b", "a"),
            ("foo", "rep"),
        )
    ),
    {"republish": {"src": "S", "dest": "rep", "headers_only": True}},
    {"republish": None},
]
ORIGINS: list[Config] = [
    _mirror(),
    _mirror("NOPE"),
    _mirror(""),
    _mirror("a.b"),
    _mirror("S"),
    _mirror("CY"),
    _mirror("OD"),
    {"mirror": {}},
    *({**_mirror(), **more} for more in (_subjects("z"), _source("O2"), {"first_seq": 5}, {"sealed": True})),
    *(
        {**_mirror(), flag: True}
        for flag in ("allow_direct", "mirror_direct", "allow_msg_counter", "allow_atomic")
    ),
    *(
        {**_mirror(), flag: True}
        for flag in ("allow_msg_schedules", "allow_batched", "allow_msg_ttl", "deny_delete")
    ),
    {**_mirror(), "subject_delete_marker_ttl": SECOND},
    {**_mirror(), "duplicate_window": SECOND},
    *({**_mirror("O2"), "max_msg_size": size} for size in (5, 100, -1)),
    _mirror(opt_start_seq=5, opt_start_time="2024-01-01T00:00:00.5Z"),
    _mirror(filter_subject="nomatch"),
    _mirror(filter_subject="a..b"),
    _mirror(filter_subject="a", subject_transforms=[{"src": "other.x", "dest": "y"}]),
    _mirror(subject_transforms=BAD_TRANSFORM),
    _mirror(subject_transforms=[{"src": "a.*", "dest": "y.$2"}]),
    _mirror(subject_transforms=[{"src": "a.*", "dest": "y.$1"}, {"src": "a.b", "dest": "z"}]),
    *(_mirror(consumer=each) for each in ({}, {"name": "c"}, CONSUMER, {**CONSUMER, "name": "a.b"})),
    _mirror(consumer=CONSUMER, opt_start_seq=4),
    *(_mirror(**_external(api)) for api in ("$JS.X.API", "", "$JS.API", "other.x", "a b", "a.*")),
    _mirror(**_external("x", "d.*")),
    _source(),
    _source("NOPE"),
    _source(""),
    _source("a.b"),
    _source("S"),
    _source("CY"),
    _source("CY", filter_subject="cy"),
    {"sources": [{}]},
    {"sources": [None]},
    *(
        {**_source(), flag: True}
        for flag in ("allow_msg_schedules", "allow_msg_counter", "allow_atomic", "allow_batched")
    ),
    *({**_source(), **more} for more in (_subjects("z"), {"first_seq": 5}, {"mirror_direct": True})),
    {**_source("O2"), "max_msg_size": 5},
    {"sources": [{"name": "OTHER"}, {"name": "OTHER"}]},
    {"sources": [{"name": "OTHER", "opt_start_seq": 1}, {"name": "OTHER", "opt_start_seq": 2}]},
    {"sources": [{"name": "OTHER", "filter_subject": each} for each in ("other.a", "other.b")]},
    {"sources": [{"name": "OTHER"}, {"name": "OTHER", **_external("x", "y")}]},
    _source(filter_subject="a..b"),
    _source(filter_subject="other.x", subject_transforms=[{"src": "other.x", "dest": "y"}]),
    _source(subject_transforms=BAD_TRANSFORM),
    _source(subject_transforms=[{"src": "other.*", "dest": "y.$2"}]),
    _source(subject_transforms=[{"src": "other.*", "dest": "y.$1"}, {"src": "other.b", "dest": "z"}]),
    *(
        _source(consumer=each)
        for each in ({}, {"name": "c"}, CONSUMER, {**CONSUMER, "deliver_subject": "x.*"})
    ),
    _source(consumer=CONSUMER, filter_subject="other.q"),
    *(_source(**_external(api, "d")) for api in ("$JS.X.API", "$JS.API", "a.*")),
    _source(**_external("a", "x y")),
]
CREATED = [*TEXTS, *SUBJECTS, *LIMITS, *FLAGS, *TRANSFORMS, *ORIGINS]
PEDANTIC: list[Config] = [
    *LIMITS,
    *FLAGS,
    {"republish": {"dest": "x.>"}},
    {"subject_delete_marker_ttl": SECOND, "allow_msg_ttl": True},
    {"subject_delete_marker_ttl": SECOND, "allow_msg_ttl": True, "allow_rollup_hdrs": True},
    {"allow_msg_schedules": True, "allow_rollup_hdrs": True},
    _mirror("OD"),
    {**_mirror("OD"), "mirror_direct": True},
    {**_mirror(), "mirror_direct": True},
]
UPDATED: list[tuple[Config, Config]] = [
    ({}, {}),
    ({}, {"storage": "memory"}),
    *(
        ({"retention": one}, {"retention": other})
        for one in ("limits", "interest", "workqueue")
        for other in ("limits", "interest", "workqueue")
    ),
    ({}, {"sealed": True}),
    (
        {"max_age": SECOND, "allow_rollup_hdrs": True},
        {"sealed": True, "max_age": SECOND, "allow_rollup_hdrs": True},
    ),
    *(({flag: True}, {}) for flag in ("deny_delete", "deny_purge", "allow_msg_ttl", "allow_msg_counter")),
    *(
        ({flag: True}, {})
        for flag in ("allow_msg_schedules", "allow_atomic", "allow_batched", "allow_direct")
    ),
    *(({}, {flag: True}) for flag in ("deny_delete", "deny_purge", "allow_msg_ttl", "allow_msg_counter")),
    *(({}, {flag: True}) for flag in ("allow_msg_schedules", "allow_atomic", "allow_batched", "no_ack")),
    ({"deny_purge": True, "deny_delete": True}, {}),
    ({"subject_delete_marker_ttl": SECOND}, {}),
    ({"subject_delete_marker_ttl": SECOND}, {"allow_msg_ttl": True}),
    ({"subject_delete_marker_ttl": SECOND}, {"subject_delete_marker_ttl": 2 * SECOND}),
    *((({"persist_mode": one} if one else {}), {"persist_mode": "async"}) for one in ("", "async")),
    ({"persist_mode": "async"}, {}),
    ({"max_consumers": 5}, {"max_consumers": 3}),
    *(({}, {"num_replicas": count}) for count in (0, 3, 6)),
    ({"first_seq": 10}, {"first_seq": 20}),
    ({}, {"compression": "s2"}),
    ({}, _subjects("a", "b")),
    ({}, _subjects("other.x")),
    (_subjects("a"), {}),
    ({}, {"max_age": SECOND}),
    ({"max_age": SECOND}, {}),
    ({"duplicate_window": SECOND}, {"duplicate_window": 2 * SECOND}),
    ({}, {"max_age": 5}),
    ({}, {"max_bytes": -5}),
    ({}, {"description": "x", "metadata": {"a": "b"}, "placement": {"cluster": "x"}}),
    ({}, _mirror()),
    (_mirror(), _mirror("O2")),
    (_mirror(), {}),
    (_mirror(), _subjects("q")),
    (_mirror(), {**_mirror(), "max_msgs": 5}),
    (_mirror(), _mirror(filter_subject="other.x")),
    (_source(), _source("O2")),
    (_source(), {}),
    ({}, _source("O2")),
    ({}, {"republish": {"src": "S", "dest": "rr"}}),
    ({}, {"subject_transform": {"src": "S", "dest": "rr"}}),
    ({"consumer_limits": {"max_ack_pending": 5}}, {}),
    ({}, {"bogus": 1}),
    ({}, {"name": "T"}),
    ({}, {"name": ""}),
    ({}, {"deny_purge": True, "allow_rollup_hdrs": True}),
]
CREATED_AGAIN: list[tuple[Config, Config]] = [
    ({}, {}),
    ({}, {"max_msgs": 5}),
    ({}, _subjects("S")),
    ({}, {"max_msgs": -1, "num_replicas": 1, "duplicate_window": 120 * SECOND}),
    ({}, {"metadata": {"a": "b"}}),
    ({}, {"metadata": {"_nats.ver": "zz"}}),
    ({}, {"sealed": True}),
    (_subjects("a", "b"), _subjects("b", "a")),
    ({"first_seq": 10}, {"first_seq": 10}),
    ({}, {"max_age": 5}),
    ({}, _subjects("other.x")),
    ({}, {"num_replicas": 3}),
]
