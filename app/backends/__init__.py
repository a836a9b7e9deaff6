"""
Protocols for answer-generating backends.

A backend encodes a `ModelRequest` and yields lists of deltas (`app.core.types.deltas`), a list per network read. It
knows nothing about the Responses API.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import field
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from app.core.profile import Profile
from app.core.request.model_request import Attempts, EncodedRequest, ModelRequest
from app.core.types import JSONObject, frozen
from app.core.types.deltas import Delta, Tap, TokenCounts
from app.errors import NotFound

# Other names in the settings are import paths, `package.module:Class`.
BACKENDS = {
    "demo": "app.backends.demo:DemoBackend",
    "openai": "app.backends.server.client:ModelServer",
}

# Whether the request gets a backend slot last: set for batches.
LOW_PRIORITY: ContextVar[bool] = ContextVar("low_priority", default=False)

PASSTHROUGH = "passthrough"  # a backend API key: forward the caller's key


class Translation(NamedTuple):
    """A request as the server would receive it."""

    backend: str  # name in the settings
    profile: str
    url: str | None  # without credentials and query; None without a server
    body: dict[str, object]
    warnings: list[str]  # a sentence for each omission


class RawBody(Protocol):
    @property
    def length(self) -> int | None: ...  # in bytes; None for chunked encoding
    @property
    def replayable(self) -> bool: ...  # false once a streamed body has been read
    @property
    def media_type(self) -> bytes: ...  # `Content-Type`, so that the backend parses the body like this server

    def with_model(self, model: str) -> RawBody:
        """The body with another model name; no other byte changes."""

    def content(self) -> bytes | AsyncIterator[bytes]:
        """The whole body, or chunks in arrival order."""


@frozen
class RawRequest:
    endpoint: str  # below the base URL, for example `/embeddings`
    query: str  # without the `?`
    received: Sequence[tuple[bytes, bytes]]  # the caller's headers
    body: RawBody
    model: str  # as named by the caller; may be empty
    caller_key: str | None = None  # if the backend forwards it
    # Returns a key shared by a conversation's requests, for replica affinity.
    conversation: Callable[[], str] = str
    retry_allowed: bool = True  # at the same server
    headers: Mapping[str, str] = field(default_factory=dict)  # replace the caller's
    attempts: Attempts = field(default_factory=Attempts, compare=False)


class RawAnswer(Protocol):
    """
    The answer to a raw request, after its head and first bytes.

    Its methods raise `BackendError` if the connection breaks.
    """

    status: int
    headers: list[tuple[bytes, bytes]]  # for the caller, with names in lower case
    first: bytes  # the body's first bytes; may be empty

    async def deliver(self, take: Callable[[bytes], bool]) -> bool:
        """
        Pass each further read to `take` until it returns False; return whether more data may follow.

        The next call continues.
        """

    def usage(self) -> TokenCounts | None: ...

    def estimate(self) -> int:
        """Estimate output tokens, for backends that report no usage."""

    def failed(self) -> bool:
        """Whether an event stream ended with an error event."""


# Entering raises `BackendError`. Leaving closes the connection, unless the answer is complete.
OpenRawRequest: TypeAlias = AbstractAsyncContextManager[RawAnswer]


class DeltaReceiver(Protocol):
    begun: bool  # a delta was received, so another backend can no longer answer
    taps: list[Tap]  # called with all deltas

    @property
    def over(self) -> bool: ...  # whether no more deltas are needed
    @property
    def paused(self) -> bool: ...  # whether `drain` must be awaited before the next deltas

    def receive(self, deltas: Sequence[Delta]) -> bool:
        """Process deltas; return whether more may follow without `drain`."""

    async def drain(self) -> None:
        """Wait until more deltas may follow."""


class OpenRequest(AbstractAsyncContextManager[Any], Protocol):
    """
    A request to a backend and its answer.

    Entering raises `InvalidRequest` if the request cannot be encoded, and `BackendError` if the backend rejects it.
    Leaving closes the connection at once.
    """

    @property
    def warnings(self) -> Sequence[str] | None:
        """Fields dropped or changed in request and answer; None before an answer."""

    async def receive(self, receiver: DeltaReceiver) -> None:
        """
        Pass deltas to `receiver` on arrival, until the answer ends.

        Raises `BackendError` for a reported error or a broken connection, after all earlier deltas.
        """


class DeltaGenerator(OpenRequest):
    """An open request for a generator, which first yields an empty list to accept the request."""

    warnings: Sequence[str] | None = None

    def __init__(self, deltas: AsyncGenerator[list[Delta], None]) -> None:
        self._deltas = deltas

    async def __aenter__(self) -> Self:
        await anext(self._deltas)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._deltas.aclose()

    async def receive(self, receiver: DeltaReceiver) -> None:
        async for deltas in self._deltas:
            if deltas:
                receiver.receive(deltas)
                if receiver.over:
                    return
                await receiver.drain()


class Backend(Protocol):
    """A source for answers. The methods from `count_tokens` on are optional."""

    def profile(self, model: str) -> Profile: ...

    def encode(self, model_request: ModelRequest) -> EncodedRequest:
        """The first request body to try; raises `InvalidRequest`."""

    def open(self, model_request: ModelRequest) -> OpenRequest:
        """Entering the context sends the request."""

    async def models(self, caller_key: str | None = None) -> list[JSONObject]:
        """Available models, as entries in OpenAI's list: `id`, `object`, `created`, `owned_by`."""

    async def check(self) -> None:
        """Raises `BackendError` if the backend cannot be reached."""

    async def aclose(self) -> None: ...

    async def count_tokens(self, model_request: ModelRequest) -> int | None:
        """Count prompt tokens; None if unsupported."""
        return None

    def undescribed_images(self, model_request: ModelRequest) -> list[str]:
        """
        URLs of images without a description, if the model is known not to accept images.

        If discovered later, entering the open request raises `ImagesUndescribed`.
        """
        return []

    def refuses_images(self, model: str) -> bool:
        """Whether the model is known not to accept images."""
        return False

    def translation(self, model_request: ModelRequest) -> Translation:
        """The request, without sending it; raises `APIError` like `open`."""
        encoded = self.encode(model_request)
        return Translation("default", self.profile(model_request.model).name, None, encoded.body, [])

    def forwards(self, endpoint: str, model: str) -> bool:
        """Whether `forward` supports an endpoint, for example `/embeddings`."""
        return False

    def forward(self, request: RawRequest) -> OpenRawRequest:
        """Entering the context sends the request."""
        raise NotFound(f"This backend has no {request.endpoint}.", code="unknown_url")


class RequestObservation(Protocol):
    """An observer's record for a request. Methods must be fast and must not raise."""

    @property
    def headers(self) -> Mapping[str, str]: ...  # to add to the request, or to replace
    @property
    def tap(self) -> Tap | None: ...  # called with the answer's deltas

    def accepted(self, answer: OpenRequest | RawAnswer) -> None: ...

    def end(self, error: BaseException | None) -> None:
        """`error`: the failure, if any."""


# Called before a request, with the backend's name and the server's number in the settings.
RequestObserver: TypeAlias = Callable[[Backend, ModelRequest | RawRequest, tuple[str, str]], RequestObservation]
