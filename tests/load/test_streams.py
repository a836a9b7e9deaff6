"""Many concurrent streams: each receives all deltas, and none remains open."""

from __future__ import annotations

import asyncio

from tests.load import streams
from tests.load.traffic import calling
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, upstream, usage

__all__ = ["upstream"]  # a fixture

STREAMS = 200


async def test_many_streams_at_once_receive_each_its_own(upstream: Upstream) -> None:
    go = asyncio.Event()
    upstream.always(sse(chunk("1.0 "), go, chunk("2.0 "), chunk("3.0 "), finish(), usage(), DONE))
    async with antiphon(backend_url=upstream.url, secret_key="k") as url, calling(url) as observer:
        port = int(url.rpartition(":")[2])
        received, opening = streams.run("responses", [port], streams=STREAMS, deltas=3, period=1, ramp=0.5)
        async with asyncio.timeout(120):
            while await observer.gauges() != {'antiphon_responses_open{delivery="sse"}': STREAMS}:
                await asyncio.sleep(0.05)
        go.set()
        await opening
        afterwards = await observer.gauges()

    assert received.wrong == []
    assert received.completed == STREAMS
    assert len(received.deltas) == 3 * STREAMS
    assert afterwards == {}
