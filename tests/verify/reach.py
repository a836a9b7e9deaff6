"""
Which checks a fault reaches: checks that receive something different because of it.

Every check runs once against a server without a fault, and its exchanges are recorded. A fault is then applied to the
records. If it changes neither a check's requests nor its answers, the check ends as before. If it only changes answers,
the check is replayed on the changed answers, as long as it sends the same requests.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace

import httpx

from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.rows import Check, NotPassed
from openresponses_verify.server import ServerAccess, SocketTurns, VerifiedServer
from tests.verify.broken_server import Fault, Json, Reply, Sent, unchanged

HEADER = "x-number"
_requester: ContextVar[str] = ContextVar("requester", default="")


class UnrecordedRequest(Exception):
    """A check sends an unrecorded request."""


@dataclass
class _Recorded:
    """An exchange: the check, the received request, and the answer in a changeable form."""

    requester: str
    request_key: str
    sent: Sent
    reply: Reply
    rewritten: Reply

    def try_fault(self, fault: Fault, memory: Json) -> tuple[bool, Reply]:
        """Return whether a fault leaves the request as it is, and the answer with the fault in it."""
        body = self.sent.body if fault.request is unchanged else copy.deepcopy(self.sent.body)
        sent = replace(self.sent, body=body, headers=dict(self.sent.headers), memory=memory)
        reply = replace(self.reply, headers=dict(self.reply.headers))
        fault.request(sent)
        fault.reply(reply, sent)
        return sent == replace(self.sent, memory=memory), reply


@dataclass
class _RecordedTurns:
    """WebSocket messages, and the answering frames."""

    requester: str
    request_key: str
    exchange: HTTPExchange


class Reach:
    """Recorded exchanges, per check or shared function."""

    def __init__(self) -> None:
        self.recorder = Fault("recorder", "", reply=self._record)
        self._requests: list[tuple[str, str]] = []  # check and request
        self._exchanges: list[_Recorded] = []
        self._uses: defaultdict[str, set[str]] = defaultdict(set)
        self._turns: list[_RecordedTurns] = []

    async def record(self, access: ServerAccess, checks: Iterable[Check]) -> None:
        """Run checks against a server with the fault `recorder`."""
        server = _RecordingServer(access, self._requests, self._uses, self._turns)
        try:
            for check in checks:
                _requester.set(check.id)
                with contextlib.suppress(NotPassed):
                    await check.run(server)
        finally:
            await server.aclose()

    def of(self, fault: Fault, checks: Iterable[Check]) -> list[Check]:
        """Return the checks reached by a fault."""
        memory: Json = {}
        requesters = {turns.requester for turns in self._turns} if fault.frames is not unchanged else set()
        for recorded in self._exchanges:
            same, answer = recorded.try_fault(fault, memory)
            if not same or answer not in (recorded.reply, recorded.rewritten):
                requesters.add(recorded.requester)
        return [check for check in checks if not requesters.isdisjoint(self._used_by(check.id))]

    async def replay(self, fault: Fault, checks: Iterable[Check]) -> tuple[dict[str, str], list[Check]]:
        """Return failure details by check id, and checks with other requests, which need a server."""
        failed: dict[str, str] = {}
        others = []
        server = _ReplayingServer(fault, self._exchanges, self._turns)
        try:
            for check in checks:
                _requester.set(check.id)
                try:
                    await check.run(server)
                except UnrecordedRequest:
                    others.append(check)
                except NotPassed as ended:
                    if ended.verdict == "fail":
                        failed[check.id] = ended.detail
                except Exception:  # it cannot read the answer
                    continue
        finally:
            await server.aclose()
        return failed, others

    def _record(self, reply: Reply, sent: Sent) -> None:
        requester, request_key = self._requests[int(sent.headers.pop(HEADER))]
        rewritten = replace(reply)
        with contextlib.suppress(ValueError):  # invalid JSON
            if rewritten.streams:
                rewritten.events = rewritten.events
            elif rewritten.content:
                rewritten.json = rewritten.json
        answer = replace(reply, headers=dict(reply.headers))
        self._exchanges.append(_Recorded(requester, request_key, sent, answer, rewritten))

    def _used_by(self, requester: str) -> set[str]:
        return {requester}.union(*(self._used_by(used) for used in self._uses[requester]))


def _request_key(exchange: HTTPExchange, path: str, headers: dict[str, str]) -> str:
    body = exchange.body.hex() if isinstance(exchange.body, bytes) else exchange.body
    return json.dumps([exchange.method, path, body, exchange.key, headers])


class _RequesterTracker(VerifiedServer):
    """A server with the present check or shared function."""

    async def memoized(self, ask: Callable[[VerifiedServer], Awaitable[HTTPExchange]]) -> HTTPExchange:
        token = _requester.set(f"{ask.__module__}.{ask.__qualname__}")
        try:
            return await super().memoized(ask)
        finally:
            _requester.reset(token)


class _RecordingServer(_RequesterTracker):
    """A server with labelled exchanges."""

    def __init__(
        self,
        access: ServerAccess,
        requests: list[tuple[str, str]],
        uses: defaultdict[str, set[str]],
        turns: list[_RecordedTurns],
    ) -> None:
        super().__init__(access)
        self._requests = requests
        self._uses = uses
        self._turns = turns

    async def memoized(self, ask: Callable[[VerifiedServer], Awaitable[HTTPExchange]]) -> HTTPExchange:
        self._uses[_requester.get()].add(f"{ask.__module__}.{ask.__qualname__}")
        return await super().memoized(ask)

    async def _exchange(self, exchange: HTTPExchange, headers: dict[str, str]) -> None:
        number = str(len(self._requests))
        self._requests.append((_requester.get(), _request_key(exchange, exchange.url.removeprefix(self.url), headers)))
        await super()._exchange(exchange, {**headers, HEADER: number})

    @contextlib.asynccontextmanager
    async def websocket(self) -> AsyncIterator[SocketTurns]:
        async with super().websocket() as turns:
            yield _RecordingTurns(turns, self, self._turns)


class _RecordingTurns(SocketTurns):
    """A WebSocket with recorded turns."""

    def __init__(self, turns: SocketTurns, server: VerifiedServer, recorded: list[_RecordedTurns]) -> None:
        self._server = server
        self._wrapped = turns
        self._recorded = recorded

    async def frames(self, *messages: object, turns: int = 1) -> HTTPExchange:
        exchange = await self._wrapped.frames(*messages, turns=turns)
        self._recorded.append(_RecordedTurns(_requester.get(), json.dumps(messages), copy.deepcopy(exchange)))
        return exchange


class _ReplayingServer(_RequesterTracker):
    """A server with a fault and recorded answers. Raises `UnrecordedRequest`."""

    def __init__(self, fault: Fault, exchanges: Iterable[_Recorded], turns: Iterable[_RecordedTurns]) -> None:
        super().__init__(ServerAccess("http://replayed/v1", "demo", "one", "two"))
        self._fault = fault
        self._memory: Json = {}
        self._waiting: defaultdict[tuple[str, str], list[_Recorded]] = defaultdict(list)
        for recorded in exchanges:
            self._waiting[recorded.requester, recorded.request_key].append(recorded)
        self._turns = list(turns)

    async def _exchange(self, exchange: HTTPExchange, headers: dict[str, str]) -> None:
        waiting = self._waiting[_requester.get(), _request_key(exchange, exchange.url.removeprefix(self.url), headers)]
        if not waiting:
            raise UnrecordedRequest
        same, reply = waiting.pop(0).try_fault(self._fault, self._memory)
        if not same:
            raise UnrecordedRequest
        exchange.status, exchange.headers, exchange.content = reply.status, httpx.Headers(reply.headers), reply.content

    @contextlib.asynccontextmanager
    async def websocket(self) -> AsyncIterator[SocketTurns]:
        if self._fault.frames is not unchanged:
            raise UnrecordedRequest
        yield _ReplayedTurns(self, self._turns)


class _ReplayedTurns(SocketTurns):
    """A WebSocket with recorded answers. Raises `UnrecordedRequest`."""

    def __init__(self, server: VerifiedServer, recorded: list[_RecordedTurns]) -> None:
        self._server = server
        self._recorded = recorded

    async def frames(self, *messages: object, turns: int = 1) -> HTTPExchange:
        request_key = _requester.get(), json.dumps(messages)
        for index, recorded in enumerate(self._recorded):
            if (recorded.requester, recorded.request_key) == request_key:
                del self._recorded[index]
                return copy.deepcopy(recorded.exchange)
        raise UnrecordedRequest
