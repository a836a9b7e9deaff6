"""Recognises that a model takes no images, and puts a note or a description in the place of each image of a request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from app.core.profile import ContentOptions
from app.core.request.content import NOTE, WARNING_OF_NOTE, string_or_parts
from app.core.types import JSONMapping, JSONObject
from app.errors import BackendError

REFUSED_IMAGE = "messages[].image"  # all images of a request, as the name of a field
IMAGE_WARNING = WARNING_OF_NOTE.format("input_image")

_NOTE = NOTE.format("input_image")
_TYPES = frozenset({"image_url", "image", "input_image"})  # of chat, Messages and Responses
_TEXT_TYPES = {"messages": "text", "input": "input_text"}
_KEPT = ("cache_control", "prompt_cache_breakpoint")

# Images in general. A sentence that goes on in another way is about one format, size or place of images: a model that
# takes the others would lose them, and a misread refusal would go unnoticed.
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
            r"no endpoints found that support image input",  # OpenRouter
        )
    ),
    re.IGNORECASE,
)


def refuses_images(error: BackendError, body: JSONMapping) -> bool:
    """Return whether a refusal is about the images in a request."""
    asked = error.status in (400, 404) or error.answered == 500  # 404: OpenRouter; 500: llama.cpp and Ollama
    return asked and bool(_REFUSED.search(error.message)) and holds_images(body)


def holds_images(body: JSONMapping) -> bool:
    """Return whether a request has images."""
    return any(_has_image(message) for name in _TEXT_TYPES for message in _list(body.get(name)))


def undescribed(body: JSONMapping, descriptions: Mapping[str, str]) -> list[str]:
    """Return the URLs of a request's images without a description, each once."""
    urls = (url for name in _TEXT_TYPES for message in _list(body.get(name)) for url in _urls(message))
    return [url for url in dict.fromkeys(urls) if url not in descriptions]


def with_notes(body: JSONObject, options: ContentOptions, descriptions: Mapping[str, str] | None = None) -> JSONObject:
    """Return a request with the description of each image in its place, or a note where there is none."""
    texts = descriptions or {}
    changed = {
        name: [_noted(message, text_type, options, texts) for message in body[name]]
        for name, text_type in _TEXT_TYPES.items()
        if isinstance(body.get(name), list)
    }
    return {**body, **changed}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


_CONTENT = ("content", "output")  # `output`: of `function_call_output` in Responses


def _has_image(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    return part.get("type") in _TYPES or any(_has_image(inner) for name in _CONTENT for inner in _list(part.get(name)))


def _urls(part: object) -> Iterator[str]:
    if not isinstance(part, dict):
        return
    if part.get("type") in _TYPES:
        yield _url(part)
    for name in _CONTENT:
        for inner in _list(part.get(name)):
            yield from _urls(inner)


def _url(part: JSONMapping) -> str:
    """Return the URL of an image: the same for every API, so that a description fits all of them."""
    image = part.get("image_url") or {}
    if isinstance(image, str):  # of Responses
        return image
    source = part.get("source") or image  # of Messages, or of chat
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source.get("url") or "")


def _noted(part: Any, text_type: str, options: ContentOptions, texts: Mapping[str, str]) -> Any:
    """Return a message or part with notes in the place of images; one without images is returned as it is."""
    if not _has_image(part):
        return part
    if part.get("type") in _TYPES:
        text = texts.get(_url(part), _NOTE) if texts else _NOTE
        return {"type": text_type, "text": text, **{name: part[name] for name in _KEPT if name in part}}
    result = dict(part)
    for name in _CONTENT:
        if any(map(_has_image, inner := _list(part.get(name)))):
            noted = [_noted(each, text_type, options, texts) for each in inner]
            form = options.tool_content if part.get("role") == "tool" else options.parts
            of_chat = any(isinstance(each, dict) and each.get("type") == "image_url" for each in inner)
            result[name] = string_or_parts(noted, form) if of_chat else noted
    return result
