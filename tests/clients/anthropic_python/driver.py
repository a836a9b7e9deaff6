"""anthropic for Python, before a server that passes Anthropic's API through."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic
from scenarios import HELLO, KEY, MODEL, URL, WEATHER, play, scenario, weather

ROOT = URL.removesuffix("/v1")
client = Anthropic(base_url=ROOT, api_key=KEY, max_retries=0)
TOOL: Any = {
    "name": "weather",
    "description": "The weather of a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
ASKED: Any = {"model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": HELLO}]}


def shown(message: Any) -> Any:
    usage = message.usage
    return {
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "stop": message.stop_reason,
        "usage": [
            usage.input_tokens,
            usage.cache_read_input_tokens,
            usage.cache_creation_input_tokens,
            usage.output_tokens,
        ],
    }


@scenario
def text() -> Any:
    return shown(client.messages.create(**ASKED))


@scenario
def stream() -> Any:
    with client.messages.stream(**ASKED) as events:
        pieces = list(events.text_stream)
        return {**shown(events.get_final_message()), "pieces": pieces}


@scenario
def bearer() -> Any:
    return shown(Anthropic(base_url=ROOT, auth_token=KEY, max_retries=0).messages.create(**ASKED))


@scenario
def tools() -> Any:
    messages: list[Any] = [{"role": "user", "content": WEATHER}]
    while True:
        asked: Any = {"model": MODEL, "max_tokens": 1000, "tools": [TOOL], "messages": messages}
        with client.messages.stream(**asked) as events:
            message = events.get_final_message()
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return shown(message)
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)}  # type: ignore[arg-type]
            for call in calls
        ]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


@scenario
def count() -> Any:
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED["messages"], tools=[TOOL])
    return {"tokens": counted.input_tokens}


@scenario
def models() -> Any:
    return [
        {"id": model.id, "name": model.display_name, "year": model.created_at.year} for model in client.models.list()
    ]


@scenario
def retried() -> Any:
    return shown(client.with_options(max_retries=2).messages.create(**ASKED))


@scenario
def refused() -> Any:
    try:
        client.messages.create(**ASKED)
    except Exception as error:
        named = getattr(error, "request_id", None)
        return {"kind": type(error).__name__, "body": getattr(error, "body", None), "request_id": named}
    return None


@scenario
def broken() -> Any:
    pieces: list[str] = []
    try:
        with client.messages.stream(**ASKED) as events:
            for piece in events.text_stream:
                pieces.append(piece)
    except Exception as error:
        return {"kind": type(error).__name__, "body": getattr(error, "body", None), "pieces": pieces}
    return {"pieces": pieces}


play()
