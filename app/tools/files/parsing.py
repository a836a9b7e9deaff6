"""
Text extraction from files (plain text, Markdown, code, HTML, PDF, DOCX, JSON and CSV), and chunks of the text.

Parsers run in worker processes (`app.runtime.worker_processes`). Only short plain text is read in this process.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from app.core.usage import estimate
from app.runtime.document_text import EncryptedPDF, html_title_and_text, pdf_pages

if TYPE_CHECKING:
    from app.tools.files.vector_stores.records import ErrorCode

MAX_CHARACTERS = 20_000_000  # per file, about 5 million tokens
MAX_TEXT_BYTES = 80_000_000  # before decoding
MAX_SIMPLE = 256 * 1024  # bytes
MAX_UNPACKED = 256 * 1024 * 1024  # bytes of an unzipped DOCX
MAX_MEMORY = 3 * 1024**3  # bytes of address space


class UnreadableFile(Exception):
    """`code` and `message` are shown in the API."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


def is_simple(path: Path, filename: str) -> bool:
    """Return whether a file is short plain text."""
    return path.stat().st_size <= MAX_SIMPLE and _reader(path, filename) is _text


def extract(source: str, target: str, filename: str, max_tokens: int, overlap: int) -> None:
    """Write a file's text chunks to `target`, one JSON string per line. Raises `UnreadableFile`."""
    with open(target, "wb") as out:
        for chunk in chunks(read_text(Path(source), filename), max_tokens, overlap):
            out.write(orjson.dumps(chunk) + b"\n")


def read_text(path: Path, filename: str) -> str:
    """Read a file; its suffix determines the type. Raises `UnreadableFile`."""
    suffix = Path(filename.lower()).suffix
    read = _reader(path, filename)
    parts: list[str] = []
    size = 0
    try:
        for part in read(path):
            size += len(part)
            if size > MAX_CHARACTERS:
                raise UnreadableFile("invalid_file", "The file has more than 5,000,000 tokens of text.")
            parts.append(part)
    except (UnreadableFile, MemoryError):
        raise
    except Exception as error:
        kind = suffix.removeprefix(".").upper() or "TEXT"
        raise UnreadableFile("invalid_file", f"The file could not be read as {kind}: {type(error).__name__}.") from None
    # Lone surrogates cannot be stored, and SQLite text ends at a NUL.
    text = "".join(parts).encode("utf-8", "replace").decode().replace("\0", "")
    if not text.strip():
        raise UnreadableFile("invalid_file", "The file contains no text.")
    return text


def _reader(path: Path, filename: str) -> Callable[[Path], Iterator[str]]:
    if read := _READERS.get(Path(filename.lower()).suffix):
        return read
    with path.open("rb") as file:
        head = file.read(4096)
    if head.startswith(b"%PDF-"):
        return _pdf
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return _html
    return _text


def _read(path: Path) -> bytes:
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise UnreadableFile("invalid_file", "The file has more than 5,000,000 tokens of text.")
    return path.read_bytes()


def _decoded(path: Path) -> str:
    """Raises `UnreadableFile` for binary data."""
    data = _read(path)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        if b"\0" in data:
            raise UnicodeError
        return data.decode("utf-8-sig")
    except UnicodeError:
        # Text in an old encoding has few control characters, binary data has many.
        controls = sum(data[:65536].count(bytes([code])) for code in range(32) if code not in b"\t\n\r\f\x1b")
        if controls * 100 > len(data[:65536]):
            raise UnreadableFile("unsupported_file", "Files of this type cannot be read as text.") from None
        return data.decode("cp1252", "replace")


def _text(path: Path) -> Iterator[str]:
    yield _decoded(path).replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n")


def _json(path: Path) -> Iterator[str]:
    """Indent JSON, so that it can be split between lines."""
    text = _decoded(path)
    try:
        yield json.dumps(json.loads(text), ensure_ascii=False, indent=1)
    except (ValueError, RecursionError):
        yield text


