"""
Batch API, `/v1/batches`: runs a file's requests in the background and writes their responses to files.

Batch requests are rows in the file database, so they survive the process. A process claims a request for some seconds
and renews the claim while it runs. If the process dies, another process runs the request again. Only the first result
is stored.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Annotated, Literal, NamedTuple, TypeAlias

import orjson
from pydantic import StringConstraints

from app.core.types import json_object
from app.core.types.request import WITHOUT_NUL, Metadata, RequestBody
from app.core.usage import token_count
from app.errors import InvalidRequest, NotFound
from app.storage.tables import Records, Row, Transaction, execute, execute_many, in_transaction
from app.tools.files import BATCH_LIFETIME, File, Page, fetch_page, file_not_found, list_page
from app.tools.files.records import FileStore
from app.tools.files.records.uploads import add_file
from app.tools.files.uploads import FileExpiry

MAX_REQUESTS = 50_000
MAX_INPUT_BYTES = 200 * 1024 * 1024
WINDOW = 86_400  # seconds; the only `completion_window` is 24h

BatchEndpoint: TypeAlias = Literal["/v1/responses", "/v1/chat/completions", "/v1/embeddings"]


class CreateBatchJob(RequestBody):
    input_file_id: Annotated[str, StringConstraints(min_length=1, max_length=128), WITHOUT_NUL]
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: FileExpiry | None = None


MAX_UNFINISHED = 100  # per owner
_LATER = ("finalizing", "completed", "failed", "expired", "cancelling", "cancelled")  # statuses after `in_progress`


@dataclass(frozen=True, slots=True)
class BatchJob:
    """Times are Unix times."""

    id: str
    owner: str
    key: str  # name of the key that pays
    endpoint: str
    input_file: str
    created_at: int
    expires_at: int
    output_lifetime: int = BATCH_LIFETIME  # of the output files, in seconds
    status: str = "validating"
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file: str | None = None
    error_file: str | None = None
    model: str | None = None
    metadata: Mapping[str, str] | None = None
    times: Mapping[str, int] = field(default_factory=dict)  # start time by status
    errors: Sequence[Mapping[str, object]] = ()
    usage: Sequence[int] = (0, 0, 0, 0)  # tokens: input, cached input, output, reasoning output

    def resource(self) -> dict[str, object]:
        input_tokens, cached, output_tokens, reasoning = self.usage
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": [*self.errors]} if self.errors else None,
            "input_file_id": self.input_file,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file,
            "error_file_id": self.error_file,
            "created_at": self.created_at,
            "in_progress_at": self.times.get("in_progress"),
            "expires_at": self.expires_at,
            **{f"{status}_at": self.times.get(status) for status in _LATER},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": {
                "input_tokens": input_tokens,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": output_tokens,
                "output_tokens_details": {"reasoning_tokens": reasoning},
                "total_tokens": input_tokens + output_tokens,
            },
            "metadata": self.metadata,
        }


class BatchRequest(NamedTuple):
    number: int  # in the file, from 1
    custom_id: str
    body: bytes  # JSON


class ClaimedRequest(NamedTuple):
    batch: BatchJob
    request: BatchRequest
    attempt: int  # from 1


_COLUMNS = (
    "id, owner, key, endpoint, input_file, created_at, expires_at, output_lifetime, status, total, completed, failed, "
    "output_file, error_file, model, metadata, times, errors, input_tokens, cached_tokens, output_tokens, "
    "reasoning_tokens"
)
_BATCH = f"SELECT {_COLUMNS} FROM antiphon_request_batches"
_CREATE = """
INSERT INTO antiphon_request_batches
    (id, owner, key, endpoint, input_file, created_at, expires_at, output_lifetime, metadata)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
