"""
An Anthropic Messages server on a real socket, as strict as the real one.

    async with MessagesServer() as server:
        server.say(message(text("Hello"), usage={"input_tokens": 5, "output_tokens": 2}))

It has Anthropic's rules and error messages; the request schema comes from the official package's types. It signs
thinking blocks, which must be returned unchanged.
"""

from __future__ import annotations

import hashlib
import json
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import jsonschema
from pydantic import TypeAdapter

from tests.support.upstream import Received, Step, Upstream, reply, sse, status

Fields = dict[str, Any]

# Of older models; the package's types have these no more.
_SAMPLING = ("temperature", "top_p", "top_k")
_BLOCKS_OF_RESULTS = ("text", "image", "document", "search_result")
_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")


# The official package's types take a second to import, so only some tests do.
_MODELS = {
    "message": "anthropic.types.message_create_params.MessageCreateParamsStreaming",
    "count": "anthropic.types.message_count_tokens_params.MessageCountTokensParams",
    "event": "anthropic.types.RawMessageStreamEvent",
}


@cache
def _validator(sent: str) -> jsonschema.Draft202012Validator:
    schema = TypeAdapter(pkgutil.resolve_name(_MODELS[sent])).json_schema()
    for definition in (schema, *schema["$defs"].values()):
        if "properties" in definition and definition["title"] != "InputSchemaTyped":
            definition["additionalProperties"] = False
    if sent != "event":
        schema["properties"] |= {name: {"type": "number"} for name in _SAMPLING}
    return jsonschema.Draft202012Validator(schema)


def check_types(body: Fields, sent: str = "message") -> None:
    """Raise `AssertionError` if sent data violates the official package's types."""
    errors = [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in _errors(body, sent)]
    assert not errors, errors


def _errors(body: Fields, sent: str) -> list[Any]:
    return sorted(_validator(sent).iter_errors(body), key=lambda error: [*map(str, error.absolute_path)])


class Refused(Exception):
    """Answered with 400."""


def check(body: Fields, *, by_budget: bool = False) -> None:
    """
    Raise `Refused` for an invalid request.

    `by_budget`: for models with a thinking token budget instead of an effort.
    """
    check_types(body)
    messages = body["messages"]
    if not messages:
        raise Refused("messages: at least one message is required")
    _check_order(messages)
    for n, message in enumerate(messages):
        _check_content(message, f"messages.{n}", last=n == len(messages) - 1)
    _check_results(messages)
    _check_tools(body, messages)
    _check_thinking(body, messages, by_budget)
    if len(marks := [*_marks(body)]) > 4:
        raise Refused(f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}.")
    for block in body.get("system", ()) if isinstance(body.get("system"), list) else ():
        _check_text(block, "system")


def _check_order(messages: Sequence[Fields]) -> None:
    if messages[0]["role"] != "user":
        raise Refused('messages: first message must use the "user" role')
    for n, (one, other) in enumerate(pairwise(messages)):
        if one["role"] == other["role"]:
            raise Refused(f'messages.{n}: roles must alternate between "user" and "assistant"')
    # Continues a message paused by the server.
    if messages[-1]["role"] != "user" and not messages[-1]["content"][-1]["type"].startswith(("server_tool", "web_")):
        raise Refused(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )


