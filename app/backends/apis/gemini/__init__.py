"""Google's `generateContent` API, for AI Studio and Vertex AI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.backends.apis import APIS, Codec, CountingMethod, Post, prompt_fields
from app.backends.apis.gemini.decoder import GeminiDecoder
from app.backends.apis.gemini.encoder import GEMINI_CALLER_FIELDS, to_gemini
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


def _counting_methods(base: httpx.URL, profile: Profile) -> list[CountingMethod]:
    generate = (profile.transport.path or APIS["gemini"].path).partition("?")[0]
    model_path, method, _ = generate.partition(":streamGenerateContent")

    async def counted(body: JSONMapping, post: Post) -> object:
        prompt = prompt_fields(body, ("contents", "systemInstruction", "tools"))
        if model_path.startswith("/models/"):  # AI Studio ignores fields outside the wrapper
            prompt = {"generateContentRequest": {"model": f"models/{body.get('model')}", **prompt}}
        url = model_url(base, f"{model_path}:countTokens", body.get("model"), profile)
        return json_object(await post(url, prompt)).get("totalTokens")

    return [counted] if method else []


GEMINI_CODEC = Codec(
    to_gemini,
    GeminiDecoder,
    GEMINI_CALLER_FIELDS,
    _counting_methods,
    known_error=_error_with_field,
    models_path="/models?pageSize=1000",  # default 50
    listed_model=_listed_model,
)
