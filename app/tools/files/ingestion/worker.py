"""
Indexes files into vector stores, in the background: extracts the text, cuts it into chunks, and embeds them.

The queues are in the store, so they survive a restart; each owner has one, and they take turns. A process claims a file
for a few seconds and renews the claim while it reads; if it dies, another process claims the file and starts over. A
file is searchable only after all of it is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import orjson

from app.errors import APIError, TooManyRequests
from app.runtime.tasks import cancel, end, wait_for_event
from app.runtime.worker_processes import CallDied, CallTookTooLong, IsolatedCalls
from app.tools import Account
from app.tools.files import FileStore, FilesUnavailable
from app.tools.files.embeddings import BATCH, Embeddings, EmbeddingsUnavailable
from app.tools.files.ingestion.parsing import MAX_MEMORY, UnreadableFile, extract, is_simple
from app.tools.files.vector_stores.records import Job, TextChunk, VectorStoreRecords

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

READERS = 3  # files that one process reads concurrently; of one owner, one less
POLL = 5.0  # seconds between checks for files that another process has abandoned
SWEEP = 60.0  # seconds between sweeps of expired and deleted data
ATTEMPTS = 3  # per file, and per step of a file that an outage interrupts
RETRY = 15.0  # seconds before the second attempt, after an error that is not the file's; twice that for the third
LONGEST_WAIT = 600.0  # seconds; a file whose embeddings the backend refuses for longer fails


class Ingestion:
    """Indexes the files of all vector stores; several processes share the work through claims."""

    def __init__(
        self,
        files: FileStore,
        records: VectorStoreRecords,
        embeddings: Embeddings | None = None,
        *,
        lease: float = 15.0,
        parse_timeout: float = 300.0,
        index_timeout: float = 3600.0,
        retry: float = RETRY,
    ) -> None:
        """
        In seconds: the duration of a claim, the limits for extracting the text of a file and for all of it, and the
        pause before the second attempt.
        """
        self._files, self._records, self._embeddings = files, records, embeddings
        self._lease, self._index_timeout, self._retry_pause = lease, index_timeout, retry
        self._calls = IsolatedCalls(READERS, seconds=parse_timeout, memory=MAX_MEMORY)
        self._tasks: list[asyncio.Task[None]] = []
        self._wakeups = [asyncio.Event() for _ in range(READERS)]
        self._claiming = asyncio.Lock()
        self._owners: Counter[str] = Counter()  # of the files that are being read

    def start(self, account_of: Callable[[str], Account]) -> None:
        """Start the readers and the sweep; `account_of` the key that added a file its embeddings are charged to."""
        self._account_of = account_of
        self._tasks = [asyncio.create_task(self._read_all(wakeup)) for wakeup in self._wakeups]
        self._tasks.append(asyncio.create_task(self._sweep_all()))

    def wake(self) -> None:
        """Wake the readers: files have been added."""
        for wakeup in self._wakeups:
            wakeup.set()

    async def aclose(self) -> None:
        """Stop; unfinished files are released for another process, or the next start."""
        await end(*self._tasks)

    async def _read_all(self, wakeup: asyncio.Event) -> None:
        while True:
            wakeup.clear()
            try:
                job = await self._claim()
            except FilesUnavailable:
                job = None
            if job is None:
                await wait_for_event(wakeup, POLL)
                continue
            wakeup.set()  # there may be more files
            try:
                await self._read_claimed(job)
            except FilesUnavailable:
                pass  # the claim expires by itself
            except Exception:
                logger.exception("file %s was not read", job.file_id)
            finally:
                self._end(job)

    async def _claim(self) -> Job | None:
        """Claim a file, of an owner who has less than all readers but one."""
        async with self._claiming:
            busy = [owner for owner, count in self._owners.items() if count >= READERS - 1]
            job = await self._records.claim(self._lease, busy)
            if job:
                self._owners[job.owner] += 1
            return job

    def _end(self, job: Job) -> None:
        self._owners[job.owner] -= 1
        if not self._owners[job.owner]:
            del self._owners[job.owner]
        self.wake()  # a reader may wait for an owner who is not busy any more

    async def _sweep_all(self) -> None:
        while True:
            try:
                await self._files.sweep()
            except FilesUnavailable:
                pass  # the store has logged it
            except Exception:
                logger.exception("what has expired could not be removed")
            await asyncio.sleep(SWEEP)

    async def _read_claimed(self, job: Job) -> None:
        """Read a file for as long as its claim is valid."""
        reading = asyncio.create_task(self._read(job))
        renewal = asyncio.create_task(self._renew_claim(job))
        try:
            await asyncio.wait((reading, renewal), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await cancel(reading, renewal)  # whatever they raise, the file is read again
            with contextlib.suppress(Exception):  # otherwise the claim expires by itself
                await self._records.release(job)
            raise
        for error in await cancel(reading, renewal):
            raise error

    async def _renew_claim(self, job: Job) -> None:
        """Renew a claim until it is lost because the file was deleted or its batch cancelled."""
        while True:
            await asyncio.sleep(self._lease / 3)
            with contextlib.suppress(FilesUnavailable):
                if not await self._records.renew(job, self._lease):
                    return

    async def _read(self, job: Job) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
                await self._ingest_in_time(job, Path(folder))
        except UnreadableFile as error:
            await self._records.fail(job, error.code, error.message)
        except _PutOff as error:
            await self._records.release(job, error.seconds)
        except EmbeddingsUnavailable as error:  # after all attempts: another claim would embed the file anew
            logger.warning("file %s was not read: %s", job.file_id, error.message)
            await self._records.fail(job, "server_error", error.message)
        except (FilesUnavailable, OSError) as error:
            message = error.message if isinstance(error, APIError) else type(error).__name__
            await self._retry(job, message)
        except Exception:
            logger.exception("a file could not be read into a vector store")
            await self._retry(job, "The server had an error while reading the file.")

    async def _retry(self, job: Job, message: str) -> None:
        """Schedule another attempt, or fail the file after the last one."""
        logger.warning("file %s was not read, attempt %d: %s", job.file_id, job.attempt, message)
        if job.attempt >= ATTEMPTS:
            await self._records.fail(job, "server_error", message)
        else:
            await self._records.release(job, self._retry_pause * job.attempt, failed=True)

    async def _ingest_in_time(self, job: Job, folder: Path) -> None:
        try:
            async with asyncio.timeout(self._index_timeout) as limit:
                await self._ingest(job, folder)
        except Exception:
            if not limit.expired():  # if it has, a query that was cancelled may look like an outage
                raise
            raise UnreadableFile("server_error", "The file takes too long to index.") from None

    async def _ingest(self, job: Job, folder: Path) -> None:
        if job.attempt > ATTEMPTS:  # each attempt ended with the death of the process
            raise UnreadableFile("server_error", "The file could not be read.")
        if self._embeddings:
            await _check_limits(self._account_of(job.key))
        source, text, vectors = folder / "source", folder / "chunks", folder / "vectors"
        await _write(self._files.content(job.file_id), source)
        await self._extract(job, source, text)
        size = await self._embed(job, text, vectors) if self._embeddings else 0
        model = self._embeddings.model if self._embeddings else ""
        await self._repeated(job, lambda: self._records.complete(job, _chunks(text, vectors, size), model))

    async def _repeated(self, job: Job, step: Callable[[], Awaitable[_T]]) -> _T:
        """
        Run a step of a file, and this step alone again after an outage.

        A wait that the backend requests by `Retry-After` is not counted as a failure.
        """
        failures = 0
        while True:
            try:
                return await step()
            except (EmbeddingsUnavailable, FilesUnavailable) as error:
                requested = error.retry_after if isinstance(error, EmbeddingsUnavailable) else None
                failures += requested is None
                if failures == ATTEMPTS or (requested or 0) > LONGEST_WAIT:
                    raise
                wait = self._retry_pause * failures if requested is None else requested
                logger.info("file %s waits %.1f s: %s", job.file_id, wait, error.message)
            await asyncio.sleep(wait)

    async def _extract(self, job: Job, source: Path, target: Path) -> None:
        """Extract the text, in a process of its own unless it is short and plain."""
        arguments = (str(source), str(target), job.filename, job.strategy.max_tokens, job.strategy.overlap)
        if await asyncio.to_thread(is_simple, source, job.filename):
            await asyncio.to_thread(extract, *arguments)
            return
        try:
            await self._calls.run(job.claim, extract, *arguments)
        except CallTookTooLong:
            raise UnreadableFile("invalid_file", "The file takes too long to read.") from None
        except CallDied:
            raise UnreadableFile("invalid_file", "The file takes too much memory to read.") from None

    async def _embed(self, job: Job, text: Path, vectors: Path) -> int:
        """Write the vectors of all chunks to a file; return the size of one vector in bytes."""
        assert self._embeddings
        size, account = 0, self._account_of(job.key)
        chunks = _texts(text)
        with vectors.open("wb") as out:
            while batch := await asyncio.to_thread(_take, chunks, BATCH):
                await _check_limits(account, begun=True)
                embedded = await self._repeated(job, partial(self._embeddings.documents, batch, account))
                if size and len(embedded[0]) != size:
                    raise EmbeddingsUnavailable("The backend returned vectors of different lengths.")
                size = len(embedded[0])
                await asyncio.to_thread(out.writelines, embedded)
        return size


class _PutOff(Exception):
    """A file cannot be indexed now, through no fault of its own."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


