"""Errors: shape, status and `param`; request limits."""

from __future__ import annotations

import re
from typing import Any

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.expect import INVALID, NO_FAILURE, request_row, require_schema, require_status
from openresponses_verify.rows import Inconclusive, Unsupported, check_row, require
from openresponses_verify.samples import LIMIT, user_message
from openresponses_verify.server import KEY, VerifiedServer, assume_ok

_ERRORS = "Open Responses specification, Errors"
_TYPES = "Open Responses specification, Error Types"
_CREATE = "OpenAI API reference, Create a model response, "
_TRACE = re.compile(r"Traceback|File \"/|at [\w.$]+ \(/|node_modules|site-packages|\.py\", line|goroutine \d+")


async def _wrong_type(server: VerifiedServer) -> HTTPExchange:
    return await server.respond(input=[user_message("Hi.")], temperature="hot", max_output_tokens=16)


async def _wrong_input(server: VerifiedServer) -> HTTPExchange:
    return await server.respond(input=7)


async def _broken_json(server: VerifiedServer) -> HTTPExchange:
    return await server.send("POST", "/responses", b'{"model": "x", "input": ')


async def _no_path(server: VerifiedServer) -> HTTPExchange:
    return await server.get("/responses/no/such/path/at/all")


_REFUSED = (_wrong_type, _wrong_input, _broken_json)


async def _refusals(server: VerifiedServer) -> list[HTTPExchange]:
    exchanges = [await server.memoized(ask) for ask in _REFUSED]
    refused = [exchange for exchange in exchanges if exchange.status >= 400]
    if not refused:
        raise Inconclusive("No request was refused: see errors.*-type.", exchanges[0])
    return refused


@check_row("errors.shape", "An error is an object `error`", _ERRORS)
async def _shape(server: VerifiedServer) -> None:
    """Errors are structured: an object `error` with type, code, param and message."""
    for exchange in await _refusals(server):
        require(
            isinstance(exchange.object.get("error"), dict), "The body has no object `error`.", exchange, exchange.json
        )


@check_row("errors.fields", "An error has type, code, param and message", "Open Responses schema, ErrorPayload")
async def _fields(server: VerifiedServer) -> None:
    """`type`, `code`, `message` and `param` are required; `code` and `param` are nullable."""
    for exchange in await _refusals(server):
        error = exchange.object.get("error")
        if isinstance(error, dict):
            require_schema("ErrorPayload", error, exchange, error, prefix="error.")
            require(error.get("message"), "The message is empty.", exchange, error)


@check_row("errors.json", "An error is JSON", "Open Responses specification, HTTP Response Bodies")
async def _json(server: VerifiedServer) -> None:
    """Servers MUST return data only as `application/json`."""
    for exchange in await _refusals(server):
        require(exchange.content_type == "application/json", f"The type is {exchange.content_type!r}.", exchange)


@check_row("errors.private", "An error reveals no server internals", f"{_ERRORS}; OWASP, Improper Error Handling")
async def _private(server: VerifiedServer) -> None:
    """Errors contain no tracebacks and no server paths."""
    for exchange in [*await _refusals(server), await server.memoized(_no_path)]:
        found = _TRACE.search(exchange.content.decode(errors="replace"))
        require(
            not found,
            f"The error has {found and found[0]!r}.",
            exchange,
            exchange.content[:400].decode("utf-8", "replace"),
        )


