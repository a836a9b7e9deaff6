"""Text extraction from many file types, errors for unreadable files, and chunks."""

from __future__ import annotations

import io
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.usage import estimate
from app.tools.files import parsing
from app.tools.files.parsing import UnreadableFile, chunks, read_text
from tests.tools.files.documents import docx, pdf

HTML = b"""<!DOCTYPE html><html><head><title>A  page</title><style>p { color: red }</style></head>
<body><script>alert(1)</script><h1>Head</h1><p>One <b>bold</b> word,
and <i>more</i>.<p>Two<ul><li>a</li><li>b</li></ul><pre>x
  y</pre><!-- hidden --><table><tr><td>1</td><td>2</td></tr></table></body></html>"""


def read(tmp_path: Path, name: str, content: bytes) -> str:
    path = tmp_path / "source"
    path.write_bytes(content)
    return read_text(path, name)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_plain_text_is_unchanged(tmp_path: Path) -> None:
    assert read(tmp_path, "a.md", "# Head\r\n\r\nnaïve\f…".encode()) == "# Head\n\nnaïve\n\n…"
    assert read(tmp_path, "a.py", b"def f():\n    return 1\n") == "def f():\n    return 1\n"
    assert read(tmp_path, "Makefile", b"all:\n\tmake\n") == "all:\n\tmake\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_text_in_old_encodings_is_decoded(tmp_path: Path, encoding: str) -> None:
    assert read(tmp_path, "a.txt", "Crème brûlée".encode(encoding)) == "Crème brûlée"


def test_html_gives_what_a_reader_sees(tmp_path: Path) -> None:
    text = read(tmp_path, "a.html", HTML)
    assert lines(text) == ["A page", "Head", "One bold word, and more.", "Two", "a", "b", "x", "y", "1", "2"]
    assert read(tmp_path, "page", HTML) == text
    assert "Crème" in read(tmp_path, "a.htm", "<p>Crème</p>".encode())
    deep = b"<div>" * 5000 + b"deep" + b"</div>" * 5000
    assert lines(read(tmp_path, "a.html", b"<p>first</p>" + deep))[0] == "first"


def test_pdf_gives_its_pages(tmp_path: Path) -> None:
    assert lines(read(tmp_path, "a.pdf", pdf("First page.", "Second page."))) == ["First page.", "Second page."]
    assert lines(read(tmp_path, "unnamed", pdf("By its content."))) == ["By its content."]


def test_docx_gives_its_paragraphs_and_tables(tmp_path: Path) -> None:
    content = docx("First.", "Second.", table=[["a", "b"], ["1", "2"]])
    assert lines(read(tmp_path, "a.docx", content)) == ["First.", "Second.", "a | b", "1 | 2"]


def test_csv_rows_have_the_names_of_their_columns(tmp_path: Path) -> None:
    text = read(tmp_path, "a.csv", b'name,city\nAda,"London, UK"\nBob,\n\nEve,Rome,x\n')
    assert lines(text) == ["name: Ada; city: London, UK", "name: Bob", "name: Eve; city: Rome; x"]
    assert lines(read(tmp_path, "a.tsv", b"a\tb\n1\t2\n")) == ["a: 1; b: 2"]
    assert lines(read(tmp_path, "a.csv", b"a;b\n1;2\n3;4\n")) == ["a: 1; b: 2", "a: 3; b: 4"]
    assert read(tmp_path, "a.csv", b"only one line") == "only one line"
    assert read(tmp_path, "a.csv", b"a,b") == "a,b"


