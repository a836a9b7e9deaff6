"""
Client APIs: the APIs besides Responses in which clients send requests, translated to responses and back.

A client API is a row of `CLIENT_APIS`: a pure reader (the client's request -> the fields of `CreateResponse`) and a
pure writer (Responses events -> the client's stream or JSON). The run between them is the same as for `/responses`.
Requests to a backend that speaks the client's API are passed through instead: see `app.api.client_apis.translation`.
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
    """A client's request, as its reader returns it."""

    # Fields of `CreateResponse`, not validated yet. Parameters that the Responses API lacks (`stop`, `seed`, `top_k`,
    # ...) are extra fields.
    fields: JSONObject
    warnings: Sequence[str] = ()  # a sentence for each field that was left out or changed
    # The client's name for a field of the Responses request and everything in it, for errors and warnings:
    # `{"input[3]": "messages[2].tool_calls[0].function", "text.format": "response_format.json_schema"}`.
    places: Mapping[str, str] = MappingProxyType({})
    options: Any = None  # for the writer
    # Fields of the Responses request that may be left out where the model's server does not know them:
    # `reasoning.effort`, `prompt_cache_breakpoint`. A refused field is named in a warning.
    preferences: frozenset[str] = frozenset()


class Ending(NamedTuple):
    """How a response ended."""

    response: Response  # completed or incomplete, with output and usage
    stop_sequence: str | None = None  # the stop sequence that ended the text, if known


class ClientWriter(Protocol):
    """Writes a response for a client."""

    def event(self, event: Event) -> bytes:
        """
        Return an event's bytes in the client's stream; b"" for hidden events.

        The first event is `response.created`. Errors, heartbeats and the terminal event are handled by the caller.
        """
        ...

    def end(self, ending: Ending) -> bytes:
        """Return the last bytes of a stream that has not failed."""
        ...

    def document(self, ending: Ending) -> JSONObject:
        """Return the JSON answer."""
        ...


class ClientAPI(NamedTuple):
    """An API in which clients send requests."""

    # Reads a JSON body and the HTTP headers (names in lower case); raises `InvalidRequest`, which names the client's
    # field.
    read: Callable[[JSONObject, Mapping[str, str]], ClientRequest]
    # Creates the writer for a request and its response resource.
    writer: Callable[[ClientRequest, Response], ClientWriter]
    # Returns the hosted tool types in a JSON body, by their names in the Responses API.
    hosted_types: Callable[[JSONObject], set[str]]
    beat: bytes  # the heartbeat of a stream
    headers: Callable[[], Mapping[str, str]] = dict  # additional headers of answers
    counted: Callable[[int], JSONObject] | None = None  # the JSON answer for a token count


# By the endpoint's path: the import paths of the rows.
CLIENT_APIS = {
    "/chat/completions": "app.api.client_apis.chat:CHAT_API",
    "/messages": "app.api.client_apis.messages:MESSAGES_API",
}


@cache
def client_api(path: str) -> ClientAPI | None:
    """Return the client API with this endpoint, such as `/chat/completions`; None if there is none."""
    implementation = CLIENT_APIS.get(path)
    return cast(ClientAPI, import_object(implementation)) if implementation else None
