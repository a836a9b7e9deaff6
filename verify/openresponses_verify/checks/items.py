"""Output items, output limits and log probabilities."""

from __future__ import annotations

import json
from typing import Any

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.rows import CHECKS, Check, Failed, Inconclusive, Unsupported, check_row, require
from openresponses_verify.server import VerifiedServer, assume_ok, require_ok

_STATES = "Open Responses specification, Items are state machines"
_FIELDS = "Open Responses specification, Required item fields"
_CREATE = "OpenAI API reference, Create a model response, "


async def _messages(server: VerifiedServer) -> tuple[HTTPExchange, list[dict[str, Any]]]:
    exchange = assume_ok(await server.memoized(samples.text))
    return exchange, [item for item in exchange.output if item.get("type") == "message"]


@check_row("items.output", "A response has output", "Open Responses specification, Chat Inference")
async def _output(server: VerifiedServer) -> None:
    """A `response` object MUST have an `output` array with model-produced items."""
    exchange = require_ok(await server.memoized(samples.text))
    require(exchange.output, "The output is empty.", exchange, exchange.response.get("output"))


@check_row(
    "items.message",
    "Text is in an assistant message",
    "Open Responses specification, User Content vs Model Content",
)
async def _message(server: VerifiedServer) -> None:
    """The model's message has the role `assistant` and `output_text` parts."""
    exchange, messages = await _messages(server)
    for item in messages:
        require(item.get("role") == "assistant", f"The role is {item.get('role')!r}.", exchange, item)
        types = [part.get("type") for part in item.get("content") or [] if isinstance(part, dict)]
        odd = [part_type for part_type in types if part_type not in ("output_text", "refusal")]
        require(types and not odd, f"The content has parts of the types {types}.", exchange, item)
    if not messages:
        raise Inconclusive("The model produced no message.", exchange)


@check_row("items.text", "The text is not empty", "Open Responses schema, OutputTextContent.text")
async def _text(server: VerifiedServer) -> None:
    """`text` is the text output from the model."""
    exchange, messages = await _messages(server)
    if not messages or not exchange.usage.get("output_tokens"):
        raise Inconclusive("The model produced no message.", exchange)
    require(samples.output_text(exchange), "The text of the message is empty.", exchange, messages)


@check_row("items.required", "Items have id, type and status", _FIELDS)
async def _required(server: VerifiedServer) -> None:
    """Every item MUST have `id`, `type` and `status`."""
    for sample in samples.RESPONSES:
        exchange = await server.memoized(sample)
        for item in exchange.output if exchange.ok else ():
            # In the schema, reasoning items have no status.
            names = ("id", "type") if item.get("type") in ("reasoning", "compaction") else ("id", "type", "status")
            for name in names:
                found = item.get(name)
                require(isinstance(found, str) and found, f"The {name} of an item is {found!r}.", exchange, item)


@check_row("items.ids-fresh", "Ids are unique across responses", _FIELDS)
async def _fresh(server: VerifiedServer) -> None:
    """Item ids are unique across responses."""
    one, other = assume_ok(await server.memoized(samples.text)), assume_ok(await server.memoized(samples.cut_off))
    both = ({item.get("id") for item in one.output} & {item.get("id") for item in other.output}) - {None}
    require(not both, f"Items of two responses have the id {sorted(map(str, both))}.", other)
    same = one.response.get("id") == other.response.get("id")
    require(not same, f"Two responses have the id {one.response.get('id')!r}.", other)


@check_row("items.completed", "Items of a completed response are completed", _STATES)
async def _completed(server: VerifiedServer) -> None:
    """`completed`: the model has finished the item."""
    exchange = assume_ok(await server.memoized(samples.text))
    if exchange.response.get("status") != "completed":
        raise Inconclusive(f"The status of the response is {exchange.response.get('status')!r}.", exchange)
    for item in exchange.output:
        status = item.get("status", "completed")
        require(status == "completed", f"An item of a completed response is {status!r}.", exchange, item)
    require(exchange.response.get("error") is None, "A completed response has an error.", exchange)
    require(
        exchange.response.get("incomplete_details") is None, "A completed response has incomplete_details.", exchange
    )


def _limited(exchange: HTTPExchange) -> HTTPExchange:
    """Return a truncated response; raises `Inconclusive` if the model stopped before the limit."""
    assume_ok(exchange, "max_output_tokens")
    tokens = exchange.usage.get("output_tokens")
    if exchange.response.get("status") == "completed" and (not isinstance(tokens, int) or tokens < 16):
        raise Inconclusive("The model stopped before the limit, or the usage does not count its tokens.", exchange)
    if isinstance(tokens, int) and tokens > 16:
        raise Inconclusive("The limit is ignored: see limits.max-output-tokens.", exchange)
    if exchange.response.get("status") in (None, "in_progress", "queued"):
        raise Inconclusive("The response has not ended.", exchange)
    return exchange


