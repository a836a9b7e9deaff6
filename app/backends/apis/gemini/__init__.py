"""Google's `generateContent` API, for AI Studio and Vertex AI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.backends.apis import APIS, Codec, NoTokenCounting, TokenCounting
from app.backends.apis.gemini.decoder import GeminiDecoder
from app.backends.apis.gemini.encoder import GEMINI_CALLER_FIELDS, to_gemini
from app.backends.apis.token_counting import EndpointTokenizer
from app.backends.server.endpoints import model_url
from app.core.profile import Profile
from app.core.types import JSONMapping, JSONObject, json_list, json_object, json_objects, json_text

if TYPE_CHECKING:
    import httpx


def _listed_model(entry: JSONObject) -> JSONObject | None:
    """None for models that do not generate text."""
    methods = json_list(entry.get("supportedGenerationMethods"))
    if methods and "generateContent" not in methods:
        return None
    return {"owned_by": "google", **entry, "id": json_text(entry.get("name")).rpartition("/")[2]}


def _error_with_field(document: JSONObject) -> JSONObject:
    """Copy the invalid field's name to `param`."""
    error = json_object(document.get("error"))
    for detail in json_objects(error.get("details")):
        for violation in json_objects(detail.get("fieldViolations")):
            if field := violation.get("field"):
                return {**document, "error": {**error, "param": field}}
    return document


def _tokenizer(base: httpx.URL, profile: Profile) -> TokenCounting:
    generate = (profile.transport.path or APIS["gemini"].path).partition("?")[0]
    model, method, _ = generate.partition(":streamGenerateContent")
    return _Tokenizer(base, f"{model}:countTokens", profile) if method else NoTokenCounting(base, profile)


class _Tokenizer(EndpointTokenizer):
    total = "totalTokens"

    def __init__(self, base: httpx.URL, path: str, profile: Profile) -> None:
        super().__init__(base, ("contents", "systemInstruction", "tools"))
        self._path = path
        self._profile = profile

    def url(self, body: JSONMapping) -> httpx.URL:
        return model_url(self._url, self._path, body.get("model"), self._profile)

    def prompt(self, body: JSONMapping) -> JSONObject:
        prompt = super().prompt(body)
        if not self._path.startswith("/models/"):
            return prompt
        # AI Studio ignores fields outside the wrapper.
        return {"generateContentRequest": {"model": f"models/{body.get('model')}", **prompt}}


GEMINI_CODEC = Codec(
    to_gemini,
    GeminiDecoder,
    GEMINI_CALLER_FIELDS,
    _tokenizer,
    known_error=_error_with_field,
    models_path="/models?pageSize=1000",  # default 50
    listed_model=_listed_model,
)
