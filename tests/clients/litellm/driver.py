"""LiteLLM as a client: its function for Responses, and its function for chat, which asks for a response underneath."""

from __future__ import annotations

import json
from typing import Any

import litellm
from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, MODEL, NAME, SUM, WEATHER, WHO, play, scenario, weather

# Unknown models must be registered as streaming.
litellm.register_model({MODEL: {"supports_native_streaming": True, "litellm_provider": "openai"}})
litellm.telemetry = False


class Person(BaseModel):
    name: str
    born: int


SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOL = {"type": "function", "name": "weather", "description": "The weather of a place.", "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": {key: value for key, value in TOOL.items() if key != "type"}}


def ask(given: Any, **options: Any) -> Any:
    return litellm.responses(model=f"openai/{MODEL}", input=given, **options)


def chat(messages: list[Any], **options: Any) -> Any:
    return litellm.completion(model=f"openai/responses/{MODEL}", messages=messages, **options)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text_of(response: Any) -> str:
    return "".join(part.text for item in response.output if item.type == "message" for part in item.content)


def usage(response: Any) -> list[int]:
    return [response.usage.input_tokens, response.usage.output_tokens]


def thoughts(response: Any) -> str:
    (item,) = (item for item in response.output if item.type == "reasoning")
    return "".join(part.text for part in [*item.summary, *(item.content or [])])


def final(events: Any, kind: str = "") -> tuple[list[str], Any]:
    pieces = []
    for event in events:
        if event.type == kind:
            pieces.append(event.delta)
    return pieces, event.response


def results(response: Any) -> list[Any]:
    return [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": weather(**json.loads(item.arguments)),
        }
        for item in response.output
        if item.type == "function_call"
    ]


@scenario
def text() -> Any:
    response = ask(HELLO)
    return {"text": text_of(response), "usage": usage(response)}


@scenario
def stream() -> Any:
    pieces, response = final(ask(HELLO, stream=True), "response.output_text.delta")
    return {"pieces": pieces, "text": text_of(response), "usage": usage(response)}


@scenario
def tools() -> Any:
    first = ask(WEATHER, tools=[TOOL])
    return {"text": text_of(ask(results(first), tools=[TOOL], previous_response_id=first.id))}


@scenario
def tools_streamed() -> Any:
    """By chat, where everything goes back each time."""
    messages = [user(WEATHER)]
    while True:
        chunks = list(chat(messages, tools=[CHAT_TOOL], stream=True))
        message = litellm.stream_chunk_builder(chunks).choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return {"text": message.content}
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


@scenario
def structured() -> Any:
    return json.loads(text_of(ask(WHO, text_format=Person)))


@scenario
def structured_streamed() -> Any:
    chunks = list(chat([user(WHO)], response_format=Person, stream=True))
    return json.loads(litellm.stream_chunk_builder(chunks).choices[0].message.content)


@scenario
def turns() -> Any:
    first = ask(NAME)
    return {"text": text_of(ask(ASK_NAME, previous_response_id=first.id))}


@scenario
def turns_replayed() -> Any:
    first = chat([user(NAME)]).choices[0].message
    return {"text": chat([user(NAME), first.model_dump(), user(ASK_NAME)]).choices[0].message.content}


@scenario
def thinking() -> Any:
    response = ask(SUM)
    return {"text": text_of(response), "reasoning": thoughts(response)}


@scenario
def thinking_streamed() -> Any:
    _, response = final(ask(SUM, stream=True))
    return {"text": text_of(response), "reasoning": thoughts(response)}


@scenario
def thinking_in_chat() -> Any:
    message = chat([user(SUM)]).choices[0].message
    return {"text": message.content, "reasoning": message.reasoning_content}


play()
