"""Cyclic garbage per response: the collector walks through all live objects to find it."""

from __future__ import annotations

import gc

import httpx
import pytest

from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_of_any_length_is_freed_with_its_last_reference(stream: bool) -> None:
    async with Upstream() as upstream, antiphon(backend_url=upstream.url) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:

            async def left_behind(deltas: int) -> int:
                upstream.always(sse(*[chunk("word ") for _ in range(deltas)], finish(), DONE))
                gc.collect()
                gc.disable()
                try:
                    for _ in range(3):
                        body = {"model": "m", "input": "Hi", "stream": stream}
                        assert (await http.post("/v1/responses", json=body)).status_code == 200
                    return gc.collect()
                finally:
                    gc.enable()

            await left_behind(2)  # initialization
            assert await left_behind(1000) < await left_behind(2) + 1000
