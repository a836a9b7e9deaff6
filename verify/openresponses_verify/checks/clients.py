"""Isolation between users, and well-known clients' requests."""

from __future__ import annotations

from typing import Any

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.expect import REFUSED, require_status
from openresponses_verify.rows import CHECKS, Check, Inconclusive, Unsupported, check_row, require
from openresponses_verify.samples import LIMIT, WEATHER_TOOL, call_output, object_id, response_id, user_message
from openresponses_verify.server import SECOND_KEY, VerifiedServer, assume_ok, require_ok

_OWASP = "OWASP API Security, Broken Object Level Authorization"
_NOT_FOUND = "Open Responses specification, Error Types, not_found: it does not exist or is not accessible"


async def _own(server: VerifiedServer) -> HTTPExchange:
    return await server.get(f"/responses/{response_id(await server.memoized(samples.stored))}")


async def _stored_id(server: VerifiedServer) -> str:
    """Return the first user's stored response id; raises `Unsupported` without a second key or storage."""
    if SECOND_KEY not in server.keys:
        raise Unsupported("No key of another user was given with --second-api-key.")
    identifier = response_id(await server.memoized(samples.stored))
    assume_ok(await server.memoized(_own))
    return identifier


async def _hidden(server: VerifiedServer, method: str, path: str, body: object = None) -> None:
    exchange = await server.send(method, path, body, key=SECOND_KEY)
    if exchange.status in (405, 501):
        raise Unsupported(exchange.outcome(), exchange)
    require_status(exchange, REFUSED, "Another user")


@check_row("isolation.retrieve", "Another user's response cannot be retrieved", _OWASP)
async def _retrieve(server: VerifiedServer) -> None:
    """A response belongs to the key that created it."""
    await _hidden(server, "GET", f"/responses/{await _stored_id(server)}")


@check_row("isolation.input-items", "Another user's input cannot be listed", _OWASP)
async def _input_items(server: VerifiedServer) -> None:
    """A response belongs to the key that created it."""
    await _hidden(server, "GET", f"/responses/{await _stored_id(server)}/input_items")


@check_row("isolation.previous", "Another user's response cannot be continued", _OWASP)
async def _previous(server: VerifiedServer) -> None:
    """Another user's `previous_response_id` is treated as unknown."""
    body = server.body(previous_response_id=await _stored_id(server), max_output_tokens=16)
    await _hidden(server, "POST", "/responses", body)


@check_row("isolation.item-reference", "Another user's items cannot be referenced", _OWASP)
async def _reference(server: VerifiedServer) -> None:
    """An `item_reference` to another user's item is treated as unknown."""
    await _stored_id(server)
    stored = await server.memoized(samples.stored)
    ids = [item["id"] for item in stored.output if item.get("id")]
    if not ids:
        raise Inconclusive("The stored response has no items.", stored)
    turns = [user_message("Hi."), {"type": "item_reference", "id": ids[0]}, user_message("Say hello.")]
    await _hidden(server, "POST", "/responses", server.body(input=turns, max_output_tokens=16))


@check_row("isolation.delete", "Another user's response cannot be deleted", _OWASP)
async def _delete(server: VerifiedServer) -> None:
    """A response belongs to the key that created it."""
    await _stored_id(server)
    stored = await server.respond(store=True, max_output_tokens=16)
    path = f"/responses/{response_id(stored)}"
    await _hidden(server, "DELETE", path)
    exchange = await server.get(path)
    require(exchange.ok, "The response is gone after another user deleted it.", exchange)


@check_row("isolation.cancel", "Another user's response cannot be cancelled", _OWASP)
async def _cancel(server: VerifiedServer) -> None:
    """A response belongs to the key that created it."""
    await _hidden(server, "POST", f"/responses/{await _stored_id(server)}/cancel")


@check_row("isolation.conversation", "Another user's conversation cannot be read or used", _OWASP)
async def _conversation(server: VerifiedServer) -> None:
    """A conversation belongs to the key that created it."""
    if SECOND_KEY not in server.keys:
        raise Unsupported("No key of another user was given with --second-api-key.")
    made = assume_ok(await server.send("POST", "/conversations", {"items": [user_message("Hi.")]}))
    identifier = object_id(made)
    await _hidden(server, "GET", f"/conversations/{identifier}")
    await _hidden(server, "GET", f"/conversations/{identifier}/items")
    await _hidden(server, "POST", "/responses", server.body(conversation=identifier, max_output_tokens=16))


