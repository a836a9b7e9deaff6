"""Keys cannot bypass their hosted tool permissions: the table in `key_attacks`, with real MCP servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import httpx
import pytest

from app.core.access import hash_of
from app.tools.web_search.providers import SearchQuery, SearchResult
from tests.api.key_attacks import ATTACKS, NOT_ALLOWED, SOCKET, Attack, Greedy
from tests.support import sockets
from tests.support.mcp_lab import MCPLab
from tests.support.sockets import listening


class Outcome(NamedTuple):
    """How an attack ended."""

    result: tuple[int, str | None]  # status and code
    harm: list[Any]  # successful forbidden requests
    backend_requests: int  # requests to the backend
    text: str  # the answer


class Search:
    """A search service with a query log."""

    queries: ClassVar[list[str]] = []

    @classmethod
    def from_settings(cls, settings: Any, key: str | None) -> Search:
        return cls()

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        self.queries.append(query.text)
        return []

    async def aclose(self) -> None:
        pass


@dataclass
class Servers:
    """Antiphon, and the servers reachable through it."""

    url: str
    upstream: Greedy
    labs: dict[str, MCPLab]
    texts: dict[str, str] = field(default_factory=dict)  # replacements for placeholders in bodies

    @property
    def harm(self) -> list[Any]:
        """Everything reached other than the server `lab`, which the key may use."""
        paths = ("/chat/completions", "/messages", "/messages/count_tokens")
        others = [request.path for request in self.upstream.requests if not request.path.endswith(paths)]
        servers = [name for name, lab in self.labs.items() if lab.headers and name != "lab"]
        return [*servers, *Search.queries, *others]

    def clear(self) -> None:
        """Discard all requests so far."""
        for lab in self.labs.values():
            lab.headers.clear()
        self.upstream.requests.clear()
        Search.queries.clear()

    async def outcome(self, name: str, attack: Attack) -> Outcome:
        """Try an attack."""
        made = await self.post(f"attacker: {name}", {}, "/conversations")
        self.texts["CONVERSATION"] = made.json()["id"]
        if attack.before is not None:
            response = (await self.post(f"colleague: {name}", attack.before)).json()
            self.texts["RESPONSE"] = response["id"]
            (self.texts["APPROVAL"],) = (item["id"] for item in response["output"] if "approval" in item["type"])
        self.clear()
        if attack.path == SOCKET:
            headers = {"authorization": f"Bearer attacker: {name}"}
            async with sockets.dial(self.url, additional_headers=headers) as socket:
                frame = (await sockets.ask(socket, **self.filled(attack.body)))[-1]
            refused = "error" in frame
            result = (frame["status"], frame["error"]["code"]) if refused else (200, None)
            text = json.dumps(frame)
        else:
            answer = await self.post(f"attacker: {name}", attack.body, attack.path)
            result = (answer.status_code, answer.json()["error"].get("code") if answer.is_error else None)
            text = answer.text
        return Outcome(result, self.harm, len(self.upstream.requests), text)

    async def post(self, key: str, body: Mapping[str, Any], path: str = "/responses") -> httpx.Response:
        fields = {"model": "m", "input": "Hi.", **self.filled(body)}
        headers = {"authorization": f"Bearer {key}"}
        if once := fields.pop("idempotency_key", None):
            headers["idempotency-key"] = once
        async with httpx.AsyncClient(base_url=f"{self.url}/v1", timeout=60, trust_env=False) as http:
            return await http.post(path, json=fields, headers=headers)

    def filled(self, body: Mapping[str, Any]) -> dict[str, Any]:
        text = json.dumps(body)
        for name, value in self.texts.items():
            text = text.replace(name, value)
        filled: dict[str, Any] = json.loads(text)
        return filled


def run_python(code: str) -> str:
    """Run code."""
    return code


@contextlib.asynccontextmanager
async def all_served(folder: Path) -> AsyncIterator[Servers]:
    """A server with every hosted tool, for an attacker and a colleague of the same owner for each row."""
    (folder / "prompts").mkdir()
    (folder / "prompts" / "greeting.md").write_text("Be brief.")
    labs = {name: MCPLab(name, only="echo") for name in ("lab", "secret", "private")}
    labs["sandbox"] = MCPLab("sandbox", only="none")
    labs["sandbox"].server.add_tool(run_python)
    async with contextlib.AsyncExitStack() as stack:
        for lab in labs.values():
            await stack.enter_async_context(lab.serve())
        upstream = await stack.enter_async_context(Greedy())
        servers: dict[str, dict[str, Any]] = {
            name: {"url": lab.url, "require_approval": "never"} for name, lab in labs.items()
        }
        servers["private"]["keys"] = servers["sandbox"]["keys"] = ["somebody else"]
        tools: dict[str, Any] = {
            "mcp": {"servers": servers, "allow_urls": ["http://127.0.0.1:*/*"], "allow_private": True},
            "demo": {"approve": []},
            "web_search": {"provider": "tests.api.test_key_attacks:Search"},
            "file_search": {"store_url": f"sqlite:///{folder}/files.db"},
            "image_generation": {"backend": "default"},
            "code_interpreter": {"provider": "bubblewrap" if shutil.which("bwrap") else "mcp:sandbox"},
        }
        keys: dict[str, Any] = {}
        for number, (name, attack) in enumerate(ATTACKS.items()):
            owner = f"team{number}"
            keys[f"attacker{number}"] = {
                "hash": hash_of(f"attacker: {name}"),
                "owner": owner,
                "tools": [*attack.rights],
            }
            keys[f"colleague{number}"] = {"hash": hash_of(f"colleague: {name}"), "owner": owner}
        url = await stack.enter_async_context(
            listening(
                None,
                keys=keys,
                tools=tools,
                backend_url=upstream.url,
                backend_overrides={"transport.messages": True},
                prompts=folder / "prompts",
            )
        )
        urls = {f"URL_OF_{name.upper()}": lab.url for name, lab in labs.items()}
        user = {"USER_OF_SECRET": labs["secret"].url.replace("//", "//user@")}
        yield Servers(url, upstream, labs, {**urls, **user})


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    async def all_outcomes() -> dict[str, Outcome]:
        async with all_served(tmp_path_factory.mktemp("server")) as servers:
            return {name: await servers.outcome(name, attack) for name, attack in ATTACKS.items()}

    return asyncio.run(all_outcomes())


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_without_a_right_to_a_tool_reaches_none(name: str, outcomes: dict[str, Outcome]) -> None:
    expected, outcome = ATTACKS[name].result, outcomes[name]
    assert outcome.result == expected, outcome.text
    assert outcome.harm == []
    if expected[0] != 200:
        assert outcome.backend_requests == 0  # it is refused before anything is asked
    if expected == NOT_ALLOWED:
        assert json.loads(outcome.text)["error"]["param"].startswith("tools[")
