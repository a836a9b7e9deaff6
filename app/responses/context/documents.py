"""PDFs as text, for backends that take no files; see `app.core.request.files` for those that are text anyway."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import orjson

from app import pdf_reader
from app.core.history.context import RequestContext
from app.core.profile import Profile
from app.core.request.files import PDF_ERROR, PDF_TEXT, file_bytes, is_pdf
from app.core.types import with_fields
from app.core.types.request import Item, Part

logger = logging.getLogger(__name__)

PDF_TIMEOUT = 60.0  # seconds for one PDF
_AT_ONCE = 2  # PDFs that are read at the same time
_FIELDS = ("content", "output")  # of an item, where its parts are
_READER = Path(pdf_reader.__file__)
_NO_READER = "This backend takes no PDFs, and this server reads them only with the extra `pdf`."


class PdfTexts:
    """Replaces PDFs with their text."""

    def __init__(self, timeout: float = PDF_TIMEOUT) -> None:
        self._timeout = timeout
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def add_to(self, context: RequestContext, profile: Profile) -> RequestContext:
        """
        Return a context with the text of PDFs, if the backend accepts no files; the original items are not changed.

        A PDF that cannot be read has the reason in its part, which is an error when the part is translated.
        """
        shared, items = context.items[: context.shared], context.items[context.shared :]
        pdfs = [] if profile.request.content.files == "pass" else list(filter(is_pdf, _files(items)))
        if not pdfs:
            return context
        read = dict(zip(map(id, pdfs), await asyncio.gather(*map(self._part, pdfs)), strict=True))
        return replace(context, items=[*shared, *(_replaced(item, read) for item in items)])

    async def _part(self, part: Part) -> Part:
        data = file_bytes(part)
        if data is None:
            return {**part, PDF_ERROR: "The PDF is neither base64 nor a data URL."}
        result = await self.read(data) if find_spec("pypdf") else {"error": _NO_READER}
        return {**part, PDF_TEXT: result["text"]} if "text" in result else {**part, PDF_ERROR: result["error"]}

    async def read(self, pdf: bytes) -> dict[str, str]:
        """Return the `text` of a PDF, or an `error` message for the caller if it cannot be read."""
        async with self._slots:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", str(_READER)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(self._timeout):
                    output, _ = await process.communicate(pdf)
            except TimeoutError:
                return {"error": "The PDF takes too long to read."}
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        try:
            result: dict[str, str] = orjson.loads(output)
        except ValueError:
            logger.warning("the process that reads a PDF died", extra={"exit_code": process.returncode})
            return {"error": "The PDF cannot be read."}
        return result


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
