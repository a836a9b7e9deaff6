"""Embeddings, from the `/embeddings` endpoint of a backend."""

from __future__ import annotations

import array
import asyncio
import math
from collections.abc import Sequence

import httpx

from app.errors import APIError

BATCH = 64  # texts per request
_ATTEMPTS = 3
_MAX_WAIT = 10.0  # seconds between attempts
_RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class EmbeddingsUnavailable(APIError):
    """The backend returned no embeddings."""

    status = 503
    code = "embeddings_unavailable"


class Embeddings:
    """An embeddings model on an OpenAI-compatible server."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        dimensions: int | None = None,
        document_prefix: str = "",
        query_prefix: str = "",
    ) -> None:
        self.model = model if dimensions is None else f"{model}:{dimensions}"  # equal for comparable vectors
        self._body: dict[str, object] = {"model": model, "encoding_format": "float"}
        if dimensions is not None:
            self._body["dimensions"] = dimensions
        self._document_prefix, self._query_prefix = document_prefix, query_prefix
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._client = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(60, connect=10))
        self._url = f"{url.rstrip('/')}/embeddings"

    async def documents(self, texts: Sequence[str]) -> list[bytes]:
        """Return the normalized vector of each text, as float32 bytes; raises `EmbeddingsUnavailable`."""
        vectors: list[bytes] = []
        for start in range(0, len(texts), BATCH):
            vectors += await self._embed([self._document_prefix + text for text in texts[start : start + BATCH]])
        return vectors

    async def query(self, text: str) -> bytes:
        """Return the normalized vector of a search query, as float32 bytes; raises `EmbeddingsUnavailable`."""
        return (await self._embed([self._query_prefix + text], attempts=1))[0]

    async def check(self) -> str | None:
        """Return the error of the model, or None if it works."""
        try:
            await self.query("test")
        except EmbeddingsUnavailable as error:
            return error.message
        return None

    async def aclose(self) -> None:
        """Close the connections to the backend."""
        await self._client.aclose()

    async def _embed(self, texts: list[str], attempts: int = _ATTEMPTS) -> list[bytes]:
        problem = ""
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(min(2.0 ** (attempt - 1), _MAX_WAIT))
            try:
                answer = await self._client.post(self._url, json={**self._body, "input": texts})
            except httpx.HTTPError as error:
                problem = type(error).__name__
                continue
            if answer.status_code == 200:
                return _vectors(answer, len(texts))
            problem = f"status {answer.status_code}"
            if answer.status_code not in _RETRYABLE:
                break
        raise EmbeddingsUnavailable(f"The backend gives no embeddings: {problem}.")


def _vectors(answer: httpx.Response, count: int) -> list[bytes]:
    """Return the vectors of an answer, in the order of the texts; raises `EmbeddingsUnavailable`."""
    try:
        data = sorted(answer.json()["data"], key=lambda entry: entry.get("index", 0))
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
