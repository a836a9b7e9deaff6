"""What surrounds every request: its id, its time, one line in the log, and an answer whatever happens."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import unexpected

log = logging.getLogger("app.access")
_SANE = re.compile(r"[\w.:-]{1,128}")


class RequestId:
    """Gives every answer an `x-request-id`, the client's own if it sent a sane one, and `openai-processing-ms`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if _SANE.fullmatch(given) else f"req_{secrets.token_hex(16)}"
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = id
                headers["openai-processing-ms"] = str(round((time.perf_counter() - began) * 1000))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            if status:  # the answer has begun: all that can be done is to break it off
                raise
            await unexpected(error)(scope, receive, send_with_id)
        finally:
            log.info(
                "request",
                extra={
                    "request_id": id,
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "ms": round((time.perf_counter() - began) * 1000),
                },
            )
