"""Event stream lines, and the stream laws on all sampled streams."""

from __future__ import annotations

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange, read_object
from openresponses_verify.laws import STREAM_LAWS, StreamLaw
from openresponses_verify.rows import CHECKS, Check, Failed, check_row, require
from openresponses_verify.server import VerifiedServer, assume_ok, require_ok

_HTTP = "Open Responses specification, Streaming HTTP Responses"


async def _streams(server: VerifiedServer) -> list[HTTPExchange]:
    exchanges = [await server.memoized(sample) for sample in samples.STREAMS]
    streams = [exchange for exchange in exchanges if exchange.ok and exchange.content_type == "text/event-stream"]
    return streams or [assume_ok(exchanges[0], "stream")]


@check_row(
    "stream.answer", "A response can be streamed", f"{_HTTP}; OpenAI API reference, Create a model response, stream"
)
async def _answer(server: VerifiedServer) -> None:
    """`stream: true` returns an event stream."""
    exchange = require_ok(await server.memoized(samples.text_stream), "stream")
    require(exchange.events, "The stream has no event.", exchange, exchange.content[:300].decode(errors="replace"))


@check_row("stream.content-type", "The content type is text/event-stream", _HTTP)
async def _content_type(server: VerifiedServer) -> None:
    """Streams MUST have the header `Content-Type: text/event-stream`."""
    exchange = assume_ok(await server.memoized(samples.text_stream), "stream")
    require(exchange.content_type == "text/event-stream", f"The content type is {exchange.content_type!r}.", exchange)


@check_row("stream.event-name", "The event field is the type", _HTTP)
async def _event_name(server: VerifiedServer) -> None:
    """The `event` field MUST match `type` in the body."""
    for exchange in await _streams(server):
        for event in exchange.server_sent:
            event_type = read_object(event.data).get("type")
            if event_type is not None:
                message = "The event field is missing" if event.name is None else f"The event field is {event.name!r}"
                require(event.name == event_type, f"{message}; the type is {event_type!r}.", exchange, event.data)


@check_row("stream.data", "Each data field is a JSON object", _HTTP)
async def _data(server: VerifiedServer) -> None:
    """Each `data` is a JSON object."""
    for exchange in await _streams(server):
        for event in exchange.server_sent:
            good = event.data == "[DONE]" or isinstance(read_object(event.data).get("type"), str)
            require(good, "The data of an event is not a JSON object with a type.", exchange, event.data)


@check_row("stream.done", "The stream ends with [DONE]", _HTTP)
async def _done(server: VerifiedServer) -> None:
    """The terminal event MUST be the literal string `[DONE]`."""
    for exchange in await _streams(server):
        data = [event.data for event in exchange.server_sent]
        if exchange.events:
            require(data[-1] == "[DONE]", "The last data is not [DONE].", exchange, data[-1])
            require(data.count("[DONE]") == 1, "There is more than one [DONE].", exchange)


@check_row("stream.framing", "Every event ends with a blank line", "HTML Living Standard, Interpreting an event stream")
async def _framing(server: VerifiedServer) -> None:
    """Events end with a blank line; clients discard an unfinished event. The stream is UTF-8."""
    for exchange in await _streams(server):
        tail = exchange.content[-200:].decode(errors="replace")
        ended = exchange.content.replace(b"\r\n", b"\n").endswith((b"\n\n", b"\r\r"))
        require(ended, "The last event has no blank line after it.", exchange, tail)
        try:
            text = exchange.content.decode()
        except UnicodeDecodeError as error:
            raise Failed(f"The stream is not UTF-8: {error}.", exchange) from None
        names = {line.partition(":")[0] for line in text.splitlines()}
        odd = sorted(names - {"", "event", "data", "id", "retry"})
        require(not odd, f"Lines that are not fields of an event: {odd[:3]}.", exchange)


def _of_law(law: StreamLaw) -> Check:
    async def run(server: VerifiedServer) -> None:
        for exchange in await _streams(server):
            events = [event for event in exchange.events if event.get("type") != "keepalive" or "sequence" in law.name]
            for breach in law.breaches(events):
                raise Failed(breach.message, exchange, None if breach.event is None else events[breach.event])

    return Check(f"stream.{law.name}", law.title, law.law, law.source, run)


CHECKS.extend(map(_of_law, STREAM_LAWS))


@check_row(
    "stream.like-json",
    "Streamed and JSON responses have the same fields",
    "OpenAI API reference, Streaming events, response.completed",
)
async def _like_json(server: VerifiedServer) -> None:
    """A streamed response has the same fields, item types and `input_tokens` as a JSON response."""
    for json_sample, stream_sample in ((samples.text, samples.text_stream), (samples.call, samples.call_stream)):
        one, other = await server.memoized(json_sample), await server.memoized(stream_sample)
        if not (one.ok and other.ok and other.events and one.response.get("status") == other.response.get("status")):
            continue
        different = sorted({*one.response} ^ {*other.response})
        require(not different, f"Only one of the two has the fields {different}.", other)
        tokens = [exchange.usage.get("input_tokens") for exchange in (one, other)]
        same = None in tokens or tokens[0] == tokens[1]
        require(same, f"input_tokens is {tokens[0]!r} as JSON, and {tokens[1]!r} streamed.", other)
        for item, twin in zip(one.output, other.output, strict=False):
            different = sorted({*item} ^ {*twin}) if item.get("type") == twin.get("type") else []
            require(not different, f"Only one of the two items has the fields {different}.", other, twin)


@check_row(
    "stream.echo",
    "The first event repeats the request",
    "OpenAI API reference, Streaming events, response.created",
)
async def _echo(server: VerifiedServer) -> None:
    """`response.created` contains the request's model, instructions and tools."""
    exchange = assume_ok(await server.memoized(samples.call_stream), "tools")
    created = exchange.events[0].get("response") if exchange.events else None
    if not isinstance(created, dict):
        raise Failed("The first event has no response.", exchange)
    for name in ("model", "tools", "tool_choice", "instructions", "metadata"):
        first, last = created.get(name), exchange.response.get(name)
        require(first == last, f"{name} is {first!r} in the first event, but {last!r} in the last.", exchange)
