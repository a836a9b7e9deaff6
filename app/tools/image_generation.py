"""The hosted tool `image_generation`, using a backend's images API. Settings: `[tools.image_generation]`."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

import httpx
import orjson
from pydantic import BaseModel, Field

from app.core.redaction import redact
from app.core.types import JSONObject
from app.core.types.content import IMAGES
from app.core.types.request import Item
from app.core.usage import image_usage, request_usage
from app.errors import InvalidRequest, StoreUnavailable, TooManyRequests
from app.runtime.outbound import why_no_answer
from app.tools import (
    CallFailed,
    Declaration,
    HostedFunction,
    HostedTool,
    Outcome,
    Report,
    SettingsTable,
    ToolCall,
    ToolHost,
    ToolSession,
)
from app.tools.endpoint import endpoint_client, endpoint_options
from app.tools.validation import read_declaration, read_table

MAX_IMAGE_ANSWER_BYTES = 200_000_000  # including partial images, in base64
MAX_EDITED_IMAGES = 4

_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,", re.IGNORECASE)


class ImageSettings(SettingsTable):
    backend: str = "default"
    """Name of the backend with the images API."""
    model: str | None = None
    """The image model. Default: the backend's own default."""
    models: list[str] = []
    """Globs for other models that callers may select."""
    timeout: float = Field(300, gt=0)
    """Time limit per image, in seconds."""

    def choose_model(self, declared: str | None) -> str | None:
        """The declared model if allowed, else the configured model, else None: the backend's default."""
        if declared and any(fnmatchcase(declared, pattern) for pattern in self.models):
            return declared
        return self.model


class ImageMask(BaseModel):
    image_url: str | None = None


class ImageDeclaration(BaseModel):
    action: Literal["auto", "generate", "edit"] | None = None
    model: str | None = None
    partial_images: int | None = Field(None, ge=0, le=3)
    input_image_mask: ImageMask | None = None
    background: str | None = None
    input_fidelity: str | None = None
    moderation: str | None = None
    output_compression: int | None = Field(None, ge=0, le=100)
    output_format: str | None = None
    quality: str | None = None
    size: str | None = None

    def options(self) -> dict[str, object]:
        return self.model_dump(exclude_none=True, exclude={"action", "input_image_mask", "model", "partial_images"})


ImageFile: TypeAlias = tuple[str, bytes, str]  # file name, content and media type, as uploaded by httpx


class ImageGenerationTool(HostedTool):
    types = ("image_generation",)

    def __init__(self, settings: ImageSettings, http: httpx.AsyncClient) -> None:
        self._settings = settings
        self._http = http

    def declarations(self, key_names: Collection[str]) -> list[dict[str, object]]:
        return [{"type": "image_generation"}]

    @classmethod
    def from_settings(cls, table: Mapping[str, object], host: ToolHost) -> ImageGenerationTool:
        settings = read_table(ImageSettings, table)
        options = endpoint_options(host, settings.backend, "backend", "images API")
        return cls(settings, endpoint_client(options, timeout=settings.timeout, max_bytes=MAX_IMAGE_ANSWER_BYTES))

    def open(self, declaration: Declaration) -> ImageSession:
        declared = read_declaration(ImageDeclaration, declaration.tool, declaration.param_path, declaration.warnings)
        model = self._settings.choose_model(declared.model)
        declaration.require_model(model or "", "model" if model and model == declared.model else "type")
        mask = None
        if declared.input_image_mask and (url := declared.input_image_mask.image_url):
            mask = _image_of(url)
            if mask is None:
                field = f"{declaration.param_path}.input_image_mask.image_url"
                raise InvalidRequest(f"Invalid '{field}': must be a data URL with a base64 image.", param=field)
        return ImageSession(self._settings, self._http, declared, mask)

    async def aclose(self) -> None:
        await self._http.aclose()


