"""Model server APIs, as rows in `APIS`: encode model requests, decode answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from app.core.profile import Profile
from app.core.types import JSONMapping, JSONObject, json_object
from app.loading import import_object

if TYPE_CHECKING:  # the settings import this module, which must load fast
    import httpx

    from app.backends.apis.api_decoder import APIDecoder, ErrorIn
    from app.core.request.model_request import EncodedRequest, ModelRequest


# Both raise `BackendError`. A method reads the token count from the answers for an encoded model request.
Post: TypeAlias = "Callable[[httpx.URL, JSONObject], Awaitable[Any]]"
CountingMethod: TypeAlias = Callable[[JSONMapping, Post], Awaitable[object]]


def _same(value: object) -> Any:
    return value


class Codec(NamedTuple):
    # Raises `InvalidRequest` with the field that the API cannot express.
    encode: Callable[[ModelRequest, Profile], EncodedRequest]
    decoder: Callable[[EncodedRequest, Profile, ErrorIn], APIDecoder]
    # Request field to Responses API field, including nested fields, if the names differ.
    caller_fields: Mapping[str, str] = MappingProxyType({})
    # For the prompt's tokens, best first, below a base URL; empty if the server does not count.
    counting_methods: Callable[[httpx.URL, Profile], Sequence[CountingMethod]] = lambda base, profile: ()
    # Converts an error to a form known to `app.backends.server.errors`, for example OpenAI's `{"error": {"message":
    # ...}}`.
    known_error: Callable[[JSONObject], JSONObject] = _same
    # Sent unless the profile sets them.
    headers: Mapping[str, str] = MappingProxyType({})
    models_path: str = "/models"
    # Returns a list entry with the model name as `id`; None for models without chat.
    listed_model: Callable[[JSONObject], JSONObject | None] = _same


class API(NamedTuple):
    # Below the base URL, with an optional query; `transport.path` overrides it. With `{model}`, the body has no model.
    path: str
    implementation: str

    @property
    def codec(self) -> Codec:
        return cast(Codec, import_object(self.implementation))


APIS = {
    "chat": API("/chat/completions", "app.backends.apis.chat:CHAT_CODEC"),
    "responses": API("/responses", "app.backends.apis.responses:RESPONSES_CODEC"),
    "messages": API("/messages", "app.backends.apis.messages:MESSAGES_CODEC"),
    "gemini": API("/models/{model}:streamGenerateContent?alt=sse", "app.backends.apis.gemini:GEMINI_CODEC"),
}

# For the option `auto`, in order.
AUTOMATIC = ("responses", "chat")


def check_api(profile: Profile) -> None:
    if profile.transport.api not in {*APIS, "auto"}:
        raise ValueError(f"transport.api: must be {', '.join(map(repr, APIS))} or 'auto'")


def profiles_by_api(profile: Profile) -> list[Profile]:
    """
    The profile once per candidate API, best first.

    With `auto`, a custom path's end determines the API; the default is chat.
    """
    options = profile.transport
    if options.api != "auto":
        return [profile]
    names: Sequence[str] = AUTOMATIC
    if options.path:
        names = [next((name for name, api in APIS.items() if (options.path or "").endswith(api.path)), "chat")]
    return [replace(profile, transport=replace(options, api=name)) for name in names]


def encode(model_request: ModelRequest, profile: Profile, codec: Codec | None = None) -> EncodedRequest:
    """
    Encode a model request, unless `model_request.encoded` has the same profile; raises `InvalidRequest`.

    Without a `codec`, the profile's first API is used.
    """
    if model_request.descriptions is not None and profile.request.content.images != "pass":
        # The client replaces images with descriptions.
        content = replace(profile.request.content, images="pass")
        profile = replace(profile, request=replace(profile.request, content=content))
    encoded = model_request.encoded
    if encoded and (encoded.profile is profile or encoded.profile == profile):
        return encoded
    codec = codec or APIS[profiles_by_api(profile)[0].transport.api].codec
    return codec.encode(model_request, profile)


def endpoint_method(url: httpx.URL, prompt: Iterable[str], count: str, **added: object) -> CountingMethod:
    """Sends the body's `prompt` fields; the answer's field `count` is the number."""

    async def counted(body: JSONMapping, post: Post) -> object:
        return json_object(await post(url, prompt_fields(body, prompt) | added)).get(count)

    return counted


def prompt_fields(body: JSONMapping, names: Iterable[str]) -> JSONObject:
    return {name: body[name] for name in names if name in body}
