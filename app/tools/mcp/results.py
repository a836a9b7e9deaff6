"""What comes back from an MCP server, as the model and the caller are shown it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from app.core.redaction import Redactor
from app.core.types import Part
from app.tools import Outcome

Block: TypeAlias = Mapping[str, Any]  # of a result's `content`, as the protocol has it

CUT = "\n[The rest of the result was cut off.]"
_LONG_SEGMENT = 16  # characters of a URL's path from which on it is taken for a secret


def redactor_for(url: str = "", headers: Mapping[str, str] | None = None, more: Iterable[str] = ()) -> Redactor:
    """Return what redacts the secrets of one server: those of its URL, of header values (whatever their scheme)."""
    values = [*more, *_secrets_of(url)]
    for value in (headers or {}).values():
        values += [value, value.partition(" ")[2]]
    return Redactor(values)


def without_secrets(value: object, redactor: Redactor) -> object:
    """Return a JSON value without the known secrets, at any depth."""
    if isinstance(value, str):
        return redactor.without_known(value)
    if isinstance(value, list):
        return [without_secrets(one, redactor) for one in value]
    if isinstance(value, dict):
        return {redactor.without_known(name): without_secrets(one, redactor) for name, one in value.items()}
    return value


def _secrets_of(url: str) -> list[str]:
    """Return what may be secret of a URL: what follows its host may be a key, as some servers want it."""
    parts = urlsplit(url)
    path = [segment for segment in parts.path.split("/") if len(segment) >= _LONG_SEGMENT]
    whole = [f"{parts.path}?{parts.query}"] if parts.query else []
    return [*whole, *path, *(value for _, value in parse_qsl(parts.query)), parts.password or ""]


def outcome_of(result: Mapping[str, Any], redactor: Redactor, max_chars: int) -> Outcome:
    """Return what came of a call that the server answered: a result of `tools/call`."""
    blocks: list[Block] = result.get("content") or []
    text = cut(redactor.without_known(_text(blocks, result.get("structuredContent"))), max_chars)
    if result.get("isError"):
        content = [{"type": "text", "text": text}]
        error = {"type": "mcp_tool_execution_error", "content": content}
        return Outcome.failed(f"Error: {text}", {"output": None, "error": error})
    shown: str | list[Part] = text
    if images := [image for block in blocks if (image := _image(block))]:
        shown = [{"type": "input_text", "text": text}, *images]
    return Outcome(shown, {"output": text, "error": None})


def failed(error: Mapping[str, object], redactor: Redactor) -> Outcome:
    """Return what came of a call that the server did not answer, with the `error` of an `mcp_call` item."""
    message = redactor(str(error["message"]))
    return Outcome.failed(f"Error: {message}", {"output": None, "error": {**error, "message": message}})


def cut(text: str, max_chars: int) -> str:
    """Return a text that is not longer than it may be, and says so where it was."""
    return text if len(text) <= max_chars else text[: max(0, max_chars - len(CUT))] + CUT


def _text(blocks: Iterable[Block], structured: object) -> str:
    """Return the text of a result: that of its blocks; of its structure only where these have none."""
    blocks = list(blocks)
    if structured is not None and not any(block.get("type") == "text" for block in blocks):
        return "\n".join([json.dumps(structured, ensure_ascii=False), *filter(None, map(_in_words, blocks))])
    return "\n".join(filter(None, map(_in_words, blocks)))


def _in_words(block: Block) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text") or "")
        case "image" | "audio" as kind:
            return f"[{kind}: {block.get('mimeType')}]"
        case "resource_link":
            about = f": {block['description']}" if block.get("description") else ""
            return f"[{block.get('name') or 'resource'}]({block.get('uri')}){about}"
        case "resource":
            resource = block.get("resource") or {}
            if isinstance(text := resource.get("text"), str):
                return f"{resource.get('uri')}:\n{text}"
            return f"[resource: {resource.get('uri')} {resource.get('mimeType') or ''}".rstrip() + "]"
    return ""


def _image(block: Block) -> Part | None:
    """Return a block that is an image, or a resource that is one, as input content."""
    if block.get("type") == "resource":
        resource = block.get("resource") or {}
        kind, data = resource.get("mimeType"), resource.get("blob")
    else:
        kind, data = block.get("mimeType"), block.get("data")
    if not isinstance(kind, str) or not isinstance(data, str) or not kind.startswith("image/"):
        return None
    return {"type": "input_image", "image_url": f"data:{kind};base64,{data}"}
