from __future__ import annotations

import re
from typing import Any

from app.core.profile import ContentOptions
from app.core.request.content import CHAT_PARTS, PartError, PartForm
from app.core.request.files import is_pdf
from app.core.types import JSONObject
from app.core.types.request import Part

_DATA_URL = re.compile(r"data:([\w.+/-]*)[^,]*;base64,", re.IGNORECASE)
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_WEB = ("https://", "http://")


def _text(part: Part, options: ContentOptions) -> JSONObject:
    return CHAT_PARTS.parts[part["type"]](part, options)


def _image(part: Part, options: ContentOptions) -> JSONObject:
    url: str = CHAT_PARTS.parts["input_image"](part, options)["image_url"]["url"]
    if url.startswith(_WEB):
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": _base64_image(url, "image_url")}


def _base64_image(url: str, field: str) -> JSONObject:
    match = _DATA_URL.match(url)
    media_type = match[1].lower().replace("image/jpg", "image/jpeg") if match else ""
    if match is None or media_type not in _IMAGES:
        raise PartError("This backend supports images only as JPEG, PNG, GIF or WebP, as a URL or base64 data.", field)
    return {"type": "base64", "media_type": media_type, "data": url[match.end() :]}


def _file(part: Part, options: ContentOptions) -> JSONObject:
    made = CHAT_PARTS.parts["input_file"](part, options)
    if made["type"] == "text":
        return made
    file: JSONObject = made["file"]
    data = file.get("file_data")
    if data is None:
        source = {"type": "url", "url": file["file_url"]}
    elif is_pdf(part):
        match = _DATA_URL.match(data)
        source = {"type": "base64", "media_type": "application/pdf", "data": data[match.end() if match else 0 :]}
    elif data.lower().startswith("data:image/"):
        return {"type": "image", "source": _base64_image(data, "file_data")}
    else:
        raise PartError("This backend supports only text, PDF and image files.", "file_data")
    return {"type": "document", "source": source, **({"title": name} if (name := file.get("filename")) else {})}


def _refused(kind: str) -> Any:
    def refuse(part: Part, options: ContentOptions) -> JSONObject:
        raise PartError(f"This backend does not support {kind}.")

    return refuse


PARTS = PartForm(
    {
        **dict.fromkeys(CHAT_PARTS.parts, _text),
        "input_image": _image,
        "input_file": _file,
        "input_audio": _refused("audio"),
        "input_video": _refused("video"),
    }
)
CACHED_PARTS = PARTS._replace(breakpoints=True)
