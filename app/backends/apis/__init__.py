"""
Model server APIs: each encodes questions and decodes answers.

Each API is a row in `APIS`, selected by the profile's `transport.api`. `app.backends.server` does everything else:
connections, credentials, retries, rejections, adaptation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from app.core.profile import Profile
from app.core.types import JSONObject
from app.loading.importing import import_object

if TYPE_CHECKING:  # the settings import this module and must load fast
    import httpx

    from app.core.request.question import EncodedQuestion, Question
    from app.core.stream.answer import AnswerDecoder, ErrorIn

# Posts JSON and returns the JSON response; raises `BackendError`.
Post: TypeAlias = "Callable[[httpx.URL, JSONObject], Awaitable[Any]]"


class TokenCounting(Protocol):
    async def count(self, body: JSONObject, post: Post) -> int | None:
        """Count prompt tokens in an encoded question; None if the server cannot count them."""
        ...


class NoTokenCounting:
    """For servers that cannot count tokens; the caller then estimates."""

    def __init__(self, base: httpx.URL, profile: Profile) -> None: ...

    async def count(self, body: JSONObject, post: Post) -> int | None:
        return None


def _same(value: object) -> Any:
    return value


class Codec(NamedTuple):
    # Returns the request for servers with a profile; raises `InvalidRequest` if it cannot be expressed.
    encode: Callable[[Question, Profile], EncodedQuestion]
    # Returns the decoder for the answer to a request; `ErrorIn` finds errors in events.
    decoder: Callable[[EncodedQuestion, Profile, ErrorIn], AnswerDecoder]
    # Request field to Responses API field, including nested fields. Other fields have the same name.
    caller_fields: Mapping[str, str] = MappingProxyType({})
    # Returns the tokenizer for the server at this base URL.
    tokenizer: Callable[[httpx.URL, Profile], TokenCounting] = NoTokenCounting
    # Converts an error body or event to a form known to `app.backends.server.errors`, for example OpenAI's `{"error":
    # {"message": ...}}`.
    known_error: Callable[[JSONObject], JSONObject] = _same
    # Sent with each request, unless the profile sets them.
    headers: Mapping[str, str] = MappingProxyType({})
    # The server's model list, below the base URL.
    models_path: str = "/models"
    # Returns a list entry with the model name as `id`; None for models without chat.
    listed_model: Callable[[JSONObject], JSONObject | None] = _same


class API(NamedTuple):
    # Below the base URL, with an optional query; `transport.path` overrides it. With `{model}`, the path contains the
    # model name instead of the body.
    path: str
    # Import path to the `Codec`.
    implementation: str

    @property
    def codec(self) -> Codec:
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

# APIs for the option `auto`, in order; the next is used if the server does not have the previous.
AUTOMATIC = ("responses", "chat")


def check_api(profile: Profile) -> None:
    """Raise `ValueError` unless the profile's `transport.api` is an API or `auto`."""
    if profile.transport.api not in {*APIS, "auto"}:
        raise ValueError(f"transport.api: must be {', '.join(map(repr, APIS))} or 'auto'")


def profiles_by_api(profile: Profile) -> list[Profile]:
    """
    Return the profile once per candidate API, best first.

    With `auto` and a custom path, this is the API whose own path ends the custom path, or else chat.
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
    Encode a question for servers with this profile; raises `InvalidRequest` if it cannot be expressed.

    Uses `question.encoded` if it was encoded for this profile.
    """
    if question.descriptions is not None and profile.request.content.images != "pass":
        profile = _with_images(profile)  # the server's client replaces them with descriptions
    encoded = question.encoded
    if encoded and (encoded.profile is profile or encoded.profile == profile):
        return encoded
    return APIS[profiles_by_api(profile)[0].transport.api].codec.encode(question, profile)


def _with_images(profile: Profile) -> Profile:
    content = profile.request.content.model_copy(update={"images": "pass"})
    return profile.model_copy(update={"request": profile.request.model_copy(update={"content": content})})
