"""The objects and limits that all routes share."""

from __future__ import annotations

from dataclasses import dataclass

from app.api.auth import Auth
from app.api.rate_limits import Admission, Limits
from app.api.request_body import BodyLimits
from app.responses import Caller, Responses


@dataclass(frozen=True, slots=True)
class ApiContext:
    """What every route is built with. `open_after` and `heartbeat` are in seconds: see `Settings`."""

    responses: Responses
    auth: Auth
    open_after: float
    heartbeat: float
    body_limits: BodyLimits
    limits: Limits

    async def admit(self, caller: Caller) -> Admission:
        """
        Count a request against the caller's rate limits; raises `LimitReached`.

        Without API keys all callers share one set of limits.
        """
        return await self.limits.take(caller.owner if self.auth.required else "everybody")
