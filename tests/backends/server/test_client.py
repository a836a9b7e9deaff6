"""The HTTP client, on real sockets: stream faults and their results."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.backends.apis import API, APIS
from app.backends.server.client import ModelServer
from app.core.bounded_json import LARGE
from app.core.profile import Profile
from app.core.types.deltas import (
    DONE,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from app.errors import BackendError
from tests.support.build import deltas_of, singly, texts_of
from tests.support.exchanges import asking, reads
from tests.support.upstream import (
    CLOSE,
    HANG,
    RESET,
    Step,
    Upstream,
    call,
    chunk,
    completion,
    finish,
    head,
    piece,
    reply,
    sse,
    status,
    usage,
)
from tests.support.upstream import DONE as END

Build = Callable[..., ModelServer]
STOP = Finished(FinishReason.STOP)
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


@pytest_asyncio.fixture
async def build(upstream: Upstream) -> AsyncIterator[Build]:
    built = []

    def one(key: str | None = None, *, retries: int = 0, **options: Any) -> ModelServer:
        named = {name.replace("__", "."): value for name, value in options.items()}
        built.append(ModelServer(upstream.url, key, Profile().override(named), retries=retries))
        return built[-1]

    yield one
    for backend in built:
        await backend.aclose()


async def reads_of(backend: ModelServer, caller_key: str | None = None, **body: Any) -> list[list[Delta]]:
    async with backend.open(asking({**QUESTION, **body}, caller_key=caller_key)) as answer:
        return [chunks async for chunks in reads(answer)]


async def chunks_of(backend: ModelServer) -> list[Delta]:
    return singly(one for read in await reads_of(backend) for one in read)


async def until_error(backend: ModelServer) -> tuple[list[Delta], BackendError]:
    chunks: list[Delta] = []
    with pytest.raises(BackendError) as caught:
        async with backend.open(asking(QUESTION)) as answer:
            async for some in reads(answer):
                chunks += some
    return singly(chunks), caught.value


async def refusal(backend: ModelServer, caller_key: str | None = None) -> BackendError:
    """The error raised on entering the context, before the caller has received anything."""
    with pytest.raises(BackendError) as caught:
        async with backend.open(asking(QUESTION, caller_key=caller_key)):
            raise AssertionError("this is no good answer")
    return caught.value


# Requests.


async def test_request_goes_to_the_endpoint_unchanged(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hi"), finish(), END))
    await reads_of(build("sk-1"), temperature=0, stop="\u00e9")
    (request,) = upstream.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.json == {**QUESTION, "temperature": 0, "stop": "\u00e9"}
    assert request.headers["authorization"] == "Bearer sk-1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"


async def test_request_without_a_key_has_no_authorization(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hi"), END))
    await reads_of(build(), caller_key="sk-caller")
    assert "authorization" not in upstream.requests[0].headers


@pytest.mark.parametrize(("caller_key", "sent"), [("sk-caller", "Bearer sk-caller"), (None, None)])
async def test_callers_key_is_passed_through(
    upstream: Upstream, build: Build, caller_key: str | None, sent: str | None
) -> None:
    upstream.say(sse(chunk("Hi"), END))
    await reads_of(build("passthrough"), caller_key=caller_key)
    assert upstream.requests[0].headers.get("authorization") == sent


async def test_key_that_no_header_can_hold_is_refused(upstream: Upstream, build: Build) -> None:
    error = await refusal(build("passthrough"), "sk-\u00e9")
    assert (error.status, error.code, upstream.requests) == (401, "invalid_api_key", [])


async def test_azure_gets_its_header_and_query(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hi"), END))
    options: dict[str, Any] = {
        "transport__auth_header": "api-key",
        "transport__auth_scheme": "",
        "transport__path": "/deployments/d/chat/completions",
        "transport__query": {"api-version": "2024-10-21"},
        "transport__headers": {"X-Title": "Antiphon"},
    }
    await reads_of(build("k-1", **options))
    (request,) = upstream.requests
    assert request.path == "/v1/deployments/d/chat/completions?api-version=2024-10-21"
    assert (request.headers["api-key"], request.headers["x-title"]) == ("k-1", "Antiphon")


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gpt-5.1", "/v1/openai/deployments/gpt-5.1/chat/completions?api-version=1"),
        ("a/b ?c#d%é", "/v1/openai/deployments/a%2Fb%20%3Fc%23d%25%C3%A9/chat/completions?api-version=1"),
        ("..a", "/v1/openai/deployments/..a/chat/completions?api-version=1"),
    ],
)
async def test_path_may_contain_the_model(upstream: Upstream, build: Build, model: str, path: str) -> None:
    upstream.say(sse(chunk("Hi"), END))
    azure = {"path": "/openai/deployments/{model}/chat/completions", "query": {"api-version": "1"}}
    await reads_of(build(transport=azure), model=model)
    assert [request.path for request in upstream.requests] == [path]


@pytest.mark.parametrize("model", [".", "..", "", None])
async def test_model_that_no_path_can_contain_is_not_found(upstream: Upstream, build: Build, model: Any) -> None:
    with pytest.raises(BackendError) as caught:
        await reads_of(build(transport__path="/deployments/{model}/chat/completions"), model=model)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert upstream.requests == []


async def test_lone_surrogates_and_huge_numbers_can_be_sent(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hi"), END))
    await reads_of(build(), user="\ud83d", seed=2**70)
    assert upstream.requests[0].json["user"] == "\ud83d"
    assert upstream.requests[0].json["seed"] == 2**70


# How a stream comes in.

ANSWER = [chunk("Hel"), chunk("lo"), finish(usage={"total_tokens": 3})]
READ = deltas_of(ANSWER)  # as the core gets it
WHOLE: dict[str, list[Step]] = {
    "as OpenAI does it": sse(*ANSWER, END),
    "all at once": [b"".join(step for step in sse(*ANSWER, END) if isinstance(step, bytes))],
    "without [DONE]": sse(*ANSWER),
    "closed behind [DONE], without the last chunk": sse(*ANSWER, END, CLOSE),
    "reset behind [DONE]": sse(*ANSWER, END, RESET),
    "open for ever behind [DONE]": sse(*ANSWER, END, HANG),
    "broken off behind the finish reason": sse(*ANSWER, CLOSE),
    "reset behind the finish reason": sse(*ANSWER, RESET),
    "data behind [DONE]": sse(*ANSWER, END, chunk("no")),
    "comments": sse(b": OPENROUTER PROCESSING\n\n", *ANSWER, b": ping\n\n", END),
    "named events and frames that are none": sse(
        b"event: ping\ndata: {}\n\n", "null", "[]", '"ok"', "oops", *ANSWER, END
    ),
    "without the last blank line": sse(*ANSWER[:2], b"data: %s" % json.dumps(ANSWER[2]).encode()),
    "HTTP/1.0, until it is closed": [
        b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
        *(b"data: %s\n\n" % json.dumps(one).encode() for one in ANSWER),
        CLOSE,
    ],
    "without a content type": sse(*ANSWER, END, headers={"Content-Type": ""}),
    "with a content type of JSON": sse(*ANSWER, END, headers={"Content-Type": "application/json"}),
    "with a charset": sse(*ANSWER, END, headers={"Content-Type": "text/event-stream; charset=utf-8"}),
    "gzipped, piece by piece": sse(
        gzip.compress(b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in ANSWER)),
        headers={"Content-Encoding": "gzip"},
    ),
    "byte by byte": [
        *sse()[:1],
        *(piece(bytes([byte])) for one in ANSWER for byte in b"data: %s\r\n\r\n" % json.dumps(one).encode()),
        piece(b""),
    ],
}


@pytest.mark.parametrize("steps", WHOLE.values(), ids=WHOLE)
async def test_answer_that_is_complete_is_read(upstream: Upstream, build: Build, steps: list[Step]) -> None:
    upstream.say(steps)
    chunks = await chunks_of(build())
    assert [one for one in chunks if one is not DONE] == READ
    assert [one for one in chunks if one is DONE] == (
        [DONE] if END.encode() in b"".join(filter(_is_bytes, steps)) else []
    )


def _is_bytes(step: Step) -> bool:
    return isinstance(step, bytes)


AS_JSON: dict[str, list[Step]] = {
    "JSON": completion(),
    "JSON that is followed by [DONE]": reply(completion()[0].partition(b"\r\n\r\n")[2] + b"\n\ndata: [DONE]\n\n"),  # type: ignore[union-attr]
    "JSON that is called a stream": sse(completion()[0].partition(b"\r\n\r\n")[2]),  # type: ignore[union-attr]
    "JSON with white space before it": reply(b"\n \n" + completion()[0].partition(b"\r\n\r\n")[2]),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("steps", AS_JSON.values(), ids=AS_JSON)
async def test_completion_without_a_stream_is_read(upstream: Upstream, build: Build, steps: list[Step]) -> None:
    upstream.say(steps)
    _, used, text, finished, last = await chunks_of(build())
    assert isinstance(used, UsageReported)
    assert (used.usage.prompt + used.usage.completion, text, finished, last) == (7, TextDelta(["hi"]), STOP, DONE)


async def test_completion_with_calls_is_read(upstream: Upstream, build: Build) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    upstream.say(completion(None, reason="tool_calls", tool_calls=calls))
    assert ToolCallDelta(None, "c", "f", ["{}"]) in await chunks_of(build())


async def test_chunks_as_lines_of_json_are_read(upstream: Upstream, build: Build) -> None:
    upstream.say(reply(b"\n".join(json.dumps(one).encode() for one in ANSWER), "application/x-ndjson"))
    assert await chunks_of(build()) == [*READ, DONE]


async def test_lone_surrogate_in_a_completion_is_replaced(upstream: Upstream, build: Build) -> None:
    upstream.say(completion("a\ud83d"))
    assert texts_of(await chunks_of(build())) == ["a\ufffd"]


async def test_chunks_that_arrive_together_leave_together(upstream: Upstream, build: Build) -> None:
    go = asyncio.Event()
    together = b"".join(piece(b"data: %s\n\n" % json.dumps(one).encode()) for one in ANSWER[:2])
    upstream.say([*sse()[:1], together, go, piece(b"data: [DONE]\n\n"), piece(b"")])
    async with build().open(asking(QUESTION)) as answer:
        chunks = reads(answer)
        assert singly(await anext(chunks)) == deltas_of(ANSWER[:2])
        go.set()
        assert await anext(chunks) == [DONE]


async def test_line_of_megabytes_is_read(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(call(id="c", name="f", arguments="x" * 5_000_000), END))
    assert ToolCallDelta(0, "c", "f", ["x" * 5_000_000]) in await chunks_of(build())


async def test_heartbeats_after_the_finish_reason_do_not_keep_the_stream_open(upstream: Upstream, build: Build) -> None:
    beats = [step for _ in range(100) for step in (b": ping\n\n", 0.02)]
    upstream.say(sse(*ANSWER, *beats, HANG))
    assert await chunks_of(build(response__finish_grace_s=0.1)) == READ
    await upstream.requests[0].gone.wait()


async def test_chunks_within_the_grace_period_are_read(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hi"), finish(), 0.1, usage(), END))
    assert await chunks_of(build(response__finish_grace_s=5)) == deltas_of([chunk("Hi"), finish(), usage(), DONE])


async def test_profiles_filters_see_every_chunk(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("<thi"), chunk("nk>hm</think>"), chunk("Hi<"), finish("done"), END))
    _, *deltas = await chunks_of(build(response__think_tags="auto", response__finish_map={"done": "stop"}))
    assert deltas == [ReasoningDelta(["hm"]), TextDelta(["Hi<"]), STOP, DONE]


NOW = {"type": "function", "function": {"name": "now"}}  # without parameters


@pytest.mark.parametrize(
    ("tools", "called"),
    [
        ([{"type": "web_search"}, NOW], ["now"]),
        ([{"type": "function"}, "web_search", {**NOW, "function": {"name": "now", "parameters": None}}], ["now"]),
        ([{"type": "function", "function": {"name": ["now"]}}], []),
        ({"web_search": {}}, []),
    ],
)
async def test_tools_that_an_operator_adds_may_have_any_form(
    upstream: Upstream, build: Build, tools: Any, called: list[str]
) -> None:
    upstream.say(sse(chunk('<tool_call>{"name": "now", "arguments": {}}</tool_call>'), finish(), END))
    answered = [one for read in await reads_of(build(response__call_marks="auto"), tools=tools) for one in read]
    assert [one.name for one in answered if isinstance(one, ToolCallDelta)] == called


async def test_text_held_by_a_filter_comes_before_the_end(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("<thi"), END), sse(chunk("<thi")))
    upstream.say(sse(chunk("<thi")))
    backend = build(response__think_tags="auto")
    assert (await chunks_of(backend))[1:] == [TextDelta(["<thi"]), DONE]
    assert (await chunks_of(backend))[1:] == [TextDelta(["<thi"])]


# Failures.


@pytest.mark.parametrize("sign", [CLOSE, RESET])
async def test_stream_that_breaks_off_raises_after_its_last_chunk(upstream: Upstream, build: Build, sign: Step) -> None:
    upstream.say(sse(chunk("Hel"), chunk("lo"), sign))
    chunks, error = await until_error(build())
    assert chunks == deltas_of([chunk("Hel"), chunk("lo")])
    assert (error.status, error.type, error.code) == (502, "server_error", "server_error")
    assert "ended early" in error.message


async def test_chunks_before_the_break_are_read_however_late(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hel"), chunk("lo"), CLOSE))
    received: list[Delta] = []
    with pytest.raises(BackendError, match="ended early"):
        async with build().open(asking(QUESTION)) as answer:
            await asyncio.sleep(0.05)
            async for some in reads(answer):
                received += some
    assert singly(received) == deltas_of([chunk("Hel"), chunk("lo")])


async def test_frame_that_is_cut_off_is_no_chunk(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hel"), b'data: {"choices": [{"del', CLOSE))
    chunks, error = await until_error(build())
    assert (chunks, error.status) == (deltas_of([chunk("Hel")]), 502)


async def test_body_shorter_than_announced_is_broken(upstream: Upstream, build: Build) -> None:
    upstream.say([head({"Content-Type": "application/json", "Content-Length": "1000"}) + b'{"choices": [', CLOSE])
    assert (await refusal(build())).status == 502


async def test_end_without_a_finish_reason_is_for_the_reader_to_judge(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hel")))
    assert await chunks_of(build()) == deltas_of([chunk("Hel")])


EMPTY: dict[str, list[Step]] = {
    "an empty stream": sse(),
    "a stream of comments": sse(b": ping\n\n"),
    "an empty body": reply(b""),
    "a body of blanks": reply(b"\n\n"),
}


@pytest.mark.parametrize("steps", EMPTY.values(), ids=EMPTY)
async def test_answer_without_anything_is_an_error(upstream: Upstream, build: Build, steps: list[Step]) -> None:
    upstream.say(steps)
    chunks, error = await until_error(build())
    assert (chunks, error.status, error.message) == ([], 502, "The backend's answer is empty.")


async def test_empty_stream_whose_error_comes_without_streaming_is_that_error(upstream: Upstream, build: Build) -> None:
    too_long = {"message": "Requested tokens (5000) exceed context window of 4096", "type": "x", "code": None}
    upstream.say(reply(b"", "text/event-stream"))
    upstream.say(status(500, {"error": too_long}))
    error = await refusal(build(response__empty_stream="ask_whole"))
    assert (error.status, error.code) == (400, "context_length_exceeded")
    first, second = (request.json for request in upstream.requests)
    assert (first["stream"], second) == (True, {**QUESTION, "stream": False})


async def test_empty_stream_whose_answer_comes_without_streaming_is_that_answer(
    upstream: Upstream, build: Build
) -> None:
    upstream.say(reply(b"", "text/event-stream"))
    upstream.say(completion("Hi"))
    assert texts_of(await chunks_of(build(response__empty_stream="ask_whole"))) == ["Hi"]


NO_COMPLETIONS: dict[str, tuple[list[Step], int, str]] = {
    "a web page": (reply(b"<!doctype html><p>Hi", "text/html"), 502, "web page"),
    "a web page without a name": (reply(b"\n<html>", ""), 502, "web page"),
    "an error": (reply(b'{"error": {"message": "slow down", "code": 429}}'), 429, "slow down"),
    "MiniMax's error": (
        reply(b'{"choices": null, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}'),
        429,
        "insufficient balance",
    ),
    "no choice": (reply(b'{"id": "x", "choices": []}'), 502, "empty"),
    "an error in a list": (reply(b'[{"error": {"code": 400, "message": "bad"}}]'), 400, "bad"),
    "half of it": (reply(b'{"choices": ['), 502, "not complete"),
    "another thing": (reply(b"[1, 2]"), 502, "empty"),
}


@pytest.mark.parametrize(("steps", "code", "message"), NO_COMPLETIONS.values(), ids=NO_COMPLETIONS)
async def test_body_that_is_no_completion_is_refused_before_anything_is_sent(
    upstream: Upstream, build: Build, steps: list[Step], code: int, message: str
) -> None:
    upstream.say(steps)
    error = await refusal(build())
    assert error.status == code
    assert message in error.message
    assert "<" not in error.message


COUNTS = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
IN_STREAMS: dict[str, tuple[list[Step], int, str]] = {
    "an object": (sse({"error": {"message": "no", "type": "server_error"}}, END), 502, "no"),
    "flat": (sse({"object": "error", "message": "no", "code": 400}, END), 400, "no"),
    "a string": (sse({"error": "no"}, END), 502, "no"),
    "an error event with an object": (
        sse(b'event: error\ndata: {"error": {"message": "no", "code": 429}}\n\n'),
        429,
        "no",
    ),
    "an error event with a string": (sse(b"event: error\ndata: no\n\n"), 502, "no"),
    "next to choices": (sse({**chunk(""), "error": {"message": "no", "code": 503}}, END), 503, "no"),
    "with the finish reason": (sse({**finish("error"), "error": {"message": "no", "code": 502}}, END), 502, "no"),
    "without a good end": (sse({"error": {"message": "no"}}, CLOSE), 502, "no"),
}


@pytest.mark.parametrize(("steps", "code", "message"), IN_STREAMS.values(), ids=IN_STREAMS)
async def test_error_in_a_stream_comes_after_the_chunks_before_it(
    upstream: Upstream, build: Build, steps: list[Step], code: int, message: str
) -> None:
    first_piece = piece(b"data: %s\n\n" % json.dumps(chunk("Hel")).encode())
    upstream.say(steps[0], first_piece, steps[1:])
    upstream.say(steps[0], steps[1:])
    backend = build()
    chunks, error = await until_error(backend)
    assert (chunks, error.status, error.message) == (deltas_of([chunk("Hel")]), code, message)
    chunks, error = await until_error(backend)
    assert (chunks, error.status, error.message) == ([], code, message)


@pytest.mark.parametrize(
    "first_chunks", [[chunk("Hel"), finish("length")], [chunk("Hel")]], ids=["after the end", "before it"]
)
@pytest.mark.parametrize(
    "usage_fields",
    [
        {"choices": [], "usage": COUNTS},
        {"choices": [{"index": 0, "delta": {}, "usage": COUNTS}]},
        {"choices": [], "x_groq": {"usage": COUNTS}},
    ],
    ids=["chunk", "choice", "groq"],
)
async def test_usage_in_a_chunk_with_an_error_is_kept(
    upstream: Upstream, build: Build, first_chunks: list[Any], usage_fields: dict[str, Any]
) -> None:
    upstream.say(sse(*first_chunks, {**usage_fields, "error": {"message": "cut", "code": 500}}, END))
    chunks, error = await until_error(build())
    assert isinstance(last := chunks[-1], UsageReported)
    assert (last.usage.completion, error.message) == (7, "cut")


async def test_usage_in_a_first_chunk_with_an_error_is_no_answer(upstream: Upstream, build: Build) -> None:
    upstream.say(sse({"choices": [], "usage": COUNTS, "error": {"message": "no", "code": 500}}, END))
    chunks, error = await until_error(build())
    assert (chunks, error.message) == ([], "no")


async def test_null_error_in_a_chunk_is_none(upstream: Upstream, build: Build) -> None:
    upstream.say(sse({**chunk("Hi"), "error": None}, finish(), END))
    assert await chunks_of(build()) == deltas_of([{**chunk("Hi"), "error": None}, finish(), DONE])


async def test_stream_that_falls_silent_is_a_timeout(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hel"), HANG))
    chunks, error = await until_error(build(transport__idle_timeout=0.1))
    assert (chunks, error.status, error.code) == (deltas_of([chunk("Hel")]), 504, "timeout")
    await upstream.requests[0].gone.wait()


async def test_finish_reason_followed_by_text_does_not_end_the_stream(upstream: Upstream, build: Build) -> None:
    chunks = [finish(content=text) for text in ("H", "i", "!")]
    upstream.say(sse(*chunks[:2], 0.5, chunks[2], finish(), END))
    assert await chunks_of(build(response__finish_grace_s=0.1)) == deltas_of([*chunks, finish(), DONE])


async def test_heartbeats_before_the_finish_reason_keep_the_stream_open(upstream: Upstream, build: Build) -> None:
    beats = [step for _ in range(7) for step in (0.2, b": ping\n\n")]
    upstream.say(sse(chunk("Hi"), *beats, finish(), END))
    assert await chunks_of(build(transport__idle_timeout=1.2)) == deltas_of([chunk("Hi"), finish(), DONE])


async def test_consumer_that_is_slow_causes_no_timeout(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hi"), 0.05, finish(), END))
    async with build(transport__idle_timeout=0.5).open(asking(QUESTION)) as answer:
        stream = reads(answer)
        chunks = await anext(stream)
        await asyncio.sleep(0.7)
        async for some in stream:
            chunks += some
    assert singly(chunks) == deltas_of([chunk("Hi"), finish(), DONE])


@pytest.mark.parametrize("steps", [[HANG], [*sse()[:1], HANG]], ids=["no head", "no body"])
async def test_server_that_never_begins_is_a_timeout(upstream: Upstream, build: Build, steps: list[Step]) -> None:
    upstream.say(steps)
    chunks, error = await until_error(build(transport__first_byte_timeout=0.1, retries=2))
    assert (chunks, error.status, len(upstream.requests)) == ([], 504, 1)
    await upstream.requests[0].gone.wait()


async def test_first_token_may_take_longer_than_later_ones(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(0.3, chunk("Hi"), END))
    assert await chunks_of(build(transport__idle_timeout=0.1)) == deltas_of([chunk("Hi"), DONE])


async def test_server_that_is_not_there_is_an_error(build: Build) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        backend = ModelServer(f"http://127.0.0.1:{free.getsockname()[1]}/v1", "sk-1", retries=0)
        error = await refusal(backend)
        with pytest.raises(BackendError):
            await backend.check()
        await backend.aclose()
    assert (error.status, error.type, error.message) == (
        502,
        "server_error",
        "The backend cannot be reached: it refuses connections.",
    )


@pytest.mark.parametrize("sign", [CLOSE, RESET])
async def test_server_that_closes_without_an_answer_is_an_error(upstream: Upstream, build: Build, sign: Step) -> None:
    upstream.say([sign])
    assert (await refusal(build())).status == 502


async def test_answer_that_is_not_http_is_an_error(upstream: Upstream, build: Build) -> None:
    upstream.say([b"SSH-2.0-OpenSSH_9.6\r\n", CLOSE])
    assert (await refusal(build())).status == 502


# Refusals, by status.

REFUSALS: dict[str, tuple[list[Step], tuple[int, str, str, str]]] = {
    "a mistake": (
        status(400, {"error": {"message": "bad", "type": "BadRequestError", "code": 400}}),
        (400, "invalid_request", "invalid_request", "bad"),
    ),
    "a mistake in FastAPI's words": (
        status(422, {"detail": [{"loc": ["body", "x"], "msg": "Extra inputs are not permitted"}]}),
        (400, "invalid_request", "invalid_request", "x: Extra inputs are not permitted"),
    ),
    "plain text": (
        reply(b"Internal Server Error", "text/plain", status=500),
        (502, "server_error", "server_error", "Internal Server Error"),
    ),
    "a web page": (
        reply(b"<html><h1>Bad Gateway</h1>", "text/html", status=502),
        (502, "server_error", "server_error", "The backend failed."),
    ),
    "nothing": (reply(b"", status=500), (502, "server_error", "server_error", "The backend failed.")),
    "our key": (
        status(401, {"error": {"message": "Incorrect API key provided: sk-1234567"}}),
        (502, "server_error", "backend_auth", "The backend rejected this server's API key."),
    ),
    "a body that breaks off": (
        [head({"Content-Length": "100"}, 400) + b'{"error": "bad"}', CLOSE],
        (400, "invalid_request", "invalid_request", "bad"),
    ),
    "a body that never ends": (
        [head({"Transfer-Encoding": "chunked"}, 400), piece(b"x" * 500_000), piece(b"x" * 600_000), HANG],
        (400, "invalid_request", "invalid_request", "x" * 2000 + "..."),
    ),
    "a gzipped body": (
        reply(gzip.compress(b'{"error": "bad"}'), status=400, headers={"Content-Encoding": "gzip"}),
        (400, "invalid_request", "invalid_request", "bad"),
    ),
    "a redirect": (
        status(307, headers={"Location": "http://example.com/"}),
        (502, "server_error", "backend_url", "The backend does not have this endpoint. Check its base URL."),
    ),
}


@pytest.mark.parametrize(("steps", "expected"), REFUSALS.values(), ids=REFUSALS)
async def test_refusal_is_an_error_in_our_words(
    upstream: Upstream, build: Build, steps: list[Step], expected: tuple[int, str, str, str]
) -> None:
    upstream.say(steps)
    error = await refusal(build("sk-1234567"))
    assert (error.status, error.type, error.code, error.message) == expected


async def test_refusal_is_read_by_the_codec_of_the_endpoint_that_refused(
    upstream: Upstream, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(APIS, "chat", API("/chat/completions", "tests.backends.apis.echo:ECHO_CODEC"))
    upstream.say(status(400, {"problem": "Too many words."}))
    error = await refusal(build(transport__api="auto"))
    assert ([request.path for request in upstream.requests], error.message) == (
        ["/v1/chat/completions"],
        "Too many words.",
    )


async def test_keys_in_errors_are_redacted(upstream: Upstream, build: Build) -> None:
    upstream.say(status(500, {"error": "key s3cret is cursed"}))
    upstream.say(sse({"error": "key s3cret is cursed"}))
    upstream.say(status(500, {"error": "key caller5 is cursed"}))
    ours, callers = build("s3cret"), build("passthrough")
    assert (await refusal(ours)).message == "key *** is cursed"
    assert (await until_error(ours))[1].message == "key *** is cursed"
    assert (await refusal(callers, "caller5")).message == "key *** is cursed"


# Asking again.

SOON = {"retry-after-ms": "1"}


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504, 529])
async def test_failure_that_passes_is_retried(upstream: Upstream, build: Build, code: int) -> None:
    upstream.say(status(code, {"error": "not now"}, SOON if code in (429, 503, 529) else {}))
    upstream.say(sse(chunk("Hi"), END))
    assert await chunks_of(build(retries=1)) == deltas_of([chunk("Hi"), DONE])


async def test_retries_are_bounded(upstream: Upstream, build: Build) -> None:
    upstream.always(status(429, {"error": "not now"}, SOON))
    error = await refusal(build(retries=2))
    assert (error.status, error.message, len(upstream.requests)) == (429, "not now", 3)


@pytest.mark.parametrize(
    "steps",
    [
        status(400, {"error": "bad"}),
        status(401, {"error": "bad"}),
        status(404, {"error": "model not found"}),
        status(422, {"detail": "bad"}),
        status(500, {"error": "Jinja Exception: roles must alternate"}),
        status(429, {"error": {"message": "no money", "code": "insufficient_quota"}}, SOON),
        status(429, {"error": "much later"}, {"Retry-After": "60"}),
        status(429, {"error": "not now"}, {**SOON, "x-should-retry": "false"}),
    ],
    ids=["mistake", "key", "model", "schema", "mistake as 500", "quota", "long wait", "told not to"],
)
async def test_permanent_error_is_not_retried(upstream: Upstream, build: Build, steps: list[Step]) -> None:
    upstream.always(steps)
    await refusal(build(retries=2))
    assert len(upstream.requests) == 1


FIRST_FRAMES: dict[str, tuple[str, list[Step], list[Step]]] = {
    "chat": (
        "chat",
        sse({"error": {"message": "not now. Please try again in 1ms.", "code": 429}}, END),
        sse(chunk("Hi"), finish(), END),
    ),
    "chat as JSON": (
        "chat",
        reply(json.dumps({"error": {"message": "not now", "code": 503, "retry_after": 0}}).encode()),
        sse(chunk("Hi"), finish(), END),
    ),
    "responses": (
        "responses",
        sse(
            {"type": "response.created", "response": {"id": "resp_1"}},
            {
                "type": "response.failed",
                "response": {
                    "status": "failed",
                    "error": {"code": "rate_limit_exceeded", "message": "Please try again in 1ms."},
                },
            },
        ),
        sse(
            {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "delta": "Hi"},
            {"type": "response.completed", "response": {"status": "completed"}},
        ),
    ),
    "messages": (
        "messages",
        sse(
            b'event: message_start\ndata: {"type": "message_start", "message": {"usage": {"input_tokens": 1}}}\n\n',
            b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded", '
            b'"retry_after": 0}}\n\n',
        ),
        sse(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            {"type": "message_stop"},
        ),
    ),
}


@pytest.mark.parametrize(("api", "error", "answer"), FIRST_FRAMES.values(), ids=FIRST_FRAMES)
async def test_error_in_the_first_frame_is_retried(
    upstream: Upstream, build: Build, api: str, error: list[Step], answer: list[Step]
) -> None:
    upstream.native = True
    upstream.say(error)
    upstream.say(answer)
    texts = texts_of(await chunks_of(build(retries=1, transport__api=api)))
    assert (texts, len(upstream.requests)) == (["Hi"], 2)


async def test_retries_of_statuses_and_of_first_frames_are_counted_together(upstream: Upstream, build: Build) -> None:
    upstream.say(status(503, {"error": "not now"}, SOON))
    upstream.always(sse({"error": {"message": "not now", "code": 503, "retry_after": 0}}, END))
    _, error = await until_error(build(retries=2))
    assert (error.status, len(upstream.requests)) == (503, 3)


@pytest.mark.parametrize(
    "error",
    [
        {"message": "bad", "code": 400},
        {"message": "no money", "code": "insufficient_quota"},
        {"message": "the call cannot be read", "code": "tool_use_failed"},
        {"message": "Please try again in 60s.", "code": 429},
    ],
    ids=["mistake", "quota", "model", "long wait"],
)
async def test_permanent_error_in_the_first_frame_is_not_retried(
    upstream: Upstream, build: Build, error: dict[str, Any]
) -> None:
    upstream.always(sse({"error": error}, END))
    await until_error(build(retries=2))
    assert len(upstream.requests) == 1


async def test_error_after_the_first_chunk_is_not_retried(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hel"), {"error": {"message": "not now", "code": 503, "retry_after": 0}}, END))
    chunks, error = await until_error(build(retries=2))
    assert (chunks, error.status, len(upstream.requests)) == (deltas_of([chunk("Hel")]), 503, 1)


async def test_retry_after_that_is_long_is_passed_on(upstream: Upstream, build: Build) -> None:
    upstream.say(status(429, {"error": "much later"}, {"Retry-After": "60"}))
    assert (await refusal(build(retries=2))).headers() == {"Retry-After": "60"}


async def test_retry_that_the_server_asks_for_is_made(upstream: Upstream, build: Build) -> None:
    upstream.say(status(409, {"error": "not now"}, {"x-should-retry": "true"}))
    upstream.say(sse(chunk("Hi"), END))
    assert await chunks_of(build(retries=1)) == deltas_of([chunk("Hi"), DONE])


async def test_connection_that_breaks_before_the_answer_is_retried(upstream: Upstream, build: Build) -> None:
    upstream.say([RESET])
    upstream.say(sse(chunk("Hi"), END))
    assert await chunks_of(build(retries=1)) == deltas_of([chunk("Hi"), DONE])


async def test_answer_that_has_begun_is_not_retried(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hel"), RESET))
    chunks, _ = await until_error(build(retries=2))
    assert (chunks, len(upstream.requests)) == (deltas_of([chunk("Hel")]), 1)


# Connections.


async def test_closing_early_closes_the_connection_at_once(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(chunk("Hel"), HANG))
    async with build().open(asking(QUESTION)) as answer:
        await anext(reads(answer))
        assert not upstream.requests[0].gone.is_set()
    await upstream.requests[0].gone.wait()


@pytest.mark.parametrize(
    "steps", [[HANG], sse(chunk("Hel"), HANG), [*reply(b"{", headers={"Content-Length": "9"}), HANG]]
)
async def test_cancelled_caller_closes_the_connection_at_once(
    upstream: Upstream, build: Build, steps: list[Step]
) -> None:
    upstream.say(steps)
    asking = asyncio.ensure_future(chunks_of(build()))
    while not upstream.requests:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.02)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await upstream.requests[0].gone.wait()


@pytest.mark.parametrize(
    "steps",
    [sse(*ANSWER, END), sse(*ANSWER, END, 0.05), sse(*ANSWER), completion(), status(400, {"error": "bad"})],
    ids=["stream", "end that follows later", "stream without [DONE]", "JSON", "refusal"],
)
async def test_connection_of_a_complete_answer_is_reused(upstream: Upstream, build: Build, steps: list[Step]) -> None:
    upstream.always(steps)
    backend = build()
    for _ in range(3):
        with contextlib.suppress(BackendError):
            await reads_of(backend)
        await upstream.requests[-1].answered.wait()
        await asyncio.sleep(0.02)
    assert (len(upstream.requests), upstream.connections) == (3, 1)


async def test_concurrent_requests_have_connections_of_their_own(upstream: Upstream, build: Build) -> None:
    go = asyncio.Event()
    upstream.always(sse(chunk("Hi"), go, finish(), END))
    backend = build()
    asking = [asyncio.ensure_future(chunks_of(backend)) for _ in range(300)]
    while len(upstream.requests) < 300:
        await asyncio.sleep(0.01)
    go.set()
    assert await asyncio.gather(*asking) == [deltas_of([chunk("Hi"), finish(), DONE])] * 300


async def test_answer_can_be_opened_read_and_closed_in_different_tasks(upstream: Upstream, build: Build) -> None:
    upstream.say(sse(*ANSWER, END))
    context = build(transport__idle_timeout=5).open(asking(QUESTION))
    answer = await asyncio.create_task(context.__aenter__())
    chunks = singly([one async for some in reads(answer) for one in some])
    await asyncio.create_task(context.__aexit__(None, None, None))
    assert chunks == [*READ, DONE]


async def test_transport_of_httpx_can_be_replaced(upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hi"), finish(), END))
    upstream.say(sse(chunk("Hel"), CLOSE))
    upstream.say(sse(chunk("Hi"), finish(), b": ping\n\n", HANG))
    profile = Profile().override({"response.finish_grace_s": 0.1})
    backend = ModelServer(upstream.url, profile=profile, http=httpx.AsyncHTTPTransport())
    assert await chunks_of(backend) == deltas_of([chunk("Hi"), finish(), DONE])
    assert (await until_error(backend))[0] == deltas_of([chunk("Hel")])
    assert await chunks_of(backend) == deltas_of([chunk("Hi"), finish()])
    await backend.aclose()


async def test_replaced_transport_leaves_read_timeouts_to_the_client(upstream: Upstream) -> None:
    timeouts = []

    class Recording(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            timeouts.append(request.extensions["timeout"])
            return await super().handle_async_request(request)

    profile = Profile().override({"transport.connect_timeout": 7, "transport.first_byte_timeout": 0.1})
    for steps in ([HANG], [*sse()[:1], HANG]):
        upstream.say(steps)
        backend = ModelServer(upstream.url, profile=profile, http=Recording(), retries=0)
        chunks, error = await until_error(backend)
        assert (chunks, error.status) == ([], 504)
        await backend.aclose()
    assert timeouts == [{"connect": 7, "pool": 7}] * 2


def test_client_on_uvloop_works_the_same() -> None:
    async def story() -> None:
        async with Upstream() as upstream:
            backend = ModelServer(upstream.url, profile=Profile().override({"transport.idle_timeout": 0.2}))
            upstream.always(sse(*ANSWER, END))
            assert await asyncio.gather(*[chunks_of(backend) for _ in range(20)]) == [[*READ, DONE]] * 20
            connections = upstream.connections
            assert await chunks_of(backend) == [*READ, DONE]
            assert upstream.connections == connections
            upstream.say(sse(chunk("Hel"), RESET))
            assert (await until_error(backend))[0] == deltas_of([chunk("Hel")])
            upstream.say(sse(chunk("Hel"), HANG))
            assert (await until_error(backend))[1].status == 504
            await upstream.requests[-1].gone.wait()
            await backend.aclose()

    with asyncio.Runner(loop_factory=pytest.importorskip("uvloop").new_event_loop) as runner:
        runner.run(story())


# Models.

LISTS = {
    "OpenAI": {"object": "list", "data": [{"id": "a", "object": "model", "created": 5, "owned_by": "x"}]},
    "a bare list": [{"id": "a", "created": 5, "owned_by": "x"}],
    "Ollama's names": {"models": [{"name": "a", "created": 5, "owned_by": "x", "object": None}]},
    "both": {"models": [{"name": "b"}], "data": [{"id": "a", "created": 5, "owned_by": "x"}]},
}


@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS)
async def test_model_list_is_completed(upstream: Upstream, build: Build, listed: Any) -> None:
    upstream.models = None
    upstream.say(status(200, listed))
    (model,) = await build("sk-1").models()
    assert {"id": "a", "object": "model", "created": 5, "owned_by": "x"}.items() <= model.items()
    assert (upstream.requests[0].method, upstream.requests[0].path) == ("GET", "/v1/models")


async def test_model_fields_that_are_missing_are_filled_in(upstream: Upstream, build: Build) -> None:
    upstream.models = None
    upstream.say(status(200, ["a"]))
    upstream.say(status(200, {"object": "list"}))
    backend = build()
    assert await backend.models() == [{"id": "a", "object": "model", "created": 0, "owned_by": "backend"}]
    assert await backend.models() == []


@pytest.mark.parametrize(
    ("steps", "code"),
    [(status(401), 502), (reply(b"<html>", "text/html"), 502), (status(429), 429), ([CLOSE], 502)],
)
async def test_models_that_cannot_be_listed_are_an_error(
    upstream: Upstream, build: Build, steps: list[Step], code: int
) -> None:
    upstream.models = None
    upstream.say(steps)
    with pytest.raises(BackendError) as caught:
        await build().models()
    assert caught.value.status == code


HEALTH: dict[str, tuple[str | None, list[list[Step]], str | None]] = {
    "it lists its models": (None, [status(200, {"data": []})], None),
    "it lists no models but completes": (
        None,
        [status(404, {"detail": "Not Found"}), status(422, {"detail": "no model"})],
        None,
    ),
    "it has no such path at all": (None, [status(404), status(404, {"detail": "Not Found"})], "backend_url"),
    "it rejects our key": ("sk-1", [status(401)], "backend_auth"),
    "it wants a caller's key": ("passthrough", [status(401)], None),
    "it is down": (None, [status(503)], "server_is_overloaded"),
    "it is a web site": (None, [reply(b"<html>", "text/html")], "server_error"),
}


@pytest.mark.parametrize(("key", "answers", "code"), HEALTH.values(), ids=HEALTH)
async def test_health_of_a_server_can_be_checked(
    upstream: Upstream, build: Build, key: str | None, answers: list[list[Step]], code: str | None
) -> None:
    upstream.models = None
    for answer in answers:
        upstream.say(answer)
    try:
        await build(key).check()
    except BackendError as error:
        assert error.code == code
    else:
        assert code is None


def test_profile_is_the_same_for_every_model() -> None:
    server = ModelServer("http://localhost:1/v1", profile=Profile(name="x"))
    assert server.profile("m") is server.profile("n")
    assert server.profile("m") == Profile(name="x").override({"transport.base_url": "http://localhost:1/v1"})


@pytest.mark.parametrize("streamed", [True, False])
async def test_large_part_of_an_answer_is_one_chunk(upstream: Upstream, build: Build, streamed: bool) -> None:
    image = "A" * 3 * LARGE
    upstream.say(sse(chunk("Hi"), chunk(image), chunk("Bye"), finish(), END) if streamed else completion(image))
    texts = texts_of(await chunks_of(build()))
    assert texts == (["Hi", image, "Bye"] if streamed else [image])
