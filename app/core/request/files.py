"""
Files as text, for backends that take no files, and for files that are text anyway.

OpenAI's Chat Completions take PDFs only, and most servers at home no files at all; but a model reads any text.
"""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Mapping
from html import escape
from typing import Final
from urllib.parse import unquote_to_bytes

# What a PDF says, and why that is not known, as it is noted in a part before it is translated: to read one takes long.
PDF_TEXT: Final = "antiphon:text"
PDF_ERROR: Final = "antiphon:text_error"

_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,", re.IGNORECASE)
_CHARSET = re.compile(r"charset=\"?([\w.:-]+)", re.IGNORECASE)
_URL_SAFE = str.maketrans("-_", "+/")
_HEAD = 4096  # characters of base64 that tell whether it is worth to decode the rest
_NOT_IN_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DECLARED = re.compile(r"text/|application/(?:json|xml|yaml|toml|javascript|sql|x-sh)\b|.*\+(?:json|xml)$")


def is_pdf(part: Mapping[str, object]) -> bool:
    """Tell whether a part with a file holds a PDF: by its declared type, its name, or how it begins."""
    data, name = part.get("file_data"), part.get("filename")
    if not isinstance(data, str) or not data:
        return False
    media_type, _ = _declared(data)
    if media_type == "application/pdf" or (isinstance(name, str) and name.lower().endswith(".pdf")):
        return True
    return (_decoded(data, most=_HEAD) or b"").startswith(b"%PDF-")


def file_bytes(part: Mapping[str, object]) -> bytes | None:
    """Return the bytes of a file that is given as base64 or as a data URL; None if they cannot be read."""
    data = part.get("file_data")
    return _decoded(data) if isinstance(data, str) else None


def file_text(part: Mapping[str, object]) -> str | None:
    """Return the text of a file that is text, whatever it is called; None for all others, a PDF among them."""
    data = part.get("file_data")
    if not isinstance(data, str) or not data or is_pdf(part):
        return None
    media_type, charset = _declared(data)
    is_declared = _DECLARED.match(media_type) is not None
    head = _decoded(data, most=_HEAD)
    if head is None or (not _bom(head) and _NOT_IN_TEXT.search(head)):
        return None
    content = _decoded(data)
    if content is None:
        return None
    if bom := _bom(content):
        return content.decode(bom, "replace")
    if _NOT_IN_TEXT.search(content):
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode(charset or "cp1252", "replace") if is_declared else None


def as_text(part: Mapping[str, object], text: str) -> str:
    """Return the text of a file as the model is told it, with its name."""
    name = part.get("filename")
    named = f' name="{escape(name)}"' if isinstance(name, str) and name else ""
    return f"<file{named}>\n{text.strip()}\n</file>"


def _declared(data: str) -> tuple[str, str | None]:
    """Return the media type of a data URL, "" for anything else, and its character set if it is a known one."""
    match = _URL.match(data)
    if match is None:
        return "", None
    charset = _CHARSET.search(match[2])
    try:
        return (match[1] or "text/plain").lower(), codecs.lookup(charset[1]).name if charset else None
    except LookupError:
        return (match[1] or "text/plain").lower(), None


def _decoded(data: str, most: int | None = None) -> bytes | None:
    """Return the bytes of base64 or of a data URL, or those of its first `most` characters."""
    match = _URL.match(data)
    start = match.end() if match else 0
    text = data[start : None if most is None else start + most]
    if match and not match[3]:
        return unquote_to_bytes(text.encode(errors="replace"))
    text = "".join(text.split()).rstrip("=").translate(_URL_SAFE)
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError:  # binascii.Error, or characters beyond ASCII
        return None


def _bom(content: bytes) -> str | None:
    return next((encoding for mark, encoding in _BOMS if content.startswith(mark)), None)