@check_row("isolation.same-answer", "Another user's object is reported as not found", _NOT_FOUND)
async def _same(server: VerifiedServer) -> None:
    """Answers do not reveal whether an inaccessible object exists."""
    identifier = await _stored_id(server)
    missing = f"resp_{'0' * (len(identifier) - 5)}"
    foreign = await server.get(f"/responses/{identifier}", key=SECOND_KEY)
    unknown = await server.get(f"/responses/{missing}", key=SECOND_KEY)
    if foreign.ok:
        raise Inconclusive("The response of another user can be retrieved: see isolation.retrieve.", foreign)
    require(
        foreign.status == unknown.status,
        f"Another user's response is HTTP {foreign.status}, an unknown one HTTP {unknown.status}.",
        foreign,
    )
    code, other = foreign.refusal.get("code"), unknown.refusal.get("code")
    require(code == other, f"The code is {code!r}, and {other!r} for an unknown one.", foreign)


@check_row("clients.models", "Models are listed", "OpenAI API reference, List models; openai-python, openai-node")
async def _models(server: VerifiedServer) -> None:
    """`GET /models` returns `{object: 'list', data: [{id, object: 'model'}]}`."""
    exchange = require_ok(await server.get("/models"))
    data = exchange.object.get("data")
    require(
        exchange.object.get("object") == "list" and isinstance(data, list),
        "The body is not a list of models.",
        exchange,
    )
    for model in data if isinstance(data, list) else ():
        require(isinstance(model, dict) and isinstance(model.get("id"), str), "A model has no id.", exchange, model)
        require(model.get("object") == "model", "The `object` of a model is not 'model'.", exchange, model)


@check_row(
    "clients.request-id", "Answers have a request id", "OpenAI API reference, Debugging requests; openai-python, Codex"
)
async def _request_id(server: VerifiedServer) -> None:
    """`x-request-id` identifies the request, in successful answers and errors. SDKs and Codex show it."""
    exchange = assume_ok(await server.memoized(samples.text))
    require(exchange.headers.get("x-request-id"), "The header x-request-id is missing.", exchange)


@check_row(
    "clients.annotations",
    "Text has a list of annotations",
    "Open Responses schema, OutputTextContent.annotations; @ai-sdk/openai, pydantic-ai",
)
async def _annotations(server: VerifiedServer) -> None:
    """`annotations` is a list in each `output_text`. The AI SDK and pydantic-ai reject answers without it."""
    exchange = assume_ok(await server.memoized(samples.text))
    for item in exchange.output:
        for part in item.get("content") or [] if item.get("type") == "message" else ():
            if isinstance(part, dict) and part.get("type") == "output_text":
                require(isinstance(part.get("annotations"), list), "The annotations are not a list.", exchange, part)


@check_row(
    "clients.call-status",
    "A call has a status",
    "Open Responses schema, FunctionCall.status; @openai/agents, @ai-sdk/openai",
)
async def _call_status(server: VerifiedServer) -> None:
    """A `function_call` includes `status`. The Agents SDK for Node and the AI SDK reject calls without it."""
    for sample in (samples.call, samples.call_stream):
        exchange = await server.memoized(sample)
        for item in samples.called(assume_ok(exchange, "tools", "tool_choice")):
            require(item.get("status"), "The call has no status.", exchange, item)


def _accepted(row_id: str, title: str, law: str, source: str, headers: dict[str, str], body: dict[str, Any]) -> None:
    async def run(server: VerifiedServer) -> None:
        sent = {"model": server.model, "max_output_tokens": LIMIT, **body}
        exchange = require_ok(await server.send("POST", "/responses", sent, headers=headers))
        status = exchange.response.get("status")
        if status == "in_progress":
            raise Inconclusive("The stream has no terminal event.", exchange)
        require(status in ("completed", "incomplete"), f"The response is {status!r}.", exchange)

    CHECKS.append(Check(row_id, title, law, source, run))


def _function(name: str, **fields: object) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "function", "name": name, "description": f"{name}.", "parameters": parameters, **fields}


