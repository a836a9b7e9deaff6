"""LangChain, by its package for OpenAI."""

from __future__ import annotations

import os
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from scenarios import ADD, ASK_NAME, HELLO, MODEL, NAME, SUM, WEATHER, WHO, play, scenario, weather


class Person(BaseModel):
    """A person."""

    name: str
    born: int


@tool("weather")
def ask_weather(place: str) -> str:
    """The weather of a place."""
    return weather(place)


def chat(**options: Any) -> ChatOpenAI:
    responses = os.environ.get("API") != "chat"
    options = {"output_version": os.environ.get("OUTPUT_VERSION"), "use_responses_api": responses, **options}
    return ChatOpenAI(model=MODEL, **options)


def usage(message: AIMessage) -> list[int]:
    assert message.usage_metadata
    return [message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]]


def thoughts(message: AIMessage) -> str:
    return "".join(block["reasoning"] for block in message.content_blocks if block["type"] == "reasoning")


def streamed(chat: Any, messages: Any) -> tuple[list[str], Any]:
    """Return the text pieces and the joined message."""
    pieces, whole = [], None
    for chunk in chat.stream(messages):
        if chunk.text:
            pieces.append(str(chunk.text))
        whole = chunk if whole is None else whole + chunk
    return pieces, whole


def worked(chat: Any, *, stream: bool = False) -> Any:
    """Run requested tools until the final answer."""
    history: list[BaseMessage] = [HumanMessage(WEATHER)]
    bound = chat.bind_tools([ask_weather])
    while True:
        message = streamed(bound, history)[1] if stream else bound.invoke(history)
        history.append(message)
        if not message.tool_calls:
            return history
        history += [ask_weather.invoke(call) for call in message.tool_calls]


@scenario
def text() -> Any:
    message = chat().invoke(HELLO)
    return {"text": message.text, "usage": usage(message)}


@scenario
def stream() -> Any:
    pieces, message = streamed(chat(stream_usage=True), HELLO)
    return {"pieces": pieces, "text": message.text, "usage": usage(message)}


@scenario
def tools() -> Any:
    return {"text": worked(chat())[-1].text}


@scenario
def tools_streamed() -> Any:
    return {"text": worked(chat(), stream=True)[-1].text}


@scenario
def tools_continued() -> Any:
    """The server stores the conversation: the client only sends results."""
    return {"text": worked(chat(use_previous_response_id=True))[-1].text}


@scenario
def hosted_by_chat() -> Any:
    """A hosted tool; only its answer reaches the client."""
    message = chat().bind(tools=[{"type": "lab"}]).invoke(HELLO)
    return {"text": message.text, "calls": message.tool_calls}


@scenario
def structured() -> Any:
    return chat().with_structured_output(Person).invoke(WHO).model_dump()


@scenario
def structured_streamed() -> Any:
    return list(chat().with_structured_output(Person).stream(WHO))[-1].model_dump()


@scenario
def structured_by_a_function() -> Any:
    return chat().with_structured_output(Person, method="function_calling").invoke(WHO).model_dump()


@scenario
def turns() -> Any:
    model = chat(use_previous_response_id=True)
    first = model.invoke(NAME)
    return {"text": model.invoke([HumanMessage(NAME), first, HumanMessage(ASK_NAME)]).text}


@scenario
def turns_replayed() -> Any:
    first = chat().invoke(NAME)
    return {"text": chat().invoke([HumanMessage(NAME), first, HumanMessage(ASK_NAME)]).text}


@scenario
def thinking() -> Any:
    message = chat(reasoning={"summary": "auto"}).invoke(SUM)
    return {"text": message.text, "reasoning": thoughts(message)}


@scenario
def thinking_streamed() -> Any:
    _, message = streamed(chat(reasoning={"summary": "auto"}), SUM)
    return {"text": message.text, "reasoning": thoughts(message)}


@scenario
def thinking_unasked() -> Any:
    message = chat().invoke(SUM)
    return {"text": message.text, "reasoning": thoughts(message)}


