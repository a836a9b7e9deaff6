"""Images by a backend: new images, edits of images in the conversation, and partial images in streams."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from openai.types.responses.response import ToolUsage
from starlette.datastructures import UploadFile

from app.main import create_app
from app.settings import SettingsError
from tests.support.build import call, delta, finish
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings

PNG = base64.b64encode(b"\x89PNG made").decode()
TOOL = {"type": "image_generation"}


class ImagesServer:
    """A stand-in for a backend's images API, with the fields of OpenAI's."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.status = 200
        self.streams = True
        self.image = PNG
        self.usage: dict[str, Any] = {
            **{"input_tokens": 10, "output_tokens": 20, "total_tokens": 30},
            "input_tokens_details": {},
        }
        self.app = FastAPI()
        self.app.post("/v1/images/generations")(self.generate)
        self.app.post("/v1/images/edits")(self.edit)

    async def generate(self, request: Request) -> Any:
        return self._answer("generations", await request.json(), request)

    async def edit(self, request: Request) -> Any:
        async with request.form() as form:
            fields: dict[str, Any] = {}
            for name, value in form.multi_items():
                read = (value.content_type, await value.read()) if isinstance(value, UploadFile) else value
                fields[name] = [*fields.get(name, []), read] if isinstance(value, UploadFile) else read
            return self._answer("edits", fields, request)

    def _answer(self, path: str, body: dict[str, Any], request: Request) -> Any:
        self.requests.append((path, body, dict(request.headers)))
        error = {"error": {"message": "Your prompt was refused.", "type": "image_generation_user_error"}}
        if self.status != 200:
            return JSONResponse(error, self.status)
        usage = self.usage
        if str(body.get("stream")).lower() == "true":
            if not self.streams:
                return JSONResponse({"error": {"message": "Unknown parameter: 'stream'."}}, 400)
            kind = "image_generation" if path == "generations" else "image_edit"
            events = [
                {
                    "type": f"{kind}.partial_image",
                    "b64_json": self.image,
                    "partial_image_index": 0,
                    "size": "1024x1024",
                },
                {"type": f"{kind}.completed", "b64_json": self.image, "size": "1024x1024", "usage": usage},
            ]
            frames = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
            return StreamingResponse(frames, media_type="text/event-stream")
        data = [{"b64_json": self.image, "revised_prompt": "A red cat, painted."}]
        return {"created": 1, "data": data, "size": "1024x1024", "quality": "high", "usage": usage}


@pytest.fixture
async def images() -> AsyncIterator[ImagesServer]:
    server = ImagesServer()
    async with serving(server.app) as url:
        server.url = f"{url}/v1"  # type: ignore[attr-defined]
        yield server


def drawing(**arguments: Any) -> list[Any]:
    return [call(0, "c0", "image_generation", json.dumps(arguments)), finish("tool_calls")]


ANSWER = [delta(content="Here it is."), finish("stop")]


@contextlib.asynccontextmanager
async def client(images: ImagesServer, *answers: list[Any], **table: Any) -> AsyncIterator[tuple[Any, Scripted]]:
    backend = Scripted(*answers)
    art = {"url": images.url, "api_key": "sk-art", "models": ["none"]}  # type: ignore[attr-defined]
    backends = {"art": art, "default": {"backend": "demo"}}
    tools = {"image_generation": {"backend": "art", "model": "gpt-image-1", **table}}
    async with serving(create_app(settings(tools=tools, backends=backends), backend=backend)) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as openai_client:
            yield openai_client, backend


