"""Structured output and reasoning."""

from __future__ import annotations

from typing import Any

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange, read_json, read_object
from openresponses_verify.expect import INVALID, NO_FAILURE, request_row, require_status
from openresponses_verify.rows import Failed, Inconclusive, Unsupported, check_row, require
from openresponses_verify.samples import LIMIT, PERSON, output_text, user_message
from openresponses_verify.server import VerifiedServer, assume_ok, require_ok, retry_until_compliant

_TEXT = "OpenAI API reference, Create a model response, text"
_GUIDE = "OpenAI guide, Structured model outputs"
_REASONING = "Open Responses specification, Reasoning"
_CREATE = "OpenAI API reference, Create a model response, "


def _is_person(exchange: HTTPExchange) -> bool:
    found = read_object(output_text(exchange))
    return set(found) == {"name", "age"} and isinstance(found["age"], int)


@check_row("structured.schema", "The text follows the JSON schema", f"{_TEXT}.format")
async def _schema(server: VerifiedServer) -> None:
    """With `json_schema` and `strict: true`, the model follows the schema exactly."""
    first = require_ok(await server.memoized(samples.person), "text", "format", "json_schema")
    if not _is_person(first):
        await retry_until_compliant(
            lambda: server.respond(input="Give me a person as JSON.", text={"format": PERSON}, max_output_tokens=LIMIT),
            _is_person,
            "answer in the JSON schema",
        )


@check_row("structured.schema-stream", "The streamed text follows the JSON schema", _GUIDE)
async def _stream(server: VerifiedServer) -> None:
    """A streamed answer follows the schema."""
    exchange = require_ok(await server.memoized(samples.person_stream), "text", "format", "json_schema")
    if not _is_person(exchange):
        raise Inconclusive("The model did not follow the schema.", exchange)


def _format(exchange: HTTPExchange) -> dict[str, Any]:
    text = samples.echoed_field(exchange, "text")
    found = text.get("format") if isinstance(text, dict) else None
    return found if isinstance(found, dict) else {}


@check_row("structured.echo", "The response has the text format", "Open Responses schema, ResponseResource.text")
async def _echo(server: VerifiedServer) -> None:
    """`text` in the response contains the output format used."""
    exchange = assume_ok(await server.memoized(samples.person), "text", "format", "json_schema")
    found = _format(exchange)
    same = (found.get("type"), found.get("name"), found.get("strict")) == ("json_schema", "person", True)
    require(same, "The format differs from the request.", exchange, exchange.response.get("text"))


@check_row("structured.default", "The default format is text", f"{_TEXT}.format")
async def _default(server: VerifiedServer) -> None:
    """The default format is `{type: 'text'}`."""
    exchange = assume_ok(await server.memoized(samples.text))
    require(
        _format(exchange).get("type") == "text", "The format is not `text`.", exchange, exchange.response.get("text")
    )


@check_row("structured.json-object", "json_object produces JSON", f"{_TEXT}.format")
async def _json_object(server: VerifiedServer) -> None:
    """With `json_object`, the message is valid JSON."""

    def is_object(exchange: HTTPExchange) -> bool:
        return isinstance(read_json(output_text(exchange)), dict)

    text_format = {"type": "json_object"}
    fields: dict[str, Any] = {"text": {"format": text_format}, "max_output_tokens": LIMIT}
    first = await server.respond(input="Give me a person as a JSON object.", **fields)
    if not is_object(require_ok(first, "text", "format", "json_object")):
        await retry_until_compliant(
            lambda: server.respond(input="Answer with a JSON object.", **fields), is_object, "answer with a JSON object"
        )


@check_row(
    "structured.schema-type",
    "A schema that is not an object is refused",
    "Open Responses schema, JsonSchemaResponseFormatParam.schema",
)
async def _schema_type(server: VerifiedServer) -> None:
    """`schema` must be a JSON Schema object."""
    assume_ok(await server.memoized(samples.person), "text", "format", "json_schema")
    require_status(
        await server.respond(text={"format": {**PERSON, "schema": "a person"}}, max_output_tokens=16), INVALID
    )


request_row(
    "structured.unknown",
    "An unknown format is refused",
    "`format` is one of `text`, `json_schema` and `json_object`.",
    "Open Responses schema, TextFormatParam",
    INVALID,
    text={"format": {"type": "no_such_format"}},
)


@check_row("structured.verbosity", "Verbosity is accepted and is in the response", f"{_TEXT}.verbosity")
async def _verbosity(server: VerifiedServer) -> None:
    """`verbosity` constrains the model's verbosity."""
    exchange = require_ok(await server.respond(text={"verbosity": "low"}, max_output_tokens=LIMIT), "text", "verbosity")
    text = samples.echoed_field(exchange, "text")
    found = text.get("verbosity") if isinstance(text, dict) else None
    require(found == "low", f"The verbosity is {found!r}.", exchange, text)


_NO_REASONING = ("reasoning", "effort", "reasoning_effort", "think", "thinking")


@check_row(
    "reasoning.effort",
    "An effort is accepted and is in the response",
    "Open Responses schema, ResponseResource.reasoning",
)
async def _effort(server: VerifiedServer) -> None:
    """`reasoning` in the response contains the reasoning options used."""
    exchange = require_ok(await server.memoized(samples.thought), *_NO_REASONING)
    found = samples.echoed_field(exchange, "reasoning")
    effort = found.get("effort") if isinstance(found, dict) else None
    require(effort == "low", f"The reasoning is {found!r}.", exchange)


