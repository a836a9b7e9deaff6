"""
Batch API, `/v1/batches`: runs a file's requests in the background and writes their responses to files.

Batch requests are rows in the file database, so they survive the process. A process claims a request for some seconds
and renews the claim while it runs. If the process dies, another process runs the request again. Only the first result
is stored.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.core.types import JSONObject
from app.core.types.request import WITHOUT_NUL, Metadata
from app.errors import InvalidRequest, NotFound
from app.tools.files import File, FileStore, Page, file_not_found
from app.tools.files.uploads import BATCH_LIFETIME, FileExpiry, list_page

MAX_REQUESTS = 50_000
MAX_INPUT_BYTES = 200 * 1024 * 1024
MAX_UNFINISHED = 100  # per owner
WINDOW = 86_400  # seconds; the only `completion_window` is 24h

BatchEndpoint: TypeAlias = Literal["/v1/responses", "/v1/chat/completions", "/v1/embeddings"]


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
    metadata: Mapping[str, str] | None = None
    output_lifetime: int = BATCH_LIFETIME  # of the output files, in seconds
    status: str = "validating"
    times: Mapping[str, int] = field(default_factory=dict)  # start time by status
    errors: Sequence[Mapping[str, object]] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file: str | None = None
    error_file: str | None = None
    model: str | None = None
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
            "finalizing_at": self.times.get("finalizing"),
            "completed_at": self.times.get("completed"),
            "failed_at": self.times.get("failed"),
            "expired_at": self.times.get("expired"),
            "cancelling_at": self.times.get("cancelling"),
            "cancelled_at": self.times.get("cancelled"),
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


class RequestResult(NamedTuple):
    succeeded: bool
    output: bytes  # a line without line break
    usage: Sequence[int] = (0, 0, 0, 0)


class BatchRecords(Protocol):
    """Methods for a claimed batch or request return False, without changes, if the claim was lost."""

    async def create(self, batch: BatchJob) -> bool:
        """Return False, without changes, if the owner already has `MAX_UNFINISHED`."""
        ...

    async def get(self, owner: str, batch_id: str) -> BatchJob | None: ...

    async def list(self, owner: str, page: Page) -> tuple[list[BatchJob], bool]: ...

    async def cancel(self, owner: str, batch_id: str) -> bool:
        """Return False, without changes, if the batch has ended."""
        ...

    async def claim_batch(self, worker: str, lease: float) -> BatchJob | None:
        """Claim a batch whose file must be read, or which must be ended."""
        ...

    async def add_requests(self, batch: BatchJob, worker: str, lines: Sequence[BatchRequest]) -> bool: ...

    async def begin(self, batch: BatchJob, worker: str, total: int, model: str | None) -> None:
        """Start running a claimed batch, after its file was read."""
        ...

    async def fail(self, batch: BatchJob, worker: str, errors: Sequence[Mapping[str, object]]) -> bool:
        """End a claimed batch with an invalid file."""
        ...

    async def claim_requests(self, worker: str, lease: float, max_running: int) -> Sequence[ClaimedRequest]:
        """Claim requests, taking turns between owners. At most `max_running` run at once in all processes."""
        ...

    async def renew(
        self, worker: str, lease: float, batch_id: str | None, lines: Collection[tuple[str, int]]
    ) -> set[tuple[str, int]]:
        """
        Renew a process's claims: on the batch it reads or ends, and on requests, by batch and number.

        Returns the requests to continue. Claims not listed here expire.
        """
        ...

    async def release(self, claimed: ClaimedRequest, worker: str, delay: float, *, failed: bool) -> None:
        """Release a request, to be run after `delay` seconds. Only attempts that `failed` count."""
        ...

    async def finish(self, claimed: ClaimedRequest, worker: str, result: RequestResult) -> bool: ...

    async def results(self, batch_id: str, after: int, count: int) -> Sequence[tuple[int, str, bool | None, bytes]]:
        """Return the next requests in a batch: number, id, success (None if not run) and result."""
        ...

    async def end(self, batch: BatchJob, worker: str, status: str, files: Mapping[str, File]) -> bool:
        """End a claimed batch, with its files by `output` and `error`."""
        ...


class CreateBatchJob(BaseModel):
    model_config = ConfigDict(extra="allow")

    input_file_id: Annotated[str, StringConstraints(min_length=1, max_length=128), WITHOUT_NUL]
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: FileExpiry | None = Field(None)


class Batches:
    def __init__(self, store: FileStore, clock: Callable[[], float] = time.time) -> None:
        self.store, self.records, self._clock = store, store.batches, clock
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
            f"batch_{secrets.token_hex(16)}",
            owner,
            key,
            body.endpoint,
            file.id,
            now,
            now + WINDOW,
            body.metadata,
            body.output_expires_after.seconds if body.output_expires_after else BATCH_LIFETIME,
        )
        if not await self.records.create(batch):
            message = f"You have {MAX_UNFINISHED} unfinished batches, the maximum. Wait until one ends, or cancel one."
            raise InvalidRequest(message, code="too_many_batches")
        self.wake()
        return batch.resource()

    async def retrieve(self, owner: str, batch_id: str) -> dict[str, object]:
        batch = await self.records.get(owner, batch_id)
        if batch is None:
            raise NotFound(f"Batch with id '{batch_id}' not found.", param="batch_id")
        return batch.resource()

    async def list(self, owner: str, page: Page) -> dict[str, object]:
        batches, more = await self.records.list(owner, page)
        return list_page([batch.resource() for batch in batches], more)

    async def cancel(self, owner: str, batch_id: str) -> dict[str, object]:
        """Raises `InvalidRequest` if the batch has ended."""
        cancelled = await self.records.cancel(owner, batch_id)
        batch = await self.retrieve(owner, batch_id)
        if not cancelled and batch["status"] not in ("cancelling", "cancelled"):
            raise InvalidRequest(f"The batch is {batch['status']} and cannot be cancelled.", param="batch_id")
        self.wake()
        return batch


def usage_counts(usage: JSONObject | None) -> tuple[int, int, int, int]:
    """Return input, cached, output and reasoning tokens in a Responses or Chat Completions `usage`."""
    if not isinstance(usage, dict):
        return 0, 0, 0, 0

    def count(source: object, *names: str) -> int:
        values = (source.get(name) for name in names) if isinstance(source, dict) else ()
        return next((value for value in values if isinstance(value, int) and value > 0), 0)

    inputs = usage.get("input_tokens_details") or usage.get("prompt_tokens_details")
    outputs = usage.get("output_tokens_details") or usage.get("completion_tokens_details")
    return (
        count(usage, "input_tokens", "prompt_tokens"),
        count(inputs, "cached_tokens"),
        count(usage, "output_tokens", "completion_tokens"),
        count(outputs, "reasoning_tokens"),
    )