class ImageSession(ToolSession):
    def __init__(
        self, settings: ImageSettings, http: httpx.AsyncClient, declared: ImageDeclaration, mask: ImageFile | None
    ) -> None:
        self._http, self._declared, self._mask = http, declared, mask
        self._backend, self._model = settings.backend, settings.choose_model(declared.model)

    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        properties: dict[str, object] = {"prompt": {"type": "string", "description": _PROMPT}}
        action = self._declared.action or "auto"
        edits = action != "generate" and next(_images_of(items, report), None) is not None
        if edits and action == "auto":
            properties["action"] = {"type": "string", "enum": ["generate", "edit"], "description": _ACTION}
        if self._declared.model and self._model != self._declared.model:
            report.warn(
                f"The image model '{self._declared.model}' is not available; the default model is used instead."
            )
        return [
            HostedFunction(
                "image_generation",
                "image_generation_call",
                "Create an image" + (", or edit the latest images of the conversation." if edits else "."),
                {"type": "object", "properties": properties, "required": ["prompt"], "additionalProperties": False},
            )
        ]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        prompt = call.arguments.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            return Outcome.failed("`prompt` must be a string that describes the image.")
        try:
            images = await self._images_to_edit(call, report)
            await report.check_limits()
        except StoreUnavailable:
            return Outcome.failed("The image to edit could not be loaded.")
        except TooManyRequests as error:
            return Outcome.failed(error.message)
        action = "edit" if images else "generate"
        options = {**self._declared.options(), "model": self._model, "prompt": prompt}
        if not images:
            options.pop("input_fidelity", None)
        partial = self._declared.partial_images or 0
        answer: JSONObject = {}
        try:
            async for event in _generate(self._http, options, images, self._mask if images else None, partial):
                if not event.get("type", "").endswith(".partial_image"):
                    answer = event
                elif isinstance(image := event.get("b64_json"), str):
                    index = event.get("partial_image_index")
                    report.event(
                        "partial_image",
                        partial_image_b64=image,
                        partial_image_index=index if isinstance(index, int) else 0,
                        **_without_none({name: event.get(name) for name in _ECHOED}),
                    )
            entry = _image_in(answer)
        except CallFailed as error:
            return Outcome.failed(str(error))
        finally:
            if charged := request_usage(answer.get("usage")):
                report.charge_request(self._model or "", self._backend, charged)
        usage = answer.get("usage")
        revised = entry.get("revised_prompt") or answer.get("revised_prompt") or prompt
        echoed = {name: answer.get(name, options.get(name)) for name in _ECHOED}
        return Outcome(
            f"Image created. The user can see it. Prompt: {revised}",
            {"result": entry["b64_json"], "revised_prompt": revised, "action": action, **_without_none(echoed)},
            usage={"image_gen": image_usage(usage)} if isinstance(usage, dict) else {},
        )

    async def _images_to_edit(self, call: ToolCall, report: Report) -> list[ImageFile]:
        """Oldest first."""
        declared = self._declared.action or "auto"
        action = call.arguments.get("action") if declared == "auto" else declared
        if action != "edit":
            return []
        latest: list[ImageFile] = []
        for found in _images_of(call.items, report):
            image = found if isinstance(found, tuple) else _made_image(found, await report.stored_image(found))
            if image:
                latest.append(image)
            if len(latest) == MAX_EDITED_IMAGES:
                break
        return latest[::-1]


# Statuses for unknown fields, such as `stream`.
_REFUSED_FIELDS = (400, 404, 422, 501)

_PROMPT = "Detailed description of the image, or of the changes to it."
_ACTION = "`edit` changes the latest images of the conversation. `generate` creates a new image."
_ECHOED = ("background", "output_format", "quality", "size")


