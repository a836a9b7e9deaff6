"""Text extraction from PDFs, for backends without file input."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import cast

from app.core.history.context import RequestContext
from app.core.request.files import PDF_ERROR, PDF_TEXT, file_bytes, is_pdf
from app.core.types import with_fields
from app.core.types.request import Item, Part
from app.runtime.pdf_reader import read_pdf
from app.runtime.worker_processes import CallDied, CallTookTooLong, IsolatedCalls

PDF_READERS = 3  # concurrent PDFs; one fewer per owner
PDF_TIMEOUT = 60.0  # seconds per PDF
PDF_MEMORY = 2 * 1024**3  # bytes of address space per reader
_FIELDS = ("content", "output")  # item fields with parts
_NO_READER = "This backend does not support PDFs, and this server reads them only with the extra `pdf`."


class PdfTexts:
    def __init__(self, timeout: float = PDF_TIMEOUT) -> None:
        self._readers = IsolatedCalls(PDF_READERS, seconds=timeout, memory=PDF_MEMORY)

    async def add_to(self, context: RequestContext, owner: str) -> RequestContext:
        """
        Add PDFs' texts; the original items stay unchanged.

        An unreadable PDF's part contains the reason, which becomes an error on translation.
        """
        pdfs = list(filter(is_pdf, _files(context.items)))
        if not pdfs:
            return context
        parts = await asyncio.gather(*(self._part(pdf, owner) for pdf in pdfs))
        read = dict(zip(map(id, pdfs), parts, strict=True))
        return replace(context, items=[_replaced(item, read) for item in context.items])

    async def _part(self, part: Part, owner: str) -> Part:
        data = file_bytes(part)
        if data is None:
            return {**part, PDF_ERROR: "The PDF is neither base64 nor a data URL."}
        result = await self.read(data, owner) if find_spec("pypdf") else {"error": _NO_READER}
        return {**part, PDF_TEXT: result["text"]} if "text" in result else {**part, PDF_ERROR: result["error"]}

    async def read(self, pdf: bytes, owner: str) -> dict[str, str]:
        """A PDF's `text`, or an `error` for the caller."""
        try:
            return await self._readers.run(owner, read_pdf, pdf)
        except CallTookTooLong:
            return {"error": "The PDF takes too long to read."}
        except CallDied:
            return {"error": "The PDF takes too much memory to read."}


def _files(items: Sequence[Item]) -> Iterator[Part]:
    for item in items:
        for field in _FIELDS:
            parts = item.get(field)
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, dict) and part.get("type") == "input_file":
                    yield cast(Part, part)


def _replaced(item: Item, read: dict[int, Part]) -> Item:
    fields = {field: parts for field in _FIELDS if isinstance(parts := item.get(field), list)}
    changed = {field: [read.get(id(part), part) for part in parts] for field, parts in fields.items()}
    return with_fields(item, changed)
