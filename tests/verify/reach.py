"""
Which checks a fault reaches: those that see something else than they would see without it.

Every check is run once against a server without a fault, and what it asked and was answered is kept. A fault is then
tried on all of that. A check whose requests and answers it leaves as they are ends as it does without the fault.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from app.verify.exchange import HTTPExchange
from app.verify.rows import Check, Ended
from app.verify.server import KEY, ServerAccess, SocketTurns, VerifiedServer
from tests.verify.broken_server import Fault, Json, Reply, Sent, unchanged

HEADER = "x-asked-by"
_asker: ContextVar[str] = ContextVar("asker", default="")


class Reach:
    """What each check, or what checks ask once for all of them, asked of a server and was answered."""

    def __init__(self) -> None:
        self.recorder = Fault("recorder", "", reply=self._record)
        self._exchanges: list[tuple[Sent, Reply, Reply]] = []  # the second answer is the first as faults write it
        self._uses: defaultdict[str, set[str]] = defaultdict(set)
        self._sockets: set[str] = set()

    async def record(self, access: ServerAccess, checks: Iterable[Check]) -> None:
        """Run checks against a server whose fault is `recorder`."""
        server = _AskingServer(access, self._uses, self._sockets)
        try:
            for check in checks:
                _asker.set(check.id)
                with contextlib.suppress(Ended):
                    await check.run(server)
        finally:
            await server.aclose()

    def of(self, fault: Fault, checks: Iterable[Check]) -> list[Check]:
        """Return the checks that a fault reaches."""
        memory: Json = {}
        askers = set(self._sockets) if fault.frames is not unchanged else set()
        for sent, reply, rewritten in self._exchanges:
            body = sent.body if fault.request is unchanged else copy.deepcopy(sent.body)
            asked = replace(sent, body=body, headers=dict(sent.headers), memory=memory)
            answer = replace(reply, headers=dict(reply.headers))
            fault.request(asked)
            fault.reply(answer, asked)
            if asked != replace(sent, memory=memory) or answer not in (reply, rewritten):
                askers.add(sent.headers[HEADER])
        return [check for check in checks if not askers.isdisjoint(self._used_by(check.id))]

    def _record(self, reply: Reply, sent: Sent) -> None:
        rewritten = replace(reply)
        with contextlib.suppress(ValueError):  # it is no JSON
            if rewritten.streams:
                rewritten.events = rewritten.events
            elif rewritten.content:
                rewritten.json = rewritten.json
        self._exchanges.append((sent, replace(reply, headers=dict(reply.headers)), rewritten))

    def _used_by(self, asker: str) -> set[str]:
        return {asker}.union(*(self._used_by(used) for used in self._uses[asker]))


class _AskingServer(VerifiedServer):
    """A server that is told who asks."""

    def __init__(self, access: ServerAccess, uses: defaultdict[str, set[str]], sockets: set[str]) -> None:
        super().__init__(access)
        self._uses = uses
        self._sockets = sockets

    async def once(self, ask: Callable[[VerifiedServer], Awaitable[HTTPExchange]]) -> HTTPExchange:
        name = f"{ask.__module__}.{ask.__qualname__}"
        self._uses[_asker.get()].add(name)
        token = _asker.set(name)
        try:
            return await super().once(ask)
        finally:
            _asker.reset(token)

    async def send(
        self, method: str, path: str, body: object = None, *, key: str | None = KEY, **options: Any
    ) -> HTTPExchange:
        headers = {**(options.pop("headers", None) or {}), HEADER: _asker.get()}
        return await super().send(method, path, body, key=key, headers=headers, **options)

    @contextlib.asynccontextmanager
    async def websocket(self) -> AsyncIterator[SocketTurns]:
        self._sockets.add(_asker.get())
        async with super().websocket() as turns:
            yield turns
