"""`antiphon chat` and `antiphon show` as commands, with a running server."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from tests.support import fork_server
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, serving

ROOT = Path(__file__).parents[2]
WEATHER = [{"type": "function", "name": "get_weather", "parameters": {"properties": {"location": {"type": "string"}}}}]


async def typed(directory: Path, *arguments: str, input: str = "") -> tuple[int, str, str]:
    """Run the command in an empty directory; return its status, output and errors."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    variables = inherited | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    ended = await asyncio.to_thread(fork_server.run, *arguments, cwd=directory, env=variables, input=input)
    return ended.returncode, ended.stdout, ended.stderr


async def newest(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url) as http:
        entry: dict[str, Any] = (await http.get("/v1/antiphon/responses")).json()["data"][0]
        return entry


async def test_chat_message_is_answered(tmp_path: Path) -> None:
    async with antiphon() as url:
        status, output, _ = await typed(tmp_path, "chat", "--url", f"{url}/v1", "Say hello.")

    assert (status, output) == (0, "Hello there, friend!\n")


async def test_chat_message_from_a_pipe_is_answered_with_its_reasoning(tmp_path: Path) -> None:
    async with antiphon() as url:
        _, output, _ = await typed(tmp_path, "chat", "--url", f"{url}/v1", "--effort", "low", input="Say hello.")

    thoughts, answer = output.splitlines()
    assert thoughts.startswith("The user says") and answer == "Hello there, friend!"


async def test_chat_call_is_shown_and_answered(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(WEATHER))
    async with antiphon() as url:
        options = ("--url", f"{url}/v1", "--tools", "tools.json")
        _, output, _ = await typed(tmp_path, "chat", *options, "What is the weather in Paris?", input="Sunny.\n")
        shown = await typed(tmp_path, "show", "--url", f"{url}/v1", (await newest(url))["id"])

    assert output.splitlines() == [
        '[function_call] get_weather {"location": "Paris"} (completed)',
        "Here is what I found: Sunny.",
    ]
    status, report, _ = shown
    assert status == 0
    for part in (
        "user: What is the weather in Paris?",
        "[function_call_output] Sunny.",
        "\nBackend request\n",
        '"role": "tool"',
    ):
        assert part in report


async def test_chat_output_can_be_read_by_programs(tmp_path: Path) -> None:
    async with antiphon() as url:
        await typed(tmp_path, "chat", "--url", f"{url}/v1", "Say hello.")
        id = (await newest(url))["id"]
        _, output, _ = await typed(tmp_path, "show", "--url", f"{url}/v1", "--json", id)

    shown = json.loads(output)
    assert shown["chain"]["data"][-1]["response"]["id"] == id
    assert shown["translation"]["body"]["messages"] == [{"role": "user", "content": "Say hello."}]


async def test_chat_answer_with_control_codes_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\x1b[2Jred\x9b31m \u202egnp.exe"
    async with antiphon(Scripted([delta(content=evil, reasoning_content=evil)])) as url:
        options = ("--url", f"{url}/v1")
        chat = await typed(tmp_path, "chat", *options, "--model", "m", "Hello")
        show = await typed(tmp_path, "show", *options, (await newest(url))["id"])

    for _, output, errors in (chat, show):
        assert "red" in output
        assert not set("\x1b\x07\x9b\u202e") & set(output + errors)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("chat", "Fail with a 429."), "429 rate_limit_exceeded"),
        (("chat", "Fail in the middle."), "The demo was asked to fail"),
        (("show", "resp_nothing"), "not found"),
    ],
)
async def test_chat_error_ends_the_command(arguments: tuple[str, str], says: str, tmp_path: Path) -> None:
    async with antiphon() as url:
        status, _, errors = await typed(tmp_path, arguments[0], "--url", f"{url}/v1", arguments[1])

    assert status == 1 and says in errors and "Traceback" not in errors


async def test_chat_key_is_sent(tmp_path: Path) -> None:
    async with antiphon(api_keys="right") as url:
        options = ("chat", "--url", f"{url}/v1", "--model", "demo")
        assert (await typed(tmp_path, *options, "Say hello."))[0] == 1
        assert (await typed(tmp_path, *options, "--api-key", "right", "Say hello."))[0] == 0


async def test_chat_without_a_server_says_how_to_start_one(tmp_path: Path) -> None:
    status, _, errors = await typed(tmp_path, "chat", "--url", "http://127.0.0.1:1/v1", "--model", "m", "Hello")
    assert status == 1 and "antiphon serve" in errors


@pytest.mark.parametrize("input", ["", " \n"])
async def test_chat_with_empty_input_says_that_there_is_no_message(input: str, tmp_path: Path) -> None:
    status, output, errors = await typed(tmp_path, "chat", "--url", "http://127.0.0.1:9/v1", input=input)
    assert (status, output) == (2, "")
    assert errors.startswith("No message")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("error", "answered with status 500"),
        ("refused", "Out of order. (503 server_error)"),
        ("text", "its response is not JSON"),
        ("strange", "its response has no list of models"),
        ("none", "lists no models. Name one: --model NAME"),
    ],
)
async def test_chat_at_a_server_without_a_list_of_models_says_why(path: str, words: str, tmp_path: Path) -> None:
    app = FastAPI()
    error = {"error": {"message": "Out of order.", "code": "server_error"}}
    answers = {
        "error": Response("Internal Server Error", 500),
        "refused": JSONResponse(error, 503),
        "text": Response("<html>Hello</html>"),
        "strange": JSONResponse({"models": ["a"]}),
        "none": JSONResponse({"object": "list", "data": []}),
    }

    @app.get("/{name}/models")
    async def models(name: str) -> Response:
        return answers[name]

    async with serving(app) as url:
        status, output, errors = await typed(tmp_path, "chat", "--url", f"{url}/{path}", "Hi.")
    assert (status, output) == (1, "")
    assert words in errors
    assert "antiphon serve" not in errors


async def test_chat_at_what_is_no_url_says_what_would_be_one(tmp_path: Path) -> None:
    status, _, errors = await typed(tmp_path, "chat", "--url", "localhost:8080", "Hi.")
    assert (status, "Expected something like http://127.0.0.1:8080/v1" in errors) == (1, True)
