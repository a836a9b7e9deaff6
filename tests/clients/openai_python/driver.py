"""openai for Python, versions 3 and 2."""

from __future__ import annotations

import json
import os
from typing import Any

from openai import APIError, AsyncOpenAI, OpenAI, pydantic_function_tool
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter, ValidationError
from scenarios import ADD, ASK_NAME, HELLO, MODEL, NAME, SUM, WEATHER, WHO, play, scenario, weather


class Person(BaseModel):
    name: str
    born: int


class Weather(BaseModel):
    """The weather of a place."""

    place: str


client = OpenAI()
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    "strict": False,
}


def usage(response: Any) -> list[int]:
    return [response.usage.input_tokens, response.usage.output_tokens]


def results(response: Any) -> list[dict[str, Any]]:
    """Run a response's calls."""
    return [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": weather(**json.loads(item.arguments)),
        }
        for item in response.output
        if item.type == "function_call"
    ]


def reasoning(response: Any) -> str:
    (item,) = (item for item in response.output if item.type == "reasoning")
    return "".join(part.text for part in item.summary or item.content)


@scenario
def text() -> Any:
    response = client.responses.create(model=MODEL, input=HELLO)
    return {"text": response.output_text, "usage": usage(response), "status": response.status}


@scenario
def stream() -> Any:
    pieces, last = [], None
    for event in client.responses.create(model=MODEL, input=HELLO, stream=True):
        if event.type == "response.output_text.delta":
            pieces.append(event.delta)
        last = event
    return {"pieces": pieces, "text": last.response.output_text, "usage": usage(last.response)}


@scenario
def tools() -> Any:
    first = client.responses.create(model=MODEL, input=WEATHER, tools=[TOOL])
    answer = client.responses.create(model=MODEL, input=results(first), tools=[TOOL], previous_response_id=first.id)
    return {"text": answer.output_text}


@scenario
def tools_streamed() -> Any:
    items: list[Any] = [{"role": "user", "content": WEATHER}]
    with client.responses.stream(model=MODEL, input=items, tools=[TOOL]) as events:
        pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        final = events.get_final_response()
    assert "".join(pieces) == "".join(item.arguments for item in final.output)
    items += [*final.output, *results(final)]
    with client.responses.stream(model=MODEL, input=items, tools=[TOOL]) as events:
        return {"text": events.get_final_response().output_text}


@scenario
def structured() -> Any:
    return client.responses.parse(model=MODEL, input=WHO, text_format=Person).output_parsed.model_dump()


@scenario
def structured_streamed() -> Any:
    with client.responses.stream(model=MODEL, input=WHO, text_format=Person) as events:
        return events.get_final_response().output_parsed.model_dump()


@scenario
def turns() -> Any:
    first = client.responses.create(model=MODEL, input=NAME)
    return {"text": client.responses.create(model=MODEL, input=ASK_NAME, previous_response_id=first.id).output_text}


@scenario
def turns_replayed() -> Any:
    """As people do it: everything back as it came, with whatever the client has added to it."""
    first = client.responses.parse(model=MODEL, input=NAME)
    items = [{"role": "user", "content": NAME}, *first.model_dump()["output"], {"role": "user", "content": ASK_NAME}]
    return {"text": client.responses.create(model=MODEL, input=items).output_text}


@scenario
def thinking() -> Any:
    response = client.responses.create(model=MODEL, input=SUM)
    return {"text": response.output_text, "reasoning": reasoning(response)}


@scenario
def thinking_streamed() -> Any:
    with client.responses.stream(model=MODEL, input=SUM) as events:
        pieces = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        response = events.get_final_response()
    assert "".join(pieces) == reasoning(response)
    return {"text": response.output_text, "reasoning": reasoning(response)}


@scenario
def thinking_summarized() -> Any:
    with client.responses.stream(model=MODEL, input=SUM, reasoning={"summary": "auto"}) as events:
        pieces = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
        response = events.get_final_response()
    return {"text": response.output_text, "reasoning": reasoning(response), "pieces": pieces}


