"""LangChain, by its package for Anthropic."""

from __future__ import annotations

from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel
from scenarios import ASK_NAME, HELLO, KEY, MODEL, NAME, SUM, URL, WEATHER, WHO, play, scenario, weather


class Person(BaseModel):
    """A person."""

    name: str
    born: int


@tool("weather")
def ask_weather(place: str) -> str:
    """The weather of a place."""
    return weather(place)


def chat(**options: Any) -> Any:
    root: Any = {"base_url": URL.removesuffix("/v1"), "api_key": KEY}
    return ChatAnthropic(model_name=MODEL, max_tokens=2000, max_retries=0, **root, **options)


def usage(message: AIMessage) -> list[int]:
    assert message.usage_metadata
    return [message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]]


def streamed(chat: Any, messages: Any) -> tuple[list[str], Any]:
    """Return the text pieces and the joined message."""
    pieces, whole = [], None
    for chunk in chat.stream(messages):
        if chunk.text:
            pieces.append(str(chunk.text))
        whole = chunk if whole is None else whole + chunk
    return pieces, whole


def worked(*, stream: bool = False) -> Any:
    """Run requested tools until the final answer."""
    history: list[BaseMessage] = [HumanMessage(WEATHER)]
    bound = chat().bind_tools([ask_weather])
    while True:
        message = streamed(bound, history)[1] if stream else bound.invoke(history)
        history.append(message)
        if not message.tool_calls:
            return {"text": message.text}
        history += [ask_weather.invoke(call) for call in message.tool_calls]


@scenario
def text() -> Any:
    message = chat().invoke(HELLO)
    return {"text": message.text, "usage": usage(message)}


@scenario
def stream() -> Any:
    pieces, message = streamed(chat(), HELLO)
    return {"pieces": pieces, "text": message.text, "usage": usage(message)}


@scenario
def tools() -> Any:
    return worked()


@scenario
def tools_streamed() -> Any:
    return worked(stream=True)


@scenario
def structured() -> Any:
    return chat().with_structured_output(Person, method="json_schema").invoke(WHO).model_dump()


@scenario
def turns() -> Any:
    first = chat().invoke(NAME)
    return {"text": chat().invoke([HumanMessage(NAME), first, HumanMessage(ASK_NAME)]).text}


@scenario
def thinking() -> Any:
    _, message = streamed(chat(thinking={"type": "enabled", "budget_tokens": 1024}), SUM)
    thoughts = [block["reasoning"] for block in message.content_blocks if block["type"] == "reasoning"]
    return {"text": message.text, "reasoning": "".join(thoughts)}


def searched(message: Any) -> Any:
    blocks = [block for block in message.content if isinstance(block, dict)]
    return {"text": message.text, "cited": [one["url"] for block in blocks for one in block.get("citations") or ()]}


def searching() -> Any:
    return chat().bind_tools([{"type": "web_search_20250305", "name": "web_search"}])


@scenario
def web_search() -> Any:
    return searched(searching().invoke(WHO))


@scenario
def web_search_streamed() -> Any:
    return searched(streamed(searching(), WHO)[1])


play()
