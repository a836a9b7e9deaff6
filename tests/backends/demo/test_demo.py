"""The built-in backend: it speaks as a real server does, and always says the same."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from app.backends.demo import DemoBackend
from app.core.types.deltas import (
    DONE,
    AnswerMetadata,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenCounts,
    ToolCallDelta,
    UsageReported,
)
from app.errors import BackendError, InvalidRequest
from tests.support.exchanges import asking, reads
from tests.support.serving import antiphon

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["location"],
        },
    },
}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
TIME = {"type": "function", "function": {"name": "get_time"}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def deltas_from(*messages: dict[str, Any] | str, **body: Any) -> list[Delta]:
    chat_messages = [user(message) if isinstance(message, str) else message for message in messages]
    request = asking({"model": "demo", "messages": chat_messages, "stream": True, **body})
    async with DemoBackend().open(request) as answer:
        return [one async for deltas in reads(answer) for one in deltas]


class AnswerContent:
    """Content in an answer's deltas."""

    def __init__(self, deltas: list[Delta]) -> None:
        assert deltas[-1] is DONE
        (self.usage,) = (delta.usage for delta in deltas if isinstance(delta, UsageReported))
        texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
        self.pieces = [text for delta in texts for text in delta.texts]
        self.text = "".join(self.pieces)
        self.reasoning = "".join(text for one in deltas if isinstance(one, ReasoningDelta) for text in one.texts)
        self.calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        self.reasons = [delta.reason for delta in deltas if isinstance(delta, Finished)]
        self.logprobs = [delta.logprobs for delta in texts if delta.logprobs]

    @property
    def call(self) -> tuple[str | None, Any]:
        return self.calls[0].name, json.loads("".join(text for call in self.calls for text in call.arguments))


async def answer_to(*messages: dict[str, Any] | str, **body: Any) -> AnswerContent:
    return AnswerContent(await deltas_from(*messages, **body))


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Say hello in exactly 3 words.", "Hello there, friend!"),
        ("Count from 1 to 5.", "1, 2, 3, 4, 5."),
        ("My name is Alice.", "Nice to meet you, Alice!"),
        ("What is my name?", "You have not told me your name."),
        ([{"type": "text", "text": "Say hello."}], "Hello there, friend!"),
    ],
)
async def test_demo_with_a_known_prompt_has_its_answer(prompt: Any, answer: str) -> None:
    assert (await answer_to(user(prompt))).text == answer


async def test_demo_with_a_huge_prompt_repeats_a_part() -> None:
    answer = await answer_to("word " * 1_000_000)
    assert 100_000 < len(answer.text) < 101_000
    assert answer.usage.prompt == 1_000_001


async def test_demo_answers_as_a_server_does() -> None:
    metadata, *deltas = await deltas_from("Say hello.")
    assert isinstance(metadata, AnswerMetadata) and metadata.model == "demo"
    assert deltas == [
        TextDelta(["Hello"]),
        TextDelta([" there,"]),
        TextDelta([" friend!"]),
        Finished(FinishReason.STOP),
        UsageReported(TokenCounts(3, 3, reasoning=0)),
        DONE,
    ]


async def test_demo_with_the_same_prompt_answers_the_same() -> None:
    assert await deltas_from("Hi", reasoning_effort="low") == await deltas_from("Hi", reasoning_effort="low")
    assert (await deltas_from("Hi"))[0] != (await deltas_from("Ho"))[0]


async def test_demo_in_a_conversation_remembers() -> None:
    assistant = {"role": "assistant", "content": "Nice to meet you, Alice!"}
    system = {"role": "system", "content": "Be brief."}
    answer = await answer_to(system, "My name is Alice.", assistant, system, "What is my name?")
    assert answer.text == "Your name is Alice."


async def test_demo_quotes_the_prompt_and_counts_its_tokens() -> None:
    text = (await answer_to("Tell me of the sea.", {"role": "assistant", "content": "x"}, "And of the sky?")).text
    assert 'You said: "And of the sky?"' in text
    assert "Before that you sent 1 message." in text


