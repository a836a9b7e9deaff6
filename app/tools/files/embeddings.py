"""Embeddings, from the `/embeddings` endpoint of a backend."""

from __future__ import annotations

import array
import asyncio
import math
from collections.abc import Sequence

import httpx
import orjson

from app.core.bounded_json import loads
from app.core.profile import TransportOptions
from app.core.types import JSONObject
from app.core.usage import estimated_usage, request_usage
from app.errors import APIError
from app.tools import Account
from app.tools.endpoint import endpoint_client
from app.tools.files.settings import EmbeddingsSettings
from app.tools.guard import OutboundRefused
from app.unreachable import why_no_answer

BATCH = 64  # texts per request
MAX_DIMENSIONS = 16_384
_ATTEMPTS = 3
_MAX_WAIT = 10.0  # seconds between attempts
_MAX_BYTES = 32 * MAX_DIMENSIONS * BATCH  # of an answer
_RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class EmbeddingsUnavailable(APIError):
    """The backend returned no embeddings."""

    status = 503
    code = "embeddings_unavailable"


class Embeddings:
    """An embeddings model on an OpenAI-compatible server. Its requests are charged to an account, if there is one."""

    def __init__(self, options: TransportOptions, settings: EmbeddingsSettings) -> None:
        self.name = settings.model  # as callers would name it
        dimensions = settings.dimensions
        self.model = self.name if dimensions is None else f"{self.name}:{dimensions}"  # equal for comparable vectors
        self._backend = settings.backend
        self._body: dict[str, object] = {"model": self.name, "encoding_format": "float"}
        if dimensions is not None:
            self._body["dimensions"] = dimensions
        self._document_prefix, self._query_prefix = settings.document_prefix, settings.query_prefix
        self._http = endpoint_client(options, timeout=httpx.Timeout(60, connect=10), max_bytes=_MAX_BYTES)

    async def documents(self, texts: Sequence[str], account: Account | None = None) -> list[bytes]:
        """
        Return the normalized vector of each of at most `BATCH` texts, as float32 bytes.

        Raises `EmbeddingsUnavailable`.
        """
        return await self._embed([self._document_prefix + text for text in texts], account)

    async def queries(self, texts: Sequence[str], account: Account | None = None) -> list[bytes]:
        """Return the normalized vectors of search queries, as `documents` does, but after one attempt."""
        return await self._embed([self._query_prefix + text for text in texts], account, attempts=1)

    async def check(self) -> str | None:
        """Return the error of the model, or None if it works."""
        try:
            await self.queries(["test"])
        except EmbeddingsUnavailable as error:
            return error.message
        return None

    async def aclose(self) -> None:
        """Close the connections to the backend."""
        await self._http.aclose()

    async def _embed(self, texts: list[str], account: Account | None, attempts: int = _ATTEMPTS) -> list[bytes]:
        problem = ""
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(min(2.0 ** (attempt - 1), _MAX_WAIT))
            try:
                answer = await self._http.post("embeddings", json={**self._body, "input": texts})
            except OutboundRefused as error:
                problem = str(error).rstrip(".")
                break
            except httpx.HTTPError as error:
                problem = why_no_answer(error)
                continue
            if answer.status_code == 200:
                # Numbers by the hundred thousand: parsed in a thread.
                document = await asyncio.to_thread(_parsed, answer.content)
                usage = request_usage(document.get("usage")) or estimated_usage(texts)
                if account:
                    account.charge_request(self.name, self._backend, usage)
                return await asyncio.to_thread(_vectors, document, len(texts))
            problem = f"it answered with status {answer.status_code}"
            if answer.status_code not in _RETRYABLE:
                break
        raise EmbeddingsUnavailable(f"The backend gives no embeddings: {problem}.")


def _parsed(content: bytes) -> JSONObject:
    try:
        document = loads(content, BATCH * MAX_DIMENSIONS)
    except orjson.JSONDecodeError:
        document = None
    return document if isinstance(document, dict) else {}


def _vectors(document: JSONObject, count: int) -> list[bytes]:
    """Return the vectors of an answer, in the order of the texts; raises `EmbeddingsUnavailable`."""
    try:
        data = sorted(document["data"], key=lambda entry: entry.get("index", 0))
        vectors = [_normalized([float(number) for number in entry["embedding"]]) for entry in data]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EmbeddingsUnavailable("The backend gives no embeddings: its answer has no vectors.") from None
    if len(vectors) != count or len({len(vector) for vector in vectors}) != 1 or not vectors[0]:
        raise EmbeddingsUnavailable("The backend gives no embeddings: its answer has not one vector for each text.")
    return vectors


def _normalized(vector: list[float]) -> bytes:
    length = math.sqrt(sum(number * number for number in vector)) or 1.0
    if not math.isfinite(length):
        raise ValueError("not finite")
    return array.array("f", [number / length for number in vector]).tobytes()
