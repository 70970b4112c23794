"""Consumer requests, good and bad, for the comparison with a real server.

Standing streams: S (s.>), W (w.>, workqueue), I (i.>, interest), L (l.>, limits for consumers), M (m.>, memory).
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

SECOND = 1_000_000_000
STANDING: list[Config] = [
    {"name": "S", "subjects": ["s.>"]},
    {"name": "W", "subjects": ["w.>"], "retention": "workqueue"},
    {"name": "I", "subjects": ["i.>"], "retention": "interest"},
    {
        "name": "L",
        "subjects": ["l.>"],
        "consumer_limits": {"max_ack_pending": 10, "inactive_threshold": SECOND},
    },
    {"name": "M", "subjects": ["m.>"], "storage": "memory"},
    {"name": "F", "subjects": ["f.>"], "max_consumers": 1},
]
LONG, TOO_LONG = "x" * 255, "x" * 256

# (endpoint behind CONSUMER., configuration)
ENDPOINTS: list[tuple[str, Config]] = [
    ("CREATE.S", {}),
    ("CREATE.S", {"durable_name": "d"}),
    *(("CREATE.S", {"name": name}) for name in ("n", "a b", "a.b", "")),
    ("CREATE.S.c", {}),
    ("CREATE.S.c", {"name": "c"}),
    ("CREATE.S.c", {"name": "d"}),
    ("CREATE.S.c", {"durable_name": "c"}),
    ("CREATE.S.c", {"durable_name": "d"}),
    ("CREATE.S.c", {"durable_name": "d", "name": "c"}),
    ("CREATE.S.c", {"durable_name": "c", "name": "c"}),
    ("CREATE.S.c.s.1", {}),
    ("CREATE.S.c.s.1", {"filter_subject": "s.1"}),
    ("CREATE.S.c.s.1", {"filter_subject": "s.2"}),
    ("CREATE.S.c.s.1", {"filter_subjects": ["s.1"]}),
    ("CREATE.S.c.s.>", {"filter_subject": "s.>"}),
    ("DURABLE.CREATE.S.d", {"durable_name": "d"}),
    ("DURABLE.CREATE.S.d", {}),
    ("DURABLE.CREATE.S.d", {"durable_name": "e"}),
    ("DURABLE.CREATE.S.d", {"name": "d"}),
    ("DURABLE.CREATE.S.d", {"durable_name": "d", "name": "e"}),
    ("CREATE.NOPE.c", {}),
    ("CREATE.NOPE", {}),
    ("DURABLE.CREATE.NOPE.c", {"durable_name": "c"}),
    *(
        (endpoint.replace("?", name), config)
        for name in ("a*b", "a>b", "a/b", "a\\b", LONG, TOO_LONG, "é")
        for endpoint, config in (
            ("CREATE.S.?", {"name": name}),
            ("CREATE.S.?", {"durable_name": name}),
            ("DURABLE.CREATE.S.?", {"durable_name": name}),
        )
    ),
]
EXPLICIT: Config = {"ack_policy": "explicit"}
ACKS: list[Config] = [
    {},
    *({"ack_policy": policy} for policy in ("none", "all", "explicit", "flow_control")),
    *({"ack_wait": wait} for wait in (-1, 1, SECOND)),
    {**EXPLICIT, "ack_wait": SECOND},
    *({**EXPLICIT, "max_ack_pending": count} for count in (-2, -1, 5)),
    *({"ack_policy": "none", "max_ack_pending": count} for count in (-1, 5)),
    *({"max_deliver": count} for count in (-2, -1, 0, 5)),
    {"backoff": [SECOND, 2 * SECOND]},
    *({**EXPLICIT, "backoff": [SECOND, 2 * SECOND], "max_deliver": count} for count in (-1, 1, 2, 3)),
    *({**EXPLICIT, "backoff": pauses} for pauses in ([], [-1], [SECOND])),
    {**EXPLICIT, "backoff": [SECOND], "ack_wait": 5 * SECOND},
    *({"sample_freq": text} for text in ("30", "30%", "x", "0", "101", "-1", "1.5", "%", "5 ", "5%%")),
]
FILTERS: list[Config] = [
    *({"filter_subject": subject} for subject in ("s.1", "zz", "a..b", "a b", "s.>", ">")),
    {"filter_subject": "s.1", "filter_subjects": ["s.2"]},
    *({"filter_subjects": list(some)} for some in (("s.1", "s.*"), ("s.1", "s.1"), ("s.1", ""), ("",))),
    *({"filter_subjects": list(some)} for some in (("a..b",), ("s.1",), ("zz", "yy"), ())),
]
STARTS: list[Config] = [
    {"deliver_policy": policy, "filter_subject": "s.1", **start}
    for policy in ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject")
    for start in (
        {},
        {"opt_start_seq": 5},
        {"opt_start_time": "2024-01-01T00:00:00Z"},
        {"opt_start_seq": 5, "opt_start_time": "2024-01-01T00:00:00Z"},
    )
]
OTHERS: list[Config] = [
    {"description": "d" * 4096},
    {"description": "d" * 4097},
    {"metadata": {"k": "v" * 131055}},
    {"metadata": {"k": "v" * 131056}},
    {"metadata": {"a": "b", "_nats.ver": "x"}},
    {"deliver_policy": "last_per_subject"},
    {"deliver_policy": "undefined"},
    {"replay_policy": "original"},
    {"rate_limit_bps": 1000},
    *({"max_waiting": count} for count in (-1, 0, 5)),
    {"flow_control": True},
    *({"idle_heartbeat": wait} for wait in (-1, 1, SECOND)),
    {"flow_control": True, "idle_heartbeat": SECOND},
    {"headers_only": True},
    *({name: value} for name in ("max_batch", "max_bytes") for value in (-1, 5)),
    *({"max_expires": wait} for wait in (-1, 1, SECOND)),
    *({"inactive_threshold": wait} for wait in (-1, SECOND)),
    *({"num_replicas": count} for count in (-1, 1, 2)),
    {"mem_storage": True},
    {"direct": True},
    {"deliver_group": "g"},
    *({"pause_until": when} for when in ("2030-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "x")),
    {"pause_until": "0001-01-01T00:00:00Z"},
]
OVERFLOW: Config = {"priority_policy": "overflow"}
GROUPS: list[Config] = [
    {"priority_groups": ["g"]},
    OVERFLOW,
    *(
        {"priority_policy": policy, "priority_groups": ["g"]}
        for policy in ("overflow", "pinned_client", "none")
    ),
    *({**OVERFLOW, "priority_groups": [name]} for name in ("", "a b", "x" * 16, "x" * 17, "+", "a/=_-9")),
    {**OVERFLOW, "priority_groups": ["g", "h"]},
    *(
        {"priority_policy": "pinned_client", "priority_groups": ["g"], "priority_timeout": wait}
        for wait in (-SECOND, SECOND)
    ),
    {"priority_timeout": SECOND},
]
EVERY = [*ACKS, *FILTERS, *STARTS, *OTHERS, *GROUPS]
ACKED_BY_FLOW: Config = {"deliver_subject": "dd", "ack_policy": "flow_control"}
PUSHED: list[Config] = [
    *({"deliver_subject": subject} for subject in ("a.*", "a b", "a..b", "s.x", ">", "S", "$JS.API.x")),
    ACKED_BY_FLOW,
    *(
        {**ACKED_BY_FLOW, "flow_control": True, "idle_heartbeat": SECOND, "max_ack_pending": n}
        for n in (-1, 5)
    ),
    *(
        {**ACKED_BY_FLOW, **more}
        for more in ({"ack_wait": SECOND}, {"max_deliver": 4}, {"backoff": [SECOND]})
    ),
    {"deliver_subject": "dd", "direct": True, "durable_name": "c"},
]
# Consumers of one work queue, one after the other; all stay until the list ends.
QUEUED: list[list[Config]] = [
    [{}, {"ack_policy": "all"}, {"ack_policy": "none", "deliver_subject": "dd"}],
    [{**EXPLICIT, "deliver_policy": "new"}],
    [
        EXPLICIT,
        EXPLICIT,
        *({**EXPLICIT, "filter_subject": each} for each in ("w.1", ">")),
        {**EXPLICIT, "filter_subjects": ["w.1", "w.2"]},
    ],
    [
        {**EXPLICIT, "filter_subject": "w.*"},
        *({**EXPLICIT, "filter_subject": each} for each in ("w.1", "w.>", "w.1.1", "zz")),
        {**EXPLICIT, "filter_subjects": ["w.1.2", "w.2"]},
        EXPLICIT,
    ],
]
DURABLE: Config = {"durable_name": "c", **EXPLICIT}
PUSH: Config = {**DURABLE, "deliver_subject": "dd"}
BY_SEQ: Config = {**DURABLE, "deliver_policy": "by_start_sequence", "opt_start_seq": 5}
BY_TIME: Config = {**DURABLE, "deliver_policy": "by_start_time", "opt_start_time": "2024-01-01T00:00:00Z"}
UPDATED: list[tuple[Config, Config]] = [
    (DURABLE, DURABLE),
    (DURABLE, EXPLICIT),
    (EXPLICIT, DURABLE),
    (EXPLICIT, EXPLICIT),
    *((DURABLE, {**DURABLE, "deliver_policy": each}) for each in ("new", "last")),
    (BY_SEQ, {**BY_SEQ, "opt_start_seq": 6}),
    (BY_TIME, {**BY_TIME, "opt_start_time": "2025-01-01T00:00:00Z"}),
    (BY_TIME, {**BY_TIME, "opt_start_time": "2024-01-01T00:00:00.0Z"}),
    *((DURABLE, {**DURABLE, "ack_policy": each}) for each in ("all", "none")),
    *(
        (DURABLE, {**DURABLE, name: value})
        for name, value in (
            ("description", "x"),
            ("ack_wait", SECOND),
            ("max_deliver", 5),
            ("backoff", [SECOND]),
            ("filter_subject", "s.1"),
            ("filter_subject", "zz"),
            ("filter_subjects", ["s.1", "s.2"]),
            ("replay_policy", "original"),
            ("sample_freq", "50"),
            ("sample_freq", "x"),
            ("max_waiting", 5),
            ("max_ack_pending", 5),
            ("headers_only", True),
            ("max_batch", 5),
            ("max_expires", SECOND),
            ("max_bytes", 5),
            ("deliver_subject", "dd"),
            ("inactive_threshold", SECOND),
            ("num_replicas", 1),
            ("num_replicas", 3),
            ("mem_storage", True),
            ("metadata", {"a": "b"}),
            ("pause_until", "2030-01-01T00:00:00Z"),
            ("sourcing", True),
            ("direct", True),
        )
    ),
    ({**DURABLE, "backoff": [SECOND]}, DURABLE),
    ({**DURABLE, "pause_until": "2030-01-01T00:00:00Z"}, DURABLE),
    (PUSH, DURABLE),
    *((PUSH, {**PUSH, name: value}) for name, value in (("rate_limit_bps", 5), ("deliver_subject", "ee"))),
    *((PUSH, {**PUSH, name: value}) for name, value in (("deliver_group", "g"), ("idle_heartbeat", SECOND))),
    ({**PUSH, "idle_heartbeat": SECOND}, {**PUSH, "idle_heartbeat": SECOND, "flow_control": True}),
    (DURABLE, {**DURABLE, **OVERFLOW, "priority_groups": ["g"]}),
    ({**DURABLE, **OVERFLOW, "priority_groups": ["g"]}, {**DURABLE, **OVERFLOW, "priority_groups": ["h"]}),
    ({**DURABLE, **OVERFLOW, "priority_groups": ["g"]}, DURABLE),
]
