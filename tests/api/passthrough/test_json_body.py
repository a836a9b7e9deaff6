"""The model in a forwarded JSON body: its position and its replacement."""

from __future__ import annotations

import json

import pytest

from app.api.passthrough.json_body import JSONBody
from app.core.bounded_json import LARGE


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"model":"m"}', b'"m"'),
        (b'{ "a": [1, {"b": 2}],\n"model" :\t null , "z": 1.50}', b"null"),
        (rb'{"say": "the \"model\": \u0041", "model": "a \"b\" \\"}', rb'"a \"b\" \\"'),
        (b'{"inner": {"model": "x"}, "model": "m", "last": "model"}', b'"m"'),
        (rb'{"inner": {"model": "x"}, "mo\u0064el": "m"}', b'"m"'),
        (b'{"text": "%b", "model": "m"}' % (b"x" * LARGE), b'"m"'),
        (b'{"text": "%b", "inner": {"model": 1}, "model": "m"}' % (b"x" * LARGE), b'"m"'),
    ],
)
async def test_model_of_a_body_is_replaced_as_often_as_asked_and_no_other_byte(data: bytes, value: bytes) -> None:
    body = JSONBody.parse(data)
    before, _, after = data.rpartition(value)
    for model in ('much longer, with "quotes"', "é", ""):
        body = body.with_model(model)
        assert body.content() == before + json.dumps(model).encode() + after
        assert body.length == len(body.content())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"{}", b'{"model":"b"}'),
        (b' { "a": "model"}', b' {"model":"b", "a": "model"}'),
        (b'{"a": {"model": "x"}}', b'{"model":"b","a": {"model": "x"}}'),
    ],
)
async def test_body_without_a_model_gets_one_as_its_first_field(data: bytes, expected: bytes) -> None:
    body = (JSONBody.parse(data)).with_model("a").with_model("b")
    assert body.content() == expected
