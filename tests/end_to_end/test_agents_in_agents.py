"""
Clients with several agents: messages between agents, and repeated messages with tool results.

Codex sends `agent_message` items. Their content is sealed if OpenAI answers, and otherwise plain.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon

HELLO: list[Step] = [{"choices": [{"index": 0, "delta": {"content": "Hello."}, "finish_reason": None}]}]
SEALED = "gAAAAABpM0Yj" + "x" * 120 + "=="
HEAD = "Message Type: NEW_TASK\nTask name: /root/greet\nSender: /root\nPayload:"
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
CALL: dict[str, Any] = {"index": 0, "id": "call_1", "type": "function"}
CALLING: list[Step] = [
    {
        "choices": [
            {
                "index": 0,
                "delta": {"tool_calls": [{**CALL, "function": {"name": "get_weather", "arguments": "{}"}}]},
                "finish_reason": "tool_calls",
            }
        ]
    }
]


def agent_message(*content: dict[str, Any]) -> dict[str, Any]:
    """Codex's message from one agent to another."""
    return {
        "type": "agent_message",
        "id": "amsg_01",
        "author": "/root",
        "recipient": "/root/greet",
        "content": [{"type": "input_text", "text": f"{HEAD}\n"}, *content],
    }


def sealed(text: str) -> dict[str, str]:
    return {"type": "encrypted_content", "encrypted_content": text}


async def exchange(*items: dict[str, Any], **fields: Any) -> tuple[dict[str, Any], httpx.Response]:
    """The backend's request for these items, and the answer."""
    backend = Scripted(HELLO)
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        answer = await client.post("/v1/responses", json={"model": "m", "input": [*items], "store": False, **fields})
    return (backend.received[0] if backend.received else {}), answer


async def test_agent_message_reaches_the_model() -> None:
    chat, answer = await exchange(
        {"role": "user", "content": "Let another greet."}, agent_message(sealed("Say hello to Ada."))
    )
    assert [message["role"] for message in chat["messages"]] == ["user", "user"]
    assert chat["messages"][1]["content"] == f"{HEAD}\n\nSay hello to Ada."
    assert "x-antiphon-warning" not in answer.headers


async def test_content_encrypted_elsewhere_is_left_out_with_a_warning() -> None:
    chat, answer = await exchange(agent_message(sealed(SEALED)))
    assert chat["messages"] == [{"role": "user", "content": f"{HEAD}\n"}]
    assert "agent_message" in answer.headers["x-antiphon-warning"]


async def test_agent_message_is_listed_as_it_came() -> None:
    async with antiphon(Scripted(HELLO)) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "m", "input": [agent_message(sealed("Say hello."))]}
        response = (await client.post("/v1/responses", json=body)).json()
        listed = (await client.get(f"/v1/responses/{response['id']}/input_items")).json()["data"]
    assert listed == body["input"]


async def test_agent_message_that_is_invalid_is_refused() -> None:
    _, answer = await exchange(agent_message({"type": "input_text"}))
    assert answer.json()["error"]["param"] == "input[0].content[1].text"


async def test_encrypted_parameters_are_plain_to_a_backend() -> None:
    message = {"type": "string", "description": "What to do.", "encrypted": True}
    parameters = {"type": "object", "properties": {"message": message, "encrypted": {"type": "boolean"}}}
    spawn = {"type": "function", "name": "spawn_agent", "parameters": parameters}
    tools = [{"type": "namespace", "name": "collaboration", "tools": [spawn]}]
    chat, _ = await exchange({"role": "user", "content": "Hi."}, tools=tools)
    properties = chat["tools"][0]["function"]["parameters"]["properties"]
    assert properties == {
        "message": {"type": "string", "description": "What to do."},
        "encrypted": {"type": "boolean"},
    }


