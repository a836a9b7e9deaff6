"""
The APIs of model servers: how each encodes a question, and decodes the answer to it.

An API is a row of `APIS`, which a profile names (`transport.api`). All else that a server needs is in
`app.backends.server`: connections, credentials, retries, refusals, adaptation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from app.core.profile import Profile
from app.core.types import JSONObject
from app.loading.importing import import_object

if TYPE_CHECKING:  # the settings import this module, and are to be read at once
    import httpx

    from app.core.request.question import EncodedQuestion, Question
    from app.core.stream.answer import AnswerDecoder, ErrorIn

# Posts JSON to a URL, and returns the JSON of the response; raises `BackendError`.
Post: TypeAlias = "Callable[[httpx.URL, JSONObject], Awaitable[Any]]"


class TokenCounting(Protocol):
    """Counts the tokens of prompts for one server."""

    async def count(self, body: JSONObject, post: Post) -> int | None:
        """Return the number of tokens in the prompt of an encoded question; None if the server cannot count them."""
        ...


class NoTokenCounting:
    """For servers that cannot count tokens: they are estimated."""

    def __init__(self, base: httpx.URL, profile: Profile) -> None:
        """There is nothing to ask for."""

    async def count(self, body: JSONObject, post: Post) -> int | None:
        """Return None."""
        return None


def _same(value: object) -> Any:
    return value


class Codec(NamedTuple):
    """What the requests and the answers of an API look like."""

    # Returns the request for a question to servers with a profile; raises `InvalidRequest` if there is none.
    encode: Callable[[Question, Profile], EncodedQuestion]
    # Returns the decoder of the answer to a request; the function finds errors in its events.
    decoder: Callable[[EncodedQuestion, Profile, ErrorIn], AnswerDecoder]
    # The Responses API's field for a field of a request, and for everything inside it; others have the same name.
    caller_fields: Mapping[str, str] = MappingProxyType({})
    # Returns the tokenizer of the server with this base URL.
    tokenizer: Callable[[httpx.URL, Profile], TokenCounting] = NoTokenCounting
    # Returns the JSON of a refusal, or of an event that the decoder takes for an error, with the error where other
    # servers have it: `app.backends.server.errors` knows many forms, OpenAI's `{"error": {"message": ...}}` and others.
    known_error: Callable[[JSONObject], JSONObject] = _same
    # Sent with each request to the server, unless the profile has them.
    headers: Mapping[str, str] = MappingProxyType({})
    # Where the server lists its models, below the base URL.
    models_path: str = "/models"
    # Returns an entry of this list with the model's name as `id`; None for models that do not chat.
    listed_model: Callable[[JSONObject], JSONObject | None] = _same


class API(NamedTuple):
    """An API of model servers."""

    # Where requests are sent, below the base URL, with a query if there is one; `transport.path` overrides it. A path
    # with `{model}` has the model's name in place of the body.
    path: str
    # The import path of its `Codec`.
    implementation: str

    @property
    def codec(self) -> Codec:
        """How its questions are encoded, and its answers decoded."""
        return _imported(self.implementation)


@cache
def _imported(path: str) -> Codec:
    return cast(Codec, import_object(path))


APIS = {
    "chat": API("/chat/completions", "app.backends.apis.chat:CHAT_CODEC"),
    "responses": API("/responses", "app.backends.apis.responses:RESPONSES_CODEC"),
    "messages": API("/messages", "app.backends.apis.messages:MESSAGES_CODEC"),
    "gemini": API("/models/{model}:streamGenerateContent?alt=sse", "app.backends.apis.gemini:GEMINI_CODEC"),
}

# The APIs that a server with the option `auto` is asked by: the next one where it does not have the one before.
AUTOMATIC = ("responses", "chat")


def check_api(profile: Profile) -> None:
    """Raise `ValueError` for a profile whose `transport.api` is neither an API nor `auto`."""
    if profile.transport.api not in {*APIS, "auto"}:
        raise ValueError(f"transport.api: must be {', '.join(map(repr, APIS))} or 'auto'")


def profiles_by_api(profile: Profile) -> list[Profile]:
    """
    Return the profile once for each API that the server may be asked by, the best first.

    With a path of its own, a server with `auto` is asked by the API whose path it ends with, or else by chat.
    """
    options = profile.transport
    if options.api != "auto":
        return [profile]
    names: Sequence[str] = AUTOMATIC
    if options.path:
        names = [next((name for name, api in APIS.items() if (options.path or "").endswith(api.path)), "chat")]
    return [profile.model_copy(update={"transport": options.model_copy(update={"api": name})}) for name in names]


def encode(question: Question, profile: Profile) -> EncodedQuestion:
    """
    Return a question as servers with this profile take it; raises `InvalidRequest` if they cannot.

    This is `question.encoded` if it has this profile.
    """
    if question.descriptions is not None and profile.request.content.images != "pass":
        profile = _with_images(profile)  # the server's client replaces them
    encoded = question.encoded
    if encoded and (encoded.profile is profile or encoded.profile == profile):
        return encoded
    return APIS[profiles_by_api(profile)[0].transport.api].codec.encode(question, profile)


def _with_images(profile: Profile) -> Profile:
    content = profile.request.content.model_copy(update={"images": "pass"})
    return profile.model_copy(update={"request": profile.request.model_copy(update={"content": content})})
