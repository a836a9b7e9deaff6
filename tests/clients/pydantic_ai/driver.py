"""pydantic-ai."""

from __future__ import annotations

import os
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ThinkingPart, ToolOutput
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.models.openai import OpenAICompaction, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.native_tools import CodeExecutionTool, FileSearchTool, MCPServerTool, WebSearchTool
from scenarios import ADD, ASK_NAME, HELLO, MODEL, NAME, SUM, WEATHER, WHO, play, scenario, weather

model = OpenAIResponsesModel(MODEL)


class Person(BaseModel):
    name: str
    born: int


def agent(**options: Any) -> Agent[None, Any]:
    return Agent(model, **options)


def helper() -> Agent[None, Any]:
    """An agent with a weather tool."""
    made = agent()
    made.tool_plain(weather)
    return made


def usage(result: Any) -> list[int]:
    usage = result.usage() if callable(result.usage) else result.usage
    return [usage.input_tokens, usage.output_tokens]


def thoughts(result: Any) -> str:
    """Return the reasoning: summaries are shown, raw reasoning is separate."""
    parts = [part for message in result.all_messages() for part in message.parts if isinstance(part, ThinkingPart)]
    raw = [text for part in parts for text in (part.provider_details or {}).get("raw_content", ())]
    return "".join([*(part.content for part in parts), *raw])


@scenario
async def text() -> Any:
    result = await agent().run(HELLO)
    return {"text": result.output, "usage": usage(result)}


@scenario
async def stream() -> Any:
    async with agent().run_stream(HELLO) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        return {"pieces": pieces, "text": "".join(pieces), "usage": usage(result)}


@scenario
async def tools() -> Any:
    return {"text": (await helper().run(WEATHER)).output}


@scenario
async def tools_streamed() -> Any:
    async with helper().run_stream(WEATHER) as result:
        return {"text": await result.get_output()}


@scenario
async def structured() -> Any:
    return (await agent(output_type=NativeOutput(Person)).run(WHO)).output.model_dump()


@scenario
async def structured_streamed() -> Any:
    async with agent(output_type=NativeOutput(Person)).run_stream(WHO) as result:
        return (await result.get_output()).model_dump()


@scenario
async def structured_by_a_function() -> Any:
    return (await agent(output_type=ToolOutput(Person)).run(WHO)).output.model_dump()


@scenario
async def turns() -> Any:
    settings = OpenAIResponsesModelSettings(openai_previous_response_id="auto")
    first = await agent().run(NAME, model_settings=settings)
    second = await agent().run(ASK_NAME, message_history=first.all_messages(), model_settings=settings)
    return {"text": second.output}


@scenario
async def turns_replayed() -> Any:
    first = await agent().run(NAME)
    return {"text": (await agent().run(ASK_NAME, message_history=first.all_messages())).output}


@scenario
async def thinking() -> Any:
    result = await agent().run(SUM)
    return {"text": result.output, "reasoning": thoughts(result)}


@scenario
async def thinking_streamed() -> Any:
    async with agent().run_stream(SUM) as result:
        text = await result.get_output()
        return {"text": text, "reasoning": thoughts(result)}


@scenario
async def thinking_summarized() -> Any:
    settings = OpenAIResponsesModelSettings(openai_reasoning_summary="auto")
    result = await agent().run(SUM, model_settings=settings)
    return {"text": result.output, "reasoning": result.response.thinking}


@scenario
async def thinking_again() -> Any:
    """Reasoning before a call is sent back with its result."""
    result = await helper().run(WEATHER)
    return {"text": result.output, "reasoning": thoughts(result)}


def asking_the_lab() -> Agent[None, Any]:
    """An agent with an MCP server on the server's side, named as a connector."""
    return agent(capabilities=[NativeTool(MCPServerTool(id="lab", url="x-openai-connector:lab"))])


def hosted_results(result: Any) -> list[Any]:
    parts = [part for message in result.new_messages() for part in message.parts]
    returned = [part.content for part in parts if part.part_kind == "builtin-tool-return"]
    return [content["output"] for content in returned if content.get("output") is not None]


@scenario
async def hosted() -> Any:
    result = await asking_the_lab().run(ADD)
    return {"text": result.output, "results": hosted_results(result)}


@scenario
async def hosted_streamed() -> Any:
    async with asking_the_lab().run_stream(ADD) as result:
        text = await result.get_output()
        return {"text": text, "results": hosted_results(result)}


@scenario
async def hosted_replayed() -> Any:
    made = asking_the_lab()
    first = await made.run(ADD)
    second = await made.run(ASK_NAME, message_history=first.all_messages())
    return {"text": second.output, "results": hosted_results(second)}


def searcher() -> Agent[None, Any]:
    settings = OpenAIResponsesModelSettings(openai_include_file_search_results=True)
    tool = FileSearchTool(file_store_ids=[os.environ["STORE"]])
    return agent(capabilities=[NativeTool(tool)], model_settings=settings)


def searched(result: Any, text: str) -> Any:
    """File search results; citations are not shown."""
    parts = [part for message in result.new_messages() for part in message.parts]
    returned = [part.content for part in parts if part.part_kind == "builtin-tool-return"]
    found = [one["filename"] for content in returned for one in content.get("results") or ()]
    return {"text": text, "found": found}


@scenario
async def file_search() -> Any:
    result = await searcher().run(WHO)
    return searched(result, result.output)


@scenario
async def file_search_streamed() -> Any:
    async with searcher().run_stream(WHO) as result:
        return searched(result, await result.get_output())


def called(result: Any, text: str) -> Any:
    """Arguments of hosted tools."""
    parts = [part for message in result.new_messages() for part in message.parts]
    return {"text": text, "calls": [part.tool_name for part in parts if part.part_kind == "builtin-tool-call"]}


@scenario
async def web_search() -> Any:
    result = await agent(capabilities=[NativeTool(WebSearchTool())]).run(WHO)
    return called(result, result.output)


@scenario
async def web_search_streamed() -> Any:
    async with agent(capabilities=[NativeTool(WebSearchTool())]).run_stream(WHO) as result:
        return called(result, await result.get_output())


@scenario
async def code() -> Any:
    result = await agent(capabilities=[NativeTool(CodeExecutionTool())]).run(SUM)
    return called(result, result.output)


@scenario
async def code_streamed() -> Any:
    async with agent(capabilities=[NativeTool(CodeExecutionTool())]).run_stream(SUM) as result:
        return called(result, await result.get_output())


@scenario
async def turns_managed() -> Any:
    """The server compacts by itself."""
    helper = agent(capabilities=[OpenAICompaction(token_threshold=200)])
    first = await helper.run(NAME)
    second = await helper.run(ASK_NAME, message_history=first.all_messages())
    kinds = [part.part_kind for part in second.new_messages()[-1].parts]
    return {"text": second.output, "items": ["message" if kind == "text" else kind for kind in kinds]}


play()
