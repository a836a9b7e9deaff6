"""Forms, parsed as they arrive."""

from __future__ import annotations

import pytest

from app.api.multipart import MAX_PARTS, FormReader
from app.errors import InvalidRequest

FIELD = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n\r\n'
END = b"--b--\r\n"


def test_form_in_pieces_yields_chunks_with_their_parts() -> None:
    reader, form = FormReader(b"b"), FIELD + FILE + END
    chunks = []
    for start in range(0, len(form), 7):
        reader.parse(form[start : start + 7])
        chunks += reader.chunks
    assert reader.ended
    assert [chunk for chunk in chunks if not chunk[1]] == [chunks[0], chunks[-1]]
    (field, _), (file, _) = chunks[0], chunks[-1]
    assert (field.name, field.filename, file.name, file.filename) == ("purpose", None, "file", "a.txt")
    assert b"".join(data for part, data in chunks if part is field) == b"batch"


@pytest.mark.parametrize(
    "form",
    [
        FIELD * (MAX_PARTS + 1),
        FIELD.replace(b'name="purpose"', b'name="a"; name="b"'),
        FIELD.replace(b'name="purpose"', b"name*=utf-8''a"),
        FIELD.replace(b"purpose", rb"pur\\pose"),
        FIELD.replace(b"Content-Disposition", b"X-Other"),
    ],
    ids=["too many parts", "two names", "encoded name", "backslash", "no disposition"],
)
def test_form_with_an_ambiguous_part_is_refused(form: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not valid multipart"):
        FormReader(b"b").parse(form + END)
