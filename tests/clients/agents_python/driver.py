"""The OpenAI Agents SDK for Python."""

from __future__ import annotations

import os
from typing import Any

from agents import (
    Agent,
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    Runner,
    SQLiteSession,
    WebSearchTool,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from agents.memory import OpenAIResponsesCompactionSession
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel
from scenarios import ADD, ASK_NAME, HELLO, MODEL, NAME, SUM, WEATHER, WHO, play, scenario, weather

client = AsyncOpenAI()
set_default_openai_client(client)
set_tracing_disabled(True)
model = OpenAIResponsesModel(model=MODEL, openai_client=client)


class Person(BaseModel):
    name: str
    born: int


@function_tool(name_override="weather")
def ask_weather(place: str) -> str:
    """The weather of a place."""
    return weather(place)


def agent(**options: Any) -> Agent[Any]:
    return Agent(**{"name": "helper", "model": model, **options})


def usage(result: Any) -> list[int]:
    usage = result.context_wrapper.usage
    return [usage.input_tokens, usage.output_tokens]


def thoughts(result: Any) -> str:
    (item,) = (item.raw_item for item in result.new_items if item.type == "reasoning_item")
    return "".join(part.text for part in item.summary or item.content)


async def streamed(agent: Agent[Any], prompt: Any, kind: str = "", **options: Any) -> tuple[list[str], Any]:
    """Return the text pieces in events with this type, and the result."""
    result = Runner.run_streamed(agent, prompt, **options)
    pieces = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == kind
    ]
    return pieces, result


@scenario
async def text() -> Any:
    result = await Runner.run(agent(), HELLO)
    return {"text": result.final_output, "usage": usage(result)}


@scenario
async def stream() -> Any:
    pieces, result = await streamed(agent(), HELLO, "response.output_text.delta")
    return {"pieces": pieces, "text": result.final_output, "usage": usage(result)}


@scenario
async def tools() -> Any:
    return {"text": (await Runner.run(agent(tools=[ask_weather]), WEATHER)).final_output}


@scenario
async def tools_streamed() -> Any:
    _, result = await streamed(agent(tools=[ask_weather]), WEATHER)
    return {"text": result.final_output}


@scenario
async def tools_continued() -> Any:
    """The server stores the conversation: the client only sends results."""
    result = await Runner.run(agent(tools=[ask_weather]), WEATHER, auto_previous_response_id=True)
    return {"text": result.final_output}


@scenario
async def structured() -> Any:
    return (await Runner.run(agent(output_type=Person), WHO)).final_output.model_dump()


@scenario
async def structured_streamed() -> Any:
    _, result = await streamed(agent(output_type=Person), WHO)
    return result.final_output.model_dump()


@scenario
async def turns() -> Any:
    first = await Runner.run(agent(), NAME)
    second = await Runner.run(agent(), ASK_NAME, previous_response_id=first.last_response_id)
    return {"text": second.final_output}


@scenario
async def turns_replayed() -> Any:
    first = await Runner.run(agent(), NAME)
    second = await Runner.run(agent(), [*first.to_input_list(), {"role": "user", "content": ASK_NAME}])
    return {"text": second.final_output}


@scenario
async def turns_in_a_session() -> Any:
    session = SQLiteSession("a")
    await Runner.run(agent(), NAME, session=session)
    return {"text": (await Runner.run(agent(), ASK_NAME, session=session)).final_output}


@scenario
async def turns_in_a_conversation() -> Any:
    session = OpenAIConversationsSession(openai_client=client)
    await Runner.run(agent(), NAME, session=session)
    result = await Runner.run(agent(), ASK_NAME, session=session)
    items = await session.get_items()
    await session.clear_session()
    return {"text": result.final_output, "items": [item["content"][0]["text"] for item in items]}


@scenario
async def turns_compacted() -> Any:
    """The session requests a compaction after each turn."""
    session = OpenAIResponsesCompactionSession(
        "a", SQLiteSession("a"), client=client, model=MODEL, should_trigger_compaction=lambda context: True
    )
    await Runner.run(agent(), NAME, session=session)
    kept = [item.get("type", "message") for item in await session.get_items()]
    return {"text": (await Runner.run(agent(), ASK_NAME, session=session)).final_output, "kept": kept[-1]}


@scenario
async def turns_on_a_socket() -> Any:
    over_socket = agent(model=OpenAIResponsesWSModel(model=MODEL, openai_client=client), tools=[ask_weather])
    _, result = await streamed(over_socket, WEATHER)
    return {"text": result.final_output}


@scenario
async def handoff() -> Any:
    expert = agent(name="expert", instructions="You know the weather.")
    result = await Runner.run(agent(handoffs=[expert]), WEATHER)
    return {"text": result.final_output, "by": result.last_agent.name}


@scenario
async def thinking() -> Any:
    result = await Runner.run(agent(), SUM)
    return {"text": result.final_output, "reasoning": thoughts(result)}


@scenario
async def thinking_streamed() -> Any:
    pieces, result = await streamed(agent(), SUM, "response.reasoning_text.delta")
    assert "".join(pieces) == thoughts(result)
    return {"text": result.final_output, "reasoning": thoughts(result)}


