"""
Client APIs: request formats other than the Responses API, translated to responses and back.

Each row in `CLIENT_APIS` has a pure reader (client's request to `CreateResponse` fields), which also chooses the pure
writer (Responses events to the client's stream or JSON) and its options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, Protocol, cast

from app.core.types import JSONObject
from app.core.types.request import Event, Response
from app.errors import APIError
from app.loading import import_object

_QUOTED = re.compile(r"'([\w.\[\]]+)'")


class ClientWriter(Protocol):
    def event(self, event: Event) -> bytes:
        """
        An event's bytes in the client's stream; b"" for hidden events.

        The first event is `response.created`. The caller writes errors, heartbeats and the terminal event.
        """
        ...

    # The response is completed or incomplete, with output and usage.

    def end(self, response: Response, stop_sequence: str | None = None) -> bytes: ...

    def document(self, response: Response, stop_sequence: str | None = None) -> JSONObject: ...


class ClientRequest(NamedTuple):
    # Unvalidated `CreateResponse` fields, and `stop`, `seed` and others that the Responses API lacks.
    fields: JSONObject
    writer: Callable[[], ClientWriter]
    warnings: Sequence[str] = ()  # a sentence per dropped or changed field
    # Responses field to client field, for errors and warnings: `{"input[3]": "messages[2].tool_calls[0].function"}`.
    client_paths: Mapping[str, str] = MappingProxyType({})
    # Dropped with a warning if the backend rejects them, for example `reasoning.effort`.
    preferences: frozenset[str] = frozenset()


class ClientAPI(NamedTuple):
    # Reads a JSON body and HTTP headers (names in lower case); raises `InvalidRequest` with the client's field.
    read: Callable[[JSONObject, Mapping[str, str]], ClientRequest]
    # Hosted tool types in a JSON body, by Responses API names.
    hosted_types: Callable[[JSONObject], set[str]]
    heartbeat: bytes
    headers: Callable[[], Mapping[str, str]] = dict


# By endpoint path.
CLIENT_APIS = {
    "/chat/completions": "app.api.client_apis.chat:CHAT_API",
    "/messages": "app.api.client_apis.messages:MESSAGES_API",
}


@cache
def client_api(path: str) -> ClientAPI | None:
    implementation = CLIENT_APIS.get(path)
    return cast(ClientAPI, import_object(implementation)) if implementation else None


def client_path(field: str, client_paths: Mapping[str, str]) -> str:
    """Translate a field's path by the longest matching prefix in `client_paths`."""
    end = len(field)
    while end > 0:
        if (path := client_paths.get(field[:end])) is not None:
            return path + field[end:]
        end = max(field.rfind(".", 0, end), field.rfind("[", 0, end))
    return field


def rename_error(error: APIError, client_paths: Mapping[str, str]) -> APIError:
    """Translate the paths in the error's `param` and message, in place."""
    param = error.param
    if param and (path := client_path(param, client_paths)) != param:
        error.message = error.message.replace(f"'{param}'", f"'{path}'")
        error.param = path
        error.args = (error.message,)
    return error


def renamed_warnings(warnings: Iterable[str], client_paths: Mapping[str, str]) -> Iterator[str]:
    """Translate the paths in quotation marks."""
    for warning in warnings:
        yield _QUOTED.sub(lambda quoted: f"'{client_path(quoted[1], client_paths)}'", warning)
