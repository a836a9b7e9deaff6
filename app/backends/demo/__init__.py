"""
The built-in demo backend: no model, no network, deterministic answers in Chat Completions.

    Show me some Markdown.    Draw a picture.    Think: what is an antiphon?    Count to 100.
    Fail with a 429.          Fail in the middle.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any

from app.backends import Backend, DeltaGenerator
from app.backends.apis import APIS, encode
from app.backends.demo import showcase
from app.backends.demo.schema_values import value_for
from app.core.bounded_json import dumps
from app.core.profile import ContentOptions, Profile, RequestOptions
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.stream.stop_sequences import stop_sequences
from app.core.types import JSONObject, json_objects
from app.core.types.deltas import (
    DONE,
    AnswerMetadata,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenCounts,
    ToolCallDelta,
    UsageReported,
)
from app.errors import InvalidRequest

_THINK = re.compile(r"^think\b", re.IGNORECASE)
_SHOWCASE = dict.fromkeys((showcase.MARKDOWN, showcase.PICTURE, showcase.BREAKS), showcase.PIECE_PAUSE)
_NAME = re.compile(r"\bmy name is ([A-Z][\w-]*)", re.IGNORECASE)

# As user messages, images in tool results would become the next prompt.
_PROFILE = Profile(name="demo", request=RequestOptions(content=ContentOptions(tool_images="inline")))
_LONG = 100_000  # characters
_WORD = re.compile(r"\s*\S+\s*$|\s*\S+|\s+$")


class DemoBackend(Backend):
    """Answers by rules, a word per delta; `delay` is the pause in seconds before each delta."""

    def __init__(self, delay: float = 0.0) -> None:
        self._delay = delay
        _ = APIS[_PROFILE.transport.api].codec  # for a fast first request

    def profile(self, model: str) -> Profile:
        return _PROFILE

    def encode(self, model_request: ModelRequest) -> EncodedRequest:
        return encode(model_request, self.profile(model_request.model))

    def open(self, model_request: ModelRequest) -> DeltaGenerator:
        return DeltaGenerator(self._deltas(model_request))

    async def _deltas(self, model_request: ModelRequest) -> AsyncGenerator[list[Delta], None]:
        body = self.encode(model_request).body
        prompt = _Turn(body).prompt
        error = showcase.requested_failure(prompt)
        if error and not showcase.fails_midway(prompt):
            raise error
        pause, deltas = demo_answer(body)
        yield []
        for delta in deltas:
            await asyncio.sleep(max(self._delay, pause))
            if error and isinstance(delta, Finished):
                raise error
            yield [delta]

    async def count_tokens(self, model_request: ModelRequest) -> int:
        return _prompt_tokens(self.encode(model_request).body)

    async def models(self, caller_key: str | None = None) -> list[JSONObject]:
        return [{"id": "demo", "object": "model", "created": 0, "owned_by": "antiphon"}]

    async def check(self) -> None: ...

    async def aclose(self) -> None: ...


def demo_answer(body: JSONObject) -> tuple[float, Iterator[Delta]]:
    """The pause before each delta, in seconds, and the deltas; raises `InvalidRequest` for an invalid schema."""
    turn = _Turn(body)
    effort = body.get("reasoning_effort") or ("low" if _THINK.search(turn.prompt) else "none")
    reasoning = f'The user says: "{turn.prompt}" I will answer by the rules of a demo.' if effort != "none" else ""
    if tool := turn.tool():
        value = _value(tool.get("parameters") or {"type": "object"}, turn.prompt, f"function '{tool['name']}'")
        return 0, _deltas(body, reasoning, function=tool["name"], arguments=json.dumps(value, ensure_ascii=False))
    text_format = body.get("response_format") or {}
    if text_format.get("type") == "json_schema":
        value = _value(text_format["json_schema"].get("schema") or {}, turn.prompt, "response_format")
        return 0, _deltas(body, reasoning, json.dumps(value, ensure_ascii=False))
    text = turn.text()
    if text_format.get("type") == "json_object":
        text = json.dumps({"answer": text}, ensure_ascii=False)
    return _SHOWCASE.get(text, 0), _deltas(body, reasoning, text)


def _deltas(
    body: JSONObject, reasoning: str, content: str = "", *, function: str = "", arguments: str = ""
) -> Iterator[Delta]:
    """A delta per word, up to the request's limits."""
    digest = hashlib.sha256(dumps(body)).hexdigest()[:24]
    stops = [at for sequence in stop_sequences(body) if (at := content.find(sequence)) >= 0]
    content = content[: min(stops, default=len(content))]
    calls = [ToolCallDelta(0, arguments=[word]) for word in _WORD.findall(arguments)]
    if calls:
        calls[0] = ToolCallDelta(0, f"call_{digest}", function, calls[0].arguments)
    deltas: list[Delta] = [
        *(ReasoningDelta([word]) for word in _WORD.findall(reasoning)),
        *(TextDelta([word], _logprobs(word, body)) for word in _WORD.findall(content)),
        *calls,
    ]
    sent = deltas[: body.get("max_completion_tokens") or body.get("max_tokens")]
    reason = FinishReason.TOOL_CALLS if function else FinishReason.STOP
    yield AnswerMetadata(f"chatcmpl-{digest}", str(body.get("model")))
    yield from sent
    yield Finished(FinishReason.LENGTH if len(sent) < len(deltas) else reason)
    reasoned = sum(isinstance(delta, ReasoningDelta) for delta in sent)
    yield UsageReported(TokenCounts(_prompt_tokens(body), len(sent), reasoning=reasoned))
    yield DONE


