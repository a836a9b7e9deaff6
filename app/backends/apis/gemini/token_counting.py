from __future__ import annotations

from typing import TYPE_CHECKING

from app.backends.apis import APIS, NoTokenCounting, TokenCounting
from app.backends.apis.token_counting import EndpointTokenizer
from app.backends.server.endpoints import model_url
from app.core.profile import Profile
from app.core.types import JSONMapping, JSONObject

if TYPE_CHECKING:
    import httpx

_PROMPT = ("contents", "systemInstruction", "tools")


def gemini_tokenizer(base: httpx.URL, profile: Profile) -> TokenCounting:
    generate = (profile.transport.path or APIS["gemini"].path).partition("?")[0]
    model, method, _ = generate.partition(":streamGenerateContent")
    return GeminiTokenizer(base, f"{model}:countTokens", profile) if method else NoTokenCounting(base, profile)


class GeminiTokenizer(EndpointTokenizer):
    total = "totalTokens"

    def __init__(self, base: httpx.URL, path: str, profile: Profile) -> None:
        super().__init__(base, _PROMPT)
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
