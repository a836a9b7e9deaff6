"""
Reads a Messages request as `CreateResponse` fields.

    read_messages({"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello!"}]}, {})
    # fields: {"model": "m", "max_output_tokens": 100, "input": [{"type": "message", "role": "user", ...}], ...}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from app.api.client_apis import ClientRequest
from app.api.client_apis.messages.hosted import SHOWN_FIELDS, hosted_item
from app.api.client_apis.messages.schema import MessagesRequest
from app.api.client_apis.messages.tools import ToolReader, short_name
from app.api.client_apis.messages.writer import MessagesWriter
from app.api.request_body import validate
from app.core.bounded_json import to_json
from app.core.history.compaction import CONTENT_MARK
from app.core.types import JSONMapping, JSONObject, json_list, json_object, json_text
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest, Warnings, quote
from app.responses.encryption import FROM_SIGNATURE

THREAD_UNSUPPORTED = "thread_unsupported_request"  # SDKs then resend without `thread`

# Claude Code's first system prompt line can differ in each request, which would invalidate prompt caches.
_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")

# Ignored without a warning.
_IGNORED = frozenset({"cache_control", "diagnostics", "betas"})

# Agents send an effort and cache breakpoints to every model.
_PREFERENCES = frozenset({"reasoning", "reasoning.effort", "prompt_cache_breakpoint"})

_MAX_IDENTIFIER = 128  # characters


def read_messages(body: JSONObject, headers: Mapping[str, str]) -> ClientRequest:
    """Raises `InvalidRequest` with the invalid field."""
    request = validate(body, MessagesRequest, 0)
    extra = request.model_extra or {}
    _refuse_unsupported(extra)
    warnings = Warnings()
    tools = ToolReader(warnings)
    tool_fields = tools.read(request.tools, request.mcp_servers, request.tool_choice)
    reader = _ItemReader(warnings)
    instructions = _read_system(request, reader)
    for index, message in enumerate(request.messages):
        reader.read(index, message)
    for path, known in _KNOWN_FIELDS.items():
        for name, value in json_object(getattr(request, path)).items():
            if name not in known and value is not None:
                warnings.add(f"The unknown parameter {quote(f'{path}.{name}')} was ignored.")
    if request.messages[-1]["role"] == "assistant":
        warnings.add("The conversation ends with an assistant message; not every model continues it.")
    fields: JSONObject = {
        **_unknown(extra, warnings),
        **tool_fields,
        **_options(request),
        **_reasoning(request),
        **_metadata(request),
        "input": reader.items,
        "include": ["reasoning.encrypted_content", *SHOWN_FIELDS],
        "stream": request.stream,
    }
    if instructions:
        fields["instructions"] = instructions
    thinking = json_object(request.thinking)
    shown = thinking.get("type") != "disabled" and thinking.get("display") != "omitted"
    client_paths = {**_CLIENT_PATHS, **tools.client_paths, **reader.client_paths}
    writer = partial(MessagesWriter, shows_thinking=shown, names=tools.names)
    return ClientRequest(fields, writer, [*warnings], client_paths, _PREFERENCES)


# For errors and warnings.
_CLIENT_PATHS = {
    "instructions": "system",
    "max_output_tokens": "max_tokens",
    "stop": "stop_sequences",
    "safety_identifier": "metadata.user_id",
    "reasoning": "thinking",
    "reasoning.effort": "output_config.effort",
    "text.format": "output_config.format",
    "input": "messages",
}


def _refuse_unsupported(extra: JSONMapping) -> None:
    """Unsupported fields would change the response."""
    if extra.get("thread"):
        message = "Invalid 'thread': threads are not supported. Send the whole conversation without 'thread'."
        raise InvalidRequest(message, param="thread", code=THREAD_UNSUPPORTED)
    if extra.get("compaction"):
        message = "Invalid 'compaction': not supported for the Messages API."
        raise InvalidRequest(message, param="compaction", code="unsupported_parameter")


# By object path.
_KNOWN_FIELDS = {
    "thinking": frozenset({"type", "budget_tokens", "display"}),
    "output_config": frozenset({"effort", "format"}),
    "metadata": frozenset({"user_id"}),
    "tool_choice": frozenset({"type", "name", "disable_parallel_tool_use"}),
}


def _unknown(extra: JSONMapping, warnings: Warnings) -> JSONObject:
    """Unknown fields, except names with another meaning in `CreateResponse`."""
    unknown = {name: value for name, value in extra.items() if name not in _IGNORED}
    for name in unknown.keys() & CreateResponse.model_fields.keys():
        del unknown[name]
        warnings.add(f"The unknown parameter {quote(name)} was ignored.")
    return unknown


def _read_system(request: MessagesRequest, reader: _ItemReader) -> str:
    """A plain-text system prompt. A prompt of blocks becomes the first item, to keep its cache breakpoints."""
    system = request.system
    if not isinstance(system, list):
        return _BILLING_LINE.sub("", system or "")
    blocks = [{**block, "text": _BILLING_LINE.sub("", block["text"])} for block in system]
    reader.read_blocks("system", [block for block in blocks if block["text"]], "system")
    return ""


def _options(request: MessagesRequest) -> JSONObject:
    fields: JSONObject = {
        "model": request.model,
        "max_output_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences or None,
        "service_tier": {"auto": "auto", "standard_only": "default"}.get(request.service_tier or ""),
    }
    if output := json_object(request.output_config).get("format") or request.output_format:
        schema = output["schema"]
        fields["text"] = {
            "format": {"type": "json_schema", "name": "response", "schema": schema, "strict": _is_strict(schema)}
        }
    return {name: value for name, value in fields.items() if value is not None}


def _is_strict(schema: object) -> bool:
    """OpenAI's strict mode requires every object property."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    properties = json_object(schema.get("properties"))
    if properties.keys() - {*map(str, json_list(schema.get("required")))}:
        return False
    return all(map(_is_strict, schema.values()))


