"""Follow the events of a run, from any process that shares the store."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from app.core.dialects import Dialect
from app.core.size import LARGE
from app.core.sse import encoder
from app.core.sse import log as frames
from app.core.sse.text_references import TextReference, has_references, split_references
from app.core.types.request import Event
from app.errors import APIError, NotFound, StoreUnavailable
from app.responses.background.worker import persist
from app.stores.event_log import Batch, EventLog, RunKey

logger = logging.getLogger(__name__)

GONE = "The events of this response are no longer stored."


class EventSubscription:
    """The events of a run after some sequence number, encoded as SSE."""

    def __init__(
        self, log: EventLog, run: RunKey, after: int, ended: Callable[[RunKey], Awaitable[bool]], lease: float
    ) -> None:
        """`ended` returns whether a run has ended, and ends it if its worker has died; `lease` is in seconds."""
        self.last = after  # sequence number of the last event so far
        self._log = log
        self._run = run
        self._ended = ended
        self._lease = lease  # seconds; also the timeout of store operations

    def keepalive(self) -> list[Event]:
        """Return a `keepalive` event; it is not in the log, so it repeats the last sequence number."""
        return [{"type": "keepalive", "sequence_number": max(self.last, 0)}]

    async def batches(self) -> AsyncGenerator[bytes, None]:
        """Yield the stored events, then new ones, until the run has ended."""
        ended = False
        try:
            while True:
                batches = await self._read(wait=0 if ended else self._lease / 4)
                found = bool(batches)
                batches.reverse()
                while batches:  # each is freed when it is sent, since it may be large
                    first, last, data, ends = batches.pop()
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
        except StoreUnavailable as error:
            yield self._error(error)
        except Exception:
            logger.exception("unexpected error", extra={"response_id": self._run.id})
            yield self._error(APIError("The server had an error while it was reading the events of this response."))

    def pieces(self, data: bytes, dialect: Dialect) -> AsyncGenerator[bytes, None] | None:
        """
        Return an iterator over the pieces of large events in a dialect, None for others.

        It raises `NotFound` and `StoreUnavailable` if a text that is stored with earlier events cannot be read.
        """
        return self._pieces(data, dialect) if len(data) > LARGE or has_references(data) else None

    async def _pieces(self, data: bytes, dialect: Dialect) -> AsyncGenerator[bytes, None]:
        for part in split_references(data):
            if isinstance(part, bytes):
                for piece in frames.pieces_in_dialect(part, dialect):
                    yield piece
            else:
                async for piece in stored_text(self._log, self._run, part, self._lease):
                    yield piece

    async def _read(self, wait: float) -> list[Batch]:
        return await persist(lambda: self._log.read(self._run, self.last, wait), self._lease)

    def _error(self, error: APIError) -> bytes:
        """Return an `error` event for this stream; the run may continue, and its log does not have the event."""
        event: Event = {
            "type": "error",
            "sequence_number": self.last + 1,
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "error": error.payload(),
        }
        return encoder.encode_sse([event])


async def stored_text(log: EventLog, run: RunKey, text: TextReference, patience: float) -> AsyncGenerator[bytes, None]:
    """
    Yield a text of a log in pieces.

    Raises `NotFound` if the log was deleted, and `StoreUnavailable` after `patience` seconds of retries.
    """
    after = text.first - 1
    while after < text.last:
        batches = await persist(partial(log.read, run, after), patience)
        if not batches:
            raise NotFound(GONE)
        for batch in itertools.takewhile(lambda batch: batch.first <= text.last, batches):
            for piece in text.pieces(batch.data):
                yield piece
        after = batches[-1].last
