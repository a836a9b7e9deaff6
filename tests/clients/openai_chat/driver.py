"""openai for Python, by chat completions."""

from __future__ import annotations

from typing import Any

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel
from scenarios import HELLO, MODEL, WEATHER, WHO, play, scenario, weather


class Person(BaseModel):
    name: str
    born: int


class Weather(BaseModel):
    """The weather of a place."""

    place: str


client = OpenAI(max_retries=0)
TOOLS: list[Any] = [pydantic_function_tool(Weather, name="weather")]


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def streamed(**fields: Any) -> tuple[list[str], Any]:
    """Return the text pieces and the completion accumulated by the SDK."""
    pieces = []
    with client.chat.completions.stream(model=MODEL, stream_options={"include_usage": True}, **fields) as stream:
        for event in stream:
            if event.type == "content.delta" and event.delta:
                pieces.append(event.delta)
        return pieces, stream.get_final_completion()


def shown(completion: Any) -> dict[str, Any]:
    (choice,) = completion.choices
    counts = completion.usage
    counted = counts.total_tokens == counts.prompt_tokens + counts.completion_tokens > 0
    return {"text": choice.message.content, "finish": choice.finish_reason, "counted": counted}


def results(message: Any) -> list[Any]:
    """Run a message's calls with the arguments parsed by the SDK."""
    return [
        {"role": "tool", "tool_call_id": call.id, "content": weather(call.function.parsed_arguments.place)}
        for call in message.tool_calls
    ]


def worked(ask: Any) -> Any:
    """Run requested tools until the final answer."""
    messages = user(WEATHER)
    while True:
        message = ask(messages=messages, tools=TOOLS).choices[0].message
        if not message.tool_calls:
            return {"text": message.content}
        messages += [message, *results(message)]


@scenario
def text() -> Any:
    return shown(client.chat.completions.create(model=MODEL, messages=user(HELLO)))


@scenario
def stream() -> Any:
    pieces, completion = streamed(messages=user(HELLO))
    return {"pieces": pieces, **shown(completion)}


@scenario
def tools() -> Any:
    return worked(lambda **fields: client.chat.completions.parse(model=MODEL, **fields))


@scenario
def tools_streamed() -> Any:
    return worked(lambda **fields: streamed(**fields)[1])


@scenario
def structured() -> Any:
    completion = client.chat.completions.parse(model=MODEL, messages=user(WHO), response_format=Person)
    person = completion.choices[0].message.parsed
    assert person
    return person.model_dump()


@scenario
def hosted_by_chat() -> Any:
    """A hosted tool; only its answer reaches the client."""
    tool: Any = {"type": "lab"}
    completion = client.chat.completions.create(model=MODEL, messages=user(HELLO), tools=[tool])
    return {**shown(completion), "calls": completion.choices[0].message.tool_calls}


if __name__ == "__main__":
    play()
