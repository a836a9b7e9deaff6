"""A session of Codex over both transports: many turns, each with the whole conversation."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from typing import Any

import pytest

from app.core.dialects import DIALECTS, dialect_of
from tests.clients.answers import calling, saying, thinking
from tests.clients.codex.program import Codex, agent_messages, shown
from tests.clients.program import running
from tests.clients.wire import Wire
from tests.core.test_dialects import AGENTS, version
from tests.support.upstream import DONE, HANG, Upstream, call, chunk, finish, sse, usage

PATCH = """\
*** Begin Patch
*** Update File: greeting.txt
@@
-hello
+hello, world
*** End Patch"""
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")
TRANSPORTS = {"http": "false", "websocket": "true"}


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settings(codex: Codex, transport: str) -> list[str]:
    """Antiphon's catalog, which enables `apply_patch`, and a transport."""
    return [codex.catalog, f"model_providers.lab.supports_websockets={TRANSPORTS[transport]}"]


def sent_messages(upstream: Upstream) -> list[list[dict[str, Any]]]:
    """The messages in each model request, after Codex's initial messages."""
    conversations = (request.json["messages"] for request in upstream.requests)
    return [[message for message in one if not _is_opening(message)] for one in conversations]


def _is_opening(message: dict[str, Any]) -> bool:
    return message["role"] == "system" or "<environment_context>" in str(message.get("content"))


async def test_codex_works_for_many_turns(
    codex: Codex, upstream: Upstream, wire: Wire, settings: list[str], transport: str
) -> None:
    upstream.say(calling("exec_command", '{"cmd": "printf hello > greeting.txt', ' && echo written"}', id="call_1"))
    upstream.say(calling("apply_patch", json.dumps({"input": PATCH}), id="call_2"))
    upstream.say(calling("mcp__lab__add", '{"a": 2, "b": 3}', id="call_3"))
    upstream.say(saying("There it ", "is."))
    assert agent_messages(await codex.exec("Write a greeting.", *settings)) == ["There it is."]
    # Codex does not end the line where there was none before.
    assert (codex.repository / "greeting.txt").read_text().strip() == "hello, world"

    upstream.say(calling("exec_command", '{"cmd": "cat greeting.txt"}', id="call_4"))
    upstream.say(saying("It says hello."))
    again = await codex.exec("What does it say?", *settings, arguments=["resume", "--last"])
    assert agent_messages(again) == ["It says hello."]

    *_, last = sent_messages(upstream)
    assert [message["role"] for message in last] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant"),
        *("user", "assistant", "tool"),
    ]
    results = [message["content"] for message in last if message["role"] == "tool"]
    for result, words in zip(results, ["written", "Success", "The sum is 5.", "hello, world"], strict=True):
        assert words in result
    for earlier, later in zip(sent_messages(upstream), sent_messages(upstream)[1:], strict=False):
        assert later[: len(earlier)] == earlier  # the backend's prompt cache stays valid
    assert {exchange.transport for exchange in wire.responses} == {transport}


async def test_codex_sends_its_user_agent(
    codex: Codex, upstream: Upstream, wire: Wire, settings: list[str], transport: str
) -> None:
    upstream.say(saying("Hello."))
    assert agent_messages(await codex.exec("Say hello.", *settings)) == ["Hello."]
    (exchange,) = wire.responses
    assert (exchange.transport, dialect_of(exchange.request_headers)) == (transport, DIALECTS["openai"])
    assert version(exchange.request_headers["user-agent"]) in map(version, AGENTS)


