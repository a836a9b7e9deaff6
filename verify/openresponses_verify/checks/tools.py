"""Client-run tools: functions, custom tools, namespaces, tool choice and outputs."""

from __future__ import annotations

import json
from typing import Any

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange, read_json
from openresponses_verify.expect import INVALID, REFUSED, request_row, require_more_input_tokens, require_status
from openresponses_verify.rows import Failed, Inconclusive, check_row, require
from openresponses_verify.samples import (
    LIMIT,
    TIME_TOOL,
    WEATHER_TOOL,
    call_output,
    called,
    echoed_field,
    first_call,
    input_tokens,
    response_id,
    user_message,
)
from openresponses_verify.server import VerifiedServer, assume_ok, require_ok

_CALLING = "Open Responses specification, Tool Calling"
_CHOICE = "Open Responses specification, tool_choice"
_ALLOWED = "Open Responses specification, allowed_tools"
_CREATE = "OpenAI API reference, Create a model response, "
_FUNCTIONS = "OpenAI guide, Function calling"
_CUSTOM = "OpenAI guide, Function calling, Custom tools"
_CODEX = "Codex CLI 0.169, the tools that it sends"
_RESULT = "Sunny, 21C"


@check_row("tools.call", "A required function is called", _CALLING)
async def _call(server: VerifiedServer) -> None:
    """A call is a `function_call` item with `call_id`, `name` and JSON-string `arguments`."""
    exchange = require_ok(await server.memoized(samples.call), "tools", "tool_choice")
    item = first_call(exchange)
    require(item.get("name") == "get_weather", f"The name is {item.get('name')!r}.", exchange, item)
    require(isinstance(item.get("call_id"), str) and item["call_id"], "The call_id is missing.", exchange, item)


@check_row(
    "tools.arguments", "Arguments are a JSON object in a string", "Open Responses schema, FunctionCall.arguments"
)
async def _arguments(server: VerifiedServer) -> None:
    """`arguments` is a JSON string."""
    exchange = assume_ok(await server.memoized(samples.call), "tools")
    item = first_call(exchange)
    if item.get("status") == "incomplete":
        raise Inconclusive("The arguments were truncated.", exchange)
    arguments = item.get("arguments")
    require(isinstance(arguments, str), f"The arguments are {type(arguments).__name__}.", exchange, item)
    try:
        found = json.loads(str(arguments))
    except ValueError:
        raise Failed("The arguments of a completed call are not JSON.", exchange, item) from None
    require(isinstance(found, dict), "The arguments are not a JSON object.", exchange, item)


@check_row("tools.call-stream", "A call is streamed", "Open Responses specification, Items are streamable")
async def _call_stream(server: VerifiedServer) -> None:
    """
    A `function_call` is added with its `name`; its arguments follow as `response.function_call_arguments.delta` and
    `.done`.
    """
    exchange = require_ok(await server.memoized(samples.call_stream), "tools", "stream")
    first_call(exchange)
    types = [event.get("type") for event in exchange.events]
    for name in ("response.function_call_arguments.delta", "response.function_call_arguments.done"):
        require(name in types, f"{name} is missing.", exchange)
    added = [event.get("item") for event in exchange.events if event.get("type") == "response.output_item.added"]
    named = [item.get("name") for item in added if isinstance(item, dict) and item.get("type") == "function_call"]
    require(all(named), "The call is added without its name.", exchange, added)


@check_row("tools.echo", "The response has tools and tool_choice", "Open Responses schema, ResponseResource.tools")
async def _echo(server: VerifiedServer) -> None:
    """`tools` in the response contains the tools available to the model."""
    exchange = assume_ok(await server.memoized(samples.call), "tools", "tool_choice")
    tools, choice = echoed_field(exchange, "tools"), echoed_field(exchange, "tool_choice")
    tool: Any = tools[0] if isinstance(tools, list) and len(tools) == 1 else {}
    require(
        isinstance(tool, dict) and tool.get("name") == "get_weather",
        "The tools differ from the request.",
        exchange,
        tools,
    )
    same = tool.get("parameters") == WEATHER_TOOL["parameters"]
    require(same, "The parameters of the tool differ from the request.", exchange, tool)
    require(choice == "required", f"tool_choice is {choice!r}.", exchange)


