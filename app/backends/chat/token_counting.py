"""
Ask a server how many tokens a prompt is, where it counts them: vLLM and llama.cpp do, each in its own way.

Which way works is found out with the first question and remembered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import httpx

from app.backends.chat.errors.classification import ERROR_CLASSES
from app.errors import BackendError

# Post JSON to a URL, and return the JSON of the answer; raises `BackendError`.
Post: TypeAlias = Callable[[httpx.URL, dict[str, Any]], Awaitable[Any]]

_ABSENT = {ERROR_CLASSES["url"].code, ERROR_CLASSES["missing"].code}


class CountingMethod(NamedTuple):
    """One question that a server may answer with a number."""

    path: str  # from the root of the server, above the `/v1`
    ask: Callable[[Mapping[str, Any]], dict[str, Any]]
    read: Callable[[Any], Any]
    then: CountingMethod | None = None  # what to ask with what was read


def _prompt(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a chat request makes its prompt."""
    names = ("model", "messages", "tools", "chat_template_kwargs", "reasoning_effort")
    return {name: body[name] for name in names if name in body}


def _field(name: str) -> Callable[[Any], Any]:
    return lambda answer: answer.get(name) if isinstance(answer, dict) else None


def _length(answer: Any) -> Any:
    tokens = _field("tokens")(answer)
    return len(tokens) if isinstance(tokens, list) else None


_COUNTED = CountingMethod("v1/chat/completions/input_tokens", _prompt, _field("input_tokens"))
_TEMPLATED = CountingMethod(
    "apply-template",
    _prompt,
    _field("prompt"),
    then=CountingMethod(
        "tokenize", lambda read: {"content": read["prompt"], "add_special": True, "parse_special": True}, _length
    ),
)
_TOKENIZED = CountingMethod("tokenize", lambda body: {**_prompt(body), "add_generation_prompt": True}, _field("count"))

# By profile. A server of which nothing is known is tried; the others do not count.
COUNTING_METHODS = {
    "vllm": (_TOKENIZED,),
    "llama.cpp": (_COUNTED, _TEMPLATED),  # older ones have only the second
    "default": (_COUNTED, _TOKENIZED, _TEMPLATED),
}


class Tokenizer:
    """Counts the tokens of prompts for one server, given its base URL and the name of its profile."""

    def __init__(self, base: httpx.URL, profile: str) -> None:
        self._root = base.copy_with(path=base.path.rstrip("/").removesuffix("/v1") + "/")
        self._ways = COUNTING_METHODS.get(profile, ())

    async def count(self, body: Mapping[str, Any], post: Post) -> int | None:
        """Return how many tokens the prompt of a chat request is; None if the server does not say."""
        for way in self._ways:
            try:
                count = await self._ask(way, body, post)
            except BackendError as error:
                if error.code in _ABSENT:
                    self._ways = tuple(other for other in self._ways if other is not way)
                continue  # else it could not answer this time
            if isinstance(count, int):
                self._ways = (way,)
                return count
        return None

    async def _ask(self, way: CountingMethod, body: Mapping[str, Any], post: Post) -> Any:
        read = way.read(await post(self._root.join(way.path), way.ask(body)))
        if way.then is None or read is None:
            return read
        return await self._ask(way.then, {"prompt": read}, post)