async def test_codex_makes_two_calls_at_once(codex: Codex, upstream: Upstream, settings: list[str]) -> None:
    pieces = [call(at, id=f"call_{at}", name="exec_command") for at in (0, 1)]
    pieces += [call(at, arguments=json.dumps({"cmd": f"printf {at} > {at}.txt"})) for at in (0, 1)]
    upstream.say(sse(*pieces, finish("tool_calls"), usage(), DONE))
    upstream.say(saying("Done."))
    assert agent_messages(await codex.exec("Write two files.", *settings)) == ["Done."]
    assert [(codex.repository / f"{at}.txt").read_text() for at in (0, 1)] == ["0", "1"]
    *_, calls, first, second = sent_messages(upstream)[-1]
    assert [one["id"] for one in calls["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]


async def test_codex_shows_reasoning_and_sends_it_back_with_results(
    codex: Codex, upstream: Upstream, settings: list[str]
) -> None:
    thought = [chunk(reasoning_content=piece) for piece in ("I write ", "it.")]
    made = [call(id="call_1", name="exec_command"), call(arguments='{"cmd": "echo written"}')]
    upstream.say(sse(*thought, *made, finish("tool_calls"), usage(), DONE))
    upstream.say(thinking("It is done.", "Done."))
    ended = await codex.exec("Write.", *settings)
    assert (agent_messages(ended), shown(ended, "reasoning")) == (["Done."], ["I write it.", "It is done."])
    assert sent_messages(upstream)[-1][-2]["reasoning_content"] == "I write it."


async def test_codex_looks_at_an_image(codex: Codex, upstream: Upstream, settings: list[str]) -> None:
    path = codex.repository / "pixel.png"
    path.write_bytes(PIXEL)
    upstream.say(calling("view_image", json.dumps({"path": str(path)})))
    upstream.say(saying("A pixel."))
    assert agent_messages(await codex.exec("What is in it?", *settings)) == ["A pixel."]
    *_, calls, result, image = sent_messages(upstream)[-1]
    # Chat backends take no images in results, so it follows them.
    assert (calls["role"], result["role"], image["role"]) == ("assistant", "tool", "user")
    (url,) = [part["image_url"]["url"] for part in image["content"] if part["type"] == "image_url"]
    assert url.startswith("data:image/png;base64,")


async def test_codex_sends_an_image_and_a_schema(codex: Codex, upstream: Upstream, settings: list[str]) -> None:
    schema = {"type": "object", "properties": {"seen": {"type": "string"}}, "required": ["seen"]}
    (codex.home / "schema.json").write_text(json.dumps({**schema, "additionalProperties": False}))
    (codex.home / "pixel.png").write_bytes(PIXEL)
    upstream.say(saying('{"seen": ', '"a pixel"}'))
    options = [f"--image={codex.home / 'pixel.png'}", f"--output-schema={codex.home / 'schema.json'}"]
    assert agent_messages(await codex.exec("What is in it?", *settings, arguments=options)) == ['{"seen": "a pixel"}']
    request = upstream.requests[-1].json
    assert request["response_format"]["json_schema"]["schema"]["required"] == ["seen"]
    assert "data:image/png;base64," in str(request["messages"][-1]["content"])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
async def test_codex_that_is_stopped_closes_the_backends_stream(
    codex: Codex, upstream: Upstream, settings: list[str], end: signal.Signals
) -> None:
    go = asyncio.Event()
    upstream.say(sse(chunk("Hel"), go, HANG))
    async with running(*codex.command("Say hello.", *settings), env=codex.variables(), cwd=codex.repository) as process:
        async with asyncio.timeout(60):
            while not upstream.requests:
                await asyncio.sleep(0.05)
            go.set()
            os.killpg(process.pid, end)
            await upstream.requests[0].gone.wait()
            await process.wait()
    assert len(upstream.requests) == 1


async def test_codex_tools_that_cannot_be_offered_are_left_out_with_a_warning(
    codex: Codex, upstream: Upstream, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.say(saying("Hello."))
    hosted = ['web_search="live"', "features.image_generation=true"]
    assert agent_messages(await codex.exec("Say hello.", *hosted, model="gpt-5.5")) == ["Hello."]
    offered = [tool["function"]["name"] for tool in upstream.requests[0].json["tools"]]
    assert "exec_command" in offered and "web_search" not in offered
    warning = "Tools of type 'web_search' require a table [tools.web_search] in this server's settings; left out."
    assert warning in wire.responses[0].response_headers["x-antiphon-warning"]
    assert warning in [getattr(record, "reason", None) for record in caplog.records]


async def test_codex_sub_agent_does_its_part(codex: Codex, upstream: Upstream) -> None:
    both = asyncio.Event()
    upstream.say(calling("multi_agent_v1__spawn_agent", '{"message": "Say hello."}'))
    upstream.always(sse(both, chunk("Hello."), finish(), usage(), DONE))
    working = asyncio.ensure_future(codex.exec("Let another say it."))
    while len(upstream.requests) < 3 and not working.done():
        await asyncio.sleep(0.05)
    both.set()
    # If the sub-agent ends first, Codex tells the model so, which answers again.
    assert set(agent_messages(await working)) == {"Hello."}
    texts = {one[0]["content"] for one in sent_messages(upstream)[1:]}
    assert texts == {"Let another say it.", "Say hello."}


@pytest.mark.parametrize(("model", "features"), [("m", ["features.multi_agent_v2=true"]), ("gpt-6-sol", [])])
async def test_codex_agent_of_a_team_receives_its_task(
    codex: Codex, upstream: Upstream, model: str, features: list[str]
) -> None:
    """Newer models have agents that exchange messages, in an item type unique to Codex."""
    both = asyncio.Event()
    task = {"task_name": "greet", "message": "Say hello to Ada."}
    upstream.say(calling("collaboration__spawn_agent", json.dumps(task)))
    upstream.always(sse(both, chunk("Hello."), finish(), usage(), DONE))
    working = asyncio.ensure_future(codex.exec("Let another say it.", *features, model=model))
    while len(upstream.requests) < 3 and not working.done():
        await asyncio.sleep(0.05)
    both.set()
    # If the sub-agent ends first, Codex tells the model so, which answers again.
    assert set(agent_messages(await working)) == {"Hello."}
    prompts = [one[-1]["content"] for one in sent_messages(upstream)[1:] if one[-1]["role"] == "user"]
    assert len(prompts) == 1 and prompts[0].endswith("Payload:\n\nSay hello to Ada.")
    offered = {tool["function"]["name"]: tool["function"] for tool in upstream.requests[0].json["tools"]}
    message = offered["collaboration__spawn_agent"]["parameters"]["properties"]["message"]
    assert message["type"] == "string" and "encrypted" not in message
