"""Forms as they arrive: the model is found, and ambiguous forms are refused, wherever a read ends."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.api.passthrough.form_body import ModelField, form_boundary
from app.core.access import UNRESTRICTED
from app.errors import InvalidRequest

MODEL = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm1\r\n'
FILE = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
    b"Content-Type: audio/wav\r\nContent-Length: 5\r\n\r\nhello\r\n"
)
END = b"--b--\r\n"


def read(form: bytes, *cuts: int) -> ModelField:
    """Parse a form in pieces."""
    field = ModelField(b"b", UNRESTRICTED)
    for start, end in pairwise([0, *sorted(cuts), len(form)]):
        if start < end:
            field.parse(form[start:end])
    return field


@pytest.mark.parametrize("end", [END, b"--b--"])
@pytest.mark.parametrize("parts", [(MODEL, FILE), (FILE, MODEL)])
def test_model_is_found_wherever_a_read_ends(parts: tuple[bytes, ...], end: bytes) -> None:
    form = b"".join(parts) + end
    for cut in range(len(form)):
        field = read(form, cut, cut + 1)
        assert (field.ended, field.complete, bytes(field.value)) == (True, True, b"m1")
        assert field.start == form.index(b"m1")


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
