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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import orjson
from starlette.types import ASGIApp, Message, Scope

from app.api.dependencies import APIDependencies
from app.api.passthrough import ENDPOINTS, Passthrough
from app.api.rate_limits import Admission
from app.api.request_body import parse, read_data
from app.backends import LOW_PRIORITY
from app.core.bounded_json import dumps
from app.core.dialects import DIALECTS
from app.core.types.request import CreateResponse
from app.errors import APIError, BackendError, Unauthorized
from app.observability import log_context
from app.responses import Caller
from app.runtime.tasks import cancel, end, wait_for_event
from app.tools.files import File, FilesUnavailable, new_file_id
from app.tools.files.batches import MAX_REQUESTS, Batches, BatchJob, BatchRequest, ClaimedRequest, usage_counts
from app.tools.files.records.contents import ContentWriter

logger = logging.getLogger(__name__)

BATCH_POLL_INTERVAL = 5.0  # seconds
LINE_ATTEMPTS = 3  # per request, after backend or process failures
LINE_RETRY = 15.0  # seconds before the second attempt; doubled before the third
BUSY = 5.0  # seconds before a retry if the backend had no free slot
RESULTS = 10  # answers read at once
_RETRIED = (500, 502, 503, 504)  # statuses
_NEVER_RUN = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed, because the batch was cancelled."),
}