async def _check_limits(account: Account, *, begun: bool = False) -> None:
    """
    Raise `_PutOff` while a key has used up its tokens of this minute, and `UnreadableFile` if its budget is used up.

    A file that has `begun` may take more tokens than a minute has, as an answer of a model may.
    """
    try:
        await account.check_limits()
    except TooManyRequests as error:
        if error.code != TooManyRequests.code:
            raise UnreadableFile("server_error", error.message) from None
        if not begun:
            raise _PutOff(error.retry_after or RETRY) from None


async def _write(content: AsyncIterator[bytes], path: Path) -> None:
    with path.open("wb") as out:
        async for piece in content:
            await asyncio.to_thread(out.write, piece)


def _texts(path: Path) -> Iterator[str]:
    with path.open("rb") as lines:
        for line in lines:
            yield orjson.loads(line)


def _take(texts: Iterator[str], count: int) -> list[str]:
    return [text for _, text in zip(range(count), texts, strict=False)]


def _chunks(text: Path, vectors: Path, size: int) -> Iterator[TextChunk]:
    """Yield the chunks with their vectors, each of `size` bytes; a size of 0 means no vectors."""
    if not size:
        yield from map(TextChunk, _texts(text))
        return
    with vectors.open("rb") as file:
        for chunk in _texts(text):
            yield TextChunk(chunk, file.read(size))