# By minimum thinking budget, in tokens.
_BUDGETS = ((16_384, "high"), (4_096, "medium"), (0, "low"))


def _reasoning(request: MessagesRequest) -> JSONObject:
    thinking = json_object(request.thinking)
    effort = json_object(request.output_config).get("effort")
    if thinking.get("type") == "disabled":
        return {"reasoning": {"effort": "none"}}
    if not effort and (budget := thinking.get("budget_tokens")) is not None:
        effort = next(name for least, name in _BUDGETS if budget >= least)
    reasoning: JSONObject = {"effort": effort} if effort else {}
    if thinking:
        reasoning["summary"] = "auto"
    return {"reasoning": reasoning} if reasoning else {}


def _metadata(request: MessagesRequest) -> JSONObject:
    """The `prompt_cache_key` routes a user's requests to one replica."""
    user = json_text(json_object(request.metadata).get("user_id"))
    if not user:
        return {}
    digest = hashlib.sha256(user.encode("utf-8", "replace")).hexdigest()
    known = len(user) <= _MAX_IDENTIFIER and "\0" not in user
    return {"safety_identifier": user if known else digest, "prompt_cache_key": digest}


_NO_CITATIONS = "Document citations are not supported; 'citations' was ignored."
FOREIGN_THINKING = "A thinking block's signature that this server did not create was dropped."
_FAILED = ("error", "<tool_use_error>")  # texts that already mark a result as failed


