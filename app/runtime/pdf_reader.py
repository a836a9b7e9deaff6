"""Text extraction from PDFs: untrusted PDFs can exhaust time and memory, so use a worker process."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

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
