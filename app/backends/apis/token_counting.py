"""Count prompt tokens with the server's endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from app.backends.server.errors.classification import ERROR_CLASSES
from app.core.types import JSONMapping, JSONObject, json_object
from app.errors import BackendError

if TYPE_CHECKING:
    import httpx

# Both raise `BackendError`. A method reads the count from the answers for an encoded model request.
Post: TypeAlias = "Callable[[httpx.URL, JSONObject], Awaitable[Any]]"
CountingMethod: TypeAlias = Callable[[JSONMapping, Post], Awaitable[object]]

_ABSENT = frozenset({ERROR_CLASSES["url"].code, ERROR_CLASSES["missing"].code})


class Tokenizer:
    """The first method that works stays in use; missing endpoints are not asked again."""

    def __init__(self, methods: Sequence[CountingMethod]) -> None:
        self._methods = methods

    async def count(self, body: JSONMapping, post: Post) -> int | None:
        """None if the server cannot count."""
        for method in self._methods:
            try:
                count = await method(body, post)
            except BackendError as error:
                if error.code in _ABSENT:
                    self._methods = [other for other in self._methods if other is not method]
                continue  # otherwise a temporary failure
            if isinstance(count, int):
                self._methods = [method]
                return count
        return None


def endpoint_method(url: httpx.URL, prompt: Iterable[str], count: str, **added: object) -> CountingMethod:
    """Sends the body's `prompt` fields; the answer's field `count` is the number."""

    async def counted(body: JSONMapping, post: Post) -> object:
        return json_object(await post(url, prompt_fields(body, prompt) | added)).get(count)

    return counted


def prompt_fields(body: JSONMapping, names: Iterable[str]) -> JSONObject:
    return {name: body[name] for name in names if name in body}