async def test_demo_with_an_image_says_so() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert (await answer_to(user([{"type": "text", "text": "What is it?"}, image]))).text.startswith(
        "Thank you for the image."
    )


async def test_demo_calls_the_tool_that_the_prompt_mentions() -> None:
    answer = await answer_to("What is the weather in San Francisco?", tools=[TIME, WEATHER])
    assert answer.call == ("get_weather", {"location": "San Francisco"})
    assert str(answer.calls[0].id).startswith("call_")
    assert (answer.text, answer.reasons) == ("", ["tool_calls"])


async def test_demo_with_a_tool_result_repeats_it() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "Sunny, 21C"}]}
    called = [{"role": "assistant", "tool_calls": [call]}, result]
    for choice in ("auto", "required"):
        answer = await answer_to("Weather in Paris?", *called, tools=[WEATHER], tool_choice=choice)
        assert (answer.text, answer.calls) == ("Here is what I found: Sunny, 21C", [])
    again = await answer_to(
        "Weather in Paris?", *called, {"role": "assistant", "content": "x"}, "And Rome?", tools=[WEATHER]
    )
    assert again.call == ("get_weather", {"location": "Rome"})


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ([PICTURE], "Thank you for the image."),
        ([{"type": "input_text", "text": "A page"}, PICTURE], "Thank you for the image. Here is what I found: A page"),
        ([PICTURE, PICTURE], "Thank you for the 2 images."),
    ],
)
async def test_demo_with_an_image_of_a_tool_answers(output: list[dict[str, str]], text: str) -> None:
    """Through the whole server: an image in a message of the user's would be a prompt, and get the same call again."""
    tools = [{"type": "function", "name": "take_screenshot", "parameters": {"type": "object"}}]
    async with antiphon() as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:

        async def create(**body: Any) -> Any:
            answer = await client.post("/v1/responses", json={"model": "demo", "tools": tools, **body})
            return answer.raise_for_status().json()

        first = await create(input="Take a screenshot.")
        (call,) = first["output"]
        assert call["type"] == "function_call"
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": output}
        (message,) = (await create(previous_response_id=first["id"], input=[result]))["output"]
        assert message["type"] == "message"
        assert message["content"][0]["text"] == text


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("auto", "get_weather"),
        ("required", "get_weather"),
        ({"type": "function", "function": {"name": "get_time"}}, "get_time"),
        ("none", None),
        ({"type": "function", "function": {"name": "unknown"}}, None),
    ],
)
async def test_demo_obeys_the_tool_choice(choice: Any, name: str | None) -> None:
    answer = await answer_to("What is the weather?", tools=[WEATHER, TIME], tool_choice=choice)
    assert (answer.call[0] if answer.calls else None) == name


async def test_demo_with_a_schema_fills_it_in() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 18}}, "required": ["age"]}
    format = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    assert json.loads((await answer_to("A person", response_format=format)).text) == {"age": 18}


async def test_demo_with_an_invalid_schema_refuses() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": ["a"]}}}
    with pytest.raises(InvalidRequest, match="Invalid schema for function 'f'"):
        await answer_to("Go", tools=[tool])


async def test_demo_with_json_object_answers_in_json() -> None:
    answer = await answer_to("Count to 3", response_format={"type": "json_object"})
    assert json.loads(answer.text) == {"answer": "1, 2, 3."}


@pytest.mark.parametrize(("effort", "thinks"), [("low", True), ("none", False), (None, False)])
async def test_demo_with_an_effort_reasons(effort: str | None, thinks: bool) -> None:
    answer = await answer_to("Say hello.", reasoning_effort=effort)
    assert bool(answer.reasoning) is thinks
    assert bool(answer.usage.reasoning) is thinks
    assert answer.text == "Hello there, friend!"


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
async def test_demo_at_the_token_limit_stops(limit: str) -> None:
    answer = await answer_to("Count from 1 to 5.", **{limit: 3})
    assert (answer.text, answer.reasons, answer.usage.completion) == ("1, 2, 3,", ["length"], 3)
    assert (await answer_to("Count from 1 to 5.", **{limit: 5})).reasons == ["stop"]


