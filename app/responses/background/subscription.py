"""The events of a run from any point on, for any process that shares the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from app.core.sse import encoder
from app.core.sse import log as frames
from app.core.types.request import Event
from app.errors import APIError, NotFound, StoreUnavailable
from app.responses.background.worker import persist
from app.stores.event_log import Batch, EventLog, RunKey

GONE = "The events of this response are not kept any more."


class EventSubscription:
    """The events of a run from some point on, encoded as they are sent."""

    def __init__(
        self, log: EventLog, run: RunKey, after: int, ended: Callable[[RunKey], Awaitable[bool]], lease: float
    ) -> None:
        """`ended` tells whether a run has ended, and sees to it where its worker has died."""
        self.last = after  # sequence number of the last event so far
        self._log = log
        self._run = run
        self._ended = ended
        self._lease = lease  # in seconds: how long to wait for anything

    def keepalive(self) -> list[Event]:
        """Return the event that says that the stream lives. It is not in the log, so it takes no number of its own."""
        return [{"type": "keepalive", "sequence_number": max(self.last, 0)}]

    async def batches(self) -> AsyncGenerator[bytes, None]:
        """Yield what there is, then what comes, until the run has ended, in whichever way."""
        ended = False
        try:
            while True:
                batches = await self._read(wait=0 if ended else self._lease / 4)
                for batch in batches:
                    yield frames.events_after(batch.data, batch.first, self.last)
                    self.last = batch.last
                    if batch.ends:
                        return
                if ended and not batches:
                    break
                ended = ended or (not batches and await persist(lambda: self._ended(self._run), self._lease))
            if await self._log.standing(self._run) == "absent":
                yield self._trouble(NotFound(GONE))
        except StoreUnavailable as error:
            yield self._trouble(error)

    async def _read(self, wait: float) -> list[Batch]:
        return await persist(lambda: self._log.read(self._run, self.last, wait), self._lease)

    def _trouble(self, error: APIError) -> bytes:
        """Say why the stream stops here. The run may go on: this is no event of its own."""
        event: Event = {
            "type": "error",
            "sequence_number": self.last + 1,
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "error": error.payload(),
        }
        return encoder.encode_sse([event])