async def test_image_is_generated(images: ImagesServer) -> None:
    tool = {**TOOL, "size": "1024x1024", "quality": "high", "background": "opaque", "model": "another"}
    async with client(images, drawing(prompt="A red cat"), ANSWER) as (openai_client, backend):
        response = await openai_client.responses.create(model="m", input="Draw a red cat.", tools=[tool])
    image, message = response.output
    assert (image.type, image.status, image.result) == ("image_generation_call", "completed", PNG)
    assert image.to_dict()["revised_prompt"] == "A red cat, painted."
    assert image.to_dict()["action"] == "generate"
    assert message.content[0].text == "Here it is."
    [(path, body, headers)] = images.requests
    assert path == "generations"
    assert body == {
        "prompt": "A red cat",
        "model": "gpt-image-1",
        "size": "1024x1024",
        "quality": "high",
        "background": "opaque",
    }
    assert headers["authorization"] == "Bearer sk-art"
    assert PNG not in json.dumps(backend.received[-1]["messages"])
    usage = ToolUsage.model_validate(response.to_dict()["tool_usage"]).image_gen
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (10, 20, 30)


async def test_image_options_that_are_not_known_are_named_in_a_warning(images: ImagesServer) -> None:
    mask = {"image_url": f"data:image/png;base64,{PNG}", "feather": 3}
    tool = {**TOOL, "svg": {"model": "x"}, "frame_count": 4, "input_image_mask": mask, "allowed_callers": ["direct"]}
    async with client(images, drawing(prompt="A cat"), ANSWER) as (openai_client, _):
        raw = await openai_client.responses.with_raw_response.create(model="m", input="Draw.", tools=[tool])
    warning = raw.headers["x-antiphon-warning"]
    for path in ("tools[0].svg", "tools[0].frame_count", "tools[0].input_image_mask.feather"):
        assert f"'{path}' is not supported by this tool and was ignored" in warning
    assert "allowed_callers" not in warning


async def test_image_models_that_the_operator_names_may_be_chosen(images: ImagesServer) -> None:
    tool = {**TOOL, "model": "gpt-image-1-mini"}
    async with client(images, drawing(prompt="A cat"), ANSWER, models=["gpt-image-*"]) as (openai_client, _):
        await openai_client.responses.create(model="m", input="Draw.", tools=[tool])
    assert images.requests[0][1]["model"] == "gpt-image-1-mini"


async def test_partial_images_are_streamed(images: ImagesServer) -> None:
    tool = {**TOOL, "partial_images": 2}
    async with client(images, drawing(prompt="A cat"), ANSWER) as (openai_client, _):
        async with openai_client.responses.stream(model="m", input="Draw.", tools=[tool]) as stream:
            events = [event async for event in stream]
    kinds = [event.type for event in events]
    begun = kinds.index("response.image_generation_call.in_progress")
    assert kinds[begun - 1 : begun + 5] == [
        "response.output_item.added",
        "response.image_generation_call.in_progress",
        "response.image_generation_call.generating",
        "response.image_generation_call.partial_image",
        "response.image_generation_call.completed",
        "response.output_item.done",
    ]
    partial = events[begun + 2]
    assert (partial.partial_image_b64, partial.partial_image_index) == (PNG, 0)
    assert images.requests[0][1]["partial_images"] == 2


async def test_image_backend_that_does_not_stream_is_asked_without(images: ImagesServer) -> None:
    images.streams = False
    async with client(images, drawing(prompt="A cat"), ANSWER) as (openai_client, _):
        response = await openai_client.responses.create(model="m", input="Draw.", tools=[{**TOOL, "partial_images": 1}])
    assert response.output[0].result == PNG
    assert [body.get("stream") for _, body, _ in images.requests] == [True, None]


async def test_image_of_an_earlier_turn_is_edited(images: ImagesServer) -> None:
    answers = drawing(prompt="A cat"), ANSWER, drawing(prompt="Make it blue", action="edit"), ANSWER
    async with client(images, *answers) as (openai_client, backend):
        first = await openai_client.responses.create(model="m", input="Draw.", tools=[TOOL])
        second = await openai_client.responses.create(
            model="m", input="Make it blue.", tools=[TOOL], previous_response_id=first.id
        )
    assert second.output[0].to_dict()["action"] == "edit"
    path, body, _ = images.requests[-1]
    assert path == "edits"
    assert body["prompt"] == "Make it blue"
    assert body["image"] == [("image/png", b"\x89PNG made")]
    [function] = backend.received[-1]["tools"]
    assert function["function"]["parameters"]["properties"]["action"]["enum"] == ["generate", "edit"]