class BatchWorker:
    def __init__(
        self,
        batches: Batches,
        api: APIDependencies,
        *,
        max_concurrency: int,
        lease: float,
        announce: Callable[[str, str], Awaitable[None]] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`lease` is in seconds; `announce` is called with an event and its batch id; `stopping` ends claiming."""
        self._records, self._store = batches, batches.store
        self._api, self._max_concurrency, self._lease = api, max_concurrency, lease
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
            status, body, error = await _answer(self._api, claimed)
        except asyncio.CancelledError:
            with contextlib.suppress(FilesUnavailable):
                await self._records.release(claimed, self._name, 0, failed=False)
            raise
        if status == 429 and b"insufficient_quota" not in body:  # no backend slot, or a backend's rate limit
            delay = getattr(error, "retry_after", None) or BUSY
            await self._records.release(claimed, self._name, delay, failed=False)
        elif status in _RETRIED and claimed.attempt < LINE_ATTEMPTS:
            await self._records.release(claimed, self._name, LINE_RETRY * claimed.attempt, failed=True)
        else:
            line = b'{"id":%b,"custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null}'
            own_id, custom_id = orjson.dumps(request_id), orjson.dumps(claimed.request.custom_id)
            output = line % (own_id, custom_id, status, own_id, body)
            usage = usage_counts(orjson.loads(body).get("usage")) if status == 200 else (0, 0, 0, 0)
            while True:  # also in a database outage, because the answer has been paid for
                try:
                    await self._records.finish(claimed, self._name, output, succeeded=status == 200, usage=usage)
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
            await wait_for_event(self._wakeup, BATCH_POLL_INTERVAL / 10)

    async def _read(self, batch: BatchJob) -> None:
        reader = _Reader(batch.endpoint, self._api.body_limits.bytes)
        add = partial(self._records.add_requests, batch, self._name)
        if not await reader.read(self._store.content(batch.input_file), add):
            return  # lease lost: the batch was cancelled
        if not reader.errors:
            await self._records.begin(batch, self._name, reader.total, reader.model)
        elif await self._records.end(batch, self._name, "failed", errors=reader.errors[:MAX_ERRORS]):
            await self._announce_end(batch, "failed")

    async def _end(self, batch: BatchJob) -> None:
        status = {"finalizing": "completed", "cancelling": "cancelled"}.get(batch.status, "expired")
        files: dict[str, File] = {}
        async with contextlib.AsyncExitStack() as stack:
            writers: dict[str, ContentWriter] = {}
            async for succeeded, line in self._output(batch, status):
                name = "output" if succeeded else "error"
                if name not in writers:
                    writer = ContentWriter(self._store.contents, new_file_id())
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


async def _answer(api: APIDependencies, claimed: ClaimedRequest) -> tuple[int, bytes, APIError | None]:
    """
    Run a request with its key's current permissions, and the same answer as its endpoint.

    Returns status, JSON body and, for error answers, the error.
    """
    batch = claimed.batch
    try:
        access = api.auth.accepted_access(batch.key, batch.owner)
        if access is None or (api.auth.required and access.owner != batch.owner):
            raise Unauthorized("The API key of this batch is no longer accepted.")
        caller = Caller(batch.owner, None, DIALECTS["openai"], access)
        account = Admission(api.limits, caller.access, api.accounting, batch=True)
        account.budget = await api.accounting.check(caller.access)
        if batch.endpoint == "/v1/responses":
            parsed = partial(parse, model=CreateResponse, max_values=api.body_limits.values)
            request = await read_data(claimed.request.body, parsed)
            run = await api.responses.create(request, caller, account=account)
            await run.drain()
            return 200, dumps(run.response), None
        endpoint = next(endpoint for endpoint in ENDPOINTS if batch.endpoint == f"/v1{endpoint.path}")
        return await _forwarded(partial(Passthrough(api, endpoint), caller=caller, admission=account), claimed)
    except APIError as error:
        return error.status, orjson.dumps(error.body()), error
    except Exception:
        logger.exception("batch request failed unexpectedly")
        failure = APIError("The server failed while answering this request.")
        return failure.status, orjson.dumps(failure.body()), failure


async def _forwarded(app: ASGIApp, claimed: ClaimedRequest) -> tuple[int, bytes, APIError | None]:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(claimed.request.body))]
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": claimed.batch.endpoint,
        "query_string": b"",
        "headers": headers,
        "path_params": {},
        "state": {},
    }
    received = False
    status, body = 500, bytearray()

    async def receive() -> Message:
        nonlocal received
        if received:
            await asyncio.Event().wait()  # stay connected until the answer ends
        received = True
        return {"type": "http.request", "body": claimed.request.body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            body.extend(message.get("body", b""))

    await app(scope, receive, send)
    try:
        is_object = isinstance(orjson.loads(body), dict)
    except orjson.JSONDecodeError:
        is_object = False
    if not is_object:
        failure = BackendError("The backend's response is not JSON.")
        return 502, orjson.dumps(failure.body()), failure
    return status, bytes(body), None


MAX_ERRORS = 50  # per file, as reported in the batch
MAX_CUSTOM_ID = 512  # characters


class _Reader:
    """Reads a batch's input file: a request per line, as in OpenAI's API."""

    def __init__(self, endpoint: str, max_bytes: int) -> None:
        self._endpoint, self._max_bytes = endpoint, max_bytes
        self._number = 0
        self._rest = bytearray()
        self._ids: set[str] = set()
        self._models: set[object] = set()
        self.total = 0
        self.errors: list[dict[str, object]] = []

    @property
    def model(self) -> str | None:
        (model, *others) = [*self._models] or [None]
        return model if isinstance(model, str) and not others else None

    @property
    def _full(self) -> bool:
        return len(self.errors) >= MAX_ERRORS or self.total > MAX_REQUESTS or len(self._rest) > self._max_bytes

    async def read(
        self, content: AsyncIterator[bytes], add: Callable[[Sequence[BatchRequest]], Awaitable[bool]]
    ) -> bool:
        """Pass requests to `add`, until the first error; False as soon as `add` returns False."""
        async for piece in content:
            requests = await asyncio.to_thread(self._requests, piece)
            if requests and not self.errors and not await add(requests):
                return False
            if self._full:
                break
        requests = await asyncio.to_thread(self._requests, b"\n")
        if self.total > MAX_REQUESTS:
            self._fail("too_many_requests", f"The file contains more than {MAX_REQUESTS} requests.", None)
        elif not self.total and not self.errors:
            self._fail("empty_file", "The file has no requests.", None)
        return not requests or bool(self.errors) or await add(requests)

    def _requests(self, data: bytes) -> list[BatchRequest]:
        """Lines completed by these bytes."""
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [read for line in lines if (read := self._line(line))]

    def _fail(self, code: str, message: str, param: str | None) -> None:
        line = self._number if param is not None or code == "invalid_json_line" else None
        self.errors.append({"code": code, "message": message, "param": param, "line": line})

    def _line(self, line: bytes) -> BatchRequest | None:
        self._number += 1
        if not line.strip() or self._full:
            return None
        self.total += 1
        if len(line) > self._max_bytes:
            self._fail("request_too_large", f"A request must have at most {self._max_bytes} bytes.", "body")
            return None
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            fields = None
        if not isinstance(fields, dict):
            self._fail("invalid_json_line", "This line is not a JSON object.", None)
            return None
        custom_id, body = fields.get("custom_id"), fields.get("body")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
            message = f"'custom_id' must be a string of 1 to {MAX_CUSTOM_ID} characters."
            self._fail("missing_required_parameter" if custom_id is None else "invalid_value", message, "custom_id")
        elif custom_id in self._ids:
            self._fail(
                "duplicate_custom_id", "'custom_id' must be unique, but an earlier line has the same.", "custom_id"
            )
        elif fields.get("method") != "POST":
            self._fail("invalid_method", "'method' must be 'POST'.", "method")
        elif fields.get("url") != self._endpoint:
            self._fail("invalid_url", f"'url' must be the endpoint of the batch, '{self._endpoint}'.", "url")
        elif not isinstance(body, dict):
            self._fail("missing_required_parameter", "'body' must be a JSON object.", "body")
        elif body.get("stream") or body.get("background"):
            name = "stream" if body.get("stream") else "background"
            self._fail("invalid_value", f"Batch requests must not have '{name}'.", f"body.{name}")
        else:
            self._ids.add(custom_id)
            self._models.add(str(body.get("model")))
            return BatchRequest(self._number, custom_id, orjson.dumps(body))
        return None
