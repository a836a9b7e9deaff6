"""Counts prompt tokens with the model's `countTokens` method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.backends.apis import APIS, Post
from app.backends.apis.token_counting import ABSENT
from app.backends.server.endpoints import model_url
from app.core.profile import Profile
from app.core.types import JSONMapping, JSONObject
from app.errors import BackendError

if TYPE_CHECKING:
    import httpx

_PROMPT = ("contents", "systemInstruction", "tools")


class GeminiTokenizer:
    """Counts prompt tokens at one server."""

    def __init__(self, base: httpx.URL, profile: Profile) -> None:
        generate = (profile.transport.path or APIS["gemini"].path).partition("?")[0]
        model, method, _ = generate.partition(":streamGenerateContent")
        self._path = f"{model}:countTokens" if method else None
        self._wrapped = model.startswith("/models/")  # AI Studio ignores other fields outside the wrapper
        self._base = base
        self._profile = profile

    async def count(self, body: JSONMapping, post: Post) -> int | None:
        if self._path is None:
            return None
        try:
            url = model_url(self._base, self._path, body.get("model"), self._profile)
            answer = await post(url, self._request(body))
        except BackendError as error:
            if error.code in ABSENT:
                self._path = None
            return None
        count = answer.get("totalTokens") if isinstance(answer, dict) else None
        return count if isinstance(count, int) else None

    def _request(self, body: JSONMapping) -> JSONObject:
        prompt = {name: body[name] for name in _PROMPT if name in body}
        if not self._wrapped:
            return prompt
        return {"generateContentRequest": {"model": f"models/{body.get('model')}", **prompt}}
