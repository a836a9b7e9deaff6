"""
The protocol of backends, which generate the answers.

A backend encodes a `Question` (`app.core.request.question`) itself. Its answer comes in lists of deltas
(`app.core.types.deltas`), one list per network read. A backend knows nothing of Responses. One that cannot stream
returns the whole message in few deltas, so there is no second path.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import field, replace
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias

from app.core.profile import Profile
from app.core.request.question import Attempts, EncodedQuestion, Question
from app.core.stream.answer import Tap
from app.core.types import JSONObject
from app.core.types.deltas import DONE, Delta
from app.core.types.frozen import frozen
from app.errors import BackendError, NotFound

__all__ = [
    "BACKENDS",
    "DONE",
    "LOW_PRIORITY",
    "PASSTHROUGH",
    "AnswerReceiver",
    "Backend",
    "BackendExchange",
    "Delta",
    "EncodedQuestion",
    "ExchangeObservation",
    "ExchangeObserver",
    "GeneratedExchange",
    "Question",
    "RawAnswer",
    "RawBody",
    "RawExchange",
    "RawRequest",
    "RefusedRequest",
    "Tap",
    "Translation",
]

# By name. Any other name is an import path, `package.module:Class`.
BACKENDS = {
    "demo": "app.backends.demo:DemoBackend",
    "openai": "app.backends.server.client:ModelServer",
}

# Whether a request waits behind all others for a place of its backend: set for the requests of batches.
LOW_PRIORITY: ContextVar[bool] = ContextVar("low_priority", default=False)

PASSTHROUGH = "passthrough"  # as a backend's API key: forward the caller's own


class Translation(NamedTuple):
    """A request as it would be sent to a server."""

    backend: str  # its name in the settings
    profile: str
    url: str | None  # without credentials and query; None if there is no server
    body: dict[str, object]
    warnings: list[str]  # a sentence for each thing that was left out


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

    @property
    def media_type(self) -> bytes:
        """The value of `Content-Type`, by which the backend is to read the body as it was read here."""
        ...

    def with_model(self, model: str) -> RawBody:
        """Return the body with another model's name; no other byte changes."""
        ...

    def content(self) -> bytes | AsyncIterator[bytes]:
        """Return the bytes, whole or as they arrive."""
        ...


@frozen
class RawRequest:
    """A request to an endpoint of a backend that is passed on as bytes."""

    endpoint: str  # below the base URL, such as `/embeddings`
    query: str  # without the `?`; empty for none
    headers: Sequence[tuple[bytes, bytes]]  # those for the backend: end-to-end, without credentials
    body: RawBody
    model: str  # as the caller named it; empty if the request names none
    caller_key: str | None = None  # for backends that pass it through
    # Returns what is the same for all requests of a conversation, so that they go to one replica.
    conversation: Callable[[], str] = str
    retry_allowed: bool = True  # whether a failure may be retried at the same server
    attempts: Attempts = field(default_factory=Attempts, compare=False)

    def with_headers(self, added: Mapping[str, str]) -> RawRequest:
        """Return the request with headers in place of those of the same names."""
        fields = [(name.encode(), value.encode()) for name, value in added.items()]
        replaced = {name for name, _ in fields}
        return replace(self, headers=[*(field for field in self.headers if field[0] not in replaced), *fields])


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
        self.quoted, self.retryable = error.quoted, error.retryable
        self.raw_headers = headers
        self.content = content


