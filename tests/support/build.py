"""Short notation for backend output, and the resulting events."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from app.backends import Backend
from app.backends.apis.chat.decoder import ChunkReader
from app.core.history.resource import new_response
from app.core.profile import CALL_NAME_NOISE, Profile
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.sse.repeats import RawEvent
from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_builder import EventBuilder
from app.core.stream.tool_calls import CallRules
from app.core.types.deltas import DONE, Delta, ReasoningDelta, TextDelta, ToolCallDelta
from app.core.types.request import CreateResponse, Event
from app.errors import BackendError
from app.responses import GenerationOptions, Responses
from app.responses.background import Background
from app.responses.generate import ModelQuery, ending_of
from app.responses.generate import finish_response as end_response
from app.stores import ServerStore


def delta(**fields: Any) -> RawEvent:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def finish(reason: str | None) -> RawEvent:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def reported(input: int, output: int, *, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    """Usage as reported by a backend."""
    return {
        "prompt_tokens": input,
        "completion_tokens": output,
        "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def call(index: int | None = 0, id: str | None = None, name: str | None = None, arguments: Any = None) -> RawEvent:
    """A delta with a tool call fragment; fields with None are omitted."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fragment = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return delta(tool_calls=[{**fragment, "function": function}])


def counted() -> Callable[[str], str]:
    """Counting ids: `msg_0`, `fc_1`."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}_{next(numbers)}"


def builder(request: CreateResponse | None = None, **options: Any) -> EventBuilder:
    request = request or CreateResponse(model="m", input="hi")
    response = new_response(request, response_id="resp_0", created_at=1, model="m")
    return EventBuilder(response, new_id=counted(), clock=lambda: 2.0, **options)


def deltas_of(chunks: Iterable[Any], profile: Profile | None = None) -> list[Delta]:
    """Return the deltas for Chat Completions chunks; `DONE` marks the stream's end."""
    reader = ChunkReader((profile or Profile()).response)
    return [one for chunk in chunks for one in (reader.read(chunk) if isinstance(chunk, dict) else [chunk])]


def singly(deltas: Iterable[Delta]) -> list[Delta]:
    """Split deltas, one per text."""
    return [one for delta in deltas for one in _single(delta)]


def texts_of(deltas: Iterable[Delta]) -> list[str]:
    """Return the texts of messages in deltas."""
    return [text for delta in deltas if isinstance(delta, TextDelta) for text in delta.texts]


def _single(delta: Delta) -> list[Delta]:
    if isinstance(delta, TextDelta | ReasoningDelta) and len(delta.texts) > 1:
        return [dataclasses.replace(delta, texts=[text]) for text in delta.texts]
    if isinstance(delta, ToolCallDelta) and len(delta.arguments) > 1:
        return [dataclasses.replace(delta, arguments=[text]) for text in delta.arguments]
    return [delta]


def reader_of(made: EventBuilder, logprobs: bool = False, finish_required: bool = False, **rules: Any) -> DeltaReader:
    """Return a delta reader; `rules` are fields of `CallRules`."""
    return DeltaReader(made, partial(CallRules, **rules), logprobs=logprobs, finish_required=finish_required)


def answer(
    chunks: Iterable[Any], failure: BackendError | None = None, reasoning: Any = None, **reading: Any
) -> list[Event]:
    """Return an answer's events, from chunks to the terminal event."""
    made = builder(**({"reasoning": reasoning} if reasoning else {}))
    reader = reader_of(made, **{"name_noise": CALL_NAME_NOISE, **reading})
    made.start()
    reader.feed(deltas_of(chunks))
    end_response(querying(reader), ending_of(reader, failure), failure)
    made.end()
    return made.pop_events().events()


def querying(reader: DeltaReader, backend: Any = None) -> ModelQuery:
    """An empty query with an answer for the reader."""
    request = CreateResponse(model="m", input="hi")
    encoded = EncodedRequest({"model": "m", "messages": []}, {}, None, ())
    return ModelQuery(backend, ModelRequest(request, request.items(), "m"), encoded, reader)


def whole(*chunks: RawEvent, reason: str | None = "stop") -> list[Any]:
    """A complete stream."""
    return [*chunks, finish(reason), DONE]


def story(events: Iterable[Event]) -> str:
    """The names of events, readable at a glance."""
    return " ".join(event["type"].removeprefix("response.") for event in events)


def output(events: list[Event]) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], events[-1]["response"]["output"])


def calls(events: list[Event]) -> list[tuple[str, str, str]]:
    """The calls of an answer: name, arguments, status."""
    return [(i["name"], i["arguments"], i["status"]) for i in output(events) if i["type"] == "function_call"]


def responses_on(
    backend: Backend, store: ServerStore, options: GenerationOptions | None = None, **more: Any
) -> Responses:
    """Return responses whose background runs have their log in the same store."""
    return Responses(backend, store, Background(store, store.log(ttl=60, lease=20)), options, **more)
