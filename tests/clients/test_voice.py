"""Voice frameworks on the WebSocket: an interruption ends the answer at once, and later turns get their own answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.clients.answers import saying
from tests.clients.clients import VOICE, Driver
from tests.support.upstream import HANG, Upstream, chunk, sse


@pytest.mark.parametrize("name", [*VOICE])
async def test_interrupted_answer_is_not_mixed_with_the_next_ones(
    name: str, server: str, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.say(sse(chunk("Answer to "), HANG))
    upstream.say(saying("Answer to two."))
    upstream.say(saying("Answer to three."))
    shown = await Driver(VOICE[name], server, tmp_path).shows("interrupted")
    assert shown == {"turns": ["Answer to ", "Answer to two.", "Answer to three."], "errors": []}
    await asyncio.wait_for(upstream.requests[0].gone.wait(), 60)  # the model no longer generates the first answer
    assert len(upstream.requests) == 3
