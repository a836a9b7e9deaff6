from __future__ import annotations

import array
import asyncio
import math
from collections.abc import Sequence

import httpx
import orjson

from app.core.bounded_json import loads
from app.core.http import retry_after
from app.core.profile import TransportOptions
from app.core.types import JSONObject, json_object
from app.core.usage import estimated_usage, request_usage
from app.runtime.outbound import why_no_answer
from app.tools import Account
from app.tools.endpoint import endpoint_client
from app.tools.files import EmbeddingsUnavailable
from app.tools.files.settings import EmbeddingsSettings
from app.tools.guard import OutboundRefused

BATCH = 64  # texts per request
MAX_DIMENSIONS = 16_384
_MAX_BYTES = 32 * MAX_DIMENSIONS * BATCH  # per response
_MAX_ERROR = 10_000  # bytes


class Embeddings:
    """Requests with an account are charged to it."""

    def __init__(self, options: TransportOptions, settings: EmbeddingsSettings) -> None:
        self.name = settings.model  # public, as in API requests
        dimensions = settings.dimensions
        self.model = self.name if dimensions is None else f"{self.name}:{dimensions}"  # equal for comparable vectors
        self._backend = settings.backend
        self._body: dict[str, object] = {"model": self.name, "encoding_format": "float"}
        if dimensions is not None:
            self._body["dimensions"] = dimensions
        self._document_prefix, self._query_prefix = settings.document_prefix, settings.query_prefix
        self._http = endpoint_client(options, timeout=httpx.Timeout(60, connect=10), max_bytes=_MAX_BYTES)

    async def documents(self, texts: Sequence[str], account: Account | None = None) -> list[bytes]:
        """Return a normalized vector per text (at most `BATCH`), as float32 bytes. Raises `EmbeddingsUnavailable`."""
        return await self._embed([self._document_prefix + text for text in texts], account)

    async def queries(self, texts: Sequence[str], account: Account | None = None) -> list[bytes]:
        """Embed search queries like `documents`."""
        return await self._embed([self._query_prefix + text for text in texts], account)

    async def check(self) -> str | None:
        try:
            await self.queries(["test"])
        except EmbeddingsUnavailable as error:
            return error.message
        return None

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _embed(self, texts: list[str], account: Account | None) -> list[bytes]:
        try:
            answer = await self._http.post("embeddings", json={**self._body, "input": texts})
        except OutboundRefused as error:
            raise EmbeddingsUnavailable(str(error).rstrip(".")) from None
        except httpx.HTTPError as error:
            raise EmbeddingsUnavailable(why_no_answer(error)) from None
        if answer.status_code != 200:
            text = answer.content[:_MAX_ERROR].decode(errors="replace")
            wait = retry_after(answer.headers, text) if answer.status_code in (429, 503) else None
            raise EmbeddingsUnavailable(f"status {answer.status_code}", wait)
        try:
            # Hundreds of thousands of numbers: parse in a thread.
            document = json_object(await asyncio.to_thread(loads, answer.content, BATCH * MAX_DIMENSIONS))
        except orjson.JSONDecodeError:
            document = {}
        usage = request_usage(document.get("usage")) or estimated_usage(texts)
        if account:
            account.charge_request(self.name, self._backend, usage)
        return await asyncio.to_thread(_vectors, document, len(texts))


def _vectors(document: JSONObject, count: int) -> list[bytes]:
    """Return normalized vectors in text order; raises `EmbeddingsUnavailable`."""
    vectors: list[bytes] = []
    try:
        data = sorted(document["data"], key=lambda entry: entry.get("index", 0))
        for entry in data:
            vector = [float(number) for number in entry["embedding"]]
            length = math.sqrt(sum(number * number for number in vector)) or 1.0
            if not math.isfinite(length):
                raise ValueError
            vectors.append(array.array("f", [number / length for number in vector]).tobytes())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EmbeddingsUnavailable("its response has no vectors") from None
    if len(vectors) != count or len({len(vector) for vector in vectors}) != 1 or not vectors[0]:
        raise EmbeddingsUnavailable("its response must have a vector for each text, all of equal length")
    return vectors
