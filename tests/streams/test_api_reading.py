"""How requests are read: tolerant where nats-server is, and an error names the field and what is wrong with it."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.streams.api.json_reader import (
    ITEMS_MAX,
    SEVERAL_VALUES_BYTES_MAX,
    is_empty,
    is_structured,
    read,
)
from headrace.streams.api.types import (
    CreateConsumerRequest,
    MsgGetRequest,
    StreamConfigRequest,
    StreamRestoreRequest,
)
from headrace.streams.errors import ERRORS, ApiError, api_error


def complaint(text: str | bytes, shape: type = StreamConfigRequest) -> str:
    with pytest.raises(ApiError) as raised:
        read(text.encode() if isinstance(text, str) else text, shape)
    assert raised.value.err_code == 10025
    return raised.value.description.removeprefix("invalid JSON: ")


def test_what_is_passed_over() -> None:
    assert read(b'{"NAME":"S","Max_Msgs":7}', StreamConfigRequest).max_msgs == 7
    assert (
        read(b'{"name":"S","subjects":null,"max_age":null,"mirror":null}', StreamConfigRequest).subjects == ()
    )
    assert read(b'{"name":"a","name":"b"}', StreamConfigRequest).name == "b"
    assert read(b'{"name":"a"} {"max_msgs":5}', StreamConfigRequest) == read(
        b'{"name":"a","max_msgs":5}', StreamConfigRequest
    )
    assert read(b"", StreamConfigRequest).name == ""
    assert read(b'{"seq":1,"bogus":2}', MsgGetRequest, strict=False).seq == 1
    assert read(b'{"seq":18446744073709551615}', MsgGetRequest).seq == (1 << 64) - 1
    assert (
        read(b'{"config":{"deliver_policy":"undefined"}}', CreateConsumerRequest).config.deliver_policy
        == "all"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name":"S","bogus":1}', 'request has an unknown field "bogus"'),
        ('{"name":"S","mirror":{"nam":1}}', 'mirror has an unknown field "nam"'),
        ('{"name":"S","sources":[{},{"nam":1}]}', 'sources[1] has an unknown field "nam"'),
        (f'{{"{"b" * 100}":1}}', f'request has an unknown field "{"b" * 39}…'),
        ('{"name":5}', "name: expected a string, got 5"),
        ('{"name":{"a":\n1}}', "name: expected a string, got an object"),
        ('{"name":"S","no_ack":"x"}', 'no_ack: expected true or false, got "x"'),
        ('{"name":"S","subjects":["a",1]}', "subjects[1]: expected a string, got 1"),
        ('{"name":"S","metadata":{"a":1}}', "a value of metadata: expected a string, got 1"),
        ('{"name":"S","metadata":[]}', "metadata: expected an object, got an array"),
        ('{"name":"S","discard":"x"}', 'discard: expected one of "new", "old", got "x"'),
        ('{"name":"S","discard":null}', 'discard: expected one of "new", "old", got null'),
        (
            '{"name":"S","max_msg_size":3000000000}',
            "max_msg_size: expected a number from -2147483648 to 2147483647, got 3000000000",
        ),
        (
            '{"name":"S","first_seq":-1}',
            "first_seq: expected a number from 0 to 18446744073709551615, got -1",
        ),
        ('{"name":"S","max_msgs":1.5}', "max_msgs: expected a whole number, got 1.5"),
        ('{"name":"S","max_msgs":1e3}', "max_msgs: expected a whole number, got 1e3"),
        (
            '{"name":"S","sources":[{"opt_start_time":"2020"}]}',
            'opt_start_time: expected a time such as 2006-01-02T15:04:05Z, got "2020"',
        ),
        (
            f'{{"name":"S","sources":[{",".join(["{}"] * (ITEMS_MAX + 1))}]}}',
            "sources has 1001 items, the maximum is 1000",
        ),
        ("[]", "request: expected an object, got an array"),
        ('{"name":', "Input data was truncated"),
        ('{"name":}', "invalid character (byte 8)"),
        ('{"name":"S"} x', "trailing characters (byte 14)"),
        ('{"name":"S"} NaN', "trailing characters (byte 14)"),
        ("{} " * SEVERAL_VALUES_BYTES_MAX, "trailing characters (byte 4)"),
        ('{"a":' * 20_000, "nested too deeply"),
    ],
)
def test_errors_name_the_field(text: str, said: str) -> None:
    assert complaint(text) == said


def test_empty_requests() -> None:
    assert all(map(is_empty, (b"", b"{}", b" {} ")))
    assert not any(map(is_empty, (b"null", b"[]", b"x", b'{"a":1}')))
    assert is_structured(b" {") and is_structured(b"[") and not is_structured(b"x")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@example(b'{"name":"\xff"}')
@example(b"[" * 20_000)
@example(b'{"a":' * 20_000)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for shape in (StreamConfigRequest, CreateConsumerRequest, MsgGetRequest):
        for plain in (False, True):
            try:
                read(data, shape, plain=plain)
            except ApiError as error:
                assert error.err_code == 10025


WORDS = st.sampled_from([*'{}[]:,"', "1", "-1.5e3", "true", "null", '"a"', " ", "\\", "x", "1e", "-"])


@given(st.lists(WORDS, max_size=12).map("".join), st.booleans())
def test_the_syntax_is_that_of_json(text: str, plain: bool) -> None:
    text = f'{{"state":{text}}}'  # a member that is kept as it is
    try:
        wanted = json.loads(text)["state"]
    except json.JSONDecodeError:
        with pytest.raises(ApiError):
            read(text.encode(), StreamRestoreRequest, plain=plain)
    else:
        assert json.loads(bytes(read(text.encode(), StreamRestoreRequest, plain=plain).state)) == wanted


@given(st.lists(st.sampled_from(['{"name":"a"}', "{}", "null", '{"max_msgs":5}', " ", "x"]), max_size=6))
def test_several_values_are_read_as_one(texts: list[str]) -> None:
    payload = "".join(texts).encode()
    if "x" in texts:
        assert complaint(payload)
        return
    found = read(payload, StreamConfigRequest)
    assert found.name == ("a" if '{"name":"a"}' in texts else "")
    assert found.max_msgs == (5 if '{"max_msgs":5}' in texts else -1)
    if len([each for each in texts if each != " "]) > 1:
        with pytest.raises(ApiError):
            read(payload, StreamConfigRequest, plain=True)


def test_the_table_of_errors() -> None:
    theirs = {name for name in ERRORS if not name.startswith("HR")}
    assert len(theirs) == 227 and max(ERRORS[name].err_code for name in theirs) < 30_000
    assert len(ERRORS) == len({error.err_code for error in ERRORS.values()})
    raised = api_error("JSStreamWrongLastSequenceErrF", seq=7)
    assert raised.as_json() == {"code": 400, "err_code": 10071, "description": "wrong last sequence: 7"}