class RawAnswer(Protocol):
    """The answer to a raw request: a status, headers, and the body as it arrives."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """The headers for the caller: end-to-end, their names in lower case."""
        ...

    async def first(self) -> bytes:
        """Wait for the first bytes of the body, and return them; none if it is empty."""
        ...

    async def deliver(self, take: Callable[[bytes], bool]) -> bool:
        """
        Pass each further read of the body to `take` as it is received, until that returns False.

        Returns whether there may be more, which the next call passes on.
        """
        ...

    def usage(self) -> JSONObject | None:
        """Return the usage that the body reported, in the form of Chat Completions; None if it reported none."""
        ...

    def estimate(self) -> int:
        """Return about how many tokens of output the body had so far, for backends that report no usage."""
        ...

    def failed(self) -> bool:
        """Return whether the body, an event stream, ended with an error that the backend reported in it."""
        ...


class RawExchange(Protocol):
    """
    A raw request to a backend: a context manager that returns the answer once its head is known.

    Entering the context raises `RefusedRequest` for a refusal that the caller may read, and `BackendError` for other
    failures. The methods of the answer raise `BackendError` where the connection breaks. Leaving the context closes the
    connection, unless the answer is complete.
    """

    async def __aenter__(self) -> RawAnswer: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AnswerReceiver(Protocol):
    """Takes the deltas of an answer."""

    begun: bool  # whether there was a delta; until then another backend may answer in place of this one
    taps: list[Tap]  # what observers want to be shown the deltas

    @property
    def over(self) -> bool:
        """Whether no more deltas are wanted, so that the answer ends here."""
        ...

    @property
    def slow(self) -> bool:
        """Whether the client is slow, so that `ready` has to be awaited before more deltas are passed on."""
        ...

    def receive(self, deltas: Sequence[Delta]) -> bool:
        """Take the next deltas; return whether more may follow at once, without `ready`."""
        ...

    async def ready(self) -> None:
        """Wait until more may follow."""
        ...


class BackendExchange(Protocol):
    """
    A question to a backend, and its answer: a context manager.

    Entering the context returns once the backend has accepted the question, and raises `InvalidRequest` if it cannot be
    asked, `BackendError` if it refuses. Leaving the context closes the connection at once.
    """

    @property
    def warnings(self) -> Sequence[str] | None:
        """What was left out or changed for the server that answers, one sentence each; None until one does."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def receive(self, receiver: AnswerReceiver) -> None:
        """
        Pass the deltas of the answer on as they are received, until the end of the answer.

        If the backend reports an error or the connection breaks, this raises `BackendError` after all deltas that were
        received before.
        """
        ...


class GeneratedExchange(BackendExchange):
    """An exchange whose answer an asynchronous generator yields: first an empty list, once it accepts the question."""

    warnings: Sequence[str] | None = None

    def __init__(self, generate: Callable[[], AsyncGenerator[list[Delta], None]]) -> None:
        self._deltas = generate()

    async def __aenter__(self) -> Self:
        await anext(self._deltas)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._deltas.aclose()

    async def receive(self, receiver: AnswerReceiver) -> None:
        async for deltas in self._deltas:
            if deltas:
                receiver.receive(deltas)
                if receiver.over:
                    return
                await receiver.ready()


class Backend(Protocol):
    """A source of answers. Implementations inherit from it, and may leave out the methods from `count_tokens` on."""

    def profile(self, model: str) -> Profile:
        """Return the profile of the server for this model."""
        ...

    def encode(self, question: Question) -> EncodedQuestion:
        """Return a question as it would be sent first; raises `InvalidRequest` if it cannot be sent."""
        ...

    def open(self, question: Question) -> BackendExchange:
        """Return the exchange of a question, which is sent when the exchange is entered."""
        ...

    async def models(self, caller_key: str | None = None) -> list[JSONObject]:
        """Return the available models, as entries of OpenAI's list: `id`, `object`, `created`, `owned_by`."""
        ...

    async def check(self) -> None:
        """Return if the backend can be reached; raises `BackendError` if not."""
        ...

    async def aclose(self) -> None: ...

    async def count_tokens(self, question: Question) -> int | None:
        """Return the number of tokens in the prompt of a question; None if the backend cannot count them."""
        return None

    def undescribed_images(self, question: Question) -> list[str]:
        """
        Return the URLs of images that lack a description, if the model of a question is known to accept no images.

        If it turns out later, entering the exchange raises `ImagesUndescribed`.
        """
        return []

    def refuses_images(self, model: str) -> bool:
        """Return whether a model is known to accept no images, by the profile or by an earlier refusal."""
        return False

    def translation(self, question: Question) -> Translation:
        """Return a question as it would be sent, without sending it; raises the `APIError` that `open` would raise."""
        encoded = self.encode(question)
        return Translation("default", self.profile(question.model).name, None, encoded.body, [])

    def forwards(self, endpoint: str, model: str) -> bool:
        """Return whether `forward` passes on requests for a model to an endpoint, such as `/embeddings`."""
        return False

    def forward(self, request: RawRequest) -> RawExchange:
        """Return the exchange of a request that is passed on as bytes, and sent when the exchange is entered."""
        raise NotFound(f"This backend has no {request.endpoint}.", code="unknown_url")


class ExchangeObservation(Protocol):
    """An observer's record of one request to a server. Its methods must be fast and must not raise."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers to send with the request; they replace others with the same names."""
        ...

    @property
    def tap(self) -> Tap | None:
        """A function that is called with the deltas of the answer."""
        ...

    def accepted(self, answer: BackendExchange | RawAnswer) -> None:
        """Handle the server's acceptance of the request."""
        ...

    def end(self, error: BaseException | None) -> None:
        """Handle the end; `error` is the cause if the request failed."""
        ...


# Is called before a request is sent, with the server's backend name and its number in the settings.
ExchangeObserver: TypeAlias = Callable[[Backend, Question | RawRequest, tuple[str, str]], ExchangeObservation]
