"""Files: text is sent as text with its name; unsupported files are refused with their position."""

from __future__ import annotations

import base64
import binascii
from typing import Any
from unittest import mock
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.request import files as input_files
from tests.support.conversation import ask, call, messages, output, refused, user

PDF = b"%PDF-1.4 \x00"
PICTURE = b"\x89PNG\r\n\x1a\n\x00\x00"


def file(content: bytes, name: str | None = "notes.md", media_type: str | None = None, **fields: Any) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    return {
        "type": "input_file",
        "filename": name,
        "file_data": f"data:{media_type};base64,{data}" if media_type else data,
        **fields,
    }


@pytest.mark.parametrize("files", ["pass", "error", "drop"])
@pytest.mark.parametrize(
    ("part", "text"),
    [
        (file(b"# Notes\n\nOne.\n"), '<file name="notes.md">\n# Notes\n\nOne.\n</file>'),
        (file(b"a,b\n1,2", "a.csv", "text/csv"), '<file name="a.csv">\na,b\n1,2\n</file>'),
        (file(b'{"a": 1}', "a.json", "application/json"), '<file name="a.json">\n{"a": 1}\n</file>'),
        (file("def f(): return 'é'".encode(), "a.py", "application/octet-stream"), None),
        (file(b"\xef\xbb\xbfHi", "a.txt", "text/plain"), '<file name="a.txt">\nHi\n</file>'),
        (file("Grüße".encode("utf-16"), "a.txt"), '<file name="a.txt">\nGrüße\n</file>'),
        (
            file("Grüße".encode("latin-1"), "a.txt", "text/plain;charset=latin1"),
            '<file name="a.txt">\nGrüße\n</file>',
        ),
        (file("Grüße".encode("cp1252"), "a.txt", "text/plain"), '<file name="a.txt">\nGrüße\n</file>'),
        (file(b"Hi", 'a"b<c>.txt'), '<file name="a&quot;b&lt;c&gt;.txt">\nHi\n</file>'),
        (file(b"Hi", None), "<file>\nHi\n</file>"),
        ({**file(b""), "file_data": "data:text/plain,a%20b"}, '<file name="notes.md">\na b\n</file>'),
        ({**file(b""), "file_data": "_-8~"}, ...),
    ],
)
def test_text_file_is_sent_as_text_with_its_name(part: Any, text: Any, files: str) -> None:
    if text is ...:  # invalid base64 only fails with file support
        assert refused(user([part]), content__files="error").param == "input[0].content[0].file_data"
        return
    chat = ask(user([{"type": "input_text", "text": "Look:"}, part]), content__files=files)
    expected = text or "<file name=\"a.py\">\ndef f(): return 'é'\n</file>"
    assert chat.body["messages"] == [user(f"Look:\n{expected}")]
    assert chat.warnings == ()


@pytest.mark.parametrize(
    ("part", "param"),
    [
        (file(PICTURE, "a.png", "image/png"), "file_data"),
        (file(PICTURE, "a.txt"), "file_data"),
        (file(PDF), "file_data"),
        ({"type": "input_file", "file_url": "https://example.com/a.txt"}, "file_url"),
        ({"type": "input_file", "file_id": "file-1"}, "file_id"),
    ],
)
def test_binary_file_for_a_backend_without_files_is_refused(part: Any, param: str) -> None:
    error = refused(user("Hi"), user([{"type": "input_text", "text": "Look:"}, part]), content__files="error")
    assert error.param == f"input[1].content[1].{param}"
    assert "supports only text files" in error.message


def test_binary_file_for_a_backend_with_files_is_sent_as_a_file() -> None:
    for part in (file(PDF, "a.pdf", "application/pdf"), file(PICTURE)):
        sent = {"type": "file", "file": {"filename": part["filename"], "file_data": part["file_data"]}}
        assert messages(user([part])) == [user([sent])]


def test_file_in_a_tools_output_is_sent_as_text() -> None:
    sent = messages(user("Hi"), call("a"), output("a", [file(b"One.")]), content__files="error")
    assert sent[-1]["content"] == '<file name="notes.md">\nOne.\n</file>'


written = st.binary(max_size=40).map(lambda content: base64.b64encode(content).decode())
spaced = st.lists(st.one_of(written, st.text("AZaz09+/-_= \n\u00e9", max_size=6))).map("".join)


@given(spaced, st.booleans())
def test_base64_in_pieces_is_decoded_the_same(text: str, in_url: bool) -> None:
    expected: bytes | None
    joined = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        expected = binascii.a2b_base64(joined + "=" * (-len(joined) % 4), strict_mode=True)
    except ValueError:
        expected = None
    with mock.patch.object(input_files, "_PIECE", 8):
        assert input_files.file_bytes({"file_data": f"data:text/plain;base64,{text}" if in_url else text}) == expected


@given(st.text("%2aé \n"))
def test_percent_encoding_in_pieces_is_decoded_the_same(text: str) -> None:
    with mock.patch.object(input_files, "_PIECE", 4):
        assert input_files.file_bytes({"file_data": f"data:,{text}"}) == unquote_to_bytes(text.encode())
