"""
Content parts in messages, reasoning and tool results, as validated in requests.

Accepts unknown part types and fields; optional fields can be null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, get_args

from pydantic import (
    ConfigDict,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    StringConstraints,
    with_config,
)
from pydantic.functional_validators import BeforeValidator
from pydantic_core import CoreSchema, PydanticKnownError
from pydantic_core.core_schema import no_info_after_validator_function, tagged_union_schema
from typing_extensions import TypedDict

_MB = 1024 * 1024


def _max_length(length: int) -> GetPydanticSchema:
    """
    Limit a string to `length` characters.

    Pydantic's constraint encodes non-ASCII strings, and Python caches the encoding in the string.
    """

    def checked(text: str) -> str:
        if len(text) > length:
            raise PydanticKnownError("string_too_long", {"max_length": length})
        return text

    return GetPydanticSchema(
        lambda source, handler: no_info_after_validator_function(checked, handler(source)),
        lambda schema, handler: {**handler(schema), "maxLength": length},
    )


Text = Annotated[str, _max_length(10 * _MB)]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]


def record(name: str, /, **fields: Any) -> Any:
    """Create an object type with any further fields. Nullable fields can be omitted."""
    types = {field: NotRequired[type_] if type(None) in get_args(type_) else type_ for field, type_ in fields.items()}
    return with_config(ConfigDict(extra="allow"))(TypedDict(name, types))  # type: ignore[operator]


def validated_as(type_: Any) -> GetPydanticSchema:
    """Annotates `Any` with a `record`, which type checkers reject as a type."""
    return GetPydanticSchema(lambda source, handler: handler.generate_schema(type_))


# A value of an unknown type: an extension (`vendor:type`) or a newer type.
Unknown = record(
    "Unknown",
    type=NonEmpty,
    id=Annotated[Any, BeforeValidator(lambda value: value if isinstance(value, str) else None)] | None,
    call_id=str | None,
)


def _from_chat(part: dict[str, object]) -> dict[str, object]:
    """From Chat Completions: `{"type": "image_url", "image_url": {"url": ...}}`."""
    if part["type"] == "file":
        file = part.get("file")
        return {**(file if isinstance(file, dict) else {}), "type": "input_file"}
    if isinstance(image := part.get("image_url"), dict):
        part = {"detail": image.get("detail"), **part, "image_url": image.get("url")}
    return {**part, "type": "input_image"}


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


def tag_of(value: object, known: Collection[str]) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if isinstance(kind, str) and kind in known else "<unknown>"


@dataclass(frozen=True, eq=False)
class Tagged:
    """Annotates `Any`: a value of the type that `tag` names, in angle brackets, for removal from error paths."""

    tag: Callable[[Any], str | None]
    types: Mapping[str, Any]
    # For values without a tag.
    error_type: str | None = None
    message: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schemas = {f"<{name}>": handler.generate_schema(type_) for name, type_ in self.types.items()}
        return tagged_union_schema(
            schemas, self.tag, custom_error_type=self.error_type, custom_error_message=self.message
        )


def by_type(types: Mapping[str, Any], other: Any = None) -> Tagged:
    """An object of the type named by its field `type`. Without `other` for unknown names, the error lists the names."""
    if other is not None:
        return Tagged(lambda value: tag_of(value, types), {**types, "unknown": other})
    names = ", ".join(f"'{name}'" for name in sorted(types))
    return Tagged(
        lambda value: tag if (tag := tag_of(value, types)) != "<unknown>" else None,
        types,
        "invalid_value",
        f"must be an object with a 'type' that is one of {names}",
    )


# In validated requests.
IMAGES = frozenset({"input_image", "computer_screenshot"})

_TextPart = record("TextPart", type=str, text=Text)
_ImagePart = record(
    "ImagePart",
    type=str,
    image_url=Annotated[str, _max_length(20 * _MB)] | None,
    file_id=str | None,
    detail=Literal["low", "high", "auto", "original"] | None,
)
_FilePart = record(
    "FilePart",
    type=str,
    filename=str | None,
    file_data=Annotated[str, _max_length(32 * _MB)] | None,
    file_url=str | None,
    file_id=str | None,
)
_AudioPart = record("AudioPart", type=str, input_audio=record("Audio", data=str, format=str))
_PARTS = {
    # Some clients mix up the types of text parts.
    **dict.fromkeys(("input_text", "output_text", "text", "summary_text", "reasoning_text"), _TextPart),
    "refusal": record("RefusalPart", type=str, refusal=Text),
    **dict.fromkeys(("input_image", "image_url"), Annotated[_ImagePart, BeforeValidator(_from_chat)]),
    "computer_screenshot": _ImagePart,
    "input_file": _FilePart,
    "file": Annotated[_FilePart, BeforeValidator(_from_chat)],
    "input_audio": Annotated[_AudioPart, BeforeValidator(_from_url)],
    "input_video": record("VideoPart", type=str, video_url=str),
}
ContentPart = Annotated[Any, by_type(_PARTS, Unknown)]


def text_or(item: Any) -> Tagged:
    """A text, or a list of `item`."""
    return Tagged(
        lambda value: "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None,
        {"text": Text, "list": list[item]},
        "text_or_list",
        "must be a string or a list",
    )


Content = Annotated[Any, text_or(ContentPart)]
