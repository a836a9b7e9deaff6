"""Uploaded files in a request's input reach the model."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from app.tools.files import tool
from tests.support.build import delta
from tests.support.file_databases import FileDatabase
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.tools.files.conftest import openai_client

PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)


@dataclass
class FilesServer:
    backend: Scripted
    client: AsyncOpenAI

    def content(self, message: int = -1) -> Any:
        return self.backend.received[-1]["messages"][message]["content"]

    async def upload(self, name: str, content: bytes) -> str:
        return (await self.client.files.create(file=(name, content), purpose="user_data")).id

    async def ask(self, *parts: dict[str, Any], **options: Any) -> Any:
        given: Any = [{"role": "user", "content": [*parts]}]
        return await self.client.responses.create(model="m", input=given, **options)


@pytest_asyncio.fixture
async def server(database: FileDatabase) -> AsyncIterator[FilesServer]:
    backend = Scripted([delta(content="I see.")])
    tools = {"file_search": database.settings}
    async with antiphon(backend, tools=tools) as url, openai_client(url) as client:
        yield FilesServer(backend, client)


def file_part(id: str) -> dict[str, Any]:
    return {"type": "input_file", "file_id": id}


async def test_input_file_is_sent_to_the_model(server: FilesServer) -> None:
    id = await server.upload("plan.pdf", b"%PDF-1.7 ...")
    await server.ask({"type": "input_text", "text": "What is this?"}, file_part(id))
    data = f"data:application/pdf;base64,{base64.b64encode(b'%PDF-1.7 ...').decode()}"
    assert server.content() == [
        {"type": "text", "text": "What is this?"},
        {"type": "file", "file": {"filename": "plan.pdf", "file_data": data}},
    ]


@pytest.mark.parametrize("type", ["input_image", "computer_screenshot"])
async def test_input_image_is_sent_to_the_model(server: FilesServer, type: str) -> None:
    id = await server.upload("whatever", PNG)
    await server.ask({"type": type, "file_id": id, "detail": "low"})
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert server.content() == [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}]


async def test_input_file_is_stored_by_its_id_and_sent_in_the_next_turn(server: FilesServer) -> None:
    id = await server.upload("a.pdf", b"%PDF-1.7 hello")
    first = await server.ask(file_part(id))
    (item,) = (await server.client.responses.input_items.list(first.id)).data
    part = item.to_dict()["content"][0]  # type: ignore[index]
    assert (part["file_id"], "file_data" in part) == (id, False)
    await server.ask({"type": "input_text", "text": "Again."}, previous_response_id=first.id)
    assert server.content(0)[0]["file"]["file_data"].endswith(base64.b64encode(b"%PDF-1.7 hello").decode())


async def test_input_file_of_text_is_sent_as_text(server: FilesServer) -> None:
    await server.ask(file_part(await server.upload("a.md", b"# Hello")))
    assert "# Hello" in str(server.content())


async def test_input_file_that_was_deleted_does_not_end_its_conversation(server: FilesServer) -> None:
    id = await server.upload("a.txt", b"hello")
    first = await server.ask(file_part(id))
    await server.client.files.delete(id)
    answer = await server.client.responses.with_raw_response.create(
        model="m", input="Again.", previous_response_id=first.id
    )
    assert "no longer available" in server.content(0)
    assert id in answer.headers["x-antiphon-warning"]


@pytest.mark.parametrize("type", ["input_file", "input_image"])
async def test_input_file_that_does_not_exist_is_refused_with_its_field(server: FilesServer, type: str) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        await server.ask({"type": "input_text", "text": "?"}, {"type": type, "file_id": "file-none"})
    assert refused.value.param == "input[0].content[1].file_id"
    assert server.backend.received == []


async def test_input_image_that_is_none_is_refused(server: FilesServer) -> None:
    id = await server.upload("a.png", b"not really")
    with pytest.raises(openai.BadRequestError, match="PNG, JPEG, GIF or WebP") as refused:
        await server.ask({"type": "input_image", "file_id": id})
    assert refused.value.param == "input[0].content[0].file_id"


async def test_input_files_beyond_the_size_limit_are_refused(
    server: FilesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "MAX_INPUT_FILE_BYTES", 100)
    first, second = await server.upload("a.txt", bytes(60)), await server.upload("b.txt", bytes(60))
    await server.ask(file_part(first), file_part(first))  # read once
    with pytest.raises(openai.BadRequestError) as refused:
        await server.ask(file_part(first), file_part(second))
    assert (refused.value.param, refused.value.code) == ("input[0].content[1].file_id", "request_too_large")


async def test_input_files_in_results_of_tools_are_sent(server: FilesServer) -> None:
    id = await server.upload("a.png", PNG)
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "file_id": id}]}
    given: Any = [call, output]
    await server.client.responses.create(model="m", input=given)
    assert base64.b64encode(PNG).decode() in str(server.backend.received[-1]["messages"])