@check_row("tools.named", "A named function is called", _CHOICE)
async def _named(server: VerifiedServer) -> None:
    """With `{type: 'function', name}`, the model must call the named function."""
    choice = {"type": "function", "name": "get_time"}
    exchange = await server.respond(
        input=samples.ASK_WEATHER, tools=[WEATHER_TOOL, TIME_TOOL], tool_choice=choice, max_output_tokens=LIMIT
    )
    names = [item.get("name") for item in called(require_ok(exchange, "tool_choice"))]
    if not names:
        raise Inconclusive("The model did not call.", exchange)
    require(set(names) == {"get_time"}, f"The choice was get_time, but the model called {names}.", exchange)


@check_row("tools.none", "No tool is called with tool_choice none", _CHOICE)
async def _none(server: VerifiedServer) -> None:
    """With `none`, the model MUST NOT call tools."""
    exchange = await server.respond(
        input=samples.ASK_WEATHER, tools=[WEATHER_TOOL], tool_choice="none", max_output_tokens=LIMIT
    )
    calls = called(require_ok(exchange, "tool_choice"))
    require(not calls, "The model called a tool.", exchange, calls)


async def _allowed_call(server: VerifiedServer) -> HTTPExchange:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    return await server.respond(
        input=samples.ASK_WEATHER, tools=[WEATHER_TOOL, TIME_TOOL], tool_choice=choice, max_output_tokens=LIMIT
    )


@check_row("tools.allowed", "Only allowed tools are called", _ALLOWED)
async def _allowed(server: VerifiedServer) -> None:
    """Servers MUST enforce `allowed_tools`: calls to other tools MUST be rejected or suppressed."""
    exchange = require_ok(await server.memoized(_allowed_call), "tool_choice", "allowed_tools")
    names = {item.get("name") for item in called(exchange)}
    require(
        names <= {"get_time"}, f"Only get_time was allowed, but the model called {sorted(map(str, names))}.", exchange
    )


@check_row("tools.allowed-tools", "allowed_tools does not change the tools", _ALLOWED)
async def _allowed_list(server: VerifiedServer) -> None:
    """`allowed_tools` restricts calls without changing `tools`."""
    exchange = assume_ok(await server.memoized(_allowed_call), "tool_choice", "allowed_tools")
    names = [tool.get("name") for tool in echoed_field(exchange, "tools") or [] if isinstance(tool, dict)]
    require(names == ["get_weather", "get_time"], f"The tools of the response are {names}.", exchange)


async def _two_calls(server: VerifiedServer, *, parallel: bool) -> HTTPExchange:
    return await server.respond(
        input="What is the weather in Paris and Tokyo?",
        tools=[WEATHER_TOOL],
        tool_choice="required",
        parallel_tool_calls=parallel,
        max_output_tokens=LIMIT,
    )


@check_row("tools.parallel", "Parallel calls are separate items", f"{_CREATE}parallel_tool_calls")
async def _parallel(server: VerifiedServer) -> None:
    """Parallel calls are separate items, each with its own `call_id`."""
    exchange = require_ok(await _two_calls(server, parallel=True), "parallel_tool_calls")
    calls = called(exchange)
    if len(calls) < 2:
        raise Inconclusive("The model did not make parallel calls.", exchange)
    require(
        len({item.get("call_id") for item in calls}) == len(calls), "Two calls have the same call_id.", exchange, calls
    )


@check_row("tools.not-parallel", "At most one call with parallel_tool_calls: false", _FUNCTIONS)
async def _not_parallel(server: VerifiedServer) -> None:
    """With `parallel_tool_calls: false`, at most one tool is called."""
    exchange = require_ok(await _two_calls(server, parallel=False), "parallel_tool_calls")
    calls = called(exchange)
    require(len(calls) <= 1, f"There are {len(calls)} calls.", exchange, calls)


def _history(output: object = _RESULT) -> list[dict[str, Any]]:
    call = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"location": "Paris"}'}
    result = call_output("call_1", output)
    return [user_message(samples.ASK_WEATHER), call, result]


@check_row("tools.output", "The output of a call is accepted", _CALLING)
async def _output(server: VerifiedServer) -> None:
    """Clients run the function and send a `function_call_output` item with the same `call_id`."""
    exchange = await server.respond(input=_history(), tools=[WEATHER_TOOL], max_output_tokens=LIMIT)
    require(require_ok(exchange, "function_call_output").output, "The output is empty.", exchange)