def _value(schema: Any, prompt: str, name: str) -> Any:
    """Raises `InvalidRequest` for an invalid schema."""
    try:
        return value_for(schema, prompt)
    except ValueError as error:
        raise InvalidRequest(f"Invalid schema for {name}: {error}.", code="invalid_value") from error


class _Turn:
    def __init__(self, body: JSONObject) -> None:
        messages = body.get("messages") or []
        self._users = [message for message in messages if message.get("role") == "user"]
        last = max((n for n, message in enumerate(messages) if message.get("role") == "user"), default=-1)
        self._tools = [message for message in messages[last + 1 :] if message.get("role") == "tool"]
        self._body = body
        self.prompt = _text(self._users[-1])[:_LONG] if self._users else ""

    def tool(self) -> JSONObject | None:
        """The required function, or the best match for the prompt; at most once per turn."""
        choice = self._body.get("tool_choice") or "auto"
        tools = [tool["function"] for tool in self._body.get("tools") or () if tool.get("type") == "function"]
        if isinstance(choice, dict):
            name = (choice.get("function") or {}).get("name")
            tools = [tool for tool in tools if tool.get("name") == name]
        if not tools or choice == "none" or self._tools:
            return None
        if choice == "auto" and self.text() in _SHOWCASE:
            return None
        words = set(re.findall(r"[a-z]{3,}", self.prompt.lower()))
        best: JSONObject = max(tools, key=lambda tool: len(words & set(re.findall(r"[a-z]{3,}", tool["name"].lower()))))
        return best

    def text(self) -> str:
        if self._tools:
            thanks = _thanks(self._tools)
            results = " ".join(_text(message)[:_LONG] for message in self._tools)
            return f"{thanks}Here is what I found: {results}" if results.strip() or not thanks else thanks.strip()
        for question, reply in _REPLIES:
            if match := question.search(self.prompt):
                return reply(match, "\n".join(_text(message)[:_LONG] for message in self._users))
        earlier = len(self._users) - 1
        memory = f" Before that you sent {earlier} message{'s' if earlier > 1 else ''}." if earlier > 0 else ""
        thanks = _thanks(self._users[-1:])
        return (
            f'{thanks}You said: "{self.prompt}"{memory} I am only a demo; set ANTIPHON_BACKEND_URL to talk to a model.'
        )


def _thanks(messages: Iterable[JSONObject]) -> str:
    seen = sum(part.get("type") == "image_url" for message in messages for part in json_objects(message.get("content")))
    return f"Thank you for {'the image' if seen == 1 else f'the {seen} images'}. " if seen else ""


def _name(match: re.Match[str], text: str) -> str:
    names = _NAME.findall(text)
    return f"Your name is {names[-1]}." if names else "You have not told me your name."


def _count(match: re.Match[str], text: str) -> str:
    first, last = int(match[1] or 1), min(int(match[2]), 1000)
    return f"{', '.join(map(str, range(first, last + 1)))}."


_ANTIPHON = "An antiphon is a chant that two sides sing in turn: one calls, the other answers."

_REPLIES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]], ...] = (
    (re.compile(r"what(?: is|'s) my name", re.IGNORECASE), _name),
    (re.compile(r"\bcount (?:from (\d+) )?to (\d+)", re.IGNORECASE), _count),
    (re.compile(r"^say (?:hello|hi)\b", re.IGNORECASE), lambda match, text: "Hello there, friend!"),
    (re.compile(r"^fail\b", re.IGNORECASE), lambda match, text: showcase.BREAKS),
    (re.compile(r"\bmarkdown\b", re.IGNORECASE), lambda match, text: showcase.MARKDOWN),
    (re.compile(r"\bdraw\b", re.IGNORECASE), lambda match, text: showcase.PICTURE),
    (re.compile(r"\bwhat is an antiphon\b", re.IGNORECASE), lambda match, text: _ANTIPHON),
    (_NAME, lambda match, text: f"Nice to meet you, {match[1]}!"),
)


def _logprobs(piece: str, body: JSONObject) -> list[JSONObject] | None:
    if not body.get("logprobs"):
        return None
    candidates = [(piece, -0.1), *((f"{piece}{'?' * n}", -2.0 - n) for n in range(1, body.get("top_logprobs") or 0))]
    tokens = [{"token": token, "logprob": logprob, "bytes": list(token.encode())} for token, logprob in candidates]
    return [{**tokens[0], "top_logprobs": tokens[: body.get("top_logprobs") or 0]}]


def _prompt_tokens(body: JSONObject) -> int:
    """Words; a long text's number is extrapolated from its start."""
    tokens = 0
    for text in map(_text, body.get("messages") or ()):
        words = len(text[:_LONG].split())
        tokens += 1 + (words * len(text) // _LONG if len(text) > _LONG else words)
    return tokens


def _text(message: JSONObject) -> str:
    content = message.get("content")
    return (
        content
        if isinstance(content, str)
        else " ".join(part.get("text") or "" for part in json_objects(content)).strip()
    )
