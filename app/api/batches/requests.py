"""Runs a batch request, with the same answer as its endpoint."""

from __future__ import annotations

import asyncio
import logging

import orjson
from starlette.types import ASGIApp, Message, Scope

from app.api.dependencies import APIDependencies
from app.api.passthrough import ENDPOINTS, Passthrough
from app.api.rate_limits import BatchAccount
from app.api.request_body import parse_in_thread_if_large
from app.core.bounded_json import dumps
from app.core.dialects import DIALECTS
from app.core.types.request import CreateResponse
from app.errors import APIError, BackendError, Unauthorized
from app.responses import Caller
from app.tools.files.batches import BatchJob, ClaimedRequest, RequestResult, usage_counts

logger = logging.getLogger(__name__)

BUSY = 5.0  # seconds before a retry if the backend had no free slot
_STATUSES = (500, 502, 503, 504)  # retried statuses


class RetryLater(Exception):
    """`counts`: whether this was an attempt. `seconds`: 0 for the default delay."""

    def __init__(self, seconds: float, *, counts: bool) -> None:
        super().__init__(seconds)
        self.seconds, self.counts = seconds, counts


class LineRequests:
    """Runs batch requests with their key's current permissions."""

    def __init__(self, api: APIDependencies) -> None:
        self._api = api
        self._passthrough = {
            f"/v1{endpoint.path}": Passthrough(api, endpoint, "/v1")
            for endpoint in ENDPOINTS
            if endpoint.path in ("/chat/completions", "/embeddings")
        }
        self.max_bytes = api.body_limits.bytes  # per request

    async def answer(self, claimed: ClaimedRequest, request_id: str, *, last: bool) -> RequestResult:
        """Raises `RetryLater` for transient errors; in the `last` attempt, a 5xx error becomes the answer."""
        status, body, error = await self._answer(claimed)
        if status == 429 and b"insufficient_quota" not in body:  # no backend slot, or a backend's rate limit
            raise RetryLater(getattr(error, "retry_after", None) or BUSY, counts=False)
        if status in _STATUSES and not last:
            raise RetryLater(0, counts=True)
        line = b'{"id":%b,"custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null}'
        texts = map(orjson.dumps, (request_id, claimed.request.custom_id))
        output = line % (*texts, status, orjson.dumps(request_id), body)
        usage = usage_counts(orjson.loads(body).get("usage")) if status == 200 else (0, 0, 0, 0)
        return RequestResult(status == 200, output, usage)

    async def _answer(self, claimed: ClaimedRequest) -> tuple[int, bytes, APIError | None]:
        """Status, JSON body and, for error answers, the error."""
        try:
            caller = self._caller(claimed.batch)
            budget = await self._api.accounting.check(caller.access)
            account = BatchAccount(self._api.limits, caller.access, self._api.accounting, budget)
            if claimed.batch.endpoint == "/v1/responses":
                return 200, await self._response(claimed.request.body, caller, account), None
            passthrough = self._passthrough[claimed.batch.endpoint]
            return await _forwarded(passthrough.as_caller(caller, account), claimed)
        except APIError as error:
            return error.status, orjson.dumps(error.body()), error
        except Exception:
            logger.exception("batch request failed unexpectedly")
            failure = APIError("The server failed while answering this request.")
            return failure.status, orjson.dumps(failure.body()), failure

    def _caller(self, batch: BatchJob) -> Caller:
        access = self._api.auth.accepted_access(batch.key, batch.owner)
        if access is None or (self._api.auth.required and access.owner != batch.owner):
            raise Unauthorized("The API key of this batch is no longer accepted.")
        return Caller(batch.owner, None, DIALECTS["openai"], access)

    async def _response(self, data: bytes, caller: Caller, account: BatchAccount) -> bytes:
        request = await parse_in_thread_if_large(data, CreateResponse, self._api.body_limits)
        run = await self._api.responses.create(request, caller, observers=[account])
        return dumps(await run.drain())


async def _forwarded(app: ASGIApp, claimed: ClaimedRequest) -> tuple[int, bytes, APIError | None]:
    path = claimed.batch.endpoint
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(claimed.request.body))]
    scope: Scope = {
        **{"type": "http", "http_version": "1.1", "scheme": "http", "server": None, "client": None, "state": {}},
        **{"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers},
        "path_params": {},
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
    answer = bytes(body)
    if not _is_json(answer):
        failure = BackendError("The backend's response is not JSON.")
        return 502, orjson.dumps(failure.body()), failure
    return status, answer, None


def _is_json(data: bytes) -> bool:
    try:
        return isinstance(orjson.loads(data), dict)
    except orjson.JSONDecodeError:
        return False