@check_row("tools.output-reaches", "The output of a call reaches the model", _FUNCTIONS)
async def _output_reaches(server: VerifiedServer) -> None:
    """The model continues with the function's result."""
    short = assume_ok(await server.respond(input=_history("1"), tools=[WEATHER_TOOL], max_output_tokens=LIMIT))
    exchange = await server.respond(input=_history(samples.WORDS), tools=[WEATHER_TOOL], max_output_tokens=LIMIT)
    require_more_input_tokens(assume_ok(exchange), short, 10, "an output of many words")


@check_row(
    "tools.output-previous",
    "An output continues a stored call",
    "Open Responses specification, previous_response_id; openai-agents",
)
async def _output_previous(server: VerifiedServer) -> None:
    """Results can be sent with `previous_response_id`: the call is in the previous response."""
    first = await server.respond(
        input=samples.ASK_WEATHER, tools=[WEATHER_TOOL], tool_choice="required", store=True, max_output_tokens=LIMIT
    )
    result = call_output(first_call(first).get("call_id"), _RESULT)
    exchange = await server.respond(
        input=[result], previous_response_id=response_id(first), tools=[WEATHER_TOOL], max_output_tokens=LIMIT
    )
    require_ok(exchange, "previous_response_id")


@check_row("tools.output-unknown", "An output without its call is refused", _FUNCTIONS)
async def _output_unknown(server: VerifiedServer) -> None:
    """In a chain, an output with an unknown `call_id` is an error."""
    first = await server.respond(input="Say hello.", store=True, max_output_tokens=LIMIT)
    identifier = response_id(first)
    assume_ok(
        await server.respond(previous_response_id=identifier, max_output_tokens=16), "previous_response_id", "store"
    )
    result = call_output("call_of_nobody", _RESULT)
    require_status(await server.respond(input=[result], previous_response_id=identifier, max_output_tokens=16), REFUSED)


@check_row(
    "tools.output-list",
    "An output may be a list of parts",
    "Open Responses schema, FunctionCallOutputItemParam.output; openai-agents with MCP",
)
async def _output_list(server: VerifiedServer) -> None:
    """`output` is text or a list of `input_text`, `input_image` and `input_file` parts."""
    parts = [{"type": "input_text", "text": "Sunny,"}, {"type": "input_text", "text": "21C"}]
    exchange = await server.respond(input=_history(parts), tools=[WEATHER_TOOL], max_output_tokens=LIMIT)
    require_ok(exchange, "output", "input_text")


@check_row(
    "tools.output-image",
    "An output may be an image",
    "Open Responses schema, FunctionCallOutputItemParam.output; Codex",
)
async def _output_image(server: VerifiedServer) -> None:
    """`output` may contain an `input_image`. Codex's `view_image` sends one."""
    parts = [{"type": "input_text", "text": "A picture:"}, {"type": "input_image", "image_url": samples.HEART}]
    exchange = await server.respond(input=_history(parts), tools=[WEATHER_TOOL], max_output_tokens=LIMIT)
    require_ok(exchange, *samples.IMAGE_WORDS)


@check_row("tools.history-parallel", "Calls and outputs may be interleaved", "Open Responses specification, Items")
async def _interleaved(server: VerifiedServer) -> None:
    """Two calls may be followed by their outputs in any order."""
    calls = [
        {
            "type": "function_call",
            "call_id": f"call_{n}",
            "name": "get_weather",
            "arguments": f'{{"location": "{city}"}}',
        }
        for n, city in enumerate(("Paris", "Tokyo"))
    ]
    outputs = [call_output(f"call_{n}", _RESULT) for n in (1, 0)]
    exchange = await server.respond(
        input=[user_message("Paris and Tokyo?"), *calls, *outputs], tools=[WEATHER_TOOL], max_output_tokens=LIMIT
    )
    require_ok(exchange)


request_row(
    "tools.choice-unknown",
    "A tool_choice with an undeclared tool is refused",
    "`tool_choice` must be a tool in the request.",
    f"{_CREATE}tool_choice",
    REFUSED,
    tools=[WEATHER_TOOL],
    tool_choice={"type": "function", "name": "no_such_tool"},
)


