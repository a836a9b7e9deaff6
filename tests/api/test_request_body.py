"""Bodies as clients write them: cut through a character, with a mark at the start, packed, or not there at all."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import zstandard
from websockets.asyncio.client import connect

from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon

HELLO: list[Step] = [{"choices": [{"index": 0, "delta": {"content": "Hello."}, "finish_reason": None}]}]


async def posted(body: bytes, path: str = "/v1/responses", **headers: str) -> tuple[httpx.Response, list[Any]]:
    """The answer to a body, and the backend's request."""
    backend = Scripted(HELLO)
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        headers = {"content-type": "application/json"} | {name.replace("_", "-"): it for name, it in headers.items()}
        answer = await client.post(path, content=body, headers=headers)
    return answer, [message["content"] for chat_body in backend.received for message in chat_body["messages"]]


@pytest.mark.parametrize(
    ("written", "read"),
    {
        r"cut \ud83d": "cut \ufffd",
        r"\uDE00 begun": "\ufffd begun",
        r"\ud83d\ud83d\ude00": "\ufffd😀",
        r"\ud83d\u0041": "\ufffdA",
        r"\ud83d \\ud83d": r"� \ud83d",
        r"\\\ud83d": "\\\ufffd",
    }.items(),
)
async def test_lone_surrogate_in_a_body_is_replaced(written: str, read: str) -> None:
    """JavaScript clients cut long outputs within a surrogate pair, and resend them in each turn."""
    answer, messages = await posted(b'{"model": "m", "input": "%b"}' % written.encode())
    assert answer.status_code == 200
    assert messages == [read]


async def test_lone_surrogate_in_a_websocket_frame_is_replaced() -> None:
    backend = Scripted(HELLO)
    async with antiphon(backend) as url, connect(f"{url.replace('http', 'ws')}/v1/responses") as socket:
        await socket.send(r'{"type": "response.create", "model": "m", "input": "cut \ud83d"}')
        assert '"response.created"' in str(await socket.recv())
    assert backend.received[0]["messages"] == [{"role": "user", "content": "cut \ufffd"}]


@pytest.mark.parametrize("body", [b'{"model": "m", "input": "\\ud83d"', b'{"model": "\\ud83', b'{"input": "\\ud83d" "'])
async def test_body_that_is_no_json_with_surrogates_is_refused(body: bytes) -> None:
    answer, _ = await posted(body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


async def test_byte_order_mark_of_a_body_is_skipped() -> None:
    answer, messages = await posted(b'\xef\xbb\xbf{"model": "m", "input": "Hi."}')
    assert (answer.status_code, messages) == (200, ["Hi."])


async def test_gzip_under_its_other_name_is_read() -> None:
    """ "A recipient SHOULD consider 'x-gzip' to be equivalent to 'gzip'." """
    body = gzip.compress(b'{"model": "m", "input": "Hi."}')
    answer, messages = await posted(body, content_encoding="x-gzip")
    assert (answer.status_code, messages) == (200, ["Hi."])


async def test_conversation_without_a_body_is_created() -> None:
    answer, _ = await posted(b"", "/v1/conversations")
    assert (answer.status_code, answer.json()["object"]) == (200, "conversation")


async def test_empty_body_sets_nothing() -> None:
    answer, _ = await posted(b"")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize(
    ("input", "param"),
    [
        (5, "input"),
        ({"role": "user", "content": "Hi."}, "input"),
        ([{"role": "user", "content": 5}], "input[0].content"),
    ],
)
async def test_input_that_is_neither_string_nor_list_is_refused(input: Any, param: str) -> None:
    async with antiphon(Scripted(HELLO)) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        error = (await client.post("/v1/responses", json={"model": "m", "input": input})).json()["error"]
    assert error["param"] == param
    assert error["message"] == f"Invalid '{param}': must be a string or a list."


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 413)])
@pytest.mark.parametrize(
    ("encoding", "pack"), [("identity", bytes), ("gzip", gzip.compress), ("zstd", zstandard.compress)]
)
async def test_body_of_the_largest_size_is_accepted(
    encoding: str, pack: Callable[[bytes], bytes], more: int, status: int
) -> None:
    body = b'{"model": "m", "input": "%b"}' % (b"x" * 1000)
    async with antiphon(Scripted(HELLO), max_body_bytes=len(body)) as url:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            headers = {"content-encoding": encoding}
            answer = await client.post(f"{url}/v1/responses", content=pack(body + b" " * more), headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize(("window", "status"), [(27, 200), (28, 400)])
async def test_compressed_body_with_too_large_a_window_is_refused(window: int, status: int) -> None:
    """A few bytes of zstd can require gigabytes of memory: the window size is a power of two."""
    body = b'{"model": "m", "input": "Hi."}'
    last_and_raw = (len(body) << 3 | 1).to_bytes(3, "little")
    packed = bytes.fromhex("28b52ffd00") + bytes([(window - 10) << 3]) + last_and_raw + body
    answer, _ = await posted(packed, content_encoding="zstd")
    assert answer.status_code == status


@pytest.mark.parametrize("field", ["reasoning", "text", "stream_options"])
async def test_error_for_a_field_that_must_be_an_object_says_so(field: str) -> None:
    answer, _ = await posted(b'{"model": "m", "input": "Hi.", "%b": 5}' % field.encode())
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"Invalid '{field}': must be an object."