class _ItemReader:
    """
    Reads content blocks as Responses API items.

        reader.read(0, {"role": "user", "content": [{"type": "text", "text": "Hello!"}]})
        reader.items    # [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}]
        reader.client_paths  # {"input[0].content[0]": "messages[0].content[0]"}, for errors about an item

    A message with calls, results or thinking becomes several items, in block order.
    """

    def __init__(self, warnings: Warnings) -> None:
        self.items: list[JSONObject] = []
        self.client_paths: dict[str, str] = {}
        self._warnings = warnings
        self._parts: list[JSONObject] = []  # in the current message
        self._part_paths: list[str] = []
        self._results: dict[str, JSONObject] = {}  # by call id, in the current message

    def read(self, index: int, message: JSONMapping) -> None:
        role, content, path = message["role"], message["content"], f"messages[{index}]"
        if isinstance(content, str):
            self._add({"type": "message", "role": role, "content": content}, path)
            return
        self.read_blocks(role, content, f"{path}.content")

    def read_blocks(self, role: str, blocks: list[JSONObject], path: str) -> None:
        self._results = {block["tool_use_id"]: block for block in blocks if _is_hosted_result(block)}
        for number, block in enumerate(blocks):
            self._block(role, block, f"{path}[{number}]")
        self._end_message(role)

    def _block(self, role: str, block: JSONObject, path: str) -> None:
        kind = block["type"]
        if kind in _PARTS:
            parts = self._parts_of(block, "output_text" if role == "assistant" else "input_text")
            self._parts += parts
            self._part_paths += [path] * len(parts)
        elif _is_hosted_result(block):
            pass  # read with its call
        elif kind in _ITEMS:
            self._end_message(role)
            if item := _ITEMS[kind](self, block):
                self._add(item, path)
        else:
            self._warnings.add(f"Content of unknown type {quote(kind)} was ignored.")

    def _parts_of(self, block: JSONObject, text_type: str) -> list[JSONObject]:
        """The last part gets the block's cache breakpoint."""
        if json_object(block.get("citations")).get("enabled"):
            self._warnings.add(_NO_CITATIONS)
        parts = _PARTS[block["type"]](block, text_type)
        return [*parts[:-1], {**parts[-1], **_breakpoint(block)}] if parts else []

    def _end_message(self, role: str) -> None:
        if not self._parts:
            return
        parts, client_paths = self._parts, self._part_paths
        self._parts, self._part_paths = [], []
        self._add({"type": "message", "role": role, "content": parts}, client_paths[0], client_paths)

    def _add(self, item: JSONObject, path: str, parts: Sequence[str] = ()) -> None:
        own = f"input[{len(self.items)}]"
        self.client_paths[own] = path
        self.client_paths |= {f"{own}.content[{number}]": part for number, part in enumerate(parts)}
        if item["type"] == "function_call_output":
            self.client_paths[f"{own}.output"] = f"{path}.content"
        self.items.append(item)

    def _tool_use(self, block: JSONObject) -> JSONObject:
        name, arguments = short_name(block["name"]), to_json(block["input"])
        return {"type": "function_call", "call_id": block["id"], "name": name, "arguments": arguments}

    def _hosted_use(self, block: JSONObject) -> JSONObject | None:
        item = hosted_item(block, self._results.get(block["id"], {}))
        if item is None:
            self._warnings.add(f"Calls of the unknown tool {quote(block['name'])} were ignored.")
        return item

    def _tool_result(self, block: JSONObject) -> JSONObject:
        output = self._output(block.get("content") or "", bool(block.get("is_error")))
        if mark := _breakpoint(block):
            output = [{"type": "input_text", "text": output}] if isinstance(output, str) else output
            if output:
                output[-1] = {**output[-1], **mark}
        return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": output}

    def _output(self, content: str | list[JSONObject], failed: bool) -> str | list[JSONObject]:
        if isinstance(content, str):
            return _as_error(content) if failed else content
        parts: list[JSONObject] = []
        for block in content:
            if block["type"] in _PARTS:
                parts += self._parts_of(block, "input_text")
            else:
                self._warnings.add(f"Content of type {quote(block['type'])} in tool results was ignored.")
        if failed:
            texts = [part for part in parts if part["type"] == "input_text"]
            if texts:
                texts[0]["text"] = _as_error(texts[0]["text"])
            else:
                parts.insert(0, {"type": "input_text", "text": _as_error("")})
        return parts

    def _reasoning(self, block: JSONObject) -> JSONObject | None:
        """Drops a foreign signature; None if nothing remains."""
        is_redacted = block["type"] == "redacted_thinking"
        text = "" if is_redacted else block["thinking"]
        signature = block["data"] if is_redacted else json_text(block.get("signature"))
        item: JSONObject = {"type": "reasoning", "summary": []}
        if text:
            item["content"] = [{"type": "reasoning_text", "text": text}]
        if signature.startswith(CONTENT_MARK):
            return {**item, "encrypted_content": signature, FROM_SIGNATURE: True}
        if signature:
            self._warnings.add(FOREIGN_THINKING)
        return item if text else None

    def _summary(self, block: JSONObject) -> JSONObject | None:
        text = json_text(block.get("content"))
        content = f"Summary of the conversation so far:\n\n{text}"
        return {"type": "message", "role": "user", "content": content} if text else None


