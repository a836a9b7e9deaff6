"""The text of PDFs and web pages. Untrusted PDFs can exhaust time and memory, so read them in a worker process."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

MAX_PDF_CHARACTERS = 4_000_000  # about a million tokens


class EncryptedPDF(Exception): ...


def pdf_pages(source: Path | IO[bytes]) -> Iterator[str]:
    """Each page's text; raises `EncryptedPDF`, or pypdf's errors for a malformed PDF."""
    from pypdf import PdfReader

    reader = PdfReader(source)
    if reader.is_encrypted and not reader.decrypt(""):
        raise EncryptedPDF
    for page in reader.pages:
        yield page.extract_text()


def read_pdf(data: bytes) -> dict[str, str]:
    """A PDF's `text`, or the reason for a failure as `error`."""
    pages = []
    size = 0
    try:
        for page in pdf_pages(io.BytesIO(data)):
            pages.append(page)
            size += len(page)
            if size > MAX_PDF_CHARACTERS:
                return {"error": f"The PDF has more than {MAX_PDF_CHARACTERS} characters of text."}
    except EncryptedPDF:
        return {"error": "The PDF is encrypted."}
    except MemoryError:
        raise
    except Exception as error:
        return {"error": f"The PDF cannot be read ({type(error).__name__})."}
    text = "\n\n".join(pages).replace("\0", "").strip()
    return {"text": text} if text else {"error": "The PDF contains no text: its pages can be images."}


_INVISIBLE = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption"}
)
_BLOCKS |= {"figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol"}
_BLOCKS |= {"option", "p", "pre", "section", "summary", "table", "td", "th", "tr", "ul"}


def html_title_and_text(page: str | bytes) -> tuple[str, str]:
    """Non-UTF-8 bytes are decoded with the declared charset, else as Latin-1."""
    from lxml import etree, html  # an extra

    data = page.encode("utf-8", "replace") if isinstance(page, str) else page
    try:
        data.decode()
        encoding = "utf-8"
    except UnicodeError:
        encoding = None
    parser = html.HTMLParser(encoding=encoding, huge_tree=False)
    try:
        tree = html.document_fromstring(data, parser=parser)
    except etree.ParserError:
        return "", ""
    return " ".join((tree.findtext(".//title") or "").split()), "".join(_visible_text(tree))


def _visible_text(tree: object) -> Iterator[str]:
    """Iterative, since nesting may exceed the recursion limit."""
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            yield node
            continue
        visible = isinstance(node.tag, str) and node.tag not in _INVISIBLE
        block = visible and node.tag in _BLOCKS
        if node.tail:
            stack.append(_spaced(node.tail))
        if block:
            stack.append("\n")
        if visible:
            stack.extend(reversed(node))
            stack.append(node.text if node.tag == "pre" and node.text else _spaced(node.text or ""))
        if block:
            stack.append("\n\n" if node.tag in ("p", "h1", "h2", "h3", "h4", "h5", "h6") else "\n")


def _spaced(text: str) -> str:
    inner = " ".join(text.split())
    if not inner:
        return " " if text else ""
    return f"{' ' if text[0].isspace() else ''}{inner}{' ' if text[-1].isspace() else ''}"
