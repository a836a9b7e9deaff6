"""Counts the tokens of a prompt by means of the server: OpenAI's endpoint for it, which other servers have copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.backends.apis import Post
from app.backends.server.errors.classification import ERROR_CLASSES
from app.core.profile import Profile
from app.core.types import JSONObject
from app.errors import BackendError

if TYPE_CHECKING:
    import httpx

_ABSENT = {ERROR_CLASSES["url"].code, ERROR_CLASSES["missing"].code}

# The fields of a request that determine its prompt.
_PROMPT = ("model", "instructions", "input", "tools", "tool_choice", "text", "reasoning", "parallel_tool_calls")


class InputTokenizer:
    """Counts the tokens of prompts for the server with this base URL."""

    def __init__(self, base: httpx.URL, profile: Profile) -> None:
        self._url = base.copy_with(path=f"{base.path.rstrip('/')}/responses/input_tokens")
        if profile.transport.query:
            self._url = self._url.copy_merge_params(profile.transport.query)
        self._absent = False

    async def count(self, body: JSONObject, post: Post) -> int | None:
        if self._absent:
            return None
        try:
            answer = await post(self._url, {name: body[name] for name in _PROMPT if name in body})
        except BackendError as error:
            self._absent = error.code in _ABSENT
            return None
        count = answer.get("input_tokens") if isinstance(answer, dict) else None
        return count if isinstance(count, int) else None
