"""
Runs `/v1/batches` in the background.

Processes share the work through leases in the database. Batch requests have the lowest priority for backend slots, and
at most `max_concurrency` run at once in all processes. They count against the key's budget, at the batch price, but not
against its per-minute limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import orjson

from app.api.batches.input import read_lines
from app.api.batches.requests import LineRequests, RetryLater
from app.backends import LOW_PRIORITY
from app.observability import log_context
from app.runtime.tasks import cancel, end, wait_for_event
from app.tools.files import File, FilesUnavailable, new_file_id
from app.tools.files.batches import Batches, BatchJob, ClaimedRequest, RequestResult
from app.tools.files.uploads import ContentWriter

logger = logging.getLogger(__name__)

BATCH_POLL_INTERVAL = 5.0  # seconds
LINE_ATTEMPTS = 3  # per request, after backend or process failures
LINE_RETRY = 15.0  # seconds before the second attempt; doubled before the third
RESULTS = 10  # answers read at once
_NEVER_RUN = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed, because the batch was cancelled."),
}


class BatchWorker:
    def __init__(
        self,
        batches: Batches,
        requests: LineRequests,
        *,
        max_concurrency: int,
        lease: float,
        announce: Callable[[str, str], Awaitable[None]] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`lease` is in seconds; `announce` is called with an event and its batch id; `stopping` ends claiming."""
        self._batches, self._records, self._store = batches, batches.records, batches.store
        self._requests, self._max_concurrency, self._lease = requests, max_concurrency, lease
        self._announce, self._stopping, self._clock = announce, stopping, clock
        self._name = secrets.token_hex(8)
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._working: str | None = None  # batch id
        self._wakeup = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        batches.wake = self._wakeup.set

    def start(self) -> None:
        self._tasks = [asyncio.create_task(task) for task in (self._claim_lines(), self._work(), self._renew())]

    async def aclose(self, grace: float = 0) -> None:
        """Let running requests finish for up to `grace` seconds; release the others."""
        claiming, working, renewing = self._tasks
        await end(claiming, working)
        if running := {*self._running.values()}:
            await asyncio.wait(running, timeout=grace)
        await end(renewing)
        await cancel(*self._running.values())  # `_ended` logs their errors

    # Requests.

    async def _claim_lines(self) -> None:
        while True:
            self._wakeup.clear()
            try:
                while not self._stopping():
                    lines = await self._records.claim_requests(self._name, self._lease, self._max_concurrency)
                    if not lines:
                        break
                    for claimed in lines:
                        key = claimed.batch.id, claimed.request.number
                        if key not in self._running:
                            task = self._running[key] = asyncio.create_task(self._run(claimed))
                            task.add_done_callback(partial(self._ended, key))
            except FilesUnavailable:
                pass  # logged by the store
            except Exception:
                logger.exception("claiming batch requests failed")
            await wait_for_event(self._wakeup, BATCH_POLL_INTERVAL)

    def _ended(self, key: tuple[str, int], task: asyncio.Task[None]) -> None:
        del self._running[key]
        self._wakeup.set()
        error = None if task.cancelled() else task.exception()
        if error and not isinstance(error, FilesUnavailable):
            logger.error("unexpected error", exc_info=error)

    async def _run(self, claimed: ClaimedRequest) -> None:
        LOW_PRIORITY.set(True)
        request_id = f"batch_req_{secrets.token_hex(16)}"
        log_context.reset(request_id=request_id, batch_id=claimed.batch.id)
        try:
            answer = await self._requests.answer(claimed, request_id, last=claimed.attempt >= LINE_ATTEMPTS)
        except RetryLater as error:
            delay = error.seconds or LINE_RETRY * claimed.attempt
            await self._records.release(claimed, self._name, delay, failed=error.counts)
        except asyncio.CancelledError:
            with contextlib.suppress(FilesUnavailable):
                await self._records.release(claimed, self._name, 0, failed=False)
            raise
        else:
            await self._finish(claimed, answer)

    async def _finish(self, claimed: ClaimedRequest, result: RequestResult) -> None:
        """Store the answer. Retries during database outages, because the answer has been paid for."""
        while True:
            try:
                await self._records.finish(claimed, self._name, result)
                return
            except FilesUnavailable:
                await asyncio.sleep(1)

    async def _renew(self) -> None:
        """Also stops requests in cancelled or expired batches."""
        while True:
            await asyncio.sleep(self._lease / 4)
            running = [*self._running]
            try:
                held = await self._records.renew(self._name, self._lease, self._working, running)
            except FilesUnavailable:
                continue
            except Exception:
                logger.exception("renewing batch leases failed")
                continue
            for key in running:
                if key not in held and (task := self._running.get(key)):
                    task.cancel()

    # Batches.

    async def _work(self) -> None:
        """Reads new batches' input files, and writes finished batches' output files."""
        while True:
            try:
                while batch := await self._records.claim_batch(self._name, self._lease):
                    self._working = batch.id
                    await (self._read(batch) if batch.status == "validating" else self._end(batch))
                    self._wakeup.set()
            except FilesUnavailable:
                pass
            except Exception:
                logger.exception("reading or ending a batch failed")
            self._working = None  # an abandoned batch's lease expires
            wakeup = asyncio.ensure_future(self._wakeup.wait())
            await asyncio.wait({wakeup}, timeout=BATCH_POLL_INTERVAL / 10)
            wakeup.cancel()

    async def _read(self, batch: BatchJob) -> None:
        content = self._store.content(batch.input_file)
        add = partial(self._records.add_requests, batch, self._name)
        read = await read_lines(content, batch, self._requests.max_bytes, add)
        if read is None:
            return  # lease lost: the batch was cancelled
        if not read.errors:
            await self._records.begin(batch, self._name, read.total, read.model)
        elif await self._records.fail(batch, self._name, read.errors):
            await self._announce_end(batch, "failed")

    async def _end(self, batch: BatchJob) -> None:
        status = {"finalizing": "completed", "cancelling": "cancelled"}.get(batch.status, "expired")
        files: dict[str, File] = {}
        async with contextlib.AsyncExitStack() as stack:
            writers: dict[str, ContentWriter] = {}
            async for succeeded, line in self._output(batch, status):
                name = "output" if succeeded else "error"
                if name not in writers:
                    writer = ContentWriter(self._store, new_file_id(), 1 << 62, name)
                    writers[name] = await stack.enter_async_context(writer)
                await writers[name].write(line + b"\n")
            now = int(self._clock())
            for name, writer in writers.items():
                await writer.flush()
                filename, expires_at = f"{batch.id}_{name}.jsonl", now + batch.output_lifetime
                files[name] = File(writer.id, batch.owner, filename, "batch_output", writer.bytes, now, expires_at)
            if await self._records.end(batch, self._name, status, files):
                for writer in writers.values():
                    writer.committed = True
                await self._announce_end(batch, status)

    async def _output(self, batch: BatchJob, status: str) -> AsyncIterator[tuple[bool, bytes]]:
        """Lines, each with whether it belongs in the output file."""
        after = 0
        while results := await self._records.results(batch.id, after, RESULTS):
            for number, custom_id, succeeded, output in results:
                if succeeded is not None:
                    yield succeeded, output
                elif status in _NEVER_RUN:
                    code, message = _NEVER_RUN[status]
                    line = {
                        "id": f"batch_req_{secrets.token_hex(16)}",
                        "custom_id": custom_id,
                        "response": None,
                        "error": {"code": code, "message": message},
                    }
                    yield False, orjson.dumps(line)
                after = number

    async def _announce_end(self, batch: BatchJob, status: str) -> None:
        logger.info("batch ended", extra={"batch_id": batch.id, "status": status, "key": batch.key})
        if self._announce:
            try:
                await self._announce(f"batch.{status}", batch.id)
            except Exception as error:
                logger.error("batch webhook not stored", extra={"error": type(error).__name__})
