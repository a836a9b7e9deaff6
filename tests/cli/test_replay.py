"""`antiphon replay` sends a stored response's request again, and compares the answers."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from rich.console import Console

from app.cli import cli
from app.cli.client import ServerClient
from app.cli.options import CommandError
from app.cli.replay import newest, replay, replay_all
from tests.support.build import call, delta, finish, reported
from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon

PRICES = {"*": {"input": 1, "output": 4}}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


def answer_steps(text: str, *calls: str) -> list[Step]:
    chunks: list[Any] = [delta(content=text)]
    chunks += [call(number, f"call_{number}", "weather", arguments) for number, arguments in enumerate(calls)]
    return [*chunks, finish("tool_calls" if calls else "stop"), {"choices": [], "usage": reported(1000, 500)}]


async def ask(url: str, **fields: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
        answer = await http.post("/responses", json={"model": "qwen3", "input": "Hi", **fields})
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made


async def replayed(url: str, response_id: str, model: str | None = None, *, as_json: bool = False) -> tuple[bool, str]:
    """Return whether the answers are equal, and the printed text."""

    def run() -> tuple[bool, str]:
        console = Console(file=io.StringIO(), width=200)
        with ServerClient(f"{url}/v1", None, proxied=False) as client:
            same = replay(client, console, response_id, model, as_json=as_json)
        assert isinstance(console.file, io.StringIO)
        return same, console.file.getvalue()

    return await asyncio.to_thread(run)


async def test_replay_asks_another_model_the_same_and_stores_nothing() -> None:
    backend = Scripted(
        answer_steps("First."), answer_steps("One.\nTwo.", "{}"), answer_steps("One.\nThree.", '{"in": "Oslo"}')
    )
    async with antiphon(backend, prices=PRICES) as url:
        first = await ask(url, input="Before")
        options = {"instructions": "Be brief.", "temperature": 0.2, "max_output_tokens": 900, "tools": [WEATHER]}
        made = await ask(url, previous_response_id=first["id"], **options)
        same, printed = await replayed(url, made["id"], "gpt-5")
        async with httpx.AsyncClient(base_url=f"{url}/v1", trust_env=False) as http:
            listed = (await http.get("/antiphon/responses")).json()["data"]
    assert not same
    _, was, is_now = backend.received
    assert is_now == {**was, "model": "gpt-5"}
    assert len(listed) == 2
    for line in ("-Two.", "+Three.", "-weather {}", '+weather {"in": "Oslo"}', "Text: different", "Calls: different"):
        assert line in printed, printed
    rows = {line.split("  ")[0].strip(): line.split()[-2:] for line in printed.splitlines() if line.strip()}
    assert rows["model"] == ["qwen3", "gpt-5"]
    assert rows["output tokens"] == ["500", "500"]
    assert rows["cost"] == ["0.003000", "0.003000"]


async def test_replay_with_the_same_answer_is_the_same() -> None:
    async with antiphon(
        Scripted(answer_steps("Hello.", '{"a": 1, "b": 2}'), answer_steps("Hello.", '{"b": 2, "a": 1}'))
    ) as url:
        made = await ask(url, tools=[WEATHER])
        same, printed = await replayed(url, made["id"], as_json=True)
    report = json.loads(printed)
    assert same and report["same"]
    assert (
        report["before"]["calls"] == report["after"]["calls"] == [{"name": "weather", "arguments": '{"a": 1, "b": 2}'}]
    )
    assert report["before"]["seconds"] > 0 and report["after"]["seconds"] > 0


async def test_replay_adds_nothing_to_its_conversation() -> None:
    backend = Scripted(answer_steps("First."), answer_steps("Second."), answer_steps("Second."))
    async with antiphon(backend) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1", trust_env=False) as http:
            conversation = (await http.post("/conversations", json={})).json()["id"]
            await ask(url, input="One", conversation=conversation)
            made = await ask(url, input="Two", conversation=conversation)
            before = (await http.get(f"/conversations/{conversation}/items")).json()
            same, _ = await replayed(url, made["id"])
            assert (await http.get(f"/conversations/{conversation}/items")).json() == before
    assert same
    assert backend.received[2]["messages"] == backend.received[1]["messages"]


async def test_replay_of_many_prints_a_row_for_each_and_their_sums() -> None:
    backend = Scripted(answer_steps("One."), answer_steps("Two."), answer_steps("One."), answer_steps("Three."))
    async with antiphon(backend, prices=PRICES) as url:
        first, second = await ask(url, input="A"), await ask(url, input="B")

        def run() -> tuple[bool, str, list[str]]:
            console = Console(file=io.StringIO(), width=200)
            with ServerClient(f"{url}/v1", None, proxied=False) as client:
                same = replay_all(client, console, [first["id"], second["id"], "resp_x"], None, as_json=False)
                ids = newest(client, 10)
            assert isinstance(console.file, io.StringIO)
            return same, console.file.getvalue(), ids

        same, printed, ids = await asyncio.to_thread(run)
    assert not same and ids == [second["id"], first["id"]]
    rows = {line.split()[0]: line for line in map(str.strip, printed.splitlines()) if line.startswith("resp_")}
    assert " same " in rows[first["id"]] and " other text " in rows[second["id"]]
    assert "not found" in rows["resp_x"].lower() or "No response" in rows["resp_x"]
    assert "1 of 3 the same" in printed and "cost 0.006000 before, 0.006000 now" in printed


async def test_replay_of_a_response_that_is_not_stored_is_refused() -> None:
    async with antiphon(Scripted(answer_steps("Hi."))) as url:
        with pytest.raises(CommandError, match="not found"):
            await replayed(url, "resp_unknown")


async def test_replay_check_exits_with_1_only_if_the_answers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    async with antiphon(Scripted(answer_steps("One."), answer_steps("One."), answer_steps("Two."))) as url:
        made = await ask(url)

        async def status(*options: str) -> int:
            arguments = ["replay", made["id"], "--url", f"{url}/v1", *options]
            return (await asyncio.to_thread(CliRunner().invoke, cli, arguments)).exit_code

        assert await status("--check") == 0
        assert await status("--check") == 1
        assert await status() == 0