@check_row("limits.max-output-tokens", "max_output_tokens is respected", f"{_CREATE}max_output_tokens")
async def _limit(server: VerifiedServer) -> None:
    """`max_output_tokens` is an upper bound for generated tokens."""
    exchange = require_ok(await server.memoized(samples.cut_off), "max_output_tokens")
    tokens = exchange.usage.get("output_tokens")
    if not isinstance(tokens, int):
        raise Inconclusive("The usage has no output_tokens.", exchange)
    require(tokens <= 16, f"{tokens} tokens were generated, with a limit of 16.", exchange, exchange.usage)


@check_row("limits.incomplete", "A truncated response is incomplete", _STATES)
async def _incomplete(server: VerifiedServer) -> None:
    """`incomplete`: the token budget is exhausted. Agents treat a truncated answer with `completed` as final."""
    exchange = _limited(await server.memoized(samples.cut_off))
    status = exchange.response.get("status")
    require(status == "incomplete", f"The answer was truncated at 16 tokens, but its status is {status!r}.", exchange)


@check_row(
    "limits.incomplete-reason", "The reason is max_output_tokens", "Open Responses schema, IncompleteDetails.reason"
)
async def _reason(server: VerifiedServer) -> None:
    """`incomplete_details.reason` is why the response is incomplete."""
    exchange = _limited(await server.memoized(samples.cut_off))
    if exchange.response.get("status") != "incomplete":
        raise Inconclusive("The response is not incomplete.", exchange)
    details = exchange.response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    require(reason == "max_output_tokens", f"The incomplete_details are {details!r}.", exchange)


@check_row("limits.incomplete-item", "The truncated item is incomplete", _STATES)
async def _cut_item(server: VerifiedServer) -> None:
    """`incomplete`: the token budget was exhausted within this item."""
    exchange = _limited(await server.memoized(samples.cut_off))
    if exchange.response.get("status") != "incomplete" or not exchange.output:
        raise Inconclusive("The response is not incomplete, or has no items.", exchange)
    status = exchange.output[-1].get("status", "incomplete")
    require(status == "incomplete", f"The last item is {status!r}.", exchange, exchange.output[-1])


@check_row(
    "limits.incomplete-event",
    "A truncated stream ends with response.incomplete",
    "OpenAI API reference, Streaming events, response.incomplete",
)
async def _cut_stream(server: VerifiedServer) -> None:
    """A stream ends with `response.incomplete` if the response is incomplete."""
    exchange = _limited(await server.memoized(samples.cut_off_stream))
    ends = [
        event["type"] for event in exchange.events if event.get("type") in ("response.completed", "response.failed")
    ]
    require(not ends, f"The answer was truncated at 16 tokens, but the stream ends with {ends}.", exchange)


@check_row(
    "limits.status-agrees",
    "A truncated answer has the same status, streamed or not",
    "OpenAI API reference, Streaming events",
)
async def _agrees(server: VerifiedServer) -> None:
    """A request ends with the same status, streamed or not."""
    one, other = (
        _limited(await server.memoized(samples.cut_off)),
        _limited(await server.memoized(samples.cut_off_stream)),
    )
    statuses = one.response.get("status"), other.response.get("status")
    require(statuses[0] == statuses[1], f"The status is {statuses[0]!r} as JSON, but {statuses[1]!r} streamed.", other)


@check_row("limits.call-cut", "A truncated call is not completed", _STATES)
async def _call_cut(server: VerifiedServer) -> None:
    """A truncated call is incomplete. Otherwise clients run it with broken arguments."""
    tool = {**samples.WEATHER_TOOL, "name": "write_essay", "description": "Write a long essay.", "strict": False}
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    prompt = f"Write an essay with this text: {samples.WORDS * 3}"
    exchange = await server.respond(
        input=prompt, tools=[{**tool, "parameters": parameters}], tool_choice="required", max_output_tokens=16
    )
    for item in samples.called(assume_ok(exchange, "tools", "max_output_tokens")):
        try:
            json.loads(str(item.get("arguments")))
        except ValueError:
            status = item.get("status", "incomplete")
            require(status == "incomplete", f"The arguments are truncated, but the call is {status!r}.", exchange, item)
            return
    raise Inconclusive("The model did not call, or its arguments were not truncated.", exchange)