async def test_demo_call_at_the_token_limit_is_cut_off() -> None:
    tool = {**WEATHER["function"], "parameters": {"properties": {"a": {}, "b": {}, "c": {}}}}  # type: ignore[dict-item]
    answer = await answer_to("Go", tools=[{"type": "function", "function": tool}], max_tokens=2)
    assert answer.reasons == ["length"]
    assert "".join(text for call in answer.calls for text in call.arguments) == '{"a": "example",'


@pytest.mark.parametrize("stop", ["4", ["x", ", 4"], [" 4", "5"], [7, None, "4"]])
async def test_demo_at_a_stop_word_stops(stop: Any) -> None:
    answer = await answer_to("Count from 1 to 5.", stop=stop)
    assert (answer.text.rstrip(", "), answer.reasons) == ("1, 2, 3", ["stop"])


async def test_demo_gives_log_probabilities() -> None:
    answer = await answer_to("Say hello.", logprobs=True, top_logprobs=2)
    tokens = [one for logprobs in answer.logprobs for one in logprobs]
    assert [token["token"] for token in tokens] == answer.pieces
    assert all(bytes(token["bytes"]).decode() == token["token"] for token in tokens)
    assert [len(token["top_logprobs"]) for token in tokens] == [2, 2, 2]
    assert (await answer_to("Say hello.")).logprobs == []


async def test_demo_is_always_healthy() -> None:
    backend = DemoBackend(delay=0.001)
    await backend.check()
    assert [model["id"] for model in await backend.models()] == ["demo"]
    assert backend.profile("any").name == "demo"
    async with backend.open(asking({"messages": [user("Say hello.")]})) as answer:
        assert len([read async for read in reads(answer)]) == 7
    await backend.aclose()


async def test_demo_shows_markdown_and_an_image() -> None:
    assert "```python" in (await answer_to("Show me some Markdown.")).text
    encoded = (await answer_to("Draw a picture.")).text.partition("data:image/png;base64,")[2].partition(")")[0]
    assert base64.b64decode(encoded).startswith(b"\x89PNG")


async def test_demo_asked_to_reason_in_the_prompt_reasons() -> None:
    assert (await answer_to("Think: what is an antiphon?")).reasoning
    assert not (await answer_to("Think: what is an antiphon?", reasoning_effort="none")).reasoning


@pytest.mark.parametrize(
    ("prompt", "status", "code"),
    [
        ("Fail with an error.", 502, "server_error"),
        ("Fail with a 429.", 429, "rate_limit_exceeded"),
        ("fail: context", 400, "context_length_exceeded"),
    ],
)
async def test_demo_asked_to_fail_fails(prompt: str, status: int, code: str) -> None:
    with pytest.raises(BackendError) as raised:
        await answer_to(prompt)
    assert (raised.value.status, raised.value.code) == (status, code)


async def test_demo_asked_to_break_off_breaks_off() -> None:
    pieces = []
    with pytest.raises(BackendError):
        async with DemoBackend().open(asking({"messages": [user("Fail in the middle.")]})) as answer:
            async for chunks in reads(answer):
                pieces += chunks
    assert len(pieces) > 10


def test_first_question_imports_nothing_and_no_http_client_is_imported_for_it() -> None:
    program = (
        "import sys; from app.backends.demo import DemoBackend; "
        "from app.core.request.model_request import ModelRequest; "
        "from app.core.types.request import CreateResponse; "
        "backend = DemoBackend(); request = CreateResponse(model='demo', input='Hi'); before = set(sys.modules); "
        "backend.encode(ModelRequest(request, request.items(), 'demo')); "
        "print(*set(sys.modules) - before, 'httpx' in before)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout == "False\n", ran.stderr
