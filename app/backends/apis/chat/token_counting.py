"""Prompt tokens from vLLM's and llama.cpp's endpoints; the first working method stays in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from app.backends.apis import Post
from app.backends.apis.token_counting import ABSENT
from app.core.profile import Profile
from app.core.types import JSONMapping, JSONObject
from app.errors import BackendError

if TYPE_CHECKING:
    import httpx


class CountingMethod(NamedTuple):
    path: str  # above `/v1`
    build: Callable[[JSONMapping], JSONObject]
    read: Callable[[object], object]
    then: CountingMethod | None = None  # a second request, with the value read


def _prompt(body: JSONMapping) -> JSONObject:
    names = ("model", "messages", "tools", "chat_template_kwargs", "reasoning_effort")
    return {name: body[name] for name in names if name in body}


def _field(name: str) -> Callable[[object], object]:
    return lambda answer: answer.get(name) if isinstance(answer, dict) else None


def _length(answer: object) -> object:
    tokens = _field("tokens")(answer)
    return len(tokens) if isinstance(tokens, list) else None


_COUNTED = CountingMethod("v1/chat/completions/input_tokens", _prompt, _field("input_tokens"))
_TEMPLATED = CountingMethod(
    "apply-template",
    _prompt,
    _field("prompt"),
    then=CountingMethod(
        "tokenize", lambda body: {"content": body["prompt"], "add_special": True, "parse_special": True}, _length
    ),
)
_TOKENIZED = CountingMethod("tokenize", lambda body: {**_prompt(body), "add_generation_prompt": True}, _field("count"))

# By profile; other profiles' servers do not count tokens.
COUNTING_METHODS = {
    "vllm": (_TOKENIZED,),
    "llama.cpp": (_COUNTED, _TEMPLATED),  # older versions have only the second
    "default": (_COUNTED, _TOKENIZED, _TEMPLATED),
}


class Tokenizer:
    def __init__(self, base: httpx.URL, profile: Profile) -> None:
        self._root = base.copy_with(path=base.path.rstrip("/").removesuffix("/v1") + "/")
        self._methods = COUNTING_METHODS.get(profile.name, ())

    async def count(self, body: JSONMapping, post: Post) -> int | None:
        for method in self._methods:
            try:
                count = await self._call(method, body, post)
            except BackendError as error:
                if error.code in ABSENT:
                    self._methods = tuple(other for other in self._methods if other is not method)
                continue  # otherwise a temporary failure
            if isinstance(count, int):
                self._methods = (method,)
                return count
        return None

    async def _call(self, method: CountingMethod, body: JSONMapping, post: Post) -> object:
        result = method.read(await post(self._root.join(method.path), method.build(body)))
        if method.then is None or result is None:
            return result
        return await self._call(method.then, {"prompt": result}, post)
