"""Requests to every endpoint, sound and odd, for the comparison with a real server: (endpoint, body).

Standing: stream S (s.>, allow_direct) with messages 1 to 7 on s.1, s.2, s.0 …, number 4 removed, odd ones with a header;
consumer c on it; streams T and U.
"""

from __future__ import annotations

Case = tuple[str, str]

ODD = (
    "",
    "{}",
    "null",
    "x",
    '{"bogus":1}',
    '{"offset":"x"}',
    "[]",
    '{"seq":"x"}',
    '{"name":5}',
    r'{"name":"a\ud800b\udc00\ud83d\ude00\\ud800"}',
    "{",
    '{"a":',
)
EACH = (
    *("STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.S", "STREAM.INFO.Z", "STREAM.PURGE.Z", "STREAM.DELETE.Z"),
    *("STREAM.MSG.GET.S", "STREAM.MSG.GET.Z", "STREAM.MSG.DELETE.Z", "STREAM.SNAPSHOT.Z", "STREAM.UPDATE.S"),
    *("CONSUMER.CREATE.S", "CONSUMER.CREATE.S.q", "CONSUMER.DURABLE.CREATE.S.q", "CONSUMER.NAMES.S"),
    *("CONSUMER.NAMES.Z", "CONSUMER.LIST.S", "CONSUMER.LIST.Z", "CONSUMER.INFO.S.c", "CONSUMER.INFO.S.zz"),
    *("CONSUMER.INFO.Z.c", "CONSUMER.DELETE.S.zz", "CONSUMER.PAUSE.S.zz", "CONSUMER.UNPIN.S.zz"),
)
CLUSTER = (
    *("STREAM.PEER.REMOVE.S", "STREAM.PEER.EVACUATE.S", "STREAM.LEADER.STEPDOWN.S", "STREAM.CANCEL_MOVE.S"),
    *("CONSUMER.LEADER.STEPDOWN.S.c", "CONSUMER.PEER.REMOVE.S.c", "CONSUMER.PEER.EVACUATE.S.c"),
)
# Neither an answer nor "no responders".
SILENT = (
    *("META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE.$G", "META.RESCUE", "STREAM.TEMPLATE.NAMES"),
    *("STREAM.CREATE", "STREAM.CREATE.a.b", "CONSUMER.INFO.S", "CONSUMER.INFO.S.c.d", "STREAM.MOVE.S"),
    *("STREAM.NAMES.x", "CONSUMER.DURABLE.CREATE.S", "CONSUMER.RESET.S.zz", "CONSUMER.RESET.Z.c"),
)
# "No responders": nobody listens.
NOBODY = ("CONSUMER.MSG.NEXT.S.zz", "CONSUMER.MSG.NEXT.Z.c", "DIRECT.GET.Z", "DIRECT.GET.T")
PAGES: list[Case] = [
    *(("STREAM.NAMES", body) for body in ('{"offset":-5}', '{"offset":1}', '{"offset":50}', '{"limit":5}')),
    *(("STREAM.NAMES", f'{{"subject":"{each}"}}') for each in ("s.1", "zz", "a..b", ">", "*.1", "s.*.x")),
    *(("STREAM.LIST", body) for body in ('{"offset":50}', '{"subject":"zz"}', '{"subject":"s.1"}')),
    *(("CONSUMER.NAMES.S", body) for body in ('{"offset":5}', '{"offset":-1}')),
    *(
        ("STREAM.INFO.S", body)
        for body in ('{"offset":1}', '{"deleted_details":true}', '{"subjects_filter":""}')
    ),
    *(("STREAM.INFO.S", f'{{"subjects_filter":"{each}"}}') for each in (">", "s.1", "zz", "a..b")),
    *(("STREAM.INFO.S", f'{{"subjects_filter":">","offset":{offset}}}') for offset in (-1, 1, 10)),
]
MESSAGES: list[Case] = [
    ("STREAM.MSG.GET.S", body)
    for body in (
        *('{"seq":1}', '{"seq":2}', '{"seq":4}', '{"seq":99}', '{"seq":0}', '{"seq":1.5}', '{"seq":-1}'),
        *(
            '{"last_by_subj":"s.1"}',
            '{"last_by_subj":"s.*"}',
            '{"last_by_subj":"zz"}',
            '{"last_by_subj":"a..b"}',
        ),
        *('{"next_by_subj":"s.1"}', '{"next_by_subj":"s.1","seq":2}', '{"next_by_subj":"s.1","seq":99}'),
        *('{"next_by_subj":">"}', '{"next_by_subj":"zz","seq":1}', '{"next_by_subj":""}', '{"batch":5}'),
        *(
            '{"seq":1,"last_by_subj":"s.1"}',
            '{"last_by_subj":"s.1","next_by_subj":"s.1"}',
            '{"seq":1,"batch":5}',
        ),
        *('{"multi_last":["s.1"]}', '{"start_time":"2020-01-01T00:00:00Z"}', '{"up_to_seq":3}'),
        *('{"start_time":"2020-01-01T00:00:00Z","next_by_subj":"s.2"}', '{"seq":1,"no_hdr":true}'),
        *('{"start_time":"2040-01-01T00:00:00Z","next_by_subj":"s.1"}', '{"seq":1,"max_bytes":5}'),
        *('{"start_time":"2020-01-01T00:00:00Z","seq":3}', '{"seq":5,"up_to_time":"2030-01-01T00:00:00Z"}'),
    )
]
DIRECT: list[Case] = [
    *(
        ("DIRECT.GET.S", body)
        for body in (
            *("", "{}", "x", '{"seq":1}', '{"seq":2}', '{"seq":4}', '{"seq":99}', '{"seq":0}', '{"bogus":1}'),
            *('{"last_by_subj":"s.1"}', '{"last_by_subj":"zz"}', '{"next_by_subj":"s.1","seq":2}'),
            *('{"next_by_subj":"zz"}', '{"seq":1,"last_by_subj":"s.1"}', '{"seq":1,"no_hdr":true}'),
            *('{"last_by_subj":"s.1","next_by_subj":"s.1"}', '{"seq":1,"bogus":1}', '{"start_time":"x"}'),
            *(
                '{"start_time":"2020-01-01T00:00:00Z"}',
                '{"start_time":"2040-01-01T00:00:00Z"}',
                '{"batch":2}',
            ),
            *('{"seq":1,"batch":2}', '{"seq":1,"batch":100}', '{"batch":3,"next_by_subj":"s.1"}'),
            *(
                '{"batch":3,"next_by_subj":"zz"}',
                '{"seq":99,"batch":3}',
                '{"batch":0,"seq":1}',
                '{"batch":-1,"seq":1}',
            ),
            *(
                '{"batch":3,"start_time":"2020-01-01T00:00:00Z"}',
                '{"batch":3,"start_time":"2040-01-01T00:00:00Z"}',
            ),
            *('{"batch":3,"start_time":"2020-01-01T00:00:00Z","seq":2}', '{"batch":3,"last_by_subj":"s.1"}'),
            *(f'{{"seq":1,"batch":10,"max_bytes":{size}}}' for size in (1, 26, 27, 30, 34, 35, 60, 100)),
            *(
                '{"multi_last":["s.1","s.2"]}',
                '{"multi_last":["s.*"]}',
                '{"multi_last":["zz"]}',
                '{"multi_last":[]}',
            ),
            *('{"multi_last":["s.*"],"batch":1}', '{"multi_last":["s.*"],"up_to_seq":3}'),
            *('{"multi_last":["s.*"],"up_to_seq":100}', '{"multi_last":["s.*"],"batch":-1}'),
            *('{"multi_last":["s.*"],"up_to_time":"2020-01-01T00:00:00Z"}', '{"multi_last":["s.*"],"seq":3}'),
            *('{"multi_last":["s.*"],"up_to_time":"2040-01-01T00:00:00Z"}', '{"up_to_seq":5}'),
            *(
                '{"multi_last":["s.*"],"up_to_time":"2040-01-01T00:00:00Z","up_to_seq":3}',
                '{"up_to_seq":5,"seq":1}',
            ),
            *('{"multi_last":["s.*"],"last_by_subj":"s.1"}', '{"multi_last":["s.*"],"max_bytes":30}'),
            *('{"multi_last":["s.1","s.*"]}', '{"multi_last":["a..b"]}', '{"seq":1,"batch":2,"no_hdr":true}'),
        )
    ),
    *(("DIRECT.GET.S.s.1", body) for body in ("", "x", '{"seq":1}', '{"no_hdr":true}')),
    *((f"DIRECT.GET.S.{subject}", "") for subject in ("zz", "s.*")),
]
# In this order: each changes the streams.
CHANGES: list[Case] = [
    ("STREAM.MSG.DELETE.S", ""),
    ("STREAM.MSG.DELETE.S", "null"),
    ("STREAM.MSG.DELETE.S", '{"seq":100}'),
    ("STREAM.MSG.DELETE.S", '{"seq":4}'),
    ("STREAM.MSG.DELETE.S", '{"seq":6}'),
    ("STREAM.MSG.DELETE.S", '{"seq":2,"no_erase":true}'),
    ("STREAM.INFO.S", '{"deleted_details":true}'),
    ("STREAM.PURGE.S", '{"seq":1,"keep":1}'),
    ("STREAM.PURGE.S", '{"filter":"a..b"}'),
    ("STREAM.PURGE.S", '{"filter":"s.0"}'),
    ("STREAM.PURGE.S", '{"keep":2}'),
    ("STREAM.INFO.S", '{"deleted_details":true}'),
    ("STREAM.PURGE.S", '{"seq":100}'),
    ("STREAM.INFO.S", ""),
    ("STREAM.PURGE.S", "x"),
    ("CONSUMER.PAUSE.S.c", ""),
    ("CONSUMER.PAUSE.S.c", '{"pause_until":"2020-01-01T00:00:00Z"}'),
    ("CONSUMER.PAUSE.S.c", '{"pause_until":5}'),
    ("CONSUMER.PAUSE.S.c", '{"pause_until":"x"}'),
    ("CONSUMER.UNPIN.S.c", '{"group":"g"}'),
    ("CONSUMER.UNPIN.S.c", '{"group":""}'),
    ("CONSUMER.INFO.S.c", ""),
    ("CONSUMER.DELETE.S.c", "{}"),
    ("CONSUMER.DELETE.S.c", ""),
    ("STREAM.UPDATE.T", '{"name":"T","deny_delete":true,"deny_purge":true}'),
    ("STREAM.MSG.DELETE.T", '{"seq":1}'),
    ("STREAM.PURGE.T", ""),
    ("STREAM.UPDATE.U", '{"name":"U","sealed":true}'),
    ("STREAM.MSG.DELETE.U", '{"seq":1}'),
    ("STREAM.PURGE.U", ""),
    ("STREAM.DELETE.U", ""),
    ("STREAM.DELETE.U", ""),
    ("STREAM.NAMES", ""),
    ("INFO", ""),
]
LEVELS = ("6", "5", "x", "", "-1")
