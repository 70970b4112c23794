"""How requests are read: tolerant where nats-server is, and every text that is no request is told what is wrong with it."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.streams.api.json_reader import is_empty, is_structured, read
from headrace.streams.api.json_syntax import Malformed, split_values
from headrace.streams.api.types import CreateConsumerRequest, MsgGetRequest, StreamConfigRequest
from headrace.streams.errors import ERRORS, ApiError, api_error


def complaint(text: str | bytes, shape: type = StreamConfigRequest) -> str:
    with pytest.raises(ApiError) as told:
        read(text.encode() if isinstance(text, str) else text, shape)
    assert told.value.err_code == 10025
    return told.value.description.removeprefix("invalid JSON: ")


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
        ('{"name":"S","bogus":1}', 'json: unknown field "bogus"'),
        ('{"name":"S","mirror":{"nam":1}}', 'json: unknown field "nam"'),
        ('{"name":"S","retention":"x"}', 'can not unmarshal "\\"x\\""'),
        ('{"name":"S","max_msg_size":3000000000}', "number 3000000000 into Go struct field"),
        ('{"name":"S","max_msgs":1.5}', "cannot unmarshal number 1.5 into"),
        ('{"name":"S","sources":[{"opt_start_time":5}]}', "Time.UnmarshalJSON: input is not a JSON string"),
        ("[]", "json: cannot unmarshal array into Go value of type server.StreamConfigRequest"),
        ('{"name":', "unexpected EOF"),
        ('{"name":}', "invalid character '}' looking for beginning of value at offset 9"),
        ("{'a':1}", r"invalid character '\'' looking for beginning of object key string at offset 2"),
    ],
)
def test_what_is_wrong_is_told(text: str, said: str) -> None:
    assert said in complaint(text)


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


@given(st.lists(WORDS, max_size=12).map("".join))
def test_the_scanner_agrees_with_json(text: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        sound = False
    else:
        sound = True
    try:
        values = split_values(text.encode())
    except Malformed:
        values = []
    if sound:
        assert [json.loads(each) for each in values] == [json.loads(text)]
    else:
        assert len(values) != 1


def test_the_table_of_errors() -> None:
    theirs = {name for name in ERRORS if not name.startswith("HR")}
    assert len(theirs) == 227 and max(ERRORS[name].err_code for name in theirs) < 30_000
    assert len(ERRORS) == len({error.err_code for error in ERRORS.values()})
    told = api_error("JSStreamWrongLastSequenceErrF", seq=7)
    assert told.as_json() == {"code": 400, "err_code": 10071, "description": "wrong last sequence: 7"}
