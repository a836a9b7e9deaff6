"""
Reads a PDF from standard input and writes `{"text": ...}` or `{"error": ...}`: a program of its own.

PDFs come from strangers, and can be made to take very long or very much memory to read: this process may be killed.
"""

import io
import json
import sys

MAX_PDF_CHARACTERS = 4_000_000  # about a million tokens
MAX_PDF_MEMORY = 2 * 1024**3  # bytes of address space
MAX_PDF_SECONDS = 60  # of CPU


def bound_this_process() -> None:
    """Let this process take only so much of the machine."""
    try:
        import resource
    except ImportError:  # no such thing on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_PDF_MEMORY, MAX_PDF_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_PDF_SECONDS, MAX_PDF_SECONDS))


def read() -> dict[str, str]:
    """Return the text of the PDF, or what keeps it from being read."""
    from pypdf import PdfReader

    pages = []
    size = 0
    try:
        reader = PdfReader(io.BytesIO(sys.stdin.buffer.read()))
        if reader.is_encrypted and not reader.decrypt(""):
            return {"error": "The PDF is encrypted."}
        for page in reader.pages:
            pages.append(page.extract_text())
            size += len(pages[-1])
            if size > MAX_PDF_CHARACTERS:
                return {"error": f"The PDF has more than {MAX_PDF_CHARACTERS} characters of text."}
    except MemoryError:
        return {"error": "The PDF takes too much memory to read."}
    except Exception as error:
        return {"error": f"The PDF cannot be read ({type(error).__name__})."}
    text = "\n\n".join(pages).replace("\0", "").strip()
    return {"text": text} if text else {"error": "There is no text in the PDF: its pages may be pictures."}


if __name__ == "__main__":
    bound_this_process()
    json.dump(read(), sys.stdout)  # ASCII: halves of characters are escaped