_ENDED = "('completed', 'failed', 'expired', 'cancelled')"
_HELD = "id = $1 AND claim = $2"
# The next batch to read, to end (cancelled or expired, without running requests), or to complete (all requests have
# results).
_NEXT_BATCH = f"""
{_BATCH} AS batches WHERE status NOT IN {_ENDED} AND claimed_until <= {{now}} AND (
    status IN ('validating', 'finalizing')
    OR ((status = 'cancelling' OR expires_at <= {{now}}) AND NOT EXISTS (
        SELECT 1 FROM antiphon_batch_requests AS requests
        WHERE batch = batches.id AND status = 'waiting' AND claim IS NOT NULL AND claimed_until > {{now}}
    ))
)
ORDER BY {{row}} LIMIT 1 FOR UPDATE SKIP LOCKED
"""
_RUNNING = """
SELECT batch, count(*) FROM antiphon_batch_requests
WHERE status = 'waiting' AND claim IS NOT NULL AND claimed_until > {now} GROUP BY batch
"""
_OPEN = (
    "SELECT id, owner FROM antiphon_request_batches WHERE status = 'in_progress' AND expires_at > {now} ORDER BY {row}"
)
_NEXT_LINES = """
SELECT line, custom_id, body, attempts FROM antiphon_batch_requests
WHERE batch = $1 AND status = 'waiting' AND claimed_until <= {now} ORDER BY line LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_CLAIM_LINE = """
UPDATE antiphon_batch_requests SET claim = $3, claimed_until = {now} + $4, attempts = attempts + 1
WHERE batch = $1 AND line = $2
"""
CLAIMED = 8  # requests per claim, so that other processes get some too
_HELD_LINE = "batch = $1 AND line = $2 AND claim = $3 AND status = 'waiting'"
_ALIVE = "batch IN (SELECT id FROM antiphon_request_batches WHERE status = 'in_progress' AND expires_at > {now})"
_RENEW_LINE = f"UPDATE antiphon_batch_requests SET claimed_until = {{now}} + $4 WHERE {_HELD_LINE} AND {_ALIVE}"
_HELD_LINES = f"""
SELECT batch, line FROM antiphon_batch_requests WHERE claim = $1 AND status = 'waiting' AND {_ALIVE}
"""
_GIVE_BACK_LINE = f"UPDATE antiphon_batch_requests SET claim = NULL WHERE {_HELD_LINE}"
_FINISH = f"""
UPDATE antiphon_batch_requests SET status = $4, result = $5, body = NULL, claim = NULL WHERE {_HELD_LINE} RETURNING line
"""
_COUNT = """
UPDATE antiphon_request_batches SET completed = completed + $2, failed = failed + $3,
    input_tokens = input_tokens + $4, cached_tokens = cached_tokens + $5, output_tokens = output_tokens + $6,
    reasoning_tokens = reasoning_tokens + $7
