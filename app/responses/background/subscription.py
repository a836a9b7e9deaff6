"""Follow a run's events from any process with the same store."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from app.core.sse import encoder
from app.core.sse import log as frames
from app.core.types.request import Event
from app.errors import APIError, NotFound, StoreUnavailable
from app.responses.run import persist
from app.stores import EventLog, EventSegment, RunKey

logger = logging.getLogger(__name__)

GONE = "The events of this response are no longer stored."


class EventSubscription:
    def __init__(
        self,
        log: EventLog,
        run: RunKey,
        after: int,
        ended: Callable[[RunKey], Awaitable[bool]],
        lease: float,
    ) -> None:
        """`ended` returns whether a run has ended, and ends a dead worker's run; `lease` is in seconds."""
        self.last = after
        self._log = log
        self._run = run
        self._ended = ended
        self._lease = lease  # also the timeout of store operations

    def keepalive(self) -> list[Event]:
        """Not logged, so it repeats the last sequence number."""
        return [{"type": "keepalive", "sequence_number": max(self.last, 0)}]

    async def batches(self) -> AsyncGenerator[bytes, None]:
        ended = False
        try:
            while True:
                batches = await self._read(wait=0 if ended else self._lease / 4)
                found = bool(batches)
                batches.reverse()
                while batches:  # batches can be large: free each after sending
                    first, last, data, ends = batches.pop()
                    if b"\0" in data:  # logs of version 0.2.0 contain references
                        raise NotFound(GONE)
                    yield frames.events_after(data, first, self.last)
                    del data
                    self.last = last
                    if ends:
                        return
                if ended and not found:
                    break
                ended = ended or (not found and await persist(lambda: self._ended(self._run), self._lease))
            if await self._log.state(self._run) == "absent":
                yield self._error(NotFound(GONE))
        except (NotFound, StoreUnavailable) as error:
            yield self._error(error)
        except Exception:
            logger.exception("unexpected error", extra={"response_id": self._run.id})
            yield self._error(APIError("The server failed while reading the events of this response."))

    async def _read(self, wait: float) -> list[EventSegment]:
        return await persist(lambda: self._log.read(self._run, self.last, wait), self._lease)

    def _error(self, error: APIError) -> bytes:
        """Not logged: the stream ends, but the run can continue."""
        event: Event = {
            "type": "error",
            "sequence_number": self.last + 1,
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "error": error.payload(),
        }
        return encoder.encode_sse([event])