request_row(
    "errors.input-type",
    "An input that is neither a string nor a list is refused",
    "`input` is text or a list of items.",
    f"{_CREATE}input",
    INVALID,
    input=7,
)
request_row(
    "errors.item-role",
    "A message with an unknown role is refused",
    "`role` is one of `user`, `assistant`, `system` and `developer`.",
    f"{_CREATE}input",
    INVALID,
    input=[{"type": "message", "role": "nobody", "content": "Hi."}],
)
request_row(
    "errors.part-type",
    "A part with an unknown type is refused",
    "Message parts are `input_text`, `input_image` and `input_file`. Unknown parts must not be dropped.",
    f"{_CREATE}input",
    INVALID,
    input=[user_message([{"type": "no_such_part", "text": "Hi."}])],
)
request_row(
    "errors.temperature-type",
    "A temperature that is not a number is refused",
    "`temperature` is a number.",
    f"{_CREATE}temperature",
    INVALID,
    temperature="hot",
)
request_row(
    "errors.temperature-range",
    "A temperature outside its range is refused",
    "`temperature` is a number between 0 and 2.",
    f"{_CREATE}temperature",
    INVALID,
    temperature=17,
)
request_row(
    "errors.top-p-range",
    "A top_p outside its range is refused",
    "`top_p` is a number between 0 and 1.",
    f"{_CREATE}top_p",
    INVALID,
    top_p=-3,
)
request_row(
    "errors.max-output-tokens",
    "A negative limit is refused",
    "`max_output_tokens` is a positive number.",
    f"{_CREATE}max_output_tokens",
    INVALID,
    max_output_tokens=-1,
)
request_row(
    "errors.tools-type",
    "Tools that are not a list are refused",
    "`tools` is an array.",
    f"{_CREATE}tools",
    INVALID,
    tools="get_weather",
)
request_row(
    "errors.tool-choice",
    "An unknown tool_choice is refused",
    "`tool_choice` is `none`, `auto`, `required`, or an object.",
    "Open Responses schema, ToolChoiceValueEnum",
    INVALID,
    tools=[samples.WEATHER_TOOL],
    tool_choice="sometimes",
)
request_row(
    "errors.stream-type",
    "A stream that is not a boolean is refused",
    "`stream` is a boolean.",
    f"{_CREATE}stream",
    INVALID,
    stream="maybe",
)
request_row(
    "limits.top-logprobs",
    "More than 20 top_logprobs are refused",
    "`top_logprobs` is an integer between 0 and 20.",
    f"{_CREATE}top_logprobs",
    INVALID,
    top_logprobs=21,
)
request_row(
    "limits.metadata-pairs",
    "More than 16 metadata pairs are refused",
    "`metadata` has at most 16 key-value pairs.",
    f"{_CREATE}metadata",
    INVALID,
    metadata={f"key{n}": "value" for n in range(17)},
)
request_row(
    "limits.metadata-values",
    "Long metadata values are refused",
    "Metadata values are strings with at most 512 characters.",
    f"{_CREATE}metadata",
    INVALID,
    metadata={"key": "x" * 513},
)


@check_row("errors.no-input", "A request without input is refused", "Open Responses specification, Chat Inference")
async def _no_input(server: VerifiedServer) -> None:
    """A request needs a string `input` or an array of input items."""
    require_status(await server.send("POST", "/responses", {"model": server.model, "max_output_tokens": 16}), INVALID)


@check_row("errors.param", "An error names the field", _ERRORS)
async def _param(server: VerifiedServer) -> None:
    """`param` is the input parameter related to the error, if applicable."""
    for ask, field in ((_wrong_type, "temperature"), (_wrong_input, "input")):
        exchange = await server.memoized(ask)
        error = exchange.object.get("error")
        if exchange.status not in (400, 422) or not isinstance(error, dict):
            continue
        found = error.get("param")
        named = isinstance(found, str) and field in found
        require(named, f"{field} is wrong, and param is {found!r}.", exchange, error)
    await _refusals(server)


@check_row("errors.json-body", "A body that is not JSON is a 400", _TYPES)
async def _malformed(server: VerifiedServer) -> None:
    """`invalid_request`: the request is malformed."""
    require_status(await server.memoized(_broken_json), INVALID)


@check_row(
    "errors.json-object", "A body that is not an object is a 400", "Open Responses specification, HTTP Request Bodies"
)
async def _not_object(server: VerifiedServer) -> None:
    """Request bodies MUST be JSON objects."""
    require_status(await server.send("POST", "/responses", [1, 2, 3]), INVALID)


@check_row(
    "errors.stream-status",
    "A stream that cannot begin is an HTTP error",
    f"{_TYPES}; openai-python, openai-node, AI SDK",
)
async def _stream_status(server: VerifiedServer) -> None:
    """Rejected requests have an HTTP error status, even with `stream: true`. Clients retry by status."""
    bodies = [exchange.body for exchange in await _refusals(server) if isinstance(exchange.body, dict)]
    if not bodies:
        raise Inconclusive("No request for a response was refused: see errors.*-type.")
    require_status(await server.send("POST", "/responses", {**bodies[0], "stream": True}), INVALID)


@check_row("errors.model", "An unknown model is refused", _ERRORS)
async def _model(server: VerifiedServer) -> None:
    """The requested model does not exist: `model_not_found`."""
    exchange = await server.respond(model="no-such-model-2f7c", max_output_tokens=16)
    if exchange.ok:
        raise Inconclusive("The server accepts any model name.", exchange)
    require_status(exchange, (400, 403, 404, 422))