def _without_none(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _images_of(items: Sequence[Item], report: Report) -> Iterator[ImageFile | Item]:
    """Generated and sent images, latest first. A stored image is yielded as its item."""
    stored: set[str] = set()  # a client may have resent an item
    for item in reversed(items):
        if item.get("type") == "image_generation_call":
            if image := _made_image(item, item.get("result")):
                yield image
            elif report.has_stored_image(item) and item["id"] not in stored:
                stored.add(item["id"])
                yield item
        elif item.get("type") == "message" and isinstance(content := item.get("content"), list):
            for part in reversed(content):
                if isinstance(part, dict) and part.get("type") in IMAGES and (image := _image_of(part)):
                    yield image


def _made_image(item: Item, result: object) -> ImageFile | None:
    return _decoded(str(item.get("output_format") or "png"), result)


def _image_of(source: object) -> ImageFile | None:
    url = source.get("image_url") if isinstance(source, dict) else source
    if not isinstance(url, str) or not (match := _DATA_URL.match(url)):
        return None
    return _decoded(match[1].lower().removeprefix("image/"), url[match.end() :])


def _decoded(form: str, data: object) -> ImageFile | None:
    if not isinstance(data, str) or not data:
        return None
    try:
        return f"image.{form}", base64.b64decode(data, validate=True), f"image/{form}"
    except binascii.Error:
        return None


def _image_in(answer: JSONObject) -> JSONObject:
    """The first object with an image; raises `CallFailed`."""
    data = answer.get("data")
    for entry in data if isinstance(data, list) else (answer,):
        if isinstance(entry, dict) and isinstance(image := entry.get("b64_json"), str) and image:
            return entry
    raise CallFailed("The backend returned no image in base64.")


async def _generate(
    http: httpx.AsyncClient,
    options: Mapping[str, object],
    images: Sequence[ImageFile],
    mask: ImageFile | None,
    partial: int,
) -> AsyncIterator[JSONObject]:
    """Partial images, then the response. Raises `CallFailed`."""
    fields = _without_none(options)
    if str(fields.get("model") or "").startswith(("dall-e", "sd", "flux")):
        fields["response_format"] = "b64_json"  # other models always return base64, and reject the field
    attempts: list[dict[str, object]] = [fields]
    if partial:  # servers that cannot stream images reject these fields before generating
        attempts.insert(0, {**fields, "stream": True, "partial_images": partial})
    try:
        for attempt in attempts:
            async with _request(http, attempt, images, mask) as response:
                if attempt is not fields and response.status_code in _REFUSED_FIELDS:
                    continue
                async for event in _events(response):
                    yield event
                return
    except httpx.TimeoutException:
        raise CallFailed("The backend did not generate the image in time.") from None
    except httpx.HTTPError as error:
        raise CallFailed(f"The image backend does not answer: {why_no_answer(error)}.") from None


def _request(
    http: httpx.AsyncClient, fields: Mapping[str, object], images: Sequence[ImageFile], mask: ImageFile | None
) -> AbstractAsyncContextManager[httpx.Response]:
    if not images:
        return http.stream("POST", "images/generations", json=dict(fields))
    files = [("image[]" if len(images) > 1 else "image", image) for image in images]
    if mask:
        files.append(("mask", mask))
    form = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
    return http.stream("POST", "images/edits", data=form, files=files)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, object]]:
    if response.status_code != 200:
        raise CallFailed(_refusal(response.status_code, await response.aread()))
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        yield _object(await response.aread())
        return
    async for line in response.aiter_lines():
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            event = _object(data)
            if event.get("type") == "error" or "error" in event:
                raise CallFailed(_message(event) or "The backend could not generate the image.")
            yield event


def _object(data: bytes | str) -> dict[str, object]:
    try:
        value = orjson.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CallFailed("The backend's response contains no image.")
    return value


def _refusal(status: int, body: bytes) -> str:
    """The backend's message for an invalid prompt (400), else the status."""
    try:
        message = _message(orjson.loads(body))
    except ValueError:
        message = None
    if status == 400 and message:
        return message
    return f"The backend did not generate the image: status {status}."


def _message(answer: object) -> str | None:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return redact(message)[:500] if isinstance(message, str) and message else None
