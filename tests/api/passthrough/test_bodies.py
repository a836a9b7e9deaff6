"""Reading and replacing the model in JSON bodies and forms."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from app.api.passthrough.bodies import JSONBody, ModelReader, form_boundary
from app.core.access import UNRESTRICTED
from app.core.bounded_json import LARGE
from app.errors import InvalidRequest


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


MODEL = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm1\r\n'
FILE = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
    b"Content-Type: audio/wav\r\nContent-Length: 5\r\n\r\nhello\r\n"
)
END = b"--b--\r\n"


def read(form: bytes, *cuts: int) -> ModelReader:
    """Parse a form in pieces."""
    reader = ModelReader(b"b", UNRESTRICTED, limit=len(form))
    for start, end in pairwise([0, *sorted(cuts), len(form)]):
        if start < end:
            reader.parse(form[start:end])
    return reader


@pytest.mark.parametrize("end", [END, b"--b--"])
@pytest.mark.parametrize("parts", [(MODEL, FILE), (FILE, MODEL)])
def test_model_is_found_wherever_a_read_ends(parts: tuple[bytes, ...], end: bytes) -> None:
    form = b"".join(parts) + end
    for cut in range(len(form)):
        reader = read(form, cut, cut + 1)
        assert (reader.ended, reader.complete, bytes(reader.value)) == (True, True, b"m1")
        assert reader.start == form.index(b"m1")


@pytest.mark.parametrize(
    "form",
    [
        b"\r\n" + MODEL + END,
        MODEL + END + b"x",
        MODEL + END + b"\r\n",
        MODEL + END + MODEL + END,
        MODEL + FILE.replace(b"hello", b"--b\r\n") + END,
        MODEL + FILE.replace(b"hello", b"x--b ") + END,
        MODEL + FILE.replace(b"audio/wav", b"a--b") + END,
        MODEL + FILE.replace(b"Content-Type: audio/wav", b"X--b: 1") + END,
        MODEL + FILE.replace(b"audio/wav", b"") + END,
        MODEL + FILE.replace(b"hello", b"hell") + END,
        MODEL + MODEL + END,
    ],
    ids=[
        "line before",
        "data after",
        "line after",
        "form after",
        "value begins with a delimiter",
        "delimiter in a value",
        "delimiter in a header",
        "delimiter in a header's name",
        "empty header",
        "shorter than its length",
        "two models",
    ],
)
def test_ambiguous_form_is_refused_wherever_a_read_ends(form: bytes) -> None:
    for cut in range(len(form)):
        with pytest.raises(InvalidRequest):
            read(form, cut, cut + 1)


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=b", b"b"),
        (b'Multipart/Form-Data; charset=utf-8; boundary="a:b"', b"a:b"),
        (b"application/json", None),
    ],
)
def test_boundary_is_read_from_the_content_type(content_type: bytes, boundary: bytes | None) -> None:
    assert form_boundary([content_type]) == boundary


@pytest.mark.parametrize("end", [b"; boundary=c", b"; x=y", b", application/json", b'"'])
def test_content_type_with_more_than_a_boundary_is_refused(end: bytes) -> None:
    with pytest.raises(InvalidRequest, match="must be 'multipart/form-data; boundary"):
        form_boundary([b"multipart/form-data; boundary=b" + end])
