"""Replace images by notes or descriptions for models that do not accept them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from app.core.json_values import json_object
from app.core.profile import ContentOptions
from app.core.request.content import NOTE, NOTE_WARNING, string_or_parts
from app.core.types import JSONMapping, JSONObject
from app.errors import BackendError

REFUSED_IMAGE = "messages[].image"
IMAGE_WARNING = NOTE_WARNING.format("input_image")

_NOTE = NOTE.format("input_image")
_TYPES = frozenset({"image_url", "image", "input_image"})
# Lists that can contain images, and their text type; Gemini parts have no type.
_TEXT_TYPES = {"messages": "text", "input": "input_text", "contents": None}
_KEPT = ("cache_control", "prompt_cache_breakpoint")

# Errors about a format, size or position must not match: the model would lose images that it accepts.
_IMAGES = r"(?:any |the )?(?:images?|vision|multimodal)(?: content| inputs?| modality| blocks?| parts?)*(?: that you)?"
_END = r"(?= (?:by|for|in|with|on) (?:this|the )[\w ]{0,12}model| for model| provided|\s*(?:[.,;:!)]|- |$))"
_REFUSED = re.compile(
    "|".join(
        (
            r"unknown variant [`'\"](?:image_url|input_image|image)\b",  # serde: DeepSeek
            r"tag ['\"](?:image_url|input_image|image)['\"] found",  # pydantic
            r"image_url['\"`]? is only supported by certain models",  # OpenAI
            # LM Studio, Bedrock
            rf"(?:does not|doesn't|do not|cannot) (?:support|accept|take|process) {_IMAGES}{_END}",
            # llama.cpp, Mistral, xAI, Moonshot
            rf"(?:images are|image (?:content|inputs?) (?:is |are )?) ?not (?:supported|enabled){_END}",
            r"missing data required for image input",  # Ollama
            r"is not a multimodal model",  # vLLM, SGLang
            r"at most 0 image",  # vLLM
            r"image input modality is not enabled",  # Gemini
            r"no endpoints found that support image input",  # OpenRouter
        )
    ),
    re.IGNORECASE,
)


def refuses_images(error: BackendError, body: JSONMapping) -> bool:
    asked = error.status in (400, 404) or error.answered == 500  # 404: OpenRouter; 500: llama.cpp and Ollama
    return asked and bool(_REFUSED.search(error.message)) and holds_images(body)


def holds_images(body: JSONMapping) -> bool:
    return any(_has_image(message) for name in _TEXT_TYPES for message in _list(body.get(name)))


def undescribed(body: JSONMapping, descriptions: Mapping[str, str]) -> list[str]:
    urls = (url for name in _TEXT_TYPES for message in _list(body.get(name)) for url in _urls(message))
    return [url for url in dict.fromkeys(urls) if url not in descriptions]


def with_notes(body: JSONObject, options: ContentOptions, descriptions: Mapping[str, str] | None = None) -> JSONObject:
    texts = descriptions or {}
    changed = {
        name: [_noted(message, text_type, options, texts) for message in body[name]]
        for name, text_type in _TEXT_TYPES.items()
        if isinstance(body.get(name), list)
    }
    return {**body, **changed}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


_CONTENT = ("content", "output", "parts")  # `output`: in `function_call_output`; `parts`: Gemini
_RESPONSE = "functionResponse"  # Gemini; its parts cannot be text
_DATA = ("inlineData", "fileData")  # Gemini


def _is_image(part: JSONMapping) -> bool:
    return part.get("type") in _TYPES or any(
        str(json_object(part.get(name)).get("mimeType")).startswith("image/") for name in _DATA
    )


def _inner(part: JSONMapping) -> Iterator[object]:
    for name in _CONTENT:
        yield from _list(part.get(name))
    yield part.get(_RESPONSE)


def _has_image(part: object) -> bool:
    return isinstance(part, dict) and (_is_image(part) or any(map(_has_image, _inner(part))))


def _urls(part: object) -> Iterator[str]:
    if not isinstance(part, dict):
        return
    if _is_image(part):
        yield _url(part)
    for inner in _inner(part):
        yield from _urls(inner)


def _url(part: JSONMapping) -> str:
    """The same URL in all APIs, so that descriptions apply to all."""
    if inline := part.get("inlineData"):
        return f"data:{inline.get('mimeType')};base64,{inline.get('data')}"
    if file := part.get("fileData"):
        return str(file.get("fileUri") or "")
    image = part.get("image_url") or {}
    if isinstance(image, str):  # Responses
        return image
    source = part.get("source") or image  # Messages, or chat
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source.get("url") or "")


def _noted(part: Any, text_type: str | None, options: ContentOptions, texts: Mapping[str, str]) -> Any:
    if not _has_image(part):
        return part
    if _is_image(part):
        typed = {"type": text_type} if text_type else {}
        return {**typed, "text": _text(part, texts), **{name: part[name] for name in _KEPT if name in part}}
    result = dict(part)
    if _RESPONSE in part:
        result[_RESPONSE] = _noted_response(part[_RESPONSE], texts)
    for name in _CONTENT:
        if any(map(_has_image, inner := _list(part.get(name)))):
            noted = [_noted(each, text_type, options, texts) for each in inner]
            form = options.tool_content if part.get("role") == "tool" else options.parts
            of_chat = any(isinstance(each, dict) and each.get("type") == "image_url" for each in inner)
            result[name] = string_or_parts(noted, form) if of_chat else noted
    return result


def _text(part: JSONMapping, texts: Mapping[str, str]) -> str:
    return texts.get(_url(part), _NOTE) if texts else _NOTE


def _noted_response(response: JSONObject, texts: Mapping[str, str]) -> JSONObject:
    images = [part for part in response["parts"] if _is_image(part)]
    others = [part for part in response["parts"] if not _is_image(part)]
    output = "\n".join(filter(None, (response["response"].get("output"), *(_text(part, texts) for part in images))))
    kept = {name: value for name, value in response.items() if name != "parts"}
    return {**kept, "response": {**response["response"], "output": output}, **({"parts": others} if others else {})}
