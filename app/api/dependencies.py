"""Objects and limits shared by all routes."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from app.api.accounting import Accounting
from app.api.auth import Auth
from app.api.idempotency import Idempotency
from app.api.middleware.origins import check_site
from app.api.rate_limits import Admission, Limits
from app.api.request_body import BodyLimits
from app.core.types.request import CreateResponse
from app.errors import APIError
from app.observability import log_context
from app.observability.activity import Activity, Refusal
from app.responses import Caller, Responses


@dataclass(frozen=True, slots=True)
class APIDependencies:
    """Times are in seconds."""

    responses: Responses
    auth: Auth
    open_after: float
    heartbeat: float
    json_heartbeat: float
    body_limits: BodyLimits
    limits: Limits
    accounting: Accounting
    idempotency: Idempotency
    activity: Activity

    def caller(self, headers: Mapping[str, str], *tools: str) -> Caller:
        """Raises `Unauthorized`, and `PermissionDenied` if the key allows none of these hosted tools."""
        caller = self.auth.caller(headers)
        caller.access.check_tool(*tools)
        return caller

    def owner_dependency(self, *tools: str) -> Any:
        """The caller's owner id, as a FastAPI dependency."""

        async def owner(request: Request) -> str:
            return self.caller(request.headers, *tools).owner

        return Depends(owner)

    def caller_dependency(self) -> Any:
        """`caller` as a FastAPI dependency."""

        async def caller(request: Request) -> Caller:
            return self.caller(request.headers)

        return Depends(caller)

    def admitted_dependency(self, *tools: str) -> Any:
        """Admit the caller to a rate-limited request, as a FastAPI dependency."""

        async def admitted(request: Request) -> Caller:
            check_site(request.headers)
            caller = self.caller(request.headers, *tools)
            await self.admit(caller, request.scope)
            return caller

        return Depends(admitted)

    def refused(self, caller: Caller, endpoint: str, error: APIError) -> None:
        """Record a refusal (4xx) for `GET /antiphon/refusals`."""
        if 400 <= error.status < 500:
            at, owner, key = time.time(), caller.owner, caller.access.name
            name = re.split(r"[.\[]", error.param or "", maxsplit=1)[0]
            param = name if name in CreateResponse.model_fields else None  # callers may choose nested names
            request_id = log_context.fields().get("request_id", "")
            self.activity.refused(
                Refusal(at, owner, key, endpoint, error.status, error.type, error.code, param, request_id)
            )

    def request_refused(self, scope: Scope, path: str, error: APIError) -> None:
        """Record a refused request if the caller is known."""
        with suppress(APIError):
            caller = self.auth.caller(Headers(scope=scope))
            self.refused(caller, f"{scope['method']} {path}", error)

    def account_of(self, key: str) -> Admission:
        """The account that is charged for a usage name."""
        return Admission(self.limits, self.auth.access_of(key), self.accounting)

    async def admit(self, caller: Caller, scope: Scope | None = None) -> Admission:
        """
        Raises `TooManyRequests`.

        Without API keys, all callers share the limits. The response headers of `scope`'s request report the remaining
        amounts.
        """
        admission = Admission(self.limits, caller.access, self.accounting)
        if caller.access.budget:
            admission.budget = await self.accounting.check(caller.access)
        if admission.key_limits.charges:
            await self.limits.admit(admission)
        if scope is not None:
            scope["state"]["limit_headers"] = admission.headers()
        return admission