def _check_content(message: Fields, path: str, *, last: bool) -> None:
    content = message["content"]
    if not content:
        raise Refused(f"{path}: {message['role']} messages must have non-empty content")
    for k, block in enumerate(content):
        _check_text(block, f"{path}.content.{k}")
        if block["type"] == "thinking":
            if block["signature"] != signature_of(block["thinking"]):
                raise Refused(f"{path}.content.{k}: Invalid `signature` in `thinking` block")
        elif block["type"] == "tool_use":
            if not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
                raise Refused(f"{path}.content.{k}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
        elif block["type"] == "tool_result":
            for inner in block.get("content", ()):
                if inner["type"] not in _BLOCKS_OF_RESULTS:
                    raise Refused(f"{path}.content.{k}.tool_result: unexpected block")
                _check_text(inner, f"{path}.content.{k}.tool_result")
    if message["role"] == "assistant" and content[-1]["type"] in ("thinking", "redacted_thinking"):
        raise Refused(f"{path}: The final block in an assistant message cannot be `thinking`.")


def _check_text(block: Fields, path: str) -> None:
    if block["type"] == "text" and not block["text"]:
        raise Refused(f"{path}: text content blocks must be non-empty")
    if block["type"] == "text" and block["text"].isspace():
        raise Refused(f"{path}: text content blocks must contain non-whitespace text")
    if block["type"] == "image" and block["source"].get("media_type", _MEDIA[0]) not in _MEDIA:
        raise Refused(f"{path}.image.source.base64.media_type: Input should be {', '.join(_MEDIA)}")
    if "cache_control" in block and block["type"] in ("thinking", "redacted_thinking"):
        raise Refused(f"{path}.{block['type']}.cache_control: Extra inputs are not permitted")


def _check_results(messages: Sequence[Fields]) -> None:
    """Results are directly behind their calls, all of them, before anything else."""
    calls: list[str] = []
    seen: set[str] = set()
    for n, message in enumerate(messages):
        content = message["content"]
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        leading = [block["type"] for block in content[: len(results)]]
        if message["role"] == "user":
            if missing := [call for call in calls if call not in results]:
                raise Refused(
                    f"messages.{n}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                    f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                    "next message."
                )
            if unknown := [result for result in results if result not in calls]:
                raise Refused(
                    f"messages.{n}: unexpected `tool_use_id` found in `tool_result` blocks: {', '.join(unknown)}. Each "
                    "`tool_result` block must have a corresponding `tool_use` block in the previous message."
                )
            if len({*results}) < len(results):
                raise Refused(f"messages.{n}: each tool_use must have a single result.")
            if {*leading} - {"tool_result"}:
                raise Refused(f"messages.{n}: `tool_result` blocks must come first")
            calls = []
        else:
            calls = [block["id"] for block in content if block["type"] == "tool_use"]
            if seen & {*calls} or len({*calls}) < len(calls):
                raise Refused("messages: `tool_use` ids must be unique")
            seen |= {*calls}


def _check_tools(body: Fields, messages: Sequence[Fields]) -> None:
    tools = body.get("tools", ())
    names = [tool["name"] for tool in tools]
    if len({*names}) < len(names):
        raise Refused("tools: Tool names must be unique.")
    for n, tool in enumerate(tool for tool in tools if "input_schema" in tool):
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", tool["name"]):
            raise Refused(f"tools.{n}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        if tool["input_schema"].get("type") != "object":
            raise Refused(f"tools.{n}.custom.input_schema.type: Field required")
        if {"anyOf", "oneOf", "allOf"} & tool["input_schema"].keys():
            raise Refused(
                f"tools.{n}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
            )
    choice = body.get("tool_choice")
    if choice and not tools:
        raise Refused("tool_choice may only be specified while providing tools")
    if choice and choice["type"] == "tool" and choice["name"] not in names:
        raise Refused(f"Tool '{choice['name']}' not found in provided tools")
    if not tools and any(block["type"] == "tool_use" for message in messages for block in message["content"]):
        raise Refused("Requests which have `tool_use` or `tool_result` blocks in `messages` must define `tools`")


def _check_thinking(body: Fields, messages: Sequence[Fields], by_budget: bool) -> None:
    kind = body.get("thinking", {}).get("type", "disabled")
    if kind == "disabled":
        return
    if kind == "adaptive" and by_budget:
        raise Refused("adaptive thinking is not supported on this model")
    if kind == "enabled":
        if not by_budget:
            raise Refused('"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive"')
        if body["thinking"]["budget_tokens"] < 1024:
            raise Refused("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        if body["thinking"]["budget_tokens"] >= body["max_tokens"]:
            raise Refused("`max_tokens` must be greater than `thinking.budget_tokens`.")
        _check_begun_with_thinking(messages)
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        raise Refused("Thinking may not be enabled when tool_choice forces tool use.")
    if body.get("temperature", 1) != 1 or "top_k" in body or "top_p" in body:
        raise Refused("`temperature` may only be set to 1 when thinking is enabled.")


def _check_begun_with_thinking(messages: Sequence[Fields]) -> None:
    """A turn with open calls must begin with a thinking block."""
    if not all(block["type"] == "tool_result" for block in messages[-1]["content"]):
        return
    turn = len(messages) - 1
    while turn and all(block["type"] == "tool_result" for block in messages[turn]["content"]):
        turn -= 2
    first = messages[turn + 1]["content"][0]["type"]
    if first not in ("thinking", "redacted_thinking"):
        raise Refused(
            f"messages.{turn + 1}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks)."
        )


def _marks(value: Any) -> Iterator[Any]:
    """Yield each `cache_control` in a request, except in tool data."""
    if isinstance(value, list):
        for one in value:
            yield from _marks(one)
    elif isinstance(value, dict):
        if "cache_control" in value:
            yield value["cache_control"]
        for name, inner in value.items():
            if name in ("system", "messages", "tools", "content"):
                yield from _marks(inner)


# Output.


def signature_of(thinking: str) -> str:
    """Return the signature of a thought."""
    return hashlib.sha256(thinking.encode(errors="replace")).hexdigest()[:24]


def error(code: int, kind: str, words: str, headers: Mapping[str, str] | None = None) -> list[Step]:
    """An error in Anthropic's shape."""
    return status(code, {"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_1"}, headers)


Block = tuple[Fields, list[Fields]]  # as it begins, and its deltas


def text(*pieces: str) -> Block:
    """A block of text."""
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]


def thinking(*pieces: str) -> Block:
    """A thought, signed."""
    deltas: list[Fields] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    signed = {"type": "signature_delta", "signature": signature_of("".join(pieces))}
    return {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed]


def redacted(data: str = "cmVkYWN0ZWQ=") -> Block:
    """An unreadable thought."""
    return {"type": "redacted_thinking", "data": data}, []


def searched(query: str) -> list[Block]:
    """A search run by the server: call and result."""
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    page = {
        "type": "web_search_result",
        "url": "https://a.test/",
        "title": "A",
        "encrypted_content": "e",
        "page_age": None,
    }
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [page]}
    written = {"type": "input_json_delta", "partial_json": json.dumps({"query": query})}
    return [(call, [written]), (result, [])]


def tool_use(call_id: str, name: str, *pieces: str) -> Block:
    """A call, with its input in pieces of JSON."""
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}, deltas


