"""Counts the tokens of a prompt by means of the server, at `count_tokens`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.backends.apis import Post
from app.backends.server.errors.classification import ERROR_CLASSES
from app.core.profile import Profile
from app.core.types import JSONMapping
from app.errors import BackendError

if TYPE_CHECKING:
    import httpx

_PROMPT = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
_ABSENT = {ERROR_CLASSES["url"].code, ERROR_CLASSES["missing"].code}


class MessagesTokenizer:
    """Counts the tokens of prompts for the server with this base URL."""

    def __init__(self, base: httpx.URL, profile: Profile) -> None:
        path = (profile.transport.path or "/messages").strip("/")
        has_it = path.endswith("messages")  # Vertex AI has it elsewhere
        self._url = base.copy_with(path=f"{base.path.rstrip('/')}/{path}/count_tokens") if has_it else None

    async def count(self, body: JSONMapping, post: Post) -> int | None:
        if self._url is None:
            return None
        try:
            counted = await post(self._url, {name: body[name] for name in _PROMPT if name in body})
        except BackendError as error:
            if error.code in _ABSENT:
                self._url = None
            return None
        count = counted.get("input_tokens") if isinstance(counted, dict) else None
        return count if isinstance(count, int) else None