WHERE id = $1 RETURNING completed + failed, total, status
"""


class Batches(Records):
    """Methods for a claimed batch or request return False, without changes, if the claim was lost."""

    def __init__(self, store: FileStore, clock: Callable[[], float] = time.time) -> None:
        super().__init__(store.tables)
        self.store, self._clock = store, clock
        self.wake: Callable[[], None] = lambda: None  # called when a batch needs processing

    async def create(self, owner: str, key: str, body: CreateBatchJob) -> dict[str, object]:
        """Create a batch, charged to the key named `key`; raises `InvalidRequest`."""
        file = await self.store.file(owner, body.input_file_id)
        if file is None:
            raise file_not_found(body.input_file_id, "input_file_id")
        if file.purpose != "batch":
            message = f"The file must have the purpose 'batch', not '{file.purpose}'."
            raise InvalidRequest(message, param="input_file_id")
        if file.bytes > MAX_INPUT_BYTES:
            message = f"A batch input file must have at most {MAX_INPUT_BYTES} bytes."
            raise InvalidRequest(message, param="input_file_id", code="request_too_large", status=413)
        now = int(self._clock())
        batch = BatchJob(
            id=f"batch_{secrets.token_hex(16)}",
            owner=owner,
            key=key,
            endpoint=body.endpoint,
            input_file=file.id,
            created_at=now,
            expires_at=now + WINDOW,
            output_lifetime=body.output_expires_after.seconds if body.output_expires_after else BATCH_LIFETIME,
            metadata=body.metadata,
        )
        await self.add(batch)
        self.wake()
        return batch.resource()

    async def retrieve(self, owner: str, batch_id: str) -> dict[str, object]:
        rows = await self._tables.fetch(f"{_BATCH} WHERE id = $1 AND owner = $2", batch_id, owner)
        if not rows:
            raise NotFound(f"Batch with id '{batch_id}' not found.", param="batch_id")
        return _batch_of(rows[0]).resource()

    async def list(self, owner: str, page: Page) -> dict[str, object]:
        table = "antiphon_request_batches"
        rows, more = await fetch_page(self._tables, _BATCH, table, "owner = $1", (owner,), page)
        return list_page([_batch_of(row).resource() for row in rows], more)

    async def cancel(self, owner: str, batch_id: str) -> dict[str, object]:
        """Raises `InvalidRequest` if the batch has ended."""
        cancelled = await self._cancel(owner, batch_id)
        batch = await self.retrieve(owner, batch_id)
        if not cancelled and batch["status"] not in ("cancelling", "cancelled"):
            raise InvalidRequest(f"The batch is {batch['status']} and cannot be cancelled.", param="batch_id")
        self.wake()
        return batch

    @in_transaction
    def add(self, batch: BatchJob) -> Transaction[None]:
        """Raises `InvalidRequest` if the owner already has `MAX_UNFINISHED`."""
        yield from self._tables.advisory_lock(batch.owner)
        count = f"SELECT count(*) FROM antiphon_request_batches WHERE owner = $1 AND status NOT IN {_ENDED}"
        ((number,),) = yield execute(count, batch.owner)
        if number >= MAX_UNFINISHED:
            message = f"You have {MAX_UNFINISHED} unfinished batches, the maximum. Wait until one ends, or cancel one."
            raise InvalidRequest(message, code="too_many_batches")
        metadata = None if batch.metadata is None else orjson.dumps(batch.metadata).decode()
        yield execute(_CREATE, *astuple(batch)[:8], metadata)  # fields are in column order

    @in_transaction
    def _cancel(self, owner: str, batch_id: str) -> Transaction[bool]:
        """Return False, without changes, if the batch has ended."""
        where = "id = $1 AND owner = $2 AND status IN ('validating', 'in_progress')"
        rows = yield execute(f"{_BATCH} WHERE {where} FOR UPDATE", batch_id, owner)
        return bool(rows) and (yield from _move(_batch_of(rows[0]), None, "cancelling"))

    async def claim_batch(self, worker: str, lease: float) -> BatchJob | None:
        """Claim the next batch to read or to end."""
        if not await self._tables.fetch(_NEXT_BATCH.partition("FOR UPDATE")[0]):
            return None  # without a lock
        return await self._claim_batch(worker, lease)

    @in_transaction
    def _claim_batch(self, worker: str, lease: float) -> Transaction[BatchJob | None]:
        rows = yield execute(_NEXT_BATCH)
        if not rows:
            return None
        batch = _batch_of(rows[0])
        claim = "UPDATE antiphon_request_batches SET claim = $2, claimed_until = {now} + $3 WHERE id = $1"
        yield execute(claim, batch.id, worker, lease)
        if batch.status == "validating":
            # A process that died may have stored some requests.
            yield execute("DELETE FROM antiphon_batch_requests WHERE batch = $1", batch.id)
        return batch

    @in_transaction
    def add_requests(self, batch: BatchJob, worker: str, lines: Sequence[BatchRequest]) -> Transaction[bool]:
        if not (yield execute(f"SELECT 1 FROM antiphon_request_batches WHERE {_HELD} FOR UPDATE", batch.id, worker)):
            return False
        add = "INSERT INTO antiphon_batch_requests (batch, line, custom_id, body) VALUES ($1, $2, $3, $4)"
        yield execute_many(add, [(batch.id, *line) for line in lines])
        return True

    @in_transaction
    def begin(self, batch: BatchJob, worker: str, total: int, model: str | None) -> Transaction[bool]:
        """Start running a claimed batch, after its file was read."""
        return (yield from _move(batch, worker, "in_progress", total=total, model=model))

    @in_transaction
    def end(
        self,
        batch: BatchJob,
        worker: str,
        status: str,
        files: Mapping[str, File] | None = None,
        errors: Sequence[Mapping[str, object]] = (),
    ) -> Transaction[bool]:
        """End a claimed batch, with its files by `output` and `error`, or with the `errors` in its input file."""
        columns = {f"{name}_file": file.id for name, file in (files or {}).items()}
        if not (yield from _move(batch, worker, status, errors=orjson.dumps([*errors]).decode(), **columns)):
            return False
        for file in (files or {}).values():
            yield from add_file(file)
        yield execute("DELETE FROM antiphon_batch_requests WHERE batch = $1", batch.id)
        return True

    async def claim_requests(self, worker: str, lease: float, max_running: int) -> Sequence[ClaimedRequest]:
        """Claim requests, taking turns between owners. At most `max_running` run at once in all processes."""
        if not await self._tables.fetch(f"{_OPEN} LIMIT 1"):
            return []
        if sum(row[1] for row in await self._tables.fetch(_RUNNING)) >= max_running:
            return []  # without the lock, which blocks all processes
        return await self._claim_requests(worker, lease, max_running)

    @in_transaction
    def _claim_requests(self, worker: str, lease: float, max_running: int) -> Transaction[Sequence[ClaimedRequest]]:
        yield from self._tables.advisory_lock("batches")
        running = {str(row[0]): int(row[1]) for row in (yield execute(_RUNNING))}
        free = min(max_running - sum(running.values()), CLAIMED)
        batches: dict[str, str] = {row[0]: row[1] for row in (yield execute(_OPEN))}
        load = Counter[str]()  # running requests by owner
        for batch_id, owner in batches.items():
            load[owner] += running.get(batch_id, 0)
        lines: dict[str, list[Row]] = {}
        chosen: list[tuple[str, Row]] = []
        while batches and len(chosen) < free:
            batch_id = min(batches, key=lambda batch_id: load[batches[batch_id]])
            if batch_id not in lines:
                lines[batch_id] = [*(yield execute(_NEXT_LINES, batch_id, free))]
            if lines[batch_id]:
                chosen.append((batch_id, lines[batch_id].pop(0)))
                load[batches[batch_id]] += 1
            else:
                del batches[batch_id]
        yield execute_many(_CLAIM_LINE, [(batch_id, row[0], worker, lease) for batch_id, row in chosen])
        claimed: dict[str, BatchJob] = {}
        for batch_id in dict(chosen):
            (row,) = yield execute(f"{_BATCH} WHERE id = $1", batch_id)
            claimed[batch_id] = _batch_of(row)
        return [
            ClaimedRequest(claimed[batch_id], BatchRequest(line, custom_id, bytes(body)), attempts + 1)
            for batch_id, (line, custom_id, body, attempts) in chosen
        ]

    @in_transaction
    def renew(
        self, worker: str, lease: float, batch_id: str | None, lines: Collection[tuple[str, int]]
    ) -> Transaction[set[tuple[str, int]]]:
        """
        Renew a process's claims: on the batch it reads or ends, and on requests, by batch and number.

        Returns the requests to continue. Claims not listed here expire.
        """
        until = "claimed_until = {now} + $3"
        if batch_id is not None:
            yield execute(f"UPDATE antiphon_request_batches SET {until} WHERE {_HELD}", batch_id, worker, lease)
        if not lines:
            return set()
        ordered = sorted(lines)  # a fixed order, to prevent deadlocks
        yield execute_many(_RENEW_LINE, [(*line, worker, lease) for line in ordered])
        held = {(str(row[0]), int(row[1])) for row in (yield execute(_HELD_LINES, worker))}
        # The other requests belong to cancelled or expired batches.
        yield execute_many(_GIVE_BACK_LINE, [(*line, worker) for line in ordered if line not in held])
        return held.intersection(lines)

    async def release(self, claimed: ClaimedRequest, worker: str, delay: float, *, failed: bool) -> None:
        """Release a request, to be run after `delay` seconds. Only attempts that `failed` count."""
        release = (
            "UPDATE antiphon_batch_requests SET claim = NULL, claimed_until = {now} + $4, attempts = attempts - $5 "
            f"WHERE {_HELD_LINE}"
        )
        values = (claimed.batch.id, claimed.request.number, worker, delay, 0 if failed else 1)
        await self._tables.execute(release, *values)

    @in_transaction
    def finish(
        self,
        claimed: ClaimedRequest,
        worker: str,
        output: bytes,
        *,
        succeeded: bool,
        usage: Sequence[int] = (0, 0, 0, 0),
    ) -> Transaction[bool]:
        """Store a request's output, a line without line break, and count its tokens."""
        batch_id, status = claimed.batch.id, "completed" if succeeded else "failed"
        if not (yield execute(_FINISH, batch_id, claimed.request.number, worker, status, output)):
            return False
        counts = (int(succeeded), int(not succeeded), *usage)
        ((done, total, batch_status),) = yield execute(_COUNT, batch_id, *counts)
        if done == total and batch_status == "in_progress":
            (row,) = yield execute(f"{_BATCH} WHERE id = $1", batch_id)
            yield from _move(_batch_of(row), None, "finalizing")
        return True

    async def results(self, batch_id: str, after: int, count: int) -> Sequence[tuple[int, str, bool | None, bytes]]:
        """Return the next requests in a batch: number, id, success (None if not run) and result."""
        statement = """
            SELECT line, custom_id, status, result FROM antiphon_batch_requests
            WHERE batch = $1 AND line > $2 ORDER BY line LIMIT $3
        """
        succeeded = {"completed": True, "failed": False}
        rows = await self._tables.fetch(statement, batch_id, after, count)
        return [
            (line, custom_id, succeeded.get(status), bytes(result or b"")) for line, custom_id, status, result in rows
        ]


