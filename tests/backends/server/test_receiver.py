"""Chunks that arrive while the iterator is awaited, and are taken by the request's receiver."""

from __future__ import annotations

import asyncio

import pytest

from app.backends import DONE, Chunk
from app.backends.server.client import ModelServer
from app.core.profile import Profile
from app.core.types.chunk import RawChunk
from tests.support.build import each
from tests.support.exchanges import asking
from tests.support.upstream import DONE as END
from tests.support.upstream import HANG, Upstream, chunk, finish, sse

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def text_of(one: Chunk) -> str:
    return "" if one is DONE else one["choices"][0]["delta"].get("content") or ""


async def test_a_chunk_that_arrives_alone_is_offered_first_and_otherwise_an_item(upstream: Upstream) -> None:
    gates = {name: asyncio.Event() for name in "abc"}
    upstream.say(sse(chunk("a"), gates["a"], chunk("b"), gates["b"], chunk("c"), gates["c"], chunk("d"), finish(), END))
    taken, read = list[str](), list[str]()

    def take(chunk: RawChunk, field: str, text: str) -> bool:
        if text == "c":
            return False
        taken.append(text)
        gates["b"].set()
        return True

    backend = ModelServer(upstream.url, retries=0)
    async with backend.open(asking(QUESTION)) as answer:
        answer.receiver = take
        async for chunks in answer:
            read += filter(None, map(text_of, each(chunks)))
            gates[read[-1]].set() if read[-1] in gates else None
    await backend.aclose()
    assert (read[:2], taken[:1], sorted(read + taken)) == (["a", "c"], ["b"], ["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("second", "filtered", "offered"),
    [
        (chunk("b"), {}, ["b"]),
        (chunk("b"), {"response.whitespace_only_content": "drop"}, []),  # filters see every chunk
        (finish(), {}, []),
        ({**chunk("b"), "usage": {"prompt_tokens": 1}}, {}, []),
        ({"error": {"message": "No."}}, {}, []),
    ],
)
async def test_only_a_piece_of_text_like_an_earlier_one_is_offered(
    upstream: Upstream, second: dict[str, object], filtered: dict[str, object], offered: list[str]
) -> None:
    read, seen, taken = asyncio.Event(), asyncio.Event(), list[str]()
    upstream.say(sse(chunk("a"), read, second, HANG))

    def take(chunk: RawChunk, field: str, text: str) -> bool:
        taken.append(text)
        seen.set()
        return True

    async def follow() -> None:
        async with backend.open(asking(QUESTION)) as answer:
            answer.receiver = take
            async for _ in answer:
                (seen if read.is_set() else read).set()

    backend = ModelServer(upstream.url, profile=Profile().override(filtered), retries=0)
    following = asyncio.ensure_future(follow())
    following.add_done_callback(lambda _: seen.set())
    await seen.wait()
    assert taken == offered
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await backend.aclose()


async def test_an_error_of_the_receiver_is_raised_by_the_iterator_and_ends_the_answer(upstream: Upstream) -> None:
    read = asyncio.Event()
    upstream.say(sse(chunk("a"), read, chunk("b"), HANG))

    def take(chunk: RawChunk, field: str, text: str) -> bool:
        raise ZeroDivisionError

    backend = ModelServer(upstream.url, retries=0)
    with pytest.raises(ZeroDivisionError):
        async with backend.open(asking(QUESTION)) as answer:
            answer.receiver = take
            async for _ in answer:
                read.set()
    await upstream.requests[0].gone.wait()
    await backend.aclose()