_ITEMS: dict[str, Callable[[_ItemReader, JSONObject], JSONObject | None]] = {
    "tool_use": _ItemReader._tool_use,
    "server_tool_use": _ItemReader._hosted_use,
    "mcp_tool_use": _ItemReader._hosted_use,
    "tool_result": _ItemReader._tool_result,
    "thinking": _ItemReader._reasoning,
    "redacted_thinking": _ItemReader._reasoning,
    "compaction": _ItemReader._summary,
}


def _is_hosted_result(block: JSONMapping) -> bool:
    kind = block["type"]
    return kind != "tool_result" and kind.endswith("_tool_result") and isinstance(block.get("tool_use_id"), str)


def _as_error(text: str) -> str:
    """The Responses API has no `is_error`."""
    return text if text.lower().startswith(_FAILED) else f"Error: {text or 'the call failed.'}"


# Blocks that become message parts.

_LONG = "12h"  # OpenAI's shortest lifetime that is at least an hour


def _breakpoint(block: JSONMapping) -> JSONObject:
    if not (mark := block.get("cache_control")):
        return {}
    ttl = {"ttl": _LONG} if mark.get("ttl") == "1h" else {}
    return {"prompt_cache_breakpoint": {"mode": "explicit", **ttl}}


def _image(block: JSONObject, text_type: str) -> list[JSONObject]:
    source = block["source"]
    fields = {"file_id": source["file_id"]} if source["type"] == "file" else {"image_url": _url(source)}
    return [{"type": "input_image", **fields}]


def _url(source: JSONMapping) -> str:
    if source["type"] == "url":
        url: str = source["url"]
        return url
    return f"data:{source['media_type']};base64,{source['data']}"


def _document(block: JSONObject, text_type: str) -> list[JSONObject]:
    source, title = block["source"], json_text(block.get("title"))
    kind = source["type"]
    if kind in ("text", "content"):
        content = source["data"] if kind == "text" else source["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        heading = "\n".join(filter(None, (title and f"Document: {title}", json_text(block.get("context")))))
        return _with_heading(blocks, heading, text_type)
    named = {"filename": title} if title else {}
    if kind == "file":
        return [{"type": "input_file", "file_id": source["file_id"], **named}]
    if kind == "url":
        return [{"type": "input_file", "file_url": source["url"], **named}]
    name = "document.pdf" if source["media_type"] == "application/pdf" else "document"
    return [{"type": "input_file", "filename": name, "file_data": _url(source), **named}]


def _search_result(block: JSONObject, text_type: str) -> list[JSONObject]:
    return _with_heading(block["content"], f"[{block['title']}]({block['source']})", text_type)


def _with_heading(blocks: list[JSONObject], heading: str, text_type: str) -> list[JSONObject]:
    """The blocks' parts, with `heading` before the first text."""
    parts = [part for block in blocks for part in _PARTS[block["type"]](block, text_type)]
    if heading and parts and parts[0]["type"] == text_type:
        return [{**parts[0], "text": f"{heading}\n\n{parts[0]['text']}"}, *parts[1:]]
    return [{"type": text_type, "text": heading}, *parts] if heading else parts


_PARTS: Mapping[str, Callable[[JSONObject, str], list[JSONObject]]] = {
    "text": lambda block, text_type: [{"type": text_type, "text": block["text"]}],
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    # Found by the client's search. All tools are declared from the start.
    "tool_reference": lambda block, text_type: [
        {"type": text_type, "text": f"The tool {json_text(block.get('tool_name'))} can be called."}
    ],
}