_accepted(
    "clients.codex",
    "A request from Codex is answered",
    "Codex sends `client_metadata`, a cache key, functions, a namespace, a custom tool with a grammar, and "
    "`web_search`. A server must ignore the features it lacks, or Codex does not work.",
    "Codex CLI 0.169, POST /responses",
    {"user-agent": "codex_exec/0.169.0", "originator": "codex_exec", "accept": "text/event-stream"},
    {
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]},
        ],
        "tools": [
            _function("exec_command", strict=False),
            _function("write_stdin", strict=False),
            {
                "type": "namespace",
                "name": "mcp__lab",
                "description": "Tools of the server lab.",
                "tools": [_function("add", strict=False)],
            },
            {
                "type": "custom",
                "name": "apply_patch",
                "description": "Edit files.",
                "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "patch" /.+/'},
            },
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-verify",
        "client_metadata": {"session_id": "0199-verify"},
    },
)
_accepted(
    "clients.agents",
    "A request from the Agents SDK is answered",
    "The Agents SDK sends an empty `include`, messages without a type, and strict tools.",
    "openai-agents 0.24, OpenAIResponsesModel",
    {"user-agent": "Agents/Python 0.24.0"},
    {
        "instructions": "You are helpful.",
        "input": [{"role": "user", "content": "Say hello."}],
        "include": [],
        "tools": [{**WEATHER_TOOL, "strict": True}, _function("transfer_to_clerk", strict=True)],
        "parallel_tool_calls": True,
        "store": False,
    },
)
_accepted(
    "clients.ai-sdk",
    "A request from the AI SDK is answered",
    "The AI SDK sends schemas with `$schema`, calls without an id, and outputs as text.",
    "@ai-sdk/openai 4, Vercel AI SDK 7",
    {"user-agent": "ai-sdk/openai/4.0.118"},
    {
        "input": [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": [{"type": "input_text", "text": "What is the weather in Paris?"}]},
            {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"location":"Paris"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": '{"temperature":21}'},
        ],
        "tools": [
            {
                **WEATHER_TOOL,
                "parameters": {"$schema": "http://json-schema.org/draft-07/schema#", **WEATHER_TOOL["parameters"]},
                "strict": False,
            }
        ],
        "tool_choice": "auto",
        "store": False,
        "stream": True,
    },
)
_accepted(
    "clients.llama-index",
    "A request from LlamaIndex is answered",
    "LlamaIndex sends null for unset fields, an empty `tools` with `tool_choice: 'none'`, and `truncation`.",
    "llama-index-llms-openai 0.8",
    {"user-agent": "OpenAI/Python 3.52.0"},
    {
        "input": [{"role": "user", "content": "Say hello."}],
        "include": None,
        "instructions": None,
        "metadata": None,
        "previous_response_id": None,
        "store": False,
        "temperature": 0.1,
        "top_p": 1.0,
        "tool_choice": "none",
        "tools": [],
        "truncation": "disabled",
        "user": None,
    },
)
_accepted(
    "clients.langchain",
    "A request from LangChain is answered",
    "LangChain sends earlier answers with ids and annotations, and `stream: false`.",
    "langchain-openai 1.7",
    {"user-agent": "OpenAI/Python 3.52.0"},
    {
        "input": [
            {"type": "message", "role": "user", "content": "Hi."},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "content": [{"type": "output_text", "text": "Hello!", "annotations": []}],
            },
            {"type": "message", "role": "user", "content": "Say hello."},
        ],
        "stream": False,
        "store": False,
    },
)


@check_row("clients.openai-node", "openai-node receives only known events", "openai-node 7, responses.stream()")
async def _known(server: VerifiedServer) -> None:
    """openai-node throws on unknown event types."""
    headers = {"user-agent": "OpenAI/JS 7.55.0", "x-stainless-lang": "js", "x-stainless-package-version": "7.55.0"}
    body = server.body(input="Think: what is 2+2?", stream=True, max_output_tokens=LIMIT)
    exchange = assume_ok(await server.send("POST", "/responses", body, headers=headers))
    for event in exchange.events:
        event_type = str(event.get("type"))
        unknown = event_type.startswith("response.reasoning.") or ":" in event_type
        require(not unknown, f"An event has the type {event_type!r}.", exchange, event)


@check_row(
    "clients.replay",
    "Output items are accepted as input",
    "OpenAI guide, Conversation state; openai-python, openai-node",
)
async def _replay(server: VerifiedServer) -> None:
    """Clients append output items unchanged, with ids, status and calls, to the next input."""
    for sample in (samples.text, samples.call):
        first = assume_ok(await server.memoized(sample), "tools", "tool_choice")
        outputs = [call_output(item.get("call_id"), "Sunny") for item in samples.called(first)]
        turns = [user_message("Hi."), *first.output, *outputs, user_message("Say hello.")]
        require_ok(await server.respond(input=turns, tools=[WEATHER_TOOL], max_output_tokens=LIMIT))
