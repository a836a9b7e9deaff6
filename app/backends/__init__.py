"""
Who generates.

A backend is asked in Chat Completions and answers in chunks (`app.core.types.chunk` has their form): lists of them, one
list for each read from the network, since what arrived together leaves together. It knows nothing of Responses. A
backend that cannot stream yields one chunk whose `delta` is the whole message: there is no second path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from app.core.profile import Profile
from app.core.types.chunk import DONE, Chunk
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

# By name. A name that is not here is an import path, `package.module:Class`.
BACKENDS = {
    "demo": "app.backends.demo:DemoBackend",
    "openai": "app.backends.chat.client:OpenAIBackend",
}

PASSTHROUGH = "passthrough"  # as a backend's API key: forward the caller's own


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question to a backend."""

    body: dict[str, Any]  # of the Chat Completions request, `stream: true` included; not to be changed
    caller_key: str | None = None  # the caller's own API key, for backends that pass it through
    conversation: str = ""  # the same for all turns of a conversation: its chain's key or `prompt_cache_key`
    model: str = ""  # as the caller named it; empty: as in the body
    profile: Profile | None = None  # for which the body was made
    translate_for: Callable[[Profile], dict[str, Any]] | None = None  # the same for another; raises `InvalidRequest`
    retry_allowed: bool = True  # may a refusal be met by asking again? not if there is another server to ask
    headers: Mapping[str, str] = field(default_factory=dict)  # to send, such as a trace's context
    warnings: list[str] = field(default_factory=list)  # whoever answers says here what was left out, a sentence each
    answered_by: list[str] = field(default_factory=list)  # the backends that answered add their names in the settings


class Backend(Protocol):
    """A source of Chat Completions chunks."""

    def profile(self, model: str) -> Profile:
        """Return what is known of the server that would answer for this model."""
        ...

    def stream(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Chunk]]]:
        """
        Ask, and answer in chunks.

        Entering the context returns once the backend's status line is known to be good, and raises `BackendError`
        otherwise. The iterator yields one list of chunks for each read and ends after `DONE`, or where the body
        ends; it raises `BackendError` where the backend reports an error or the connection breaks, after having
        yielded all that came before. Leaving the context closes the connection at once.
        """
        ...

    async def models(self, caller_key: str | None = None) -> list[dict[str, Any]]:
        """Return the models on offer, as entries of the OpenAI list: `id`, `object`, `created`, `owned_by`."""
        ...

    async def check(self) -> None:
        """Return if the backend can be reached; raise `BackendError` if not."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class TokenCounter(Protocol):
    """A backend that can count the tokens of a prompt."""

    async def count_tokens(self, request: ChatRequest) -> int | None:
        """Return how many tokens the prompt of a request is; None if the server does not say."""
        ...


class Translation(NamedTuple):
    """The request that a server would be sent."""

    backend: str  # its name in the settings
    profile: str
    url: str | None  # without credentials and query; None if no server is asked
    body: dict[str, Any]
    warnings: list[str]  # what was left out, a sentence each


@runtime_checkable
class Translator(Protocol):
    """A backend that can say what it would send, without sending it."""

    def translation(self, request: ChatRequest) -> Translation:
        """Return what would be sent; raises `APIError` as `stream` does where it cannot be."""
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
            type=error.type,
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
    """What a backend around another one passes on: all but `stream` and `forward`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.profile, self.models = backend.profile, backend.models
        self.check, self.aclose = backend.check, backend.aclose
        if isinstance(backend, TokenCounter):
            self.count_tokens = backend.count_tokens
        if isinstance(backend, Translator):
            self.translation = backend.translation
