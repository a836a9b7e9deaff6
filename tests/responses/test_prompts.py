"""Prompt templates in a folder, named by `prompt` in requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.settings import SettingsError
from app.settings.prompts import read_prompts
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "support.md").write_text("Be kind. {literal} {{ not a variable }}\n")
    (tmp_path / "greeting.toml").write_text(
        'instructions = "Greet {{name}} in {{ language }}."\nmodel = "small"\nvariables = { language = "English" }\n'
    )
    (tmp_path / "review").mkdir()
    for version in ("1", "2", "10"):
        (tmp_path / "review" / f"{version}.txt").write_text(f"Review, version {version}.")
    (tmp_path / "README").write_text("Not a template.")
    return tmp_path


@pytest.fixture
def backend() -> Scripted:
    return Scripted([delta(content="Hi")])


@pytest.fixture
async def http(folder: Path, backend: Scripted) -> AsyncIterator[httpx.AsyncClient]:
    async with antiphon(backend, prompts=folder) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as http:
        yield http


def system(backend: Scripted) -> Any:
    message = backend.received[-1]["messages"][0]
    return message["content"] if message["role"] in ("system", "developer") else None


async def test_prompt_template_is_sent_with_its_variables(http: httpx.AsyncClient, backend: Scripted) -> None:
    prompt = {"id": "greeting", "variables": {"name": "{{language}} \\1"}}
    response = (await http.post("/responses", json={"prompt": prompt, "input": "Hello"})).json()
    assert system(backend) == "Greet {{language}} \\1 in English."
    assert response["prompt"] == {**prompt, "version": None}
    assert (response["model"], response["instructions"]) == ("small", system(backend))
    stored = (await http.get(f"/responses/{response['id']}")).json()
    assert stored["prompt"] == response["prompt"]


async def test_prompt_template_yields_to_the_requests_own_fields(http: httpx.AsyncClient, backend: Scripted) -> None:
    body = {"prompt": {"id": "support"}, "input": "Hello", "instructions": "Be brief.", "model": "m"}
    response = (await http.post("/responses", json=body)).json()
    assert system(backend) == "Be kind. {literal} {{ not a variable }}\n\nBe brief."
    assert response["model"] == "m"


@pytest.mark.parametrize(("version", "expected"), [(None, "10"), ("2", "2")])
async def test_prompt_template_version_is_chosen(
    http: httpx.AsyncClient, backend: Scripted, version: str | None, expected: str
) -> None:
    prompt = {"id": "review", "version": version}
    response = (await http.post("/responses", json={"model": "m", "prompt": prompt, "input": "x"})).json()
    assert system(backend) == f"Review, version {expected}."
    assert response["prompt"]["version"] == expected


async def test_official_client_names_a_prompt_template(http: httpx.AsyncClient, backend: Scripted) -> None:
    name: Any = {"type": "input_text", "text": "Ada"}
    async with (
        openai.AsyncOpenAI(base_url=str(http.base_url), api_key="x") as client,
        client.responses.stream(
            model="m", input="Hello", prompt={"id": "greeting", "variables": {"name": name}}
        ) as stream,
    ):
        response = await stream.get_final_response()
    assert response.prompt and response.prompt.id == "greeting"
    assert system(backend) == "Greet Ada in English."


async def test_prompt_template_holds_for_counting_and_translating(http: httpx.AsyncClient, backend: Scripted) -> None:
    body = {"model": "m", "input": "x", "prompt": {"id": "support"}}
    counted = (await http.post("/responses/input_tokens", json=body)).json()["input_tokens"]
    assert counted > (await http.post("/responses/input_tokens", json={**body, "prompt": None})).json()["input_tokens"]
    translated = (await http.post("/antiphon/translation", json=body)).json()
    assert translated["body"]["messages"][0]["content"].startswith("Be kind.")


@pytest.mark.parametrize(
    ("prompt", "status", "code", "param"),
    [
        ({"id": "greetin"}, 404, "prompt_not_found", "prompt.id"),
        ({"id": "../secret"}, 404, "prompt_not_found", "prompt.id"),
        ({"id": "review", "version": "3"}, 404, "prompt_not_found", "prompt.version"),
        ({"id": "support", "version": "1"}, 404, "prompt_not_found", "prompt.version"),
        ({"id": "greeting"}, 400, "missing_required_parameter", "prompt.variables.name"),
        ({"id": "greeting", "variables": {"name": "A", "nam": "B"}}, 400, "unknown_variable", "prompt.variables.nam"),
        (
            {"id": "greeting", "variables": {"name": {"type": "input_image", "image_url": "x"}}},
            400,
            "invalid_type",
            "prompt.variables.name",
        ),
        ({"variables": {}}, 400, "missing_required_parameter", "prompt.id"),
        ("greeting", 400, "invalid_type", "prompt"),
    ],
)
async def test_prompt_errors_name_what_is_wrong(
    http: httpx.AsyncClient, backend: Scripted, prompt: Any, status: int, code: str, param: str
) -> None:
    answer = await http.post("/responses", json={"model": "m", "input": "x", "prompt": prompt})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert not backend.received


async def test_prompt_without_a_folder_is_not_found(backend: Scripted) -> None:
    async with antiphon(backend) as url, httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/v1/responses", json={"model": "m", "input": "x", "prompt": {"id": "a"}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "prompt_not_found")
    assert "ANTIPHON_PROMPTS" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.toml", "instructions = 3", "instructions: must be a string"),
        ("a.toml", "instruction = 'x'", "instruction: unknown key; did you mean instructions?"),
        ("a.toml", "variables = { b = 'c' }", "instructions: is missing"),
        ("a.toml", "x", "a.toml: "),
        ("a.toml", "instructions = 'x'\nvariables = { b = 'c' }", "b must occur in the instructions"),
        ("a b.md", "x", "letters, digits"),
        ("support.txt", "x", "must not have the name of another prompt"),
    ],
)
def test_prompt_file_that_is_invalid_is_named(folder: Path, name: str, text: str, problem: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(SettingsError) as raised:
        read_prompts(folder)
    assert problem in str(raised.value)


def test_prompt_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"folder .* not found"):
        read_prompts(tmp_path / "none")