@check_row(
    "tools.no-parameters",
    "A function without parameters has an object as arguments",
    "Open Responses schema, FunctionCall.arguments; openai-agents",
)
async def _no_parameters(server: VerifiedServer) -> None:
    """Arguments are JSON, never an empty string."""
    exchange = await server.respond(
        input="What time is it?", tools=[TIME_TOOL], tool_choice="required", max_output_tokens=LIMIT
    )
    item = first_call(exchange)
    found = read_json(str(item.get("arguments")))
    cut = item.get("status") == "incomplete"
    require(isinstance(found, dict) or cut, f"The arguments are {item.get('arguments')!r}.", exchange, item)


@check_row("tools.nulls", "Optional fields of a tool may be null", "Open Responses schema, FunctionToolParam; litellm")
async def _nulls(server: VerifiedServer) -> None:
    """`strict`, `description` and `parameters` are nullable."""
    tool = {"type": "function", "name": "get_time", "description": None, "parameters": None, "strict": None}
    require_ok(await server.respond(tools=[tool], max_output_tokens=LIMIT), "strict", "description", "parameters")


@check_row("tools.custom", "A custom tool is called with plain text", _CUSTOM)
async def _custom(server: VerifiedServer) -> None:
    """A custom tool's call is a `custom_tool_call` with free text as input."""
    exchange = require_ok(await server.memoized(samples.custom), "custom", "tools", "type")
    if not called(exchange, "custom_tool_call"):
        calls = called(exchange)
        require(not calls, "The custom tool is called as a function.", exchange, calls)
        await _require_custom_tool(server, exchange)
        raise Inconclusive("The model did not call the custom tool.", exchange)
    item = first_call(exchange, "custom_tool_call")
    require(isinstance(item.get("input"), str), "The input of the call is not a string.", exchange, item)
    require(
        item.get("name") == "write_note" and item.get("call_id"), "The call has no name or call_id.", exchange, item
    )


async def _require_custom_tool(server: VerifiedServer, exchange: HTTPExchange) -> None:
    tools = exchange.response.get("tools")
    listed = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else ["custom"]
    require("custom" in listed, "The custom tool is dropped: the response does not have it.", exchange, tools)
    found, without = input_tokens(exchange), input_tokens(await server.memoized(samples.no_tool))
    require(
        found > without,
        f"The custom tool is dropped: the model received {found} tokens with it and without it.",
        exchange,
    )


@check_row(
    "tools.custom-stream",
    "A custom call has its own events",
    "OpenAI API reference, Streaming events, response.custom_tool_call_input.delta",
)
async def _custom_stream(server: VerifiedServer) -> None:
    """The input is streamed as `response.custom_tool_call_input.delta` and `.done`."""
    exchange = assume_ok(await server.memoized(samples.custom_stream), "custom", "tools", "type")
    first_call(exchange, "custom_tool_call")
    types = {event.get("type") for event in exchange.events}
    for name in ("response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"):
        require(name in types, f"{name} is missing.", exchange)


@check_row("tools.custom-output", "A custom call and its output can be sent back", _CUSTOM)
async def _custom_output(server: VerifiedServer) -> None:
    """`custom_tool_call` and `custom_tool_call_output` are input items."""
    first_call(await server.memoized(samples.custom), "custom_tool_call")
    turns = [
        user_message("Write the note: hello."),
        {"type": "custom_tool_call", "call_id": "call_1", "name": "write_note", "input": "hello"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "Written."},
    ]
    require_ok(await server.respond(input=turns, tools=[samples.CUSTOM_TOOL], max_output_tokens=LIMIT))


@check_row(
    "tools.namespace",
    "A call to a namespace's function has the namespace",
    f"OpenAI API reference, Create a model response, tools; {_CODEX}",
)
async def _namespace(server: VerifiedServer) -> None:
    """
    A call to a namespace's function has the function's own `name`, and a field `namespace`. Codex needs it for MCP.
    """
    function = {name: value for name, value in TIME_TOOL.items() if name != "strict"}
    tool = {"type": "namespace", "name": "mcp__clock", "description": "A clock.", "tools": [function]}
    exchange = await server.respond(
        input="What time is it?", tools=[tool], tool_choice="required", max_output_tokens=LIMIT
    )
    item = first_call(require_ok(exchange, "namespace", "tools", "type"))
    found = item.get("namespace"), item.get("name")
    require(found == ("mcp__clock", "get_time"), f"The namespace and name are {found}.", exchange, item)


request_row(
    "tools.name-invalid",
    "A function needs a name",
    "`name` of a function tool is required.",
    "Open Responses schema, FunctionToolParam.name",
    INVALID,
    tools=[{"type": "function", "parameters": {}}],
)
