"""A scripted backend with a record of its model requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from app.backends import Backend, DeltaGenerator, OpenRequest
from app.backends.apis import encode
from app.backends.apis.chat.decoder import ChunkReader
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.sse.repeats import RawEvent
from app.core.types.deltas import DONE, Delta, Finished, FinishReason
from app.errors import BackendError

Step = RawEvent | Delta | list[RawEvent | Delta] | float | BackendError | asyncio.Event


class Scripted(Backend):
    """
    Answers each model request with the next script: chunks, deltas, pauses (seconds, or an event), errors.

    An initial error is a refusal. Scripts without their own end get a finish reason and `DONE`.
    """

    def __init__(self, *scripts: list[Step], profile: Profile | None = None) -> None:
        self.scripts = [*scripts]
        self.received: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.opened = 0  # streams being read
        self.left = 0  # streams left before their end
        self.waiting = 0  # pauses in progress: everything before was read
        self._profile = profile or Profile()

    def profile(self, model: str) -> Profile:
        return self._profile

    def encode(self, model_request: ModelRequest) -> EncodedRequest:
        return encode(model_request, self.profile(model_request.model))

    def open(self, model_request: ModelRequest) -> OpenRequest:
        return DeltaGenerator(self._answer(model_request))

    async def _answer(self, model_request: ModelRequest) -> AsyncGenerator[list[Delta], None]:
        self.received.append(self.encode(model_request).body)
        self.keys.append(model_request.caller_key)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        if script and isinstance(script[0], BackendError):
            raise script[0]
        if script and isinstance(script[0], float | asyncio.Event):
            await self._pause(script[0])
            script = script[1:]
        self.opened += 1
        chunks = self._chunks(script)
        try:
            yield []
            async for some in chunks:
                yield some
        finally:
            self.opened -= 1
            await chunks.aclose()

    async def _chunks(self, script: list[Step]) -> Any:
        whole = False
        reader = ChunkReader(self._profile.response)
        try:
            for step in script:
                if isinstance(step, float | asyncio.Event):
                    await self._pause(step)
                elif isinstance(step, BackendError):
                    raise step
                else:
                    chunks_of_step = step if isinstance(step, list) else [step]
                    yield [
                        one
                        for each in chunks_of_step
                        for one in (reader.read(each) if isinstance(each, dict) else [each])
                    ]
            if not any(step is DONE or (isinstance(step, list) and DONE in step) for step in script):
                yield [Finished(FinishReason.STOP), DONE]
            whole = True
        finally:
            self.left += not whole

    async def _pause(self, step: float | asyncio.Event) -> None:
        self.waiting += 1
        try:
            await (asyncio.sleep(step) if isinstance(step, float) else step.wait())
        finally:
            self.waiting -= 1

    async def models(self, caller_key: str | None = None) -> list[dict[str, Any]]:
        return [{"id": id, "object": "model", "created": 0, "owned_by": "tests"} for id in ("scripted", "m")]

    async def check(self) -> None:
        pass

    async def aclose(self) -> None:
        pass
