"""
The same translation as an ordinary FastAPI application: validation, httpx, and a task between them.

    python -m tests.bench.floors.framework --port 9103 --upstream 9100
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.backends.transport import HTTPToolsTransport
from tests.bench.floors.translation import Translation, chat_request, whole

HEADERS = {"content-type": "application/json"}
Ask = Callable[[bytes], Any]


class Message(BaseModel):
    """An input item."""

    role: str
    content: str


class CreateResponse(BaseModel):
    """A request."""

    model_config = ConfigDict(extra="ignore")
    model: str
    input: list[Message]
    stream: bool = False
    tools: list[dict[str, Any]] = []


class Stream(Response):
    """An answer's events."""

    background = None

    def __init__(self, request: dict[str, Any], ask: Ask) -> None:
        self.request, self.ask = request, ask
        self.status_code = 200
        self.init_headers({"content-type": "text/event-stream", "cache-control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self.pump(send))
        watch = asyncio.ensure_future(self.watch(receive, pump))
        try:
            await pump
        finally:
            watch.cancel()

    async def pump(self, send: Callable[[Any], Awaitable[None]]) -> None:
        translation = Translation(self.request)
        async with self.ask(chat_request(self.request)) as answer:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": translation.begin(), "more_body": True})
            async for data in answer.extensions["stream"]:
                if events := translation.feed(data):
                    await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    async def watch(receive: Receive, pump: asyncio.Future[None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        pump.cancel()


def application(upstream: int) -> FastAPI:
    """Return the application; `upstream` is a local port."""
    client = httpx.AsyncClient(transport=HTTPToolsTransport(trust_env=False), timeout=60)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    app = FastAPI(lifespan=lifespan)

    def ask(body: bytes) -> Any:
        url = f"http://127.0.0.1:{upstream}/v1/chat/completions"
        return client.stream("POST", url, content=body, headers=HEADERS)

    @app.post("/v1/responses", response_model=None)
    async def create(request: CreateResponse) -> Response:
        fields = request.model_dump()
        if request.stream:
            return Stream(fields, ask)
        async with ask(chat_request(fields)) as answer:
            return Response(whole(fields, await answer.aread()), media_type="application/json")

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The translation, in FastAPI.")
    parser.add_argument("--port", type=int, default=9103)
    parser.add_argument("--upstream", type=int, default=9100)
    arguments = parser.parse_args()
    uvicorn.run(application(arguments.upstream), port=arguments.port, log_level="warning", access_log=False)