async def test_question_repeated_with_the_results_is_sent_once() -> None:
    """Semantic Kernel sends it so, and all results once more with each: the model would call its tools for ever."""
    question = {"role": "user", "content": [{"type": "input_text", "text": "What is the weather?"}]}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."}
    backend = Scripted(CALLING, HELLO)
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "m", "input": [question], "tools": [WEATHER]}
        first = (await client.post("/v1/responses", json=body)).json()
        body |= {"input": [question, result], "previous_response_id": first["id"]}
        answer = await client.post("/v1/responses", json=body)
        third = {"model": "m", "input": [question], "previous_response_id": answer.json()["id"]}
        await client.post("/v1/responses", json=third)
    assert [message["role"] for message in backend.received[1]["messages"]] == ["user", "assistant", "tool"]
    assert "the repetition was dropped" in answer.headers["x-antiphon-warning"]
    # Without results it is a question like any other.
    roles = [message["role"] for message in backend.received[2]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


async def test_output_without_a_call_is_found_in_its_place() -> None:
    result = {"type": "function_call_output", "call_id": "call_9", "output": "Sunny."}
    backend = Scripted(CALLING, HELLO)
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        question = {"role": "user", "content": "Weather?"}
        body = {"model": "m", "input": [question], "tools": [WEATHER]}
        first = (await client.post("/v1/responses", json=body)).json()
        body = {"model": "m", "input": [question, result], "previous_response_id": first["id"]}
        error = (await client.post("/v1/responses", json=body)).json()["error"]
    assert error["param"] == "input[1].call_id"


async def test_question_that_is_new_beside_the_results_is_sent() -> None:
    result = {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."}
    backend = Scripted(CALLING, HELLO)
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        first = (
            await client.post("/v1/responses", json={"model": "m", "input": "Weather?", "tools": [WEATHER]})
        ).json()
        more = {"role": "user", "content": "In Paris."}
        body = {"model": "m", "input": [more, result], "previous_response_id": first["id"]}
        await client.post("/v1/responses", json=body)
    assert [message["content"] for message in backend.received[1]["messages"] if message["role"] == "user"] == [
        "Weather?",
        "In Paris.",
    ]


@pytest.mark.parametrize(
    ("updates", "effort"),
    [((), "low"), (("high",), "high"), (("high", "medium"), "medium"), (("high", None), "high")],
)
async def test_configuration_update_of_the_effort_takes_effect(updates: tuple[str | None, ...], effort: str) -> None:
    """
    "Each setting stays in effect until a later update replaces it."
    """
    changes = [{"type": "configuration_update", "reasoning": {"effort": update}} for update in updates]
    question = {"role": "user", "content": "Hi."}
    chat, answer = await exchange(*changes, question, reasoning={"effort": "low"})
    assert chat["reasoning_effort"] == effort
    assert chat["messages"] == [{"role": "user", "content": "Hi."}]
    assert answer.json()["reasoning"]["effort"] == "low"
    assert "x-antiphon-warning" not in answer.headers


PERSON = {"type": "json_schema", "name": "person", "schema": {"type": "object"}, "strict": True}
PLACE = {"type": "json_schema", "name": "place", "schema": {"type": "object", "title": "Place"}}


@pytest.mark.parametrize(
    ("updates", "name"),
    [((PERSON,), "person"), ((PERSON, PLACE), "place"), ((PERSON, {"type": "text"}), None), ((), "own")],
)
async def test_configuration_update_of_the_text_format_replaces_that_of_the_request(
    updates: tuple[dict[str, Any], ...], name: str | None
) -> None:
    changes = [{"type": "configuration_update", "text": {"format": update}} for update in updates]
    question = {"role": "user", "content": "Hi."}
    own = {"type": "json_schema", "name": "own", "schema": {"type": "object"}}
    chat, answer = await exchange(*changes, question, text={"format": own, "verbosity": "low"})
    assert chat.get("response_format", {"json_schema": {"name": None}})["json_schema"]["name"] == name
    assert answer.json()["text"]["format"]["name"] == "own"
    if updates == (PERSON,):
        assert chat["response_format"]["json_schema"] == {
            "name": "person",
            "schema": {"type": "object"},
            "strict": True,
        }


async def test_configuration_update_stays_in_effect_in_later_turns_and_after_a_compaction() -> None:
    backend = Scripted(HELLO)
    change = {
        "type": "configuration_update",
        "reasoning": {"effort": "high"},
        "text": {"format": PLACE},
    }
    async with antiphon(backend, secret_key="k") as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        body: dict[str, Any] = {"model": "m", "input": [change, {"role": "user", "content": "Hi."}]}
        first = (await client.post("/v1/responses", json=body)).json()
        body = {"model": "m", "input": "More.", "previous_response_id": first["id"]}
        compact = [{"type": "compaction", "compact_threshold": 1}]
        second = (await client.post("/v1/responses", json={**body, "context_management": compact})).json()
        assert second["output"][0]["type"] == "compaction"
        await client.post("/v1/responses", json={**body, "previous_response_id": second["id"]})
    for chat in (backend.received[0], backend.received[-1]):
        assert chat["response_format"]["json_schema"]["name"] == "place"
        assert chat["reasoning_effort"] == "high"


@pytest.mark.parametrize(
    ("format", "param"),
    [({"type": "json_schema", "name": "a"}, "input[0].text.format.schema"), ({}, "input[0].text.format.type")],
)
async def test_configuration_update_of_an_invalid_text_format_is_refused(format: Any, param: str) -> None:
    change = {"type": "configuration_update", "text": {"format": format}}
    _, answer = await exchange(change, {"role": "user", "content": "Hi."})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_configuration_update_of_an_invalid_effort_is_refused() -> None:
    change = {"type": "configuration_update", "reasoning": {"effort": "a lot"}}
    _, answer = await exchange(change, {"role": "user", "content": "Hi."})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[0].reasoning.effort"


STANDALONE = {"type": "function_call_output", "name": "notes", "namespace": "app", "output": "Page 2 has changed."}


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
@pytest.mark.parametrize("call_id", [{}, {"call_id": None}, {"call_id": ""}])
async def test_output_without_a_call_is_accepted(call_id: dict[str, Any], kind: str) -> None:
    """Codex's app puts such items between the turns; OpenAI's own types have no call for them either."""
    chat, answer = await exchange({"role": "user", "content": "Hi."}, {**STANDALONE, "type": kind, **call_id})
    assert answer.status_code == 200
    assert chat["messages"] == [
        {"role": "user", "content": "Hi."},
        {"role": "user", "content": "The tool 'notes' returned this result without a call:\nPage 2 has changed."},
    ]


async def test_output_without_a_call_in_a_stored_conversation_is_accepted() -> None:
    backend = Scripted(CALLING, HELLO)
    result = {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."}
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "m", "input": "Weather?", "tools": [WEATHER]}
        first = (await client.post("/v1/responses", json=body)).json()
        body = {"model": "m", "input": [result, STANDALONE], "previous_response_id": first["id"]}
        second = (await client.post("/v1/responses", json=body)).json()
        listed = (await client.get(f"/v1/responses/{second['id']}/input_items?order=asc")).json()["data"]
        body = {"model": "m", "input": "And now?", "previous_response_id": second["id"]}
        assert (await client.post("/v1/responses", json=body)).status_code == 200
    assert listed[1].items() >= STANDALONE.items()
    assert [message["role"] for message in backend.received[2]["messages"]] == [
        *("user", "assistant", "tool", "user", "assistant", "user")
    ]


@pytest.mark.parametrize("output", [{"output": "Sunny."}, {"output": "Sunny.", "call_id": "", "name": None}])
async def test_output_without_a_call_or_a_name_is_context_only_without_stored_turns(output: Any) -> None:
    item = {"type": "custom_tool_call_output", **output}
    backend = Scripted(HELLO, HELLO)
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        first = await client.post("/v1/responses", json={"model": "m", "input": [item]})
        body = {"model": "m", "input": [item], "previous_response_id": first.json()["id"]}
        second = await client.post("/v1/responses", json=body)
    assert first.status_code == 200
    assert backend.received[0]["messages"] == [
        {"role": "user", "content": "A tool returned this result without a call:\nSunny."}
    ]
    error = second.json()["error"]
    assert (second.status_code, error["param"]) == (400, "input[0].call_id")
    assert error["message"] == "No tool call found for custom tool call output with call_id ''."
