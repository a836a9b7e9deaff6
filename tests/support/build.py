"""Short ways to say what a backend sends, and to see what becomes of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from app.backends import EncodedQuestion, Question
from app.backends.apis.chat.normalize import Normalizer
from app.core.history.resource import new_response
from app.core.profile import CALL_NAME_NOISE
from app.core.stream.chunk_reader import ChunkReader
from app.core.stream.event_builder import EventBuilder
from app.core.stream.tool_calls import CallRules
from app.core.types.chunk import DONE, Chunk, ChunkRun
from app.core.types.request import CreateResponse, Event
from app.errors import BackendError
from app.responses.generate import ModelQuery
from app.responses.generate import finish_response as end_response


def delta(**fields: Any) -> Chunk:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def finish(reason: str | None) -> Chunk:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def reported(input: int, output: int, *, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    """The usage that a backend reports."""
    return {
        "prompt_tokens": input,
        "completion_tokens": output,
        "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def call(index: int | None = 0, id: str | None = None, name: str | None = None, arguments: Any = None) -> Chunk:
    """A delta with one fragment of a tool call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fragment = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return delta(tool_calls=[{**fragment, "function": function}])


def counted() -> Callable[[str], str]:
    """Ids that count: `msg_0`, `fc_1`."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}_{next(numbers)}"


def builder(request: CreateResponse | None = None, **options: Any) -> EventBuilder:
    request = request or CreateResponse(model="m", input="hi")
    response = new_response(request, response_id="resp_0", created_at=1, model="m")
    return EventBuilder(response, new_id=counted(), clock=lambda: 2.0, **options)


def normal(chunks: Iterable[Any]) -> list[Chunk]:
    """Return the chunks of an answer as a backend yields them to the core."""
    normalizer = Normalizer()
    return [one for chunk in chunks for one in ([chunk] if chunk is DONE else normalizer.feed([chunk]))]


def each(chunks: Iterable[Any]) -> list[Chunk]:
    """Return chunks one by one, also those that a backend yields as a run."""
    return [one for chunk in chunks for one in (chunk.chunks() if isinstance(chunk, ChunkRun) else [chunk])]


def reader_of(made: EventBuilder, logprobs: bool = False, finish_required: bool = False, **rules: Any) -> ChunkReader:
    """Return a reader of chunks; `rules` are those of `CallRules`."""
    return ChunkReader(made, CallRules(**rules), logprobs=logprobs, finish_required=finish_required)


def answer(
    chunks: Iterable[Chunk], failure: BackendError | None = None, reasoning: Any = None, **reading: Any
) -> list[Event]:
    """Return the events of an answer, the whole way from the chunks to the terminal one."""
    made = builder(**({"reasoning": reasoning} if reasoning else {}))
    reader = reader_of(made, **{"name_noise": CALL_NAME_NOISE, **reading})
    made.start()
    for chunk in normal(chunks):
        reader.feed(chunk)
    end_response(made, querying(reader), failure)
    made.end()
    return [*made.take()]


def querying(reader: ChunkReader, backend: Any = None) -> ModelQuery:
    """A query about nothing, whose answer goes to the reader."""
    request = CreateResponse(model="m", input="hi")
    encoded = EncodedQuestion({"model": "m", "messages": []}, {}, None, ())
    return ModelQuery(backend, Question(request, request.items(), "m"), encoded, reader)


def whole(*chunks: Chunk, reason: str | None = "stop") -> list[Chunk]:
    """A stream that ends as it should."""
    return [*chunks, finish(reason), DONE]


def story(events: Iterable[Event]) -> str:
    """The names of events, readable at a glance."""
    return " ".join(event["type"].removeprefix("response.") for event in events)


def output(events: list[Event]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = events[-1]["response"]["output"]
    return items


def calls(events: list[Event]) -> list[tuple[str, str, str]]:
    """The calls of an answer: name, arguments, status."""
    return [(i["name"], i["arguments"], i["status"]) for i in output(events) if i["type"] == "function_call"]