USAGE = {"input_tokens": 5, "output_tokens": 2}


def events(*blocks: Block, stop: str = "", usage: Fields = USAGE, **delta: Any) -> list[Fields]:
    """The events of a message, in order; each is as the official package has it."""
    begun = {"input_tokens": 0, "output_tokens": 0} | usage | {"output_tokens": 1}
    envelope = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    started = {**envelope, "stop_reason": None, "stop_sequence": None, "usage": begun}
    made: list[Fields] = [{"type": "message_start", "message": started}]
    for index, (block, deltas) in enumerate(blocks):
        made.append({"type": "content_block_start", "index": index, "content_block": block})
        made.append({"type": "ping"})
        made += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        made.append({"type": "content_block_stop", "index": index})
    stop = stop or ("tool_use" if any(block["type"] == "tool_use" for block, _ in blocks) else "end_turn")
    made.append(
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None, **delta}, "usage": usage}
    )
    made.append({"type": "message_stop"})
    for event in made:
        if event["type"] != "ping":
            check_types(event, "event")
    return made


def frame(event: Fields) -> bytes:
    """An event as it is sent."""
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event, separators=(",", ":")).encode())


def message(*blocks: Block, stop: str = "", usage: Fields = USAGE, **delta: Any) -> list[Step]:
    """An answer as a stream, event by event."""
    return sse(*(_in_a_chunk(frame(event)) for event in events(*blocks, stop=stop, usage=usage, **delta)))


def _in_a_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class MessagesServer(Upstream):
    """
    Refuses invalid requests, and answers others as scripted.

    `by_budget` is passed to `check`. `counted` is the answer of `count_tokens`.
    """

    def __init__(self, *, by_budget: bool = False) -> None:
        super().__init__()
        self.by_budget = by_budget
        self.counted = 17
        self.refusals: list[str] = []
        self.always(message(text("Hello", " there.")))

    def answer_to(self, request: Received) -> list[Step]:
        """Refuse a bad request, or choose the steps for it."""
        path = request.path.partition("?")[0]
        if path.endswith("/messages/count_tokens"):
            self.requests.append(request)
            check_types(request.json, "count")
            return reply(json.dumps({"input_tokens": self.counted}).encode())
        if not path.endswith("/messages"):
            return super().answer_to(request)
        try:
            if "anthropic-version" not in request.headers:
                raise Refused("anthropic-version: header is required")
            check(request.json, by_budget=self.by_budget)
        except (AssertionError, Refused) as refused:
            self.requests.append(request)
            self.refusals.append(str(refused))
            return error(400, "invalid_request_error", str(refused))
        return super().answer_to(request)
