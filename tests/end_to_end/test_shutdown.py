"""A stopping server gives all its work the same grace period."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.uvicorn.disconnect import CancelOnDisconnect
from app.main import create_app
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, serving, settings

HELLO: list[Any] = [delta(content="Hel"), delta(content="lo")]
GRACE = 2  # seconds
AS_SERVED: dict[str, Any] = {
    "http": "app.api.uvicorn.http:HTTPProtocol",
    "ws": "app.api.uvicorn.websocket:WebSocketProtocol",
    "timeout_graceful_shutdown": GRACE,
}


async def stopped_while(store_url: str, stream: list[Any] | None, background: list[Any]) -> str:
    """
    Stop a server during a background response, and possibly a stream; return the background response's final status.
    """
    backend = Scripted(*([stream] if stream else []), background)
    app = create_app(settings(store_url=store_url, shutdown_grace=GRACE), backend=backend)
    async with contextlib.AsyncExitStack() as stack:
        async with serving(app, **AS_SERVED) as url:
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60, trust_env=False))
            body = {"model": "m", "input": "Hi"}
            if stream:
                request = http.build_request("POST", "/v1/responses", json={**body, "stream": True})
                stack.push_async_callback((await http.send(request, stream=True)).aclose)
            id = (await http.post("/v1/responses", json={**body, "background": True})).json()["id"]
            while backend.opened < 1 + bool(stream):
                await asyncio.sleep(0.01)
    async with (
        antiphon(Scripted([]), store_url=store_url) as url,
        httpx.AsyncClient(timeout=60, trust_env=False) as http,
    ):
        status: str = (await http.get(f"{url}/v1/responses/{id}")).json()["status"]
        return status


@pytest.mark.parametrize(
    ("stream", "background", "status"),
    [
        (None, [*HELLO, 0.5], "completed"),
        (None, [*HELLO, 60.0], "failed"),
        # The grace period is shared: the stream and the background response use it together.
        ([*HELLO, 60.0], [*HELLO, 0.5], "completed"),
        ([*HELLO, 60.0], [*HELLO, 3.4], "failed"),
    ],
)
async def test_background_responses_at_shutdown_get_as_much_time_as_streams(
    stream: list[Any] | None, background: list[Any], status: str, tmp_path: Path
) -> None:
    assert await stopped_while(f"sqlite:///{tmp_path}/store.db", stream, background) == status


async def test_client_that_disconnects_at_shutdown_keeps_no_request_running() -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def answer() -> None:
        with CancelOnDisconnect({"type": "http"}, receive):
            begun.set()
            await asyncio.Event().wait()

    answering = asyncio.create_task(answer())
    await begun.wait()
    await asyncio.sleep(0)
    gone.set()
    answering.cancel()
    await asyncio.wait({answering})
    assert answering.cancelled()
