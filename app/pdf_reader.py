"""
The text of PDFs.

As a program it reads a PDF from standard input, and writes `{"text": ...}` or `{"error": ...}`: PDFs come from
strangers, and can be made to take very long or very much memory to read, so that this process may be killed.
"""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MAX_PDF_CHARACTERS = 4_000_000  # about a million tokens
MAX_PDF_MEMORY = 2 * 1024**3  # bytes of address space
MAX_PDF_SECONDS = 60  # of CPU


class EncryptedPDF(Exception):
    """A PDF that cannot be read without its password."""


def pdf_pages(source: Path | IO[bytes]) -> Iterator[str]:
    """Yield the text of each page; raises `EncryptedPDF`, and what pypdf raises for a PDF that is broken."""
    from pypdf import PdfReader

    reader = PdfReader(source)
    if reader.is_encrypted and not reader.decrypt(""):
        raise EncryptedPDF
    for page in reader.pages:
        yield page.extract_text()


def _bound_this_process() -> None:
    """Let this process take only so much of the machine."""
    try:
        import resource
    except ImportError:  # no such thing on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_PDF_MEMORY, MAX_PDF_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_PDF_SECONDS, MAX_PDF_SECONDS))


def _read(source: IO[bytes]) -> dict[str, str]:
    """Return the text of a PDF, or what keeps it from being read."""
    pages = []
    size = 0
    try:
        for page in pdf_pages(source):
            pages.append(page)
            size += len(page)
            if size > MAX_PDF_CHARACTERS:
                return {"error": f"The PDF has more than {MAX_PDF_CHARACTERS} characters of text."}
    except EncryptedPDF:
        return {"error": "The PDF is encrypted."}
    except MemoryError:
        return {"error": "The PDF takes too much memory to read."}
    except Exception as error:
        return {"error": f"The PDF cannot be read ({type(error).__name__})."}
    text = "\n\n".join(pages).replace("\0", "").strip()
    return {"text": text} if text else {"error": "There is no text in the PDF: its pages may be pictures."}


if __name__ == "__main__":
    _bound_this_process()
    json.dump(_read(io.BytesIO(sys.stdin.buffer.read())), sys.stdout)  # ASCII: halves of characters are escaped