def test_json_is_written_in_lines(tmp_path: Path) -> None:
    assert read(tmp_path, "a.json", b'{"a":["\\u00e9",1]}') == '{\n "a": [\n  "é",\n  1\n ]\n}'
    assert read(tmp_path, "a.json", b"{no json") == "{no json"
    assert read(tmp_path, "a.json", b"[" * 100_000) == "[" * 100_000
    assert read(tmp_path, "a.jsonl", b'{"a": 1}\n{"a": 2}\n') == '{"a": 1}\n{"a": 2}\n'


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9, "unsupported_file", "cannot be read as text"),
        ("a.pdf", b"no pdf", "invalid_file", "could not be read as PDF"),
        ("a.pdf", pdf("x")[:200], "invalid_file", "PDF"),
        ("a.pdf", pdf(""), "invalid_file", "no text"),
        ("a.docx", b"PK\x03\x04 no zip", "invalid_file", "could not be read as DOCX"),
        ("a.txt", b" \n ", "invalid_file", "no text"),
        ("a.html", b"<script>x</script>", "invalid_file", "no text"),
    ],
)
def test_file_that_cannot_be_read_says_why(tmp_path: Path, name: str, content: bytes, code: str, words: str) -> None:
    with pytest.raises(UnreadableFile) as unreadable:
        read(tmp_path, name, content)
    assert unreadable.value.code == code
    assert words in unreadable.value.message


def test_docx_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("word/document.xml", bytes(300 * 1024 * 1024))
    with pytest.raises(UnreadableFile, match="too large") as unreadable:
        read(tmp_path, "a.docx", out.getvalue())
    assert unreadable.value.code == "invalid_file"


def test_text_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "MAX_CHARACTERS", 100)
    assert len(read(tmp_path, "a.txt", b"x" * 100)) == 100
    with pytest.raises(UnreadableFile, match="5,000,000 tokens"):
        read(tmp_path, "a.txt", b"x" * 101)


def test_short_plain_texts_alone_are_simple(tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"some text")
    assert parsing.is_simple(path, "a.md")
    assert not parsing.is_simple(path, "a.pdf")
    path.write_bytes(pdf("x"))
    assert not parsing.is_simple(path, "a.txt")
    path.write_bytes(b"x" * (parsing.MAX_SIMPLE + 1))
    assert not parsing.is_simple(path, "a.md")


WORDS = st.lists(
    st.sampled_from(["word", "a", "Another", "end.", "what?", "\n", "\n\n", "漢字。", "1234"]), max_size=400
)


def test_short_text_is_one_chunk() -> None:
    assert [*chunks("Hello.\n\nWorld.", 100, 50)] == ["Hello.\n\nWorld."]
    assert [*chunks("  \n ", 100, 50)] == []
    assert [*chunks("", 100, 50)] == []


def test_chunk_begins_with_the_end_of_the_one_before() -> None:
    text = " ".join(f"This is sentence number {number}." for number in range(100))
    made = [*chunks(text, 100, 40)]
    assert len(made) > 5
    for one, other in pairwise(made):
        assert other.split(".")[0] in one
        assert one[0] == "T" and one[-1] == "."


def test_chunks_without_overlap_repeat_nothing() -> None:
    text = " ".join(f"This is sentence number {number}." for number in range(100))
    assert " ".join(chunks(text, 100, 0)) == text


def test_chunk_ends_with_a_paragraph_where_it_can() -> None:
    paragraph = "Some words stand here. " * 8
    made = [*chunks("\n\n".join([paragraph] * 12), 100, 0)]
    assert all(chunk.endswith("here.") and chunk.startswith("Some") for chunk in made)


@pytest.mark.parametrize("text", ["x" * 50_000, "漢" * 50_000, "." * 50_000, "a.b" * 20_000, "word " * 20_000])
def test_text_without_ends_is_cut(text: str) -> None:
    made = [*chunks(text, 100, 50)]
    assert max(map(estimate, made)) <= 100
    assert len(made) < 5000


@given(WORDS, st.integers(100, 300), st.integers(0, 50))
def test_chunks_have_all_of_the_text_in_order(words: list[str], max_tokens: int, overlap: int) -> None:
    text = " ".join(words)
    made = [*chunks(text, max_tokens, overlap)]
    search_start = 0
    covered = 0
    for chunk in made:
        assert estimate(chunk) <= max_tokens
        start = text.find(chunk, search_start)
        assert start >= 0
        assert not text[covered:start].strip()  # nothing was left out in between
        search_start, covered = start + 1, max(covered, start + len(chunk))
    assert not text[covered:].strip()
