from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias
from urllib.parse import parse_qsl, urlsplit

from app.core.redaction import Redactor
from app.core.types import JSONMapping, Part
from app.tools import Outcome

Block: TypeAlias = JSONMapping  # in a result's `content`, as defined by the protocol

RESULT_TRUNCATED = "\n[Result truncated here.]"
MAX_IMAGES, MAX_IMAGE_CHARS = 32, 20_000_000  # base64, per result; stored with the turn
_LONG_SEGMENT = 16  # characters; longer URL path segments are treated as secrets


def redactor_for(url: str = "", headers: Mapping[str, str] | None = None, more: Iterable[str] = ()) -> Redactor:
    """Redacts secrets in a server's URL, header values (with any scheme), and `more`."""
    parts = urlsplit(url)
    # Some servers expect a key in the path or query.
    path = [segment for segment in parts.path.split("/") if len(segment) >= _LONG_SEGMENT]
    whole = [f"{parts.path}?{parts.query}"] if parts.query else []
    values = [*more, *whole, *path, *(value for _, value in parse_qsl(parts.query)), parts.password or ""]
    for value in (headers or {}).values():
        values += [value, value.partition(" ")[2]]
    return Redactor(values)


def without_secrets(value: object, redactor: Redactor) -> object:
    """Redact secrets at any depth in a JSON value."""
    if isinstance(value, str):
        return redactor.without_known(value)
    if isinstance(value, list):
        return [without_secrets(element, redactor) for element in value]
    if isinstance(value, dict):
        return {redactor.without_known(name): without_secrets(field, redactor) for name, field in value.items()}
    return value


def outcome_of(result: JSONMapping, redactor: Redactor, max_chars: int) -> Outcome:
    blocks: list[Block] = result.get("content") or []
    text = truncate(redactor.without_known(_text(blocks, result.get("structuredContent"))), max_chars)
    if result.get("isError"):
        content = [{"type": "text", "text": text}]
        error = {"type": "mcp_tool_execution_error", "content": content}
        return Outcome.failed(f"Error: {text}", {"output": None, "error": error})
    images, omitted = _images(blocks)
    if omitted:
        text += f"\n[{omitted} images in this result were omitted: too many or too large.]"
    output: str | list[Part] = [{"type": "input_text", "text": text}, *images] if images else text
    return Outcome(output, {"output": text, "error": None})


def failed_outcome(error: Mapping[str, object], redactor: Redactor, *, begun: bool = True) -> Outcome:
    """`error` is the `error` in the `mcp_call` item."""
    message = redactor(str(error["message"]))
    return Outcome.failed(f"Error: {message}", {"output": None, "error": {**error, "message": message}}, begun=begun)


def truncate(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max(0, max_chars - len(RESULT_TRUNCATED))] + RESULT_TRUNCATED


def _text(blocks: Iterable[Block], structured: object) -> str:
    """Structured content is only used without text blocks."""
    blocks = list(blocks)
    if structured is not None and not any(block.get("type") == "text" for block in blocks):
        return "\n".join([json.dumps(structured, ensure_ascii=False), *filter(None, map(_block_text, blocks))])
    return "\n".join(filter(None, map(_block_text, blocks)))


def _block_text(block: Block) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text") or "")
        case "image" | "audio" as kind:
            return f"[{kind}: {block.get('mimeType')}]"
        case "resource_link":
            description = f": {block['description']}" if block.get("description") else ""
            return f"[{block.get('name') or 'resource'}]({block.get('uri')}){description}"
        case "resource":
            resource = block.get("resource") or {}
            if isinstance(text := resource.get("text"), str):
                return f"{resource.get('uri')}:\n{text}"
            return f"[resource: {resource.get('uri')} {resource.get('mimeType') or ''}".rstrip() + "]"
    return ""


def _images(blocks: Iterable[Block]) -> tuple[list[Part], int]:
    """Images for the model, and the number omitted."""
    shown: list[Part] = []
    left, omitted = MAX_IMAGE_CHARS, 0
    for image in filter(None, map(_image, blocks)):
        size = len(str(image["image_url"]))
        if size > left or len(shown) == MAX_IMAGES:
            omitted += 1
            continue
        left -= size
        shown.append(image)
    return shown, omitted


def _image(block: Block) -> Part | None:
    """Convert an image block or embedded image resource."""
    if block.get("type") == "resource":
        resource = block.get("resource") or {}
        media_type, data = resource.get("mimeType"), resource.get("blob")
    else:
        media_type, data = block.get("mimeType"), block.get("data")
    if not isinstance(media_type, str) or not isinstance(data, str) or not media_type.startswith("image/"):
        return None
    return {"type": "input_image", "image_url": f"data:{media_type};base64,{data}"}