@scenario
def thinking_sealed() -> Any:
    model = chat(store=False, reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"])
    history = worked(model)
    sealed = [block for block in history[1].content if block["type"] == "reasoning"]
    return {"text": history[-1].text, "sealed": "encrypted_content" in str(sealed)}


LAB = {"type": "mcp", "server_label": "lab", "require_approval": "never"}
ASKING = {**LAB, "require_approval": "always"}


def blocks(message: Any, type: str) -> list[Any]:
    """The message's blocks with this type, in the old or the standard form."""
    found = [block for block in message.content if isinstance(block, dict)]
    found = [block.get("value", block) if block["type"] == "non_standard" else block for block in found]
    return [block for block in found if block["type"] == type]


def hosted_results(message: Any) -> list[Any]:
    results = (block.get("output") for block in blocks(message, "server_tool_result"))
    standard = [output for output in results if isinstance(output, str)]
    return standard or [block["output"] for block in blocks(message, "mcp_call")]


@scenario
def hosted() -> Any:
    message = chat().bind_tools([LAB]).invoke(ADD)
    return {"text": message.text, "results": hosted_results(message)}


@scenario
def hosted_streamed() -> Any:
    _, message = streamed(chat().bind_tools([LAB]), ADD)
    return {"text": message.text, "results": hosted_results(message)}


def decided(stream: bool, approve: bool) -> Any:
    """Send a request, and decide on its approval requests."""
    bound = chat().bind_tools([ASKING])
    first = streamed(bound, ADD)[1] if stream else bound.invoke(ADD)
    decisions: Any = [
        {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}
        for request in blocks(first, "mcp_approval_request")
    ]
    options = {"previous_response_id": first.response_metadata["id"]}
    second = bound.invoke([HumanMessage(content=decisions)], **options)
    return {"text": second.text, "results": hosted_results(second)}


@scenario
def hosted_approved() -> Any:
    return decided(stream=False, approve=True)


@scenario
def hosted_approved_streamed() -> Any:
    return decided(stream=True, approve=True)


@scenario
def hosted_rejected() -> Any:
    return decided(stream=False, approve=False)


@scenario
def hosted_turns() -> Any:
    bound = chat().bind_tools([LAB])
    first = bound.invoke(ADD)
    second = bound.invoke([HumanMessage(ASK_NAME)], previous_response_id=first.response_metadata["id"])
    return {"text": second.text, "results": hosted_results(second)}


@scenario
def hosted_replayed() -> Any:
    bound = chat().bind_tools([LAB])
    second = bound.invoke([HumanMessage(ADD), bound.invoke(ADD), HumanMessage(ASK_NAME)])
    return {"text": second.text, "results": hosted_results(second)}


def searching() -> Any:
    tool = {"type": "file_search", "vector_store_ids": [os.environ["STORE"]]}
    return chat(include=["file_search_call.results"]).bind_tools([tool])


def searched(message: Any) -> Any:
    """File search results and citations, in the old or the standard form."""
    calls = [
        *blocks(message, "file_search_call"),
        *(block["output"] for block in blocks(message, "server_tool_result")),
    ]
    results = [one for call in calls for one in (call if isinstance(call, list) else call.get("results") or ())]
    annotations = [one for block in blocks(message, "text") for one in block.get("annotations", ())]
    cited = [one.get("filename") or one.get("title") for one in annotations]
    return {"text": message.text, "found": [one["filename"] for one in results], "cited": cited}


@scenario
def file_search() -> Any:
    return searched(searching().invoke(WHO))


@scenario
def file_search_streamed() -> Any:
    _, message = streamed(searching(), WHO)
    return searched(message)


def web_searched(message: Any) -> Any:
    """Web citations, in the old or the standard form."""
    annotations = [one for block in blocks(message, "text") for one in block.get("annotations", ())]
    return {"text": message.text, "cited": [one["url"] for one in annotations]}


@scenario
def web_search() -> Any:
    return web_searched(chat().bind_tools([{"type": "web_search"}]).invoke(WHO))


@scenario
def web_search_streamed() -> Any:
    _, message = streamed(chat().bind_tools([{"type": "web_search"}]), WHO)
    return web_searched(message)


CODE = {"type": "code_interpreter", "container": {"type": "auto"}}


@scenario
def code() -> Any:
    return {"text": chat().bind_tools([CODE]).invoke(SUM).text}


@scenario
def code_streamed() -> Any:
    return {"text": streamed(chat().bind_tools([CODE]), SUM)[1].text}


@scenario
def turns_managed() -> Any:
    """The server compacts by itself."""
    model = chat(context_management=[{"type": "compaction", "compact_threshold": 200}])
    first = model.invoke(NAME)
    second = model.invoke([HumanMessage(NAME), first, HumanMessage(ASK_NAME)])
    kinds = [block.get("value", block)["type"] if "value" in block else block["type"] for block in second.content]
    return {"text": second.text, "items": ["message" if kind == "text" else kind for kind in kinds]}


play()
