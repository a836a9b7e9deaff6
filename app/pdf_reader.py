"""
Text extraction from PDFs.

As a program, it reads a PDF from standard input and writes `{"text": ...}` or `{"error": ...}`. PDFs are untrusted, and
can make a parser take very long or use too much memory; a separate process can be killed.
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
    """Yield the text of each page; raises `EncryptedPDF`, or pypdf's errors for a malformed PDF."""
    from pypdf import PdfReader

    reader = PdfReader(source)
    if reader.is_encrypted and not reader.decrypt(""):
        raise EncryptedPDF
    for page in reader.pages:
        yield page.extract_text()


def _limit_this_process() -> None:
    """Limit the memory and CPU time of this process."""
    try:
        import resource
    except ImportError:  # not available on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_PDF_MEMORY, MAX_PDF_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_PDF_SECONDS, MAX_PDF_SECONDS))


def _read(source: IO[bytes]) -> dict[str, str]:
    """Return `text`, or an `error` that explains why the PDF cannot be read."""
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
    _limit_this_process()
    json.dump(_read(io.BytesIO(sys.stdin.buffer.read())), sys.stdout)  # ASCII: lone surrogates are escaped
