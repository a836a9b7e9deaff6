"""
An answer's HTTP body, decoded as it arrives.

It ends at its end marker, at the body's end, or some time after the finish reason: some servers send heartbeats
indefinitely.
"""

from __future__ import annotations

import asyncio

import httpx

from app.backends import DeltaReceiver
from app.backends.apis.api_decoder import APIDecoder
from app.backends.server.errors.classification import failure
from app.backends.transport import HTTPReply
from app.core.bounded_json import LARGE
from app.core.profile import Profile
from app.core.types.deltas import Delta
from app.runtime.tasks import let_others_run

IDLE_TOO_LONG = "The backend has been silent for too long."
CONNECTION_BROKE = "The backend's answer ended early: the connection broke."


class BodyReader:
    """
    Decodes bytes in the call that receives them.

    The task in `receive` takes the first read, and deltas of a large event or for a slow receiver.
    """

    def __init__(self, reply: HTTPReply, profile: Profile, decoder: APIDecoder) -> None:
        """`reply` has the timeout for the first read."""
        self.reply = reply
        self._profile = profile
        self._loop = asyncio.get_running_loop()
        self.decoder = decoder
        self._direct: DeltaReceiver | None = None  # set while reads bypass the task
        self._started = False
        self._held: list[Delta] = []  # for the task to pass on
        self._undecoded = 0  # bytes in reads that completed no event
        self._last_delta = 0.0  # loop time of the last delta, after the finish reason
        # Raised after the last delta. Usually a class: a stored exception retains the answer until garbage collection.
        self._end: Exception | type[Exception] | None = None

    async def receive(self, receiver: DeltaReceiver | None) -> None:
        """
        Pass on deltas until the answer ends; without a receiver, wait for the first.

        Raises `BackendError` after the last delta for a reported error, a timeout or a broken connection. After a
        finish reason, a broken connection is a normal end.
        """
        decoder, reply = self.decoder, self.reply
        while self._end is None or self._held:
            if self._held:
                if receiver is None:
                    return
                await self._pass_on(receiver)
                continue
            if decoder.finished:
                # Heartbeats no longer extend the timeout.
                profile = self._profile
                grace = profile.response.finish_grace_s
                if decoder.resumed:
                    grace = max(grace, profile.transport.idle_timeout)
                reply.wait_at_most(max(0, self._last_delta + grace - self._loop.time()))
            self._direct = None if receiver is None or receiver.paused else receiver
            try:
                if self._started:
                    await reply.deliver(self._take)
                else:
                    data = await anext(reply)
                    self._started = True
                    reply.wait_at_most(self._profile.transport.idle_timeout)
                    self._take(data)
            except StopAsyncIteration:
                self._held += decoder.end()
                self._end = decoder.failure or StopAsyncIteration
            except (TimeoutError, httpx.ReadTimeout) as cause:
                self._cut("timeout", IDLE_TOO_LONG, cause)
            except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as cause:
                self._cut("failure", CONNECTION_BROKE, cause)
            else:
                if self._direct and self._direct.paused:
                    await self._direct.drain()
                if decoder.done or decoder.failure:
                    self._end = decoder.failure or StopAsyncIteration
                elif receiver and receiver.over:
                    self._end = StopAsyncIteration
        if self._end is not StopAsyncIteration:
            raise self._end

    def _take(self, data: bytes) -> bool:
        """Decode a read; return whether the next may bypass the task."""
        decoder, receiver = self.decoder, self._direct
        if deltas := decoder.decode(data):
            if receiver is None:
                self._held += deltas
                return False
            self._undecoded = 0
            goes_on = receiver.receive(deltas)
            if not decoder.ending:
                return goes_on
            if decoder.finished:
                self._last_delta = self._loop.time()
            return False
        self._undecoded += len(data)
        if self._undecoded > LARGE:
            self._direct = None
        return not decoder.ending

    async def _pass_on(self, receiver: DeltaReceiver) -> None:
        # Decoding a large event, reading its deltas, and ending the answer need up to 100 ms each.
        is_large = self._undecoded > LARGE
        if is_large:
            await let_others_run()
        self._undecoded = 0
        deltas, self._held = self._held, []
        if self.decoder.finished:
            self._last_delta = self._loop.time()
        receiver.receive(deltas)
        await receiver.drain()
        if is_large:
            await let_others_run()
        if receiver.over and self._end is None:
            self._end = StopAsyncIteration

    def _cut(self, kind: str, message: str, cause: Exception) -> None:
        """The connection broke, which is a normal end after the finish reason."""
        self._held += self.decoder.cut()
        if self.decoder.finished:
            self._end = StopAsyncIteration
        else:
            self._end = failure(kind, message)
            self._end.__cause__ = cause
