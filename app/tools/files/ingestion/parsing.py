"""
Text extraction from files: plain text, Markdown, code, HTML, PDF, DOCX, JSON and CSV.

Parsers run in worker processes (`app.runtime.worker_processes`). Only short plain text is read in this process.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from app.runtime.pdf_reader import EncryptedPDF, pdf_pages
from app.tools.files.ingestion.chunking import chunks
from app.tools.html_text import html_title_and_text

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


def extract(source: str, target: str, filename: str, max_tokens: int, overlap: int) -> int:
    """
    Write a file's text chunks to `target`, one JSON string per line, and return their number.

    Raises `UnreadableFile`.
    """
    number = 0
    with open(target, "wb") as out:
        for chunk in chunks(read_text(Path(source), filename), max_tokens, overlap):
            out.write(orjson.dumps(chunk) + b"\n")
            number += 1
    return number


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


def _decoded(path: Path) -> str:
    """Raises `UnreadableFile` for binary data."""
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise UnreadableFile("invalid_file", "The file has more than 5,000,000 tokens of text.")
    data = path.read_bytes()
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
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise UnreadableFile("invalid_file", "The file has more than 5,000,000 tokens of text.")
    title, text = html_title_and_text(path.read_bytes())
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