@scenario
def thinking_sealed() -> Any:
    """Nothing is stored: the reasoning is sent back with its call."""
    given: dict[str, Any] = {
        "model": MODEL,
        "tools": [TOOL],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    items: list[Any] = [{"role": "user", "content": WEATHER}]
    first = client.responses.create(input=items, **given)
    sealed = [item.encrypted_content for item in first.output if item.type == "reasoning"]
    answer = client.responses.create(input=[*items, *first.output, *results(first)], **given)
    return {"text": answer.output_text, "sealed": all(sealed) and len(sealed) == 1}


@scenario
async def asynchronous() -> Any:
    async with AsyncOpenAI() as client:
        async with client.responses.stream(model=MODEL, input=HELLO) as events:
            return {"text": (await events.get_final_response()).output_text}


@scenario
def function_tool() -> Any:
    """A tool from a pydantic model; its arguments are parsed as this model."""
    response = client.responses.parse(model=MODEL, input=WEATHER, tools=[pydantic_function_tool(Weather)])
    return [item.parsed_arguments.place for item in response.output]


@scenario
def stored() -> Any:
    """All operations on a stored response."""
    made = client.responses.create(model=MODEL, input=[{"role": "user", "content": text} for text in ("a", "b", "c")])
    found = client.responses.retrieve(made.id)
    listed = [item.content[0].text for item in client.responses.input_items.list(made.id, limit=2, order="asc")]
    client.responses.delete(made.id)
    try:
        client.responses.retrieve(made.id)
    except Exception as error:
        gone = type(error).__name__
    return {"same": made.output == found.output, "text": found.output_text, "input": listed, "then": gone}


@scenario
def background() -> Any:
    """Follow a background response, disconnect, and resume."""
    with client.responses.stream(model=MODEL, input=HELLO, background=True) as events:
        for event in events:
            id = event.response.id
            if event.type == "response.in_progress":
                break
    with client.responses.stream(response_id=id, starting_after=event.sequence_number) as events:
        numbers = [event.sequence_number for event in events]
        final = events.get_final_response()
    rest = [event.sequence_number for event in client.responses.retrieve(id, stream=True, starting_after=2)]
    return {
        "text": final.output_text,
        "whole": numbers == list(range(numbers[0], numbers[0] + len(numbers))),
        "first": numbers[0] - event.sequence_number,
        "rest": rest[0],
        "status": client.responses.retrieve(id).status,
    }


@scenario
def cancelled() -> Any:
    made = client.responses.create(model=MODEL, input=HELLO, background=True)
    return {"first": made.status, "then": client.responses.cancel(made.id).status}


@scenario
def counted() -> Any:
    return client.responses.input_tokens.count(model=MODEL, input=HELLO).input_tokens


@scenario
def compacted() -> Any:
    history: list[Any] = [{"role": "user", "content": NAME}]
    compacted = client.responses.compact(model=MODEL, input=history)
    items = [*compacted.output, {"role": "user", "content": ASK_NAME}]
    answer = client.responses.create(model=MODEL, input=items)
    return {"object": compacted.object, "last": compacted.output[-1].type, "text": answer.output_text}


@scenario
def conversation() -> Any:
    conversation = client.conversations.create(metadata={"topic": "names"})
    client.conversations.items.create(conversation.id, items=[{"role": "user", "content": NAME}])
    answer = client.responses.create(model=MODEL, input=ASK_NAME, conversation=conversation.id)
    items = client.conversations.items.list(conversation.id, order="asc")
    updated = client.conversations.update(conversation.id, metadata={"topic": "Ada"})
    again = client.conversations.retrieve(conversation.id)
    return {
        "text": answer.output_text,
        "items": [item.content[0].text for item in items],
        "topics": [conversation.metadata["topic"], updated.metadata["topic"], again.metadata["topic"]],
        "deleted": client.conversations.delete(conversation.id).deleted,
    }


@scenario
def socket() -> Any:
    """Two unstored turns on one connection."""
    texts, previous = [], None
    with client.responses.connect() as connection:
        for prompt in (NAME, ASK_NAME):
            connection.response.create(model=MODEL, input=prompt, store=False, previous_response_id=previous)
            for event in connection:
                if event.type == "response.completed":
                    texts.append(event.response.output_text)
                    previous = event.response.id
                    break
    return texts


@scenario
async def socket_asynchronous() -> Any:
    async with AsyncOpenAI().responses.connect() as connection:
        await connection.response.create(model=MODEL, input=HELLO)
        async for event in connection:
            if event.type == "response.completed":
                return event.response.output_text


@scenario
def models() -> Any:
    listed = [model.id for model in client.models.list()]
    return {"listed": listed, "found": client.models.retrieve(listed[0]).id}


@scenario
def cut_off() -> Any:
    response = client.responses.create(model=MODEL, input=HELLO, max_output_tokens=16)
    return {"status": response.status, "reason": response.incomplete_details.reason, "text": response.output_text}


@scenario
def events() -> Any:
    """Many streams: each event is checked against its class, then all are accumulated."""
    counts: list[Any] = []
    wholes: list[Any] = []
    unknown: list[Any] = []
    for _ in range(int(os.environ["COUNT"])):
        count = 0
        try:
            for event in client.responses.create(model=MODEL, input=HELLO, stream=True):
                count += 1
                unknown += _strange(event)
        except APIError as error:
            count = error.message
        counts.append(count)
    for _ in range(int(os.environ["COUNT"])):
        try:
            with client.responses.stream(model=MODEL, input=HELLO) as stream:
                *_, last = stream
                # The helper only accepts one successful end.
                response = last.response if last.type == "response.incomplete" else stream.get_final_response()
                wholes.append([_plain(item) for item in response.output])
        except APIError as error:
            wholes.append(error.message)
    return {"counts": counts, "wholes": wholes, "unknown": unknown}


def _strange(event: Any) -> list[str]:
    """Return differences between an event and its class, or a missing class."""
    try:
        known = EVENTS.validate_python(event.to_dict(mode="json"))
    except ValidationError as error:
        return [f"{event.type}: {error}"]
    return [] if type(known) is type(event) else [f"{event.type} is taken for {type(event).__name__}"]


def _plain(item: Any) -> Any:
    """Return an item as received, without the helper's additions."""
    plain = item.to_dict(mode="json")
    plain.pop("parsed_arguments", None)
    for part in plain.get("content") or ():
        part.pop("parsed", None)
    return plain


MCP: dict[str, Any] = {"type": "mcp", "server_label": "lab", "require_approval": "never"}
ASKING = {**MCP, "require_approval": "always"}


def hosted_results(response: Any) -> list[Any]:
    return [item.output for item in response.output if item.type == "mcp_call"]


def decided(response: Any, approve: bool) -> list[Any]:
    """Decide on a response's approval requests."""
    requests = [item.id for item in response.output if item.type == "mcp_approval_request"]
    decision = {"type": "mcp_approval_response", "approve": approve}
    return [{**decision, "approval_request_id": request} for request in requests]


@scenario
def hosted() -> Any:
    response = client.responses.create(model=MODEL, input=ADD, tools=[MCP])
    return {"text": response.output_text, "results": hosted_results(response)}


@scenario
def hosted_streamed() -> Any:
    with client.responses.stream(model=MODEL, input=ADD, tools=[MCP]) as stream:
        types = [event.type for event in stream if event.type.startswith("response.mcp_call")]
        response = stream.get_final_response()
    assert types[0] == "response.mcp_call.in_progress" and types[-1] == "response.mcp_call.completed"
    return {"text": response.output_text, "results": hosted_results(response)}


@scenario
def hosted_approved() -> Any:
    first = client.responses.create(model=MODEL, input=ADD, tools=[ASKING])
    second = client.responses.create(
        model=MODEL, input=decided(first, True), tools=[ASKING], previous_response_id=first.id
    )
    return {"text": second.output_text, "results": hosted_results(second)}


@scenario
def hosted_approved_streamed() -> Any:
    with client.responses.stream(model=MODEL, input=ADD, tools=[ASKING]) as stream:
        first = stream.get_final_response()
    decisions = decided(first, True)
    with client.responses.stream(model=MODEL, input=decisions, tools=[ASKING], previous_response_id=first.id) as stream:
        second = stream.get_final_response()
    return {"text": second.output_text, "results": hosted_results(second)}


@scenario
def hosted_approved_replayed() -> Any:
    """Nothing is stored: the conversation is sent with the decision."""
    options: dict[str, Any] = {"model": MODEL, "tools": [ASKING], "store": False}
    first = client.responses.create(input=ADD, **options)
    output_items = [item.model_dump(exclude_none=True) for item in first.output]
    second = client.responses.create(
        input=[{"role": "user", "content": ADD}, *output_items, *decided(first, True)], **options
    )
    return {"text": second.output_text, "results": hosted_results(second)}


@scenario
def hosted_rejected() -> Any:
    first = client.responses.create(model=MODEL, input=ADD, tools=[ASKING])
    second = client.responses.create(
        model=MODEL, input=decided(first, False), tools=[ASKING], previous_response_id=first.id
    )
    return {"text": second.output_text, "results": hosted_results(second)}


@scenario
def hosted_turns() -> Any:
    first = client.responses.create(model=MODEL, input=ADD, tools=[MCP])
    second = client.responses.create(model=MODEL, input=ASK_NAME, tools=[MCP], previous_response_id=first.id)
    return {"text": second.output_text, "items": [item.type for item in second.output]}


@scenario
def hosted_replayed() -> Any:
    first = client.responses.create(model=MODEL, input=ADD, tools=[MCP], store=False)
    output_items = [item.model_dump(exclude_none=True) for item in first.output]
    turns: Any = [{"role": "user", "content": ADD}, *output_items, {"role": "user", "content": ASK_NAME}]
    second = client.responses.create(model=MODEL, input=turns, tools=[MCP], store=False)
    return {"text": second.output_text, "items": [item.type for item in second.output]}


play()
