"""
Conversations with several turns through a balancer, with disturbances among the replicas.

Turns vary their delivery: JSON, stream, background and followed, background and resumed. An answer must know every
earlier turn (see `echo`), and is retrieved again at the end.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.load.echo import answer_to
from tests.load.replicas import Replica

Event = dict[str, Any]

TURNS = 4
ASK_AGAIN = 2  # retries after a connection closes without an answer, like OpenAI's clients


@dataclass
class Figures:
    """How it went."""

    conversations: int = 0
    turns: Counter[str] = field(default_factory=Counter)  # by way
    asked_again: int = 0
    kept: int = 0  # responses found again, unchanged
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Wrong(Exception):
    """Something was lost."""


class Talk:
    """A client's conversations and their results."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.figures = Figures()
        self._http = http
        self._texts: dict[str, str] = {}  # answers by response id
        self._ways = {
            "json": self._json,
            "sse": self._sse,
            "background, followed": self._followed,
            "background, resumed": self._resumed,
        }

    async def converse(self, number: int) -> None:
        """Run a conversation."""
        previous, texts = None, []
        ways = list(self._ways.items())
        try:
            for turn in range(TURNS):
                way, ask = ways[(number + turn) % len(ways)]
                texts.append(f"{number}.{turn}")
                response = await ask({"model": "m", "input": texts[-1], "previous_response_id": previous})
                text = "".join(part["text"] for item in response["output"] for part in item["content"])
                if (response["status"], text) != ("completed", answer_to(texts)):
                    raise Wrong(f"{way}: {response['status']}, {text!r} for {answer_to(texts)!r}, {response['error']}")
                previous = response["id"]
                self._texts[previous] = text
                self.figures.turns[way] += 1
        except (Wrong, httpx.HTTPError, ValueError, LookupError) as error:
            self.figures.wrong.append(f"conversation {number}, turn {len(texts)}, {way}: {error!r}")
        self.figures.conversations += 1

    async def look_up(self) -> None:
        """Retrieve all answers again."""

        async def look(ids: Sequence[str]) -> None:
            for id in ids:
                kept = (await self._request("GET", f"/responses/{id}")).json()
                if (kept["status"], kept["output"][0]["content"][0]["text"]) == ("completed", self._texts[id]):
                    self.figures.kept += 1
                else:
                    self.figures.wrong.append(f"{id} is not what it was: {kept}")

        ids = [*self._texts]
        await asyncio.gather(*(look(ids[start::8]) for start in range(8)))

    async def _json(self, body: dict[str, Any]) -> dict[str, Any]:
        response: dict[str, Any] = (await self._request("POST", "/responses", body)).json()
        return response

    async def _sse(self, body: dict[str, Any]) -> dict[str, Any]:
        return _whole([event async for event in self._stream("POST", "/responses", {**body, "stream": True})])

    async def _followed(self, body: dict[str, Any]) -> dict[str, Any]:
        id = (await self._request("POST", "/responses", {**body, "background": True})).json()["id"]
        return _whole([event async for event in self._stream("GET", f"/responses/{id}?stream=true")])

    async def _resumed(self, body: dict[str, Any]) -> dict[str, Any]:
        events: list[Event] = []
        # The client goes in the middle, and comes back; as often as not, to another replica.
        body = {**body, "background": True, "stream": True}
        streaming = self._stream("POST", "/responses", body)
        async for event in streaming:
            events.append(event)
            if event["type"] == "response.output_text.delta":
                break
        await streaming.aclose()
        path = f"/responses/{events[0]['response']['id']}?stream=true&starting_after={len(events) - 1}"
        return _whole([*events, *[event async for event in self._stream("GET", path)]])

    async def _request(self, method: str, path: str, body: object = None) -> httpx.Response:
        for again in range(ASK_AGAIN + 1):
            try:
                answer = await self._http.request(method, path, json=body)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.ConnectError):
                self.figures.asked_again += 1
                if again == ASK_AGAIN:
                    raise
            else:
                break
        if answer.status_code != 200:
            raise Wrong(f"{answer.status_code} {answer.text}")
        return answer

    async def _stream(self, method: str, path: str, body: object = None) -> AsyncGenerator[Event, None]:
        for again in range(ASK_AGAIN + 1):
            begun = False
            try:
                async with self._http.stream(method, path, json=body) as answer:
                    begun = True
                    if answer.status_code != 200:
                        raise Wrong(f"{answer.status_code} {(await answer.aread()).decode()}")
                    async for line in answer.aiter_lines():
                        if line.startswith("data: {"):
                            yield json.loads(line.removeprefix("data: "))
                    return
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.ConnectError):
                self.figures.asked_again += 1
                if begun or again == ASK_AGAIN:  # a started stream must finish
                    raise


def _whole(events: list[Event]) -> dict[str, Any]:
    """Return a complete stream's response."""
    if [event["sequence_number"] for event in events] != list(range(len(events))):
        raise Wrong(f"events {[event['sequence_number'] for event in events]}")
    last = events[-1]
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    if last["type"] != "response.completed" or deltas != last["response"]["output"][0]["content"][0]["text"]:
        raise Wrong(f"ends with {last}")
    response: dict[str, Any] = last["response"]
    return response


async def roll(servers: Sequence[Replica], times: int = 1) -> None:
    """Restart the replicas in turn: SIGTERM, wait, start."""
    for _ in range(times):
        for server in servers:
            await server.stop()
            await server.start()


async def talk(url: str, meanwhile: Awaitable[None], *, conversations: int, at_once: int) -> Figures:
    """Have at least so many conversations, and more for as long as something else goes on meanwhile."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False, limits=limits) as http:
        talking = Talk(http)
        going_on = asyncio.ensure_future(meanwhile)
        begun = 0

        async def keep_talking() -> None:
            nonlocal begun
            while begun < conversations or not going_on.done():
                begun += 1
                await talking.converse(begun)

        try:
            await asyncio.gather(*(keep_talking() for _ in range(at_once)))
        finally:
            going_on.cancel()
            await asyncio.wait({going_on})
        await going_on
        await talking.look_up()
    talking.figures.seconds = time.monotonic() - began
    return talking.figures
