"""All kinds of callers, well-behaved or not: each is a function with a client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from tests.load.echo import answer_to
from tests.support import sockets

ASK = {"model": "m", "input": "a"}
ANSWER = answer_to(["a"])

Caller = Callable[["Traffic"], Awaitable[None]]


class Traffic:
    """Clients of a server. `wrong` has their unexpected results."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.url = url
        self.http = http
        self._turn = itertools.cycle(CALLERS)

    async def one(self) -> None:
        """Run the next kind of caller."""
        call = next(self._turn)
        try:
            await call(self)
        except Exception as error:
            self.wrong.append(f"{call.__name__}: {error!r}")
        self.done[call.__name__] += 1

    async def ask(self, status: int = 200, **more: Any) -> dict[str, Any]:
        """Ask for a response, and expect some status."""
        answer = await self.http.post("/v1/responses", json={**ASK, **more})
        assert answer.status_code == status, f"{answer.status_code} {answer.text[:300]}"
        response: dict[str, Any] = answer.json()
        return response

    async def gauges(self) -> dict[str, float]:
        """Return the server's gauges for open or waiting work, if above 0."""
        text = (await self.http.get("/metrics")).text
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(OPEN)]
        return {name: float(value) for name, _, value in lines if float(value)}


OPEN = (
    "antiphon_responses_open",
    "antiphon_websockets_open",
    "antiphon_backend_waiting",
    "antiphon_backend_queue",
)


@contextlib.asynccontextmanager
async def calling(url: str) -> AsyncIterator[Traffic]:
    """Clients for a server."""
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        yield Traffic(url, http)


# The callers.


async def json_in_two_turns(traffic: Traffic) -> None:
    first = await traffic.ask()
    second = await traffic.ask(input="b", previous_response_id=first["id"])
    assert _text(first) == ANSWER
    assert _text(second) == answer_to(["a", "b"])


async def stream(traffic: Traffic) -> None:
    async with traffic.http.stream("POST", "/v1/responses", json={**ASK, "stream": True}) as answer:
        events = (await answer.aread()).decode()
    assert "event: response.completed" in events and events.endswith("data: [DONE]\n\n"), events[-300:]


async def stream_that_is_left(traffic: Traffic) -> None:
    await _first_lines("POST", "/v1/responses", traffic, {**ASK, "stream": True})


async def json_that_is_not_waited_for(traffic: Traffic) -> None:
    with contextlib.suppress(httpx.ReadTimeout):
        await traffic.http.post("/v1/responses", json=ASK, timeout=httpx.Timeout(10, read=0.02))


async def socket_of_two_turns(traffic: Traffic) -> None:
    async with sockets.dial(traffic.url) as socket:
        first = await sockets.response(socket, input="a", store=False)
        second = await sockets.response(socket, input="b", previous_response_id=first["id"], store=False)
    assert _text(second) == answer_to(["a", "b"])


async def socket_that_is_left(traffic: Traffic) -> None:
    socket = await sockets.dial(traffic.url)
    await sockets.send(socket, input="a")
    await sockets.hear(socket)
    socket.transport.abort()
    await socket.wait_closed()


async def background_and_resume(traffic: Traffic) -> None:
    id = (await _first_lines("POST", "/v1/responses", traffic, {**ASK, "background": True, "stream": True}))["id"]
    async with traffic.http.stream("GET", f"/v1/responses/{id}?stream=true&starting_after=1") as answer:
        assert "event: response.completed" in (await answer.aread()).decode()


async def background_and_cancel(traffic: Traffic) -> None:
    id = (await traffic.ask(background=True))["id"]
    cancelled = (await traffic.http.post(f"/v1/responses/{id}/cancel")).json()
    assert cancelled["status"] in ("cancelled", "completed"), cancelled


async def background_and_delete(traffic: Traffic) -> None:
    id = (await traffic.ask(background=True))["id"]
    assert (await traffic.http.delete(f"/v1/responses/{id}")).status_code == 200
    assert (await traffic.http.get(f"/v1/responses/{id}")).status_code == 404


async def refused_by_the_server(traffic: Traffic) -> None:
    await traffic.ask(400, input=None, previous_response_id="resp_nowhere")
    assert (await traffic.http.get("/v1/responses/resp_nowhere")).status_code == 404


async def refused_by_the_backend(traffic: Traffic) -> None:
    await traffic.ask(400, input="fail")
    await traffic.ask(400, input="fail", stream=True)


async def half_a_request(traffic: Traffic) -> None:
    address = httpx.URL(traffic.url)
    _, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(0.01)
    writer.close()
    await writer.wait_closed()


async def one_who_looks_around(traffic: Traffic) -> None:
    for path in ("/v1/models", "/healthz", "/metrics", "/openapi.json"):
        assert (await traffic.http.get(path)).status_code == 200, path


CALLERS: list[Caller] = [
    json_in_two_turns,
    stream,
    stream_that_is_left,
    json_that_is_not_waited_for,
    socket_of_two_turns,
    socket_that_is_left,
    background_and_resume,
    background_and_cancel,
    background_and_delete,
    refused_by_the_server,
    refused_by_the_backend,
    half_a_request,
    one_who_looks_around,
]


def _text(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def _first_lines(method: str, path: str, traffic: Traffic, body: object) -> dict[str, Any]:
    """Read a stream up to the first event, leave, and return the response as it was then."""
    async with traffic.http.stream(method, path, json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                response: dict[str, Any] = json.loads(line.removeprefix("data: "))["response"]
                return response
    raise AssertionError("the stream ended before it began")
