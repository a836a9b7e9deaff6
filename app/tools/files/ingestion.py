"""
Indexes files into vector stores in the background: extracts text, splits it into chunks, and embeds the chunks.

Each owner has a queue in the store; queues survive restarts, and owners take turns. A process claims a file for a few
seconds and renews the claim while it indexes. If the process dies, another process claims the file and starts over. A
file becomes searchable only after all its chunks are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import orjson

from app.errors import APIError, TooManyRequests
from app.runtime.tasks import cancel, end, wait_for_event
from app.runtime.worker_processes import IsolatedCallFailed, IsolatedCalls
from app.tools import Account
from app.tools.files import EmbeddingsUnavailable, FilesUnavailable
from app.tools.files.embeddings import BATCH, Embeddings
from app.tools.files.parsing import MAX_MEMORY, UnreadableFile, extract, is_simple
from app.tools.files.records import FileStore
from app.tools.files.vector_stores.records import EmbeddedText, Job
from app.tools.files.vector_stores.sql import VectorStoreRecords

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

INDEXING_WORKERS = 3  # files per process; one fewer per owner
POLL = 5.0  # seconds between checks for files abandoned by other processes
SWEEP = 60.0  # seconds
ATTEMPTS = 3  # per file
RETRY = 15.0  # seconds before the second attempt, if the file is not the cause; doubled for the third
STEP_RETRIES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # seconds between attempts of a step, such as embedding `BATCH` chunks
LONGEST_WAIT = 600.0  # seconds; if the backend requests a longer wait, the file fails


class Ingestion:
    def __init__(
        self,
        files: FileStore,
        records: VectorStoreRecords,
        embeddings: Embeddings | None = None,
        *,
        lease: float = 15.0,
        parse_timeout: float = 300.0,
        index_timeout: float = 3600.0,
    ) -> None:
        """Arguments are in seconds; `lease` is a claim's duration."""
        self._files, self._records, self._embeddings = files, records, embeddings
        self._lease, self._index_timeout = lease, index_timeout
        self._calls = IsolatedCalls(INDEXING_WORKERS, seconds=parse_timeout, memory=MAX_MEMORY)
        self._tasks: list[asyncio.Task[None]] = []
        self._wakeups = [asyncio.Event() for _ in range(INDEXING_WORKERS)]
        self._claiming = asyncio.Lock()
        self._owners: Counter[str] = Counter()  # files being indexed, per owner

    def start(self, account_of: Callable[[str], Account]) -> None:
        """Embeddings are charged to `account_of` the key that added the file."""
        self._account_of = account_of
        self._tasks = [asyncio.create_task(self._work(wakeup)) for wakeup in self._wakeups]
        self._tasks.append(asyncio.create_task(self._sweep_all()))

    def wake(self) -> None:
        for wakeup in self._wakeups:
            wakeup.set()

    async def aclose(self) -> None:
        """Release unfinished files for other processes or the next start."""
        await end(*self._tasks)

    async def _work(self, wakeup: asyncio.Event) -> None:
        while True:
            wakeup.clear()
            try:
                job = await self._claim()
            except FilesUnavailable:
                job = None
            if job is None:
                await wait_for_event(wakeup, POLL)
                continue
            wakeup.set()  # more files may be queued
            try:
                await self._ingest_claimed(job)
            except FilesUnavailable:
                pass  # the claim expires
            except Exception:
                logger.exception("file indexing failed", extra={"file_id": job.file_id})
            finally:
                self._owners[job.owner] -= 1
                if not self._owners[job.owner]:
                    del self._owners[job.owner]
                self.wake()  # a worker may be waiting until this owner is no longer busy

    async def _claim(self) -> Job | None:
        """Skip owners that already occupy all workers but one."""
        async with self._claiming:
            busy = [owner for owner, count in self._owners.items() if count >= INDEXING_WORKERS - 1]
            job = await self._records.claim(self._lease, busy)
            if job:
                self._owners[job.owner] += 1
            return job

    async def _sweep_all(self) -> None:
        while True:
            try:
                await self._files.sweep()
            except FilesUnavailable:
                pass  # already logged by the store
            except Exception:
                logger.exception("expired file deletion failed")
            await asyncio.sleep(SWEEP)

    async def _ingest_claimed(self, job: Job) -> None:
        reading = asyncio.create_task(self._ingest_or_fail(job))
        renewal = asyncio.create_task(self._renew_claim(job))
        try:
            await asyncio.wait((reading, renewal), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await cancel(reading, renewal)  # errors are ignored, because the file is indexed again
            with contextlib.suppress(Exception):  # otherwise the claim expires
                await self._records.release(job)
            raise
        for error in await cancel(reading, renewal):
            raise error

    async def _renew_claim(self, job: Job) -> None:
        """Renew a claim until it is lost: the file was deleted, or its batch cancelled."""
        while True:
            await asyncio.sleep(self._lease / 3)
            with contextlib.suppress(FilesUnavailable):
                if not await self._records.renew(job, self._lease):
                    return

    async def _ingest_or_fail(self, job: Job) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
                await self._ingest_in_time(job, Path(folder))
        except UnreadableFile as error:
            await self._records.fail(job, error.code, error.message)
        except TooManyRequests as error:  # the key's tokens for this minute are used up
            await self._records.release(job, error.retry_after or RETRY)
        except EmbeddingsUnavailable as error:  # another claim would embed the whole file again
            logger.warning("file indexing failed", extra={"file_id": job.file_id, "reason": error.message})
            await self._records.fail(job, "server_error", error.message)
        except (FilesUnavailable, OSError) as error:
            message = error.message if isinstance(error, APIError) else type(error).__name__
            await self._retry(job, message)
        except Exception:
            logger.exception("file indexing failed", extra={"file_id": job.file_id})
            await self._retry(job, "The server had an error while indexing the file.")

    async def _retry(self, job: Job, message: str) -> None:
        """Release the file for another attempt, or fail it after the last."""
        facts = {"file_id": job.file_id, "attempt": job.attempt, "reason": message}
        logger.warning("file indexing attempt failed", extra=facts)
        if job.attempt >= ATTEMPTS:
            await self._records.fail(job, "server_error", message)
        else:
            await self._records.release(job, RETRY * job.attempt, failed=True)

    async def _ingest_in_time(self, job: Job, folder: Path) -> None:
        try:
            async with asyncio.timeout(self._index_timeout) as limit:
                await self._ingest(job, folder)
        except Exception:
            if not limit.expired():  # after the timeout, a cancelled query may look like an outage
                raise
            raise UnreadableFile("server_error", "The file takes too long to index.") from None

    async def _ingest(self, job: Job, folder: Path) -> None:
        if job.attempt > ATTEMPTS:  # the process died in each attempt
            raise UnreadableFile("server_error", "The file could not be read.")
        if self._embeddings:
            await _check_limits(self._account_of(job.key))
        source, text, vectors = folder / "source", folder / "chunks", folder / "vectors"
        with source.open("wb") as out:
            async for piece in self._files.content(job.file_id):
                await asyncio.to_thread(out.write, piece)
        await self._extract(job, source, text)
        size = await self._embed(job, text, vectors) if self._embeddings else 0
        model = self._embeddings.model if self._embeddings else ""
        await self._repeated(job, lambda: self._records.complete(job, _chunks(text, vectors, size, model)))

    async def _repeated(self, job: Job, step: Callable[[], Awaitable[_T]]) -> _T:
        """Retry only this step in an outage. Waiting for the backend's `Retry-After` does not count as an attempt."""
        pauses = iter(STEP_RETRIES)
        while True:
            try:
                return await step()
            except (EmbeddingsUnavailable, FilesUnavailable) as error:
                requested = error.retry_after if isinstance(error, EmbeddingsUnavailable) else None
                wait = next(pauses, None) if requested is None else requested
                if wait is None or wait > LONGEST_WAIT:
                    raise
                fields = {"file_id": job.file_id, "retry_in": round(wait, 1), "reason": error.message}
                logger.info("file indexing delayed", extra=fields)
            await asyncio.sleep(wait)

    async def _extract(self, job: Job, source: Path, target: Path) -> None:
        arguments = (str(source), str(target), job.filename, job.max_tokens, job.overlap)
        if await asyncio.to_thread(is_simple, source, job.filename):
            await asyncio.to_thread(extract, *arguments)
            return
        try:
            await self._calls.run(job.claim, extract, *arguments)
        except IsolatedCallFailed as failure:
            raise UnreadableFile("invalid_file", f"The file {failure}.") from None

    async def _embed(self, job: Job, text: Path, vectors: Path) -> int:
        """Write all chunks' vectors to a file; return the bytes per vector."""
        assert self._embeddings
        size, account = 0, self._account_of(job.key)
        chunks = _texts(text)
        with vectors.open("wb") as out:
            while batch := await asyncio.to_thread(lambda: [*islice(chunks, BATCH)]):
                await _check_limits(account, begun=True)
                embedded = await self._repeated(job, partial(self._embeddings.documents, batch, account))
                if size and len(embedded[0]) != size:
                    raise EmbeddingsUnavailable("its vectors have different lengths")
                size = len(embedded[0])
                await asyncio.to_thread(out.writelines, embedded)
        return size


async def _check_limits(account: Account, *, begun: bool = False) -> None:
    """
    Raise `TooManyRequests` if the key's tokens for this minute are used up, and `UnreadableFile` if its budget is.

    A file that has `begun` may exceed the tokens per minute, like a model's response.
    """
    try:
        await account.check_limits()
    except TooManyRequests as error:
        if error.code != TooManyRequests.code:
            raise UnreadableFile("server_error", error.message) from None
        if not begun:
            raise


def _texts(path: Path) -> Iterator[str]:
    with path.open("rb") as lines:
        for line in lines:
            yield orjson.loads(line)


def _chunks(text: Path, vectors: Path, size: int, model: str) -> Iterator[EmbeddedText]:
    """Yield chunks with the model's vectors, `size` bytes each; 0 means no vectors."""
    if not size:
        yield from map(EmbeddedText, _texts(text))
        return
    with vectors.open("rb") as file:
        for chunk in _texts(text):
            yield EmbeddedText(chunk, file.read(size), model)
