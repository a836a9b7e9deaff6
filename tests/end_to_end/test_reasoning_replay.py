"""
Reasoning returns to its server in this server's form, wherever the client stored it.

Each turn is complete: over HTTP, and through the backend's bytes in both directions.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.routes.test_responses import client
from tests.support.serving import antiphon
from tests.support.upstream import DONE as END
from tests.support.upstream import Upstream, chunk, finish, sse, upstream

__all__ = ["upstream"]  # a fixture

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLED = {name: value for name, value in CALL.items() if name != "index"}
SIGNED = {"type": "reasoning.text", "text": "I should look.", "signature": "c2ln", "index": 0}
BLOCK = {"type": "thinking", "signature": None}
SIGNATURE = {"google": {"thought_signature": "c2ln"}}
TAGGED = "<think>\nI should look.\n</think>\n\n"

Delta = dict[str, Any]

# Profile, and server if a profile covers several: the model's output, and the message to send back.
WANTED: dict[str, tuple[list[Delta], Delta]] = {
    **{
        name: (
            [{"reasoning_content": "I should "}, {"reasoning_content": "look."}],
            {"reasoning_content": "I should look."},
        )
        for name in ("deepseek", "moonshot", "zai", "sglang", "llama.cpp", "default")
    },
    **{name: ([{"reasoning": "I should look."}], {"reasoning": "I should look."}) for name in ("vllm", "ollama")},
    "openrouter": (
        [
            {"reasoning": "I should ", "reasoning_details": [{**SIGNED, "text": "I should ", "signature": None}]},
            {"reasoning": "look.", "reasoning_details": [{**SIGNED, "text": "look.", "signature": None}]},
            {"reasoning_details": [{"type": "reasoning.text", "signature": "c2ln", "index": 0}]},
        ],
        {"reasoning_details": [SIGNED]},
    ),
    "minimax": (
        [
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "I should"}]},
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "I should look."}]},
        ],
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "I should look."}]},
    ),
    "gemini-chat": ([{}], {"tool_calls": [{**CALLED, "extra_content": SIGNATURE}]}),
    "copilot": (
        [{"reasoning_text": "I should look."}, {"reasoning_opaque": "b3BhcXVl"}],
        {"reasoning_text": "I should look.", "reasoning_opaque": "b3BhcXVl"},
    ),
    "cerebras": ([{"reasoning": "I should look."}], {"content": TAGGED}),
    "default, LiteLLM": (
        [
            {"reasoning_content": "I should ", "thinking_blocks": [{**BLOCK, "thinking": "I should "}]},
            {"reasoning_content": "look.", "thinking_blocks": [{**BLOCK, "thinking": "look."}]},
            {"thinking_blocks": [{**BLOCK, "thinking": "", "signature": "c2ln"}]},
        ],
        {
            "reasoning_content": "I should look.",
            "thinking_blocks": [{**BLOCK, "thinking": "I should look.", "signature": "c2ln"}],
        },
    ),
    # These refuse it, or have no use for it.
    "groq": ([{"reasoning": "I should look."}], {}),
    "together": ([{"reasoning": "I should look."}], {}),
    "openai": ([{"reasoning_content": "I should look."}], {}),
    "mistral": (
        [{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "I should look."}]}]}],
        {"content": ""},
    ),
}


def thinks_and_calls(profile: str) -> list[Any]:
    deltas, wanted = WANTED[profile]
    calls = [{**CALL, **{key: value for call in wanted.get("tool_calls", ()) for key, value in call.items()}}]
    return sse(*(chunk(**delta) for delta in deltas), chunk(tool_calls=calls), finish("tool_calls"), END)


def expected(profile: str, sent: Delta) -> Delta:
    """The assistant's message; its call has whatever id the profile makes of it."""
    message = {"role": "assistant", "tool_calls": [CALLED], **WANTED[profile][1]}
    return {**message, "tool_calls": [{**call, "id": sent["tool_calls"][0]["id"]} for call in message["tool_calls"]]}


FIRST: Delta = {"model": "m", "input": "Look.", "tools": [LOOK]}
OUTPUT: Delta = {"type": "function_call_output", "call_id": "call_1", "output": "A cat."}
SEALED: Delta = {"store": False, "include": ["reasoning.encrypted_content"]}


async def by_the_server(http: httpx.AsyncClient, first: Delta) -> Delta:
    response = (await http.post("/v1/responses", json=first)).json()
    return {**first, "previous_response_id": response["id"], "input": [OUTPUT]}


async def in_a_conversation(http: httpx.AsyncClient, first: Delta) -> Delta:
    conversation = (await http.post("/v1/conversations", json={})).json()["id"]
    await http.post("/v1/responses", json={**first, "conversation": conversation})
    return {**first, "conversation": conversation, "input": [OUTPUT]}


async def by_the_client_and_sealed(http: httpx.AsyncClient, first: Delta) -> Delta:
    response = (await http.post("/v1/responses", json={**first, **SEALED})).json()
    items = [{name: value for name, value in item.items() if name != "content"} for item in response["output"]]
    return {**first, **SEALED, "input": [{"role": "user", "content": "Look."}, *items, OUTPUT]}


@pytest.mark.parametrize("profile", WANTED)
async def test_reasoning_before_a_call_is_sent_back_with_its_result(upstream: Upstream, profile: str) -> None:
    name, _, _ = profile.partition(",")
    async with antiphon(backend_url=upstream.url, backend_profile=name) as url, client(url) as http:
        for kept in (by_the_server, in_a_conversation, by_the_client_and_sealed):
            upstream.say(thinks_and_calls(profile))
            upstream.say(sse(chunk("Seen."), finish(), END))
            answer = await http.post("/v1/responses", json=await kept(http, FIRST))
            assert answer.json()["status"] == "completed", (kept, answer.json())
            user, assistant, tool = upstream.requests[-1].json["messages"]
            assert user == {"role": "user", "content": "Look."}
            assert assistant == expected(profile, assistant), kept
            assert tool == {"role": "tool", "tool_call_id": assistant["tool_calls"][0]["id"], "content": "A cat."}


@pytest.mark.parametrize(
    ("profile", "back"),
    [
        ("default", False),
        ("deepseek", False),
        ("vllm", False),
        ("groq", False),
        ("openrouter", True),
        ("minimax", True),
    ],
)
async def test_reasoning_without_a_call_is_sent_back_where_all_is_wanted(
    upstream: Upstream, profile: str, back: bool
) -> None:
    upstream.say(sse(*(chunk(**delta) for delta in WANTED[profile][0]), chunk("Four."), finish(), END))
    upstream.say(sse(chunk("Five."), finish(), END))
    async with antiphon(backend_url=upstream.url, backend_profile=profile) as url, client(url) as http:
        first = (await http.post("/v1/responses", json={"model": "m", "input": "2+2?"})).json()
        await http.post("/v1/responses", json={"model": "m", "input": "+1?", "previous_response_id": first["id"]})
    assistant = upstream.requests[1].json["messages"][1]
    assert assistant == {"role": "assistant", "content": "Four.", **(WANTED[profile][1] if back else {})}