@scenario
async def thinking_sealed() -> Any:
    settings = ModelSettings(
        store=False, reasoning=Reasoning(effort="low", summary="auto"), response_include=["reasoning.encrypted_content"]
    )
    result = await Runner.run(agent(tools=[ask_weather], model_settings=settings), WEATHER)
    (item,) = (item.raw_item for item in result.new_items if item.type == "reasoning_item")
    return {"text": result.final_output, "sealed": bool(item.encrypted_content)}


def lab(approve: bool | None = None) -> HostedMCPTool:
    """An MCP server called by the server; `approve` is the user's decision about each call."""
    config: Any = {"type": "mcp", "server_label": "lab"}
    if approve is None:
        return HostedMCPTool(tool_config={**config, "require_approval": "never"})
    return HostedMCPTool(
        tool_config={**config, "require_approval": "always"},
        on_approval_request=lambda request: {"approve": approve, "reason": "Because."},
    )


def hosted_results(result: Any) -> list[Any]:
    calls = (item.raw_item for item in result.new_items if item.type == "tool_call_item")
    return [call.output for call in calls if call.type == "mcp_call"]


@scenario
async def hosted() -> Any:
    result = await Runner.run(agent(tools=[lab()]), ADD)
    return {"text": result.final_output, "results": hosted_results(result)}


@scenario
async def hosted_streamed() -> Any:
    _, result = await streamed(agent(tools=[lab()]), ADD)
    return {"text": result.final_output, "results": hosted_results(result)}


@scenario
async def hosted_approved() -> Any:
    result = await Runner.run(agent(tools=[lab(True)]), ADD)
    return {"text": result.final_output, "results": hosted_results(result)}


@scenario
async def hosted_approved_streamed() -> Any:
    _, result = await streamed(agent(tools=[lab(True)]), ADD)
    return {"text": result.final_output, "results": hosted_results(result)}


@scenario
async def hosted_rejected() -> Any:
    result = await Runner.run(agent(tools=[lab(False)]), ADD)
    return {"text": result.final_output, "results": hosted_results(result)}


@scenario
async def hosted_turns() -> Any:
    first = await Runner.run(agent(tools=[lab()]), ADD)
    second = await Runner.run(agent(tools=[lab()]), ASK_NAME, previous_response_id=first.last_response_id)
    return {"text": second.final_output, "items": [item.type for item in second.raw_responses[-1].output]}


@scenario
async def hosted_replayed() -> Any:
    first = await Runner.run(agent(tools=[lab()]), ADD)
    items = [*first.to_input_list(), {"role": "user", "content": ASK_NAME}]
    second = await Runner.run(agent(tools=[lab()]), items)
    return {"text": second.final_output, "items": [item.type for item in second.raw_responses[-1].output]}


def searched(result: Any) -> Any:
    """File search results and citations."""
    items = [item.raw_item for item in result.new_items]
    found = [one for item in items if item.type == "file_search_call" for one in item.results]
    parts = [part for item in items if item.type == "message" for part in item.content]
    cited = [annotation.filename for part in parts for annotation in part.annotations]
    return {"text": result.final_output, "found": [one.filename for one in found], "cited": cited}


def searcher() -> Agent[Any]:
    tool = FileSearchTool(vector_store_ids=[os.environ["STORE"]], max_num_results=3, include_search_results=True)
    return agent(tools=[tool])


@scenario
async def file_search() -> Any:
    return searched(await Runner.run(searcher(), WHO))


@scenario
async def file_search_streamed() -> Any:
    _, result = await streamed(searcher(), WHO)
    return searched(result)


def web_searched(result: Any) -> Any:
    """Web searches and citations."""
    items = [item.raw_item for item in result.new_items]
    queries = [item.action.query for item in items if item.type == "web_search_call"]
    parts = [part for item in items if item.type == "message" for part in item.content]
    cited = [annotation.url for part in parts for annotation in part.annotations]
    return {"text": result.final_output, "queries": queries, "cited": cited}


@scenario
async def web_search() -> Any:
    return web_searched(await Runner.run(agent(tools=[WebSearchTool()]), WHO))


@scenario
async def web_search_streamed() -> Any:
    _, result = await streamed(agent(tools=[WebSearchTool()]), WHO)
    return web_searched(result)


def programmer() -> Agent[Any]:
    tool = CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}})
    return agent(tools=[tool], model_settings=ModelSettings(response_include=["code_interpreter_call.outputs"]))


def programmed(result: Any) -> Any:
    """The executed code and its output."""
    calls = [item.raw_item for item in result.new_items]
    calls = [call for call in calls if call.type == "code_interpreter_call"]
    logs = [output.logs for call in calls for output in call.outputs]
    return {"text": result.final_output, "code": [call.code for call in calls], "logs": logs}


@scenario
async def code() -> Any:
    return programmed(await Runner.run(programmer(), SUM))


@scenario
async def code_streamed() -> Any:
    _, result = await streamed(programmer(), SUM)
    return programmed(result)


@scenario
async def turns_managed() -> Any:
    """The server compacts by itself."""
    settings = ModelSettings(context_management=[{"type": "compaction", "compact_threshold": 200}])
    helper = agent(model_settings=settings)
    first = await Runner.run(helper, NAME)
    second = await Runner.run(helper, [*first.to_input_list(), {"role": "user", "content": ASK_NAME}])
    return {"text": second.final_output, "items": [item.type for item in second.raw_responses[-1].output]}


play()