def _csv(path: Path) -> Iterator[str]:
    """Repeat the column names in each line, since most chunks do not contain the header."""
    text = _decoded(path)
    try:
        dialect: Any = csv.Sniffer().sniff(text[:65536], ",;\t|")
    except csv.Error:
        dialect = csv.excel
    csv.field_size_limit(MAX_CHARACTERS)
    rows = csv.reader(io.StringIO(text), dialect)
    header = next(rows, [])
    if len(header) < 2:
        yield text
        return
    empty = True
    for row in rows:
        names = [*header, *[""] * (len(row) - len(header))]
        cells = [f"{name}: {cell}" if name else cell for name, cell in zip(names, row, strict=False) if cell.strip()]
        if cells:
            empty = False
            yield "; ".join(cells) + "\n"
    if empty:
        yield text


def _pdf(path: Path) -> Iterator[str]:
    try:
        yield from (page + "\n\n" for page in pdf_pages(path))
    except EncryptedPDF:
        raise UnreadableFile("invalid_file", "The PDF is encrypted.") from None


def _docx(path: Path) -> Iterator[str]:
    from docx import Document
    from docx.table import Table

    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MAX_UNPACKED:
            raise UnreadableFile("invalid_file", "The document is too large after unpacking.")
    for block in Document(str(path)).iter_inner_content():
        if isinstance(block, Table):
            for row in block.rows:
                yield " | ".join(cell.text for cell in row.cells) + "\n"
            yield "\n"
        else:
            yield block.text + "\n\n"


def _html(path: Path) -> Iterator[str]:
    title, text = html_title_and_text(_read(path))
    if title:
        yield f"{title}\n\n"
    yield text


_READERS: dict[str, Callable[[Path], Iterator[str]]] = {
    ".pdf": _pdf,
    ".docx": _docx,
    ".html": _html,
    ".htm": _html,
    ".xhtml": _html,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
}


# A line, or a sentence within a line, with trailing whitespace.
_END = r".!?\u3002\uff01\uff1f"  # sentence ends
_UNITS = re.compile(rf"[^\n{_END}]*(?:[{_END}]+(?=\s|[^\x00-\x7f]|$)\s*|[{_END}]+|\n\s*|$)")
_WORDS = re.compile(r"\S+\s*|\s+")
_MIN_FILL = 0.5  # fraction to fill before a chunk may end at a paragraph


def chunks(text: str, max_tokens: int, overlap: int) -> Iterator[str]:
    """
    Split a text at sentence and paragraph ends into chunks, each at most `max_tokens` estimated tokens.

    Each chunk starts with about the last `overlap` tokens from the previous chunk.
    """
    units = [unit for match in _UNITS.finditer(text) if match[0] for unit in _fitting(match[0], max_tokens)]
    start, end = 0, 0
    while end < len(units):
        first_new = end
        size = sum(tokens for _, tokens in units[start:end])
        while end < len(units) and (size + units[end][1] <= max_tokens or end == first_new):
            size += units[end][1]
            end += 1
        while size > max_tokens and start < first_new:  # shrink the overlap to fit the new text
            size -= units[start][1]
            start += 1
        if end < len(units):
            end = _paragraph_end(units, start, first_new, end)
        if chunk := "".join(unit for unit, _ in units[start:end]).strip():
            yield chunk
        start = _overlap_start(units, start, end, overlap)


def _paragraph_end(units: list[tuple[str, int]], start: int, first_new: int, end: int) -> int:
    """Return the chunk's last paragraph end if the chunk is full enough there, else `end`."""
    needed = sum(tokens for _, tokens in units[start:end]) * _MIN_FILL
    size = sum(tokens for _, tokens in units[start:first_new])
    last = end
    for index in range(first_new, end):
        unit, tokens = units[index]
        size += tokens
        if size >= needed and unit.count("\n") > 1:
            last = index + 1
    return last


def _overlap_start(units: list[tuple[str, int]], start: int, end: int, overlap: int) -> int:
    """Return the next chunk's start: `overlap` tokens before this chunk's end, but after its start."""
    size, index = 0, end
    while index - 1 > start and size + units[index - 1][1] <= overlap:
        index -= 1
        size += units[index][1]
    return index


def _fitting(unit: str, max_tokens: int) -> Iterator[tuple[str, int]]:
    """Yield a unit with its tokens. A unit above `max_tokens` is split into words, and a word into halves."""
    tokens = estimate(unit)
    if tokens <= max_tokens:
        yield unit, tokens
        return
    words = [match[0] for match in _WORDS.finditer(unit)]
    if len(words) == 1:
        middle = len(unit) // 2
        words = [unit[:middle], unit[middle:]]
    for word in words:
        yield from _fitting(word, max_tokens)
