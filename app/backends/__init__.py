"""
The protocol of backends, which generate the answers.

A backend receives Chat Completions requests and yields chunks (`app.core.types.chunk`) in lists, one list per network
read. It knows nothing of Responses. A backend that cannot stream yields one chunk whose `delta` is the whole message,
so there is no second path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from app.core.profile import Profile
from app.core.types.chunk import DONE, Chunk, Receiver
from app.errors import BackendError

__all__ = [
    "BACKENDS",
    "DONE",
    "PASSTHROUGH",
    "Backend",
    "BackendWrapper",
    "ChatRequest",
    "Chunk",
    "RawAnswer",
    "RawBackend",
    "RawBody",
    "RawRequest",
    "RefusedRequest",
    "TokenCounter",
    "Translation",
    "Translator",
]

# By name. Any other name is an import path, `package.module:Class`.
BACKENDS = {
    "demo": "app.backends.demo:DemoBackend",
    "openai": "app.backends.chat.client:OpenAIBackend",
}

PASSTHROUGH = "passthrough"  # as a backend's API key: forward the caller's own


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request to a backend."""

    body: dict[str, Any]  # the Chat Completions request with `stream: true`; not to be changed
    caller_key: str | None = None  # for backends that pass it through
    conversation: str = ""  # the same for all turns of a conversation: the key of its chain, or `prompt_cache_key`
    model: str = ""  # as the caller named it; "" for the one in the body
    profile: Profile | None = None  # that the body was translated for
    translate_for: Callable[[Profile], dict[str, Any]] | None = (
        None  # returns the body for another profile; raises `InvalidRequest`
    )
    retry_allowed: bool = True  # at the same server; false if there is another one to try
    headers: Mapping[str, str] = field(default_factory=dict)  # additional ones, such as the trace context
    warnings: list[str] = field(default_factory=list)  # the backend adds a sentence for each thing that it left out
    large: bool = False  # whether the body takes so long to encode or to count that this is done in a thread
    content_traceable: bool = False  # whether traces may have its content: never with `store: false`
    answered_by: list[str] = field(default_factory=list)  # the backends that answered add their names in the settings
    # Takes chunks that arrive while the iterator is awaited, and returns True; it is not called before the first item.
    # For False they are an item. A backend need not call it, and a wrapper that reads the chunks replaces it.
    receiver: Receiver | None = None


class Backend(Protocol):
    """A source of Chat Completions chunks."""

    def profile(self, model: str) -> Profile:
        """Return the profile of the server for this model."""
        ...

    def stream(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Chunk]]]:
        """
        Send a request, and return the answer in chunks.

        Entering the context returns once the backend has accepted the request, and raises `BackendError` otherwise. The
        iterator yields a list of chunks per network read, until `DONE` or the end of the body. If the backend reports
        an error or the connection breaks, it raises `BackendError` after all chunks that were received before. Leaving
        the context closes the connection at once.
        """
        ...

    async def models(self, caller_key: str | None = None) -> list[dict[str, Any]]:
        """Return the available models, as entries of OpenAI's list: `id`, `object`, `created`, `owned_by`."""
        ...

    async def check(self) -> None:
        """Return if the backend can be reached; raises `BackendError` if not."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class TokenCounter(Protocol):
    """A backend that can count the tokens of a prompt."""

    async def count_tokens(self, request: ChatRequest) -> int | None:
        """Return the number of tokens in the prompt of a request; None if the server cannot count them."""
        ...


class Translation(NamedTuple):
    """A request as it would be sent to a server."""

    backend: str  # its name in the settings
    profile: str
    url: str | None  # without credentials and query; None if there is no server
    body: dict[str, Any]
    warnings: list[str]  # a sentence for each thing that was left out


@runtime_checkable
class Translator(Protocol):
    """A backend that can return what it would send, without sending it."""

    def translation(self, request: ChatRequest) -> Translation:
        """Return the request as it would be sent; raises the `APIError` that `stream` would raise."""
        ...


class RawBody(Protocol):
    """The body of a request that is passed on as bytes."""

    @property
    def length(self) -> int | None:
        """The size in bytes; None if it is not known, and the body is sent in chunks."""
        ...

    @property
    def replayable(self) -> bool:
        """Whether the body can still be sent from its start: false once a body that streams in has been read."""
        ...

    def with_model(self, model: str) -> RawBody:
        """Return the body with another model's name; no other byte changes."""
        ...

    def content(self) -> bytes | AsyncIterator[bytes]:
        """Return the bytes, whole or as they arrive."""
        ...


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request to an endpoint of a backend that is passed on as bytes."""

    endpoint: str  # below the base URL, such as `/embeddings`
    query: str  # without the `?`; empty for none
    headers: Sequence[tuple[bytes, bytes]]  # those for the backend: end-to-end, without credentials
    body: RawBody
    model: str  # as the caller named it; empty if the request names none
    caller_key: str | None = None  # for backends that pass it through
    conversation: str = ""  # the same for all requests of a conversation, so that they go to one replica
    retry_allowed: bool = True  # whether a failure may be retried at the same server
    answered_by: list[str] = field(default_factory=list)  # the backends that answered add their names in the settings


class RefusedRequest(BackendError):
    """A backend's refusal of a raw request that is the caller's to read: it is passed on byte for byte."""

    def __init__(self, error: BackendError, headers: Sequence[tuple[bytes, bytes]], content: bytes) -> None:
        super().__init__(
            error.message,
            param=error.param,
            code=error.code,
            error_type=error.type,
            status=error.status,
            retry_after=error.retry_after,
        )
        self.quoted = error.quoted
        self.raw_headers = headers
        self.content = content


class RawAnswer(Protocol):
    """The answer to a raw request: a status, headers, and the body as it arrives, one item for each network read."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """The headers for the caller: end-to-end, their names in lower case."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def __anext__(self) -> bytes: ...

    def usage(self) -> dict[str, Any] | None:
        """Return the usage that the body reported, in the form of Chat Completions; None if it reported none."""
        ...

    def estimate(self) -> int:
        """Return about how many tokens of output the body had so far, for backends that report no usage."""
        ...


@runtime_checkable
class RawBackend(Protocol):
    """A backend that passes on requests to its other endpoints as bytes."""

    def forward(self, request: RawRequest) -> AbstractAsyncContextManager[RawAnswer]:
        """
        Send a request, and return the answer once its head is known.

        Entering the context raises `RefusedRequest` for a refusal that the caller may read, and `BackendError` for
        other failures. The iterator raises `BackendError` where the connection breaks. Leaving the context closes the
        connection, unless the answer is complete.
        """
        ...


class BackendWrapper:
    """The base of backends that wrap another: passes on everything except `stream` and `forward`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.profile, self.models = backend.profile, backend.models
        self.check, self.aclose = backend.check, backend.aclose
        if isinstance(backend, TokenCounter):
            self.count_tokens = backend.count_tokens
        if isinstance(backend, Translator):
            self.translation = backend.translation