def _move(batch: BatchJob, worker: str | None, status: str, **columns: object) -> Transaction[bool]:
    """Start a status, and end the claim. Returns False if the `worker`, if any, has lost its claim."""
    ((now,),) = yield execute("SELECT CAST({now} AS bigint)")
    times = orjson.dumps({**batch.times, status: now}).decode()
    assignments = "".join(f", {name} = ${index}" for index, name in enumerate(columns, 5))
    moved = yield execute(
        f"UPDATE antiphon_request_batches SET status = $3, times = $4, claim = NULL, claimed_until = 0{assignments} "
        "WHERE id = $1 AND (CAST($2 AS text) IS NULL OR claim = $2) RETURNING id",
        *(batch.id, worker, status, times, *columns.values()),
    )
    return bool(moved)


def _batch_of(row: Row) -> BatchJob:
    *fields, metadata, times, errors = row[:18]
    fields += orjson.loads(metadata or "null"), orjson.loads(times or "{}"), orjson.loads(errors or "[]"), row[18:]
    return BatchJob(*fields)


def usage_counts(reported: object) -> tuple[int, int, int, int]:
    """Return input, cached, output and reasoning tokens in a Responses or Chat Completions `usage`."""
    usage = json_object(reported)
    inputs = json_object(usage.get("input_tokens_details") or usage.get("prompt_tokens_details"))
    outputs = json_object(usage.get("output_tokens_details") or usage.get("completion_tokens_details"))
    return (
        token_count(usage.get("input_tokens"), usage.get("prompt_tokens")),
        token_count(inputs.get("cached_tokens")),
        token_count(usage.get("output_tokens"), usage.get("completion_tokens")),
        token_count(outputs.get("reasoning_tokens")),
    )
