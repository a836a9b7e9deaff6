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
from app.runtime.document_text import read_pdf
from app.runtime.worker_processes import IsolatedCallFailed, IsolatedCalls

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
        results = await asyncio.gather(*(self.read(pdf, owner) for pdf in pdfs))
        read: dict[int, Part] = {}
        for pdf, result in zip(pdfs, results, strict=True):
            text = {PDF_TEXT: result["text"]} if "text" in result else {PDF_ERROR: result["error"]}
            read[id(pdf)] = cast(Part, {**pdf, **text})
        items = []
        for item in context.items:
            fields = {field: parts for field in _FIELDS if isinstance(parts := item.get(field), list)}
            changed = {field: [read.get(id(part), part) for part in parts] for field, parts in fields.items()}
            items.append(with_fields(item, changed))
        return replace(context, items=items)

    async def read(self, pdf: Part, owner: str) -> dict[str, str]:
        """A PDF's `text`, or an `error` for the caller."""
        if (data := file_bytes(pdf)) is None:
            return {"error": "The PDF is neither base64 nor a data URL."}
        if not find_spec("pypdf"):
            return {"error": _NO_READER}
        try:
            return await self._readers.run(owner, read_pdf, data)
        except IsolatedCallFailed as failure:
            return {"error": f"The PDF {failure}."}


def _files(items: Sequence[Item]) -> Iterator[Part]:
    for item in items:
        for field in _FIELDS:
            parts = item.get(field)
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, dict) and part.get("type") == "input_file":
                    yield cast(Part, part)
