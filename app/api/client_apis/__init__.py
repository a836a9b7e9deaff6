"""
Client APIs: request formats other than the Responses API, translated to responses and back.

A client API is a row in `CLIENT_APIS`: a pure reader (client's request to `CreateResponse` fields) and a pure writer
(Responses events to the client's stream or JSON). The run between them is the same as for `/responses`. If the backend
speaks the client's API, requests are forwarded instead: see `app.api.client_apis.translation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

from app.core.types import JSONObject
from app.core.types.request import Event, Response
from app.loading.importing import import_object


class ClientRequest(NamedTuple):
    """A client's request, after its reader."""

    # Unvalidated `CreateResponse` fields. Parameters that the Responses API lacks (`stop`, `seed`, `top_k`, ...) are
    # extra fields.
    fields: JSONObject
    warnings: Sequence[str] = ()  # a sentence for each field dropped or changed
    # Responses field to client field, including nested fields, for errors and warnings: `{"input[3]":
    # "messages[2].tool_calls[0].function", "text.format": "response_format.json_schema"}`.
    client_paths: Mapping[str, str] = MappingProxyType({})
    options: Any = None  # for the writer
    # Responses fields that may be dropped if the model's server rejects them, with a warning: `reasoning.effort`,
    # `prompt_cache_breakpoint`.
    preferences: frozenset[str] = frozenset()


class Ending(NamedTuple):
    response: Response  # completed or incomplete, with output and usage
    stop_sequence: str | None = None  # the stop sequence that ended the text, if known


class ClientWriter(Protocol):
    def event(self, event: Event) -> bytes:
        """
        Return an event's bytes in the client's stream; b"" for hidden events.

        The first event is `response.created`. Errors, heartbeats and the terminal event are handled by the caller.
        """
        ...

    def end(self, ending: Ending) -> bytes:
        """Return the last bytes of a successful stream."""
        ...

    def document(self, ending: Ending) -> JSONObject: ...


class ClientAPI(NamedTuple):
    # Reads a JSON body and HTTP headers (names in lower case); raises `InvalidRequest` with the client's field.
    read: Callable[[JSONObject, Mapping[str, str]], ClientRequest]
    # Creates the writer for a request and its response resource.
    writer: Callable[[ClientRequest, Response], ClientWriter]
    # Returns the hosted tool types in a JSON body, by their Responses API names.
    hosted_types: Callable[[JSONObject], set[str]]
    heartbeat: bytes  # heartbeat in a stream
    headers: Callable[[], Mapping[str, str]] = dict  # additional response headers
    counted: Callable[[int], JSONObject] | None = None  # the JSON answer for a token count


# Import paths by endpoint path.
CLIENT_APIS = {
    "/chat/completions": "app.api.client_apis.chat:CHAT_API",
    "/messages": "app.api.client_apis.messages:MESSAGES_API",
}


@cache
def client_api(path: str) -> ClientAPI | None:
    """Return the client API with this endpoint, for example `/chat/completions`, or None."""
    implementation = CLIENT_APIS.get(path)
    return cast(ClientAPI, import_object(implementation)) if implementation else None
