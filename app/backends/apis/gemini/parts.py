"""Translate item parts into Gemini parts; except text, they are wrapped in `{"type": "part", "part": ...}`."""

from __future__ import annotations

import re
from mimetypes import guess_type
from urllib.parse import urlsplit

from app.core.profile import ContentOptions
from app.core.request.content import CHAT_PARTS, PartError, PartForm
from app.core.request.files import is_pdf
from app.core.types import JSONMapping, JSONObject
from app.core.types.request import Part

_DATA_URL = re.compile(r"data:([\w.+/-]*)[^,]*;base64,", re.IGNORECASE)
_MEDIA = ("image/", "audio/", "video/", "application/pdf")
# Allowed inside a function response; other media follow it.
IN_RESPONSES = ("image/", "application/pdf")


def own_part(part: JSONObject) -> JSONObject:
    return {"type": "part", "part": part}


def sent_part(part: JSONMapping) -> JSONObject:
    sent: JSONObject = {"text": part["text"]} if part["type"] == "text" else part["part"]
    return sent


def media_type(part: JSONMapping) -> str:
    data = part["part"].get("inlineData") or part["part"].get("fileData") or {} if part["type"] == "part" else {}
    return str(data.get("mimeType", ""))


def _text(part: Part, options: ContentOptions) -> JSONObject:
    return CHAT_PARTS.parts[part["type"]](part, options)


def _image(part: Part, options: ContentOptions) -> JSONObject:
    url: str = CHAT_PARTS.parts["input_image"](part, options)["image_url"]["url"]
    return _media(url, "image/jpeg", "image_url")


def _video(part: Part, options: ContentOptions) -> JSONObject:
    return _media(part["video_url"], "video/mp4", "video_url")


def _media(url: str, default: str, field: str) -> JSONObject:
    if match := _DATA_URL.match(url):
        return _inline(match[1].lower().replace("image/jpg", "image/jpeg") or default, url[match.end() :])
    if "://" not in url[:20]:
        raise PartError("Must be a URL, or a data URL in base64.", field)
    return own_part({"fileData": {"mimeType": _guessed(url) or default, "fileUri": url}})


def _guessed(name: str) -> str | None:
    try:
        return guess_type(urlsplit(name).path)[0]
    except ValueError:
        return None


def _inline(media_type: str, data: str) -> JSONObject:
    return own_part({"inlineData": {"mimeType": media_type, "data": data}})


def _audio(part: Part, options: ContentOptions) -> JSONObject:
    audio = CHAT_PARTS.parts["input_audio"](part, options)["input_audio"]
    return _inline(f"audio/{audio['format']}", audio["data"])


def _file(part: Part, options: ContentOptions) -> JSONObject:
    made = CHAT_PARTS.parts["input_file"](part, options)
    if made["type"] == "text":
        return made
    file: JSONObject = made["file"]
    data = file.get("file_data")
    if data is None:
        return _media(file["file_url"], "application/pdf", "file_url")
    match = _DATA_URL.match(data)
    declared = match[1].lower() if match else ""
    name = file.get("filename")
    if is_pdf(part):
        declared = "application/pdf"
    elif declared in ("", "application/octet-stream"):
        declared = (isinstance(name, str) and guess_type(name)[0]) or ""
    if not declared.startswith(_MEDIA):
        raise PartError("This backend supports only text, PDF, image, audio and video files.", "file_data")
    return _inline(declared, data[match.end() if match else 0 :])


GEMINI_PARTS = PartForm(
    {
        **dict.fromkeys(CHAT_PARTS.parts, _text),
        "input_image": _image,
        "computer_screenshot": _image,
        "input_file": _file,
        "input_audio": _audio,
        "input_video": _video,
    }
)
