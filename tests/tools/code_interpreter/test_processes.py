"""Containers with several workers, and with a server killed while code runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.bubblewrap.watch import descendants
from tests.clients.answers import calling, saying
from tests.faults.servers import server
from tests.support.upstream import Upstream
from tests.tools.files.conftest import openai_client

AUTO: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
TOOLS = json.dumps({"code_interpreter": {"provider": "bubblewrap"}})


def runs(code: str) -> list[Any]:
    return calling("code_interpreter", json.dumps({"code": code}))


async def respond(client: AsyncOpenAI, **options: Any) -> Any:
    wanted = {"model": "m", "input": "Go.", "tools": [AUTO], "include": ["code_interpreter_call.outputs"], **options}
    return await client.responses.create(**wanted)


async def test_container_of_a_conversation_is_kept_whichever_worker_answers(
    bubblewrap: Bubblewrap, upstream: Upstream, tmp_path: Path
) -> None:
    settings = {"workers": 2, "store_url": f"sqlite:///{tmp_path}/a.db", "backend_url": upstream.url, "tools": TOOLS}
    with server(**settings) as served:
        previous, containers = None, set()
        for number in range(6):
            upstream.say(runs("x = 0" if not number else "x += 1; print(x)"))
            upstream.say(saying("Done."))
            async with openai_client(served.url) as client:  # a connection of its own, maybe to another worker
                response = await respond(client, previous_response_id=previous)
            previous = response.id
            containers.add(response.output[0].container_id)
        assert response.output[0].outputs[0].logs == "5\n"
        (container,) = containers
        for _ in range(4):
            async with openai_client(served.url) as client:
                assert (await client.containers.retrieve(container)).status == "running"


async def test_server_that_is_killed_ends_its_sandboxes_and_runs_nothing_twice(
    bubblewrap: Bubblewrap, upstream: Upstream, tmp_path: Path
) -> None:
    settings = {
        "store_url": f"sqlite:///{tmp_path}/a.db",
        "background_lease": 2,
        "backend_url": upstream.url,
        "tools": TOOLS,
    }
    upstream.say(runs("import time; time.sleep(600)"))
    with server(**settings) as served:
        async with openai_client(served.url) as client:
            response = await respond(client, background=True)
            while not (await client.containers.list()).data or len(descendants(served.process.pid)) < 3:
                await asyncio.sleep(0.02)
        sandbox = descendants(served.process.pid)
        served.process.kill()
        served.process.wait()
        async with asyncio.timeout(60):
            while any(map(is_running, sandbox)):
                await asyncio.sleep(0.02)
    with server(**settings) as served:
        async with openai_client(served.url) as client:
            while (ended := await client.responses.retrieve(response.id)).status in ("queued", "in_progress"):
                await asyncio.sleep(0.1)
            assert ended.status == "failed" and len(upstream.requests) == 1
            assert (await client.containers.list()).data == []
            upstream.say(runs("6 * 7"))
            upstream.say(saying("Done."))
            again = await respond(client)
            assert again.output[0].outputs[0].logs == "42\n"


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