@pytest.mark.parametrize("more", [{}, {"result": None, "status": "completed"}])
async def test_image_is_known_by_its_id(images: ImagesServer, more: dict[str, Any]) -> None:
    """LangChain and OpenAI's guide send `{type, id}`; the image and its inputs are in the store."""
    answers = [drawing(prompt="A red cat"), ANSWER, drawing(prompt="Make it blue", action="edit"), ANSWER]
    async with client(images, *answers) as (openai_client, backend):
        first = await openai_client.responses.create(model="m", input="Draw a red cat.", tools=[TOOL])
        bare = {"type": "image_generation_call", "id": first.output[0].id, **more}
        items = [{"role": "user", "content": "Draw a red cat."}, bare, {"role": "user", "content": "Make it blue."}]
        await openai_client.responses.create(model="m", input=items, tools=[TOOL], store=False)
    assert [path for path, _, _ in images.requests] == ["generations", "edits"]
    shown = json.dumps(backend.received[2]["messages"])
    assert "A red cat, painted." in shown
    assert PNG not in shown


async def test_image_of_the_caller_is_edited_with_a_mask(images: ImagesServer) -> None:
    photo = {"type": "input_image", "image_url": f"data:image/jpeg;base64,{base64.b64encode(b'JPEG').decode()}"}
    mask = {"image_url": f"data:image/png;base64,{base64.b64encode(b'MASK').decode()}"}
    tool = {**TOOL, "action": "edit", "input_image_mask": mask, "input_fidelity": "high"}
    question = [{"role": "user", "content": [{"type": "input_text", "text": "Add a hat."}, photo]}]
    async with client(images, drawing(prompt="Add a hat"), ANSWER) as (openai_client, _):
        await openai_client.responses.create(model="m", input=question, tools=[tool])
    path, body, _ = images.requests[-1]
    assert path == "edits"
    assert body["image"] == [("image/jpeg", b"JPEG")]
    assert body["mask"] == [("image/png", b"MASK")]
    assert body["input_fidelity"] == "high"


@pytest.mark.parametrize(
    ("status", "message"), [(400, "Your prompt was refused."), (401, "status 401"), (500, "status 500")]
)
async def test_image_that_is_refused_is_reported(images: ImagesServer, status: int, message: str) -> None:
    images.status = status
    async with client(images, drawing(prompt="A cat"), ANSWER) as (openai_client, backend):
        response = await openai_client.responses.create(model="m", input="Draw.", tools=[TOOL])
    assert response.status == "completed"
    image = response.output[0]
    assert (image.status, image.result) == ("failed", None)
    assert message in image.to_dict()["error"]["message"]
    assert message in backend.received[-1]["messages"][-1]["content"]
    assert len(images.requests) == 1


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"partial_images": 4}, "tools[0].partial_images"),
        ({"action": "paint"}, "tools[0].action"),
        ({"input_image_mask": {"image_url": "https://example.com/a.png"}}, "tools[0].input_image_mask.image_url"),
    ],
)
async def test_image_declaration_that_is_invalid_is_a_400(
    images: ImagesServer, tool: dict[str, Any], param: str
) -> None:
    async with client(images, ANSWER) as (openai_client, _):
        with pytest.raises(openai.BadRequestError) as refusal:
            await openai_client.responses.create(model="m", input="Draw.", tools=[{**TOOL, **tool}])
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "'default' has no URL"),
        ({"backend": "other"}, "backend 'other' not found"),
        ({"backend": "default", "size": 1}, "size"),
    ],
)
def test_image_table_that_is_invalid_is_refused_at_start(table: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match="image_generation") as error:
        create_app(settings(tools={"image_generation": table}), backend=Scripted([]))
    assert message in str(error.value)


def test_image_requests_do_not_have_the_callers_key() -> None:
    values = settings(
        tools={"image_generation": {}}, backend_url="http://127.0.0.1:1/v1", backend_api_key="passthrough"
    )
    with pytest.raises(SettingsError, match="the callers' own keys"):
        create_app(values, backend=Scripted([]))
