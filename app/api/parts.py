"""The objects and limits that all routes share."""

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
from app.api.rate_limits import Admission, KeyAccount, Limits
from app.api.request_body import BodyLimits
from app.core.types.request import CreateResponse
from app.errors import APIError
from app.observability import log_context
from app.observability.activity import Activity
from app.observability.activity.hours import Refusal
from app.responses import Caller, Responses


@dataclass(frozen=True, slots=True)
class ApiParts:
    """What every route is built with. `open_after` and the heartbeats are in seconds: see `Settings`."""

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
        """
        Return the caller with these headers, for objects of hosted tools.

        Raises `Unauthorized`, and `PermissionDenied` if the key may use none of these tools.
        """
        caller = self.auth.caller(headers)
        caller.access.check_tool(*tools)
        return caller

    def owner(self, headers: Mapping[str, str], *tools: str) -> str:
        """Return whose objects the caller with these headers may use; raises as `caller`."""
        return self.caller(headers, *tools).owner

    def owner_dependency(self, *tools: str) -> Any:
        """Return `owner` as the default of a route's parameter."""

        async def owner(request: Request) -> str:
            return self.owner(request.headers, *tools)

        return Depends(owner)

    def caller_dependency(self) -> Any:
        """Return `caller` as the default of a route's parameter."""

        async def caller(request: Request) -> Caller:
            return self.caller(request.headers)

        return Depends(caller)

    def admitted_dependency(self) -> Any:
        """Return the caller of a request that counts against the rate limits as the default of a route's parameter."""

        async def admitted(request: Request) -> Caller:
            check_site(request.headers)
            caller = self.caller(request.headers)
            await self.admit(caller, request)
            return caller

        return Depends(admitted)

    async def admitted_owner(self, headers: Mapping[str, str], *tools: str) -> str:
        """Return what `owner` does, for a request that counts against the rate limits; raises `LimitReached` too."""
        caller = self.caller(headers, *tools)
        await self.admit(caller)
        return caller.owner

    def refused(self, caller: Caller, endpoint: str, error: APIError) -> None:
        """Note that a caller's request was refused, for `GET /antiphon/refusals`; other errors are not noted."""
        if 400 <= error.status < 500:
            at, owner, key = time.time(), caller.owner, caller.access.name
            request_id = log_context.fields().get("request_id", "")
            self.activity.refused(
                Refusal(at, owner, key, endpoint, error.status, error.type, error.code, _parameter(error), request_id)
            )

    def request_refused(self, scope: Scope, path: str, error: APIError) -> None:
        """Note that an HTTP request was refused, if its caller is known."""
        with suppress(APIError):
            caller = self.auth.caller(Headers(scope=scope))
            self.refused(caller, f"{scope['method']} {path}", error)

    def account_of(self, key: str) -> KeyAccount:
        """Return the account of the key with this name in usage, for what is done for it later."""
        return KeyAccount(self.limits, self.auth.access_of(key), self.accounting)

    async def admit(self, caller: Caller, request: Request | None = None) -> Admission:
        """
        Count a request against the caller's rate limits; raises `LimitReached` and `BudgetExceeded`.

        Without API keys all callers share one set of limits. The headers of the response to `request` say what is left.
        """
        budget = await self.accounting.check(caller.access)
        admission = await self.limits.take(caller.access)
        admission.account(self.accounting, budget)
        if request is not None:
            request.state.limit_headers = admission.headers()
        return admission


def _parameter(error: APIError) -> str | None:
    """Return the parameter that an error names, without what is below it, which may be names of the caller's choice."""
    name = re.split(r"[.\[]", error.param or "", maxsplit=1)[0]
    return name if name in CreateResponse.model_fields else None
