"""
The same answers in each server API: a table, for tests over all of them.

    for api in SERVER_APIS:
        up.say(sse(*api.begin("Hel"), *api.more("lo"), *api.end()))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.support.native import Native
from tests.support.upstream import DONE, call, chunk, finish

Frame = dict[str, Any] | str | bytes


class Output(NamedTuple):
    """The model's text so far."""

    text: str = ""
    reasoning: str = ""
    arguments: str = ""

    def plus(self, other: Output) -> Output:
        return Output(*(before + after for before, after in zip(self, other, strict=True)))


class ServerAPI(NamedTuple):
    """A row: how an API says an answer."""

    name: str
    begin: Callable[[str], list[Frame]]  # all up to the first piece of the text
    more: Callable[[str], list[Frame]]  # another piece of it
    end: Callable[[], list[Frame]]
    error: dict[str, Any]
    # All frames of an answer, from pieces of text, reasoning and a call's string argument.
    whole: Callable[[Sequence[str], Sequence[str], Sequence[str]], list[Frame]]
    read: Callable[[dict[str, Any]], tuple[Output, bool]]  # a frame's text, and whether the model has finished
    last: tuple[Frame, ...] = ()  # frames after the end

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"transport.api": self.name}


def encoded(frame: Frame) -> bytes:
    """Return a frame as an event."""
    if isinstance(frame, bytes):
        return frame
    data = frame if isinstance(frame, str) else json.dumps(frame, ensure_ascii=False)
    name = f"event: {frame['type']}\n" if isinstance(frame, dict) and "type" in frame else ""
    return f"{name}data: {data}\n\n".encode()


# Chat Completions.


def _chat(texts: Sequence[str], thoughts: Sequence[str], arguments: Sequence[str]) -> list[Frame]:
    return [
        *(chunk(reasoning=thought) for thought in thoughts),
        *(chunk(text) for text in texts),
        *([call(id="call_1", name="f")] if arguments else []),
        *(call(arguments=part) for part in _json(arguments)),
        finish("tool_calls" if arguments else "stop"),
        DONE,
    ]


def _json(arguments: Sequence[str]) -> str:
    return json.dumps({"a": "".join(arguments)}) if arguments else ""


def _read_chat(frame: dict[str, Any]) -> tuple[Output, bool]:
    (choice,) = frame["choices"]
    delta = choice["delta"]
    parts = [fragment["function"].get("arguments") or "" for fragment in delta.get("tool_calls") or ()]
    written = Output(delta.get("content") or "", delta.get("reasoning") or "", "".join(parts))
    return written, bool(choice["finish_reason"])


# Responses.


def _responses(texts: Sequence[str], thoughts: Sequence[str], arguments: Sequence[str]) -> list[Frame]:
    answer = Native()
    if thoughts:
        answer.thought(*thoughts)
    if texts:
        answer.message(*texts)
    if arguments:
        answer.call("f", *_json(arguments))
    return [*answer.completed().events]


def _begun(text: str) -> Native:
    answer = Native().message(text)
    del answer.events[5:]  # after the delta
    return answer


def _ended(text: str) -> list[Frame]:
    answer = Native().message(text).completed()
    return [*answer.events[5:]]


_READ = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.function_call_arguments.delta": "arguments",
}


def _read_responses(frame: dict[str, Any]) -> tuple[Output, bool]:
    field = _READ.get(frame["type"])
    return Output(**{field: frame["delta"]}) if field else Output(), frame["type"] == "response.completed"


# Messages.


def _messages(texts: Sequence[str], thoughts: Sequence[str], arguments: Sequence[str]) -> list[Frame]:
    frames: list[Frame] = [_MESSAGE]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if thoughts:
        deltas = [{"type": "thinking_delta", "thinking": thought} for thought in thoughts]
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if texts:
        deltas = [{"type": "text_delta", "text": text} for text in texts]
        blocks.append(({"type": "text", "text": ""}, deltas))
    if arguments:
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in _json(arguments)]
        blocks.append(({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}, deltas))
    for index, (block, deltas) in enumerate(blocks):
        frames.append({"type": "content_block_start", "index": index, "content_block": block})
        frames += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        frames.append({"type": "content_block_stop", "index": index})
    return [*frames, *_stopped("tool_use" if arguments else "end_turn")]


_MESSAGE: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "m",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 1},
    },
}


def _stopped(reason: str) -> list[Frame]:
    return [
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ]


def _read_messages(frame: dict[str, Any]) -> tuple[Output, bool]:
    delta = frame.get("delta", {})
    written = Output(delta.get("text", ""), delta.get("thinking", ""), delta.get("partial_json", ""))
    return written, bool(delta.get("stop_reason"))


# Gemini.


def _gemini(texts: Sequence[str], thoughts: Sequence[str], arguments: Sequence[str]) -> list[Frame]:
    parts: list[dict[str, Any]] = [{"text": thought, "thought": True} for thought in thoughts]
    parts += [{"text": text} for text in texts]
    if arguments:
        parts.append({"functionCall": {"name": "f", "args": {"a": "".join(arguments)}}, "thoughtSignature": "c2ln"})
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 2}
    return [*map(_candidate, parts), {"candidates": [{"finishReason": "STOP"}], "usageMetadata": usage}]


def _candidate(part: dict[str, Any]) -> Frame:
    return {"candidates": [{"content": {"role": "model", "parts": [part]}}]}


def _read_gemini(frame: dict[str, Any]) -> tuple[Output, bool]:
    (candidate,) = frame["candidates"]
    written = Output()
    for part in candidate.get("content", {}).get("parts", ()):
        if "functionCall" in part:
            arguments = json.dumps(part["functionCall"]["args"], ensure_ascii=False, separators=(",", ":"))
            written = written.plus(Output(arguments=arguments))
        else:
            written = written.plus(Output(**{"reasoning" if part.get("thought") else "text": part["text"]}))
    return written, "finishReason" in candidate


SERVER_APIS = (
    ServerAPI(
        "chat",
        lambda text: [chunk(text)],
        lambda text: [chunk(text)],
        lambda: [finish()],
        {"error": {"message": "CUDA out of memory"}},
        _chat,
        _read_chat,
        (DONE,),
    ),
    ServerAPI(
        "responses",
        lambda text: [*_begun(text).events],
        lambda text: [{**_begun(text).events[4]}],
        lambda: _ended("Hello"),
        {"type": "error", "code": "server_error", "message": "CUDA out of memory", "param": None},
        _responses,
        _read_responses,
    ),
    ServerAPI(
        "messages",
        lambda text: _messages([text], [], [])[:3],
        lambda text: _messages([text], [], [])[2:3],
        lambda: _messages(["Hello"], [], [])[3:],
        {"type": "error", "error": {"type": "api_error", "message": "CUDA out of memory"}},
        _messages,
        _read_messages,
    ),
    ServerAPI(
        "gemini",
        lambda text: _gemini([text], [], [])[:1],
        lambda text: _gemini([text], [], [])[:1],
        lambda: _gemini([], [], []),
        {"error": {"code": 500, "message": "CUDA out of memory", "status": "INTERNAL"}},
        _gemini,
        _read_gemini,
    ),
)
