"""
Translate an item's content into chat message content, with a row in `_PARTS` per part type.

Text is sent as a plain string: some servers turn each part of a list into a message, others drop parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from app.core.profile import ContentOptions
from app.core.request.files import PDF_ERROR, PDF_TEXT, as_text, file_text
from app.core.types import JSONObject
from app.core.types.content import IMAGES
from app.core.types.request import Part
from app.errors import InvalidRequest, Warnings, quote

ChatPart: TypeAlias = JSONObject


# Each function raises `InvalidRequest`, with the part's field as `param`, for a part that cannot be sent.


def _text(part: Part, options: ContentOptions) -> ChatPart:
    return {"type": "text", "text": part["text"]}


_DETAILS = {"original": "high"}  # not in Chat Completions


def _image(part: Part, options: ContentOptions) -> ChatPart:
    if options.images == "error":
        raise InvalidRequest("This backend does not support images.")
    if not (url := part.get("image_url")):
        raise _missing(part, "image_url", "the image as an `image_url`, for example a data URL")
    image = {"url": url}
    if detail := part.get("detail"):
        image["detail"] = _DETAILS.get(detail, detail)
    return {"type": "image_url", "image_url": image}


def _text_in(part: Part) -> str | None:
    return file_text(part) if part.get(PDF_TEXT) is None else part[PDF_TEXT]


def _file(part: Part, options: ContentOptions) -> ChatPart:
    if (text := _text_in(part)) is not None:
        return {"type": "text", "text": as_text(part, text)}
    if options.files != "pass" and (reason := part.get(PDF_ERROR)):
        raise InvalidRequest(reason, param="file_data")
    if options.files == "error":
        field = next((name for name in ("file_data", "file_url", "file_id") if part.get(name)), None)
        message = "This backend supports only text files. Send the file's text as `input_text`."
        raise InvalidRequest(message, param=field)
    file = {name: part[name] for name in ("filename", "file_data", "file_url") if part.get(name)}
    if "file_data" not in file and "file_url" not in file:
        raise _missing(part, "file_data", "the file as `file_data` or `file_url`")
    return {"type": "file", "file": file}


def _audio(part: Part, options: ContentOptions) -> ChatPart:
    if options.audio == "error":
        raise InvalidRequest("This backend does not support audio.")
    audio = part["input_audio"]
    return {"type": "input_audio", "input_audio": {"data": audio["data"], "format": audio["format"]}}


def _missing(part: Part, field: str, wanted: str) -> InvalidRequest:
    if part.get("file_id"):
        return InvalidRequest(f"This server does not accept file ids here. Send {wanted}.", param="file_id")
    return InvalidRequest(f"This part is empty. Send {wanted}.", param=field)


# Some clients send `output_text` instead of `input_text`, or the reverse.
_PARTS: dict[str, Callable[[Part, ContentOptions], ChatPart]] = {
    "input_text": _text,
    "output_text": _text,
    "text": _text,
    "summary_text": _text,
    "reasoning_text": _text,
    # Servers reject `refusal` parts in requests.
    "refusal": lambda part, options: {"type": "text", "text": part["refusal"]},
    "input_image": _image,
    "computer_screenshot": _image,
    "input_file": _file,
    "input_audio": _audio,
    "input_video": lambda part, options: {"type": "video_url", "video_url": {"url": part["video_url"]}},
}


PART_TYPES = frozenset(_PARTS)

_LIMITS = {**dict.fromkeys(IMAGES, "images"), "input_file": "files", "input_audio": "audio"}

NOTE = "(Content of type {} was omitted: this model does not support it.)"
NOTE_WARNING = "This backend does not support {}; it was replaced by a note."


def read_content(
    content: str | Sequence[Part] | None,
    options: ContentOptions,
    warnings: Warnings,
    form: Callable[[ChatPart, Part], JSONObject] = lambda made, part: made,
) -> list[JSONObject]:
    """
    `form` converts a chat part, made from an item's part, to the API's part.

    Raises `InvalidRequest`, with a `param` such as `[1].file_id`, for a known part that cannot be sent.
    """
    if not content:
        return []
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    parts = []
    for index, part in enumerate(content):
        if (make := _PARTS.get(part["type"])) is None:
            warnings.add(f"Content of unknown type {quote(part['type'])} was ignored.")
            continue
        kind = _LIMITS.get(part["type"])
        drops = kind is not None and getattr(options, kind) == "drop"
        try:
            if drops and (kind != "files" or _text_in(part) is None):
                warnings.add(NOTE_WARNING.format(part["type"]))
                made = {"type": "text", "text": NOTE.format(part["type"])}
            else:
                made = make(part, options)
            parts.append(form(made, part))
        except InvalidRequest as error:
            error.param = f"[{index}].{error.param}" if error.param else f"[{index}]"
            raise
    return parts


def cache_control(ttl: object = None) -> JSONObject:
    return {"type": "ephemeral", **({} if ttl in (None, "5m", "in_memory") else {"ttl": "1h"})}


def check_known(content: object, input_index: int) -> None:
    """Raises `InvalidRequest` for new content without a known part."""
    if input_index < 0 or not isinstance(content, list):
        return
    if content and all(part["type"] not in PART_TYPES for part in content):
        param = param_in_item(input_index, ".content")
        message = f"Invalid '{param}': must contain a part of a known type: {', '.join(sorted(PART_TYPES))}."
        raise InvalidRequest(message, param=param, code="invalid_value")


def param_in_item(input_index: int, field: str) -> str:
    """An error's `param`; a negative index belongs to an earlier turn."""
    return f"input[{input_index}]{field}" if input_index >= 0 else "previous_response_id"


def texts(parts: Sequence[ChatPart]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def media(parts: Sequence[ChatPart]) -> list[ChatPart]:
    return [part for part in parts if part["type"] != "text"]


_TEXTS = frozenset(type_ for type_, make in _PARTS.items() if make is _text)


def plain_text(content: str | Sequence[Part] | None) -> str | None:
    """
    Content that is a single text, otherwise None.

    Nearly all content is a single text, for which `read_content` is several times slower.
    """
    if isinstance(content, str):
        return content
    if content is None or len(content) != 1:
        return None
    part = content[0]
    return part["text"] if part["type"] in _TEXTS and "prompt_cache_breakpoint" not in part else None


def text_content(text: str, form: str) -> str | list[ChatPart]:
    return [{"type": "text", "text": text}] if form == "array" else text


def string_or_parts(parts: list[ChatPart], form: str) -> str | list[ChatPart]:
    """Content without media becomes a string unless the form is `array`."""
    if len(parts) == 1 and form != "array" and parts[0]["type"] == "text" and len(parts[0]) == 2:
        text: str = parts[0]["text"]  # nearly all content
        return text
    if media(parts) or (form == "array" and parts) or any("cache_control" in part for part in parts):
        return parts
    return "\n".join(texts(parts))
