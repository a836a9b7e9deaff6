"""Choice of a server's best API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from app.backends.apis import APIS, profiles_by_api
from app.backends.profiles import load_profile
from app.backends.server.client import ModelServer
from app.backends.server.endpoints import Endpoints
from app.core.profile import Profile
from app.errors import BackendError
from tests.api.routes.test_responses import client
from tests.support.native import Native
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, status, upstream

__all__ = ["upstream"]  # a fixture

AUTO = Profile().override({"transport.api": "auto"})


class Server(Upstream):
    """A server with several APIs."""

    def __init__(self, *apis: str, missing: int = 404) -> None:
        super().__init__()
        self.apis = apis
        self.missing = missing
        self.paths: list[str] = []
        self.native = True

    def answer_to(self, request: Any) -> Any:
        if request.method == "GET":
            return super().answer_to(request) if self.models else status(404)
        self.requests.append(request)
        self.paths.append(request.path.removeprefix("/v1/"))
        if "responses" in request.path and "responses" in self.apis:
            return Native().message("By responses.").completed().steps()
        if "chat" in request.path and "chat" in self.apis:
            return sse(chunk("By chat."), finish(), DONE)
        return status(self.missing, {"error": {"message": "Not found"}})


async def text_or_code(url: str, **fields: Any) -> str:
    async with client(url) as http:
        answer = (await http.post("/v1/responses", json={"model": "m", "input": "Hi", **fields})).json()
    if answer.get("error"):
        return str(answer["error"]["code"])
    text: str = answer["output"][-1]["content"][0]["text"]
    return text


@pytest.mark.parametrize("profile", ["openai", "azure"])
async def test_server_with_the_responses_api_is_asked_by_it(profile: str) -> None:
    async with Server("responses", "chat") as server, antiphon(backend_url=server.url, backend_profile=profile) as url:
        assert await text_or_code(url) == "By responses."
    assert [path.partition("?")[0] for path in server.paths] == ["responses"]


@pytest.mark.parametrize("missing", [404, 405, 501])
async def test_server_without_it_is_asked_by_chat_from_then_on(missing: int) -> None:
    async with (
        Server("chat", missing=missing) as server,
        antiphon(backend_url=server.url, backend_profile="openai") as url,
    ):
        assert [await text_or_code(url) for _ in range(2)] == ["By chat.", "By chat."]
        async with client(url) as http:
            shown = (await http.post("/v1/antiphon/translation", json={"model": "m", "input": "Hi"})).json()
    assert server.paths == ["responses", "chat/completions", "chat/completions"]
    assert shown["url"] == f"{server.url}/chat/completions"
    assert "messages" in shown["body"]


async def test_server_with_neither_endpoint_gives_its_own_error_and_nothing_is_remembered() -> None:
    async with Server() as server, antiphon(backend_url=server.url, backend_profile="openai") as url:
        assert [await text_or_code(url) for _ in range(2)] == ["backend_url"] * 2
    assert server.paths == ["responses", "chat/completions"] * 2


async def test_model_that_is_not_there_does_not_make_it_be_asked_by_chat(upstream: Upstream) -> None:
    upstream.native = True
    error = {"error": {"message": "The model 'm' does not exist.", "code": "model_not_found"}}
    upstream.always(status(404, error))
    async with antiphon(backend_url=upstream.url, backend_profile="openai") as url:
        assert await text_or_code(url) == "model_not_found"
    assert [request.path for request in upstream.requests] == ["/v1/responses"]


def test_responses_api_is_tried_again_after_an_hour() -> None:
    now = 0.0
    endpoints = Endpoints(httpx.URL("http://localhost/v1"), AUTO, clock=lambda: now)
    first, second = endpoints.candidates()
    missing = BackendError("Not found")
    missing.answered = 404
    assert endpoints.lacks(first, missing)
    assert not endpoints.lacks(second, missing)
    endpoints.answered(second)
    assert [*endpoints.candidates()] == [second]
    now = 3600.0
    assert [*endpoints.candidates()] == [first, second]


def test_path_of_its_own_decides_about_the_api() -> None:
    def api(**options: Any) -> list[str]:
        profile = Profile().override({f"transport.{name}": value for name, value in options.items()})
        return [each.transport.api for each in profiles_by_api(profile)]

    assert api(api="auto") == ["responses", "chat"]
    assert api(api="auto", path="/openai/deployments/{model}/chat/completions") == ["chat"]
    assert api(api="auto", path="/openai/v1/responses") == ["responses"]
    assert api(api="auto", path="/elsewhere") == ["chat"]
    assert api(api="responses", path="/elsewhere") == ["responses"]
    assert load_profile("openai").transport.api == load_profile("azure").transport.api == "auto"


def test_every_api_is_in_the_guide_for_backends() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "backends.md").read_text(encoding="utf-8")
    rows = [line for line in guide.splitlines() if line.startswith("| `")]
    for name, api in APIS.items():
        assert any(row.startswith(f"| `{name}`") and f"| `POST {api.path}` |" in row for row in rows), name


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_check_asks_the_endpoint_that_the_server_has(api: str) -> None:
    async with Server(api) as server:
        server.models = None
        backend = ModelServer(server.url, profile=AUTO)
        try:
            await backend.check()
        finally:
            await backend.aclose()
    assert server.paths[-1].startswith(api)


@pytest.mark.parametrize(("first", "second"), [("responses", "chat"), ("chat", "responses")])
async def test_backend_of_another_api_answers_in_place_of_one_that_fails(first: str, second: str) -> None:
    tools = [{"type": "custom", "name": "patch"}]
    async with Server(missing=500) as failing, Server(second) as working:
        backends = {
            name: {"url": server.url, "overrides": {"transport.api": api}, "retries": 0}
            for name, server, api in (("a", failing, first), ("b", working, second))
        }
        async with antiphon(backends=backends) as url:
            assert await text_or_code(url, tools=tools) == f"By {second}."
    (request,) = working.requests
    assert ("messages" in request.json) is (second == "chat")
    assert request.json["tools"][0]["type"] == ("custom" if second == "responses" else "function")