request_row(
    "reasoning.effort-unknown",
    "An unknown effort is refused",
    "`effort` is one of `none`, `minimal`, `low`, `medium`, `high` and `xhigh`.",
    "Open Responses schema, ReasoningEffortEnum",
    INVALID,
    reasoning={"effort": "no_such_effort"},
)


def _thoughts(exchange: HTTPExchange) -> list[dict[str, Any]]:
    assume_ok(exchange, *_NO_REASONING)
    found = [item for item in exchange.output if item.get("type") == "reasoning"]
    if not found:
        raise Inconclusive("The model did not reason, or its reasoning is hidden.", exchange)
    return found


@check_row("reasoning.item", "Reasoning is an item before the answer", _REASONING)
async def _item(server: VerifiedServer) -> None:
    """Reasoning items expose the model's reasoning: `content`, `encrypted_content` or `summary`."""
    exchange = await server.memoized(samples.thought)
    for item in _thoughts(exchange):
        require(isinstance(item.get("summary"), list), "The summary is not a list.", exchange, item)
    types = [item.get("type") for item in exchange.output]
    if "message" in types:
        require(types.index("reasoning") < types.index("message"), f"The items are {types}.", exchange)


@check_row("reasoning.stream", "Reasoning has its own events", _REASONING)
async def _stream_reasoning(server: VerifiedServer) -> None:
    """Raw reasoning is streamed as `response.reasoning.delta` or OpenAI's `response.reasoning_text.delta`."""
    exchange = await server.memoized(samples.thought_stream)
    items = _thoughts(exchange)
    if any(item.get("content") or item.get("summary") for item in items):
        types = {str(event.get("type")) for event in exchange.events}
        deltas = {
            event_type
            for event_type in types
            if event_type.startswith("response.reasoning") and event_type.endswith(".delta")
        }
        require(deltas, "The reasoning has text, but was not streamed as deltas.", exchange)


@check_row("reasoning.not-in-text", "Reasoning is not in the text", _REASONING)
async def _not_in_text(server: VerifiedServer) -> None:
    """The message contains only the answer, without thinking tags."""
    exchange = assume_ok(await server.memoized(samples.thought), *_NO_REASONING)
    text = output_text(exchange)
    require("<think>" not in text and "</think>" not in text, "The text contains thinking tags.", exchange, text)


@check_row(
    "reasoning.tokens", "Reasoning tokens are counted", "Open Responses schema, OutputTokensDetails.reasoning_tokens"
)
async def _tokens(server: VerifiedServer) -> None:
    """`output_tokens_details.reasoning_tokens` counts reasoning tokens, which are output tokens."""
    exchange = await server.memoized(samples.thought)
    _thoughts(exchange)
    details = exchange.usage.get("output_tokens_details")
    if not isinstance(details, dict):
        raise Inconclusive("The usage has no output_tokens_details.", exchange)
    tokens, output = details.get("reasoning_tokens"), exchange.usage.get("output_tokens")
    good = isinstance(tokens, int) and isinstance(output, int) and 0 <= tokens <= output
    require(good, "The reasoning tokens are not among the output tokens.", exchange, exchange.usage)


@check_row("reasoning.replay", "Reasoning can be sent back", "Open Responses specification, Items")
async def _replay(server: VerifiedServer) -> None:
    """Items are bidirectional: reasoning items from the output are valid input."""
    exchange = await server.memoized(samples.thought)
    _thoughts(exchange)
    turns = [user_message("What is 2+2?"), *exchange.output, user_message("And 3+3?")]
    require_ok(await server.respond(input=turns, max_output_tokens=LIMIT))


@check_row("reasoning.encrypted", "Encrypted reasoning is included on request", f"{_CREATE}include; Codex")
async def _encrypted(server: VerifiedServer) -> None:
    """`reasoning.encrypted_content` in `include` requests encrypted reasoning."""
    exchange = await server.memoized(samples.thought)
    contents = [item.get("encrypted_content") for item in _thoughts(exchange)]
    if not any(contents):
        raise Unsupported("The reasoning has no encrypted_content, although `include` requested it.", exchange)


@check_row("reasoning.encrypted-opaque", "Encrypted reasoning cannot be read", _REASONING)
async def _opaque(server: VerifiedServer) -> None:
    """`encrypted_content` is opaque."""
    exchange = await server.memoized(samples.thought)
    for item in _thoughts(exchange):
        encrypted = item.get("encrypted_content")
        parts = [*(item.get("content") or []), *(item.get("summary") or [])]
        for part in parts:
            text = _letters(str(part.get("text") or ""))[:30]
            if encrypted and len(text) > 10 and text in _letters(str(encrypted)):
                raise Failed("encrypted_content contains the reasoning in plain text.", exchange, item)


def _letters(text: str) -> str:
    """Remove all characters that JSON could escape."""
    return "".join(filter(str.isalpha, text))


@check_row("reasoning.encrypted-asked", "Encrypted reasoning is not included without a request", f"{_CREATE}include")
async def _not_asked(server: VerifiedServer) -> None:
    """`encrypted_content` is populated only if `include` has `reasoning.encrypted_content`."""
    exchange = await server.memoized(samples.thought_stream)
    for item in _thoughts(exchange):
        if item.get("encrypted_content"):
            raise Failed("The reasoning has encrypted_content without `include`.", exchange, item)


_FOREIGN = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABnot-made-by-this-server"}
request_row(
    "reasoning.encrypted-tampered",
    "Modified encrypted reasoning is not read as text",
    "Foreign `encrypted_content` is refused or dropped, without a 500.",
    _REASONING,
    NO_FAILURE,
    input=[user_message("Hi."), _FOREIGN, user_message("Say hello.")],
    max_output_tokens=LIMIT,
)
