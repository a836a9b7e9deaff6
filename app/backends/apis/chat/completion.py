from __future__ import annotations

from typing import Any

from app.backends.apis.body_decoder import NO_ANSWER
from app.backends.server.errors import error_in_chunk
from app.core.sse.decoder import END
from app.core.sse.repeats import RawEvent
from app.core.types import JSONObject
from app.errors import BackendError


def completion_chunks(values: list[JSONObject]) -> list[RawEvent]:
    """A completion as a chunk and `END`; raises `BackendError`."""
    chunks = [_as_chunk(value) for value in values]
    if not any(chunk.get("choices") for chunk in chunks):
        raise next(filter(None, map(error_in_chunk, chunks)), None) or BackendError(NO_ANSWER)
    return [*chunks, END]


def _as_chunk(completion: JSONObject) -> RawEvent:
    if "choices" not in completion:  # Cline and Workers AI wrap the completion
        wrapped = (completion.get(name) for name in ("data", "result"))
        completion = next((value for value in wrapped if isinstance(value, dict) and value.get("choices")), completion)
    choices = completion.get("choices")
    if not isinstance(choices, list):
        return completion
    return {**completion, "choices": [_as_delta(choice) for choice in choices]}


def _as_delta(choice: object) -> Any:
    if not isinstance(choice, dict) or "message" not in choice or choice.get("delta"):
        return choice
    rest = {name: value for name, value in choice.items() if name != "message"}
    return {**rest, "delta": choice["message"]}
