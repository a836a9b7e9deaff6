"""
Batch API, `/v1/batches`: runs a file's requests in the background and writes their responses to files.

Batch requests are rows in the file database, so they survive the process. A process claims a request for some seconds
and renews the claim while it runs. If the process dies, another process runs the request again. Only the first result
is stored.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from app.core.types import json_object
from app.core.types.request import WITHOUT_NUL, Metadata, RequestBody
from app.core.usage import token_count
from app.errors import InvalidRequest, NotFound
from app.tools.files import BATCH_LIFETIME, Page, file_not_found, list_page
from app.tools.files.records import FileStore
from app.tools.files.records.batches import MAX_UNFINISHED, BatchJob
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
