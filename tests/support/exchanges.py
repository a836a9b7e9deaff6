"""Questions with a request that is given as it is, and the chunks of their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import ANY

from app.backends import BackendExchange, Chunk, EncodedQuestion, Question
from app.core.types.request import CreateResponse
from tests.support.build import each


def asking(body: dict[str, Any], **fields: Any) -> Question:
    """Return a question whose request is this one, whatever the profile."""
    model = str(body.get("model", ""))
    request = CreateResponse(model=model or "m", input="Hi")
    encodings = [(ANY, EncodedQuestion(body, {}, None, ()))]
    return Question(request, request.items(), **{"model": model, "encodings": encodings, **fields})


async def reads(exchange: BackendExchange) -> AsyncIterator[list[Chunk]]:
    """Yield the chunks of an exchange that was entered, a list for each time that some came."""
    async for chunks in exchange:
        yield each(chunks)
