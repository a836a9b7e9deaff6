"""
Content parts in messages, reasoning and tool results, as validated in requests.

Accepts unknown part types and fields; optional fields can be null.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, Discriminator, GetCoreSchemaHandler, GetJsonSchemaHandler, StringConstraints, Tag
from pydantic.functional_validators import BeforeValidator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError
from pydantic_core.core_schema import no_info_after_validator_function
from typing_extensions import TypedDict

_MB = 1024 * 1024


class _MaxLength:
    """
    Maximum string length, in characters.

    Pydantic's constraint encodes non-ASCII strings, and Python caches the encoding in the string.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def __get_pydantic_core_schema__(self, source: type[str], handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "maxLength": self.length}

    def _checked(self, text: str) -> str:
        if len(text) > self.length:
            raise PydanticKnownError("string_too_long", {"max_length": self.length})
        return text


Text = Annotated[str, _MaxLength(10 * _MB)]
TypeName = Annotated[str, StringConstraints(min_length=1)]


class Tolerant(TypedDict):
    """An object that keeps unknown fields."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]


class TextPart(Tolerant):
    """Any text part (`input_text`, `output_text`, ...): some clients mix up their types."""

    type: str
    text: Text


class RefusalPart(Tolerant):
    type: str
    refusal: Text


class ImagePart(Tolerant):
    type: str
    image_url: NotRequired[Annotated[str, _MaxLength(20 * _MB)] | None]
    file_id: NotRequired[str | None]
    detail: NotRequired[Literal["low", "high", "auto", "original"] | None]


class FilePart(Tolerant):
    type: str
    filename: NotRequired[str | None]
    file_data: NotRequired[Annotated[str, _MaxLength(32 * _MB)] | None]
    file_url: NotRequired[str | None]
    file_id: NotRequired[str | None]


class Audio(Tolerant):
    data: str
    format: str


class AudioPart(Tolerant):
    type: str
    input_audio: Audio


class VideoPart(Tolerant):
    type: str
    video_url: str


class Unknown(Tolerant):
    """A value of an unknown type: an extension (`vendor:type`) or a newer type."""

    type: TypeName
    id: NotRequired[Annotated[str | None, BeforeValidator(lambda value: value if isinstance(value, str) else None)]]
    call_id: NotRequired[str | None]


def _from_chat(part: dict[str, object]) -> dict[str, object]:
    """From Chat Completions: `{"type": "image_url", "image_url": {"url": ...}}`."""
    if part["type"] == "file":
        file = part.get("file")
        return {**(file if isinstance(file, dict) else {}), "type": "input_file"}
    if isinstance(image := part.get("image_url"), dict):
        part = {"detail": image.get("detail"), **part, "image_url": image.get("url")}
    return {**part, "type": "input_image"}


_Image = Annotated[ImagePart, BeforeValidator(_from_chat)]


# Audio formats for media subtypes with a different name.
_FORMATS = {"x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "mpeg": "mp3", "mp4": "m4a", "x-m4a": "m4a"}
_AUDIO_URL = re.compile(r"data:audio/([\w.+-]+)(?:;[^,]*)?;base64", re.IGNORECASE)


def _from_url(part: dict[str, object]) -> dict[str, object]:
    """Codex sends a data URL instead of `input_audio`."""
    url = part.get("audio_url")
    head, _, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if (kind := _AUDIO_URL.fullmatch(head)) is None:
        return part
    file_format = kind[1].lower()
    return {"type": "input_audio", "input_audio": {"data": data, "format": _FORMATS.get(file_format, file_format)}}


def tag_of(value: object, known: frozenset[str]) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if isinstance(kind, str) and kind in known else "<unknown>"


_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_IMAGES = ("input_image", "image_url", "computer_screenshot")
_PARTS = frozenset([*_TEXTS, *_IMAGES, "refusal", "input_file", "file", "input_audio", "input_video"])

# In validated requests.
IMAGES = frozenset({"input_image", "computer_screenshot"})

# Union tags are in angle brackets, so that they can be removed from error paths.
ContentPart = Annotated[
    Annotated[TextPart, Tag("<input_text>")]
    | Annotated[TextPart, Tag("<output_text>")]
    | Annotated[TextPart, Tag("<text>")]
    | Annotated[TextPart, Tag("<summary_text>")]
    | Annotated[TextPart, Tag("<reasoning_text>")]
    | Annotated[RefusalPart, Tag("<refusal>")]
    | Annotated[_Image, Tag("<input_image>")]
    | Annotated[_Image, Tag("<image_url>")]
    | Annotated[ImagePart, Tag("<computer_screenshot>")]
    | Annotated[FilePart, Tag("<input_file>")]
    | Annotated[FilePart, BeforeValidator(_from_chat), Tag("<file>")]
    | Annotated[AudioPart, BeforeValidator(_from_url), Tag("<input_audio>")]
    | Annotated[VideoPart, Tag("<input_video>")]
    | Annotated[Unknown, Tag("<unknown>")],
    Discriminator(lambda value: tag_of(value, _PARTS)),
]


TEXT_OR_LIST = Discriminator(
    lambda value: "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None,
    custom_error_type="text_or_list",
    custom_error_message="must be a string or a list",
)

Content = Annotated[Annotated[Text, Tag("<text>")] | Annotated[list[ContentPart], Tag("<list>")], TEXT_OR_LIST]
