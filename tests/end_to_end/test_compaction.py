"""Long conversations: summarized on request, truncated at the start if allowed, otherwise refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseCompactionCompactingEvent
from openresponses_types.types import CompactResource

from app.core.profile import Profile
from app.errors import BackendError
from app.responses.compaction import PROMPT
from tests.support import laws
from tests.support.build import call, delta, finish, story
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.support.sockets import ask, dial, listening

SUMMARY = [delta(reasoning_content="What matters?"), delta(content="We launch "), delta(content="on Tuesday.")]
ANSWER = [delta(content="Understood.")]
TRIGGER = {"type": "compaction_trigger"}
TOO_LONG = BackendError(
    "The prompt is too long.", status=400, error_type="invalid_request", code="context_length_exceeded"
)

LAUNCH = [
    {"type": "message", "role": "user", "content": "We agreed to launch on Tuesday and notify support first."},
    {"type": "message", "role": "assistant", "content": "Understood. Support will be notified beforehand."},
]


@contextlib.asynccontextmanager
async def serving(*scripts: Any, **values: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Scripted]]:
    backend = Scripted(*scripts)
    values = {"secret_key": "the secret", **values}
    async with (
        antiphon(backend, **values) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http,
    ):
        yield http, backend


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def sent_to_model(backend: Scripted) -> list[tuple[str, str]]:
    return [(message["role"], message.get("content") or "") for message in backend.received[-1]["messages"]]


async def post(http: httpx.AsyncClient, path: str = "/responses", key: str = "alice", **body: Any) -> httpx.Response:
    return await http.post(path, json={"model": "m", **body}, headers={"authorization": f"Bearer {key}"})


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


async def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = response.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


# POST /responses/compact


async def test_compaction_has_the_messages_and_an_encrypted_summary() -> None:
    async with serving(SUMMARY) as (http, backend):
        answer = await post(http, "/responses/compact", input=LAUNCH, prompt_cache_key="k")

    compacted = answer.json()
    CompactResource.model_validate(compacted)
    message, compaction = compacted["output"]
    assert compacted["object"] == "response.compaction"
    assert message["content"] == [{"type": "input_text", "text": LAUNCH[0]["content"]}]
    assert (message["role"], message["status"]) == ("user", "completed")
    assert compaction["type"] == "compaction" and "Tuesday" not in compaction["encrypted_content"]
    assert compacted["usage"]["total_tokens"] > 0
    assert sent_to_model(backend) == [
        ("user", "We agreed to launch on Tuesday and notify support first."),
        ("assistant", "Understood. Support will be notified beforehand."),
        ("user", PROMPT),
    ]


async def test_compaction_begins_a_new_chain() -> None:
    async with serving(SUMMARY, ANSWER) as (http, backend):
        compacted = (await post(http, "/responses/compact", input=LAUNCH)).json()
        answer = await post(http, input=[*compacted["output"], user("When do we launch?")], store=False)

    assert answer.json()["status"] == "completed"
    assert sent_to_model(backend) == [
        ("user", LAUNCH[0]["content"]),
        ("user", "Summary of the conversation before this message:\n\nWe launch on Tuesday."),
        ("user", "When do we launch?"),
    ]


async def test_compaction_over_a_websocket_begins_a_new_chain() -> None:
    backend = Scripted(SUMMARY, ANSWER)
    async with listening(backend) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
        compacted = (await http.post("/responses/compact", json={"model": "m", "input": LAUNCH})).json()
        async with dial(url) as socket:
            events = await ask(socket, input=[*compacted["output"], user("When?")], store=False, tools=[])

    laws.check(events)
    assert events[-1]["response"]["status"] == "completed"
    assert "We launch on Tuesday." in sent_to_model(backend)[1][1]


async def test_compaction_by_official_clients_takes_a_response_id() -> None:
    backend = Scripted(ANSWER, ANSWER, SUMMARY, ANSWER)
    async with antiphon(backend) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="alice") as client:
        first = await client.responses.create(model="m", input="One.", instructions="Be brief.")
        second = await client.responses.create(model="m", input="Two.", previous_response_id=first.id)
        compacted = await client.responses.compact(
            model="m", previous_response_id=second.id, instructions="Keep the numbers."
        )
        again: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
        await client.responses.create(model="m", input=[*again, user("Three.")])

    assert backend.received[2]["messages"][0] == {"role": "system", "content": "Keep the numbers."}
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert [text for _, text in sent_to_model(backend)][:2] == ["One.", "Two."]
    assert "We launch on Tuesday." in sent_to_model(backend)[2][1]


async def test_compaction_keeps_instructions_and_images() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    rules = {"type": "message", "role": "developer", "content": "Be brief."}
    seen = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look."}, picture]}
    async with serving(SUMMARY) as (http, _):
        compacted = (await post(http, "/responses/compact", input=[rules, seen, LAUNCH[1]])).json()
        text = (await post(http, "/responses/compact", input="Only this.")).json()

    CompactResource.model_validate(compacted)
    assert [item.get("role") for item in compacted["output"]] == ["developer", "user", None]
    assert compacted["output"][1]["content"] == seen["content"]
    assert text["output"][0]["content"] == [{"type": "input_text", "text": "Only this."}]


async def test_compaction_of_a_compaction_replaces_its_summary() -> None:
    async with serving(SUMMARY, [delta(content="Then we celebrate.")], ANSWER) as (http, backend):
        first = (await post(http, "/responses/compact", input=LAUNCH)).json()["output"]
        second = (await post(http, "/responses/compact", input=[*first, user("And then?"), LAUNCH[1]])).json()["output"]
        assert "We launch on Tuesday." in sent_to_model(backend)[1][1]
        await post(http, input=[*second, user("Go on.")])

    assert [item["type"] for item in second] == ["message", "message", "compaction"]
    assert [text for _, text in sent_to_model(backend)] == [
        LAUNCH[0]["content"],
        "And then?",
        "Summary of the conversation before this message:\n\nThen we celebrate.",
        "Go on.",
    ]


async def test_compaction_request_has_no_tools_and_formats() -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    format = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    async with serving([*SUMMARY, call(0, "c1", "look", "{}")]) as (http, backend):
        answer = await post(http, input=[*LAUNCH, TRIGGER], tools=[tool], tool_choice="required", text=format)

    assert {"tools", "tool_choice", "response_format"}.isdisjoint(backend.received[0])
    assert [item["type"] for item in answer.json()["output"]] == ["compaction"]
    assert answer.json()["tools"][0]["name"] == "look"


async def test_compaction_request_forbids_calls_of_the_conversations_tools() -> None:
    bringing = {"type": "additional_tools", "tools": [{"type": "function", "name": "look"}]}
    async with serving(SUMMARY) as (http, backend):
        answer = await post(http, input=[bringing, *LAUNCH, TRIGGER])

    assert backend.received[0]["tool_choice"] == "none"
    assert backend.received[0]["tools"][0]["function"]["name"] == "look"
    assert [item["type"] for item in answer.json()["output"]] == ["compaction"]


async def test_compaction_prompt_is_a_setting() -> None:
    async with serving(SUMMARY, compaction_prompt="In one line, please.") as (http, backend):
        await post(http, "/responses/compact", input=LAUNCH)

    assert sent_to_model(backend)[-1] == ("user", "In one line, please.")


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"input": "Hi.", "model": None}, (400, "missing_required_parameter", "model")),
        ({}, (400, "invalid_request", "input")),
        ({"previous_response_id": "resp_unknown"}, (400, "previous_response_not_found", "previous_response_id")),
        (
            {"input": [user("Hi."), {"type": "compaction", "encrypted_content": "antiphon1.AAA="}]},
            (400, "invalid_encrypted_content", "input[1].encrypted_content"),
        ),
    ],
)
async def test_compaction_of_an_invalid_input_is_refused(body: dict[str, Any], refusal: Any) -> None:
    async with serving(SUMMARY, default_model="m") as (http, backend):
        assert error_of(await post(http, "/responses/compact", **body)) == refusal
    assert backend.received == []


async def test_compaction_is_not_stored() -> None:
    async with serving(SUMMARY) as (http, _):
        compacted = (await post(http, "/responses/compact", input=LAUNCH)).json()
        gone = await http.get(f"/responses/{compacted['id']}", headers={"authorization": "Bearer alice"})

    assert gone.status_code == 404


@pytest.mark.parametrize("script", [[], [delta(reasoning_content="Hm.")], [delta(content="  ")]])
async def test_compaction_without_a_summary_is_an_error(script: Any) -> None:
    async with serving(script) as (http, _):
        assert error_of(await post(http, "/responses/compact", input=LAUNCH)) == (502, "model_error", None)


async def test_compaction_with_a_truncated_summary_is_marked() -> None:
    async with serving([*SUMMARY, finish("length")], ANSWER) as (http, backend):
        compacted = await post(http, "/responses/compact", input=LAUNCH)
        await post(http, input=[*compacted.json()["output"], user("When?")])

    assert sent_to_model(backend)[1][1].endswith("We launch on Tuesday.\n[Summary truncated here.]")


async def test_compaction_with_a_filtered_summary_is_an_error() -> None:
    async with serving([*SUMMARY, finish("content_filter")]) as (http, _):
        refused = await post(http, "/responses/compact", input=LAUNCH)
        filtered = await post(http, input=[*LAUNCH, TRIGGER])

    assert error_of(refused)[:2] == (502, "content_filter")
    assert (filtered.json()["status"], filtered.json()["output"]) == ("incomplete", [])


# Output.


async def test_compaction_that_is_foreign_or_changed_is_refused() -> None:
    refused = (400, "invalid_encrypted_content", "input[1].encrypted_content")
    async with serving(SUMMARY, ANSWER, api_keys="alice,bob") as (http, backend):
        output = (await post(http, "/responses/compact", input=LAUNCH)).json()["output"]
        changed = [output[0], {**output[1], "encrypted_content": output[1]["encrypted_content"][:-3] + "AAA"}]
        count = len(backend.received)

        assert error_of(await post(http, input=[*output, user("Hi.")], key="bob")) == refused
        assert error_of(await post(http, input=[*changed, user("Hi.")])) == refused
        assert len(backend.received) == count


FOREIGN = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABpM0Yj-openai="}
NOTE = "(An earlier part of this conversation was compacted by another server and cannot be read.)"


async def test_compaction_of_another_server_is_reported_to_the_model_and_the_caller() -> None:
    async with serving(ANSWER) as (http, backend):
        answer = await post(http, input=[FOREIGN, user("When do we launch?")])
        assert answer.status_code == 200
        assert "compaction from another server cannot be read" in answer.headers["x-antiphon-warning"]
        assert sent_to_model(backend) == [("user", NOTE), ("user", "When do we launch?")]

        again = await post(http, input="And then?", previous_response_id=answer.json()["id"])
        assert sent_to_model(backend)[0] == ("user", NOTE)
        assert "compaction from another server" in again.headers["x-antiphon-warning"]
        items = await http.get(
            f"/responses/{answer.json()['id']}/input_items", headers={"authorization": "Bearer alice"}
        )
        assert items.json()["data"][1]["encrypted_content"] == FOREIGN["encrypted_content"]


async def test_compaction_of_another_server_replaces_nothing_that_can_be_read() -> None:
    async with serving(ANSWER, SUMMARY, ANSWER) as (http, backend):
        await post(http, input=[*LAUNCH, FOREIGN, user("When?")])
        assert [text for _, text in sent_to_model(backend)] == [*(item["content"] for item in LAUNCH), NOTE, "When?"]

        compacted = (await post(http, "/responses/compact", input=[*LAUNCH, FOREIGN])).json()["output"]
        assert NOTE in [text for _, text in sent_to_model(backend)]
        await post(http, input=[*compacted, user("When?")])
        assert [text for _, text in sent_to_model(backend)][-2].endswith("We launch on Tuesday.")


async def test_compaction_with_a_lost_key_is_reported_to_the_model() -> None:
    async with serving(SUMMARY) as (http, _):
        output = (await post(http, "/responses/compact", input=LAUNCH)).json()["output"]
    async with serving(ANSWER, secret_key="another") as (http, backend):
        answer = await post(http, input=[*output, user("When?")])
    assert "x-antiphon-warning" in answer.headers
    assert sent_to_model(backend)[-2:] == [("user", NOTE), ("user", "When?")]


async def test_compaction_of_another_server_in_a_conversation_is_reported_to_the_model() -> None:
    alice = {"authorization": "Bearer alice"}
    async with serving(ANSWER) as (http, backend):
        conversation = (await http.post("/conversations", json={"items": [FOREIGN]}, headers=alice)).json()
        answer = await post(http, input="When?", conversation=conversation["id"])
    assert sent_to_model(backend) == [("user", NOTE), ("user", "When?")]
    assert "x-antiphon-warning" in answer.headers


async def test_compaction_after_a_restart_with_the_same_secret_is_read() -> None:
    async with serving(SUMMARY) as (http, _):
        output = (await post(http, "/responses/compact", input=LAUNCH)).json()["output"]
    async with serving(ANSWER, secret_key="a new one,the secret") as (http, backend):
        assert (await post(http, input=[*output, user("Hi.")])).status_code == 200
    assert "We launch on Tuesday." in sent_to_model(backend)[1][1]


async def test_stored_turn_has_the_summary_of_its_compaction() -> None:
    async with serving(SUMMARY, ANSWER) as (http, backend):
        output = (await post(http, "/responses/compact", input=LAUNCH)).json()["output"]
        output[1].pop("id")  # not all clients keep it
        first = (await post(http, input=[*output, user("One.")])).json()
        await post(http, input="Two.", previous_response_id=first["id"])

    assert [text for _, text in sent_to_model(backend)] == [
        LAUNCH[0]["content"],
        "Summary of the conversation before this message:\n\nWe launch on Tuesday.",
        "One.",
        "Understood.",
        "Two.",
    ]


# A compaction_trigger at the end of the input, as Codex sends it.


async def test_compaction_trigger_is_answered_with_one_item() -> None:
    async with serving(SUMMARY) as (http, backend):
        streamed = await events_of(await post(http, input=[*LAUNCH, TRIGGER], store=False, stream=True))
        whole = (await post(http, input=[*LAUNCH, TRIGGER], store=False)).json()

    laws.check(streamed)
    assert story(streamed) == "created in_progress output_item.added output_item.done completed"
    assert [item["type"] for item in streamed[-1]["response"]["output"]] == ["compaction"]
    assert [item["type"] for item in whole["output"]] == ["compaction"]
    assert sent_to_model(backend)[-1] == ("user", PROMPT)


async def events_of_trigger(script: list[Any], agent: str) -> list[Any]:
    async with serving(script) as (http, _):
        headers = {"user-agent": agent}
        body = {"model": "m", "input": [*LAUNCH, TRIGGER], "stream": True}
        answer = await http.post("/responses", json=body, headers=headers)
        return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


async def test_compaction_events_are_sent_to_clients_that_know_them() -> None:
    events = await events_of_trigger(SUMMARY, "OpenAI/Python 3.54.0")
    compacting = [event for event in events if event["type"] == "response.compaction.compacting"]
    assert len(compacting) == 2
    for event in compacting:
        ResponseCompactionCompactingEvent.model_validate(event, strict=True)
    done = next(event for event in events if event["type"] == "response.output_item.done")
    assert {(event["item_id"], event["output_index"]) for event in compacting} == {(done["item"]["id"], 0)}
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    plain = await events_of_trigger(SUMMARY, "OpenAI/Python 2.54.0")
    assert story(plain) == story(event for event in events if event not in compacting)


async def test_compaction_that_breaks_off_ends_its_item() -> None:
    events = await events_of_trigger([*SUMMARY, BackendError("It broke.")], "OpenAI/Python 3.54.0")
    assert story(events[-4:]) == "compaction.compacting output_item.done error failed"
    item = events[-1]["response"]["output"][0]
    assert (item["type"], item["status"]) == ("compaction", "incomplete")
    assert item["encrypted_content"]


async def test_official_clients_read_the_compaction_event() -> None:
    async with antiphon(Scripted(SUMMARY)) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
        async with client.responses.stream(model="m", input=[*LAUNCH, TRIGGER]) as stream:  # type: ignore[list-item]
            seen = [event.type async for event in stream]
    assert seen.count("response.compaction.compacting") == 2
    assert seen[-1] == "response.completed"


async def test_compaction_of_a_trigger_comes_back_after_the_kept_messages() -> None:
    async with serving(SUMMARY, ANSWER) as (http, backend):
        [item] = (await post(http, input=[*LAUNCH, TRIGGER], store=False)).json()["output"]
        await post(http, input=[LAUNCH[0], item, user("When?")], store=False)

    assert "We launch on Tuesday." in sent_to_model(backend)[1][1]


async def test_stored_chain_goes_on_after_its_compaction() -> None:
    async with serving(ANSWER, SUMMARY, ANSWER) as (http, backend):
        first = (await post(http, input=[{**LAUNCH[0], "role": "system"}, user("One.")])).json()
        compacted = (await post(http, input=[TRIGGER], previous_response_id=first["id"])).json()
        await post(http, input="Two.", previous_response_id=compacted["id"])

    assert compacted["previous_response_id"] == first["id"]
    assert sent_to_model(backend) == [
        ("system", LAUNCH[0]["content"]),
        ("user", "One."),
        ("user", "Summary of the conversation before this message:\n\nWe launch on Tuesday."),
        ("user", "Two."),
    ]


async def test_compaction_trigger_alone_has_nothing_to_compact() -> None:
    async with serving(SUMMARY) as (http, _):
        assert error_of(await post(http, input=[TRIGGER])) == (400, "invalid_request", "input")


# truncation


LONG = [user("one " * 200), {**LAUNCH[1], "content": "1 " * 200}, user("two " * 200), user("three")]


@pytest.mark.parametrize("refusal", [[TOO_LONG], [[], TOO_LONG]], ids=["as a status", "in the stream"])
@pytest.mark.parametrize("stream", [False, True])
async def test_truncation_auto_drops_the_oldest_turns_until_it_fits(refusal: Any, stream: bool) -> None:
    rules = {"type": "message", "role": "system", "content": "Be brief."}
    async with serving(refusal, refusal, ANSWER) as (http, backend):
        answer = await post(http, input=[rules, *LONG], truncation="auto", stream=stream, instructions="In French.")

    response = (await events_of(answer))[-1]["response"] if stream else answer.json()
    assert (response["status"], response["truncation"]) == ("completed", "auto")
    assert len(backend.received) == 3
    assert sent_to_model(backend) == [("system", "In French.\n\nBe brief."), ("user", "three")]
    assert "its oldest 3 items were dropped" in answer.headers["x-antiphon-warning"]


async def test_truncation_auto_takes_the_limit_from_the_backends_error() -> None:
    too_long = BackendError(
        "request (1000 tokens) exceeds the available context size (400 tokens)", code="context_length_exceeded"
    )
    async with serving([too_long], ANSWER) as (http, backend):
        await post(http, input=LONG, truncation="auto")

    assert [text for _, text in sent_to_model(backend)] == ["two " * 200, "three"]


async def test_truncation_auto_keeps_dropped_turns_in_the_store() -> None:
    async with serving(ANSWER, [TOO_LONG], ANSWER, ANSWER) as (http, backend):
        first = (await post(http, input="one " * 500)).json()
        cut = (await post(http, input="two", previous_response_id=first["id"], truncation="auto")).json()
        assert sent_to_model(backend) == [("user", "two")]
        await post(http, input="three", previous_response_id=cut["id"])

    assert [text for _, text in sent_to_model(backend)] == ["one " * 500, "Understood.", "two", "Understood.", "three"]


async def test_truncation_disabled_is_a_refusal() -> None:
    async with serving([TOO_LONG]) as (http, backend):
        refused = await post(http, input=LONG)

    assert error_of(refused)[:2] == (400, "context_length_exceeded")
    assert len(backend.received) == 1


async def test_truncation_auto_gives_up_where_nothing_can_be_dropped() -> None:
    async with serving([TOO_LONG]) as (http, backend):
        refused = await post(http, input="All in one message. " * 100, truncation="auto")

    assert error_of(refused)[:2] == (400, "context_length_exceeded")
    assert len(backend.received) == 1


async def test_truncation_auto_returns_other_refusals_unchanged() -> None:
    async with serving([BackendError("No.", status=400, code="mistake")]) as (http, backend):
        assert error_of(await post(http, input=LONG, truncation="auto"))[:2] == (400, "mistake")
    assert len(backend.received) == 1


async def test_truncation_auto_does_not_repeat_an_answer_that_broke_off() -> None:
    async with serving([delta(content="Hel"), TOO_LONG]) as (http, backend):
        response = (await post(http, input=LONG, truncation="auto")).json()

    assert (response["status"], response["error"]["code"]) == ("failed", "context_length_exceeded")
    assert len(backend.received) == 1


async def test_compaction_of_too_long_a_conversation_drops_its_oldest_turns() -> None:
    async with serving([TOO_LONG], SUMMARY) as (http, backend):
        compacted = await post(http, "/responses/compact", input=[*LONG, LAUNCH[1]])

    assert compacted.status_code == 200
    assert [text for _, text in sent_to_model(backend)] == ["two " * 200, "three", LAUNCH[1]["content"], PROMPT]
    assert [item["type"] for item in compacted.json()["output"]] == ["message", "message", "message", "compaction"]
    assert "dropped" in compacted.headers["x-antiphon-warning"]


# include: ["reasoning.encrypted_content"]


THOUGHT = [delta(reasoning="I have to "), delta(reasoning="look."), call(0, "c1", "look", "{}"), finish("tool_calls")]
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
INCLUDE = ["reasoning.encrypted_content"]


async def test_encrypted_reasoning_is_sent_back_in_the_backends_words() -> None:
    async with serving(THOUGHT, ANSWER) as (http, backend):
        fields = {"tools": TOOLS, "store": False, "include": INCLUDE, "reasoning": {"summary": "auto"}}
        output = (await post(http, input="Look.", **fields)).json()["output"]
        seen = {"type": "function_call_output", "call_id": output[1]["call_id"], "output": "A cat."}
        output[0] = {"type": "reasoning", "summary": [], "encrypted_content": output[0]["encrypted_content"]}
        await post(http, input=[user("Look."), *output, seen], **fields)

    assert backend.received[-1]["messages"][1]["reasoning"] == "I have to look."


async def test_encrypted_reasoning_is_the_same_streamed_and_in_json() -> None:
    async with serving(THOUGHT) as (http, _):
        fields = {"input": "Look.", "tools": TOOLS, "include": INCLUDE}
        events = await events_of(await post(http, stream=True, **fields))
        plain = (await post(http, input="Look.", tools=TOOLS)).json()["output"][0]

    laws.check(events)
    [done] = [e["item"] for e in events if e["type"] == "response.output_item.done" and e["output_index"] == 0]
    assert done["encrypted_content"].startswith("antiphon1.")
    assert events[-1]["response"]["output"][0] == done
    assert "encrypted_content" not in plain


async def test_call_signature_survives_a_client_that_keeps_everything() -> None:
    signed = call(0, "c1", "look", "{}")
    extra = {"google": {"thought_signature": "abc"}}
    signed["choices"][0]["delta"]["tool_calls"][0]["extra_content"] = extra
    backend = Scripted(
        [signed, finish("tool_calls")], ANSWER, profile=Profile().override({"request.reasoning_field": "extra_content"})
    )
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
        fields = {"tools": TOOLS, "store": False, "include": INCLUDE}
        output = (await post(http, input="Look.", **fields)).json()["output"]
        seen = {"type": "function_call_output", "call_id": "c1", "output": "A cat."}
        for item in output:
            item.pop("id")
        await post(http, input=[user("Look."), *output, seen], **fields)

    assert [item["type"] for item in output] == ["reasoning", "function_call"]
    assert backend.received[-1]["messages"][1]["tool_calls"][0]["extra_content"] == extra


async def test_reasoning_of_another_server_does_not_stop_an_agent() -> None:
    foreign = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABpM0Yj-openai="}
    async with serving(ANSWER) as (http, _):
        answer = await post(http, input=[user("Hi."), foreign, LAUNCH[1], user("Go on.")])

    assert answer.status_code == 200
    assert "cannot read" in answer.headers["x-antiphon-warning"]


async def test_reasoning_that_was_changed_is_refused() -> None:
    async with serving(THOUGHT) as (http, _):
        [thought, _] = (await post(http, input="Look.", tools=TOOLS, include=INCLUDE)).json()["output"]
        thought["encrypted_content"] = thought["encrypted_content"][:-3] + "AAA"
        refused = await post(http, input=[user("Look."), thought, user("Go on.")])

    assert error_of(refused) == (400, "invalid_encrypted_content", "input[1].encrypted_content")