@check_row("errors.path", "An unknown path is a 404", _TYPES)
async def _path(server: VerifiedServer) -> None:
    """`not_found`: the requested resource does not exist at the specified path."""
    require_status(await server.memoized(_no_path), (404, 405))


@check_row("errors.type", "The error type matches the status", _TYPES)
async def _type(server: VerifiedServer) -> None:
    """Error types match the HTTP status: `invalid_request` is 400, `server_error` is 500."""
    for exchange in await _refusals(server):
        event_type = str(exchange.refusal.get("type"))
        if exchange.status in (400, 422) and isinstance(exchange.object.get("error"), dict):
            good = event_type.startswith("invalid_request") or "validation" in event_type.lower()
            require(good, f"The status is {exchange.status}, and the type {event_type!r}.", exchange)


async def _keyless(server: VerifiedServer) -> HTTPExchange:
    return await server.send("POST", "/responses", server.body(max_output_tokens=16), key=None)


async def _guarded(server: VerifiedServer) -> HTTPExchange:
    """Return the answer to a request without a key; raises `Unsupported` if no key is required."""
    if KEY not in server.keys:
        raise Unsupported("No key was given with --api-key.")
    exchange = await server.memoized(_keyless)
    if exchange.ok:
        raise Unsupported("The server requires no key.", exchange)
    return exchange


@check_row("errors.no-key", "A request without a key is a 401", "Open Responses specification, HTTP Requests")
async def _no_key(server: VerifiedServer) -> None:
    """The `Authorization` header is required."""
    exchange = await _guarded(server)
    require_status(exchange, (401, 403))


@check_row("errors.wrong-key", "A wrong key is a 401", "OpenAI guide, Error codes, 401")
async def _wrong_key(server: VerifiedServer) -> None:
    """Incorrect API key provided."""
    await _guarded(server)
    wrong = {"authorization": "Bearer sk-not-a-key-of-anybody"}
    body = server.body(max_output_tokens=16)
    require_status(await server.send("POST", "/responses", body, key=None, headers=wrong), (401, 403))


_SERVER = f"{_TYPES}, server_error: it is not caused by the client"
_DEEP: Any = {"type": "object"}
for _ in range(120):
    _DEEP = {"type": "object", "properties": {"a": _DEEP}}
request_row(
    "limits.long-input",
    "A long input is answered or refused",
    "An input with 100,000 characters causes no server error.",
    _SERVER,
    NO_FAILURE,
    input="hello " * 16_667,
    truncation="disabled",
)
request_row(
    "limits.many-items",
    "Many items are answered or refused",
    "An input with 300 items causes no server error.",
    _SERVER,
    NO_FAILURE,
    input=[user_message(f"{n}") for n in range(300)],
)
request_row(
    "limits.many-tools",
    "Many tools are answered or refused",
    "A request with 128 tools causes no server error.",
    _SERVER,
    NO_FAILURE,
    tools=[{**samples.TIME_TOOL, "name": f"get_time_{n}"} for n in range(128)],
)
request_row(
    "limits.deep-schema",
    "A deep schema is answered or refused",
    "A schema with 120 levels causes no server error.",
    _SERVER,
    NO_FAILURE,
    tools=[{"type": "function", "name": "deep", "parameters": _DEEP}],
    tool_choice="none",
)
request_row(
    "limits.unicode",
    "Any text is answered or refused",
    "Emoji, control characters, NUL and lone surrogates cause no server error.",
    _SERVER,
    NO_FAILURE,
    input="\U0001f600 \u0000 \u202e \ud83d \x1b[31m e\u0301",
)
request_row(
    "limits.large-number",
    "Large numbers are answered or refused",
    "A huge `max_output_tokens` causes no server error.",
    _SERVER,
    NO_FAILURE,
    max_output_tokens=10**30,
)
request_row(
    "limits.empty-input",
    "An empty input is answered or refused",
    "An empty list of items causes no server error.",
    _SERVER,
    NO_FAILURE,
    input=[],
)


@check_row("errors.recovers", "The server recovers from errors", _ERRORS)
async def _recovers(server: VerifiedServer) -> None:
    """A rejected request does not affect the next request."""
    assume_ok(await server.memoized(samples.text))
    await _refusals(server)
    exchange = await server.respond(max_output_tokens=LIMIT)
    require(exchange.ok, f"After refused requests, a good one is answered with {exchange.outcome()}", exchange)
