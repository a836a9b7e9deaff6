"""anthropic for Python, with passthrough or translation."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic, beta_tool
from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, KEY, MODEL, NAME, SUM, URL, WEATHER, WHO, play, scenario, weather

ROOT = URL.removesuffix("/v1")
client = Anthropic(base_url=ROOT, api_key=KEY, max_retries=0)
TOOL: Any = {
    "name": "weather",
    "description": "The weather of a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
ASKED: Any = {"model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": HELLO}]}


class Person(BaseModel):
    """A person."""

    name: str
    born: int


@beta_tool
def runnable_weather(place: str) -> str:
    """The weather of a place.

    Args:
        place: The name of the place.
    """
    return weather(place)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def shown(message: Any) -> Any:
    usage = message.usage
    return {
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "stop": message.stop_reason,
        "usage": [usage.input_tokens, usage.output_tokens],
        "cache": [usage.cache_read_input_tokens, usage.cache_creation_input_tokens],
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


def worked(*, stream: bool) -> Any:
    """Run requested tools until the final answer."""
    messages: list[Any] = [user(WEATHER)]
    while True:
        fields: Any = {"model": MODEL, "max_tokens": 1000, "tools": [TOOL], "messages": messages}
        if stream:
            with client.messages.stream(**fields) as events:
                message: Any = events.get_final_message()
        else:
            message = client.messages.create(**fields)
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return shown(message)
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)} for call in calls]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


@scenario
def tools() -> Any:
    return worked(stream=False)


@scenario
def tools_streamed() -> Any:
    return worked(stream=True)


def running(**options: Any) -> Any:
    fields: Any = {"model": MODEL, "max_tokens": 1000, "messages": [user(WEATHER)], **options}
    return client.beta.messages.tool_runner(tools=[runnable_weather], **fields)


@scenario
def tool_runner() -> Any:
    """The runner asks for a thread first, and sends the whole conversation where there is none."""
    return shown(running().until_done())


@scenario
def tool_runner_streamed() -> Any:
    message = None
    for stream in running(stream=True):
        message = stream.get_final_message()
    return shown(message)


@scenario
def structured() -> Any:
    made = client.messages.parse(model=MODEL, max_tokens=1000, messages=[user(WHO)], output_format=Person)
    assert made.parsed_output
    return made.parsed_output.model_dump()


@scenario
def turns() -> Any:
    first = client.messages.create(model=MODEL, max_tokens=1000, messages=[user(NAME)])
    history: Any = [user(NAME), {"role": "assistant", "content": first.content}, user(ASK_NAME)]
    return shown(client.messages.create(model=MODEL, max_tokens=1000, messages=history))


@scenario
def thinking() -> Any:
    budget: Any = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(model=MODEL, max_tokens=2000, messages=[user(SUM)], thinking=budget) as events:
        message = events.get_final_message()
    thoughts = "".join(block.thinking for block in message.content if block.type == "thinking")
    return {"text": shown(message)["text"], "reasoning": thoughts}


def searched(message: Any) -> Any:
    cited = [one.url for block in message.content if block.type == "text" for one in block.citations or ()]
    return {"text": shown(message)["text"], "cited": cited}


SEARCHING: Any = {
    "model": MODEL,
    "max_tokens": 1000,
    "messages": [user(WHO)],
    "tools": [{"type": "web_search_20250305", "name": "web_search"}],
}


@scenario
def web_search() -> Any:
    return searched(client.messages.create(**SEARCHING))


@scenario
def web_search_streamed() -> Any:
    with client.messages.stream(**SEARCHING) as events:
        return searched(events.get_final_message())


@scenario
def stop_sequence() -> Any:
    with client.messages.stream(**ASKED, stop_sequences=["END"]) as events:
        message = events.get_final_message()
    return {"text": shown(message)["text"], "stop": [message.stop_reason, message.stop_sequence]}


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
