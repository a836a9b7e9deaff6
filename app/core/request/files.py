"""
Extract text from uploaded files.

Every backend receives text files as text: OpenAI's Chat Completions accepts only PDFs, most local servers no files.
"""

from __future__ import annotations

import binascii
import codecs
import re
import string
from collections.abc import Iterator, Mapping
from html import escape
from typing import Final
from urllib.parse import unquote_to_bytes

from app.core.charsets import codec_of, declared_charset, decoded

# Set before translation (extraction is slow): a PDF's text, or why it has none.
PDF_TEXT: Final = "antiphon:text"
PDF_ERROR: Final = "antiphon:text_error"

_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,", re.IGNORECASE)
_URL_SAFE = str.maketrans("-_", "+/")
_PADDING = "=" + string.whitespace
_PIECE = 512 * 1024  # characters or bytes
_HEAD = 4096  # base64 characters decoded first, to detect text
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DECLARED = re.compile(r"text/|application/(?:json|xml|yaml|toml|javascript|sql|x-sh)\b|.*\+(?:json|xml)$")


def is_pdf(part: Mapping[str, object]) -> bool:
    data, name = part.get("file_data"), part.get("filename")
    if not isinstance(data, str) or not data:
        return False
    media_type, _ = _declared(data)
    if media_type == "application/pdf" or (isinstance(name, str) and name.lower().endswith(".pdf")):
        return True
    return (_decoded(data, limit=_HEAD) or b"").startswith(b"%PDF-")


def file_bytes(part: Mapping[str, object]) -> bytes | None:
    data = part.get("file_data")
    return _decoded(data) if isinstance(data, str) else None


def file_text(part: Mapping[str, object]) -> str | None:
    """Detects text by content, not name."""
    data = part.get("file_data")
    if not isinstance(data, str) or not data or is_pdf(part):
        return None
    media_type, codec = _declared(data)
    is_declared = _DECLARED.match(media_type) is not None
    head = _decoded(data, limit=_HEAD)
    if head is None or (not _bom(head) and _BINARY.search(head)):
        return None
    content = _decoded(data)
    if content is None:
        return None
    if bom := _bom(content):
        return content.decode(bom, "replace")
    if any(_BINARY.search(content, at, at + _PIECE) for at in range(0, len(content), _PIECE)):
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return decoded(content, codec or "cp1252") if is_declared else None


def as_text(part: Mapping[str, object], text: str) -> str:
    name = part.get("filename")
    named = f' name="{escape(name)}"' if isinstance(name, str) and name else ""
    return f"<file{named}>\n{text.strip()}\n</file>"


def _declared(data: str) -> tuple[str, str | None]:
    match = _URL.match(data)
    if match is None:
        return "", None
    charset = declared_charset(match[2])
    return (match[1] or "text/plain").lower(), codec_of(charset) if charset else None


def _decoded(data: str, limit: int | None = None) -> bytes | None:
    match = _URL.match(data)
    start = match.end() if match else 0
    text = data[start : None if limit is None else start + limit]
    try:
        return b"".join(_unquoted(text) if match and not match[3] else _from_base64(text))
    except ValueError:  # binascii.Error, or a non-ASCII character
        return None


def _unquoted(text: str) -> Iterator[bytes]:
    at = 0
    while at < len(text):
        end = at + _PIECE
        escape = text.rfind("%", end - 2, end)
        piece = text[at : end if escape < 0 else escape]
        yield unquote_to_bytes(piece.encode(errors="replace"))
        at += len(piece)


def _from_base64(text: str) -> Iterator[bytes]:
    """In pieces, to limit how long the GIL is held; raises `ValueError`."""
    text = text.rstrip(_PADDING)
    rest = ""  # an incomplete group of four characters
    for at in range(0, len(text), _PIECE):
        piece = rest + "".join(text[at : at + _PIECE].split()).translate(_URL_SAFE)
        if "=" in piece:
            raise ValueError
        complete = len(piece) - len(piece) % 4
        yield binascii.a2b_base64(piece[:complete], strict_mode=True)
        rest = piece[complete:]
    yield binascii.a2b_base64(rest + "=" * (-len(rest) % 4), strict_mode=True)


def _bom(content: bytes) -> str | None:
    return next((encoding for mark, encoding in _BOMS if content.startswith(mark)), None)