async def _logprobs(server: VerifiedServer) -> HTTPExchange:
    return await server.respond(
        include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=samples.LIMIT
    )


@check_row("items.logprobs", "Log probabilities are included on request", f"{_CREATE}include")
async def _with_logprobs(server: VerifiedServer) -> None:
    """`message.output_text.logprobs` in `include` requests log probabilities."""
    exchange = require_ok(await server.memoized(_logprobs), "include", "top_logprobs", "logprobs")
    parts = [part for item in exchange.output if item.get("type") == "message" for part in item.get("content") or []]
    found = [part.get("logprobs") for part in parts if isinstance(part, dict)]
    if not any(found):
        raise Unsupported("The logprobs of the answer are empty.", exchange)
    for logprob in (one for logprobs in found for one in logprobs or []):
        good = isinstance(logprob.get("token"), str) and isinstance(logprob.get("logprob"), int | float)
        require(good, "A log probability lacks its token or its number.", exchange, logprob)
        top = len(logprob.get("top_logprobs") or [])
        require(top <= 2, f"There are {top} top_logprobs, with top_logprobs: 2.", exchange, logprob)


@check_row("items.no-logprobs", "Log probabilities are not included without a request", f"{_CREATE}include")
async def _without_logprobs(server: VerifiedServer) -> None:
    """`logprobs` is empty unless requested by `include`."""
    exchange, messages = await _messages(server)
    for item in messages:
        for part in item.get("content") or []:
            if part.get("logprobs"):
                raise Failed("The answer has logprobs without `include`.", exchange, part)


_ECHOED: dict[str, object] = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": samples.LIMIT}


async def _options(server: VerifiedServer) -> HTTPExchange:
    return await server.respond(
        **_ECHOED,
        instructions="Be brief.",
        metadata={"a": "1", "b": ""},
        parallel_tool_calls=False,
        truncation="auto",
        safety_identifier="user-1",
        prompt_cache_key="key-1",
        max_tool_calls=3,
    )


def _echo(row_id: str, title: str, law: str, source: str, expected: dict[str, object]) -> None:
    async def run(server: VerifiedServer) -> None:
        exchange = require_ok(await server.memoized(_options), *expected)
        for name, value in expected.items():
            found = samples.echoed_field(exchange, name)
            require(found == value, f"{name} was sent as {value!r}, and is {found!r}.", exchange)

    CHECKS.append(Check(row_id, title, law, source, run))


_RESOURCE = "Open Responses schema, ResponseResource."
_echo(
    "items.echo-sampling",
    "The response has the sampling parameters",
    "`temperature` and `top_p` are the sampling parameters used.",
    f"{_RESOURCE}temperature",
    _ECHOED,
)
_echo(
    "items.echo-instructions",
    "The response has the instructions",
    "`instructions` contains the instructions used.",
    f"{_RESOURCE}instructions",
    {"instructions": "Be brief."},
)
_echo(
    "items.echo-metadata",
    "The response has the metadata",
    "`metadata` contains the key-value pairs in the request.",
    f"{_RESOURCE}metadata",
    {"metadata": {"a": "1", "b": ""}},
)
_echo(
    "items.echo-parallel",
    "The response has parallel_tool_calls",
    "`parallel_tool_calls` tells whether parallel calls were allowed.",
    f"{_RESOURCE}parallel_tool_calls",
    {"parallel_tool_calls": False},
)
_echo(
    "items.echo-truncation",
    "The response has the truncation strategy",
    "`truncation` is the truncation strategy for inputs beyond the context window.",
    f"{_RESOURCE}truncation",
    {"truncation": "auto"},
)
_echo(
    "items.echo-identifiers",
    "The response has the caller's identifiers",
    "`safety_identifier` and `prompt_cache_key` are returned unchanged.",
    f"{_RESOURCE}prompt_cache_key",
    {"safety_identifier": "user-1", "prompt_cache_key": "key-1"},
)
_echo(
    "items.echo-max-tool-calls",
    "The response has max_tool_calls",
    "`max_tool_calls` is the response's maximum number of tool calls.",
    f"{_RESOURCE}max_tool_calls",
    {"max_tool_calls": 3},
)


@check_row("items.store-echo", "The response has store", f"{_RESOURCE}store")
async def _store(server: VerifiedServer) -> None:
    """`store` tells whether the response was stored for later retrieval."""
    exchange = assume_ok(await server.memoized(samples.text))
    found = samples.echoed_field(exchange, "store")
    require(found is False, f"The request has store: false, but the response has {found!r}.", exchange)
