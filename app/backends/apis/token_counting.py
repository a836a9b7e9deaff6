from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.backends.apis import Post
from app.backends.server.errors.classification import ERROR_CLASSES
from app.core.types import JSONMapping, JSONObject
from app.errors import BackendError

if TYPE_CHECKING:
    import httpx

ABSENT = frozenset({ERROR_CLASSES["url"].code, ERROR_CLASSES["missing"].code})


class EndpointTokenizer:
    """Counts prompt tokens until the server reports a missing endpoint."""

    total = "input_tokens"

    def __init__(self, url: httpx.URL, fields: Sequence[str]) -> None:
        self._url = url
        self._fields = fields
        self._absent = False

    async def count(self, body: JSONMapping, post: Post) -> int | None:
        if self._absent:
            return None
        try:
            answer = await post(self.url(body), self.prompt(body))
        except BackendError as error:
            self._absent = self._absent or error.code in ABSENT
            return None
        count = answer.get(self.total) if isinstance(answer, dict) else None
        return count if isinstance(count, int) else None

    def url(self, body: JSONMapping) -> httpx.URL:
        return self._url

    def prompt(self, body: JSONMapping) -> JSONObject:
        return {name: body[name] for name in self._fields if name in body}
